"""Enlarges planes, by putting values where the mask of a Pooling says, as SegNet does, or by repeating pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Upsample")
class Upsample(Layer):
    """Undoes a Pooling as far as sizes go (SegNet's layer). Bottoms: x (N, C, h, w) and, if given, the mask of a
    Pooling, of x's shape; top (N, C, H, W), where H and W are `upsample_h` and `upsample_w`, or h and w times `scale`
    (2), or times `scale_h` and `scale_w`. The last two forms make them one less with `pad_out_h` and `pad_out_w`.

    With a mask, values of x go to the places that it names, and all other places get 0. If it names a place several
    times, the last value counts, and all of them receive its gradient. Without a mask each pixel becomes a rectangle of
    equal ones.
    """

    bottom_range = (1, 2)
    constant_bottoms = frozenset({1})
    bf16 = True

    @property
    def param(self):
        return self.message.upsample_param

    @property
    def _has_mask(self) -> bool:
        return len(self.bottoms) == 2

    def infer(self) -> list[Shape]:
        shape = self.shapes[0]
        self.bf16 = self.bf16 and not self._has_mask
        if len(shape) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {shape}")
        if self._has_mask and self.shapes[1] != shape:
            raise self.error(f"expected a mask of the first bottom's shape, {shape}, got {self.shapes[1]}")
        size = self._size(shape[2], shape[3])
        if not self._has_mask and (size[0] % shape[2] or size[1] % shape[3]):
            raise self.error(
                f"expected without a mask, as second bottom, a top of multiples of {shape[2]} x {shape[3]}, "
                f"got {size[0]} x {size[1]}"
            )
        return [(*shape[:2], *size)]

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width of the top. Raises ConfigError if the text does not give them in one of the
        three ways."""
        param = self.param
        given = [name for name in ("upsample_h", "upsample_w", "scale_h", "scale_w") if param.HasField(name)]
        if given[:2] == ["upsample_h", "upsample_w"]:
            if min(param.upsample_h, param.upsample_w) < 2:
                raise self.error(
                    f"expected upsample_h and upsample_w of at least 2, got {param.upsample_h} and {param.upsample_w}"
                )
            return param.upsample_h, param.upsample_w
        if given not in ([], ["scale_h", "scale_w"]) or (given and param.HasField("scale")):
            raise self.error(
                "expected upsample_h and upsample_w, or scale, or scale_h and scale_w; "
                f"got {', '.join(given + ['scale'] * param.HasField('scale'))}"
            )
        scales = [param.scale_h, param.scale_w] if given else [param.scale] * 2
        for scale, pad, letter in zip(scales, (param.pad_out_h, param.pad_out_w), "hw", strict=True):
            if scale < 2 or (pad and scale != 2):
                wanted = f"2 with pad_out_{letter}" if pad else "at least 2"
                raise self.error(f"expected a scale of {wanted}, got {scale}")
        return height * scales[0] - param.pad_out_h, width * scales[1] - param.pad_out_w

    def lower(self, builder: Builder) -> None:
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        if self._has_mask:
            builder.op("Unpooling", self, inputs)
            return
        (height, width), (h, w) = self.tops[0].shape[2:], self.shapes[0][2:]
        builder.op("RepeatPixels", self, inputs, {"height": height // h, "width": width // w})

    def flops(self) -> int:
        return math.prod(self.shapes[0])
