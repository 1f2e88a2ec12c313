"""Normalises each channel of a batch, with Caffe's three blobs. It can absorb a Scale, a sum and a ReLU that follow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from engine import proto
from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.registry import register
from engine.weights.intel import keeps_scale

if TYPE_CHECKING:
    from engine.layers.builder import Builder
    from engine.layers.eltwise import Eltwise
    from engine.layers.scale import Scale


@register("BatchNorm")
class BatchNorm(Layer):
    """Computes (x - mean) / sqrt(variance + eps) for each channel, with the statistics of the batch or, with
    `use_global_stats` (the default in TEST), the running ones (Caffe's layer).

    Bottom and top: (N, C, ...); params: mean sum (C), variance sum (C), the factor that both are divided by (1); and,
    with NVIDIA's `scale_bias`, `scale_filler` or `bias_filler`, scale (C) and shift (C). A net for Intel's own kernels
    (`engine: MKL2017` or `MKLDNN`, `filler`, `use_weight_bias`) without a Scale behind it is read as `scale_bias`.

    Intel's stats_batch_size (of the layer, or bn_stats_batch_size of the net) cuts the batch into slices of so many
    samples, which are normalised separately and enter the running sums one after the other. `sync` (bn_sync of the net)
    is the opposite: it takes one mean and variance of the batches of all ranks, as a single rank with all samples
    would.

    If a net has BatchNorm and then Scale, and a file of weights has Intel's form, with both in one layer, the reader of
    the file separates them (engine/weights/intel.py).
    """

    bf16 = True

    scale = shift = adds = relu = False  # what `absorb` has taken over
    ceiling: float | None = None  # the most that the ReLU lets through: 6 for a ReLU6

    @property
    def has_scale(self) -> bool:
        """Whether scale and shift are the layer's own."""
        return keeps_scale(self.message.batch_norm_param)

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {self.shapes[0]}")
        size = self.stats_batch_size
        if size and self.shapes[0][0] % size:
            raise self.error(f"stats_batch_size {size} does not divide the batch of {self.shapes[0][0]}")
        if size and self.sync:
            raise self.error("stats_batch_size and sync exclude each other: fewer samples, or those of all ranks")
        return [self.shapes[0]]

    def make_params(self) -> list[Parameter]:
        channels, param = self.shapes[0][1], self.message.batch_norm_param
        params = [Parameter(shape, statistics=True, lr_mult=0.0) for shape in ((channels,), (channels,), (1,))]
        if self.has_scale:
            ones = proto.FillerParameter(type="constant", value=1)
            scale = param.scale_filler if param.HasField("scale_filler") else ones
            params += [Parameter((channels,), scale), Parameter((channels,), param.bias_filler)]
            self.scale = self.shift = True
        return params

    @property
    def use_global_stats(self) -> bool:
        """Whether the running statistics normalise, not the batch's."""
        param = self.message.batch_norm_param
        return param.use_global_stats if param.HasField("use_global_stats") else not self.training

    @property
    def remembers(self) -> bool:
        """Whether a forward changes the running sums."""
        return not self.use_global_stats

    @property
    def stats_batch_size(self) -> int:
        """How many samples statistics are taken from; 0: from the whole batch."""
        if self.use_global_stats:
            return 0
        return self.message.batch_norm_param.stats_batch_size or self.net.bn_stats_batch_size

    @property
    def sync(self) -> bool:
        """Whether the statistics are those of the batches of all ranks."""
        asked = self.message.batch_norm_param.sync or self.net.bn_sync
        return asked and self.training and not self.use_global_stats

    def lower(self, builder: Builder) -> None:
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        x, size = inputs[0], self.stats_batch_size
        if not size or size == self.shapes[0][0]:
            builder.op("BatchNorm", self, inputs, self.attributes())
            return
        shape = (size, *self.shapes[0][1:])
        count = self.shapes[0][0] // size
        slices = builder.op("Slice", self, [x], {"axis": 0}, params=[], tops=[], shapes=[shape] * count)
        slices = [builder.op("BatchNorm", self, [x], self.attributes(), tops=[], shapes=[shape])[0] for x in slices]
        builder.op("Concat", self, slices, {"axis": 0}, params=[])

    def summed_params(self) -> list[Parameter]:
        return self.params if self.stats_batch_size not in (0, self.shapes[0][0]) else []

    def attributes(self) -> Attributes:
        param = self.message.batch_norm_param
        return {
            "eps": param.eps,
            "moving_average_fraction": param.moving_average_fraction,
            "use_global_stats": self.use_global_stats,
            "sync": self.sync,
            "scale": self.scale,
            "shift": self.shift,
            "relu": self.relu or param.relu,
            **self.limits(),
        }

    def limits(self) -> Attributes:
        """Returns the attribute for an absorbed ReLU6, if there is one."""
        return {} if self.ceiling is None else {"ceiling": self.ceiling}

    def absorb(self, following: Layer) -> bool:
        """Takes over, in this order: a Scale of the channels, with its params; in training, the addition of another
        blob; a ReLU without slope, or a ReLU6; and in training the Split of the result between two readers."""
        joins = self.training and self.stats_batch_size in (0, self.shapes[0][0])
        if following.type == "Split":
            return joins and len(following.tops) == 2
        if self.relu or self.message.batch_norm_param.relu:
            return False
        if following.type == "Scale" and not (self.scale or self.adds) and cast("Scale", following).is_per_channel:
            self.scale, self.shift = True, len(following.params) == 2
            self.params = self.params + following.params
        elif following.type == "Eltwise" and joins and not self.adds and cast("Eltwise", following).adds_two:
            self.adds = True
            self.bottoms = self.bottoms + [blob for blob in following.bottoms if blob is not self.tops[0]]
        elif following.type == "ReLU" and following.message.relu_param.negative_slope == 0:
            self.relu = True
        elif following.type == "ReLU6":
            self.relu, self.ceiling = True, 6.0
        else:
            return False
        return True

    def flops(self) -> int:
        per_element = 2 if self.use_global_stats else 6  # 2 to normalise, 4 for the sums of mean and variance
        return (per_element + self.scale + self.shift + self.adds + self.relu) * math.prod(self.shapes[0])
