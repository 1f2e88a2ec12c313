"""The base of what watches a run. An observer is told what happened, in records that it cannot change.

An observer neither feeds data nor waits for updates nor reads the solver. Every rank has the same observers, which are
told of the same things in the same order, so that they may use collective operations (but see Run.in_step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import CommError, EngineError
from engine.report.log import warn

if TYPE_CHECKING:
    from engine.comm.buckets import Bucket
    from engine.comm.strategies.strategy import Event
    from engine.comm.world import World
    from engine.net import Net


@dataclass(frozen=True)
class BestOutput:
    """The test output that tells which weights are the best, and its best value so far."""

    output: str
    index: int  # of the test net
    sign: int  # 1: the highest value is the best; -1: the lowest
    value: float | None = None  # None before the first test
    iteration: int | None = None


@dataclass(frozen=True)
class Run:
    """What is trained, and how."""

    world: World
    net: Net
    buckets: Sequence[Bucket]
    first: int  # the first iteration
    last: int  # the iteration at which the run ends
    prefix: str = ""  # of the snapshots' names; "" for a run that saves nothing
    average_loss: int = 1  # number of iterations that a loss is the mean of
    best: BestOutput | None = None  # None for a run that does not keep its best weights
    in_step: bool = True  # whether all ranks are told of the same iterations; if not, only end() may be collective


@dataclass(frozen=True)
class Figures:
    """What an iteration showed, as means over the ranks."""

    loss: float  # the mean of the last average_loss iterations
    outputs: Mapping[str, np.ndarray]  # float64, flat; outputs whose shapes differ among the ranks are this rank's
    loss_weights: Mapping[str, float]  # of the outputs that are losses


@dataclass(frozen=True)
class Wait:
    """A time in which the solver's thread waited for `what` ("data", "all updates"), in nanoseconds of
    time.monotonic_ns()."""

    what: str
    begin: int
    end: int


@dataclass(frozen=True)
class Trace:
    """Where the time of an iteration went, op by op."""

    spans: tuple[np.ndarray, ...]  # of each micro-batch, as from Program.spans()
    events: tuple[Event, ...]  # reductions and updates that have ended since the last trace
    waited: tuple[int, ...]  # nanoseconds that forward has waited for each bucket since the run began


@dataclass(frozen=True)
class StepRecord:
    """One iteration of this rank. Times are nanoseconds of time.monotonic_ns()."""

    iteration: int
    rate: float  # the learning rate
    loss: float  # of this rank, the mean of the last average_loss iterations
    begin: int  # when the solver asked for the first batch
    end: int  # when backward was over and every server knew of its gradients
    waited_data: int  # how long the solver's thread waited for data
    waited_ranks: int  # how long it waited for reduced gradients, or for other ranks' parts
    samples: int = 0  # of all ranks
    waits: tuple[Wait, ...] = ()
    decoded: tuple[tuple[int, int], ...] = ()  # when data threads began and ended each micro-batch
    figures: Figures | None = None  # if an observer wants them
    trace: Trace | None = None  # if an observer wants it


@dataclass(frozen=True)
class ValuesRecord:
    """The parameters of this rank after an iteration, by `layer/number of the blob`; float32 copies."""

    iteration: int
    weights: Mapping[str, np.ndarray]  # after the update
    gradients: Mapping[str, np.ndarray]  # of the update: means over ranks and micro-batches, not clipped


@dataclass(frozen=True)
class TestRecord:
    """What a test net has given on the weights of an iteration."""

    iteration: int
    index: int  # of the test net
    outputs: Mapping[str, np.ndarray]  # as from Evaluator.run()
    loss_weights: Mapping[str, float]  # of the outputs that are losses


class Observer:
    """Base of what watches a run; a subclass overrides what it needs."""

    def wants_figures(self, iteration: int) -> bool:
        """Returns True if step() needs the means over the ranks of this iteration, which take time."""
        return False

    def wants_trace(self, iteration: int) -> bool:
        """Returns True if step() needs the trace of this iteration."""
        return False

    def wants_values(self, iteration: int) -> bool:
        """Returns True if values() is to be called for this iteration on this rank, which then waits for its update. It
        is called more than once in an iteration, and must answer alike."""
        return False

    def begin(self, run: Run) -> None:
        """Called once, before the first iteration."""

    def step(self, record: StepRecord) -> None:
        """Called after each iteration; its update may still be under way."""

    def values(self, record: ValuesRecord) -> None:
        """Called after step() where wants_values() has asked for it; its time does not count as the step's."""

    def test(self, record: TestRecord) -> None:
        """Called for each test net when all are tested; for none if the test is broken off."""

    def gone_back(self, iteration: int) -> None:
        """Called when ranks have died, and when a script restores a snapshot: the run makes this iteration, and those
        after it, again. A script may go back to before Run.first."""

    def saved(self, iteration: int, path: str) -> None:
        """Called after each snapshot, and when a test has shown the best weights so far. path: the file of weights."""

    def removed(self, path: str) -> None:
        """Called when a file that saved() has told of has been removed."""

    def finished(self, iteration: int, loss: float) -> None:
        """Called after the last iteration, before the last test. loss: the mean over the ranks."""

    def end(self, trace: Trace | None) -> None:
        """Called when the run is complete and nothing is in flight. trace: what came after the last record's, if
        wants_trace() was ever True."""

    def close(self) -> None:
        """Called however the run ends, also after an error: on this rank alone, so nothing collective belongs here."""


class Observers(list[Observer], Observer):
    """Several observers as one: it tells them in their order, and wants what one of them wants."""

    def wants_figures(self, iteration: int) -> bool:
        return any(each.wants_figures(iteration) for each in self)

    def wants_trace(self, iteration: int) -> bool:
        return any(each.wants_trace(iteration) for each in self)

    def wants_values(self, iteration: int) -> bool:
        return any(each.wants_values(iteration) for each in self)

    def begin(self, run: Run) -> None:
        for each in self:
            each.begin(run)

    def step(self, record: StepRecord) -> None:
        for each in self:
            each.step(record)

    def values(self, record: ValuesRecord) -> None:
        for each in self:
            if each.wants_values(record.iteration):
                each.values(record)

    def test(self, record: TestRecord) -> None:
        for each in self:
            each.test(record)

    def gone_back(self, iteration: int) -> None:
        for each in self:
            each.gone_back(iteration)

    def saved(self, iteration: int, path: str) -> None:
        for each in self:
            each.saved(iteration, path)

    def removed(self, path: str) -> None:
        for each in self:
            each.removed(path)

    def finished(self, iteration: int, loss: float) -> None:
        for each in self:
            each.finished(iteration, loss)

    def end(self, trace: Trace | None) -> None:
        """Ends each observer. An error of one is a warning: the run is complete, and its weights are saved. Raises only
        CommError: after that the ranks would no longer make the same collective calls."""
        for each in self:
            try:
                each.end(trace)
            except CommError:
                raise
            except (EngineError, OSError, MemoryError) as error:
                warn(f"{type(each).__name__}: {error}")

    def close(self) -> None:
        for each in self:
            each.close()
