"""What looks over a solver's shoulder: `step(solver)` after every iteration, `tested(...)` after every test, `close(solver)`
at the end of a run that went well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.report.log import log
from engine.report.plot import History, write_curve
from engine.report.progress import Progress
from engine.report.timeline import Timeline

if TYPE_CHECKING:
    from engine.evaluate import Outputs
    from engine.solver.solver import Solver


class Watch:
    """Sees nothing; for those that want some of the calls only."""

    def step(self, solver: Solver) -> None: ...

    def tested(self, solver: Solver, index: int, values: Outputs) -> None: ...

    def close(self, solver: Solver) -> None: ...


class WatchProgress(Watch):
    """The bar of a training on a terminal. Elsewhere the log lines tell."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def step(self, solver: Solver) -> None:
        if self._progress is None:
            self._progress = Progress("Training", solver.param.max_iter, begin=solver.iteration - 1)
        self._progress.update(solver.iteration, note=f"loss = {solver.recent_loss[-1]:.4g}" if solver.recent_loss else "")

    def close(self, solver: Solver) -> None:
        if self._progress:
            self._progress.close()


class WatchCurve(Watch):
    """Draws the curve of the run beside its snapshots; on rank 0."""

    def __init__(self) -> None:
        self._history: History | None = None
        self._shown: tuple | None = None

    def _of(self, solver: Solver) -> History:
        if self._history is None:
            self._history = History(f"{solver.net.name} ({solver.config.path})")
        return self._history

    def step(self, solver: Solver) -> None:
        shown = getattr(solver, "shown", None)
        if shown is not self._shown:
            self._shown = shown
            self._of(solver).train(*shown)

    def tested(self, solver: Solver, index: int, values: Outputs) -> None:
        self._of(solver).test(solver.iteration, values, solver.evaluators[index].loss_weights, index)

    def close(self, solver: Solver) -> None:
        snapshots = solver.param.snapshot or solver.param.snapshot_after_train
        if solver.world.rank or not snapshots or self._history is None:
            return
        prefix = str(solver.files.names()[0]).rpartition("_iter_")[0]
        path = write_curve(self._history, prefix)
        if path:
            log(f"Curve in {path}")


class WatchTimeline(Watch):
    """Writes a timeline of a few iterations to `path`. Of several micro-batches it shows the last."""

    def __init__(self, path: str):
        self._path = path
        self._timeline: Timeline | None = None
        self._ended: int | None = None  # when the iteration before ended

    def step(self, solver: Solver) -> None:
        if self._timeline is None:
            self._timeline = Timeline(self._path, first=solver.iteration - 1)
        done = solver.iteration - 1
        if self._timeline.wants(done):
            self._timeline.compute(solver.net, done, self._ended)
        # Events of an iteration can come late: its last buckets are reduced while the next one runs.
        solver.strategy.record(self._timeline.wants(done) or self._timeline.wants(solver.iteration))
        self._collect(solver)
        self._ended = time.monotonic_ns()

    def _collect(self, solver: Solver) -> None:
        names = [bucket.name for bucket in solver.strategy.buckets]
        events = [event for event in solver.strategy.events() if self._timeline.wants(event.step)]
        self._timeline.communication(events, names)

    def close(self, solver: Solver) -> None:
        if self._timeline is None:
            return
        solver.strategy.wait_all()
        self._collect(solver)
        self._timeline.write(solver.world)
        log(f"Timeline in {self._path}; open it in chrome://tracing or ui.perfetto.dev")
