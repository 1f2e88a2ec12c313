"""Learning-rate policies: closures from the iteration (the count of finished updates) to a rate.

A policy is one registered function that reads the solver once and returns `rate(iteration)`; see `policy`. Formulas are
Caffe's; `poly_cyc` is SURFsara's, `plateau` and `multifixed` Intel's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from engine.config.suggestions import suggestion
from engine.errors import ConfigError, NumericalError
from engine.solver.state import PlateauState

if TYPE_CHECKING:
    from engine import proto

Rate = Callable[[int], float]
LossRate = Callable[[int, float, PlateauState], float]
Policy: TypeAlias = "Callable[[proto.SolverParameter], Rate | LossRate]"
PolicyT = TypeVar("PolicyT", bound=Policy)
LARGEST = 3.4e38  # that the update rules, in float32, take


@dataclass(frozen=True)
class _Policy:
    make: Policy
    required: tuple[str, ...]
    reads_loss: bool


_policies: dict[str, _Policy] = {}


def policy(name: str, *required: str, reads_loss: bool = False) -> Callable[[PolicyT], PolicyT]:
    """Registers a policy: a function that takes the SolverParameter and returns its rate by iteration.

    required: the solver fields without which it means nothing. reads_loss: the function that it returns takes
    (iteration, loss, PlateauState) instead, where loss is the smoothed one of all ranks.
    """

    def add(make: PolicyT) -> PolicyT:
        _policies[name] = _Policy(make, required, reads_loss)
        return make

    return add


def policies() -> dict[str, tuple[str, ...]]:
    """The known policies, and the fields that each requires."""
    return {name: each.required for name, each in _policies.items()}


class LearningRate:
    """The rate of a SolverParameter, warm-up included: while iteration < warmup_iter it rises linearly from
    warmup_start_lr to base_lr; afterwards the policy sees the absolute iteration (Goyal et al. 2017, arXiv
    1706.02677, section 2.2).
    """

    def __init__(self, param: proto.SolverParameter, where: str | None = None):
        """Raises ConfigError for an unknown policy or a field that it needs and does not find."""
        name = param.lr_policy
        if name not in _policies:
            what = f"lr_policy '{name}' is unknown" if name else "lr_policy is missing"
            raise ConfigError(what + suggestion(name, _policies), where)
        chosen = _policies[name]
        for field in chosen.required:
            if not _given(param, field):
                raise ConfigError(f"lr_policy '{name}' needs {field}", where)
        self.reads_loss = chosen.reads_loss  # whether a call needs the smoothed loss of all ranks
        self._param, self._where = param, where
        self._rate: Callable[..., float] = chosen.make(param)

    def __call__(self, iteration: int, loss: float | None = None, plateau: PlateauState | None = None) -> float:
        """The rate of the update after `iteration` finished ones. plateau: is brought up to date, if the policy reads
        the loss. Raises NumericalError if the formula gives no number that float32 holds."""
        if iteration < self._param.warmup_iter:
            start = self._param.warmup_start_lr
            return start + (self._param.base_lr - start) * iteration / self._param.warmup_iter
        try:
            rate = self._rate(iteration, loss, plateau) if self.reads_loss else self._rate(iteration)
        except ArithmeticError as error:
            raise self._error(iteration, str(error)) from None
        if not isinstance(rate, (int, float)) or not abs(rate) <= LARGEST:
            raise self._error(iteration, f"got {rate:g}")
        return rate

    def check(self) -> None:
        """Raises NumericalError if there is no rate at the beginning or at the end of the run."""
        if self.reads_loss:
            return
        for iteration in sorted({0, 1, max(0, self._param.max_iter - 1)}):
            self(iteration)

    def _error(self, iteration: int, reason: str) -> NumericalError:
        param = self._param
        fields = ("base_lr", "gamma", "power", "stepsize", "max_iter", "lr_iter")
        given = ", ".join(f"{field} {getattr(param, field):g}" for field in fields if param.HasField(field))
        return NumericalError(
            f"lr_policy '{param.lr_policy}' gives no learning rate at iteration {iteration}: {reason} ({given})",
            self._where,
        )


def _given(param: proto.SolverParameter, field: str) -> bool:
    value = getattr(param, field)
    return len(value) > 0 if hasattr(value, "__len__") else param.HasField(field)


@policy("fixed", "base_lr")
def _fixed(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr


@policy("step", "base_lr", "gamma", "stepsize")
def _step(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr * param.gamma ** (iteration // param.stepsize)


@policy("exp", "base_lr", "gamma")
def _exp(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr * param.gamma**iteration


@policy("inv", "base_lr", "gamma", "power")
def _inv(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr * (1 + param.gamma * iteration) ** -param.power


@policy("multistep", "base_lr", "gamma", "stepvalue")
def _multistep(param: proto.SolverParameter) -> Rate:
    steps = sorted(param.stepvalue)
    return lambda iteration: param.base_lr * param.gamma ** bisect.bisect_right(steps, iteration)


@policy("poly", "base_lr", "power", "max_iter")
def _poly(param: proto.SolverParameter) -> Rate:
    last = max(1, param.max_iter)  # of a run of 0 iterations the first rate is asked for, too
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / last) ** param.power


@policy("poly_cyc", "base_lr", "power", "lr_iter")
def _poly_cyc(param: proto.SolverParameter) -> Rate:
    """Polynomial decay towards lr_iter, which may lie beyond max_iter: the run ends before the rate has come down to
    0."""
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / param.lr_iter) ** param.power


@policy("sigmoid", "base_lr", "gamma", "stepsize")
def _sigmoid(param: proto.SolverParameter) -> Rate:
    def rate(iteration: int) -> float:
        exponent = -param.gamma * (iteration - param.stepsize)
        return param.base_lr / (1 + math.exp(exponent)) if exponent < 700 else 0.0  # where exp() goes beyond a float

    return rate


@policy("multifixed", "stagelr", "stageiter")
def _multifixed(param: proto.SolverParameter) -> Rate:
    """stagelr[k] up to and including iteration stageiter[k]; the last one goes on."""
    rates, ends = list(param.stagelr), list(param.stageiter)
    if len(rates) != len(ends):
        raise ConfigError(f"lr_policy 'multifixed': {len(rates)} stagelr for {len(ends)} stageiter; give one for each")
    return lambda iteration: rates[min(bisect.bisect_left(ends, iteration), len(rates) - 1)]


@policy("plateau", "base_lr", "gamma", "plateau_winsize", reads_loss=True)
def _plateau(param: proto.SolverParameter) -> LossRate:
    """base_lr gamma^k, where k grows by one after plateau_winsize[k] iterations without a new minimum of the smoothed
    loss (Intel's Caffe)."""
    windows = list(param.plateau_winsize)

    def rate(iteration: int, loss: float, seen: PlateauState) -> float:
        if loss < seen.minimum_loss:
            seen.minimum_loss, seen.iter_last_event = loss, iteration
        if seen.current_step < len(windows) and iteration >= seen.iter_last_event + windows[seen.current_step]:
            seen.current_step += 1
            seen.iter_last_event = iteration
        return param.base_lr * param.gamma**seen.current_step

    return rate
