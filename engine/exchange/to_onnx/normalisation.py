"""Layers that normalise: by mean and variance, by length, by sums of exponentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.to_onnx.registry import Inexpressible, exports
from engine.exchange.to_onnx.weighted import relu
from engine.layers.normalize import LEAST

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.batch_norm import BatchNorm
    from engine.layers.bn import BN
    from engine.layers.mvn import MVN
    from engine.layers.normalize import Normalize
    from engine.layers.softmax import Softmax


def statistics(out: Writer, layer: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """The running mean and variance of a BatchNorm, which the file holds as sums, in float32."""
    mean, variance, factor = (array.astype(np.float64) for array in out.arrays(layer)[:3])
    count = float(factor.ravel()[0])
    scale = 0.0 if count == 0 else 1 / count
    return (mean * scale).astype(np.float32), (variance * scale).astype(np.float32)


def affine(out: Writer, layer: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """The scale and shift of a BatchNorm itself (scale_bias), in float32; 1 and 0 where it has none."""
    if layer.has_scale:
        scale, shift = (array.ravel() for array in out.arrays(layer)[3:5])
        return scale, shift
    channels = layer.shapes[0][1]
    return np.ones(channels, np.float32), np.zeros(channels, np.float32)


@exports("BatchNorm")
def _batch_norm(out: Writer, layer: BatchNorm, x: str) -> str:
    return normalised(out, layer, x, *affine(out, layer))


def normalised(out: Writer, layer: BatchNorm, x: str, scale: np.ndarray, shift: np.ndarray) -> str:
    """A BatchNorm, with a scale and shift behind it."""
    param = layer.message.batch_norm_param
    if layer.stats_batch_size not in (0, layer.shapes[0][0]):
        raise Inexpressible("stats_batch_size: statistics of a part of the batch")
    if layer.use_global_stats:
        mean, variance = statistics(out, layer)
        y = out.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=param.eps)
    else:
        y = _by_batch(out, x, layer, scale, shift, param.eps)
    return relu(out, y, 0.0) if param.relu else y


def _by_batch(out: Writer, x: str, layer: BatchNorm, scale: np.ndarray, shift: np.ndarray, eps: float) -> str:
    """By the mean and variance of the batch itself, in testing, too."""
    rank = len(layer.shapes[0])
    axes, behind = [0, *range(2, rank)], [1] * (rank - 2)
    return out.op(
        "Add",
        out.op("Mul", _centred(out, x, axes, eps, root_first=True), scale.reshape(-1, *behind)),
        shift.reshape(-1, *behind),
    )


def _centred(out: Writer, x: str, axes: list[int], eps: float, root_first: bool) -> str:
    """(x - mean) / sqrt(variance + eps), or, unless root_first, / (sqrt(variance) + eps)."""
    x = out.op("Sub", x, out.op("ReduceMean", x, axes))
    variance = out.op("ReduceMean", out.op("Mul", x, x), axes)
    if root_first:
        return out.op("Div", x, out.op("Sqrt", out.op("Add", variance, eps)))
    return out.op("Div", x, out.op("Add", out.op("Sqrt", variance), eps))


@exports("BN")
def _bn(out: Writer, layer: BN, x: str) -> str:
    if len(layer.tops) > 1:
        raise Inexpressible("with its statistics as tops")
    scale, shift, *stats = (array.ravel() for array in out.arrays(layer))
    if layer.is_affine:
        behind = [1] * (len(layer.shapes[0]) - 2)
        return out.op("Add", out.op("Mul", x, scale.reshape(-1, *behind)), shift.reshape(-1, *behind))
    eps = layer.attributes()["eps"]
    if not layer.use_global_stats:
        return _by_batch(out, x, layer, scale, shift, float(eps))  # type: ignore[arg-type]
    return out.op("BatchNormalization", x, scale, shift, *stats, epsilon=eps)


@exports("MVN")
def _mvn(out: Writer, layer: MVN, x: str) -> str:
    y = _centred_as_asked(out, layer, x)
    return y if layer.tops[0].shape == layer.shapes[0] else out.reshape(y, out.dims(layer.tops[0]))


def _centred_as_asked(out: Writer, layer: MVN, x: str) -> str:
    param, rank = layer.message.mvn_param, len(layer.shapes[0])
    axes = list(range(1 if param.across_channels else 2, rank))
    if not axes:  # each element by itself
        return out.op("Sub", x, x)
    if not param.normalize_variance:
        return out.op("Sub", x, out.op("ReduceMean", x, axes))
    return _centred(out, x, axes, param.eps, root_first=False)


@exports("Normalize")
def _normalize(out: Writer, layer: Normalize, x: str) -> str | list[str]:
    if not layer.params:
        return _to_unit(out, layer, x)
    param, rank = layer.param, len(layer.shapes[0])
    axes = list(range(1, rank)) if param.across_spatial else [1]
    length = out.op("Sqrt", out.op("Add", out.op("ReduceSumSquare", x, axes), param.eps))
    (scale,) = out.arrays(layer)
    return out.op("Mul", out.op("Div", x, length), scale.reshape(-1, *[1] * (rank - 2)))


def _to_unit(out: Writer, layer: Normalize, x: str) -> list[str]:
    """To length 1: caffe-face's, of a sample, or happynear's, of a position, whose second top is the length."""
    of_positions = layer.message.HasField("normalize_param") or len(layer.tops) == 2
    if not of_positions:
        axes = list(range(1, len(layer.shapes[0])))
        return [out.op("Div", x, out.op("ReduceL2", x, axes))]
    if layer.message.normalize_param.normalize_type == "L1":
        length = out.op("Add", out.op("ReduceL1", x, [1]), LEAST)
    else:
        length = out.op("Sqrt", out.op("Add", out.op("ReduceSumSquare", x, [1]), LEAST))
    return [out.op("Div", x, length), length][: len(layer.tops)]


@exports("Softmax")
def _softmax(out: Writer, layer: Softmax, x: str) -> str:
    return out.op("Softmax", x, axis=layer.attributes()["axis"])
