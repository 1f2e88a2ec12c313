"""A net that runs layer by layer and whose blobs are live arrays: what caffe.Net needs beyond engine.net.Net.

Where layers work in place, the graph has several versions of a blob, and Caffe one array that they overwrite in turn.
The name therefore stands for the version that the last run left there; a run that starts elsewhere takes its values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.caffe.fused import FusedNet
from engine.caffe.views import Views
from engine.layers.base import Blob, Layer, Parameter
from engine.net import ALL, Counters, Net


@dataclass
class _Version:
    """One value that a name has in the course of a forward pass: made by layer `maker` (-1: from outside), read by
    layer `reader` first (None: by none)."""

    blob: Blob
    maker: int
    reader: int | None = None


class LiveNet:
    """`layers`: those of the file, in order; inserted splits and casts are hidden. `shares`: the net whose parameters
    it reads."""

    def __init__(self, net: Net, shares: LiveNet | FusedNet | None = None):
        self.net = net
        self._views = Views()
        self.parameters = shares.parameters if shares else Views()
        named = {message.name for message in net.message.layer}
        graph = net.graph.layers
        self._places = [i for i, layer in enumerate(graph) if layer.name in named]
        self.layers: list[Layer] = [graph[i] for i in self._places]
        self._versions = self._find_versions()
        self._last_forward = len(self.layers) - 1
        self._diff_of: dict[str, _Version] = {}  # where it is not the last version
        self._stand_ins: dict[object, np.ndarray] = {}  # for what is never computed
        self.step = 0
        for layer in net.self_fed:  # constants stay as they are, unless somebody writes into them
            for blob, values in layer.feed(self.step, net.seed).items():
                net.feed(blob, values)

    def _find_versions(self) -> dict[str, list[_Version]]:
        versions: dict[str, list[_Version]] = {}
        number = -1
        for layer in self.net.graph.layers:
            if layer not in self.layers:
                continue
            number += 1
            for name in layer.message.bottom:
                last = versions[name][-1]
                last.reader = number if last.reader is None else last.reader
            for top in layer.tops:
                if not top.name.startswith("(automatic)"):
                    outside = top in self.net.builder.inputs
                    versions.setdefault(top.name, []).append(_Version(top, -1 if outside else number))
        return versions

    # Blobs

    def names(self) -> list[str]:
        return list(self._versions)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._current(name).blob.shape

    def data(self, name: str) -> np.ndarray:
        return self._data(self._current(name).blob)

    def diff(self, name: str) -> np.ndarray:
        return self._diff(self._current_diff(name).blob)

    def _current(self, name: str) -> _Version:
        versions = self._versions[name]
        return next((v for v in reversed(versions) if v.maker <= self._last_forward), versions[0])

    def _current_diff(self, name: str) -> _Version:
        return self._diff_of.get(name) or self._current(name)

    def _data(self, blob: Blob) -> np.ndarray:
        if blob in self.net.fed:
            return self.net.fed[blob].reshape(blob.shape)
        if blob in self.net.tensors:
            return self._views.array(self.net.tensors[blob], blob.shape, self.net)
        return self._stand_in((blob, "data"), blob.shape)  # of a layer without ops

    def _diff(self, blob: Blob) -> np.ndarray:
        tensor = self.net.tensors.get(blob)
        if tensor is not None and tensor.diff is not None:
            return self._views.array(tensor.diff, blob.shape, self.net)
        weight = next((w for _, top, w in self.net.losses() if top == blob.name), 0.0)
        return self._stand_in(blob, blob.shape, weight)

    def _stand_in(self, key: object, shape: tuple[int, ...], value: float = 0.0) -> np.ndarray:
        if key not in self._stand_ins:
            self._stand_ins[key] = np.full(shape, value, np.float32)
        return self._stand_ins[key]

    # Parameters

    def parameter(self, parameter: Parameter) -> np.ndarray:
        tensor = self.net.tensor_of[parameter.owner or parameter]
        return self.parameters.array(tensor, parameter.shape, self.net)

    def parameter_diff(self, parameter: Parameter) -> np.ndarray:
        """Zeros where lr_mult is 0, so that it is not computed."""
        diff = self.net.tensor_of[parameter.owner or parameter].diff
        if diff is not None:
            return self.parameters.array(diff, parameter.shape, self.net)
        return self._stand_in(parameter, parameter.shape)

    def clear_parameter_diffs(self) -> None:
        self.push()
        for tensor in self.net.tensor_of.values():
            if tensor.diff is not None:
                tensor.diff.set(np.zeros(tensor.diff.shape, np.float32))
        self.pull()

    # Running

    def push(self) -> None:
        """Before a run: takes what was written into arrays."""
        self._views.push()
        self.parameters.push()

    def pull(self) -> None:
        """After a run, or after another change of tensors that followed a push()."""
        self._views.pull()
        self.parameters.pull()

    def keep_parameters_of(self, before: LiveNet | FusedNet) -> None:
        """Arrays of parameters that the caller may hold stay live, of those that both nets have."""
        self.parameters.adopt(before.parameters)

    def take_place_of(self, fused: FusedNet) -> None:
        """Computes what the last forward of that net has, whose arrays stay live."""
        for blob in self.net.inputs:  # the arrays that scripts hold, also of layers that make up their tops
            self.net.feed(blob, fused.net.fed[fused.inputs[blob.name]])
        fused.repeat_in(self.net)
        self._views = fused.arrays_for(self.net)
        self.step = fused.step

    def forward(self, start: int, end: int) -> None:
        """Layers start to end, both included."""
        for versions in self._versions.values():
            wanted = next((v for v in reversed(versions) if v.maker < start), None)
            current = self._current(versions[0].blob.name)
            if wanted not in (None, current):
                self._data(wanted.blob)[...] = self._data(current.blob)
        self.push()
        self.net.run_forward(Counters(self.step), self._slice(start, end))
        self.pull()
        self.step += 1
        self._last_forward = end

    def backward(self, start: int, end: int) -> None:
        """Layers start down to end, both included; gradients of parameters are added to what they are."""
        for name, versions in self._versions.items():
            wanted = next((v for v in reversed(versions) if v.maker <= start), None)
            current = self._current_diff(name)
            if wanted is None:
                continue
            unwritten = wanted.reader is None or wanted.reader > start
            if unwritten and wanted is not current:
                self._diff(wanted.blob)[...] = self._diff(current.blob)
            self._diff_of[name] = self._first_written(versions, wanted, end)
        self.push()
        if self.net.has_backward:
            self.net.program.mark_ready(False)  # to a solver
            self.net.program.backward(*self.net.ops_of(self._slice(end, start)))
            self._add_up_gradients(end)
        self.pull()

    def _add_up_gradients(self, end: int) -> None:
        """Of the bottoms of the last layer that several layers read: the hidden Splits before it do that."""
        graph = self.net.graph.layers
        makers = {top: index for index, layer in enumerate(graph) for top in layer.tops}
        hidden = {makers[blob] for blob in self.layers[end].bottoms if blob in makers}
        for index in sorted(hidden, reverse=True):
            if graph[index].type == "Split" and graph[index] not in self.layers:
                self.net.program.backward(*self.net.ops_of(slice(index, index + 1)))

    def ran_through(self) -> None:
        """Somebody else has run all layers, forward and backward."""
        last = len(self.layers) - 1
        self._last_forward = last
        for name, versions in self._versions.items():
            self._diff_of[name] = self._first_written(versions, versions[-1], 0)

    @staticmethod
    def _first_written(versions: list[_Version], start: _Version, end: int) -> _Version:
        """The version whose gradient a backward pass down to layer `end` writes last."""
        written = start
        for before, after in zip(reversed(versions[:-1]), reversed(versions[1:])):
            if after is written and after.maker >= end:
                written = before
        return written

    def _slice(self, first: int, last: int) -> slice:
        if (first, last) == (0, len(self.layers) - 1):
            return ALL
        return slice(self._places[first], self._places[last] + 1)
