"""The learning-rate policies, `lr_policy`, and the warm-ups, `warmup_policy`.

A policy is one registered function that reads the solver once and returns `rate(iteration)`; see `policy`. Formulas are
Caffe's; `poly_cyc` is SURFsara's, `plateau` and `multifixed` Intel's, `min_lr` NVIDIA's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from engine.errors import ConfigError
from engine.solver.calendar import exact
from engine.solver.state import PlateauState

if TYPE_CHECKING:
    from engine import proto

Rate = Callable[[int], float]
LossRate = Callable[[int, float, PlateauState], float]
Make: TypeAlias = "Callable[[proto.SolverParameter], Rate | LossRate]"
MakeT = TypeVar("MakeT", bound=Make)


@dataclass(frozen=True)
class Policy:
    """A registered policy: see policy() for its fields."""

    make: Make
    required: tuple[str, ...]
    usual: tuple[str, ...]
    reads_loss: bool


POLICIES: dict[str, Policy] = {}  # by the values of lr_policy


def policy(
    name: str, *required: str, usual: tuple[str, ...] = (), reads_loss: bool = False
) -> Callable[[MakeT], MakeT]:
    """Registers a policy: a function that takes the SolverParameter and returns a function rate(iteration).

    Args:
        name: the value of lr_policy.
        required: the solver's fields without which the policy means nothing.
        usual: fields that Caffe takes as 0, or as an empty list, if they are not given; a note tells what that does.
        reads_loss: the policy returns rate(iteration, loss, PlateauState) instead; loss is smoothed, the mean over all
            ranks.
    """

    def add(make: MakeT) -> MakeT:
        POLICIES[name] = Policy(make, required, usual, reads_loss)
        return make

    return add


def notes_of_policy(param: proto.SolverParameter) -> Iterator[str]:
    """Yields what the rate becomes without the usual fields of its policy, and how Caffe takes steps out of order."""
    known = POLICIES.get(param.lr_policy)
    given = [field.name.removesuffix("_epoch") for field, _ in param.ListFields()]
    missing = [field for field in known.usual if field not in given] if known else []
    if missing:
        falls = missing == ["gamma"] and param.lr_policy in ("step", "exp", "multistep")
        what = "0 after its first step" if falls else "half of base_lr" if param.lr_policy == "sigmoid" else "base_lr"
        names = " and ".join(missing)
        yield f"lr_policy '{param.lr_policy}' without {names}: the rate is {what}{'' if falls else ' throughout'}"
    if list(param.stepvalue) != sorted(param.stepvalue):
        yield "stepvalue does not ascend: each step is taken after the one before it, as in Caffe"


def _between(param: proto.SolverParameter, height: Rate) -> Rate:
    """Returns a rate that is base_lr where height(iteration) is 1, and min_lr where it is 0."""
    return lambda iteration: param.min_lr + (param.base_lr - param.min_lr) * height(iteration)


@policy("fixed", "base_lr")
def _fixed(param: proto.SolverParameter) -> Rate:
    return lambda iteration: param.base_lr


def _gamma(param: proto.SolverParameter) -> float:
    """Returns gamma. Raises ConfigError if it is below 0, as Caffe does."""
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
    """Returns the iterations, from `first` on, at which multistep takes its steps: as in Caffe at most one each."""
    found: list[int] = []
    for value in param.stepvalue:
        found.append(max(value, found[-1] + 1 if found else first))
    return found


def first_of_policy(param: proto.SolverParameter) -> int:
    """Returns the run's iteration that is iteration 0 for the policy: the end of the warm-up with policy_after_warmup,
    else 0."""
    return max(0, param.warmup_iter) if param.policy_after_warmup else 0


def current_step(param: proto.SolverParameter, iteration: int) -> int:
    """Returns current_step of Caffe's SolverState after `iteration` updates: the steps that the policies step and
    multistep have taken. There are none during the warm-up."""
    begin = first_of_policy(param)
    last = iteration - 1 - begin  # the last iteration for which Caffe has computed a rate, as the policy counts
    if last < 0 or iteration <= param.warmup_iter:
        return 0
    if param.lr_policy == "step":
        return last // param.stepsize
    if param.lr_policy == "multistep":
        return bisect.bisect_right(_step_iterations(param, max(0, param.warmup_iter - begin)), last)
    return 0


@policy("poly", "base_lr", "max_iter", usual=("power",))
def _poly(param: proto.SolverParameter) -> Rate:
    last = max(1, param.max_iter)  # a run of 0 iterations asks for the first rate, too
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
    """Returns the number of sgdr's cycle, from 0, and how much of the cycle is over, in [0, 1)."""
    length = float(param.cycle_iter)
    if param.cycle_mult == 1:
        number, rest = divmod(iteration, param.cycle_iter)
        return number, rest / length
    ratio = float(exact(param.cycle_mult))

    def begin(cycle: int) -> float:
        found = length * (ratio**cycle - 1) / (ratio - 1)
        return float(round(found)) if math.isclose(found, round(found), rel_tol=1e-12) else found

    number = int(math.log1p(iteration * (ratio - 1) / length) / math.log(ratio))
    number += int(begin(number + 1) <= iteration) - int(begin(number) > iteration)  # mends the logarithms' rounding
    return number, (iteration - begin(number)) / (length * ratio**number)


@policy("poly_cyc", "base_lr", "power", "lr_iter")
def _poly_cyc(param: proto.SolverParameter) -> Rate:
    """Polynomial decay that reaches 0 at lr_iter. lr_iter may lie beyond max_iter; then the run ends at a rate above
    0."""
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / param.lr_iter) ** param.power


@policy("sigmoid", "base_lr", "stepsize", usual=("gamma",))
def _sigmoid(param: proto.SolverParameter) -> Rate:
    gamma = _gamma(param)

    def rate(iteration: int) -> float:
        exponent = -gamma * (iteration - param.stepsize)
        return param.base_lr / (1 + math.exp(exponent)) if exponent < 700 else 0.0  # beyond, exp() overflows

    return rate


@policy("multifixed", "stagelr", "stageiter")
def _multifixed(param: proto.SolverParameter) -> Rate:
    """stagelr[k] up to and including iteration stageiter[k]; the last rate holds until the end."""
    rates, ends = list(param.stagelr), list(param.stageiter)
    if len(rates) != len(ends):
        raise ConfigError(f"{len(rates)} stagelr for {len(ends)} stageiter; give one for each")
    return lambda iteration: rates[min(bisect.bisect_left(ends, iteration), len(rates) - 1)]


@policy("plateau", "base_lr", "gamma", "plateau_winsize", reads_loss=True)
def _plateau(param: proto.SolverParameter) -> LossRate:
    """base_lr gamma^k, where k grows by one after plateau_winsize[k] iterations without a new minimum of the smoothed
    loss (Intel's Caffe). Losses are compared in float32, in which a snapshot saves the minimum."""
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


# Warm-ups


def _linear(param: proto.SolverParameter) -> Rate:
    start = param.warmup_start_lr
    return lambda iteration: start + (param.base_lr - start) * iteration / param.warmup_iter


def _constant(param: proto.SolverParameter) -> Rate:
    """Goyal et al. 2017, section 2.2, "constant warmup"."""
    return lambda iteration: param.warmup_start_lr


def _quadratic(param: proto.SolverParameter) -> Rate:
    """NVIDIA's rampup: rises with the square of the warm-up's fraction that is over."""
    start = param.warmup_start_lr
    return lambda iteration: start + (param.base_lr - start) * (iteration / param.warmup_iter) ** 2


WARMUPS: dict[str, Callable[[proto.SolverParameter], Rate]] = {
    "linear": _linear,
    "constant": _constant,
    "quadratic": _quadratic,
}
