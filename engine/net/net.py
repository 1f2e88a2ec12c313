"""A net that can run: its graph lowered to a program, its parameters placed in arenas, its blobs readable by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine import proto
from engine.config import NetConfig
from engine.config.phases import PHASE_NAMES
from engine.errors import ConfigError, DataError, EngineError, WeightsError, shape_text
from engine.graph.build import build
from engine.graph.passes import memory_plan
from engine.graph.passes.gradients import ends_of
from engine.graph.passes.recompute import choose
from engine.graph.prepare import prepare
from engine.host.memory import SMALLER_BATCH, require_memory
from engine.layers.base import Blob, Layer, Parameter
from engine.layers.batch_norm import BatchNorm
from engine.layers.builder import Builder
from engine.layers.fillers import fill_parameter
from engine.net.blobs import BlobView, Placed
from engine.net.options import DEFAULT, NetOptions
from engine.weights import intel
from engine.weights.shared import with_gaps

if TYPE_CHECKING:
    from engine.host._core import Tensor
    from engine.watchdog.board import Board

ALL = slice(None)


class Counters(NamedTuple):
    """From what one forward pass counts its randomness: the same for a sample on any rank, at any iter_size.

    first_sample: the number of this rank's first sample among those of all ranks. batch: the number of this pass among
    all of this rank, micro-batches included, by which layers make up their own input (DummyData); by default iteration.
    """

    iteration: int = 0
    first_sample: int = 0
    batch: int | None = None


FIRST = Counters()


class Net:
    """One phase of a net, ready to run; `state` of the config says which level and stages.

    share: a net whose weights this one reads (for a test net, its train net); where that net has parts of layers, this
    one has them whole. before: the same net in other shapes, which this one replaces. strict: whether all layers fit
    these; else those that do not are Misfits. `repeats` lists what is computed twice to meet the memory budget.

    Raises ConfigErrors for a net that does not fit together, EngineError for a memory_budget that is too small.
    """

    def __init__(
        self,
        config: NetConfig,
        phase: int = proto.TRAIN,
        options: NetOptions = DEFAULT,
        *,
        share: Net | None = None,
        before: Net | None = None,
        strict: bool = True,
    ):
        self.phase, self.options, self.message = phase, options, config.message
        earlier, parts = before and before.graph, options.parts
        graph = build(config, phase, shapes_of=options.shapes_of, before=earlier, strict=strict, parts=parts)
        graph.freeze(options.frozen)
        self.has_backward = graph.trains if options.gradients is None else options.gradients
        self.written, self.named = list(graph.layers), graph.blobs()  # of the file, before passes rewrite it
        self.graph = prepare(graph, options.passes, options.precision, self.has_backward)
        self._batch_size = self.graph.batch_size
        self.name = self.graph.name
        self.fed: dict[Blob, np.ndarray] = {}  # what inputs are read from
        self.runs = 0  # forward passes, whole ones and of a slice
        self._lower(share, before)
        self._own = [parameter for parameter in self.tensor_of if parameter not in self.builder.taken]
        self._place(options.besides(self._learned()) if before is None else {})
        self._place_parameters()
        self.on_forward: Callable[[Net], None] | None = None  # called after every forward
        for blob in self.inputs:
            self.feed(blob, np.zeros(blob.shape, np.float32))
        if before is not None:
            self.program.succeed(before.program)
            if before is share:
                self._take_place_of(before)

    @property
    def seed(self) -> int:
        """Of fillers and of what is random in a pass."""
        return self.options.seed

    def _lower(self, share: Net | None, before: Net | None) -> None:
        from engine.host import _core

        self.program = _core.Program(self.has_backward, self.options.keep_all)
        shared = {}
        if share is not None:
            divided = self.options.parts
            here = [p for p in share.all_params() if p.parts == 1 or p.layer in divided]
            shared = {(p.layer, p.index): share.tensor_of[p.owner or p] for p in here}
            for parameter in self.all_params():  # whose owner may be a layer that `share` does not have
                if parameter.owner and (known := shared.get((parameter.layer, parameter.index))) is not None:
                    shared.setdefault((parameter.owner.layer, parameter.owner.index), known)
            if before is not None:
                for p in before.all_params():  # what `share` does not have stays
                    shared.setdefault((p.layer, p.index), before.tensor_of[p.owner or p])
            self._check_shared(shared, share)
        summed = {parameter.owner for parameter in self.all_params() if parameter.owner}
        for layer in self.graph.layers:
            summed.update(parameter.owner or parameter for parameter in layer.summed_params())
        if self.options.accumulate:
            summed.update(self.graph.params)
        self.builder = Builder(
            self.program,
            shared,
            summed,
            self.options.plain_parameters,
            self.options.kernels,
            self.has_backward and before is not share,
        )
        for layer in self.graph.layers:
            with layer.arithmetic():
                (layer.lower_misfit if layer.misfit else layer.lower)(self.builder)
        self.tensors = self.builder.tensors
        self.tensor_of: dict[Parameter, Tensor] = self.builder.params
        for tensor in self.tensor_of.values():
            tensor.decide_plain()
        self.inputs = list(self.builder.inputs)
        self.self_fed = [layer for layer in self.graph.layers if type(layer).feed is not Layer.feed]
        self.runs_python = any(layer.type == "Python" or layer.misfit for layer in self.graph.layers)
        self.sinks = [layer for layer in self.graph.layers if layer.is_sink]

    def _learned(self) -> int:
        """Bytes of the parameters of its own that learn."""
        return sum(self.tensor_of[parameter].nbytes for parameter in self._own if parameter.learnable)

    def _check_shared(self, shared: Mapping[tuple[str, int], Tensor], share: Net) -> None:
        """Raises ConfigError where a parameter has another shape in the net that has its values."""
        for parameter in {each.owner or each: None for each in self.all_params()}:
            known = shared.get((parameter.layer, parameter.index))
            if known is None or tuple(known.shape) == tuple(parameter.shape):
                continue
            if parameter.permissive and math.prod(known.shape) == parameter.count:
                continue
            here, there = shape_text(parameter.shape), shape_text(known.shape)
            phase = PHASE_NAMES[self.phase]
            other = "the train net" if share.phase == proto.TRAIN else "the net whose weights this one shares"
            raise ConfigError(
                f"layer '{parameter.layer}', parameter {parameter.index}: in phase {phase} it would be {here}, but it "
                f"is {there} in {other}: give both nets data of one shape",
                parameter.where,
            )

    def _place(self, besides: Mapping[str, int]) -> None:
        """besides: as in NetOptions."""
        watched = [layer for layer in self.graph.layers if layer.name in self.options.watched_layers]
        read_by_others = {*self.graph.outputs, *(blob for layer in [*self.sinks, *watched] for blob in layer.bottoms)}
        if self.has_backward:
            read_by_others |= ends_of(self.graph)  # whose gradients are 0 unless Python sets them
        for blob, tensor in self.tensors.items():
            if self.options.keep_all or blob in read_by_others:
                self.program.own(tensor)
        for layer in self.graph.layers:
            for tensor in layer.persistent:
                self.program.own(tensor)
        self._own_losses()
        self.repeats, lifetimes = choose(self.program, self.options.memory_budget)
        for each in self.repeats:
            self.program.repeat(each.op, each.step)
        shared, require = "memory_plan" in self.options.passes, partial(self._require, besides)
        memory_plan.place(self.program, lifetimes, shared, require)

    def _require(self, besides: Mapping[str, int], planned: int) -> None:
        """Raises EngineError where there is less memory than the plan, the parameters and what is `besides`, which
        follow, will take."""
        own = [self.tensor_of[parameter] for parameter in self._own]
        weights = sum(tensor.nbytes for tensor in own)
        gradients = sum(tensor.diff.nbytes for tensor in own if tensor.diff is not None)
        most = max(self.written, key=lambda layer: self._bytes_of(layer) + besides.get(layer.name, 0), default=None)
        what, where = (f", above all its layer '{most.name}',", most.where) if most else ("", None)
        needed = planned + weights + gradients + sum(besides.values())
        require_memory(needed, f"net '{self.name}'{what}", SMALLER_BATCH, where)

    def _bytes_of(self, layer: Layer) -> int:
        """About what its tops, its parameters and their gradients take."""
        tops = [top for top in layer.tops if top.name not in layer.message.bottom and top not in self.inputs]
        count = sum(math.prod(top.shape) for top in tops) + sum(parameter.count for parameter in layer.params)
        return (8 if self.has_backward else 4) * count

    def _own_losses(self) -> None:
        """Keeps losses readable for the solver, even where another layer reads them, too. The gradient of such a top is
        its loss_weight, or what Python sets; losses whose gradient nobody sets take theirs from an attribute."""
        for _, top, weight in self._weighted_tops():
            self.program.own(self.tensors[top])
            if top.gradient_is_set:  # else its reader writes there, or adds to what others share
                self.tensors[top].diff.set(np.full(top.shape, weight, np.float32))

    def _place_parameters(self) -> None:
        """Weights and gradients in two arenas with the same offsets, in the order in which backward finishes gradients;
        then fills them."""
        from engine.host import _core

        first_use = self.first_uses()
        mine = self._own
        learnable = sorted((p for p in mine if p.learnable), key=lambda p: (-first_use[p], -p.index))
        self.parameters: list[Placed] = []
        offset = 0
        for parameter in learnable:
            tensor = self.tensor_of[parameter]
            count = tensor.nbytes // 4
            self.parameters.append(Placed(parameter, tensor, offset, count))
            offset += math.ceil(count / 16) * 16
        self.weights, self.gradients = _core.Arena(4 * offset), _core.Arena(4 * offset)
        self.arena_size = offset
        for placed in self.parameters:
            placed.tensor.place(self.weights, 4 * placed.offset)
            if placed.tensor.diff is not None:
                placed.tensor.diff.place(self.gradients, 4 * placed.offset)
        fixed = [p for p in mine if not p.learnable]
        offsets = np.cumsum([0] + [math.ceil(self.tensor_of[p].nbytes / 64) * 64 for p in fixed])
        self.fixed = _core.Arena(int(offsets[-1]))
        self._statistics: list[tuple[int, int]] = []
        for parameter, at in zip(fixed, offsets, strict=False):
            self.tensor_of[parameter].place(self.fixed, int(at))
            if parameter.statistics:
                self._statistics.append((int(at) // 4, parameter.count))
        for tensor in self.builder.lent:
            tensor.diff.place(_core.Arena(tensor.diff.nbytes), 0)
        for parameter in mine:  # counted from the seed: the same on every rank
            self.tensor_of[parameter].set(fill_parameter(parameter, self.seed))

    def _take_place_of(self, before: Net) -> None:
        """Takes over parameters and arenas: whoever trains that net continues with this one."""
        self.parameters, self.arena_size, self._statistics = before.parameters, before.arena_size, before._statistics
        self.weights, self.gradients, self.fixed = before.weights, before.gradients, before.fixed

    def first_uses(self) -> dict[Parameter, int]:
        """The first op that reads each parameter: the last one whose backward writes its gradient."""
        uses: dict[Parameter, int] = {}
        for index, owners in enumerate(self.builder.op_params):
            for owner in owners:
                uses.setdefault(owner, index)
        return uses

    # What the solver needs to know about parameters

    def own_params(self) -> list[Parameter]:
        """Those of graph.params whose values this net has itself, in the file's order: all, unless it shares some."""
        return [parameter for parameter in self.graph.params if parameter not in self.builder.taken]

    def fingerprint(self, layouts_only: bool = False) -> str:
        """What must be the same on every rank so that gradients can be added element by element."""
        from engine.host import _core

        layouts = " ".join(f"{p.name}{p.parameter.shape}:{p.tensor.layout}@{p.offset}" for p in self.parameters)
        return layouts if layouts_only else f"oneDNN {_core.onednn_version()} {_core.onednn_isa()} {layouts}"

    def set_board(self, board: Board, number: int, sources: Sequence[str], buckets: Sequence[str] = ()) -> None:
        """Where the executor says what it is doing. number: as for Board.net(); the rest: as for describe_net()."""
        self.program.set_board(np.frombuffer(board.numbers, np.int64))
        board.describe_net(number, [layer.name for layer in self.builder.layer_of_op], sources, buckets)

    @property
    def synchronised(self) -> bool:
        """Whether some op adds up over the ranks what it computes (program.set_ranks)."""
        return any(isinstance(layer, BatchNorm) and layer.sync for layer in self.graph.layers)

    def statistics(self) -> list[np.ndarray]:
        """BatchNorm's running sums, as writable views of where the executor keeps them."""
        flat = np.asarray(self.fixed, np.float32)
        return [flat[at : at + count] for at, count in self._statistics]

    # Blobs and parameters by name

    @property
    def blobs(self) -> dict[str, BlobView]:
        return {blob.name: BlobView(self, blob) for blob in self.tensors}

    @property
    def params(self) -> dict[str, list[Tensor]]:
        """Tensors by layer name, as pycaffe's `net.params`; shared parameters appear under every layer that has
        them."""
        by_layer = self.params_by_layer().items()
        return {layer: [self.tensor_of[each.owner or each] for each in params] for layer, params in by_layer}

    def all_params(self) -> list[Parameter]:
        """Every parameter of every layer in the file's order, fused layers under their own names."""
        return self.graph.all_params

    def params_by_layer(self) -> dict[str, list[Parameter]]:
        """The same, by the name of the layer."""
        result: dict[str, list[Parameter]] = {}
        for parameter in self.all_params():
            result.setdefault(parameter.layer, []).append(parameter)
        return result

    def owning_layers(self) -> list[str]:
        """The names of the layers that have a parameter of their own, in the file's order."""
        return list(dict.fromkeys(parameter.layer for parameter in self.all_params() if parameter.owner is None))

    def weights_by_layer(
        self, wholes: Mapping[Parameter, np.ndarray] = MappingProxyType({})
    ) -> dict[str, list[np.ndarray]]:
        """Row-major copies in Caffe's shapes, for files: a list of arrays for each layer. wholes: the whole arrays of
        the parameters of which this net holds a part, or a rounded copy."""

        def values_of(parameter: Parameter) -> np.ndarray:
            owner = parameter.owner or parameter
            if owner in wholes:
                return wholes[owner].reshape(parameter.whole_shape)
            return self.tensor_of[owner].get().reshape(parameter.shape)

        return {layer: list(map(values_of, params)) for layer, params in self.params_by_layer().items()}

    def load_weights(self, blobs: Mapping[str, Sequence[np.ndarray | None]], source: str) -> list[str]:
        """Takes values by layer name. source: the file, for messages. Returns the names of the layers whose own
        parameters `blobs` lacks. Raises WeightsError, which names layer, blob index and both shapes, where shapes
        differ, and where `blobs` has some of a layer's parameters only (see with_gaps())."""
        blobs = intel.separated([layer.message for layer in self.written], blobs, source)
        fitted = []
        for layer, params in self.params_by_layer().items():
            if layer not in blobs:
                continue
            given = with_gaps(layer, blobs[layer], [parameter.owner is not None for parameter in params], source)
            for parameter, values in zip(params, given, strict=True):
                if values is None or (parameter.unread and values.size != parameter.count):
                    continue
                if not _fits(values.shape, parameter.whole_shape):
                    raise WeightsError(
                        f"layer '{layer}', blob {parameter.index}: the file has {shape_text(values.shape)}, the net "
                        f"{shape_text(parameter.whole_shape)}; give the layer another name to start it afresh",
                        source,
                    )
                fitted.append((parameter, values))
        for parameter, values in fitted:  # only once everything fits
            values = parameter.part_of(values.reshape(parameter.whole_shape))
            self.tensor_of[parameter.owner or parameter].set(np.ascontiguousarray(values, np.float32).ravel())
        return self.lacking(blobs, source)

    def lacking(self, blobs: Mapping[str, Sequence[np.ndarray | None]], source: str) -> list[str]:
        """Returns the names of the layers whose own parameters load_weights() would not find. Raises WeightsError, see
        intel.separated()."""
        blobs = intel.separated([layer.message for layer in self.written], blobs, source)
        return [layer for layer in self.owning_layers() if layer not in blobs]

    # Running

    def feed(self, blob: Blob, values: np.ndarray) -> None:
        """Points an input at `values` (row-major float32 of the blob's shape); the array is read in place, not
        copied."""
        values = np.ascontiguousarray(values, np.float32)
        self.tensors[blob].attach(values)
        self.fed[blob] = values

    def forward(self, counters: Counters = FIRST) -> dict[str, np.ndarray]:
        """Runs all layers; returns the outputs (blobs that nobody reads) by name."""
        self.run_forward(counters)
        return self.outputs()

    def evaluate(self, counters: Counters = FIRST) -> dict[str, np.ndarray]:
        """forward() that leaves the weights as they were: layers that scale theirs do so for this pass alone. Another
        net may train them, and each rank tests as many batches as are its own."""
        scaled = [layer.params[0] for layer in self.graph.layers if layer.rescales_weights and layer.params]
        tensors = [self.tensor_of[parameter.owner or parameter] for parameter in scaled]
        before = [tensor.get() for tensor in tensors]
        try:
            return self.forward(counters)
        finally:
            for tensor, values in zip(tensors, before, strict=True):
                tensor.set(values)

    def run_forward(self, counters: Counters = FIRST, layers: slice = ALL) -> None:
        """forward() without looking at the outputs, of a slice of graph.layers. Raises DataError for input that an op
        cannot take."""
        iteration, first_sample, batch = counters
        step = iteration if batch is None else batch
        for layer in self.self_fed:
            if layers == ALL or layer in self.graph.layers[layers]:
                for blob, values in layer.feed(step, self.seed, first_sample).items():
                    self.feed(blob, values)
        self.program.set_counter(self.seed, iteration, first_sample, self._batch_size)
        statistics = [np.array(values) for values in self.statistics()] if self.runs_python else []
        try:
            self.program.forward(*self.ops_of(layers))
        except EngineError:  # of a misfit, or a layer written in Python: the net is, perhaps, to run in other shapes
            for values, before in zip(self.statistics(), statistics, strict=False):
                values[...] = before
            raise
        except RuntimeError as error:  # what an op found in its input
            raise self._input_error(str(error)) from None
        self.runs += 1
        if self.on_forward:
            self.on_forward(self)

    def _input_error(self, message: str) -> DataError:
        """Of what an op says of its input: with what a label out of range asks for, and whose label it is."""
        found = re.search(r"^layer '(.*)': label (.+) at position (\d+) is outside \[0, (\d+)\)$", message)
        if not found:
            return DataError(message)
        name, label, position, outputs = found.groups()
        if label.isdecimal():
            message += f"; the label needs at least {int(label) + 1} outputs, there are {outputs}"
        loss = next((layer for layer in self.graph.layers if layer.name == name), None)
        error = DataError(message, loss.where if loss is not None else None)
        labels = loss.bottoms[1] if loss is not None and len(loss.bottoms) > 1 else None
        makers = {top: layer for layer in self.graph.layers for top in layer.tops}
        while labels in makers and makers[labels].type == "Split":
            labels = makers[labels].bottoms[0]
        if labels in self.fed:  # of a data layer, whose first axis counts its items
            error.item = (makers[labels].name, int(position) // math.prod(labels.shape[1:]))
        return error

    def outputs(self) -> dict[str, np.ndarray]:
        return {
            blob.name: self.tensors[blob].get().reshape(blob.shape)
            for blob in self.graph.outputs
            if blob in self.tensors
        }

    def ops_of(self, layers: slice) -> tuple[int, ...]:
        """The first and one past the last op of a slice of graph.layers; () stands for all."""
        if layers == ALL:
            return ()
        chosen = set(self.graph.layers[layers])
        ops = [op for op, layer in enumerate(self.builder.layer_of_op) if layer in chosen]
        return (ops[0], ops[-1] + 1) if ops else (0, 0)

    def backward(self) -> None:
        self.program.zero_gradients()
        self.program.backward()

    def losses(self) -> list[tuple[Layer, str, float]]:
        """(layer, top, weight) of everything that counts as loss, in order."""
        return [(layer, top.name, weight) for layer, top, weight in self._weighted_tops()]

    def loss_tensors(self) -> list[tuple[Tensor, float]]:
        """(values, weight) of the same. A blob of the top's name may be what a later layer made of it in place."""
        return [(self.tensors[top], weight) for _, top, weight in self._weighted_tops()]

    def loss(self) -> float:
        """The weighted sum of losses(), in this rank's last forward."""
        return float(sum(weight * tensor.get().sum() for tensor, weight in self.loss_tensors()))

    def _weighted_tops(self) -> list[tuple[Layer, Blob, float]]:
        return [
            (layer, top, weight)
            for layer in self.graph.layers
            for top, weight in zip(layer.tops, layer.loss_weights, strict=False)
            if weight
        ]


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Files from before 2015 hold four axes for everything, C3D's five: leading ones do not count there. A vector is
    one however many ones stand around it."""

    def squeezed(shape):
        shape = tuple(shape)
        while shape and shape[0] == 1:
            shape = shape[1:]
        return shape

    def vector(shape):
        return [size for size in shape if size != 1]

    if tuple(given) == tuple(wanted) or (len(given) in (4, 5) and squeezed(given) == squeezed(wanted)):
        return True
    return len(vector(wanted)) <= 1 and vector(given) == vector(wanted)
