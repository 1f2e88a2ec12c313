"""Convolves with windows that are deformed by learned offsets (Deformable ConvNets, arXiv 1703.06211)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Shape
from engine.layers.convolution import Convolution
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("DeformableConvolution")
class DeformableConvolution(Convolution):
    """Computes a Convolution that reads each place of a window at an offset of its own (Deformable ConvNets' layer).

    Bottoms: x (N, C, H, W); offsets (N, 2 deformable_group kernel_h kernel_w, h, w), which say, for each of
    `deformable_group` groups of channels and each place of the window, how far down and how far to the right of the
    place x is read, in pixels. Top: (N, num_output, h, w); params: as those of a Convolution of x.

    Between pixels x is interpolated bilinearly. Less than a pixel below the last row or to the right of the last column
    it has the values of that row or column; elsewhere outside it is 0.
    """

    bf16 = False
    in_pairs = False
    bottom_range = (2, 2)
    top_range = (1, 1)

    @property
    def param(self):
        return self.message.deformable_convolution_param

    def check_axes(self) -> None:
        if not self.message.HasField("deformable_convolution_param"):
            raise self.error("deformable_convolution_param is missing; give it, with what a convolution_param has")
        x, group = self.shapes[0], self.param.deformable_group
        if len(x) != 4 or self.axis != 1:
            raise self.error(f"expected a bottom (N, C, H, W) and axis 1, got {x} and axis {self.param.axis}")
        if group == 0 or x[1] % group:
            raise self.error(f"expected deformable_group to divide the channels of the bottom, {x[1]}, got {group}")

    def infer(self) -> list[Shape]:
        top = super().infer()[0]
        wanted = (top[0], 2 * self.param.deformable_group * math.prod(self.window["kernel"]), *top[2:])
        if self.shapes[1] != wanted:
            raise self.error(
                f"expected offsets {wanted}, two for each place of the window and each of "
                f"{self.param.deformable_group} groups at each pixel of the top, got {self.shapes[1]}"
            )
        return [top]

    def winograd_passes(self, dtype: str) -> Sequence[str]:
        return ()  # its tiles overlap, and the windows of the samples lie side by side

    def attributes(self) -> Attributes:
        return {**super().attributes(), "stride": self.window["kernel"], "pad": [0, 0], "dilation": [1, 1]}

    def lower(self, builder: Builder) -> None:
        x, offsets, *added = (builder.tensor(blob) for blob in self.bottoms)
        window, top = self.window, self.tops[0]
        size = (kernel * windows for kernel, windows in zip(window["kernel"], top.shape[2:], strict=True))
        samples = builder.op(
            "DeformableSamples",
            self,
            [x, builder.plain(self, offsets)],
            {**window, "group": self.param.deformable_group},
            params=[],
            tops=[],
            shapes=[(*self.shapes[0][:2], *size)],
        )
        self._lower_one(builder, samples + added, top)

    def flops(self) -> int:
        samples = self.shapes[0][1] * math.prod(self.window["kernel"]) * math.prod(self.tops[0].shape[2:])
        return super().flops() + 8 * self.shapes[0][0] * samples
