"""Converts parameters of Caffe layers to tensors with PyTorch's names, "conv1.weight", "bn1.running_mean", and back.

A BatchNorm and the Scale that follows it are one module, with the name of the BatchNorm. A BatchNorm with a scale of
its own is a module by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.errors import WeightsError, shape_text
from engine.exchange.deploy_graph import DeployGraph
from engine.layers.base import Layer
from engine.layers.batch_norm import BatchNorm
from engine.layers.inner_product import InnerProduct
from engine.layers.scale import Scale

Arrays = Sequence[np.ndarray]
_WEIGHT_BIAS = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var")
_GATES = (0, 1, 3, 2)  # puts Caffe's gates i, f, o, g in PyTorch's order i, f, g, o, and the other way round


def modules(graph: DeployGraph) -> dict[Layer, str]:
    """Returns the name of the module that each layer with parameters belongs to."""
    readers = graph.readers()
    named: dict[Layer, str] = {}
    for layer in graph.layers:
        if layer.params:
            named.setdefault(layer, layer.name)
        if isinstance(layer, BatchNorm) and not layer.has_scale:
            after = readers.get(layer.tops[0], [])
            if len(after) == 1 and isinstance(after[0], Scale) and after[0].is_per_channel:
                named[after[0]] = layer.name
    return named


def to_state(layer: Layer, arrays: Arrays) -> dict[str, np.ndarray]:
    """Converts a layer's parameters to tensors, by the names that they have within their module, such as "weight"."""
    if layer.type == "BatchNorm":
        mean, variance, factor, *affine = (array.astype(np.float64) for array in arrays)
        scale = 0.0 if factor.ravel()[0] == 0 else 1 / factor.ravel()[0]
        found = {"running_mean": mean * scale, "running_var": variance * scale}
        found |= {name: array.ravel() for name, array in zip(_WEIGHT_BIAS, affine)}  # of a BatchNorm with scale_bias
        return {**_floats(found), "num_batches_tracked": np.zeros((), np.int64)}
    if layer.type == "BN":
        return _floats({name: array.ravel() for name, array in zip((*_WEIGHT_BIAS, *_STATISTICS), arrays)})
    if layer.type == "LSTM" and len(arrays) == 3:
        of_x, bias, of_h = (_gates(array) for array in arrays)
        return _floats({"weight_ih_l0": of_x, "weight_hh_l0": of_h, "bias_ih_l0": bias, "bias_hh_l0": 0 * bias})
    if isinstance(layer, InnerProduct) and layer.param.transpose:
        arrays = [arrays[0].T, *arrays[1:]]
    if layer.type == "PReLU":
        arrays = [arrays[0].reshape(-1)]
    names = _WEIGHT_BIAS if layer.type != "Bias" else ("bias",)
    if len(arrays) > len(names):
        names = [f"param_{i}" for i in range(len(arrays))]
    return _floats(dict(zip(names, arrays)))


def _floats(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(values, np.float32, order="C") for name, values in tensors.items()}


def _gates(array: np.ndarray) -> np.ndarray:
    return np.concatenate([np.split(array, 4)[i] for i in _GATES])


def from_state(
    layer: Layer, module: str, state: Mapping[str, np.ndarray], source: str, placed: set[str]
) -> list[np.ndarray]:
    """Converts the tensors of a module to a layer's parameters, as the inverse of to_state().

    Args:
        placed: the names of these tensors are added to it.
    Raises:
        WeightsError: the state lacks a tensor, or has it in another shape.
    """
    shapes = [parameter.shape for parameter in layer.params]
    example = to_state(layer, [np.ones(shape, np.float32) for shape in shapes])
    example.pop("num_batches_tracked", None)
    tensors = {}
    for name, like in example.items():
        key = f"{module}.{name}"
        if key not in state:
            raise WeightsError(f"layer '{layer.name}' ({layer.type}): there is no '{key}'", source)
        if state[key].shape != like.shape:
            raise WeightsError(
                f"layer '{layer.name}' ({layer.type}): '{key}' has {shape_text(state[key].shape)}, the net "
                f"{shape_text(like.shape)}",
                source,
            )
        tensors[name] = state[key]
        placed.add(key)
    arrays = list(tensors.values())
    if layer.type == "BatchNorm":
        arrays.insert(2, np.ones(1, np.float32))
    elif layer.type == "LSTM" and "weight_ih_l0" in tensors:
        arrays = [_gates(tensors["weight_ih_l0"]), _gates(tensors["bias_ih_l0"] + tensors["bias_hh_l0"]),
                  _gates(tensors["weight_hh_l0"])]  # fmt: skip
    elif isinstance(layer, InnerProduct) and layer.param.transpose:
        arrays[0] = arrays[0].T
    return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
