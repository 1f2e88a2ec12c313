"""Functions of each element, and sums, products and maxima of blobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.to_onnx.registry import Inexpressible, exports
from engine.exchange.to_onnx.weighted import relu

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.base import Layer
    from engine.layers.eltwise import Eltwise
    from engine.layers.elu import ELU
    from engine.layers.exp import Exp
    from engine.layers.prelu import PReLU


@exports("ReLU")
def _relu(out: Writer, layer: Layer, x: str) -> str:
    return relu(out, x, layer.message.relu_param.negative_slope)


@exports("ReLU6")
def _relu6(out: Writer, layer: Layer, x: str) -> str:
    return out.op("Clip", x, 0.0, 6.0)


@exports("Clip")
def _clip(out: Writer, layer: Layer, x: str) -> str:
    return out.op("Clip", x, layer.message.clip_param.min, layer.message.clip_param.max)


@exports("PReLU")
def _prelu(out: Writer, layer: PReLU, x: str) -> str:
    (slope,) = out.arrays(layer)
    return out.op("PRelu", x, slope.reshape(-1, *[1] * (len(layer.shapes[0]) - 2)))


@exports("ELU")
def _elu(out: Writer, layer: ELU, x: str) -> str:
    return scaled(out, out.op("Elu", x, alpha=layer.message.elu_param.alpha), layer.factor)


@exports("AbsVal", "BNLL", "Sigmoid", "TanH")
def _without_parameters(out: Writer, layer: Layer, x: str) -> str:
    return out.op({"AbsVal": "Abs", "BNLL": "Softplus", "Sigmoid": "Sigmoid", "TanH": "Tanh"}[layer.type], x)


@exports("Swish")
def _swish(out: Writer, layer: Layer, x: str) -> str:
    beta = layer.message.swish_param.beta
    return out.op("Mul", x, out.op("Sigmoid", x if beta == 1 else out.op("Mul", x, beta)))


@exports("Threshold")
def _threshold(out: Writer, layer: Layer, x: str) -> str:
    return out.op("Cast", out.op("Greater", x, layer.message.threshold_param.threshold), to=1)  # 1: FLOAT


@exports("Exp")
def _exp(out: Writer, layer: Exp, x: str) -> str:
    attributes = layer.attributes()
    y = out.op("Exp", scaled(out, x, attributes["rate"]))
    return scaled(out, y, attributes["factor"])


@exports("Log")
def _log(out: Writer, layer: Layer, x: str) -> str:
    param = layer.message.log_param
    factor = 1.0 if param.base == -1 else 1 / math.log(param.base)
    return scaled(out, out.op("Log", shifted(out, scaled(out, x, param.scale), param.shift)), factor)


@exports("Power")
def _power(out: Writer, layer: Layer, x: str) -> str:
    param = layer.message.power_param
    y = shifted(out, scaled(out, x, param.scale), param.shift)
    return y if param.power == 1 else out.op("Pow", y, param.power)


def scaled(out: Writer, x: str, factor: object) -> str:
    """Writes x factor; nothing for a factor of 1."""
    return x if factor == 1 else out.op("Mul", x, np.float32(factor))  # type: ignore[arg-type]


def shifted(out: Writer, x: str, term: float) -> str:
    """Writes x + term; nothing for a term of 0."""
    return x if term == 0 else out.op("Add", x, term)


@exports("Eltwise")
def _eltwise(out: Writer, layer: Eltwise, *bottoms: str) -> str:
    param = layer.param
    if param.operation != param.SUM:
        return _pairwise(out, "Mul" if param.operation == param.PROD else "Max", bottoms)
    coefficients = list(param.coeff) or [1.0] * len(bottoms)
    return _pairwise(out, "Add", [scaled(out, x, factor) for x, factor in zip(bottoms, coefficients, strict=True)])


def _pairwise(out: Writer, op: str, values: list[str] | tuple[str, ...]) -> str:
    """Joins all values by operators of two inputs: more importers know Add than Sum."""
    first, *others = values
    for each in others:
        first = out.op(op, first, each)
    return first


@exports("Axpy")
def _axpy(out: Writer, layer: Layer, a: str, x: str, y: str) -> str:
    axes = len(layer.shapes[1]) - len(layer.shapes[0])
    if axes:
        a = out.op("Unsqueeze", a, list(range(2, 2 + axes)))
    return out.op("Add", out.op("Mul", x, a), y)


@exports("Split")
def _split(out: Writer, layer: Layer, x: str) -> list[str]:
    return [x] * len(layer.tops)


@exports("Dropout")
def _dropout(out: Writer, layer: Layer, x: str) -> str:
    """Writes what a Dropout does in testing: nothing, or with scale_train: false a factor, the ratio of values that
    training keeps."""
    param = layer.message.dropout_param
    if param.sample_weights_test:
        raise Inexpressible("sample_weights_test")
    return x if param.scale_train else scaled(out, x, 1 - param.dropout_ratio)


@exports("SpatialDropout", "Cast", "GradientScaler")
def _nothing(out: Writer, layer: Layer, *xs: str) -> tuple[str, ...]:
    """Writes nothing: in testing these layers leave values as they are."""
    return xs
