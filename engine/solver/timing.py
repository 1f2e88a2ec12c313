"""Where a solver's time goes: measured for the display, the table of layers (--layer_times) and the timeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.report.layer_times import LayerTimes
from engine.report.log import log
from engine.report.step_times import StepTimes

if TYPE_CHECKING:
    from engine.report.timeline import Timeline
    from engine.solver.solver import Solver


class Timing:
    """Told by the solver, step by step:

    begin(); for each micro-batch next_batch(), wait_for_updates() before the first backward, passed() after each;
    end() before the iteration is counted, stepped() after; aside() for what does not belong to a step.
    """

    def __init__(self, solver: Solver, timeline: Timeline | None, layer_times: bool):
        self._solver, self.timeline = solver, timeline
        self._begun = 0  # the iteration, nanoseconds of time.monotonic_ns()
        self.step_times = StepTimes()
        self.layer_times = LayerTimes(solver.net, solver.strategy.buckets) if layer_times else None

    def begin(self) -> None:
        self._begun = time.monotonic_ns()
        self.step_times.begin(*self._waits())

    def end(self) -> None:
        self.step_times.end(*self._waits())
        if self._shows(self._solver.iteration):
            self.timeline.iteration(self._solver.iteration, self._begun, time.monotonic_ns())

    def aside(self, begin: int) -> None:
        """Since `begin`, nanoseconds of time.monotonic_ns()."""
        self.step_times.aside(time.monotonic_ns() - begin)

    def _waits(self) -> tuple[int, int]:
        """Nanoseconds that this rank has waited so far: for data; for reduced gradients, and for other ranks' parts."""
        solver = self._solver
        exchanged = sum(group.waited_ns for group in solver.groups)
        return int(solver.feeder.wait_seconds * 1e9), solver.strategy.waited_ns() + exchanged

    def next_batch(self) -> int:
        """Feeds the net; the first sample's number."""
        solver, begin = self._solver, time.monotonic_ns()
        first_sample = solver.feeder.next(solver.net)
        if self._shows(solver.iteration):
            self.timeline.waiting(solver.iteration, "data", begin, time.monotonic_ns())
        if self.timeline is not None and solver.feeder.decoded:
            self.timeline.decoded(solver.iteration, *solver.feeder.decoded)
        return first_sample

    def wait_for_updates(self) -> None:
        """Nothing may still read the gradients."""
        solver, begin = self._solver, time.monotonic_ns()
        solver.strategy.wait_all()
        if self._shows(solver.iteration):
            self.timeline.waiting(solver.iteration, "all updates", begin, time.monotonic_ns())

    def _shows(self, iteration: int) -> bool:
        return self.timeline is not None and self.timeline.wants(iteration)

    def passed(self) -> None:
        if self.layer_times is not None:
            self.layer_times.passed(self._solver.net)

    def stepped(self) -> None:
        """The iteration's spans, for who wants them; servers are still busy with it, their events come later."""
        if self.timeline is None and self.layer_times is None:
            return
        solver = self._solver
        done, buckets, strategy = solver.iteration - 1, solver.strategy.buckets, solver.strategy
        events = strategy.events()
        wanted = self._shows(done)
        strategy.record(self.layer_times is not None or wanted or self._shows(done + 1))
        if self.layer_times is not None:
            self.layer_times.stepped(done, events, [solver.queue.waited_ns(bucket.index) for bucket in buckets])
        if self.timeline is not None:
            if wanted:
                self.timeline.compute(solver.net, done)
            names = [bucket.name for bucket in buckets]
            self.timeline.communication([event for event in events if self.timeline.wants(event.step)], names)
            self.timeline.synchronise(done, solver.world)

    def log_line(self) -> None:
        """Collective: where the time of the iterations since the last line went."""
        line = self.step_times.line(self._solver.world)
        if line:
            log(f"    {line}")

    def write(self) -> None:
        """Collective, at the end, when nothing is in flight: the table and the file."""
        self.stepped()
        if self.layer_times is not None:
            log(self.layer_times.table(self._solver.world))
        if self.timeline is not None:
            self.timeline.write(self._solver.world)
            log(f"Timeline in {self.timeline.path}: open it in ui.perfetto.dev or chrome://tracing")
