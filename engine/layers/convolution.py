"""Convolves over all axes after the channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Blob, Layer, Parameter, Shape
from engine.layers.kernels import FORWARD, PASSES, WEIGHTS, WINOGRAD
from engine.layers.registry import register
from engine.layers.weighted import Weighted

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


FURTHEST = 16  # most pixels between windows in bf16: from 32 on, kernels of oneDNN 3.2 write outside of the blob
FEWEST_TILES = 48  # fewest tiles of a batch for Winograd's algorithm, which transforms the weights once for all of them
MANY_WEIGHTS = 30_000  # inputs x outputs from which Winograd's wins in bf16 also on planes of 7 x 7 and 14 x 14


def grouped(weights: Shape, group: int) -> Shape:
    """Returns the shape of weights as oneDNN has it, in which groups have an axis of their own."""
    return (group, weights[0] // group, *weights[1:]) if group > 1 else weights


@register("Convolution")
class Convolution(Weighted):
    """Convolves over any number of spatial axes, also over none (Caffe's layer).

    Bottoms: (N..., C, spatial...), where C is axis `axis` (1), all of one shape. Tops: (N..., num_output, spatial...),
    one for each bottom, by the same weights.

    params: weights (num_output, C / group, kernel...) and, with `bias_term`, bias (num_output).
    """

    bottom_range = (1, None)
    top_range = (1, None)
    in_pairs = True
    normalises = True
    op_type = "Convolution"

    @property
    def param(self):
        return self.message.convolution_param

    def check_axes(self) -> None:
        """Raises ConfigError unless there are as many bottoms, of one shape, as tops."""
        if len(self.shapes) != len(self.message.top):
            raise self.error(f"expected a top for each bottom, got {len(self.shapes)} and {len(self.message.top)}")
        if len(set(self.shapes)) > 1:
            raise self.error(f"expected bottoms of one shape, got {', '.join(map(str, self.shapes))}")
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {self.shapes[0]}")

    @property
    def axis(self) -> int:
        """The axis of the channels."""
        return self.canonical_axis(self.param.axis, len(self.shapes[0]))

    @property
    def seen(self) -> Shape:
        """The bottom as (N, C, spatial...); there may be no spatial axis."""
        shape, axis = self.shapes[0], self.axis
        return (math.prod(shape[:axis]), *shape[axis:])

    def infer(self) -> list[Shape]:
        self.check_axes()
        shape, param = self.seen, self.param
        self.check_above_zero(param, "num_output")
        for what, channels in (("channels of the bottom", shape[1]), ("num_output", param.num_output)):
            if param.group == 0 or channels % param.group:
                raise self.error(f"expected group to divide the {what}, {channels}, got group {param.group}")
        if param.fusion_type != param.NONE_FUSION:
            raise self.error("fusion_type is written by Intel's own graph compiler; expected the net without it")
        if param.conv_algorithm not in ("auto", "direct", "winograd"):
            raise self.error(f"expected conv_algorithm auto, direct or winograd, got '{param.conv_algorithm}'")
        top = (*self.shapes[0][: self.axis], param.num_output, *self._spatial_output(shape[2:]))
        self.bf16 = self.bf16 and self._between_windows() <= FURTHEST and not self._has_short_rows(top)
        return [top] * len(self.shapes)

    def _has_short_rows(self, top: Shape) -> bool:
        """Tells whether the rows over which windows move are padded and shorter than the stride: in bf16, oneDNN 3.2's
        gradient of the weights then reads scratch memory that was never written."""
        window, moved_over = self.window, top if self.op_type == "Deconvolution" else self.shapes[0]
        return bool(window["pad"]) and window["pad"][-1] > 0 and moved_over[-1] < window["stride"][-1]

    def _between_windows(self) -> int:
        """Returns how many pixels between two windows neither covers, at most over the axes."""
        window = self.window
        sizes = zip(window["stride"], window["dilation"], window["kernel"], strict=True)
        return max((stride - dilation * (kernel - 1) - 1 for stride, dilation, kernel in sizes), default=0)

    def _spatial_output(self, spatial: Shape) -> Shape:
        """Returns the spatial axes of the top. Raises ConfigError if the window does not fit."""
        window = self.window
        sizes = []
        for i, size in enumerate(spatial):
            padded = size + 2 * window["pad"][i]
            extent = window["dilation"][i] * (window["kernel"][i] - 1) + 1
            if extent > padded:
                raise self.error(
                    f"expected a kernel that fits into the padded bottom, got a kernel of {extent} over {padded} "
                    f"(size {size}, pad {window['pad'][i]}) on axis {self.axis + 1 + i} of {self.shapes[0]}"
                )
            sizes.append((padded - extent) // window["stride"][i] + 1)
        return tuple(sizes)

    @property
    def window(self) -> dict[str, list[int]]:
        """The window's kernel, stride, pad and dilation, a list of one for each spatial axis."""
        kernel = self._per_axis("kernel", self.param.kernel_size, None)
        return {
            "kernel": kernel,
            "stride": self._per_axis("stride", self.param.stride, 1),
            "pad": self._per_axis("pad", self.param.pad, 0),
            "dilation": self._per_axis("dilation", self.param.dilation, 1),
        }

    def _per_axis(self, name: str, values: Sequence[int], default: int | None) -> list[int]:
        """Returns a size for each spatial axis, from the repeated field `values`, or from name_h and name_w. default:
        for a size that is not given; None: it must be. Raises ConfigError if they do not fit together."""
        axes = len(self.seen) - 2
        pair = [f"{name}_h", f"{name}_w"] if name != "dilation" else []
        given = [field for field in pair if self.param.HasField(field)]
        if given:
            square = "kernel_size" if name == "kernel" else name
            if values:
                raise self.error(f"both {square} and {given[0]} are given; keep one of them")
            if axes != 2:
                raise self.error(f"expected {square} in place of {given[0]} over {axes} spatial axes")
            if default is None and len(given) != 2:
                raise self.error(f"expected both {pair[0]} and {pair[1]}, got {given[0]} alone")
            result = [getattr(self.param, field) if field in given else default or 0 for field in pair]
        elif values:
            if len(values) not in (1, axes):
                raise self.error(f"expected 1 or {axes} values of {name}, one per spatial axis, got {len(values)}")
            result = list(values) if len(values) == axes else list(values) * axes
        elif default is None and axes:
            raise self.error("kernel_size is missing")
        else:
            return [default or 0] * axes
        if name != "pad" and min(values or result, default=1) < 1:
            raise self.error(f"expected {name} of at least 1, got {result or list(values)}")
        self.check_window(name, result or [0])
        return result

    def make_params(self) -> list[Parameter]:
        param = self.param
        weights = (param.num_output, self.seen[1] // param.group, *self.window["kernel"])
        params = [Parameter(weights, param.weight_filler, dims=grouped(weights, param.group))]
        if param.bias_term:
            params.append(Parameter((param.num_output,), param.bias_filler))
        return params

    def attributes(self) -> Attributes:
        window = self.window if len(self.seen) > 2 else {"kernel": [1], "stride": [1], "pad": [0], "dilation": [1]}
        return {**super().attributes(), **window, "group": self.param.group}

    def summed_params(self) -> list[Parameter]:
        return self.params if len(self.tops) > 1 else []

    @property
    def _is_direct(self) -> bool:
        """Whether the op takes bottoms and tops in their own shapes."""
        return self.axis == 1 and len(self.shapes[0]) > 2

    def absorb(self, following: Layer) -> bool:
        return len(self.tops) == 1 and self._is_direct and super().absorb(following)

    @property
    def keeps_kernels(self) -> bool:
        """Whether Intel's conv_algorithm is "direct". If it is not given, kernels are chosen as for "auto" and
        "winograd"."""
        return self.param.HasField("conv_algorithm") and self.param.conv_algorithm == "direct"

    def winograd_passes(self, dtype: str) -> Sequence[str]:
        """Returns the passes in which Winograd's algorithm takes less time by a rule of thumb: with windows of 3 x 3 or
        5 x 5 pixels and enough channels and tiles. In bf16 it needs more of both, most for the gradient of the input,
        and it never wins against AMX."""
        from engine.host import _core

        param, window, n, channels = self.param, self.window, *self.seen[:2]
        if self.keeps_kernels or not self._is_direct:
            return ()
        ones, size = [1, 1], self.tops[0].shape[2:]
        kernel, pad = window["kernel"], window["pad"]
        fits = kernel in WINOGRAD and window["stride"] == ones and window["dilation"] == ones
        fits = fits and pad[0] == pad[1] < kernel[0]
        lanes = _core.winograd_lanes(dtype)
        if not fits or not lanes or (dtype != "f32" and _core.has_amx()):
            return ()
        channels, outputs = channels // param.group, param.num_output // param.group
        tiles = math.prod((each + 3) // 4 for each in size)
        if channels % lanes or outputs % lanes or n * tiles < FEWEST_TILES:
            return ()
        pixels = math.prod(size) / tiles  # of a tile's 16 pixels those that are in the plane, on average
        if dtype == "f32":
            fewest = lanes if kernel == [5, 5] else 2 * lanes
            return PASSES if pixels >= 8 and channels >= fewest else ()
        nearly_whole = pixels >= 14
        if channels >= 64 and (nearly_whole or (pixels >= 12 and channels * param.num_output >= MANY_WEIGHTS)):
            return PASSES
        if pixels < 12 or min(channels, outputs) < 32:
            return ()
        return (FORWARD, WEIGHTS) if nearly_whole else (WEIGHTS,)

    def kernels_by_rule(self, dtype: str) -> dict[str, str]:
        """Returns the kernel of each pass for which there is a rule of thumb; the op decides for the others. In bf16
        without AMX the gradient of weights has our own kernel for pairs, if enough products share what it prepares."""
        from engine.host import _core

        found = dict.fromkeys(self.winograd_passes(dtype), "winograd")
        channels, outputs = self.seen[1], self.param.num_output
        one_pixel = math.prod(self.window["kernel"]) == 1
        pays = min(channels, outputs) >= 32 if one_pixel else outputs >= 64
        if dtype == "bf16" and pays and not _core.has_amx():
            found.setdefault(WEIGHTS, "pairs")
        return found

    def lower(self, builder: Builder) -> None:
        if self.part:
            self.lower_part(builder, self.part)
            return
        for i, top in enumerate(self.tops):
            # With one top there may be a second bottom, of a sum that the layer has absorbed.
            blobs = self.bottoms if len(self.tops) == 1 else self.bottoms[i : i + 1]
            self._lower_one(builder, [builder.tensor(blob) for blob in blobs], top)

    def _lower_one(self, builder: Builder, inputs: list[Tensor], top: Blob) -> None:
        """Adds the op that makes a top, and the ReLU of Intel's field `relu`. inputs: the bottom and, if a sum was
        absorbed, its other term."""
        attributes, seen = {**self.attributes(), **self.kernels_by_rule(inputs[0].dtype)}, top.shape
        if not self._is_direct:
            spatial = (1,) if len(self.seen) == 2 else ()
            inputs = [builder.view(self, x, (*self.seen, *spatial)) for x in inputs]
            seen = (self.seen[0], *top.shape[self.axis :], *spatial)
        last = self._is_direct and not self.param.relu
        tops, gradients = [top] if last else [], [top.needs_gradient]
        y = builder.op(self.op_type, self, inputs, attributes, tops=tops, shapes=[seen], gradients=gradients)
        if self.param.relu:
            slope = {"negative_slope": self.param.negative_slope}
            tops = [top] if self._is_direct else []
            y = builder.op("ReLU", self, y, slope, params=[], tops=tops, shapes=[seen], gradients=gradients)
        if not self._is_direct:
            builder.view(self, y[0], top.shape, top)

    def flops(self) -> int:
        outputs = math.prod(self.tops[0].shape) * len(self.tops)
        bias = self.param.bias_term or self.norm is not None
        return outputs * (2 * math.prod(self.params[0].shape[1:]) + bias + self.adds + (self.activation is not None))
