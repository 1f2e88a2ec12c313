"""Layers that normalise: by mean and variance, by length, and Softmax."""

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
    """Returns the running mean and variance of a BatchNorm, float32: the sums that the file has, divided by its
    factor."""
    mean, variance, factor = (array.astype(np.float64) for array in out.arrays(layer)[:3])
    count = float(factor.ravel()[0])
    scale = 0.0 if count == 0 else 1 / count
    return (mean * scale).astype(np.float32), (variance * scale).astype(np.float32)


def affine(out: Writer, layer: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scale and shift of a BatchNorm's own (scale_bias), float32; 1 and 0 if it has none."""
    if layer.has_scale:
        scale, shift = (array.ravel() for array in out.arrays(layer)[3:5])
        return scale, shift
    channels = layer.shapes[0][1]
    return np.ones(channels, np.float32), np.zeros(channels, np.float32)


@exports("BatchNorm")
def _batch_norm(out: Writer, layer: BatchNorm, x: str) -> str:
    return normalised(out, layer, x, *affine(out, layer))


def normalised(out: Writer, layer: BatchNorm, x: str, scale: np.ndarray, shift: np.ndarray) -> str:
    """Writes a BatchNorm that is followed by a scale and shift, each with a value for each channel."""
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
    """Writes a normalisation by the mean and variance of the batch, which ONNX has no operator for in testing."""
    rank = len(layer.shapes[0])
    axes, behind = [0, *range(2, rank)], [1] * (rank - 2)
    return out.op(
        "Add",
        out.op("Mul", _normalised_over(out, x, axes, eps, eps_in_root=True), scale.reshape(-1, *behind)),
        shift.reshape(-1, *behind),
    )


def _normalised_over(out: Writer, x: str, axes: list[int], eps: float, eps_in_root: bool) -> str:
    """Writes (x - mean) / sqrt(variance + eps) if eps_in_root, else (x - mean) / (sqrt(variance) + eps)."""
    x = out.op("Sub", x, out.op("ReduceMean", x, axes))
    variance = out.op("ReduceMean", out.op("Mul", x, x), axes)
    if eps_in_root:
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
    y = _unshaped_mvn(out, layer, x)
    return y if layer.tops[0].shape == layer.shapes[0] else out.reshape(y, out.dims(layer.tops[0]))


def _unshaped_mvn(out: Writer, layer: MVN, x: str) -> str:
    """Writes an MVN in the shape of its bottom, which its top may not have."""
    param, rank = layer.message.mvn_param, len(layer.shapes[0])
    axes = list(range(1 if param.across_channels else 2, rank))
    if not axes:  # the mean is of a single element
        return out.op("Sub", x, x)
    if not param.normalize_variance:
        return out.op("Sub", x, out.op("ReduceMean", x, axes))
    return _normalised_over(out, x, axes, param.eps, eps_in_root=False)


@exports("Normalize")
def _normalize(out: Writer, layer: Normalize, x: str) -> str | list[str]:
    """Writes SSD's Normalize, which has a scale; the others, which have none, by _unit_length()."""
    if not layer.params:
        return _unit_length(out, layer, x)
    param, rank = layer.param, len(layer.shapes[0])
    axes = list(range(1, rank)) if param.across_spatial else [1]
    length = out.op("Sqrt", out.op("Add", out.op("ReduceSumSquare", x, axes), param.eps))
    (scale,) = out.arrays(layer)
    return out.op("Mul", out.op("Div", x, length), scale.reshape(-1, *[1] * (rank - 2)))


def _unit_length(out: Writer, layer: Normalize, x: str) -> list[str]:
    """Writes a Normalize without a scale: caffe-face's, which makes samples of length 1, or happynear's, which makes
    positions of length 1 and may have the length as a second top."""
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
