"""caffe.Net: a net that a script runs, whole or layer by layer, and whose blobs and parameters are live arrays.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="digits.caffemodel")
net.blobs["data"].data[...] = images
probabilities = net.forward()["prob"]
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import proto
from engine.caffe import mode
from engine.caffe.blobs import ByName, NetBlob, ParamBlob, ParamBlobs
from engine.caffe.changing import ChangingNet
from engine.caffe.user_errors import as_raised
from engine.config import read_net
from engine.errors import ConfigError, EngineError
from engine.host.interrupts import delaying_interrupt
from engine.inference.trained import has_none, none_of
from engine.layers.base import Layer
from engine.layers.python import Python, allow_modules
from engine.layers.python_layer import PythonLayer
from engine.net import Net as EngineNet
from engine.report.log import warn
from engine.weights import hdf5, read_caffemodel, write_caffemodel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Arrays = dict[str, np.ndarray]
Callback = Callable[[int], object]


class LayerView:
    """An element of net.layers: `type`, `name`, and its parameters as `blobs`."""

    def __init__(self, layer: Layer, blobs: ParamBlobs):
        self.type, self.name, self.blobs = layer.type, layer.name, blobs

    def __repr__(self) -> str:
        blobs = f", {len(self.blobs)} blobs" if self.blobs else ""
        return f"<layer '{self.name}' ({self.type}){blobs}>"


class Net:
    """Net(file, phase), Net(file, phase, weights=file) or, older, Net(file, weights, phase).

    `level` and `stages` choose among the layers by their include and exclude rules. A net can run backward if it has a
    loss or says force_backward: true, in either phase, as in Caffe. Arrays are float32, row-major, in Caffe's shapes.

    A net of phase TEST that a script makes begins as one fused program, if its layers allow, which keeps only inputs
    and outputs. It stays so until the script asks for more: an inner blob, a gradient, a part of a forward, weights
    shared with another net, or other weights loaded or saved after a forward. From then on the net keeps every blob and
    fuses nothing, as all other nets do; its blobs are those of the last forward. Results change by rounding only.

    Raises EngineErrors: ConfigErrors for a file that cannot be built, WeightsError for weights that do not fit. An
    exception of a layer written in Python passes through as it is.
    """

    @as_raised
    def __init__(
        self,
        network_file: str | os.PathLike,
        *arguments: Any,
        phase: int | None = None,
        level: int = 0,
        stages: Iterable[str] | None = None,
        weights: str | os.PathLike | None = None,
    ):
        rest = list(arguments)
        if rest and not isinstance(rest[0], int):  # the older order
            weights = rest.pop(0)
        given = dict(zip(("phase", "level", "stages", "weights"), rest))
        phase = given.get("phase", phase)
        if phase is None:
            raise TypeError("Net() needs a phase: caffe.TRAIN or caffe.TEST")
        allow_modules()  # the calling script has chosen this net, and so the code of its Python layers
        config = read_net(network_file)
        state = config.message.state
        state.phase, state.level = phase, given.get("level", level)
        state.stage.extend(given.get("stages", stages) or ())
        self._take_up(ChangingNet.of_script(config, mode.seed()))
        weights = given.get("weights", weights)
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def _of_solver(cls, net: ChangingNet, parts: str) -> Net:
        """Makes a Net of a net that a solver has built. parts: the layers that ranks hold in parts, for messages; "" if
        there are none."""
        self = cls.__new__(cls)
        self._take_up(net, parts)
        return self

    def _take_up(self, net: ChangingNet, parts: str = "") -> None:
        self._net, self._parts = net, parts
        self._callbacks: dict[str, list[Callback]] = {}
        params = (
            (layer, ParamBlobs(ParamBlob(net, layer, index) for index in range(len(parameters))))
            for layer, parameters in net.params_of.items()
        )
        self._params_by_layer = ByName(params, "net.params[{}]", "net.params[{}][0]")
        blobs = ((name, NetBlob(net, name)) for name in net.names())
        self._blobs_by_name = ByName(blobs, "net.blobs[{}]", "net.blobs[{}]")
        self._views = [self._layer_view(layer) for layer in net.layers]
        self._layer_names = [layer.name for layer in net.layers]
        self._blob_names = list(self._blobs_by_name)
        self._name = net.net.name

    # Layers, blobs and parameters

    @property
    def params(self) -> ByName[ParamBlobs]:
        """Parameters by the name of the layer."""
        return self._params_by_layer

    @property
    def blobs(self) -> ByName[NetBlob]:
        """Blobs by name, in the order in which the net makes them."""
        return self._blobs_by_name

    @property
    def layers(self) -> list[LayerView | PythonLayer]:
        """The layers in the order of the file; for layers written in Python, the user's objects."""
        return self._views

    def _layer_view(self, layer: Layer) -> LayerView | PythonLayer:
        return layer.user if isinstance(layer, Python) else LayerView(layer, self.params.get(layer.name, ParamBlobs()))

    def __repr__(self) -> str:
        phase = {proto.TRAIN: "TRAIN", proto.TEST: "TEST"}[self._net.net.phase]
        learned = sum(parameter.count for parameter in self._net.net.graph.params)
        return f"<{type(self).__name__} '{self.name}', {phase}: {len(self.layers)} layers, {learned:,} parameters>"

    @property
    def name(self) -> str:
        """The name in the file, or the one that a script has set since. save() writes the one in the file."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs of Input layers."""
        return list(self._net.input_names)

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs that no layer reads, sorted as Caffe does."""
        return [blob.name for blob in self._net.net.graph.outputs if blob.name in self.blobs]

    @property
    def layer_dict(self) -> OrderedDict[str, LayerView | PythonLayer]:
        return OrderedDict(zip(self._layer_names, self.layers))

    @property
    def bottom_names(self) -> OrderedDict[str, list[str]]:
        return OrderedDict((layer.name, list(layer.message.bottom)) for layer in self._net.layers)

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        return OrderedDict((layer.name, list(layer.message.top)) for layer in self._net.layers)

    def _bottom_ids(self, layer: int) -> list[int]:
        """Returns the indices of a layer's bottoms in _blob_names."""
        return [self._blob_names.index(name) for name in self._net.layers[layer].message.bottom]

    def _top_ids(self, layer: int) -> list[int]:
        """Returns the indices of a layer's tops in _blob_names."""
        return [self._blob_names.index(name) for name in self._net.layers[layer].message.top]

    @property
    def _inputs(self) -> list[int]:
        """The indices of the inputs in _blob_names."""
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        """The indices of the outputs in _blob_names."""
        return [self._blob_names.index(name) for name in self.outputs]

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        weights = {top: weight for _, top, weight in self._net.net.losses()}
        return OrderedDict((name, weights.get(name, 0.0)) for name in self.blobs)

    @property
    def _blobs(self) -> list[NetBlob]:
        """The blobs in the order of _blob_names."""
        return list(self.blobs.values())

    @property
    def _blob_loss_weights(self) -> list[float]:
        """The loss weights of blobs in the order of _blob_names."""
        return list(self.blob_loss_weights.values())

    # Running

    @as_raised
    @delaying_interrupt()
    def forward(self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs):
        """Runs the layers `start` to `end` (names, both included; by default all) on `inputs`, arrays by name.

        Returns arrays by name: the outputs, or the tops of `end` if it is given, and `blobs`. Raises ValueError for
        inputs that are not the net's or have another batch size, DataError for values that a layer cannot take.
        """
        self._fill(self.inputs, inputs, "input", lambda name: self.blobs[name].data)
        first, last = self._layer_number(start, 0), self._layer_number(end, len(self.layers) - 1)
        outputs = self.top_names[end] if end is not None else self.outputs
        wanted = list(dict.fromkeys([*outputs, *(blobs or ())]))
        known = [name for name in wanted if name in self.blobs]
        self._net.forward(first, last, known, self._call_back if self._callbacks else None)
        return {name: self.blobs[name].data for name in wanted}

    @as_raised
    @delaying_interrupt()
    def backward(self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **tops):
        """Runs the layers `start` down to `end` (both included) backward, on `tops`, gradients of outputs by name.

        Returns gradients by name: of the inputs, or of the bottoms of `end` if it is given, and of `diffs`. Gradients
        of parameters add up until clear_param_diffs(). Those of blobs are zero if there is no loss above, or nothing
        that learns below, unless the file says force_backward: true. Raises ValueError for `tops` that are no outputs.
        """
        self._fill(self.outputs, tops, "output", lambda name: self.blobs[name].diff)
        first, last = self._layer_number(start, len(self.layers) - 1), self._layer_number(end, 0)
        self._net.backward(first, last, self._call_back if self._callbacks else None)
        bottoms = self.bottom_names[end] if end is not None else self.inputs
        return {name: self.blobs[name].diff for name in dict.fromkeys([*bottoms, *(diffs or ())])}

    def before_forward(self, callback: Callback) -> None:
        """Calls `callback` from now on before each layer runs forward, with the layer's index in `layers`. What it
        writes into arrays is used.

        Layers run one by one from now on. Raises EngineError for a net of a solver, whose steps do not run so."""
        self._add_callback("before_forward", callback)

    def after_forward(self, callback: Callback) -> None:
        """Calls `callback` after each layer runs forward, as before_forward() does before."""
        self._add_callback("after_forward", callback)

    def before_backward(self, callback: Callback) -> None:
        """Calls `callback` before each layer runs backward, as before_forward() does before forward."""
        self._add_callback("before_backward", callback)

    def after_backward(self, callback: Callback) -> None:
        """Calls `callback` after each layer runs backward, as before_forward() does before forward."""
        self._add_callback("after_backward", callback)

    def _add_callback(self, when: str, callback: Callback) -> None:
        if self._net.is_of_solver:
            raise EngineError(
                f"{when}() is for nets that a script makes itself, for a solver's step() does not run layer by layer; "
                "`engine time` and `engine train --timeline` show what each layer takes"
            )
        self._callbacks.setdefault(when, []).append(callback)

    def _call_back(self, when: str, layer: int) -> None:
        for callback in self._callbacks.get(when, ()):
            callback(layer)

    def _forward(self, first: int, last: int) -> float:
        """Runs the layers with these indices, both included, and returns the sum of their losses."""
        names = self._layer_names[first : last + 1]
        self.forward(start=names[0], end=names[-1])
        losses = [(top, weight) for layer, top, weight in self._net.net.losses() if layer.name in names]
        return float(sum(weight * self.blobs[top].data.sum() for top, weight in losses))

    def _backward(self, first: int, last: int) -> None:
        """Runs the layers with these indices backward, the first down to the last, both included."""
        self.backward(start=self._layer_names[first], end=self._layer_names[last])

    def _fill(
        self, names: list[str], given: Mapping[str, ArrayLike], word: str, array_of: Callable[[str], np.ndarray]
    ) -> None:
        if given and not names:
            feeds = [f"'{layer.name}' ({layer.type})" for layer in self._net.layers if not layer.bottoms]
            raise ValueError(
                f"the net has no Input layer to take {', '.join(sorted(given))}: it is fed by {', '.join(feeds)}; call "
                "forward() without arrays, or give a net for deployment"
            )
        if given and set(given) != set(names):
            raise ValueError(f"expected arrays for the {word}s {', '.join(names)}, got {', '.join(sorted(given))}")
        for name, values in given.items():
            array = array_of(name)
            if array.ndim and np.shape(values)[:1] != array.shape[:1]:
                raise ValueError(f"{word} '{name}' is not batch-sized: {np.shape(values)}, expected {array.shape}")
            array[...] = values

    def _layer_number(self, name: str | None, otherwise: int) -> int:
        if name is None:
            return otherwise
        if name not in self._layer_names:
            raise ValueError(f"the net has no layer '{name}'; layers: {', '.join(self._layer_names)}")
        return self._layer_names.index(name)

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Runs any number of samples in batches, the last one padded with zeros.

        Returns the outputs and `blobs` of all samples, by name: empty arrays if there are no samples."""
        total = self._samples(inputs)
        batches = [_copies(self.forward(blobs, None, None, **batch)) for batch in self._split(inputs)]
        return _joined(batches, total) if batches else self._none_of([*self.outputs, *(blobs or ())])

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **given: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """Runs forward as forward_all(), and backward on the gradients of outputs that are among `given`.

        Returns (outputs and `blobs`, gradients of the inputs and of `diffs`), by name."""
        inputs = {name: values for name, values in given.items() if name in self.inputs}
        tops = {name: values for name, values in given.items() if name not in self.inputs}
        total = self._samples(inputs)
        forwards, backwards = [], []
        top_batches = self._split(tops) if tops else iter(lambda: {}, None)
        for batch, top_batch in zip(self._split(inputs), top_batches):
            forwards.append(_copies(self.forward(blobs, None, None, **batch)))
            backwards.append(_copies(self.backward(diffs, None, None, **top_batch)))
        if not forwards:
            return self._none_of([*self.outputs, *(blobs or ())]), self._none_of([*self.inputs, *(diffs or ())])
        return _joined(forwards, total), _joined(backwards, total)

    def _none_of(self, names: Sequence[str]) -> Arrays:
        """Returns what these blobs are for no samples: empty arrays, by name."""
        return {name: np.empty((0, *self.blobs[name].shape[1:]), np.float32) for name in names}

    def _samples(self, given: Arrays) -> int:
        if not given:
            raise ValueError(f"expected arrays for the inputs {', '.join(self.inputs)}")
        return len(next(iter(given.values())))

    def _split(self, given: Arrays) -> Iterator[Arrays]:
        size = self.blobs[next(iter(given))].num
        for begin in range(0, self._samples(given), size):
            batch = {}
            for name, values in given.items():
                values = np.asarray(values, np.float32)[begin : begin + size]
                missing = np.zeros((size - len(values), *values.shape[1:]), np.float32)
                batch[name] = np.concatenate([values, missing])
            yield batch

    @delaying_interrupt()
    def clear_param_diffs(self) -> None:
        self._net.live.clear_parameter_diffs()

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Sets the arrays from which the first MemoryData layer takes its batches: data (n, c, h, w) and n labels. They
        are read in place. Each of several ranks calls this with the same arrays, and reads its share of every global
        batch. Raises DataError for other shapes."""
        self._net.set_arrays(data, labels)

    @as_raised
    @delaying_interrupt()
    def reshape(self) -> None:
        """Gives all blobs the shapes that follow from the inputs'. Raises ConfigErrors for layers that do not fit.

        forward() does the same, but layers that do not fit keep their shapes, and it raises when it comes to one."""
        self._net.reshape()

    # Weights

    @as_raised
    @delaying_interrupt()
    def share_with(self, other: Net) -> None:
        """Shares the weights of `other`'s layers of the same names from now on: a change in one net is one in both.

        Raises EngineError for a net of a solver, unless it shares them already, as a test net does with the train net.
        """
        self._net.share_with(other._net)

    @delaying_interrupt()
    def copy_from(self, path: str | os.PathLike) -> None:
        """Takes weights by layer name from a caffemodel, binary or HDF5; other layers keep theirs. Raises WeightsError
        if shapes differ. A file that has none of the net's layers is no error, as in Caffe: the log warns of it."""
        net = self._net.push_before_change()
        if has_none(net, net.load_weights(read_caffemodel(path), str(path))):
            warn(f"{path}: {none_of(net)}")
        self._net.pull()

    load_hdf5 = copy_from

    def save(self, path: str | os.PathLike) -> None:
        """Writes a caffemodel of the weights that this rank holds. Raises ConfigError if it holds only a part of some
        layers."""
        net = self._net_to_save()
        write_caffemodel(path, net.message, net.weights_by_layer())

    def save_hdf5(self, path: str | os.PathLike, write_diff: bool = False) -> None:
        """Writes what save() does, in HDF5. Raises EngineError, too, if h5py is missing or write_diff asks for
        gradients, which no reader takes."""
        if write_diff:
            raise EngineError("save_hdf5: write_diff is not supported; net.params[...][i].diff holds the gradients")
        net = self._net_to_save()
        hdf5.write_caffemodel(path, net.message, net.weights_by_layer())

    def _net_to_save(self) -> EngineNet:
        if self._parts:
            raise ConfigError(
                f"ranks hold {self._parts}, and save() would write what one of them has: use solver.snapshot(), which "
                "gathers the parts"
            )
        return self._net.push()


def _copies(arrays: Arrays) -> Arrays:
    return {name: np.array(values) for name, values in arrays.items()}


def _joined(batches: list[Arrays], total: int) -> Arrays:
    """Joins the arrays of batches, without the padding. Blobs without a batch axis (losses) become an array that has a
    value for each batch."""
    result = {}
    for name in batches[0]:
        arrays = [batch[name] for batch in batches]
        result[name] = np.concatenate(arrays)[:total] if arrays[0].ndim else np.array(arrays)
    return result
