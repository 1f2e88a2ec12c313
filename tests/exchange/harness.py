"""Shared by the tests of exchange: makes random weights and inputs, and computes nets by engine and ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from engine import proto
from engine.config import NetConfig, parse_net
from engine.graph.build import build
from engine.net import Net, NetOptions
from engine.weights import read_caffemodel, write_caffemodel

TOLERANCE = 1e-4


def runtime():
    """Returns ONNX Runtime; skips the test if it is not installed."""
    pytest.importorskip("onnx", reason="needs the onnx package (pip install prototxt-engine[onnx])")
    return pytest.importorskip("onnxruntime", reason="needs ONNX Runtime (pip install engine[test])")


def has_runtime() -> bool:
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def random_weights(config: NetConfig, path: Path, seed: int = 3) -> str:
    """Writes random weights of a net to a caffemodel; returns its path. They are such that each parameter matters and
    the values of blobs stay near 1."""
    random = np.random.default_rng(seed)
    blobs: dict[str, list[np.ndarray]] = {}
    for layer in build(config, proto.TEST).layers:
        for parameter in layer.params:
            values = _random(random, layer.type, parameter.index, parameter.shape)
            blobs.setdefault(layer.name, []).append(np.asarray(values, np.float32).reshape(parameter.shape))
    write_caffemodel(path, config.message, blobs)
    return str(path)


def _random(random: np.random.Generator, kind: str, index: int, shape: tuple[int, ...]):
    if kind == "BatchNorm":
        factor = 2.5  # the third blob, by which the sums in the first two are divided
        values = factor * random.normal(size=shape), factor * random.uniform(0.5, 2, shape), [factor]
        return (*values, *random.uniform(0.5, 1.5, (2, *shape)))[index]
    if kind == "BN" and index == 3:
        return random.uniform(0.5, 2, shape)
    if len(shape) > 1 and kind != "BN":
        return random.normal(size=shape) * np.sqrt(1.5 / np.prod(shape[1:]))
    return random.uniform(0.5, 1.5, shape)


def random_inputs(shapes: dict[str, tuple[int, ...]], seed: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def engine_outputs(text: str, weights: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the values of all blobs of a net in phase TEST, by name."""
    net = Net(parse_net(text, "test.prototxt"), proto.TEST, NetOptions().watched())
    missing = net.load_weights(read_caffemodel(weights), weights) if net.all_params() else []
    assert not missing
    named = {blob.name: blob for blob in net.inputs}
    for name, values in inputs.items():
        net.feed(named[name], values)
    net.forward()
    return {name: blob.data for name, blob in net.blobs.items()}


def session(path: Path | str):
    return runtime().InferenceSession(str(path), providers=["CPUExecutionProvider"])


def onnx_outputs(path: Path | str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs that ONNX Runtime computes of a model, by name."""
    model = session(path)
    names = [each.name for each in model.get_outputs()]
    return dict(zip(names, model.run(names, inputs), strict=True))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    assert np.isfinite(expected).all()
    assert np.abs(actual - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


def nodes(path: Path | str) -> list:
    """Returns the nodes of the model in a file."""
    import onnx

    return list(onnx.load(str(path)).graph.node)
