"""The schedules of a run: learning rate, weight decay, momentum and growth of the batch as functions of the iteration,
which is the count of finished updates.

All lengths here are in iterations: engine/solver/resolve.py has converted those in epochs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.config.suggestions import suggestion
from engine.errors import ConfigError, NumericalError
from engine.solver.policies import POLICIES, WARMUPS, Rate, first_of_policy
from engine.solver.resolve import is_given
from engine.solver.state import PlateauState

if TYPE_CHECKING:
    from engine import proto

LARGEST = 3.4e38  # the largest rate: update rules take it in float32
POINTS = 500  # how many milestones lie at equal distances


def need_max_iter(param: proto.SolverParameter) -> bool:
    """Tells whether one of a solver's schedules depends on the length of the run."""
    named = (param.lr_policy, param.weight_decay_schedule.policy)
    nvidias = (param.momentum_policy, param.weight_decay_policy)
    return "poly" in nvidias or any("max_iter" in POLICIES[name].required for name in named if name in POLICIES)


class Schedule:
    """A number of a solver that follows one of the policies: the learning rate, or the weight decay.

    Over the warm-up the rate rises linearly from warmup_start_lr to base_lr, or stays at warmup_start_lr (Goyal et al.
    2017, arXiv 1706.02677, section 2.2), or rises quadratically (NVIDIA). The policy that follows is given the absolute
    iteration, as in that paper; with policy_after_warmup it counts from the end of the warm-up, and takes the run to be
    shorter by the warm-up.
    """

    def __init__(
        self, param: proto.SolverParameter, where: str | None = None, field: str = "lr_policy", base: str = "base_lr"
    ):
        """param: its lr_policy and base_lr count. where: the place of lr_policy. field, base: what messages call
        lr_policy and base_lr. Raises ConfigError for an unknown policy, or if a field that it needs is missing."""
        name = param.lr_policy
        if name not in POLICIES:
            what = f"{field} '{name}' is unknown" if name else f"{field} is missing"
            raise ConfigError(what + suggestion(name, POLICIES), where)
        chosen = POLICIES[name]
        is_caffes = field == "lr_policy"  # Caffe's own field may leave usual fields out, as in Caffe
        for needed in chosen.required if is_caffes else (*chosen.required, *chosen.usual):
            if not is_given(param, needed):
                raise ConfigError(f"{field} '{name}' needs {base if needed == 'base_lr' else needed}", where)
        self.reads_loss = chosen.reads_loss  # whether a call needs the smoothed loss of all ranks
        self._param, self._where, self._field, self._base = param, where, field, base
        self._warmup = WARMUPS[param.warmup_policy](param) if param.warmup_iter > 0 else None
        self._first = first_of_policy(param)
        self._least = param.min_lr if param.HasField("min_lr") else None
        try:
            self._rate: Callable[..., float] = chosen.make(_after_warmup(param) if self._first else param)
        except ConfigError as error:
            raise ConfigError(f"{field} '{name}': {error}", where) from None

    def __call__(self, iteration: int, loss: float | None = None, plateau: PlateauState | None = None) -> float:
        """Returns the rate of the update that follows `iteration` finished ones.

        loss, plateau: needed if reads_loss; the smoothed loss of all ranks, and the policy's memory, which is updated.
        Raises NumericalError if the formula gives no number that float32 holds, or one below 0."""
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
        """Raises NumericalError for the first of the run's milestones() that has no rate."""
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
        """Raises ConfigError for an unknown policy, for one that reads the loss, and if a field is missing."""
        self._constant, self._schedule = param.weight_decay, None
        self._poly = _poly_from_to(param, "weight_decay", param.max_weight_decay, param.weight_decay_power)
        if param.HasField("weight_decay_schedule"):
            field, policy = "weight_decay_schedule.policy", param.weight_decay_schedule.policy
            if policy in POLICIES and POLICIES[policy].reads_loss:  # ScheduleParameter has no fields for it
                raise ConfigError(f"{field} '{policy}' follows the loss, as only lr_policy can; take another", where)
            self._schedule = Schedule(_decay_as_rate(param), where, field, "weight_decay")

    def __call__(self, iteration: int) -> float:
        """Returns the decay of the update that follows `iteration` finished ones. Raises NumericalError as Schedule
        does."""
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
        """Returns the momentum of the update that follows `iteration` finished ones. rate: of that update; None if it
        is not known."""
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
    """Returns NVIDIA's policy "poly" for a field, from the field's value to `last`; None if it has another policy. The
    value stays at `last` beyond max_iter, as programs may step further."""
    if getattr(param, f"{field}_policy") != "poly":
        return None
    first, iterations = getattr(param, field), max(1, param.max_iter)
    return lambda iteration: first + (last - first) * min(1.0, iteration / iterations) ** power


class BatchGrowth:
    """The factor by which iter_size has grown.

    Smith et al. 2018, "Don't Decay the Learning Rate, Increase the Batch Size" (arXiv 1711.00489), section 3: where a
    rate would drop by a factor, the batch grows by it instead.
    """

    def __init__(self, param: proto.SolverParameter):
        self.steps, self._factor = list(param.batch_growth.stepvalue), param.batch_growth.factor

    def __call__(self, iteration: int) -> int:
        """Returns the factor for the update that follows `iteration` finished ones."""
        return self._factor ** bisect.bisect_right(self.steps, iteration)


def milestones(param: proto.SolverParameter) -> list[int]:
    """Returns iterations that show a run's schedules: some at equal distances, and those before and after each possible
    jump."""
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


def _after_warmup(param: proto.SolverParameter) -> proto.SolverParameter:
    """Returns the solver for a policy that begins when the warm-up ends: its run is shorter by the warm-up."""
    rest = type(param)()
    rest.CopyFrom(param)
    if param.HasField("max_iter"):
        rest.max_iter = max(1, param.max_iter - param.warmup_iter)
    return rest


def _decay_as_rate(param: proto.SolverParameter) -> proto.SolverParameter:
    """Returns a SolverParameter whose learning rate is the weight decay of `param`."""
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
