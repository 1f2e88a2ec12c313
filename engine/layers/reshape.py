"""Gives a blob another shape, with the same values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Reshape")
class Reshape(Layer):
    """Replaces `num_axes` (-1: all that follow) axes from `axis` (0) on by the dims of `shape`; the values stay
    (Caffe's layer). Bottom: any shape. A dim of 0 copies the bottom's axis at its place; one dim may be -1, which
    stands for what is left."""

    bf16 = True

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.message.reshape_param
        if param.pixelshuffler != 1:
            raise self.error(f"expected pixelshuffler 1, the only one supported, got {param.pixelshuffler}")
        begin, end = self._range(len(shape))
        top = [*shape[:begin], *self._replacement(shape, begin), *shape[end:]]
        if -1 in top:
            known = math.prod(dim for dim in top if dim != -1)
            if known == 0 or math.prod(shape) % known:
                raise self.error(f"the -1 in {self._dims()} cannot be inferred: {shape} is not divisible by {known}")
            top[top.index(-1)] = math.prod(shape) // known
        if math.prod(top) != math.prod(shape):
            raise self.error(f"expected {math.prod(shape)} values as in {shape}, got {math.prod(top)} in {tuple(top)}")
        return [tuple(top)]

    def _dims(self) -> list[int]:
        return list(self.message.reshape_param.shape.dim)

    def _range(self, rank: int) -> tuple[int, int]:
        """Returns the first axis that is replaced, and the one after the last. axis -1 is the place after the last
        axis, as in Caffe."""
        param = self.message.reshape_param
        begin = param.axis if param.axis >= 0 else rank + param.axis + 1
        end = rank if param.num_axes == -1 else begin + param.num_axes
        if not 0 <= begin <= end <= rank:
            raise self.error(f"axis {param.axis} with num_axes {param.num_axes} is out of range for {rank} axes")
        return begin, end

    def _replacement(self, shape: Shape, begin: int) -> list[int]:
        """Returns the dims that replace the axes from `begin` on, where each 0 has become the bottom's. A -1 stays."""
        dims = self._dims()
        if dims.count(-1) > 1 or min(dims, default=0) < -1:
            raise self.error(f"expected dims of at least 0 and at most one -1, got {dims}")
        for i, dim in enumerate(dims):
            if dim == 0:
                if begin + i >= len(shape):
                    raise self.error(f"dim {i} of {self._dims()} copies axis {begin + i}, but the bottom is {shape}")
                dims[i] = shape[begin + i]
        return dims

    def lower(self, builder: Builder) -> None:
        builder.view(self, builder.tensor(self.bottoms[0]), self.tops[0].shape, self.tops[0])

    def flops(self) -> int:
        return 0
