"""Computes the distance of every sample from every center, as happynear's fork does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

_KINDS = ("L2", "L1", "product")


@register("InnerDistance")
class InnerDistance(Layer):
    """Computes, by `distance_type`, the sum of (x - center)^2 ("L2", the default), of |x - center| ("L1") or of x
    center ("product"), for every sample and every center (happynear's layer).

    Bottoms: x (outer..., inner...), split at `axis`; if given, centers (num, inner...); with `update_center_only`,
    labels, one for each of outer. Top: (outer..., num_output); params: (num_output, inner), if no centers are given.

    An InnerProduct with its weights as second bottom becomes a "product" when it is read. `normalize` scales the
    parameter's rows to length 1 before each forward. With `update_center_only` a center learns only from the samples of
    its class. There is no bias.
    """

    bottom_range = (1, 3)

    @property
    def param(self):
        return self.message.inner_distance_param

    @property
    def rescales_weights(self) -> bool:
        return self.param.normalize

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset({len(self.bottoms) - 1} if self.param.update_center_only else ())

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.param.axis, len(self.shapes[0]))

    @property
    def _has_centers(self) -> bool:
        """Whether the centers are a bottom, not a parameter."""
        return len(self.shapes) > 1 + self.param.update_center_only

    def infer(self) -> list[Shape]:
        x, param = self.shapes[0], self.param
        outer, inner = x[: self.axis], x[self.axis :]
        if param.distance_type not in _KINDS:
            raise self.error(f"expected distance_type {', '.join(_KINDS)}, got '{param.distance_type}'")
        if param.transpose:
            raise self.error("expected no transpose, which happynear's fork reads and does not use")
        if len(self.shapes) not in ((2, 3) if param.update_center_only else (1, 2)):
            what = "x, centers where they are no parameter" + ", labels" * param.update_center_only
            raise self.error(f"expected as bottoms {what}; got {len(self.shapes)}")
        if param.update_center_only and math.prod(self.shapes[-1]) != math.prod(outer):
            raise self.error(f"expected {math.prod(outer)} labels, one for each sample of {x}, got {self.shapes[-1]}")
        if not self._has_centers:
            if param.num_output == 0:
                raise self.error("expected num_output above 0, got 0")
            return [(*outer, param.num_output)]
        centers = self.shapes[1]
        if math.prod(centers[1:]) != math.prod(inner):
            raise self.error(f"expected centers of {math.prod(inner)} numbers each, as samples have, got {centers}")
        return [(*outer, centers[0])]

    def make_params(self) -> list[Parameter]:
        if self._has_centers:
            return []
        shape = (self.param.num_output, math.prod(self.shapes[0][self.axis :]))
        return [Parameter(shape, self.param.weight_filler)]

    def attributes(self) -> Attributes:
        param = self.param
        return {"kind": _KINDS.index(param.distance_type), "own_only": param.update_center_only}

    def lower(self, builder: Builder) -> None:
        if self.param.normalize and self.params:
            builder.op("UnitRows", self, [], params=self.params[:1], tops=[], shapes=[])
        inputs = builder.plain_bottoms(self)
        top = self.tops[0]
        rows = (math.prod(top.shape[:-1]), top.shape[-1])
        if rows == top.shape:
            builder.op("InnerDistance", self, inputs, self.attributes())
            return
        y = builder.op("InnerDistance", self, inputs, self.attributes(), tops=[], shapes=[rows])[0]
        builder.view(self, y, top.shape, top)

    def flops(self) -> int:
        return 3 * math.prod(self.shapes[0]) * self.tops[0].shape[-1]
