"""`engine compare`: finds where two trained nets, or one net in two precisions, begin to differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.config import NetConfig
from engine.data.source_shapes import SourceShapes
from engine.errors import ConfigError, shape_text
from engine.examine.synthetic import feed_synthetic
from engine.inference.trained import load
from engine.net import Net, NetOptions
from engine.report.log import log
from engine.report.table import table
from engine.weights import read_caffemodel, read_solverstate

HEADER = ("layer", "", "shape", "largest difference", "of largest value", "relative")
Arrays = dict[tuple[str, str], np.ndarray]  # by (layer, which array of it)


@dataclass
class Difference:
    """How much one array differs."""

    layer: str
    what: str  # which array of the layer
    shape: tuple[int, ...]
    largest: float  # the largest |a - b|; infinite where only one of the two is finite
    scale: float  # the largest |a|

    @property
    def relative(self) -> float:
        return self.largest / self.scale if self.scale else (math.inf if self.largest else 0.0)


@dataclass
class Comparison:
    """How two nets or files, a and b, differ."""

    differences: list[Difference]  # in the order of a's layers
    alone: dict[str, list[str]]  # file -> arrays that only this one has

    def first_beyond(self, tolerance: float) -> Difference | None:
        """Returns the first difference that is relatively more than the tolerance, or None."""
        return next((each for each in self.differences if each.relative > tolerance), None)

    def differs(self, tolerance: float) -> bool:
        """Returns whether an array differs by more than the tolerance, or is in one of the two only."""
        return bool(self.alone) or self.first_beyond(tolerance) is not None


def compare_files(a: str, b: str) -> Comparison:
    """Compares two caffemodels, layer by layer, or the histories of two solverstates.

    Raises WeightsError, ConfigError if shapes differ or nothing is in both.
    """
    read = _histories if ".solverstate" in a else _weights
    return _compare(read(a), read(b), (a, b))


def compare_nets(
    nets: tuple[NetConfig, NetConfig],
    weights: tuple[Sequence[str], Sequence[str]],
    phase: int,
    precision: str = "fp32",
) -> Comparison:
    """Compares every top of two nets after a forward pass on the same synthetic input. Logs what is supposed of data
    that are not here. Raises ConfigErrors, WeightsError.

    Args:
        weights: the files of weights of each net, at least one.
        precision: of the second net; the first computes in fp32.
    """
    absent: list[str] = []
    a, b = (_run(*each, phase, absent) for each in zip(nets, weights, ("fp32", precision), strict=True))
    for line in dict.fromkeys(absent):  # once, where both are the same net
        log(line)
    return _compare(a, b, (nets[0].path, nets[1].path))


def _run(config: NetConfig, weights: Sequence[str], precision: str, phase: int, absent: list[str]) -> Arrays:
    shapes_of = SourceShapes(config.message, phase, absent.append)
    net = Net(config, phase, NetOptions(shapes_of=shapes_of, precision=precision).watched())
    load(net, weights)
    feed_synthetic(net, seed=1)
    net.forward()
    return {
        (layer.name, f"top {top.name}"): net.tensors[top].get().reshape(top.shape)
        for layer in net.graph.layers
        for top in layer.tops
        if layer.type not in ("Split", "Cast") and layer.bottoms
    }


def _weights(path: str) -> Arrays:
    models = read_caffemodel(path)
    return {(layer, f"blob {i}"): v for layer, blobs in models.items() for i, v in enumerate(blobs) if v is not None}


def _histories(path: str) -> Arrays:
    return {("history", str(i)): values for i, values in enumerate(read_solverstate(path).history)}


def _compare(a: Arrays, b: Arrays, sources: tuple[str, str]) -> Comparison:
    alone: dict[str, list[str]] = {}
    for source, own, other in zip(sources, (a, b), (b, a), strict=True):
        for layer, what in own:
            if (layer, what) not in other:
                alone.setdefault(source, []).append(f"{layer}, {what}")
    found = []
    for (layer, what), values in a.items():
        other = b.get((layer, what))
        if other is None:
            continue
        if values.size != other.size:
            shapes = f"{shape_text(values.shape)} in {sources[0]}, {shape_text(other.shape)} in {sources[1]}"
            raise ConfigError(f"layer '{layer}', {what}: {shapes}")
        found.append(_difference(layer, what, values, other.reshape(values.shape)))
    if not found:
        raise ConfigError(f"{sources[0]} and {sources[1]} have nothing in common")
    return Comparison(found, alone)


def _difference(layer: str, what: str, a: np.ndarray, b: np.ndarray) -> Difference:
    with np.errstate(invalid="ignore"):
        gaps = np.abs(np.float64(a) - b)
    gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, gaps)
    gaps = np.where(np.isnan(gaps), math.inf, gaps)
    finite = np.abs(a[np.isfinite(a)])
    largest, scale = (float(values.max()) if values.size else 0.0 for values in (gaps, finite))
    return Difference(layer, what, a.shape, largest, scale)


def to_text(comparison: Comparison, tolerance: float) -> str:
    """Returns the table, what is in one of the two only, and the first array that differs."""
    rows = [
        (d.layer, d.what, shape_text(d.shape), f"{d.largest:.3g}", f"{d.scale:.3g}", f"{d.relative:.2g}")
        for d in comparison.differences
    ]
    lines = [table(HEADER, rows, "<<<>>>")]
    lines += [f"only in {source}: {'; '.join(names)}" for source, names in comparison.alone.items()]
    first, limit = comparison.first_beyond(tolerance), f"by more than {tolerance:g}" if tolerance else "at all"
    same = f"nothing differs {limit}" if not comparison.alone else f"nothing differs {limit} in what both have"
    lines.append(f"the first that differs {limit}: {first.layer}, {first.what}" if first else same)
    return "\n".join(lines)
