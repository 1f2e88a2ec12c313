"""Concatenates blobs along an axis."""

from __future__ import annotations

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register


@register("Concat")
class Concat(Layer):
    """Puts blobs one after the other along `axis` (1) (Caffe's layer). Bottoms: one or more, whose shapes differ in
    that axis only. Top: their shape, with the sum of their sizes in that axis."""

    bf16 = True

    # In a chain (graph/passes/chain_concats.py): the sizes along the axis of all that the chain's blob holds, and
    # whether this layer's first bottom lies there already.
    sizes: list[int] | None = None
    continues = False

    bottom_range = (1, None)

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.concat_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        first, axis = self.shapes[0], self.axis
        for number, shape in enumerate(self.shapes):
            if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
                wanted = f"bottoms that differ from {first} in axis {axis} only"
                raise self.error(f"expected {wanted}, got {shape} for bottom {number}")
        return [(*first[:axis], sum(shape[axis] for shape in self.shapes), *first[axis + 1 :])]

    def attributes(self) -> Attributes:
        chain: Attributes = {} if self.sizes is None else {"sizes": self.sizes, "continues": self.continues}
        return {"axis": self.axis, **chain}

    def flops(self) -> int:
        return 0
