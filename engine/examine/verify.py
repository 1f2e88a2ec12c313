"""`engine verify`: trains on 1 rank and on all ranks side by side, and compares every gradient and every weight.

"One" is rank 0 by itself, "many" are all ranks. Both see the same samples: the one takes the batches of all ranks one
after the other and adds up their gradients. It takes them as one large batch with synchronised BatchNorm and in
adversarial training, which need all samples at once, and with recurrent layers, which go on from batch to batch. After
each update rank 0 compares the two, parameter by parameter, in the order in which backward computes them; then the one
takes the weights of the many, so that both compute on the same bits. If weights differed by rounding, a ReLU at zero or
two equal pixels of a maximum would make gradients differ by far more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np

from engine import proto
from engine.comm.world import World
from engine.config import SolverConfig, net_of_solver, nets_of_solver
from engine.data.feeder import Feeder
from engine.data.prefetch import Batch
from engine.errors import CommError, ConfigError, shape_text
from engine.report.table import table
from engine.solver.adversarial import AdversarialSolver
from engine.solver.global_batch import scale_batch, set_iter_size
from engine.solver.modes import require_sync
from engine.solver.solver import Solver
from engine.solver.validate import leave_tests_out

if TYPE_CHECKING:
    from engine.layers.base import Parameter
    from engine.layers.batch_norm import BatchNorm
    from engine.net import Counters, Net, Placed
    from engine.solver.optimizer import Optimizer

Whole = Mapping["Parameter", np.ndarray]  # of the layers that ranks hold in parts, put together
Values = dict[str, np.ndarray]  # of parameters, by name
# Largest difference of two float32 runs, and of runs that round to bfloat16 on the way, in units of a parameter's
# largest element. Additions in another order make about 1e-6 of it (bfloat16: 1e-2), more where many numbers cancel.
TOLERANCE, TOLERANCE_BF16 = 1e-4, 0.2
# The least scale of a difference, as a fraction of the net's largest element: gradients that are zero but for rounding,
# as of a bias before BatchNorm, have no digits to compare, only 1e-7 to 1e-6 of the terms that they are a sum of.
FLOOR = 1e-2
# Rules that divide by the size of the gradient: if that is zero but for rounding, the step may have any size and sign.
ADAPTIVE = ("AdaGrad", "RMSProp", "AdaDelta", "Adam")
DROPOUT = ("Dropout", "SpatialDropout")


@dataclass(frozen=True)
class LargestDifference:
    """The largest difference of some parameters."""

    size: float = 0.0  # in units of the parameter's largest element
    where: str = ""  # the parameter, as "conv1[0]"

    def __str__(self) -> str:
        return f"{self.size:.1e} {self.where}".rstrip()


@dataclass(frozen=True)
class Row:
    """What one iteration gave."""

    iteration: int
    losses: tuple[float, float]  # of the one and of the many
    gradient: LargestDifference
    weight: LargestDifference


class KeepingFeeder(Feeder):
    """A Feeder that remembers which samples the micro-batches of an iteration had."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.batches: list[list[str]] = []  # keys of the samples; _taken() empties it

    def feed(self, net: Net, batch: Batch) -> int:
        self.batches.append(list(batch.keys))
        return super().feed(net, batch)


def verify(read: Callable[[], SolverConfig], world: World, iterations: int, tolerance: float = 0.0) -> None:
    """Collective. Compares `iterations` iterations of 1 rank and of the world's, and prints the table on rank 0.

    Raises CommError on rank 0, which names the iteration and the first parameter that differs by more; ConfigError if
    there are no data, or one rank alone cannot read them, or cannot compute what several do.

    Args:
        read: returns a new copy of the solver at each call.
        tolerance: the largest difference that is allowed; 0: TOLERANCE or TOLERANCE_BF16.
    """
    config = read()
    require_sync(config, "trains otherwise than one rank does: there is nothing to compare")
    many = _solver(config, world)
    if not many.feeder.batch_size:
        raise ConfigError("the train net has no data layer: there are no samples that ranks could share")
    _refuse_own_sources(many)
    one = None
    if world.rank == 0:
        alone = World()
        alone.board = world.board  # the watchdog sees rank 0 at work for two
        config, divided = read(), {placed.parameter.layer for placed in many.model_parallel.divided}
        _compute_directly(net_of_solver(config, proto.TRAIN).message, divided)
        together = many.net.synchronised or many.net.graph.recurrent
        at_once = bool(together) or config.message.HasField("adversarial")
        if at_once:
            _keep_apart(config, many)
        try:
            one = _solver(config, alone, world.size, at_once)
        except ConfigError as error:
            raise _misfit(error, world.size) if at_once else error from None
        if at_once:
            _refuse_other_rows(one, many)
    compare = OneAndMany(one, many, tolerance) if one else None
    try:
        for _ in range(iterations):
            _step(many)
            if one:
                _step(one)
            world.agree(lambda: 0).finish()  # the others wait for rank 0, asleep
            keys, losses = world.gather(_taken(many)), world.gather(many.state.recent_loss[-1])
            gradients = many.model_parallel.gather(lambda placed: _gradient(many.optimizer, placed))
            weights = many.model_parallel.weights()
            if compare and keys and losses:
                compare.iteration(keys, losses, gradients, weights)
    finally:
        if compare:
            print(compare.to_text())
    for solver in filter(None, (one, many)):
        solver.close()
    if compare:
        print(
            f"{world.size} ranks train as 1 does: all gradients and weights of {iterations} iterations are within "
            f"{compare.tolerance:g}."
        )


def _solver(config: SolverConfig, world: World, ranks: int = 1, at_once: bool = False) -> Solver:
    """Returns a solver that is ready for its first step, logs nothing and has no tests.

    Args:
        ranks: how many ranks' batches it takes.
        at_once: as one large batch; else as micro-batches.
    """
    param = config.message
    for field in ("display", "display_epoch"):
        param.ClearField(field)
    leave_tests_out(param)
    if at_once:
        scale_batch(config, ranks, 1)
    else:
        set_iter_size(param, ranks * max(1, param.iter_size))
    kind = _TellingSolver if param.HasField("adversarial") else Solver
    solver = kind(config, world, make_feeder=KeepingFeeder)
    for optimizer in solver.optimizers:
        optimizer.keep_gradients()
    if param.weights:
        solver.load_weights(list(param.weights))
    solver.replica.share()
    solver.feeder.start()
    return solver


def _step(solver: Solver) -> None:
    """Takes a step, and waits until it has updated all weights."""
    solver.step()
    for optimizer in solver.optimizers:
        optimizer.wait()


def _taken(solver: Solver) -> list[list[str]]:
    """Returns the keys of the samples since the last call, by micro-batch."""
    feeder = cast(KeepingFeeder, solver.feeder)
    batches, feeder.batches = feeder.batches, []
    return batches


def _refuse_own_sources(many: Solver) -> None:
    """Raises ConfigError if a source does not hold the items of all ranks."""
    readers = many.feeder.readers
    for layer in many.net.graph.layers:
        owners = readers[layer.name].owners if layer.name in readers else None
        if owners and len(owners) < many.world.size:
            raise layer.error(
                "each rank or host has a source of its own (%# or stage_part), of which one rank alone does not read "
                "the others': verify has nothing to compare"
            )


def _compute_directly(net: proto.NetParameter, layers: set[str]) -> None:
    """Makes these layers compute by the direct algorithm, as layers in parts do. By Winograd's, what should be zero is
    rounding, some of which the ReLU behind it passes."""
    for layer in net.layer:
        if layer.name in layers and layer.type == "Convolution":
            layer.convolution_param.conv_algorithm = "direct"


def _keep_apart(config: SolverConfig, many: Solver) -> None:
    """Makes BatchNorm of the one, which has the samples of all ranks in one batch, take its statistics over the samples
    of each rank, as the many do, unless the text says how."""
    nets, rows = nets_of_solver(config), {name: layer.shapes[0][0] for name, layer in _normalising(many).items()}
    for net in filter(None, (nets.train, nets.discriminator)):
        for layer in net.message.layer:
            param = layer.batch_norm_param
            if layer.type != "BatchNorm" or param.sync or net.message.bn_sync:
                continue
            if not (param.stats_batch_size or net.message.bn_stats_batch_size):
                param.stats_batch_size = rows.get(layer.name, 0)


def _misfit(error: ConfigError, ranks: int) -> ConfigError:
    """Returns an error for a net that builds with a rank's batch, but not with that of all ranks."""
    first = error.errors[0]
    return ConfigError(
        f"{first}. That is with the batch of all {ranks} ranks at once, which one rank takes beside recurrent layers, "
        "a BatchNorm of all ranks or an adversary: the net does not fit it, and verify has nothing to compare"
    )


def _refuse_other_rows(one: Solver, many: Solver) -> None:
    """Raises ConfigError for layers that compute something else with one large batch than with those of the ranks.

    These are BatchNorm and dropout whose first axis does not grow with the batch; recurrent layers whose number of
    sequences does not; and losses that are sums over the batch."""
    shapes = {layer.name: layer.shapes[0] for layer in many.net.graph.layers if layer.shapes}
    for layer in one.net.graph.layers:
        if layer.type in DROPOUT and layer.attributes()["ratio"] and layer.shapes[0][0] == shapes[layer.name][0]:
            raise layer.error(
                f"the first of the axes {shape_text(layer.shapes[0])} does not grow with the batch, so that one rank "
                "drops others than several do: verify the net with a dropout_ratio of 0"
            )
        if layer.sums_batch:
            raise layer.error(
                "its gradient is the sum over a batch, and so is larger with the batch of all ranks at once, which one "
                "rank takes beside recurrent layers, a BatchNorm of all ranks or an adversary: verify has nothing to "
                "compare"
            )
    for layer in one.net.graph.recurrent:
        if layer.shapes[0][1] == shapes[layer.name][1]:
            raise layer.error(
                f"{shape_text(layer.shapes[0])}: the number of sequences does not grow with the batch, so that ranks "
                "go on with others than one rank does: verify has nothing to compare"
            )
    theirs = _normalising(many)
    for name, layer in _normalising(one).items():
        if layer.remembers and not layer.sync and layer.shapes[0][0] == theirs[name].shapes[0][0]:
            raise layer.error(
                f"the first of the axes {shape_text(layer.shapes[0])} does not grow with the batch, so that one rank "
                "cannot take statistics as several do: verify has nothing to compare"
            )


def _normalising(solver: Solver) -> dict[str, BatchNorm]:
    """Returns the BatchNorm layers of all nets that a solver trains, by name."""
    layers = [layer for optimizer in solver.optimizers for layer in optimizer.net.graph.layers]
    return {layer.name: cast("BatchNorm", layer) for layer in layers if layer.type == "BatchNorm"}


class _TellingSolver(AdversarialSolver):
    """An AdversarialSolver that calls `taught` after each update of the discriminator; a step may have several."""

    taught: Callable[[], None] | None = None

    def _teach(self, counters: Counters) -> None:
        super()._teach(counters)
        if self.taught:
            self.opponent.wait()
            self.taught()


class Compared:
    """Compares what one optimizer's net learns on one rank and on many. After each update of the many call keep(),
    then, after the same update of the one, compare(), which adds the differences of gradients and weights to
    `found`."""

    def __init__(self, one: Optimizer, many: Optimizer, tolerance: float):
        self._one, self._many, self._tolerance = one, many, tolerance
        self._mine = {placed.name: placed for placed in one.net.parameters}
        self._before = {name: placed.tensor.get() for name, placed in self._mine.items()}
        # False for weights that are not compared any more; see _leave_out().
        self._steady = {name: np.ones(values.shape, bool) for name, values in self._before.items()}
        self._kept: deque[tuple[Values, Values]] = deque()
        self.found: list[tuple[list[LargestDifference], list[LargestDifference]]] = []

    def keep(self, gradients: Whole = MappingProxyType({}), weights: Whole = MappingProxyType({})) -> None:
        """Keeps the gradients and weights of the many after an update. gradients, weights: of layers in parts."""
        self._kept.append(
            (
                self._of_many(gradients, lambda placed: _gradient(self._many, placed)),
                self._of_many(weights, lambda placed: placed.tensor.get()),
            )
        )

    def _of_many(self, whole: Whole, own: Callable[[Placed], np.ndarray]) -> Values:
        """Returns the values of all parameters, in backward's order: from `whole` where it has them, else from
        own()."""
        found = {}
        for placed in self._many.net.parameters:
            values = whole.get(placed.parameter)
            found[placed.name] = own(placed) if values is None else values.reshape(self._before[placed.name].shape)
        return found

    def compare(self) -> None:
        """Compares the one, after an update, with what keep() has kept of the many; gives the one the weights of the
        many."""
        gradients, weights = self._kept.popleft()
        one = {name: _gradient(self._one, self._mine[name]) for name in gradients}  # before clipping and decay
        floor = FLOOR * _most(one)
        found = [_difference(name, one[name], many, floor) for name, many in gradients.items()]
        if self._one.param.type in ADAPTIVE:
            self._leave_out(one, floor)
        one = {name: self._mine[name].tensor.get() for name in weights}
        floor = FLOOR * _most(one)
        steady = {name: np.where(self._steady[name], many, one[name]) for name, many in weights.items()}
        self.found.append((found, [_difference(name, one[name], many, floor) for name, many in steady.items()]))
        for name, many in weights.items():
            self._mine[name].tensor.set(many)
        self._before = weights

    def left_out(self) -> str:
        """Returns how many weights are not compared, and why; "" for none."""
        count = sum(int(np.count_nonzero(~steady)) for steady in self._steady.values())
        if not count:
            return ""
        total = sum(steady.size for steady in self._steady.values())
        return (
            f"{count} of {total} weights are not compared: their gradients were zero within the tolerance, and "
            f"{self._one.param.type} divides by their size."
        )

    def _leave_out(self, gradients: Values, floor: float) -> None:
        """Leaves out, from now on, the weights whose gradient is zero within the tolerance when an adaptive rule gets
        it, after clipping and decay."""
        param = self._one.param
        norm = self._one.iter_size * np.sqrt(
            sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients.values())
        )
        clip = param.clip_gradients / norm if 0 < param.clip_gradients < norm else 1.0
        for name, gradient in gradients.items():
            decay = param.weight_decay * self._mine[name].parameter.decay_mult
            weights = self._before[name]
            regularised = clip * gradient + decay * (np.sign(weights) if param.regularization_type == "L1" else weights)
            least = self._tolerance * clip * max(float(np.abs(gradient).max()), floor)
            self._steady[name] &= np.abs(regularised) > least


class OneAndMany:
    """Compares a solver of one rank and one of many, iteration after iteration, on rank 0."""

    def __init__(self, one: Solver, many: Solver, tolerance: float = 0.0):
        self.one, self.many = one, many
        rounds = many.precision == "bf16" or many.optimizer.strategy.settings.reduction.bf16
        self.tolerance = tolerance or (TOLERANCE_BF16 if rounds else TOLERANCE)
        self.rows: list[Row] = []
        pairs = zip(reversed(one.optimizers), reversed(many.optimizers), strict=True)  # a discriminator learns first
        self._nets = [Compared(mine, theirs, self.tolerance) for mine, theirs in pairs]
        if isinstance(one, _TellingSolver) and isinstance(many, _TellingSolver):
            many.taught, one.taught = self._nets[0].keep, self._nets[0].compare

    def iteration(self, keys: list[list[list[str]]], losses: list[float], gradients: Whole, weights: Whole) -> None:
        """Compares the two after a step of each, and gives the one the weights of the many. Raises CommError if they
        differ, or have read other samples.

        Args:
            keys: of each rank, of its micro-batches, of their samples.
            losses: of each rank.
            gradients, weights: of the layers that ranks hold in parts.
        """
        number = self.one.iteration - 1
        self._same_samples(number, keys)
        self._nets[-1].keep(gradients, weights)
        self._nets[-1].compare()
        found = [update for net in self._nets for update in net.found]
        for net in self._nets:
            net.found = []
        largest = [_largest([each for of_update in group for each in of_update]) for group in zip(*found, strict=True)]
        row = Row(number, (self.one.state.recent_loss[-1], float(np.mean(losses))), *largest)
        self.rows.append(row)
        for of_update in found:
            for what, differences in zip(("gradient", "weights"), of_update, strict=True):
                bad = next((each for each in differences if not each.size <= self.tolerance), None)
                if bad:
                    raise CommError(self._message(row, what, bad))

    def _same_samples(self, number: int, keys: list[list[list[str]]]) -> None:
        """Raises CommError unless the one has read the samples that the ranks have read, micro-batch by micro-batch."""
        together = [key for batches in zip(*keys, strict=True) for batch in batches for key in batch]
        if together != [key for batch in _taken(self.one) for key in batch]:
            ranks = self.many.world.size
            raise CommError(f"iteration {number}: the {ranks} ranks have read other samples than 1 rank")

    def _message(self, row: Row, what: str, bad: LargestDifference) -> str:
        expected, got = row.losses
        forward = abs(got - expected) > self.tolerance * abs(expected)
        hint = f"; the loss before it differs, too ({expected:.6g} and {got:.6g}): look at forward" if forward else ""
        return (
            f"iteration {row.iteration}: the {what} of {bad.where} is the first, from the last layer on, that differs "
            f"between 1 and {self.many.world.size} ranks: by {bad.size:.2g} of its largest element, more than "
            f"{self.tolerance:g}{hint}"
        )

    def to_text(self) -> str:
        """A row for each iteration, and what has been left out."""
        header = ("iteration", "loss, 1 rank", f"{self.many.world.size} ranks", "gradients differ by", "weights by")
        rows = [(row.iteration, *(f"{loss:.6g}" for loss in row.losses), row.gradient, row.weight) for row in self.rows]
        lines = [table(header, rows, ">>><<")]
        lines += filter(None, (net.left_out() for net in self._nets))
        return "\n".join(lines)


def _gradient(optimizer: Optimizer, placed: Placed) -> np.ndarray:
    """Returns a gradient as a mean: the reduction leaves the sum over ranks and micro-batches, which the update
    divides."""
    return placed.tensor.diff.get() / (optimizer.world.size * optimizer.iter_size)


def _most(values: Values) -> float:
    return max((float(np.abs(each).max()) for each in values.values()), default=0.0)


def _difference(name: str, one: np.ndarray, many: np.ndarray, floor: float) -> LargestDifference:
    scale = max(float(np.abs(one).max()), float(floor))
    size = float(np.abs(many - one).max())
    return LargestDifference(size / scale if scale else size, name)


def _largest(found: list[LargestDifference]) -> LargestDifference:
    return max(found, key=lambda each: (np.isnan(each.size), each.size), default=LargestDifference())
