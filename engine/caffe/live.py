"""A net that runs layer by layer and whose blobs are live arrays: what caffe.Net needs beyond engine.net.Net.

If layers work in place, the graph has several versions of a blob; Caffe has one array that they overwrite in turn. Here
the name of the blob stands for the version that the last run wrote last, and its array is a copy that moves with the
name from version to version. A run that starts at another version takes its values from that array.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.caffe.fused import FusedNet
from engine.caffe.views import Views
from engine.layers.base import Blob, Layer
from engine.net import ALL, Counters, Net
from engine.proto import TRAIN

if TYPE_CHECKING:
    from engine.host._core import Tensor


@dataclass
class _Version:
    """One of the values that the name of a blob has in the course of a forward pass.

    maker: the index of the layer that makes it, -1 if it comes from outside. reader: the index of the first layer that
    reads it, None if none does."""

    blob: Blob
    maker: int
    reader: int | None = None


class LiveNet:
    """Runs a net layer by layer.

    shares: the net whose parameters it reads, None for its own. `layers`: those of the file, in order, without the
    Splits and Casts that were inserted."""

    def __init__(self, net: Net, shares: LiveNet | FusedNet | None = None):
        self.net = net
        self._views = Views()
        self.parameters = shares.parameters if shares else Views()
        named = {message.name for message in net.message.layer}
        graph = net.graph.layers
        self._places = [i for i, layer in enumerate(graph) if layer.name in named]
        self.layers: list[Layer] = [graph[i] for i in self._places]
        self.params_of = net.params_by_layer()
        self._starts = [self._start_of(place) for place in self._places]
        self._splits = [
            (i, layer) for i, layer in enumerate(graph) if layer.type == "Split" and layer not in self.layers
        ]
        self._reader_of = {
            blob: number
            for number, (start, place) in enumerate(zip(self._starts, self._places))
            for layer in graph[start : place + 1]
            for blob in layer.bottoms
        }
        self._versions = self._find_versions()
        self._data_of = {name: versions[-1] for name, versions in self._versions.items()}  # what the names stand for
        self._diff_of = dict(self._data_of)
        self._stand_ins: dict[object, np.ndarray] = {}  # arrays for data and gradients that are never computed
        self.step = 0
        self._runs = net.runs
        for layer in net.self_fed:  # constants stay as they are, unless somebody writes into them
            for blob, values in layer.feed(self.step, net.seed).items():
                net.feed(blob, values)

    def _start_of(self, place: int) -> int:
        """Returns where the layer at `place` of the graph starts: at the first of the inserted Casts right before it,
        which convert what it reads."""
        start, graph = place, self.net.graph.layers
        while start and graph[start - 1].type == "Cast" and start - 1 not in self._places:
            start -= 1
        return start

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
                    given = layer.type == "Input" or layer in self.net.self_fed  # scripts may write into its tops
                    outside = given and top in self.net.builder.inputs
                    versions.setdefault(top.name, []).append(_Version(top, -1 if outside else number))
        return versions

    # Blobs

    def names(self) -> list[str]:
        return list(self._versions)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._data_of[name].blob.shape

    def data(self, name: str) -> np.ndarray:
        return self._data(self._data_of[name].blob)

    def diff(self, name: str) -> np.ndarray:
        return self._diff(self._diff_of[name].blob)

    def _data(self, blob: Blob) -> np.ndarray:
        if blob in self.net.fed:
            return self.net.fed[blob].reshape(blob.shape)
        if blob in self.net.tensors:
            return self._array(self.net.tensors[blob], blob)
        return self._stand_in((blob, "data"), blob.shape)  # of a layer without ops

    def _array(self, tensor: Tensor, blob: Blob) -> np.ndarray:
        in_place = len(self._versions.get(blob.name, ())) > 1
        return (self._views.copy if in_place else self._views.array)(tensor, blob.shape)

    def _diff_tensor(self, blob: Blob) -> Tensor | None:
        tensor = self.net.tensors.get(blob)
        return tensor and tensor.diff

    def _diff(self, blob: Blob) -> np.ndarray:
        tensor = self._diff_tensor(blob)
        if tensor is not None:
            return self._array(tensor, blob)
        weight = next((w for _, top, w in self.net.losses() if top == blob.name), 0.0)
        return self._stand_in(blob, blob.shape, weight)

    def _let_data_be(self, name: str, version: _Version) -> None:
        """Lets the name of a blob stand for a version of its data. The blob's array shows that version from the next
        pull() on; inputs keep an array of their own."""
        old, new = self._data_of[name].blob, version.blob
        self._data_of[name] = version
        if old in self.net.tensors and new in self.net.tensors and not {old, new} & self.net.fed.keys():
            self._views.move(self.net.tensors[old], self.net.tensors[new])

    def _let_diff_be(self, name: str, version: _Version) -> None:
        """Does the same for the gradient of the blob."""
        old, new = self._diff_tensor(self._diff_of[name].blob), self._diff_tensor(version.blob)
        self._diff_of[name] = version
        if old is not None and new is not None:
            self._views.move(old, new)

    def _stand_in(self, key: object, shape: tuple[int, ...], value: float = 0.0) -> np.ndarray:
        if key not in self._stand_ins:
            self._stand_ins[key] = np.full(shape, value, np.float32)
        return self._stand_ins[key]

    # Parameters

    def parameter(self, layer: str, index: int) -> np.ndarray:
        parameter = self.params_of[layer][index]
        tensor = self.net.tensor_of[parameter.owner or parameter].origin
        return self.parameters.array(tensor, parameter.shape)

    def parameter_diff(self, layer: str, index: int) -> np.ndarray:
        """Returns the gradient of a parameter; zeros if it is not computed, because lr_mult is 0."""
        parameter = self.params_of[layer][index]
        diff = self.net.tensor_of[parameter.owner or parameter].diff
        if diff is not None:
            return self.parameters.array(diff, parameter.shape)
        return self._stand_in(parameter, parameter.shape)

    def _gradients(self) -> dict[tuple[str, int], Tensor]:
        """Returns the gradients of parameters, as far as they are computed, by layer and index."""
        tensors = {(p.layer, p.index): self.net.tensor_of[p.owner or p].diff for p in self.net.all_params()}
        return {key: diff for key, diff in tensors.items() if diff is not None}

    def clear_parameter_diffs(self) -> None:
        self.push()
        for tensor in self.net.tensor_of.values():
            if tensor.diff is not None:
                tensor.diff.set(np.zeros(tensor.diff.shape, np.float32))
        self.pull()

    # Running

    def push(self) -> None:
        """Takes what was written into arrays. Call it before a run."""
        self._views.push()
        self.parameters.push()

    def pull(self) -> None:
        """Writes the values of tensors into the arrays. Call it after a run, also after one by a solver, or after a
        push() and another change of tensors."""
        if self.net.runs != self._runs:
            self._ran_through()
        self._views.pull()
        self.parameters.pull()

    def keep_parameters_of(self, before: LiveNet | FusedNet) -> None:
        """Takes over the arrays of parameters that a script may hold and that both nets have: they stay live."""
        self.parameters.adopt(before.parameters)

    def keep_arrays_of(self, before: LiveNet) -> None:
        """Takes over the arrays and the values of blobs and gradients that both nets have in the same shape: arrays
        that a script may hold stay live."""
        from engine.host import _core

        tensors: dict[Tensor, Tensor] = {}
        theirs, inputs = _in_order(before.net), {*self.net.builder.inputs.values()}
        for key, blob in _in_order(self.net).items():
            other = theirs.get(key)
            if other is None or other.shape != blob.shape:
                continue
            data = self.net.tensors.get(blob), before.net.tensors.get(other)
            for mine, its in (data, (self._diff_tensor(blob), before._diff_tensor(other))):
                if mine is not None and its is not None and mine not in inputs:
                    tensors[its] = mine
            for old, new in (((other, "data"), (blob, "data")), (other, blob)):
                if old in before._stand_ins:
                    self._stand_ins[new] = before._stand_ins[old]
        gradients = before._gradients()
        for key, mine in self._gradients().items():
            its = gradients.get(key)
            if its is not None and its is not mine and its.shape == mine.shape:
                tensors[its] = mine
                self.parameters.move(its, mine)
        _core.take_over([*tensors.values()], [*tensors])
        self._views = before._views.of(tensors)
        for name, versions in self._versions.items():
            self._data_of[name] = versions[before._versions[name].index(before._data_of[name])]
            self._diff_of[name] = versions[before._versions[name].index(before._diff_of[name])]

    def take_place_of(self, fused: FusedNet) -> None:
        """Takes over the arrays of a fused net, and repeats its last forward to have the inner blobs, too."""
        for blob in self.net.inputs:  # the arrays that scripts hold, also those of layers that feed themselves
            self.net.feed(blob, fused.net.fed[fused.inputs[blob.name]])
        fused.repeat_in(self.net)
        self._views = fused.arrays_for(self.net)
        self.step = fused.step

    def forward(self, start: int, end: int, counters: Counters | None = None) -> None:
        """Runs layers start to end, both included. counters: of this pass, if the caller counts passes; by default the
        net counts its own."""
        for name, versions in self._versions.items():
            wanted = next((v for v in reversed(versions) if v.maker < start), None)
            if wanted not in (None, self._data_of[name]):
                self._data(wanted.blob)[...] = self.data(name)
                self._let_data_be(name, wanted)
        self.push()
        self.net.run_forward(counters or Counters(self.step), self._slice(start, end))
        self._runs = self.net.runs
        for name, versions in self._versions.items():
            self._let_data_be(name, next((v for v in reversed(versions) if v.maker <= end), self._data_of[name]))
        self.pull()
        self.step += 1

    def backward(self, start: int, end: int) -> None:
        """Runs layers start down to end, both included, backward. Gradients of parameters add up."""
        self._forget_gradients(start)
        written: dict[str, _Version] = {}
        for name, versions in self._versions.items():
            wanted = next((v for v in reversed(versions) if v.maker <= start), None)
            if wanted is None:
                continue
            unwritten = wanted.reader is None or wanted.reader > start
            if unwritten and wanted is not self._diff_of[name]:
                self._diff(wanted.blob)[...] = self.diff(name)
            self._let_diff_be(name, wanted)
            written[name] = self._first_written(versions, wanted, end)
        self.push()
        if self.net.has_backward:
            self.net.program.mark_ready(False)  # or the buckets of a solver would be reduced
            self.net.program.backward(*self.net.ops_of(self._slice(end, start)))
            self._add_up_gradients(end)
        for name, version in written.items():
            self._let_diff_be(name, version)
        self.pull()

    def refuse_misfits(self, first: int, last: int) -> None:
        """Raises the ConfigError of the first layer among these, both included, that does not fit."""
        for layer in self.layers[first : last + 1]:
            if layer.misfit:
                raise layer.misfit.error

    def _add_up_gradients(self, end: int) -> None:
        """Adds up the gradients of those bottoms of layer `end` that several layers read, by running the inserted
        Splits before it backward."""
        for place, split in reversed(self._splits):
            if any(self._reader_of.get(top) == end for top in split.tops):
                self.net.program.backward(*self.net.ops_of(slice(place, place + 1)))

    def _forget_gradients(self, start: int) -> None:
        """Sets to 0 the gradients that layers above `start` have sent to a blob that others read, too, if a script has
        since set the gradients of such a layer's tops and of the blob to 0."""
        for _, split in self._splits:
            for top in split.tops:
                reader, sent = self._reader_of.get(top, start), self._diff_tensor(top)
                if reader <= start or sent is None:
                    continue
                names = [*self.layers[reader].message.top, split.bottoms[0].name]
                if not any(self.diff(name).any() for name in names):
                    sent.set(np.zeros(sent.shape, np.float32))

    def _ran_through(self) -> None:
        """Lets names stand for the versions that are left when a solver has run all layers forward and, in phase TRAIN,
        backward."""
        self._runs = self.net.runs
        for name, versions in self._versions.items():
            self._let_data_be(name, versions[-1])
            if self.net.phase == TRAIN:
                self._let_diff_be(name, self._first_written(versions, versions[-1], 0))

    @staticmethod
    def _first_written(versions: list[_Version], start: _Version, end: int) -> _Version:
        """Returns the version whose gradient a backward pass from `start` down to layer `end` writes last."""
        written = start
        for before, after in zip(reversed(versions[:-1]), reversed(versions[1:])):
            if after is written and after.maker >= end:
                written = before
        return written

    def _slice(self, first: int, last: int) -> slice:
        if (first, last) == (0, len(self.layers) - 1):
            return ALL
        return slice(self._starts[first], self._places[last] + 1)


def _in_order(net: Net) -> dict[tuple[str, int], Blob]:
    """Returns the blobs by (name, number of the version), which stay when a net is built again in other shapes."""
    seen, result = Counter[str](), {}
    for layer in net.graph.layers:
        for blob in layer.tops:
            result[blob.name, seen[blob.name]] = blob
            seen[blob.name] += 1
    return result
