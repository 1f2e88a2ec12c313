"""Scales each sample, or the channels at each position, to a length: to a learned one as SSD does, or to 1."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Parameter, Shape
from engine.layers.normalization import Normalization
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

LEAST = 1e-6  # happynear's fork adds this to sums


@register("Normalize")
class Normalize(Normalization):
    """Bottom (N, C, ...); top: x divided by a length, of the bottom's shape. There are three forms.

    If norm_param is given, it is SSD's: x scale / sqrt(sum of x^2 + eps), where the sum is over a sample or, with
    `across_spatial: false`, over the channels of a position; params: scale (), or (C) with `channel_shared: false`; 1
    without a filler; no other form has any.

    If normalize_param or a second top is given, it is happynear's: x / sqrt(sum of x^2 + 1e-6) or, with
    `normalize_type: "L1"`, x / (sum of |x| + 1e-6), where the sum is over the channels of a position. The second top is
    that length (N, 1, ...); its gradient counts with `bp_norm`.

    Otherwise it is caffe-face's: x / sqrt(sum of x^2), where the sum is over a sample.
    """

    bf16 = True
    top_range = (1, 2)

    @property
    def param(self):
        return self.message.norm_param

    @property
    def _is_ssds(self) -> bool:
        return self.message.HasField("norm_param")

    @property
    def _is_of_positions(self) -> bool:
        """Whether it is happynear's, which normalises the channels of each position."""
        return self.message.HasField("normalize_param") or len(self.message.top) == 2

    def infer(self) -> list[Shape]:
        shape, unit = self.shapes[0], self.message.normalize_param
        self.bf16 = self._is_ssds
        if len(shape) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {shape}")
        if self._is_ssds and self._is_of_positions:
            raise self.error("expected either norm_param (SSD's) with one top, or normalize_param (happynear's)")
        if unit.normalize_type not in ("L1", "L2"):
            raise self.error(f"expected normalize_type L1 or L2, got '{unit.normalize_type}'")
        if unit.fix_gradient:
            raise self.error("expected no fix_gradient, which happynear's fork reads and does not use")
        return [shape, (shape[0], 1, *shape[2:])][: len(self.message.top)]

    def make_params(self) -> list[Parameter]:
        if not self._is_ssds:
            return []
        ones = proto.FillerParameter(type="constant", value=1)
        filler = self.param.scale_filler if self.param.HasField("scale_filler") else ones
        return [Parameter(() if self.param.channel_shared else self.shapes[0][1:2], filler)]

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        if self._is_ssds:
            attributes = {"across_spatial": self.param.across_spatial, "eps": self.param.eps}
            builder.op("Normalize", self, [x], attributes)
            return
        if self._is_of_positions:
            unit = self.message.normalize_param
            attributes = {"l1": unit.normalize_type == "L1", "eps": LEAST, "of_length": unit.bp_norm}
            builder.op("UnitNorm", self, [builder.plain(self, x)], attributes)
        else:
            super().lower(builder)

    def reached_from(self, top: int) -> Collection[int]:
        return (0,) if top == 0 or self.message.normalize_param.bp_norm else ()
