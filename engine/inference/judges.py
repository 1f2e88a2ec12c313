"""Collects the scores and labels of every sample for `engine test --report`.

A judge reads a blob of scores and a blob of labels that a layer of the net compares. Each rank's judges see that rank's
batches; the sum over the ranks does not depend on which rank had which batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import ConfigError
from engine.inference.coco_results import CocoResults
from engine.inference.evaluator import DETECTORS
from engine.layers.labels import axis_of_classes
from engine.layers.registry import layer_types
from engine.report.scores import Confusion

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World
    from engine.layers.base import Layer
    from engine.net import Net


class ClassJudge:
    """Judges samples, or pixels, of which each has one right class. A sample is taken for the class with the highest
    score, the first of equal ones; for no class if a score is NaN. If labels are distributions, the most probable class
    is the right one."""

    def __init__(self, name: str, layer: Layer):
        axis, shape = axis_of_classes(layer, layer.asked_axis), layer.shapes[0]
        self.name, self._axis = name, axis
        classes = self.count = shape[axis]
        self.found = Confusion(classes)
        self.by_pixel = int(np.prod(shape)) != shape[0] * classes
        self._ignored = layer.ignored_label
        self._least = layer.smallest_is_best

    def add(self, scores: np.ndarray, labels: np.ndarray, keys: Sequence[str]) -> None:
        """Adds a batch: the two bottoms of the layer."""
        rows = np.moveaxis(scores, self._axis, -1)
        predicted = (rows.argmin(-1) if self._least else rows.argmax(-1)).ravel()
        if self.count > 1 and labels.size == scores.size:
            labels = np.moveaxis(labels.reshape(scores.shape), self._axis, -1).argmax(-1)
        numbers = labels.ravel().astype(np.int64)
        counted = (numbers >= 0) & (numbers < self.count)
        if self._ignored is not None:
            counted &= numbers != self._ignored
        known = ~np.isnan(rows).any(-1).ravel()
        self.found.add(numbers[counted], predicted[counted], known[counted])

    def gather(self, world: World) -> None:
        """Collective. Gives rank 0 what all ranks have."""
        for other in (world.gather(self.found) or [])[1:]:
            self.found += other


class LabelJudge:
    """Judges samples of several labels, each of which a sample has or has not. What it has collected is there after
    gather().

    Attributes:
        keys: of the samples in their sources.
        scores: float32 (samples, labels).
        there: int8 (samples, labels): 1 where the sample has the label, 0 where not, -1 where it does not count.
    """

    def __init__(self, name: str, layer: Layer):
        self.name, self.count = name, int(np.prod(layer.shapes[0][1:]))
        self._ignored, self._signed = layer.ignored_label, layer.signed_labels
        self._rows: list[tuple[list[str], np.ndarray, np.ndarray]] = []
        self.keys: list[str] = []
        self.scores, self.there = np.zeros((0, self.count), np.float32), np.zeros((0, self.count), np.int8)

    def add(self, scores: np.ndarray, labels: np.ndarray, keys: Sequence[str]) -> None:
        """Adds a batch: the two bottoms of the layer. keys: of its samples; they are left out if rows are not
        samples."""
        targets = labels.reshape(len(scores), -1)
        there = (targets > 0 if self._signed else targets >= 0.5).astype(np.int8)
        if self._signed:
            there[~((targets > 0) | (targets < 0))] = -1
        elif self._ignored is not None:
            there[targets == self._ignored] = -1
        names = list(keys) if len(keys) == len(there) else [""] * len(there)
        self._rows.append((names, scores.reshape(there.shape).copy(), there))

    def gather(self, world: World) -> None:
        """Collective. Gives rank 0 what all ranks have, in the order of batches, which ranks have taken in turn."""
        parts = world.gather(self._rows) or [self._rows]
        rows = [row for rows in zip_longest(*parts) for row in rows if row is not None]
        self.keys += [key for keys, _, _ in rows for key in keys]
        self.scores = np.concatenate([self.scores, *(scores for _, scores, _ in rows)])
        self.there = np.concatenate([self.there, *(there for _, _, there in rows)])


Judge = ClassJudge | LabelJudge


class Judges:
    """All judges of a test; watch() is to be called after each forward.

    Attributes:
        samples: how many this rank has seen; after gather(), how many all ranks have.
        results: the boxes of detectors.
    """

    def __init__(self, net: Net, note: Callable[[str], None]):
        """Makes the judges of a net. Raises ConfigError for files that it cannot use. note: is called with lines about
        what is left out."""
        self.samples, self.results = 0, CocoResults(net, note)
        self._by_name: dict[str, Judge] = {}
        for name, layer in _judging(net):
            if layer.probabilities == "Softmax":
                self._by_name[name] = ClassJudge(name, layer)
            elif int(np.prod(layer.shapes[0][2:])) > 1:
                note(f"Layer {layer.name} has labels for each pixel: their ROC is left out of the report")
            else:
                self._by_name[name] = LabelJudge(name, layer)

    @property
    def any(self) -> bool:
        """Whether there is something to report."""
        return bool(self._by_name) or self.results.any

    def watch(self, net: Net, size: int, keys: Sequence[str]) -> None:
        """Takes scores and labels from a net after its forward of `size` samples with these keys."""
        self.samples += size
        self.results.watch(net, keys)
        for name, layer in _judging(net):
            if name in self._by_name:
                scores, labels = (net.tensors[blob].get() for blob in layer.bottoms[:2])
                self._by_name[name].add(scores, labels, keys)

    def gather(self, world: World) -> list[Judge]:
        """Collective. Returns the judges, on rank 0 with what all ranks have seen."""
        self.samples = sum(world.gather(self.samples) or [self.samples])
        self.results.gather(world)
        for judge in self._by_name.values():
            judge.gather(world)
        return list(self._by_name.values())


def _judging(net: Net) -> Iterator[tuple[str, Layer]]:
    """Yields each blob of scores, by name, with one layer that reads it: a loss and an accuracy often read the same."""
    seen = set()
    for layer in net.graph.layers:
        if layer.probabilities:
            name = layer.message.bottom[0]
            if name not in seen:
                yield name, layer
            seen.add(name)


def scored_blobs(net: proto.NetParameter) -> set[str]:
    """Returns the blobs that files of a report may be named after: scores that layers of the net read, and
    detections."""
    types = layer_types()
    judging = [layer for layer in net.layer if layer.type in types and types[layer.type].probabilities]
    found = {name for layer in judging for name in layer.bottom[:1]}
    return found.union(*(layer.top for layer in net.layer if layer.type in DETECTORS))


def require_judges(judges: Judges, detects: bool, path: str) -> None:
    """Raises ConfigError if nothing can be reported of a net. detects: whether it has a detector; path: its file."""
    if not judges.any and not detects:
        known = sorted(name for name, cls in layer_types().items() if cls.probabilities or name in DETECTORS)
        raise ConfigError(
            f"--report: no layer of phase TEST tells right from wrong; expected one of {', '.join(known)}", path
        )
