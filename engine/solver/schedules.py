"""What changes as a run goes on, by the iteration (the count of finished updates): learning rate, weight decay,
momentum, the growth of the batch.

A policy is one registered function that reads the solver once and returns `rate(iteration)`; see `policy`. Formulas are
Caffe's; `poly_cyc` is SURFsara's, `plateau` and `multifixed` Intel's, `min_lr` NVIDIA's.

Everything here counts iterations: what a solver counts in epochs is in iterations by then (engine/solver/resolve.py).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from engine.config.suggestions import suggestion
from engine.errors import ConfigError, NumericalError
from engine.solver.calendar import exact
from engine.solver.resolve import is_given
from engine.solver.state import PlateauState

if TYPE_CHECKING:
    from engine import proto

Rate = Callable[[int], float]
LossRate = Callable[[int, float, PlateauState], float]
Policy: TypeAlias = "Callable[[proto.SolverParameter], Rate | LossRate]"
PolicyT = TypeVar("PolicyT", bound=Policy)
LARGEST = 3.4e38  # that the update rules, in float32, take
POINTS = 500  # at equal distances, that show a schedule


@dataclass(frozen=True)
class _Policy:
    make: Policy
    required: tuple[str, ...]
    usual: tuple[str, ...]
    reads_loss: bool


_policies: dict[str, _Policy] = {}


def policy(
    name: str, *required: str, usual: tuple[str, ...] = (), reads_loss: bool = False
) -> Callable[[PolicyT], PolicyT]:
    """Registers a policy: a function that takes the SolverParameter and returns its rate by iteration.

    required: the solver fields without which it means nothing. usual: those that Caffe takes as 0, or as none, where
    they are not given: the log says what comes of it. reads_loss: the function that it returns takes
    (iteration, loss, PlateauState) instead, where loss is the smoothed one of all ranks.
    """

    def add(make: PolicyT) -> PolicyT:
        _policies[name] = _Policy(make, required, usual, reads_loss)
        return make

    return add


def policies() -> dict[str, tuple[str, ...]]:
    """The known policies, and the fields that each requires."""
    return {name: each.required for name, each in _policies.items()}


def need_max_iter(param: proto.SolverParameter) -> bool:
    """Whether one of a solver's schedules goes by the length of the run."""
    named = (param.lr_policy, param.weight_decay_schedule.policy)
    nvidias = (param.momentum_policy, param.weight_decay_policy)
    return "poly" in nvidias or any("max_iter" in policies().get(name, ()) for name in named)


def left_out(param: proto.SolverParameter) -> Iterator[str]:
    """What a rate is without the usual fields of its policy, which Caffe takes as 0, or as none."""
    known = _policies.get(param.lr_policy)
    given = [field.name.removesuffix("_epoch") for field, _ in param.ListFields()]
    missing = [field for field in known.usual if field not in given] if known else []
    if missing:
        falls = missing == ["gamma"] and param.lr_policy in ("step", "exp", "multistep")
        what = "0 after its first step" if falls else "half of base_lr" if param.lr_policy == "sigmoid" else "base_lr"
        names = " and ".join(missing)
        yield f"lr_policy '{param.lr_policy}' without {names}: the rate is {what}{'' if falls else ' throughout'}"
    if list(param.stepvalue) != sorted(param.stepvalue):
        yield "stepvalue does not ascend: each step is taken after the one before it, as in Caffe"


class Schedule:
    """A number of a solver that follows one of the policies: the learning rate, or the weight decay.

    Over the warm-up the rate rises linearly from warmup_start_lr to base_lr, or stays at warmup_start_lr (Goyal et al.
    2017, arXiv 1706.02677, section 2.2), or rises quadratically (NVIDIA). Afterwards the policy sees the absolute
    iteration, as there; with policy_after_warmup it sees the count from the end of the warm-up, of a run that is
    shorter by it.
    """

    def __init__(
        self, param: proto.SolverParameter, where: str | None = None, field: str = "lr_policy", base: str = "base_lr"
    ):
        """param: its lr_policy and base_lr are followed; field, base: their names in messages; where: the place of
        `field`. Raises ConfigError for an unknown policy or a field that it needs and does not find."""
        name = param.lr_policy
        if name not in _policies:
            what = f"{field} '{name}' is unknown" if name else f"{field} is missing"
            raise ConfigError(what + suggestion(name, _policies), where)
        chosen = _policies[name]
        caffes = field == "lr_policy"  # the others are this engine's own
        for needed in chosen.required if caffes else (*chosen.required, *chosen.usual):
            if not is_given(param, needed):
                raise ConfigError(f"{field} '{name}' needs {base if needed == 'base_lr' else needed}", where)
        self.reads_loss = chosen.reads_loss  # whether a call needs the smoothed loss of all ranks
        self._param, self._where, self._field, self._base = param, where, field, base
        self._warmup = _warmups[param.warmup_policy](param) if param.warmup_iter > 0 else None
        self._first = first_of_policy(param)
        self._least = param.min_lr if param.HasField("min_lr") else None
        try:
            self._rate: Callable[..., float] = chosen.make(_after_warmup(param) if self._first else param)
        except ConfigError as error:
            raise ConfigError(f"{field} '{name}': {error}", where) from None

    def __call__(self, iteration: int, loss: float | None = None, plateau: PlateauState | None = None) -> float:
        """The rate of the update after `iteration` finished ones. plateau: is brought up to date, if the policy reads
        the loss. Raises NumericalError if the formula gives no number that float32 holds, or one below 0."""
        warmup = self._warmup if iteration < self._param.warmup_iter else None
        count = iteration - self._first
        try:
            if warmup:
                rate = warmup(iteration)
            else:
                rate = self._rate(count, loss, plateau) if self.reads_loss else self._rate(count)
        except ArithmeticError as error:
            raise self._error(iteration, str(error)) from None
        if isinstance(rate, complex):
            raise self._error(iteration, "a power of a number below 0")
        if not 0 <= rate <= LARGEST:
            raise self._error(iteration, f"got {rate:g}")
        if self._least is None or (warmup and self._param.warmup_policy != "quadratic"):
            return rate
        return max(rate, self._least)

    def check(self) -> None:
        """Raises NumericalError for the first iteration that has no rate, of those that this looks at: some in any
        run, and those at which a policy may jump."""
        if self.reads_loss:
            return
        for iteration in milestones(self._param):
            self(iteration)

    def _error(self, iteration: int, reason: str) -> NumericalError:
        param = self._param
        fields = ("gamma", "power", "stepsize", "max_iter", "lr_iter", "cycle_iter", "cycle_mult", "min_lr")
        names = {"base_lr": self._base, **{field: field for field in fields}}
        given = ", ".join(f"{names[field]} {getattr(param, field):g}" for field in names if param.HasField(field))
        what = "no learning rate" if self._field == "lr_policy" else "no value that can be used"
        return NumericalError(
            f"{self._field} '{param.lr_policy}' gives {what} at iteration {iteration}: {reason} ({given})", self._where
        )


class LearningRate(Schedule):
    """The rate of a SolverParameter, warm-up included."""


class WeightDecay:
    """The weight decay of a SolverParameter: constant, by its weight_decay_schedule, or by NVIDIA's
    weight_decay_policy "poly": from weight_decay to max_weight_decay, as (iteration / max_iter)^weight_decay_power."""

    def __init__(self, param: proto.SolverParameter, where: str | None = None):
        """Raises ConfigError for an unknown policy, for one that reads the loss, and for fields that are missing."""
        self._constant, self._schedule = param.weight_decay, None
        self._poly = _poly_from_to(param, "weight_decay", param.max_weight_decay, param.weight_decay_power)
        if param.HasField("weight_decay_schedule"):
            field, policy = "weight_decay_schedule.policy", param.weight_decay_schedule.policy
            if policy in _policies and _policies[policy].reads_loss:  # and has no fields in ScheduleParameter
                raise ConfigError(f"{field} '{policy}' follows the loss, as only lr_policy can; take another", where)
            self._schedule = Schedule(_decay_as_rate(param), where, field, "weight_decay")

    def __call__(self, iteration: int) -> float:
        """The decay of the update after `iteration` finished ones. Raises NumericalError as Schedule does."""
        if self._poly:
            return self._poly(iteration)
        return self._schedule(iteration) if self._schedule else self._constant

    def check(self) -> None:
        """See Schedule.check()."""
        if self._schedule:
            self._schedule.check()


class Momentum:
    """The momentum of a SolverParameter, by NVIDIA's momentum_policy: "fixed"; "poly", from momentum to max_momentum as
    (iteration / max_iter)^momentum_power; or "opt", (1 - sqrt(rate) / 2)^2, at most max_momentum if that is given."""

    def __init__(self, param: proto.SolverParameter, where: str | None = None):
        """Raises ConfigError for an unknown policy."""
        if param.momentum_policy not in MOMENTUM_POLICIES:
            known = suggestion(param.momentum_policy, MOMENTUM_POLICIES)
            raise ConfigError(f"unknown momentum_policy '{param.momentum_policy}'{known}", where)
        self._param = param
        self._poly = _poly_from_to(param, "momentum", param.max_momentum, param.momentum_power)

    def __call__(self, iteration: int, rate: float | None) -> float:
        """The momentum of the update after `iteration` finished ones; rate: of that update, if it is known."""
        param = self._param
        if self._poly:
            return self._poly(iteration)
        if param.momentum_policy != "opt" or rate is None:
            return param.momentum
        momentum = (1 - 0.5 * math.sqrt(rate)) ** 2
        return min(momentum, param.max_momentum) if param.HasField("max_momentum") else momentum


MOMENTUM_POLICIES = ("fixed", "opt", "poly")
WEIGHT_DECAY_POLICIES = ("fixed", "poly")


def _poly_from_to(param: proto.SolverParameter, field: str, last: float, power: float) -> Rate | None:
    """NVIDIA's policy "poly" of a field; None if it has another. Beyond max_iter, to which programs may step, it
    stays."""
    if getattr(param, f"{field}_policy") != "poly":
        return None
    first, iterations = getattr(param, field), max(1, param.max_iter)
    return lambda iteration: first + (last - first) * min(1.0, iteration / iterations) ** power


class BatchGrowth:
    """By how many times iter_size has grown.

    Smith et al. 2018, "Don't Decay the Learning Rate, Increase the Batch Size" (arXiv 1711.00489), section 3: where a
    rate would drop by a factor, the batch grows by it instead.
    """

    def __init__(self, param: proto.SolverParameter):
        self.steps, self._factor = list(param.batch_growth.stepvalue), param.batch_growth.factor

    def __call__(self, iteration: int) -> int:
        """The factor of the update after `iteration` finished ones."""
        return self._factor ** bisect.bisect_right(self.steps, iteration)


def milestones(param: proto.SolverParameter) -> list[int]:
    """Iterations of a run that show its schedules: some at equal distances, and those around which they may jump."""
    last = max(0, param.max_iter - 1)
    first = first_of_policy(param)
    found = {0, 1, last, param.warmup_iter, *(last * number // POINTS for number in range(POINTS))}
    for each, begin in ((param, first), (param.weight_decay_schedule, 0)):
        jumps = [*each.stepvalue, *(end + 1 for end in each.stageiter)]
        jumps += [period * number for period in (each.stepsize, each.cycle_iter) for number in range(1, 21)]
        found.update(begin + jump for jump in jumps)
    found.update(param.batch_growth.stepvalue)
    found |= {iteration - 1 for iteration in found}
    return sorted(iteration for iteration in found if iteration in (0, 1) or 0 < iteration <= last)


def first_of_policy(param: proto.SolverParameter) -> int:
    """The iteration from which on lr_policy counts its own."""
    return max(0, param.warmup_iter) if param.policy_after_warmup else 0


def _after_warmup(param: proto.SolverParameter) -> proto.SolverParameter:
    """For a policy that begins when the warm-up ends: the run is what is left of it."""
    rest = type(param)()
    rest.CopyFrom(param)
    if param.HasField("max_iter"):
        rest.max_iter = max(1, param.max_iter - param.warmup_iter)
    return rest


def _decay_as_rate(param: proto.SolverParameter) -> proto.SolverParameter:
    """A SolverParameter whose learning rate is the weight decay of this one."""
    result = type(param)()
    for field, target in (("weight_decay", "base_lr"), ("max_iter", "max_iter")):
        if param.HasField(field):
            setattr(result, target, getattr(param, field))
    for field, value in param.weight_decay_schedule.ListFields():
        if field.name == "policy":
            result.lr_policy = value
        elif hasattr(value, "extend"):
            getattr(result, field.name).extend(value)
        else:
            setattr(result, field.name, value)
    return result


def _linear(param: proto.SolverParameter) -> Rate:
    start = param.warmup_start_lr
    return lambda iteration: start + (param.base_lr - start) * iteration / param.warmup_iter


def _constant(param: proto.SolverParameter) -> Rate:
    """Goyal et al. 2017, section 2.2, "constant warmup"."""
    return lambda iteration: param.warmup_start_lr


def _quadratic(param: proto.SolverParameter) -> Rate:
    """NVIDIA's rampup: the square of the linear one's way."""
    start = param.warmup_start_lr
    return lambda iteration: start + (param.base_lr - start) * (iteration / param.warmup_iter) ** 2


_warmups: dict[str, Callable[[proto.SolverParameter], Rate]] = {
    "linear": _linear,
    "constant": _constant,
    "quadratic": _quadratic,
}
WARMUPS = tuple(_warmups)


def _between(param: proto.SolverParameter, height: Rate) -> Rate:
    """From base_lr, where height is 1, to min_lr, where it is 0."""
    return lambda iteration: param.min_lr + (param.base_lr - param.min_lr) * height(iteration)


@policy("fixed", "base_lr")
def _fixed(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr


def _gamma(param: proto.SolverParameter) -> float:
    """Raises ConfigError for one below 0, as Caffe does."""
    if param.gamma < 0:
        raise ConfigError(f"expected gamma of 0 or more, got {param.gamma:g}")
    return param.gamma


@policy("step", "base_lr", "stepsize", usual=("gamma",))
def _step(param: proto.SolverParameter) -> Rate:
    gamma = _gamma(param)
    return lambda iteration: param.base_lr * gamma ** (iteration // param.stepsize)


@policy("exp", "base_lr", usual=("gamma",))
def _exp(param: proto.SolverParameter) -> Rate:
    gamma = _gamma(param)
    return lambda iteration: param.base_lr * gamma**iteration


@policy("inv", "base_lr", usual=("gamma", "power"))
def _inv(param: proto.SolverParameter) -> Rate:
    gamma = _gamma(param)
    return lambda iteration: param.base_lr * (1 + gamma * iteration) ** -param.power


@policy("multistep", "base_lr", usual=("gamma", "stepvalue"))
def _multistep(param: proto.SolverParameter) -> Rate:
    first = 0 if param.policy_after_warmup else max(0, param.warmup_iter)
    gamma, steps = _gamma(param), _step_iterations(param, first)
    return lambda iteration: param.base_lr * gamma ** bisect.bisect_right(steps, iteration)


def _step_iterations(param: proto.SolverParameter, first: int = 0) -> list[int]:
    """The iterations, from `first` on, at which multistep takes its steps: Caffe takes one in an iteration at most."""
    found: list[int] = []
    for value in param.stepvalue:
        found.append(max(value, found[-1] + 1 if found else first))
    return found


def current_step(param: proto.SolverParameter, iteration: int) -> int:
    """What Caffe's solver holds under this name, which it goes on from, after `iteration` updates: of step and
    multistep. In a warm-up it takes no steps."""
    begin = first_of_policy(param)
    last = iteration - 1 - begin  # for which a rate has been asked
    if last < 0 or iteration <= param.warmup_iter:
        return 0
    if param.lr_policy == "step":
        return last // param.stepsize
    if param.lr_policy == "multistep":
        return bisect.bisect_right(_step_iterations(param, max(0, param.warmup_iter - begin)), last)
    return 0


@policy("poly", "base_lr", "max_iter", usual=("power",))
def _poly(param: proto.SolverParameter) -> Rate:
    last = max(1, param.max_iter)  # of a run of 0 iterations the first rate is asked for, too
    return _between(param, lambda iteration: max(0.0, 1 - iteration / last) ** param.power)


@policy("cosine", "base_lr", "max_iter")
def _cosine(param: proto.SolverParameter) -> Rate:
    """Half a period over the run: Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5 without restarts."""
    last = max(1, param.max_iter)
    return _between(param, lambda iteration: 0.5 * (1 + math.cos(math.pi * min(1.0, iteration / last))))


@policy("sgdr", "base_lr", "cycle_iter")
def _sgdr(param: proto.SolverParameter) -> Rate:
    """Cosine with warm restarts: Loshchilov and Hutter 2017, equation 5, where T_i = cycle_iter cycle_mult^i."""
    return _between(param, lambda iteration: 0.5 * (1 + math.cos(math.pi * cycle_position(param, iteration)[1])))


def cycle_position(param: proto.SolverParameter, iteration: int) -> tuple[int, float]:
    """The cycle of sgdr, from 0, and how much of it is over, in [0, 1)."""
    length = float(param.cycle_iter)
    if param.cycle_mult == 1:
        number, rest = divmod(iteration, param.cycle_iter)
        return number, rest / length
    ratio = float(exact(param.cycle_mult))

    def begin(cycle: int) -> float:
        found = length * (ratio**cycle - 1) / (ratio - 1)
        return float(round(found)) if math.isclose(found, round(found), rel_tol=1e-12) else found

    number = int(math.log1p(iteration * (ratio - 1) / length) / math.log(ratio))
    number += int(begin(number + 1) <= iteration) - int(begin(number) > iteration)  # where the logarithms round
    return number, (iteration - begin(number)) / (length * ratio**number)


@policy("poly_cyc", "base_lr", "power", "lr_iter")
def _poly_cyc(param: proto.SolverParameter) -> Rate:
    """Polynomial decay towards lr_iter, which may lie beyond max_iter: the run ends before the rate has come down to
    0."""
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / param.lr_iter) ** param.power


@policy("sigmoid", "base_lr", "stepsize", usual=("gamma",))
def _sigmoid(param: proto.SolverParameter) -> Rate:
    gamma = _gamma(param)

    def rate(iteration: int) -> float:
        exponent = -gamma * (iteration - param.stepsize)
        return param.base_lr / (1 + math.exp(exponent)) if exponent < 700 else 0.0  # where exp() goes beyond a float

    return rate


@policy("multifixed", "stagelr", "stageiter")
def _multifixed(param: proto.SolverParameter) -> Rate:
    """stagelr[k] up to and including iteration stageiter[k]; the last one goes on."""
    rates, ends = list(param.stagelr), list(param.stageiter)
    if len(rates) != len(ends):
        raise ConfigError(f"{len(rates)} stagelr for {len(ends)} stageiter; give one for each")
    return lambda iteration: rates[min(bisect.bisect_left(ends, iteration), len(rates) - 1)]


@policy("plateau", "base_lr", "gamma", "plateau_winsize", reads_loss=True)
def _plateau(param: proto.SolverParameter) -> LossRate:
    """base_lr gamma^k, where k grows by one after plateau_winsize[k] iterations without a new minimum of the smoothed
    loss (Intel's Caffe), all of them in float32, as a snapshot has the minimum."""
    gamma, windows = _gamma(param), list(param.plateau_winsize)

    def rate(iteration: int, loss: float, seen: PlateauState) -> float:
        loss = float(np.float32(loss))
        if loss < seen.minimum_loss:
            seen.minimum_loss, seen.iter_last_event = loss, iteration
        if seen.current_step < len(windows) and iteration >= seen.iter_last_event + windows[seen.current_step]:
            seen.current_step += 1
            seen.iter_last_event = iteration
        return param.base_lr * gamma**seen.current_step

    return rate
