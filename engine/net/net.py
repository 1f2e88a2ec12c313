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
    """The numbers from which a forward pass counts its random numbers, so that a sample gets the same ones on any rank,
    at any iter_size.

    first_sample: the number of this rank's first sample among those of all ranks. batch: the number of this pass among
    all passes of this rank, micro-batches included; layers that make up their own input (DummyData) count by it. None:
    the iteration.
    """

    iteration: int = 0
    first_sample: int = 0
    batch: int | None = None


FIRST = Counters()


class Net:
    """One phase of a net, ready to run, with the level and stages of its config's `state`.

    Args:
        share: a net whose weights this one reads: for a test net, its train net. Layers of which that net has parts are
            whole here, with weights of their own.
        before: the same net in other shapes, which this one replaces.
        strict: whether a layer that does not fit its bottoms' shapes is an error. Else it becomes a misfit, which
            raises its error when it runs.

    Attributes:
        repeats: the ops that are computed twice to meet the memory budget.
        parameters: what learns, in the order in which backward completes gradients.
        on_forward: if set, called after every forward.
        runs: forward passes so far, those of a slice of layers too.

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
        self.written, self.named = list(graph.layers), graph.blobs()  # those of the file, before passes rewrite it
        self.graph = prepare(graph, options.passes, options.precision, self.has_backward)
        self._batch_size = self.graph.batch_size
        self.name = self.graph.name
        self.fed: dict[Blob, np.ndarray] = {}  # the arrays that inputs are read from
        self.runs = 0
        self._lower(share, before)
        self._own = [parameter for parameter in self.tensor_of if parameter not in self.builder.taken]
        self._place(options.besides(self._learned()) if before is None else {})
        self._place_parameters()
        self.on_forward: Callable[[Net], None] | None = None
        for blob in self.inputs:
            self.feed(blob, np.zeros(blob.shape, np.float32))
        if before is not None:
            self.program.succeed(before.program)
            if before is share:
                self._take_place_of(before)

    @property
    def seed(self) -> int:
        """The seed of fillers and of random numbers in a pass."""
        return self.options.seed

    def _lower(self, share: Net | None, before: Net | None) -> None:
        """Lowers the graph to a program."""
        from engine.host import _core

        self.program = _core.Program(self.has_backward, self.options.keep_all)
        shared = self._shared_tensors(share, before) if share is not None else {}
        # The parameters whose gradient is a sum, to which each backward of a reader adds.
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

    def _shared_tensors(self, share: Net, before: Net | None) -> dict[tuple[str, int], Tensor]:
        """Returns the tensors of other nets that hold parameters of this one, by layer and index. Raises ConfigError if
        shapes differ."""
        divided = self.options.parts
        here = [p for p in share.all_params() if p.parts == 1 or p.layer in divided]
        shared = {(p.layer, p.index): share.tensor_of[p.owner or p] for p in here}
        for parameter in self.all_params():  # its owner may be a layer that `share` does not have
            if parameter.owner and (known := shared.get((parameter.layer, parameter.index))) is not None:
                shared.setdefault((parameter.owner.layer, parameter.owner.index), known)
        if before is not None:
            for p in before.all_params():  # parameters that `share` does not have stay
                shared.setdefault((p.layer, p.index), before.tensor_of[p.owner or p])
        self._check_shared(shared, share)
        return shared

    def _learned(self) -> int:
        """Returns the bytes of this net's own parameters that learn."""
        return sum(self.tensor_of[parameter].nbytes for parameter in self._own if parameter.learnable)

    def _check_shared(self, shared: Mapping[tuple[str, int], Tensor], share: Net) -> None:
        """Raises ConfigError if a parameter has another shape in the net that holds its values."""
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
        """Plans and takes the memory of blobs, gradients and masks. besides: as NetOptions.besides returns it."""
        watched = [layer for layer in self.graph.layers if layer.name in self.options.watched_layers]
        read_by_others = {*self.graph.outputs, *(blob for layer in [*self.sinks, *watched] for blob in layer.bottoms)}
        if self.has_backward:
            read_by_others |= ends_of(self.graph)  # their gradients stay 0 unless Python sets them
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
        """Raises EngineError if there is too little memory for the plan (`planned` bytes), the parameters, and
        `besides`, which are allocated later."""
        own = [self.tensor_of[parameter] for parameter in self._own]
        weights = sum(tensor.nbytes for tensor in own)
        gradients = sum(tensor.diff.nbytes for tensor in own if tensor.diff is not None)
        most = max(self.written, key=lambda layer: self._bytes_of(layer) + besides.get(layer.name, 0), default=None)
        what, where = (f", above all its layer '{most.name}',", most.where) if most else ("", None)
        needed = planned + weights + gradients + sum(besides.values())
        require_memory(needed, f"net '{self.name}'{what}", SMALLER_BATCH, where)

    def _bytes_of(self, layer: Layer) -> int:
        """Returns about how many bytes a layer's tops, parameters and their gradients take."""
        tops = [top for top in layer.tops if top.name not in layer.message.bottom and top not in self.inputs]
        count = sum(math.prod(top.shape) for top in tops) + sum(parameter.count for parameter in layer.params)
        return (8 if self.has_backward else 4) * count

    def _own_losses(self) -> None:
        """Keeps losses readable for the solver, even if another layer reads them, too. Sets the gradient of those that
        have one to loss_weight; the ops of the other losses take that from an attribute."""
        for _, top, weight in self._weighted_tops():
            self.program.own(self.tensors[top])
            if top.gradient_is_set:  # else a reader of the top writes its gradient
                self.tensors[top].diff.set(np.full(top.shape, weight, np.float32))

    def _place_parameters(self) -> None:
        """Places and fills the parameters: weights and gradients of those that learn in two arenas with the same
        offsets, in the order in which backward completes gradients; all others in a third arena."""
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
        for parameter in mine:  # random values are counted from the seed: the same on every rank
            self.tensor_of[parameter].set(fill_parameter(parameter, self.seed))

    def _take_place_of(self, before: Net) -> None:
        """Takes over the parameters and arenas of `before`: whoever trains that net continues with this one."""
        self.parameters, self.arena_size, self._statistics = before.parameters, before.arena_size, before._statistics
        self.weights, self.gradients, self.fixed = before.weights, before.gradients, before.fixed

    def first_uses(self) -> dict[Parameter, int]:
        """Returns the first op that reads each parameter: in backward, it is the last that writes its gradient."""
        uses: dict[Parameter, int] = {}
        for index, owners in enumerate(self.builder.op_params):
            for owner in owners:
                uses.setdefault(owner, index)
        return uses

    # What the solver needs to know about parameters

    def own_params(self) -> list[Parameter]:
        """Returns the parameters whose values this net has itself, in the file's order: all, unless it shares some."""
        return [parameter for parameter in self.graph.params if parameter not in self.builder.taken]

    def fingerprint(self, layouts_only: bool = False) -> str:
        """Returns what must be the same on every rank so that gradients can be added element by element: layouts and,
        unless layouts_only, oneDNN's version and instruction set."""
        from engine.host import _core

        layouts = " ".join(f"{p.name}{p.parameter.shape}:{p.tensor.layout}@{p.offset}" for p in self.parameters)
        return layouts if layouts_only else f"oneDNN {_core.onednn_version()} {_core.onednn_isa()} {layouts}"

    def set_board(self, board: Board, number: int, sources: Sequence[str], buckets: Sequence[str] = ()) -> None:
        """Makes the program write to the board what it is doing. number: as for Board.net(); the rest: as for
        Board.describe_net()."""
        self.program.set_board(np.frombuffer(board.numbers, np.int64))
        board.describe_net(number, [layer.name for layer in self.builder.layer_of_op], sources, buckets)

    @property
    def synchronised(self) -> bool:
        """Whether an op sums over the ranks what it computes (program.set_ranks)."""
        return any(isinstance(layer, BatchNorm) and layer.sync for layer in self.graph.layers)

    def statistics(self) -> list[np.ndarray]:
        """Returns BatchNorm's running sums, as writable views of the program's own."""
        flat = np.asarray(self.fixed, np.float32)
        return [flat[at : at + count] for at, count in self._statistics]

    # Blobs and parameters by name

    @property
    def blobs(self) -> dict[str, BlobView]:
        return {blob.name: BlobView(self, blob) for blob in self.tensors}

    @property
    def params(self) -> dict[str, list[Tensor]]:
        """The tensors by layer name, as pycaffe's `net.params`. A shared parameter appears under every layer that has
        it."""
        by_layer = self.params_by_layer().items()
        return {layer: [self.tensor_of[each.owner or each] for each in params] for layer, params in by_layer}

    def all_params(self) -> list[Parameter]:
        """Returns every parameter of every layer, in the file's order; those of fused layers under their own names."""
        return self.graph.all_params

    def params_by_layer(self) -> dict[str, list[Parameter]]:
        """Returns the same by the name of the layer."""
        result: dict[str, list[Parameter]] = {}
        for parameter in self.all_params():
            result.setdefault(parameter.layer, []).append(parameter)
        return result

    def owning_layers(self) -> list[str]:
        """Returns the names of the layers that have a parameter of their own, in the file's order."""
        return list(dict.fromkeys(parameter.layer for parameter in self.all_params() if parameter.owner is None))

    def weights_by_layer(
        self, wholes: Mapping[Parameter, np.ndarray] = MappingProxyType({})
    ) -> dict[str, list[np.ndarray]]:
        """Returns row-major copies in Caffe's shapes, for files: a list of arrays for each layer.

        wholes: the whole arrays of the parameters of which this net holds a part, or a rounded copy."""

        def values_of(parameter: Parameter) -> np.ndarray:
            owner = parameter.owner or parameter
            if owner in wholes:
                return wholes[owner].reshape(parameter.whole_shape)
            return self.tensor_of[owner].get().reshape(parameter.shape)

        return {layer: list(map(values_of, params)) for layer, params in self.params_by_layer().items()}

    def load_weights(self, blobs: Mapping[str, Sequence[np.ndarray | None]], source: str) -> list[str]:
        """Takes values by layer name. source: the file, for messages.

        Returns the names of the layers whose own parameters `blobs` lacks. Raises WeightsError if shapes differ, which
        names layer, blob index and both shapes, and if `blobs` has only some of a layer's parameters (see
        with_gaps()). Nothing is taken over then."""
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
        """Returns the names of the layers whose own parameters load_weights() would not find. Raises WeightsError as
        intel.separated() does."""
        blobs = intel.separated([layer.message for layer in self.written], blobs, source)
        return [layer for layer in self.owning_layers() if layer not in blobs]

    # Running

    def feed(self, blob: Blob, values: np.ndarray) -> None:
        """Makes the next forward read an input from `values`, row-major float32 of the blob's shape. The array is read
        in place, not copied."""
        values = np.ascontiguousarray(values, np.float32)
        self.tensors[blob].attach(values)
        self.fed[blob] = values

    def forward(self, counters: Counters = FIRST) -> dict[str, np.ndarray]:
        """Runs all layers. Returns the outputs, the blobs that no layer reads, by name."""
        self.run_forward(counters)
        return self.outputs()

    def evaluate(self, counters: Counters = FIRST) -> dict[str, np.ndarray]:
        """Runs forward(), and restores the weights of layers that rescale them in it. For tests: another net may train
        these weights, and ranks, which test different numbers of batches, must not come to differ in them."""
        scaled = [layer.params[0] for layer in self.graph.layers if layer.rescales_weights and layer.params]
        tensors = [self.tensor_of[parameter.owner or parameter] for parameter in scaled]
        before = [tensor.get() for tensor in tensors]
        try:
            return self.forward(counters)
        finally:
            for tensor, values in zip(tensors, before, strict=True):
                tensor.set(values)

    def run_forward(self, counters: Counters = FIRST, layers: slice = ALL) -> None:
        """Runs the layers of a slice of graph.layers, without reading the outputs. Raises DataError for input that an
        op cannot take."""
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
        except EngineError:  # a misfit, or a layer in Python: the caller may run the pass again in other shapes
            for values, before in zip(self.statistics(), statistics, strict=False):
                values[...] = before
            raise
        except RuntimeError as error:  # an op has found an error in its input
            raise self._input_error(str(error)) from None
        self.runs += 1
        if self.on_forward:
            self.on_forward(self)

    def _input_error(self, message: str) -> DataError:
        """Returns the error for an op's message about its input. For a label out of range it adds how many outputs the
        label needs, and which item of which data layer has it."""
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
        if labels in self.fed:  # a data layer's top, whose first axis counts items
            error.item = (makers[labels].name, int(position) // math.prod(labels.shape[1:]))
        return error

    def outputs(self) -> dict[str, np.ndarray]:
        """Returns copies of the outputs, the blobs that no layer reads, by name."""
        return {
            blob.name: self.tensors[blob].get().reshape(blob.shape)
            for blob in self.graph.outputs
            if blob in self.tensors
        }

    def ops_of(self, layers: slice) -> tuple[int, ...]:
        """Returns the first op, and one past the last, of a slice of graph.layers; () for all ops."""
        if layers == ALL:
            return ()
        chosen = set(self.graph.layers[layers])
        ops = [op for op, layer in enumerate(self.builder.layer_of_op) if layer in chosen]
        return (ops[0], ops[-1] + 1) if ops else (0, 0)

    def backward(self) -> None:
        """Runs backward with all gradients at 0 before."""
        self.program.zero_gradients()
        self.program.backward()

    def losses(self) -> list[tuple[Layer, str, float]]:
        """Returns (layer, name of the top, weight) of everything that counts as loss, in the order of the layers."""
        return [(layer, top.name, weight) for layer, top, weight in self._weighted_tops()]

    def loss_tensors(self) -> list[tuple[Tensor, float]]:
        """Returns (tensor, weight) of the same. self.blobs would not do: a later layer that works in place makes
        another blob of the top's name."""
        return [(self.tensors[top], weight) for _, top, weight in self._weighted_tops()]

    def loss(self) -> float:
        """Returns the weighted sum of losses(), of this rank's last forward."""
        return float(sum(weight * tensor.get().sum() for tensor, weight in self.loss_tensors()))

    def _weighted_tops(self) -> list[tuple[Layer, Blob, float]]:
        return [
            (layer, top, weight)
            for layer in self.graph.layers
            for top, weight in zip(layer.tops, layer.loss_weights, strict=False)
            if weight
        ]


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Tells whether a file's array fits a parameter's shape.

    Files from before 2015 have four axes for everything, C3D's five: there leading axes of size 1 do not count. A
    vector fits a vector, whatever axes of size 1 either has."""

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
