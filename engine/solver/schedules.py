"""Learning-rate policies: closures from the iteration (the count of finished updates) to a rate.

A policy is one registered function that reads the solver once and returns `rate(iteration)`. Formulas are Caffe's;
`poly_cyc` is SURFsara's, `plateau` and `multifixed` Intel's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import Any

from engine.config.suggestions import suggestion
from engine.errors import ConfigError

Rate = Callable[[int], float]

_policies: dict[str, Callable[[Any], Rate]] = {}
REQUIRED: dict[str, tuple[str, ...]] = {}


def policy(name: str, *required: str):
    """Registers a policy; `required` are the solver fields without which it means nothing."""

    def add(make: Callable[[Any], Rate]) -> Callable[[Any], Rate]:
        _policies[name] = make
        REQUIRED[name] = required
        return make

    return add


def learning_rate(param: Any, where: str | None = None) -> Rate:
    """The rate of a SolverParameter, warm-up included: while iteration < warmup_iter it rises linearly from
    warmup_start_lr to base_lr; afterwards the policy sees the absolute iteration (Goyal et al. 2017, arXiv
    1706.02677, section 2.2).

    Raises ConfigError for an unknown policy or a field that it needs and does not find.
    """
    name = param.lr_policy
    if name not in _policies:
        what = f"lr_policy '{name}' is unknown" if name else "lr_policy is missing"
        raise ConfigError(what + suggestion(name, _policies), where)
    for field in REQUIRED[name]:
        if not _given(param, field):
            raise ConfigError(f"lr_policy '{name}' needs {field}", where)
    rate = _policies[name](param)
    if param.warmup_iter <= 0 or isinstance(rate, Plateau):  # a Plateau, whose loss the solver sets, warms up by itself
        return rate
    return lambda iteration: _warm_up(param, iteration) if iteration < param.warmup_iter else rate(iteration)


def _warm_up(param: Any, iteration: int) -> float:
    start = param.warmup_start_lr
    return start + (param.base_lr - start) * iteration / param.warmup_iter


def _given(param: Any, field: str) -> bool:
    value = getattr(param, field)
    return len(value) > 0 if hasattr(value, "__len__") else param.HasField(field)


@policy("fixed", "base_lr")
def _fixed(param):
    return lambda iteration: param.base_lr


@policy("step", "base_lr", "gamma", "stepsize")
def _step(param):
    return lambda iteration: param.base_lr * param.gamma ** (iteration // param.stepsize)


@policy("exp", "base_lr", "gamma")
def _exp(param):
    return lambda iteration: param.base_lr * param.gamma**iteration


@policy("inv", "base_lr", "gamma", "power")
def _inv(param):
    return lambda iteration: param.base_lr * (1 + param.gamma * iteration) ** -param.power


@policy("multistep", "base_lr", "gamma", "stepvalue")
def _multistep(param):
    steps = sorted(param.stepvalue)
    return lambda iteration: param.base_lr * param.gamma ** bisect.bisect_right(steps, iteration)


@policy("poly", "base_lr", "power", "max_iter")
def _poly(param):
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / param.max_iter) ** param.power


@policy("poly_cyc", "base_lr", "power", "lr_iter")
def _poly_cyc(param):
    """Polynomial decay towards lr_iter, which may lie beyond max_iter: the run ends before the rate has come down to
    0."""
    return lambda iteration: param.base_lr * max(0.0, 1 - iteration / param.lr_iter) ** param.power


@policy("sigmoid", "base_lr", "gamma", "stepsize")
def _sigmoid(param):
    return lambda iteration: param.base_lr / (1 + math.exp(-param.gamma * (iteration - param.stepsize)))


@policy("multifixed", "stagelr", "stageiter")
def _multifixed(param):
    """stagelr[k] up to and including iteration stageiter[k]; the last one goes on."""
    rates, ends = list(param.stagelr), list(param.stageiter)
    if len(rates) != len(ends):
        raise ConfigError(f"lr_policy 'multifixed': {len(rates)} stagelr for {len(ends)} stageiter; give one for each")
    return lambda iteration: rates[min(bisect.bisect_left(ends, iteration), len(rates) - 1)]


class Plateau:
    """base_lr gamma^k, where k grows by one after plateau_winsize[k] iterations without a new minimum of the smoothed
    loss.

    `see(loss)` takes the loss of the iteration about to be rated, averaged over ranks so that all agree. The fields are
    those of SolverState.
    """

    def __init__(self, param):
        self.param = param
        self.current_step, self.minimum_loss, self.last_event = 0, float("inf"), 0
        self.loss = float("inf")

    def see(self, loss: float) -> None:
        self.loss = loss

    def __call__(self, iteration: int) -> float:
        if iteration < self.param.warmup_iter:
            return _warm_up(self.param, iteration)
        if self.loss < self.minimum_loss:
            self.minimum_loss, self.last_event = self.loss, iteration
        windows = self.param.plateau_winsize
        if self.current_step < len(windows) and iteration >= self.last_event + windows[self.current_step]:
            self.current_step += 1
            self.last_event = iteration
        return self.param.base_lr * self.param.gamma**self.current_step


@policy("plateau", "base_lr", "gamma", "plateau_winsize")
def _plateau(param):
    return Plateau(param)
