"""Convolves with weights that differ from place to place (locally connected), as happynear's fork and others do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Local", "LocallyConnected")
class Local(Layer):
    """A convolution that has weights of its own for each pixel of the top (happynear's layer, and others'). Bottom
    (N, C, H, W); top (N, num_output, h, w), of the size that a convolution's has; params: weights
    (num_output, 1, C * kernel_size^2, h * w) and, with `bias_term`, bias (1, 1, num_output, h * w)."""

    @property
    def param(self):
        return self.message.local_param

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.param
        if len(shape) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {shape}")
        if min(param.num_output, param.kernel_size, param.stride) < 1:
            raise self.error(
                f"expected num_output, kernel_size and stride of at least 1, got {param.num_output}, "
                f"{param.kernel_size} and {param.stride}"
            )
        self.check_window("kernel_size, stride and pad", (param.kernel_size, param.stride, param.pad))
        room = [size + 2 * param.pad - param.kernel_size for size in shape[2:]]
        if min(room) < 0:
            raise self.error(
                f"expected a kernel that fits into the padded bottom, got a kernel of {param.kernel_size} over {shape} "
                f"with pad {param.pad}"
            )
        return [(shape[0], param.num_output, *(each // param.stride + 1 for each in room))]

    @property
    def _values(self) -> int:
        """The number of values in a window."""
        return self.shapes[0][1] * self.param.kernel_size**2

    def make_params(self) -> list[Parameter]:
        outputs, windows = self.param.num_output, math.prod(self.infer()[0][2:])
        params = [Parameter((outputs, 1, self._values, windows), self.param.weight_filler)]
        if self.param.bias_term:
            params.append(Parameter((1, 1, outputs, windows), self.param.bias_filler))
        return params

    def lower(self, builder: Builder) -> None:
        x, top, param = builder.plain(self, builder.tensor(self.bottoms[0])), self.tops[0], self.param
        window = {"kernel": [param.kernel_size] * 2, "stride": [param.stride] * 2, "pad": [param.pad] * 2}
        n, _, height, width = top.shape
        unrolled = (n, self._values, height, width)
        x = builder.op("Im2col", self, [x], {**window, "dilation": [1, 1]}, params=[], tops=[], shapes=[unrolled])[0]
        x = builder.view(self, x, (n, self._values, height * width))
        rows = (n, param.num_output, height * width)
        y = builder.op("Local", self, [x], {"bias": param.bias_term}, tops=[], shapes=[rows])[0]
        builder.view(self, y, top.shape, top)

    def flops(self) -> int:
        return math.prod(self.tops[0].shape) * (2 * self._values + self.param.bias_term)
