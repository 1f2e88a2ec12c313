"""Computes the maximum or average of windows over the spatial axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

MOST_PLACES = 2**24  # the most pixels of a plane whose numbers float32 holds exactly


@register("Pooling")
class Pooling(Layer):
    """Computes the maximum or the average of windows, or draws a value of each (Caffe's layer). Bottom
    (N, C, spatial...); tops: (N, C, pooled...), whose sizes are rounded up unless `round_mode: FLOOR`, and, for MAX, if
    given, a mask of the same shape: where in the bottom's plane each maximum was, as row * W + column. Upsample reads
    it.

    The last window of an axis is dropped if it starts beyond bottom and padding. It stays if nothing is padded, as in
    Caffe, and its maximum is the lowest float32. MAX ignores padding; AVE divides by the number of pixels of the window
    that lie within bottom and padding, or with `avg_include_pad: false` within the bottom. STOCHASTIC takes a value
    with a probability that is its fraction of the window's sum; in TEST it takes the mean weighted by these fractions.
    """

    bf16 = True
    top_range = (1, 2)
    first_top_learns = True

    @property
    def param(self):
        return self.message.pooling_param

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.param
        if not 3 <= len(shape) <= 5:
            raise self.error(f"expected a bottom of 3 to 5 axes (N, C, and spatial ones), got {shape}")
        if param.axis != 1:
            raise self.error(f"expected axis 1 for the channels, the only one supported, got {param.axis}")
        self.bf16 = self.bf16 and not (self._has_mask or self._is_stochastic)
        if self._has_mask or self._is_stochastic:
            self._check_plane()
        top = (*shape[:2], *(self._pooled(i, size) for i, size in enumerate(shape[2:])))
        return [top, top] if self._has_mask else [top]

    @property
    def _has_mask(self) -> bool:
        return len(self.message.top) == 2

    @property
    def _is_stochastic(self) -> bool:
        return self.param.pool == self.param.STOCHASTIC

    def _check_plane(self) -> None:
        """Raises ConfigError for a bottom or a window with which neither a mask nor pool STOCHASTIC is possible."""
        what = "a second top, the mask," if self._has_mask else "pool STOCHASTIC"
        if self._has_mask and self.param.pool != self.param.MAX:
            raise self.error(f"expected one top, for only pool MAX has a mask, got {len(self.message.top)}")
        if len(self.shapes[0]) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W) with {what} got {self.shapes[0]}")
        if math.prod(self.shapes[0][2:]) > MOST_PLACES:
            raise self.error(f"expected planes of at most {MOST_PLACES} pixels with {what} got {self.shapes[0]}")
        if self._is_stochastic and any(self.window["pad"]):
            raise self.error(f"expected pad 0 with pool STOCHASTIC, got {self.window['pad']}")

    def _pooled(self, i: int, size: int) -> int:
        """Returns the top's size along spatial axis i, from the bottom's. Raises ConfigError if the window does not
        fit."""
        kernel, stride, pad = (self.window[what][i] for what in ("kernel", "stride", "pad"))
        if kernel < 1 or stride < 1:
            raise self.error(f"expected kernel and stride of at least 1, got {kernel} and {stride}")
        if pad >= kernel:
            raise self.error(f"expected pad below kernel, got pad {pad} and kernel {kernel}")
        room = size + 2 * pad - kernel
        self.check_window("kernel, stride and pad", (kernel, stride, pad))
        pooled = 1 + (room // stride if self.param.round_mode == self.param.FLOOR else -(-room // stride))
        if pooled < 1:
            raise self.error(
                f"expected a kernel that fits into the padded bottom (size {size}, pad {pad}), got {kernel}"
            )
        beyond = (pooled - 1) * stride >= size + pad  # the last window: Caffe drops it where anything is padded
        if beyond and not any(self.window["pad"]):
            if self.param.pool == self.param.AVE:
                raise self.error(
                    f"its last window lies beyond the bottom (size {size}, kernel {kernel}, stride {stride}), where "
                    "Caffe's average is NaN; round_mode: FLOOR leaves it out"
                )
            return pooled
        return pooled - beyond

    @property
    def window(self) -> dict[str, list[int]]:
        """kernel, stride and pad, one each per spatial axis."""
        if self.param.global_pooling:
            return self._whole_plane()
        return {
            "kernel": self._per_axis("kernel", "kernel_size"),
            "stride": self._per_axis("stride", "stride"),
            "pad": self._per_axis("pad", "pad"),
        }

    def _whole_plane(self) -> dict[str, list[int]]:
        """Returns the window of global_pooling. Raises ConfigError if the text gives another one."""
        spatial = self.shapes[0][2:]
        for field in ("kernel_size", "kernel_h", "kernel_w"):
            if self.param.HasField(field):
                raise self.error(f"expected no {field} with global_pooling, which takes the whole plane")
        window = {"kernel": list(spatial), "stride": [1] * len(spatial), "pad": [0] * len(spatial)}
        for what in ("stride", "pad"):
            given = self._per_axis(what, what)
            if given != window[what]:
                raise self.error(f"expected {what} {window[what][0]} with global_pooling, got {given}")
        return window

    def _per_axis(self, name: str, square: str) -> list[int]:
        """Returns a size for each spatial axis, from the field `square`, from name_h and name_w, or from Intel's three
        numbers. Raises ConfigError if they do not fit together."""
        axes, param = len(self.shapes[0]) - 2, self.param
        if axes == 3 and getattr(param, f"{square}_3d"):
            return self._three(f"{square}_3d")
        pair = [f"{name}_h", f"{name}_w"]
        given = [field for field in pair if param.HasField(field)]
        if not given:
            if name == "kernel" and not param.HasField(square):
                raise self.error("kernel_size is missing")
            return [getattr(param, square)] * axes
        if param.HasField(square):
            raise self.error(f"both {square} and {given[0]} are given; keep one of them")
        if axes != 2:
            raise self.error(f"expected {square} in place of {given[0]} over {axes} spatial axes")
        if len(given) == 1:
            raise self.error(f"expected both {pair[0]} and {pair[1]}, got {given[0]} alone")
        return [getattr(param, field) for field in pair]

    def _three(self, field: str) -> list[int]:
        values = list(getattr(self.param, field))
        if len(values) != 3:
            raise self.error(f"expected 3 values of {field}, got {len(values)}")
        return values

    def attributes(self) -> Attributes:
        method = "MAX" if self.param.pool == self.param.MAX else "AVE"
        return {**self.window, "method": method, "include_pad": self.param.avg_include_pad}

    def lower(self, builder: Builder) -> None:
        x, window = builder.tensor(self.bottoms[0]), self.window
        if self._has_mask:
            builder.op("MaxPoolingMask", self, [x], window)
        elif self._is_stochastic:
            builder.op("StochasticPooling", self, [builder.plain(self, x)], {**window, "sample": self.training})
        else:
            builder.op("Pooling", self, [x], self.attributes())

    def flops(self) -> int:
        return math.prod(self.tops[0].shape) * math.prod(self.window["kernel"])
