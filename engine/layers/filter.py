"""Passes on the samples of a batch that a selector picks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Filter")
class Filter(Layer):
    """Passes on the samples whose selector is not 0, in their order (Caffe's layer).

    Bottoms: one or more of N samples each; the selector (N, 1, ...), last. Tops: one for each bottom but the last, of
    its shape.

    Caffe's tops shrink to the samples picked. Here shapes are fixed when the net is built: the tops keep N samples, of
    which those behind the picked ones are 0, and a loss that averages over N counts these, too. No gradient flows into
    samples that are not picked.
    """

    bottom_range = (2, None)
    top_range = (1, None)
    in_pairs = True
    bf16 = True

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset({len(self.bottoms) - 1})

    @property
    def wide_bottoms(self) -> frozenset[int]:
        return self.constant_bottoms

    def infer(self) -> list[Shape]:
        *samples, selector = self.shapes
        if len(self.message.top) != len(samples):
            raise self.error(
                f"expected {len(samples)} tops, one for each bottom but the last, got {len(self.message.top)}"
            )
        if not selector or math.prod(selector) != selector[0]:
            raise self.error(f"expected a selector of shape (N) or (N, 1, ...) as last bottom, got {selector}")
        for number, shape in enumerate(samples):
            if shape[:1] != selector[:1]:
                raise self.error(
                    f"expected {selector[0]} samples, one for each of the selector, got bottom {number} {shape}"
                )
        self.bf16 = self.bf16 and len(samples) == 1  # of several bottoms some may be labels
        return samples

    def lower(self, builder: Builder) -> None:
        *samples, selector = (builder.tensor(blob) for blob in self.bottoms)
        selector = builder.plain(self, selector)
        for x, top in zip(samples, self.tops, strict=True):
            builder.op("Filter", self, [builder.by_sample(self, x), selector], tops=[top])

    def flops(self) -> int:
        return 0
