"""caffe.Net: a net that a script runs, whole or layer by layer, and whose blobs and parameters are live arrays.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="digits.caffemodel")
net.blobs["data"].data[...] = images
probabilities = net.forward()["prob"]
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from engine import proto
from engine.caffe import mode
from engine.caffe.blobs import NetBlob, ParamBlob
from engine.caffe.fused import FusedNet, may_fuse
from engine.caffe.inputs import FedBySolver, Inputs
from engine.caffe.live import LiveNet
from engine.config import NetConfig, read_net
from engine.errors import ConfigError, EngineError
from engine.host.interrupts import whole
from engine.inference.trained import has_none, none_of
from engine.layers.base import Layer, Parameter
from engine.layers.python import Python, ShapesChanged, allow_modules
from engine.layers.python_layer import PythonLayer, Shape
from engine.net import Counters, NetOptions
from engine.net import Net as EngineNet
from engine.report.log import warn
from engine.weights import hdf5, read_caffemodel, write_caffemodel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Arrays = dict[str, np.ndarray]
Callback = Callable[[int], object]


class LayerView:
    """An element of net.layers: `type`, `name`, and its parameters as `blobs`."""

    def __init__(self, layer: Layer, blobs: list[ParamBlob]):
        self.type, self.name, self.blobs = layer.type, layer.name, blobs

    def __repr__(self) -> str:
        blobs = f", {len(self.blobs)} blobs" if self.blobs else ""
        return f"<layer '{self.name}' ({self.type}){blobs}>"


class Net:
    """Net(file, phase), Net(file, phase, weights=file) or, older, Net(file, weights, phase).

    `level` and `stages` choose among the layers as their include rules say. There is a backward where a loss or
    force_backward asks for one, in either phase, as in Caffe. Arrays are float32, row-major, in Caffe's shapes.

    A net of phase TEST runs as one fused program, which keeps inputs and outputs alone, until a script asks for more:
    an inner blob, a gradient, a part of a forward. From then on every blob is kept and nothing is fused, as in all
    other nets; blobs are those of the last forward. Results change by rounding only.

    Raises EngineErrors: ConfigErrors for a file that cannot be built, WeightsError for weights that do not fit.
    """

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
        allow_modules()  # of a net that the calling program has chosen itself
        config = read_net(network_file)
        state = config.message.state
        state.phase, state.level = phase, given.get("level", level)
        state.stage.extend(given.get("stages", stages) or ())
        self._config = config
        self._seed = mode.seed()  # also of the same net in other shapes
        self._inputs_of = Inputs(config, phase, self._seed)
        self._rebuild: Callable[[NetConfig, bool], EngineNet] | None = None  # a solver's
        self._parts = ""  # see _of_solver()
        self._callbacks: dict[str, list[Callback]] = {}
        self._looking = threading.RLock()
        fused = may_fuse(config, phase)
        net = self._build(config, fused)
        self._open(FusedNet(net) if fused else LiveNet(net))
        weights = given.get("weights", weights)
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def _of_solver(
        cls,
        net: EngineNet,
        config: NetConfig,
        inputs: FedBySolver,
        rebuild: Callable[[NetConfig, bool], EngineNet],
        train: Net | None = None,
        parts: str = "",
    ) -> Net:
        """A net that a solver has built and builds again: rebuild(config, strict). `train`: the net whose parameters a
        test net reads. parts: the layers that ranks hold in parts, for messages."""
        self = cls.__new__(cls)
        self._config, self._inputs_of, self._rebuild, self._parts = config, inputs, rebuild, parts
        self._callbacks = {}
        self._looking = threading.RLock()
        self._open(LiveNet(net, train and train._live))
        return self

    def _build(
        self,
        config: NetConfig,
        fused: bool,
        share: EngineNet | None = None,
        before: EngineNet | None = None,
        strict: bool = True,
    ) -> EngineNet:
        options = NetOptions(seed=self._seed, shapes_of=self._inputs_of.shapes_of, accumulate=True, gradients=False)
        if not fused:
            options = options.replace(gradients=True).watched()
        net = EngineNet(config, config.message.state.phase, options, share=share, before=before, strict=strict)
        self._inputs_of.connect(net)
        return net

    @property
    def _live(self) -> LiveNet:
        """The net with every blob."""
        self._look_inside()
        return cast(LiveNet, self._net)

    def _look_inside(self) -> None:
        """Ends the fused net, if it still is one."""
        if isinstance(self._net, LiveNet):
            return
        with self._looking, whole():
            fused = self._net
            if isinstance(fused, LiveNet):  # another thread has been here
                return
            live = LiveNet(self._build(self._config, False, fused.net, fused.net), fused)
            live.take_place_of(fused)
            pending, blobs, params = self._pending, self.blobs, self.params
            self._open(live)
            self._pending, self.blobs, self.params = pending, blobs, params

    def _open(self, net: LiveNet | FusedNet) -> None:
        self._net = net
        self._pending: dict[str, np.ndarray] = {}  # inputs of another shape than the net's: name -> values
        self._parameters: dict[str, list[Parameter]] = {}
        for parameter in net.net.all_params():
            self._parameters.setdefault(parameter.layer, []).append(parameter)
        self.params = OrderedDict(
            (layer, [ParamBlob(self, layer, parameter.index) for parameter in parameters])
            for layer, parameters in self._parameters.items()
        )
        self.blobs = OrderedDict((name, NetBlob(self, name)) for name in net.names())
        self.layers = [self._layer_view(layer) for layer in net.layers]
        self._input_names = [top.name for layer in net.layers if layer.type == "Input" for top in layer.tops]
        self._layer_names = [layer.name for layer in net.layers]
        self._blob_names = list(self.blobs)

    # What it is made of

    def _layer_view(self, layer: Layer) -> LayerView | PythonLayer:
        return layer.user if isinstance(layer, Python) else LayerView(layer, self.params.get(layer.name, []))

    def __repr__(self) -> str:
        phase = {proto.TRAIN: "TRAIN", proto.TEST: "TEST"}[self._net.net.phase]
        learned = sum(parameter.count for parameter in self._net.net.graph.params)
        return f"<{type(self).__name__} '{self.name}', {phase}: {len(self.layers)} layers, {learned:,} parameters>"

    @property
    def name(self) -> str:
        return self._net.net.name

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs of Input layers."""
        return list(self._input_names)

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
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self._net.layers[layer].message.bottom]

    def _top_ids(self, layer: int) -> list[int]:
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self._net.layers[layer].message.top]

    @property
    def _inputs(self) -> list[int]:
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self.outputs]

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        weights = {top: weight for _, top, weight in self._net.net.losses()}
        return OrderedDict((name, weights.get(name, 0.0)) for name in self.blobs)

    @property
    def _blobs(self) -> list[NetBlob]:
        """In the order of _blob_names."""
        return list(self.blobs.values())

    @property
    def _blob_loss_weights(self) -> list[float]:
        """In the order of _blob_names."""
        return list(self.blob_loss_weights.values())

    # Running

    @whole()
    def forward(self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs):
        """Runs the layers `start` to `end` (names, both included; by default all) on `inputs`, arrays by name.

        Returns the outputs, or the tops of `end`, and `blobs`, by name. Raises ValueError for inputs that are not the
        net's or have another batch size, DataError for values that a layer cannot take.
        """
        self._fill(self.inputs, inputs, "input", lambda name: self.blobs[name].data)
        first, last = self._layer_number(start, 0), self._layer_number(end, len(self.layers) - 1)
        outputs = self.top_names[end] if end is not None else self.outputs
        inside = (first, last) != (0, len(self.layers) - 1) or not all(map(self._shows, (*outputs, *(blobs or ()))))
        if inside or self._callbacks:
            self._look_inside()
        self._apply_pending(strict=False)
        net = self._net
        counters = self._inputs_of.next(net.net, self._layer_names[first : last + 1])
        if isinstance(net, FusedNet):
            net.forward()
        elif self._callbacks:
            self._forward_one_by_one(first, last, counters or Counters(net.step))
        else:
            self._run_forward(first, last, counters)
        return {name: self.blobs[name].data for name in dict.fromkeys([*outputs, *(blobs or ())])}

    def _shows(self, name: str) -> bool:
        """Whether a fused net has that blob, too."""
        return not isinstance(self._net, FusedNet) or name not in self.blobs or self._net.shows(name)

    def _run_forward(self, first: int, last: int, counters: Counters | None) -> None:
        """Builds the net again where a layer written in Python gives its tops other shapes."""
        while True:
            try:
                return self._live.forward(first, last, counters)
            except ShapesChanged as change:
                self._follow(change, first)

    def _follow(self, change: ShapesChanged, first: int = 0) -> None:
        """Builds the net for the shapes that a forward from layer `first` on has found. The next one repeats what
        layers written in Python have computed, so that those that read data do not skip any."""
        culprit = self._live.layers.index(change.layer)
        for layer in self._live.layers[first : culprit + 1]:
            if isinstance(layer, Python):
                layer.repeat()
        self._replace(self._config, self._live)

    @whole()
    def backward(self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **tops):
        """Runs the layers `start` down to `end` (both included) backward, on `tops`, gradients of outputs by name.

        Returns the gradients of the inputs, or of the bottoms of `end`, and of `diffs`, by name. Gradients of
        parameters add up until clear_param_diffs(). Those of blobs are zero where no loss lies above or nothing
        learns below, unless the file says force_backward: true. Raises ValueError for `tops` that are not the net's.
        """
        self._fill(self.outputs, tops, "output", lambda name: self.blobs[name].diff)
        first, last = self._layer_number(start, len(self.layers) - 1), self._layer_number(end, 0)
        self._live.refuse_misfits(last, first)  # before gradients change
        if self._callbacks:
            self._backward_one_by_one(first, last)
        else:
            self._live.backward(first, last)
        bottoms = self.bottom_names[end] if end is not None else self.inputs
        return {name: self.blobs[name].diff for name in dict.fromkeys([*bottoms, *(diffs or ())])}

    def before_forward(self, callback: Callback) -> None:
        """Calls it, from now on, before a layer runs forward, with the layer's place in `layers`. What it writes into
        arrays is used. Layers then run one by one. Raises EngineError for a net of a solver, whose steps do not."""
        self._add_callback("before_forward", callback)

    def after_forward(self, callback: Callback) -> None:
        """As before_forward()."""
        self._add_callback("after_forward", callback)

    def before_backward(self, callback: Callback) -> None:
        """As before_forward()."""
        self._add_callback("before_backward", callback)

    def after_backward(self, callback: Callback) -> None:
        """As before_forward()."""
        self._add_callback("after_backward", callback)

    def _add_callback(self, when: str, callback: Callback) -> None:
        if self._rebuild:
            raise EngineError(
                f"{when}() is for nets that a script makes itself, for a solver's step() does not run layer by layer; "
                "`engine time` and `engine train --timeline` show what each layer takes"
            )
        self._callbacks.setdefault(when, []).append(callback)

    def _call_back(self, when: str, layer: int) -> None:
        for callback in self._callbacks.get(when, ()):
            callback(layer)

    def _forward_one_by_one(self, first: int, last: int, counters: Counters) -> None:
        step = self._live.step
        try:
            for layer in range(first, last + 1):
                self._call_back("before_forward", layer)
                self._run_forward(layer, layer, counters)
                self._call_back("after_forward", layer)
        finally:
            self._live.step = step + 1  # for it is one pass, also where a callback ends it

    def _backward_one_by_one(self, first: int, last: int) -> None:
        for layer in range(first, last - 1, -1):
            self._call_back("before_backward", layer)
            self._live.backward(layer, layer)
            self._call_back("after_backward", layer)

    def _forward(self, first: int, last: int) -> float:
        """Runs the layers of these numbers, both included; returns what they have lost."""
        names = self._layer_names[first : last + 1]
        self.forward(start=names[0], end=names[-1])
        losses = [(top, weight) for layer, top, weight in self._net.net.losses() if layer.name in names]
        return float(sum(weight * self.blobs[top].data.sum() for top, weight in losses))

    def _backward(self, first: int, last: int) -> None:
        """Runs the layers of these numbers, the first down to the last, both included."""
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
        """Runs any number of samples in batches, the last one padded with zeros; returns outputs and `blobs` of all
        samples: empty arrays where there are none."""
        total = self._samples(inputs)
        batches = [_copies(self.forward(blobs, None, None, **batch)) for batch in self._split(inputs)]
        return _joined(batches, total) if batches else self._none_of([*self.outputs, *(blobs or ())])

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **given: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """As forward_all, and backward on the gradients of outputs among `given`; returns (blobs, diffs)."""
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
        """What no sample gives for each of these blobs."""
        return {name: np.empty((0, *self._shape(name)[1:]), np.float32) for name in names}

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

    @whole()
    def clear_param_diffs(self) -> None:
        self._live.clear_parameter_diffs()

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """What the first MemoryData layer takes its batches from: (N, C, H, W) and N labels, read in place. On several
        ranks each calls it with the arrays of all, and takes its share of every global batch. Raises DataError for
        other shapes."""
        self._inputs_of.set_arrays(self._net.net, data, labels)

    # Shapes

    def _data(self, name: str) -> np.ndarray:
        if name in self._pending:
            return self._pending[name]
        return self._net.data(name) if self._shows(name) else self._live.data(name)

    def _parameter_data(self, layer: str, index: int) -> np.ndarray:
        return self._net.parameter(self._parameters[layer][index])

    def _shape(self, name: str) -> Shape:
        return self._pending[name].shape if name in self._pending else self._net.shape(name)

    def _reshape_input(self, name: str, shape: Shape) -> None:
        if shape == self._shape(name):
            return
        if name not in self.inputs:
            raise EngineError(f"blob '{name}': only inputs ({', '.join(self.inputs)}) can be reshaped; others follow")
        self._pending[name] = np.zeros(shape, np.float32)

    @whole()
    def reshape(self) -> None:
        """Gives all blobs the shapes that follow from the inputs'. Also done by forward(), as far as layers fit. Layers
        that do not fit keep their shapes, and forward() raises when it comes to one. Raises ConfigErrors."""
        self._apply_pending(strict=True)
        if isinstance(self._net, LiveNet):  # a fused one fits
            self._net.refuse_misfits(0, len(self.layers) - 1)  # of a forward() before

    def _apply_pending(self, strict: bool) -> None:
        if not self._pending:
            return
        message = proto.NetParameter()
        message.CopyFrom(self._config.message)
        for layer in message.layer:
            if layer.type == "Input":
                del layer.input_param.shape[:]
                for top in layer.top:
                    layer.input_param.shape.add(dim=self._shape(top) if top in self.blobs else ())
        self._replace(self._config.with_message(message), self._net, strict)

    def _replace(self, config: NetConfig, share: LiveNet | FusedNet, strict: bool = False) -> None:
        """Builds the net again, with the weights of `share`, and the arrays of blobs whose shapes stay. strict: all
        layers have to fit, as in a fused net."""
        before, pending = self._net, self._pending
        before.push()
        share.push()
        fused = isinstance(before, FusedNet)
        if self._rebuild:
            net = self._rebuild(config, strict)
        else:
            net = self._build(config, fused, share.net, before.net, strict or fused)
        self._config = config
        blobs, params = self.blobs, self.params
        after = FusedNet(net, share) if fused else LiveNet(net, share)
        self._open(after)
        after.keep_parameters_of(before)
        after.keep_arrays_of(cast(Any, before))  # a net of the same kind
        after.step = before.step
        self.blobs, self.params = blobs, params  # those that the caller may hold
        arrays = {blob.name: before.net.fed[blob] for blob in before.net.inputs} | pending
        for blob in net.inputs:
            if blob.name in arrays and arrays[blob.name].shape == blob.shape:
                net.feed(blob, arrays[blob.name])
        self._pending = {name: array for name, array in pending.items() if array.shape != after.shape(name)}

    # Weights

    @whole()
    def share_with(self, other: Net) -> None:
        """Reads the weights of `other`'s layers of the same names from now on, and changes them there.

        Raises EngineError for a net of a solver, unless it does so already (a test net, of the solver's net).
        """
        if self._rebuild:
            mine, its = ({tensor.origin for tensor in net._live.net.tensor_of.values()} for net in (self, other))
            if mine <= its:
                return
            raise EngineError("a solver has built this net with its own weights; copy them with copy_from()")
        self._look_inside()  # neither net could tell when the other changes the weights
        self._replace(self._config, other._live)

    def _before_weights_change(self) -> LiveNet | FusedNet:
        """The net, once it has taken what was written into parameters. A fused one ends if it has run: with other
        weights the inner blobs of its last forward could not be computed any more."""
        net = self._live if isinstance(self._net, FusedNet) and self._net.has_run else self._net
        net.push()
        return net

    @whole()
    def copy_from(self, path: str | os.PathLike) -> None:
        """Takes weights by layer name from a caffemodel, binary or HDF5; other layers keep theirs. Raises WeightsError
        where shapes differ. Of a file that has none of the net's layers, as Caffe takes it, too, the log warns."""
        net = self._before_weights_change()
        if has_none(net.net, net.net.load_weights(read_caffemodel(path), str(path))):
            warn(f"{path}: {none_of(net.net)}")
        net.pull()

    load_hdf5 = copy_from

    def save(self, path: str | os.PathLike) -> None:
        """Writes a caffemodel, of what this rank holds. Raises ConfigError where that is a part of some layers."""
        net = self._net_to_save()
        write_caffemodel(path, net.message, net.weights_by_layer())

    def save_hdf5(self, path: str | os.PathLike, write_diff: bool = False) -> None:
        """As save(), in HDF5. Raises EngineError, too, where h5py is missing or gradients are asked for, which no
        reader takes."""
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
        return self._before_weights_change().net


def _copies(arrays: Arrays) -> Arrays:
    return {name: np.array(values) for name, values in arrays.items()}


def _joined(batches: list[Arrays], total: int) -> Arrays:
    """Blobs without a batch axis (losses) have one value for each batch."""
    result = {}
    for name in batches[0]:
        arrays = [batch[name] for batch in batches]
        result[name] = np.concatenate(arrays)[:total] if arrays[0].ndim else np.array(arrays)
    return result
