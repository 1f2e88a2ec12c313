"""Batch normalisation with its own scale and shift, in the variants of the public forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.batch_norm import BatchNorm
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("BN")
class BN(BatchNorm):
    """Bottom and top (N, C, ...); params: scale (1, C, 1, 1), shift, and, of the same shape, running mean and variance,
    of which a step keeps `momentum`; in TEST, or `frozen`, they are what is normalised by.

    SegNet's form (scale_filler, shift_filler or bn_mode given) has scale and shift only: statistics are the batch's in
    TEST, too, unless `bn_mode: INFERENCE` says that scale and shift are all there is to do.
    """

    scale = shift = True

    @property
    def param(self):
        return self.message.bn_param

    @property
    def is_segnets(self) -> bool:
        return any(self.param.HasField(name) for name in ("scale_filler", "shift_filler", "bn_mode"))

    @property
    def is_affine(self) -> bool:
        """Nothing but scale and shift."""
        return self.is_segnets and self.param.bn_mode == self.param.INFERENCE

    @property
    def use_global_stats(self) -> bool:
        return not self.is_segnets and (self.param.frozen or not self.training)

    @property
    def stats_batch_size(self) -> int:
        return 0

    @property
    def sync(self) -> bool:
        return False

    def infer(self) -> list[Shape]:
        if self.net.bn_sync and self.training and not (self.use_global_stats or self.is_affine):
            raise self.error("expected no bn_sync: only layers of type BatchNorm have statistics of all ranks")
        return super().infer()

    def make_params(self) -> list[Parameter]:
        param, shape = self.param, (1, self.shapes[0][1], 1, 1)
        scale, shift = ("scale_filler", "shift_filler") if self.is_segnets else ("slope_filler", "bias_filler")
        ones = proto.FillerParameter(type="constant", value=1)
        filler = getattr(param, scale) if param.HasField(scale) else ones
        params = [Parameter(shape, each, frozen=param.frozen) for each in (filler, getattr(param, shift))]
        if not self.is_segnets:
            params.append(Parameter(shape, statistics=True, lr_mult=0.0))
            params.append(Parameter(shape, ones if param.frozen else None, statistics=True, lr_mult=0.0))
        return params

    def lower(self, builder: Builder) -> None:
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        if self.is_affine:
            builder.op("Scale", self, inputs, {"axis": 1, "num_axes": 1, "bias": True})
        else:
            builder.op("BatchNorm", self, inputs, self.attributes(), params=[*self.params[2:], *self.params[:2]])

    def attributes(self) -> Attributes:
        eps = self.param.eps if self.param.HasField("eps") else 1e-9 if self.is_segnets else 1e-5
        return {
            "eps": eps,
            "moving_average_fraction": self.param.momentum,
            "use_global_stats": self.use_global_stats,
            "scale": True,
            "shift": True,
            "relu": self.relu,
        }

    def absorb(self, following: Layer) -> bool:
        return not self.is_affine and super().absorb(following)
