"""Writes a timeline of a few iterations as a Chrome trace (chrome://tracing, ui.perfetto.dev): one process per rank,
with rows for iterations, data, compute and communication servers, all on rank 0's clock."""

from __future__ import annotations

import json

import numpy as np

from engine.files import atomic_write
from engine.report.log import log
from engine.report.observer import Observer, Run, StepRecord, Trace

MOST_RANKS = 64  # that are shown: with more, nobody could read the trace, and viewers could not open the file
WARM_UP = 2  # iterations that are not shown: in the first, kernels are generated and memory is touched
GAP_NS = 20_000  # a pause between two layers counts as waiting if it is longer


class Timeline(Observer):
    """Collects this rank's spans. At the end of the run rank 0 merges and writes those of all ranks.

    All times are CLOCK_MONOTONIC nanoseconds (time.monotonic_ns()) of the rank. It shows `iterations` iterations
    after the first `warm_up` of the run, on the first MOST_RANKS ranks. The file lacks what was over before the first
    of these began.
    """

    def __init__(self, path: str, iterations: int = 4, warm_up: int = WARM_UP):
        self.path = path
        self._iterations, self._warm_up = iterations, warm_up
        self._first = 0  # iteration of the run
        self._begin: int | None = None  # when the first iteration that is shown began
        self._end = 0  # when the last one so far ended
        self._busy: dict[str, int] = {}  # row -> end of its last span, where spans may not overlap
        self._offset: int | None = None  # of this rank's clock from rank 0's
        self._spans: list[tuple[str, str, int, int, dict[str, object]]] = []  # row, name, begin, end, arguments

    def begin(self, run: Run) -> None:
        self._world, self._first, self._in_step = run.world, run.first, run.in_step
        self._is_shown = run.world.rank < MOST_RANKS
        self._buckets = [bucket.name for bucket in run.buckets]
        self._layers = [layer.name for layer in run.net.builder.layer_of_op]
        self._needs_backward = [run.net.program.needs_backward(op) for op in range(len(run.net.program))]

    def wants_trace(self, iteration: int) -> bool:
        return self._is_shown and self._warm_up <= iteration - self._first < self._warm_up + self._iterations

    def step(self, record: StepRecord) -> None:
        number = record.iteration
        for begin, end in record.decoded:
            self.decoded(number, begin, end)
        if self.wants_trace(number):
            for wait in record.waits:
                self.waiting(number, wait.what, wait.begin, wait.end)
            self.iteration(number, record.begin, record.end)
            if record.trace is not None:
                self.compute(record.trace.spans[-1], number)
        if record.trace is not None:
            self.communication(record.trace)
        if self._in_step:
            self.synchronise(number)

    def end(self, trace: Trace | None) -> None:
        if trace is not None:
            self.communication(trace)
        self.write()
        if self._world.size > MOST_RANKS:
            log(f"The timeline shows the first {MOST_RANKS} of {self._world.size} ranks")
        log(f"Timeline in {self.path}: open it in ui.perfetto.dev or chrome://tracing")

    def span(self, row: str, name: str, begin: int, end: int, **arguments: object) -> None:
        """Adds a span to a row. arguments: what a viewer shows of it."""
        self._spans.append((row, name, begin, end, arguments))

    def iteration(self, iteration: int, begin: int, end: int) -> None:
        """Adds an iteration; see StepRecord for its begin and end."""
        if self._begin is None:
            self._begin = begin
        self._end = end
        self.span("iterations", f"iteration {iteration}", begin, end, iteration=iteration)

    def compute(self, spans: np.ndarray, iteration: int) -> None:
        """Adds the last forward and backward of an iteration, op by op. spans: as from Program.spans().

        Between two ops of forward the executor only ever waits for updated weights; such pauses are shown, too."""
        count = len(self._layers)
        before = None
        for op, (start, end) in enumerate(spans[:count].tolist()):
            if before is not None and start - before > GAP_NS:
                self.span("compute", f"wait for the weights of {self._layers[op]}", before, start, iteration=iteration)
            before = end
            self.span("compute", f"{self._layers[op]} fwd", start, end, iteration=iteration)
        for op in reversed(range(count)):
            start, end = spans[2 * count - 1 - op].tolist()
            if self._needs_backward[op] and end > start:
                self.span("compute", f"{self._layers[op]} bwd", start, end, iteration=iteration)

    def communication(self, trace: Trace) -> None:
        """Adds what servers did for the iterations that are shown."""
        events = [event for event in trace.events if self.wants_trace(event.step)]
        for step, bucket, server, ready, start, reduced, end in sorted(events, key=lambda event: event[6]):
            arguments = {"iteration": step, "bucket": bucket, "waited_us": max(0, start - ready) / 1000}
            if reduced > start:
                name = f"reduce {self._buckets[bucket]}"
                self.span(f"server {server}: reduce", name, start, reduced, **arguments)
            # With clipping, reduced buckets wait for the norm, then are updated one after the other.
            name = f"update {self._buckets[bucket]}"
            self._after(f"server {server}: update", name, max(reduced, start), end, **arguments)

    def decoded(self, iteration: int, begin: int, end: int) -> None:
        """Adds the time in which data threads worked on a batch. It is called for every iteration's: data threads work
        ahead, and may decode a later batch during an iteration that is shown."""
        if self.wants_trace(iteration) or begin < self._end:
            self._after("data", "decode a batch", begin, end, iteration=iteration)

    def waiting(self, iteration: int, what: str, begin: int, end: int) -> None:
        """Adds a wait of the solver's thread, before forward, or between forward and backward."""
        if end - begin > GAP_NS:
            self.span("compute", f"wait for {what}", begin, end, iteration=iteration)

    def _after(self, row: str, name: str, begin: int, end: int, **arguments: object) -> None:
        """Adds a span that does not begin before the last one in its row is over."""
        begin = max(begin, self._busy.get(row, 0))
        self._busy[row] = max(begin, end)
        self.span(row, name, begin, self._busy[row], **arguments)

    def synchronise(self, iteration: int) -> None:
        """Call it after every iteration on all ranks. Collective after the last one that is shown: compares the ranks'
        clocks."""
        if iteration - self._first == self._warm_up + self._iterations:
            self._offset = self._world.clock_offset()

    def write(self) -> None:
        """Collective. Rank 0 writes the trace of all ranks. Raises EngineError if it cannot."""
        offset = self._world.clock_offset() if self._offset is None else self._offset
        gathered = self._world.gather((offset, self._shown()))
        if gathered is None:
            return
        origin = min((span[2] + offset for offset, spans in gathered for span in spans), default=0)
        events: list[dict] = []
        for rank, (offset, spans) in enumerate(gathered[:MOST_RANKS]):
            events += _rank_events(rank, spans, offset - origin)
        with atomic_write(self.path) as file:
            file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())

    def _shown(self) -> list[tuple[str, str, int, int, dict[str, object]]]:
        """Returns the spans, without times before the first iteration, as of batches decoded ahead, which would stretch
        the axis."""
        first = self._begin
        if first is None:
            return self._spans
        return [(row, name, max(begin, first), end, more) for row, name, begin, end, more in self._spans if end > first]


def _rank_events(rank: int, spans: list[tuple], shift: int) -> list[dict]:
    """Returns the trace events of one rank, in microseconds, with names for its rows, in a fixed order. shift:
    nanoseconds to add to its times."""
    rows = {row: number for number, row in enumerate(sorted({span[0] for span in spans}, key=_row_order))}
    events: list[dict] = [_name(rank, 0, "process_name", f"rank {rank}")]
    events += [_name(rank, number, "thread_name", row) for row, number in rows.items()]
    for row, name, begin, end, arguments in spans:
        place = {"pid": rank, "tid": rows[row], "ts": (begin + shift) / 1000, "dur": (end - begin) / 1000}
        events.append({"name": name, "ph": "X", "cat": row.split(":")[0], **place, "args": arguments})
    return events


def _row_order(row: str) -> tuple[int, str]:
    order = ("iterations", "data", "compute")
    return (order.index(row) if row in order else len(order), row)


def _name(rank: int, row: int, kind: str, name: str) -> dict:
    return {"name": kind, "ph": "M", "pid": rank, "tid": row, "args": {"name": name}}
