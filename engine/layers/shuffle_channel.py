"""Interleaves the channels of groups (Zhang et al. 2017, arXiv 1707.01083)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ShuffleChannel")
class ShuffleChannel(Layer):
    """Takes channels from `group` groups in turn (ShuffleNet's layer). Bottom and top (N, C, ...). In the bottom the
    groups follow each other; in the top the first channels of all groups come first, then the second ones, and so on.
    """

    bf16 = True

    def infer(self) -> list[Shape]:
        shape, group = self.shapes[0], self.message.shuffle_channel_param.group
        if len(shape) < 2:
            raise self.error(f"expected a bottom of at least 2 axes, got {shape}")
        if group < 1 or shape[1] % group:
            raise self.error(f"expected a group that divides {shape[1]} channels, got {group}")
        return [shape]

    def lower(self, builder: Builder) -> None:
        channels, group = self.shapes[0][1], self.message.shuffle_channel_param.group
        order = [c for first in range(channels // group) for c in range(first, channels, channels // group)]
        builder.op("ReorderChannels", self, [builder.tensor(self.bottoms[0])], {"order": order})

    def flops(self) -> int:
        return 0
