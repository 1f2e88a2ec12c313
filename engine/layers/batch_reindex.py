"""Selects samples of a batch by index, in any order and with repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("BatchReindex")
class BatchReindex(Layer):
    """Computes y[m] = x[i[m]], sample by sample (Caffe's layer).

    Bottoms: x (N, ...), i (M), whole numbers in [0, N). Top: y (M, ...). A forward raises DataError for a number
    outside.
    """

    bottom_range = (2, 2)
    constant_bottoms = frozenset({1})
    bf16 = True
    wide_bottoms = frozenset({1})

    def infer(self) -> list[Shape]:
        x, rows = self.shapes
        if not x:
            raise self.error("expected a first bottom of at least 1 axis, got a scalar")
        if len(rows) != 1:
            raise self.error(f"expected a second bottom of 1 axis, got {rows}")
        return [(*rows, *x[1:])]

    def lower(self, builder: Builder) -> None:
        x, rows = (builder.tensor(blob) for blob in self.bottoms)
        builder.op("BatchReindex", self, [builder.by_sample(self, x), builder.plain(self, rows)])

    def flops(self) -> int:
        return 0
