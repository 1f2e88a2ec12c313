"""Pools regions of position-sensitive score maps by cells that learned offsets move (Deformable ConvNets, arXiv
1703.06211)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Shape
from engine.layers.psroi_pooling import ScoreMaps
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("DeformablePSROIPooling")
class DeformablePSROIPooling(ScoreMaps):
    """Computes a PSROIPooling whose cells can be moved (Deformable ConvNets' layer).

    Bottoms: those of PSROIPooling and, without `no_trans`, offsets (R, 2 classes, part_size, part_size). Top: as that
    of PSROIPooling.

    Each of `classes` equal shares of the outputs has two channels of offsets, to the right and down. They move the
    cells in each of part_size x part_size pieces of a region, in sizes of the region times `trans_std`. A value of the
    top is the mean of sample_per_part x sample_per_part bilinear samples of a cell. Samples more than half a pixel
    outside of the features do not count; a cell without any is 0.
    """

    bottom_range = (2, 3)

    @property
    def param(self):
        return self.message.deformable_psroi_pooling_param

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset({1, 2} if self.param.no_trans else {1})

    def infer(self) -> list[Shape]:
        self.check_samples("sample_per_part", self.param.sample_per_part)
        if not self.param.no_trans and len(self.bottoms) < 3:
            raise self.error("expected offsets as bottom 3, or no_trans: true, by which cells are not moved")
        return super().infer()

    def pooled_shape(self, channels: int) -> Shape:
        shape = super().pooled_shape(channels)
        if not self.param.no_trans:
            self._check_offsets(shape[0])
        return shape

    def _check_offsets(self, output_dim: int) -> None:
        """Raises ConfigError if the offsets do not fit the regions or the outputs."""
        regions, offsets = self.shapes[1], self.shapes[2]
        part = self.param.part_size or self.param.group_size
        if part < 1:
            raise self.error(f"expected part_size of at least 1, or 0 for that of group_size, got {part}")
        if len(offsets) != 4 or offsets != (regions[0], offsets[1], part, part) or offsets[1] % 2 or not offsets[1]:
            raise self.error(
                f"expected offsets {(regions[0], '2 classes', part, part)}, two for each class and each of part_size "
                f"squared pieces of a region, got {offsets}"
            )
        if output_dim % (offsets[1] // 2):
            raise self.error(
                f"expected offsets whose classes, {offsets[1] // 2}, half of their channels, divide output_dim "
                f"{output_dim}"
            )

    def attributes(self) -> Attributes:
        param = self.param
        return {**super().attributes(), "samples": param.sample_per_part, "offset_scale": param.trans_std}

    def lower(self, builder: Builder) -> None:
        read = self.bottoms[:2] if self.param.no_trans else self.bottoms
        inputs = [builder.plain(self, builder.tensor(blob)) for blob in read]
        builder.op(self.type, self, inputs, self.attributes())

    def flops(self) -> int:
        return 8 * self.param.sample_per_part**2 * math.prod(self.tops[0].shape)
