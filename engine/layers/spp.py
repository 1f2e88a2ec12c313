"""Pools feature maps of any size to a fixed number of values by a spatial pyramid (He et al. 2014, arXiv 1406.4729)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Layer, Shape
from engine.layers.pooling import Pooling
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

MOST_LEVELS = 16  # the last has 4^15 cells for each channel


@register("SPP")
class SPP(Layer):
    """Pools the plane in 1, 4, 16, ... cells, level by level (Caffe's layer). Bottom (N, C, H, W); top (N,
    C * (4^pyramid_height - 1) / 3), in which each level, flattened, follows the one before; (N, C, 1, 1) for a single
    level."""

    @property
    def param(self):
        return self.message.spp_param

    def infer(self) -> list[Shape]:
        shape = self.shapes[0]
        if len(shape) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {shape}")
        if not 1 <= self.param.pyramid_height <= MOST_LEVELS:
            raise self.error(f"expected pyramid_height of 1 to {MOST_LEVELS}, got {self.param.pyramid_height}")
        if self.param.pool == self.param.STOCHASTIC:
            raise self.error("expected pool MAX or AVE, got STOCHASTIC, which has no padding")
        levels = self.levels()
        if len(levels) == 1:
            return [levels[0][1]]
        return [(shape[0], sum(math.prod(pooled[1:]) for _, pooled in levels))]

    def levels(self) -> list[tuple[Pooling, Shape]]:
        """Returns for each level its Pooling, and the shape of that one's top."""
        poolings = [self._pooling(2**level) for level in range(self.param.pyramid_height)]
        return [(pooling, pooling.infer()[0]) for pooling in poolings]

    def _pooling(self, cells: int) -> Pooling:
        """Returns the Pooling that divides the plane into `cells` x `cells`."""
        message = proto.LayerParameter(name=self.name, type=self.type)
        param = message.pooling_param
        param.pool = self.param.pool
        for axis, size in zip("hw", self.shapes[0][2:]):
            window = -(-size // cells)
            setattr(param, f"kernel_{axis}", window)
            setattr(param, f"stride_{axis}", window)
            setattr(param, f"pad_{axis}", (window * cells - size + 1) // 2)
        pooling = Pooling(message, self.where, self.phase)
        pooling.bottoms = self.bottoms
        return pooling

    def lower(self, builder: Builder) -> None:
        x, levels, top = builder.tensor(self.bottoms[0]), self.levels(), self.tops[0]
        if len(levels) == 1:
            builder.op("Pooling", self, [x], levels[0][0].attributes(), tops=[top])
            return
        copies = builder.op("Split", self, [x], tops=[], shapes=[self.shapes[0]] * len(levels))
        rows = []
        for copy, (pooling, shape) in zip(copies, levels, strict=True):
            pooled = builder.op("Pooling", self, [copy], pooling.attributes(), tops=[], shapes=[shape])[0]
            rows.append(builder.view(self, pooled, (shape[0], math.prod(shape[1:]))))
        builder.op("Concat", self, rows, {"axis": 1}, tops=[top])

    def flops(self) -> int:
        return math.prod(self.shapes[0]) * self.param.pyramid_height
