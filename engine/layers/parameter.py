"""Holds a learnable blob that other layers read as their bottom."""

from __future__ import annotations

from engine.layers.base import Layer, Shape
from engine.layers.base import Parameter as LayerParameter
from engine.layers.registry import register


@register("Parameter")
class Parameter(Layer):
    """Gives its parameter to other layers as its top (Caffe's layer). It has no bottoms; top: of the given `shape`;
    params: one of `shape`, zeros unless weights are loaded or there is a `blob_filler` (happynear's)."""

    bottom_range = (0, 0)

    def infer(self) -> list[Shape]:
        shape = tuple(self.message.parameter_param.shape.dim)
        if any(dim <= 0 for dim in shape):
            raise self.error(f"expected dims above 0, got {shape}")
        return [shape]

    def make_params(self) -> list[LayerParameter]:
        param = self.message.parameter_param
        return [LayerParameter(self.tops[0].shape, param.blob_filler if param.HasField("blob_filler") else None)]

    def flops(self) -> int:
        return 0
