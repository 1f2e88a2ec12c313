"""The base of Scale and Bias: coefficients for one or more axes of the bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape

if TYPE_CHECKING:
    from engine import proto
    from engine.layers.builder import Builder


class Affine(Layer):
    """Bottoms: x and, in the two-bottom form, the coefficients. Top: x's shape.

    The coefficients have the shape of x's axes from `axis` (1) on. They have as many axes as the second bottom or, if
    they are a parameter, `num_axes` (1; -1: all that follow).
    """

    bf16 = True
    bottom_range = (1, 2)

    @property
    def param(self) -> proto.ScaleParameter | proto.BiasParameter:
        raise NotImplementedError

    @property
    def axis(self) -> int:
        """The first axis of x that the coefficients have; 0 if the second bottom has no axes."""
        if len(self.shapes) == 2 and not self.shapes[1]:
            return 0
        return self.canonical_axis(self.param.axis, len(self.shapes[0]))

    @property
    def coefficient_shape(self) -> Shape:
        if len(self.shapes) == 2:
            return self.shapes[1]
        num_axes = self.param.num_axes
        return self.shapes[0][self.axis :] if num_axes == -1 else self.shapes[0][self.axis : self.axis + num_axes]

    def infer(self) -> list[Shape]:
        x, axis, num_axes = self.shapes[0], self.axis, self.param.num_axes
        if len(self.shapes) == 2:
            covered, given = x[axis : axis + len(self.shapes[1])], self.shapes[1]
            if covered != given:
                raise self.error(
                    f"expected a second bottom shaped as the first from axis {axis} on, {covered}, got {given}"
                )
        elif num_axes < -1 or axis + num_axes > len(x):
            raise self.error(f"expected num_axes -1 or up to {len(x) - axis} from axis {axis} of {x}, got {num_axes}")
        return [x]

    def attributes(self) -> Attributes:
        return {"axis": self.axis, "num_axes": len(self.coefficient_shape)}

    def lower(self, builder: Builder) -> None:
        x, *coefficients = (builder.tensor(blob) for blob in self.bottoms)
        # The kernels find axis 1, the channels, in any layout, and other axes in row-major blobs only.
        end = self.axis + len(self.coefficient_shape)
        if end != 2 or not self.coefficient_shape:
            x = builder.plain(self, x)
        builder.op(self.type, self, [x, *(builder.plain(self, each) for each in coefficients)], self.attributes())
