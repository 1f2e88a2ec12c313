"""Compares the neighbourhoods of two blobs for each of many displacements (FlowNet, arXiv 1504.06852)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Correlation")
class Correlation(Layer):
    """Computes, for each displacement, the mean of a b over the channels and a window of `kernel_size`^2 pixels, where
    the window of b is displaced (FlowNet 2's layer). With `correlation_type: SUBTRACT` it is the mean of |a - b|.

    Bottoms: a and b (N, C, H, W), around which `pad` rows and columns of zeros are put. Top: (N, D^2, h, w), where
    D = 2 floor(max_displacement / stride_2) + 1.

    Displacements are all multiples of `stride_2` up to `max_displacement` in both directions, row by row. Windows are
    `stride_1` apart; the first and the last one are max_displacement away from the padded border.

    The gradients are those of the formula. The fork's gradient of SUBTRACT is not: it takes the sign at the wrong
    pixel.
    """

    bottom_range = (2, 2)

    @property
    def param(self):
        return self.message.correlation_param

    def infer(self) -> list[Shape]:
        (first, second), param = self.shapes, self.param
        if len(first) != 4 or first != second:
            raise self.error(f"expected two bottoms of one shape (N, C, H, W), got {first} and {second}")
        if param.kernel_size % 2 != 1 or not param.HasField("max_displacement"):
            raise self.error(
                f"expected an odd kernel_size and max_displacement, got kernel_size {param.kernel_size} and "
                + (f"{param.max_displacement}" if param.HasField("max_displacement") else "no max_displacement")
            )
        if min(param.stride_1, param.stride_2) < 1:
            raise self.error(f"expected stride_1 and stride_2 of at least 1, got {param.stride_1} and {param.stride_2}")
        fields = ("pad", "kernel_size", "max_displacement", "stride_1", "stride_2")
        self.check_window(", ".join(fields), [getattr(param, field) for field in fields])
        size = tuple(
            -((param.kernel_size - 1 + 2 * reach - each - 2 * pad) // param.stride_1)
            for each, pad, reach in zip(first[2:], self._pad, self._reach, strict=True)
        )
        if min(size) < 1:
            raise self.error(
                f"expected windows of {param.kernel_size}, displaced by {param.max_displacement}, that fit into "
                f"{first} with pad {param.pad}"
            )
        return [(first[0], len(self.displacements), *size)]

    @property
    def _pad(self) -> tuple[int, int]:
        """How many (rows, columns) of zeros are put on each side."""
        return self.param.pad, self.param.pad

    @property
    def _reach(self) -> tuple[int, int]:
        """How many (rows, columns) displacements lead at most."""
        return self.param.max_displacement, self.param.max_displacement

    @property
    def displacements(self) -> list[tuple[int, int]]:
        """The displacements, of (rows, columns), in the order of the top's channels."""
        radius, step = self.param.max_displacement // self.param.stride_2, self.param.stride_2
        steps = [step * each for each in range(-radius, radius + 1)]
        return [(down, across) for down in steps for across in steps]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        displacements = self.displacements
        # With single_direction -1 displacements lead one step beyond the reach, and the padding has to follow.
        further = max(max(abs(across) for _, across in displacements) - self._reach[1], 0)
        attributes = {
            "pad": [self._pad[0], self._pad[1] + further],
            "reach": [self._reach[0], self._reach[1] + further],
            "kernel": self.param.kernel_size,
            "stride": self.param.stride_1,
            "down": [down for down, _ in displacements],
            "across": [across for _, across in displacements],
            "subtract": self.param.correlation_type == self.param.SUBTRACT,
        }
        builder.op("Correlation", self, inputs, attributes)

    def flops(self) -> int:
        return 2 * math.prod(self.tops[0].shape) * self.param.kernel_size**2 * self.shapes[0][1]


@register("Correlation1D")
class Correlation1D(Correlation):
    """Computes a Correlation that is displaced and padded along rows only, for stereo (FlowNet 2's layer). Its top is
    (N, D, h, w).

    D is 2 r + 1 with r = floor(max_displacement / stride_2). With `single_direction` D is r + 1: displacements are 0 to
    r times stride_2 if it is 1, and -(r + 1) to -1 times stride_2 if it is -1.
    """

    @property
    def _pad(self) -> tuple[int, int]:
        return 0, self.param.pad

    @property
    def _reach(self) -> tuple[int, int]:
        return 0, self.param.max_displacement

    @property
    def displacements(self) -> list[tuple[int, int]]:
        radius, step = self.param.max_displacement // self.param.stride_2, self.param.stride_2
        direction = self.param.single_direction
        first, last = (-radius, radius) if direction == 0 else (0, radius) if direction > 0 else (-radius - 1, -1)
        return [(0, step * each) for each in range(first, last + 1)]
