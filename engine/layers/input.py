"""Makes blobs that are filled in by whoever runs the net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Input")
class Input(Layer):
    """Makes blobs without values (Caffe's layer). Tops: `shape` is given once for all of them, or once for each."""

    bottom_range = (0, 0)
    top_range = (1, None)

    def infer(self) -> list[Shape]:
        shapes = [tuple(shape.dim) for shape in self.message.input_param.shape]
        count = len(self.message.top)
        if not shapes:
            example = f"--set 'layer[{self.name}].input_param.shape[0].dim=1,3,224,224'"
            raise self.error(f"its shape is not given; set it, as with {example}")
        if len(shapes) not in (1, count):
            wanted = "1 shape" if count == 1 else f"1 or {count} shapes"
            raise self.error(f"expected {wanted} in input_param for {count} tops, got {len(shapes)}")
        for shape in shapes:
            if any(dim <= 0 for dim in shape):
                advice = "; where there is nothing, give one dummy row, such as of zeros" if shape[0] == 0 else ""
                raise self.error(f"expected dims above 0, got {shape}{advice}")
        return shapes if len(shapes) == count else shapes * count

    def lower(self, builder: Builder) -> None:
        for top in self.tops:
            builder.input(top)

    def flops(self) -> int:
        return 0
