"""The outline of a run: the rates, batches and lengths that a solver's numbers make on so many ranks, and doubts where
these numbers contradict each other.

The log of a run begins with it; `engine check` shows and draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.report.plot import Panel, Series
from engine.solver.policies import cycle_position, first_of_policy
from engine.solver.resolve import is_given, scaled
from engine.solver.schedules import (
    BatchGrowth,
    LearningRate,
    Momentum,
    WeightDecay,
    milestones,
)
from engine.solver.update import has_local_rates

if TYPE_CHECKING:
    from engine import proto
    from engine.solver.calendar import Calendar

MOST_STEPS = 8  # how many values of a number a line lists at most
LARGEST_SCALING = 64  # of base_lr without layer-wise rates, by Codreanu et al. 2017, section V.C: 6.4 for 0.1


@dataclass(frozen=True)
class Point:
    """The numbers of one iteration. rate: None if it depends on losses that only the run will know (plateau)."""

    iteration: int
    rate: float | None
    decay: float
    momentum: float
    batch: int


@dataclass
class Outline:
    """given: the solver as its file has it. param, calendar: what resolve() made of it. size: samples of the source, 0
    if it is not known. is_trained: the run begins with weights that were trained."""

    given: proto.SolverParameter
    param: proto.SolverParameter
    calendar: Calendar
    size: int = 0
    is_trained: bool = False

    @cached_property
    def points(self) -> list[Point]:
        """The numbers at enough iterations for a curve, also at those around which they jump."""
        rate, decay, growth = LearningRate(self.param), WeightDecay(self.param), BatchGrowth(self.param)
        warmup, correct, momentum_of = self.param.warmup_iter, self.param.momentum_correction, Momentum(self.param)

        def rate_at(iteration: int) -> float | None:
            return None if rate.reads_loss and iteration >= warmup else rate(iteration)

        found = []
        for iteration in milestones(self.param):
            if iteration >= self.param.max_iter > 0:
                break
            now = rate_at(iteration)
            momentum = momentum_of(iteration, now)
            before = rate_at(iteration - 1) if correct and iteration else None
            if now and before:
                momentum *= now / before  # momentum_correction: SGD multiplies its history by this
            batch = self.calendar.batch * self.calendar.rows * growth(iteration)
            found.append(Point(iteration, now, decay(iteration), momentum, batch))
        return found

    @property
    def peak(self) -> tuple[float, int]:
        """The largest rate, and the first iteration that has it."""
        known = [(point.rate, -point.iteration) for point in self.points if point.rate is not None]
        if LearningRate(self.param).reads_loss:
            known.append((self.param.base_lr, -self.param.warmup_iter))
        rate, iteration = max(known)
        return rate, -iteration

    def to_json(self) -> dict:
        """Returns the main numbers of a run, for programs."""
        rate, iteration = self.peak
        return {
            "global_batch": self.calendar.batch * self.calendar.rows,
            "epoch_size": self.calendar.size,
            "iterations": self.param.max_iter,
            "warmup_iterations": self.param.warmup_iter,
            "peak_rate": rate,
            "peak_iteration": iteration,
        }

    def lines(self) -> Iterator[str]:
        """Yields the same as lines for people, and what changes during the run."""
        rate, iteration = self.peak
        length = f"{self.param.max_iter} iterations{self._epochs(self.param.max_iter)}"
        warmup = "no warm-up"
        if self.param.warmup_iter > 0:
            start = f"{'at' if self.param.warmup_policy == 'constant' else 'from'} {self.param.warmup_start_lr:g}"
            warmup = f"warm-up of {self.param.warmup_iter} iterations{self._epochs(self.param.warmup_iter)} {start}"
        yield f"{length}, {warmup}, peak rate {rate:g} at iteration {iteration}"
        if self.given.HasField("lr_scaling"):
            yield self._scaling()
        if self.param.HasField("weight_decay_schedule"):
            yield f"Weight decay {self._steps([(point.iteration, point.decay) for point in self.points])}"
        if self.param.HasField("batch_growth"):
            yield f"Global batch {self._steps([(point.iteration, point.batch) for point in self.points])}"

    def _epochs(self, iterations: int) -> str:
        return f" ({self.calendar.epochs(iterations):.4g} epochs)" if self.calendar.size else ""

    def _scaling(self) -> str:
        scaling, batch = self.given.lr_scaling, self.calendar.batch
        ratio = f"{batch} / {scaling.base_batch}"
        if scaling.rule == scaling.SQRT:
            ratio = f"sqrt({ratio})"
        rate, wanted = scaled(self.given, batch), scaled(self.given, batch, capped=False)
        capped = f", capped at {scaling.cap:g}" if rate < wanted else ""
        return f"base_lr {self.given.base_lr:g} x {ratio} = {wanted:g}{capped}"

    @staticmethod
    def _steps(values: list[tuple[int, float]]) -> str:
        """Returns every value with the iteration at which it begins; of more than MOST_STEPS the first and the last.

        values: (iteration, value), ascending."""
        steps = [values[0]]
        steps += [(at, value) for (_, before), (at, value) in pairwise(values) if value != before]
        if len(steps) > MOST_STEPS:
            return f"{steps[0][1]:g} to {steps[-1][1]:g} at iteration {steps[-1][0]}"
        return ", ".join(f"{value:g}" + (f" from iteration {at} on" if at else "") for at, value in steps)

    def panels(self, name: str = "") -> list[Panel]:
        """Returns the curves of rate, weight decay and momentum, and of the global batch if it grows. name: the label
        of the curves, where several solvers are drawn."""
        kinds = {"learning rate": "rate", "weight decay": "decay", "momentum": "momentum"}
        if self.param.HasField("batch_growth"):
            kinds["global batch"] = "batch"
        panels = []
        for title, kind in kinds.items():
            known = [(point.iteration, getattr(point, kind)) for point in self.points]
            points = [(float(iteration), float(value)) for iteration, value in known if value is not None]
            panels.append(Panel(title, [Series(name or title, points)]))
        return panels

    # Doubts

    def doubts(self) -> Iterator[str]:
        """Yields what the solver's numbers probably do not mean, because they contradict each other."""
        param, size = self.param, self.given.epoch_size
        if size and self.size and size != self.size:
            yield f"epoch_size is {size}, but the source has {self.size} samples"
        if param.warmup_iter > param.max_iter > 0:
            yield f"warmup_iter {param.warmup_iter} is longer than the run, max_iter {param.max_iter}"
        elif 0 < param.base_lr < param.warmup_start_lr and param.warmup_iter > 0:
            yield f"the warm-up begins at {param.warmup_start_lr:g}, above the rate {param.base_lr:g} that it leads to"
        if self.given.HasField("lr_scaling"):
            yield from self._doubts_of_scaling()
        yield from self._doubts_of_steps()
        yield from self._doubts_of_the_end()

    def _doubts_of_scaling(self) -> Iterator[str]:
        given, scaling = self.given, self.given.lr_scaling
        if scaling.HasField("cap") and scaling.cap < given.base_lr:
            yield f"lr_scaling.cap {scaling.cap:g} is below base_lr {given.base_lr:g}, the rate of the base batch"
        factor = self.param.base_lr / given.base_lr if given.base_lr else 0
        if factor >= 4 and not self.param.warmup_iter and not self.is_trained:
            yield (
                f"the rate begins at {factor:.3g} times base_lr, without a warm-up (warmup_epoch: 5 is usual, except "
                "where a run goes on from trained weights)"
            )
        ratio = scaled(given, self.calendar.batch, capped=False) / given.base_lr if given.base_lr else 0
        uncapped = scaling.rule == scaling.LINEAR and not scaling.HasField("cap") and not has_local_rates(given)
        if uncapped and ratio > LARGEST_SCALING:
            yield (
                f"lr_scaling: the linear rule gives {ratio:.3g} times base_lr; published runs stop at "
                f"{LARGEST_SCALING} times (cap: {LARGEST_SCALING * given.base_lr:g}) and warm up for 7 to 10 epochs"
            )
        start = given.warmup_start_lr
        if start > 0 and ratio >= 4 and ratio / 2 <= given.base_lr / start <= ratio * 2:
            yield (
                f"base_lr {given.base_lr:g} seems to be scaled already: it is {given.base_lr / start:.3g} times "
                f"warmup_start_lr, and lr_scaling multiplies it by {ratio:.3g}"
            )

    def _doubts_of_steps(self) -> Iterator[str]:
        """Yields steps that come after the end of the run."""
        param = self.param
        first = first_of_policy(param)
        steps = {"stepvalue": (param.stepvalue, first), "batch_growth.stepvalue": (param.batch_growth.stepvalue, 0)}
        steps["weight_decay_schedule.stepvalue"] = (param.weight_decay_schedule.stepvalue, 0)
        for name, (values, begin) in steps.items():
            late = [value for value in values if begin + value > param.max_iter]
            if late:
                yield f"{name} {late[0]} is never reached: the run ends at iteration {param.max_iter - begin}"

    def _doubts_of_the_end(self) -> Iterator[str]:
        param = self.param
        if all(point.rate == 0 for point in self.points):
            yield "the learning rate is 0 throughout: nothing is learned"
        still = [point.iteration for point in self.points if point.rate == 0 and point.iteration >= param.warmup_iter]
        if still and param.base_lr > 0 and is_given(param, "base_lr"):
            yield f"the learning rate is 0 at iteration {still[0]} of {param.max_iter}: nothing is learned there"
        if param.lr_policy == "sgdr":
            first = first_of_policy(param)
            number, over = cycle_position(param, max(0, param.max_iter - first))
            if 0.02 < over < 0.98:
                yield f"the run ends when {100 * over:.0f}% of cycle {number + 1} are over, at a high rate"
