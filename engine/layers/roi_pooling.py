"""Max-pools every region of interest to one size (Fast R-CNN, Girshick 2015, arXiv 1504.08083)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

MOST_SAMPLES = 1000  # of a cell along each axis: with more, a region takes longer than anyone waits


class RegionPooling(Layer):
    """The base of layers that pool regions of interest. Bottoms: features (N, C, H, W), regions (R, 5) of image, x1,
    y1, x2, y2 in pixels of the net's input, which `spatial_scale` turns into pixels of the features. A row with a
    negative image is unused: its top is 0."""

    bottom_range = (2, 2)
    constant_bottoms = frozenset({1})

    @property
    def param(self):
        raise NotImplementedError

    def infer(self) -> list[Shape]:
        features, regions = self.shapes[:2]
        if len(features) != 4:
            raise self.error(f"expected features of 4 axes (N, C, H, W), got {features}")
        if len(regions) < 2 or math.prod(regions[1:]) != 5:
            raise self.error(f"expected regions (R, 5), rows of image, x1, y1, x2, y2, got {regions}")
        if self.param.spatial_scale <= 0:
            raise self.error(f"expected spatial_scale above 0, got {self.param.spatial_scale:g}")
        return [(regions[0], *self.pooled_shape(features[1]))]

    def pooled_shape(self, channels: int) -> Shape:
        """Returns the shape of one region's top, (C, H, W). channels: of the features."""
        raise NotImplementedError

    def check_samples(self, name: str, count: int, least: int = 1) -> None:
        """Raises ConfigError if the samples of a cell along each axis, which `name` says, are too many or too few."""
        if not least <= count <= MOST_SAMPLES:
            raise self.error(f"expected {name} from {least} to {MOST_SAMPLES}, got {count}")

    def attributes(self) -> Attributes:
        return {"spatial_scale": self.param.spatial_scale}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op(self.type, self, inputs, self.attributes())


class RegionGrid(RegionPooling):
    """The base of layers that divide each region into a grid of cells. Top (R, C, pooled_h, pooled_w). The features may
    have any layout, which the top has, too. op_type: the op that the layer becomes."""

    op_type: ClassVar[str]

    @property
    def pooled_size(self) -> tuple[int, int]:
        return self.param.pooled_h, self.param.pooled_w

    def pooled_shape(self, channels: int) -> Shape:
        height, width = self.pooled_size
        if height < 1 or width < 1:
            raise self.error(f"expected pooled_h and pooled_w of at least 1, got {height} and {width}")
        return (channels, height, width)

    def lower(self, builder: Builder) -> None:
        features, regions = (builder.tensor(blob) for blob in self.bottoms)
        builder.op(self.op_type, self, [features, builder.plain(self, regions)], self.attributes())


@register("ROIPooling")
class ROIPooling(RegionGrid):
    """Computes the maximum of each cell; 0 if the cell is empty (Fast R-CNN's layer). Bottoms: see RegionPooling; top:
    see RegionGrid."""

    op_type = "ROIPooling"

    @property
    def param(self):
        return self.message.roi_pooling_param

    @property
    def pooled_size(self) -> tuple[int, int]:
        sizes = list(self.param.pooled_size)
        if len(sizes) not in (0, 1, 2):
            raise self.error(f"expected 1 or 2 values of pooled_size, got {len(sizes)}")
        return (sizes[0], sizes[-1]) if sizes else super().pooled_size
