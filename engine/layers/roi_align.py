"""Averages bilinear samples of every region of interest to one size (Mask R-CNN, arXiv 1703.06870)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.roi_pooling import RegionPooling

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ROIAlign", "RoIAlign")
class ROIAlign(RegionPooling):
    """Top (R, C, pooled_h, pooled_w): the average of `sampling_ratio` squared samples in every cell of a grid over the
    region, or of one for each pixel that the cell is long without it."""

    @property
    def param(self):
        return self.message.roi_align_param

    def infer(self) -> list[Shape]:
        if self.message.HasField("roi_pooling_param"):
            raise self.error(
                "roi_pooling_param of a ROIAlign means a maximum in one fork and other samples in the next; give "
                "roi_align_param, which averages samples as Mask R-CNN does"
            )
        return super().infer()

    def pooled_shape(self, channels: int) -> Shape:
        height, width = self.param.pooled_h, self.param.pooled_w
        if height < 1 or width < 1:
            raise self.error(f"expected pooled_h and pooled_w of at least 1, got {height} and {width}")
        return (channels, height, width)

    def lower(self, builder: Builder) -> None:
        features, regions = (builder.tensor(blob) for blob in self.bottoms)
        inputs = [features, builder.plain(self, regions)]  # features in any layout
        attributes = {
            "spatial_scale": self.param.spatial_scale,
            "sampling_ratio": max(self.param.sampling_ratio, 0),
        }
        builder.op("ROIAlign", self, inputs, attributes)
