"""What watches a run: an observer is told what happened, in records that nothing can be changed through.

An observer neither feeds data nor waits for updates nor reads the solver. On several ranks every rank has the same
observers, told of the same things in the same order, so that they may use collective operations.
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
    """The test output that tells which weights are the best. index: of the test net. sign: -1 where the lowest is.
    value, iteration: of the best so far, None before the first."""

    output: str
    index: int
    sign: int
    value: float | None = None
    iteration: int | None = None


@dataclass(frozen=True)
class Run:
    """What is trained. first, last: iterations. prefix: of the snapshots' names, "" for a run that saves nothing.
    average_loss: iterations that a loss is the mean of. best: for a run that keeps its best weights. in_step: the ranks
    are told of the same iterations; else nothing may be collective but at the end."""

    world: World
    net: Net
    buckets: Sequence[Bucket]
    first: int
    last: int
    prefix: str = ""
    average_loss: int = 1
    best: BestOutput | None = None
    in_step: bool = True


@dataclass(frozen=True)
class Figures:
    """What an iteration showed, as means over the ranks. loss: that of the last average_loss iterations. outputs: by
    name, float64, flat; those whose shapes differ among the ranks are this rank's. loss_weights: of the outputs that
    are losses."""

    loss: float
    outputs: Mapping[str, np.ndarray]
    loss_weights: Mapping[str, float]


@dataclass(frozen=True)
class Wait:
    """The solver's thread waited for `what` ("data", "all updates"); nanoseconds of time.monotonic_ns()."""

    what: str
    begin: int
    end: int


@dataclass(frozen=True)
class Trace:
    """Where the time of an iteration went, op by op. spans: of each micro-batch, as Program.spans() gives them. events:
    what has been reduced and updated since the last trace. waited: nanoseconds by bucket since the run began."""

    spans: tuple[np.ndarray, ...]
    events: tuple[Event, ...]
    waited: tuple[int, ...]


@dataclass(frozen=True)
class StepRecord:
    """One iteration of this rank; times in nanoseconds of time.monotonic_ns(), from the first batch until backward is
    over and every server knows of its gradients.

    loss: smoothed, of this rank. samples: of all ranks. waited_data, waited_ranks: how long the solver's thread stood
    still for data, and for reduced gradients or other ranks' parts. decoded: when data threads worked on each
    micro-batch. figures, trace: for observers that want them.
    """

    iteration: int
    rate: float
    loss: float
    begin: int
    end: int
    waited_data: int
    waited_ranks: int
    samples: int = 0
    waits: tuple[Wait, ...] = ()
    decoded: tuple[tuple[int, int], ...] = ()
    figures: Figures | None = None
    trace: Trace | None = None


@dataclass(frozen=True)
class ValuesRecord:
    """What an iteration has made of what this rank learns, by `layer/number of the blob`: weights after its update, and
    the gradients of that, means over ranks and micro-batches before they are clipped. Copies, float32."""

    iteration: int
    weights: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TestRecord:
    """What test net number `index` gave on the weights of an iteration: outputs as Evaluator.run() returns them."""

    iteration: int
    index: int
    outputs: Mapping[str, np.ndarray]
    loss_weights: Mapping[str, float]


class Observer:
    """Base of what watches a run; a subclass overrides what it needs."""

    def wants_figures(self, iteration: int) -> bool:
        """Returns True if step() needs the means over the ranks of this iteration, which take time."""
        return False

    def wants_trace(self, iteration: int) -> bool:
        """Returns True if step() needs the trace of this iteration."""
        return False

    def wants_values(self, iteration: int) -> bool:
        """Returns True if values() is to be called for this iteration on this rank, which waits for its update. Asked
        more than once in an iteration, and must answer alike."""
        return False

    def begin(self, run: Run) -> None:
        """Called once, before the first iteration."""

    def step(self, record: StepRecord) -> None:
        """Called after each iteration; its update may still be under way."""

    def values(self, record: ValuesRecord) -> None:
        """Called after step(), and after the time that it tells of, where wants_values() has asked for it."""

    def test(self, record: TestRecord) -> None:
        """Called for each test net when all are tested: of a test that is broken off, for none."""

    def gone_back(self, iteration: int) -> None:
        """Called when ranks have died, and when a script restores a snapshot: the run goes on after so many iterations,
        some of them for a second time. Where a script goes back they may be fewer than when the run began."""

    def saved(self, iteration: int, path: str) -> None:
        """Called after each snapshot, and when a test has shown the best weights so far; path: of the weights."""

    def removed(self, path: str) -> None:
        """Called for weights that saved() has told of, and that are not kept any longer."""

    def finished(self, iteration: int, loss: float) -> None:
        """Called after the last iteration, before the last test. loss: the mean over the ranks."""

    def end(self, trace: Trace | None) -> None:
        """Called when the run is complete and nothing is in flight. trace: what came after the last record's, if
        wants_trace() was ever True."""

    def close(self) -> None:
        """Called however the run ends, also after an error: on this rank alone, so nothing collective belongs here."""


class Observers(list[Observer], Observer):
    """Several, which are told in their order, and are asked whether one of them wants something."""

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
        """What one of them cannot write any more is a warning: the run is complete, and its weights are saved. Raises
        CommError, for then the ranks no longer agree about where they are."""
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
