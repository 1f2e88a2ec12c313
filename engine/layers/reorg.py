"""Moves squares of pixels into channels, or back, as YOLOv2 does (Redmon and Farhadi 2016, arXiv 1612.08242)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Reorg")
class Reorg(Layer):
    """Moves s x s pixels into channels, s being `stride`, or back with `reverse` (YOLO v2's layer). Bottom
    (N, C, H, W); top (N, C s^2, H/s, W/s), or (N, C/s^2, H s, W s) with `reverse`.

    With `reverse`, pixel (h, w) of channel (i s + j) C/s^2 + k becomes pixel (h s + i, w s + j) of channel k.

    Without it, the bottom is read as if it were (N, C/s^2, H s, W s); squares of s x s pixels of that become channels;
    and the result, (N, C, H, W), is called (N, C s^2, H/s, W/s). This is what darknet and its ports to Caffe do, and
    what weights trained there expect. So C must be divisible by s^2 both ways, and neither way is the inverse of the
    other.
    """

    bf16 = True

    @property
    def stride(self) -> int:
        return self.message.reorg_param.stride

    def infer(self) -> list[Shape]:
        shape, stride, reverse = self.shapes[0], self.stride, self.message.reorg_param.reverse
        if stride < 1:
            raise self.error(f"expected stride above 0 in reorg_param, got {stride}")
        if len(shape) != 4:
            raise self.error(f"expected a bottom (N, C, H, W), got {shape}")
        n, c, h, w = shape
        if c % stride**2:
            raise self.error(f"expected channels divisible by {stride**2}, the square of stride, got {shape}")
        if reverse:
            return [(n, c // stride**2, h * stride, w * stride)]
        if h % stride or w % stride:
            raise self.error(f"expected height and width divisible by stride {stride}, got {shape}")
        return [(n, c * stride**2, h // stride, w // stride)]

    def lower(self, builder: Builder) -> None:
        (n, c, h, w), s = self.shapes[0], self.stride
        apart, together = (n, s, s, c // s**2, h, w), (n, c // s**2, h, s, w, s)
        order, sizes = [0, 3, 5, 1, 2, 4], (together, apart)
        if self.message.reorg_param.reverse:
            order, sizes = [0, 3, 4, 1, 5, 2], (apart, together)
        x = builder.view(self, builder.tensor(self.bottoms[0]), sizes[0])
        y = builder.op("Permute", self, [x], {"order": order}, tops=[], shapes=[sizes[1]])[0]
        builder.view(self, y, self.tops[0].shape, self.tops[0])

    def flops(self) -> int:
        return 0
