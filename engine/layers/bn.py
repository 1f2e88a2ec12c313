"""Normalises each channel of a batch with its own scale and shift, in the variants of several forks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.batch_norm import BatchNorm
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


@register("BN")
class BN(BatchNorm):
    """Computes scale (x - mean) / sqrt(variance + eps) + shift for each channel, as the forks of yjxiong, PSPNet,
    happynear and SegNet do.

    Bottom and top: (N, C, ...); params: scale (1, C, 1, 1), shift, running mean and running variance, all of this
    shape.

    The statistics are the batch's in TRAIN, where each step keeps `momentum` of the running ones. In TEST, and with
    `frozen`, the running ones normalise.

    SegNet's form (scale_filler, shift_filler or bn_mode given) has scale and shift only: statistics are the batch's in
    TEST, too, unless `bn_mode: INFERENCE` says that scale and shift are all there is to do. Its second and third tops
    are the batch's mean and variance (1, C, 1, 1), which its scripts average for INFERENCE.
    """

    top_range = (1, 3)
    first_top_learns = True

    scale = shift = True

    @property
    def param(self):
        return self.message.bn_param

    @property
    def is_segnets(self) -> bool:
        """Whether the text has fields of SegNet's form."""
        return any(self.param.HasField(name) for name in ("scale_filler", "shift_filler", "bn_mode"))

    @property
    def is_affine(self) -> bool:
        """Whether the layer applies scale and shift only, without any statistics."""
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
        if len(self.message.top) > 1 and (not self.is_segnets or self.is_affine):
            raise self.error("expected one top: only SegNet's form, without bn_mode INFERENCE, gives statistics")
        statistics = (1, self.shapes[0][1], 1, 1) if len(self.shapes[0]) > 1 else ()
        return [*super().infer(), statistics, statistics][: len(self.message.top)]

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
        params = [*self.params[2:], *self.params[:2]]
        if self.is_affine:
            builder.op("Scale", self, inputs, {"axis": 1, "num_axes": 1, "bias": True})
        elif len(self.message.top) == 1:  # it may have more tops, those of a Split that it has absorbed
            builder.op("BatchNorm", self, inputs, self.attributes(), params=params)
        else:
            builder.op("BatchNorm", self, inputs, self.attributes(), params=params, tops=self.tops[:1])
            self._lower_statistics(builder, inputs[0].without_diff())

    def _lower_statistics(self, builder: Builder, x: Tensor) -> None:
        """Adds the ops of further tops: the mean, and the mean of squares less the mean's square."""
        n, channels = self.shapes[0][:2]
        size = math.prod(self.shapes[0][2:])
        x = builder.view(self, x, (n, channels, size))
        x = builder.op("Permute", self, [x], {"order": [1, 0, 2]}, params=[], tops=[], shapes=[(channels, n, size)])[0]
        means = []
        for term in ("value", "square"):
            attributes = {"term": term, "coefficient": 1 / (n * size)}
            means += builder.op("Reduction", self, [x], attributes, params=[], tops=[], shapes=[(channels,)])
        builder.view(self, means[0], self.tops[1].shape, self.tops[1])
        if len(self.tops) == 3:
            square = builder.op("EltwiseProduct", self, [means[0]] * 2, params=[], tops=[], shapes=[(channels,)])
            difference = {"coefficients": [1.0, -1.0], "relu": False}
            variance = builder.op(
                "EltwiseSum", self, [means[1], *square], difference, params=[], tops=[], shapes=[(channels,)]
            )
            builder.view(self, variance[0], self.tops[2].shape, self.tops[2])

    def attributes(self) -> Attributes:
        eps = self.param.eps if self.param.HasField("eps") else 1e-9 if self.is_segnets else 1e-5
        return {
            "eps": eps,
            "moving_average_fraction": self.param.momentum,
            "use_global_stats": self.use_global_stats,
            "scale": True,
            "shift": True,
            "relu": self.relu,
            **self.limits(),
        }

    def absorb(self, following: Layer) -> bool:
        return not self.is_affine and super().absorb(following)
