"""A timeline of a few iterations as a Chrome trace (chrome://tracing, ui.perfetto.dev): one process per rank, with rows
for iterations, data, compute and communication servers, all on rank 0's clock."""

from __future__ import annotations

import json

import numpy as np

from engine.files import atomic_write
from engine.report.log import log
from engine.report.observer import Observer, Run, StepRecord, Trace

MOST_RANKS = 64  # that are shown: of more, nobody could read the trace, and the file would be too large for viewers
WARM_UP = 2  # iterations: kernels are generated and memory is touched in the first
GAP_NS = 20_000  # a shorter pause between two layers is no waiting


class Timeline(Observer):
    """Collects this rank's spans; at the end of the run the ranks' are merged and written.

    All times are CLOCK_MONOTONIC nanoseconds (time.monotonic_ns()) of the rank. It shows `iterations` iterations
    after the first `warm_up` of the run, on the first MOST_RANKS ranks; what was over before the first of these begins
    is not in the file.
    """

    def __init__(self, path: str, iterations: int = 4, warm_up: int = WARM_UP):
        self.path = path
        self._iterations, self._warm_up = iterations, warm_up
        self._first = 0  # iteration of the run
        self._begin: int | None = None  # of the first iteration that is shown
        self._end = 0  # of the last one so far
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
        """Anything that takes time: data, a test, a snapshot."""
        self._spans.append((row, name, begin, end, arguments))

    def iteration(self, iteration: int, begin: int, end: int) -> None:
        """From its first batch until its backward is over and every server knows of its gradients."""
        if self._begin is None:
            self._begin = begin
        self._end = end
        self.span("iterations", f"iteration {iteration}", begin, end, iteration=iteration)

    def compute(self, spans: np.ndarray, iteration: int) -> None:
        """The last forward and backward of an iteration, op by op, as Program.spans() gives them.

        Between two ops of forward the executor does nothing but wait for updated weights: such pauses are shown."""
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
        """What servers did for the iterations that are shown."""
        events = [event for event in trace.events if self.wants_trace(event.step)]
        for step, bucket, server, ready, start, reduced, end in sorted(events, key=lambda event: event[6]):
            arguments = {"iteration": step, "bucket": bucket, "waited_us": max(0, start - ready) / 1000}
            if reduced > start:
                name = f"reduce {self._buckets[bucket]}"
                self.span(f"server {server}: reduce", name, start, reduced, **arguments)
            # With clipping, reduced buckets wait for the norm: an update begins when the one before is done.
            name = f"update {self._buckets[bucket]}"
            self._after(f"server {server}: update", name, max(reduced, start), end, **arguments)

    def decoded(self, iteration: int, begin: int, end: int) -> None:
        """When data threads have worked on this iteration's batch: told for all, as they are ahead by several."""
        if self.wants_trace(iteration) or begin < self._end:
            self._after("data", "decode a batch", begin, end, iteration=iteration)

    def waiting(self, iteration: int, what: str, begin: int, end: int) -> None:
        """The solver's thread before forward, or between forward and backward."""
        if end - begin > GAP_NS:
            self.span("compute", f"wait for {what}", begin, end, iteration=iteration)

    def _after(self, row: str, name: str, begin: int, end: int, **arguments: object) -> None:
        """A span that begins when the one before it in its row is over."""
        begin = max(begin, self._busy.get(row, 0))
        self._busy[row] = max(begin, end)
        self.span(row, name, begin, self._busy[row], **arguments)

    def synchronise(self, iteration: int) -> None:
        """Collective, after every iteration: compares the ranks' clocks when the last one to be shown is over."""
        if iteration - self._first == self._warm_up + self._iterations:
            self._offset = self._world.clock_offset()

    def write(self) -> None:
        """Collective. Rank 0 writes the trace of all ranks; raises EngineError if it cannot."""
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
        """Without what came before the first iteration, such as batches decoded ahead: it would stretch the axis."""
        first = self._begin
        if first is None:
            return self._spans
        return [(row, name, max(begin, first), end, more) for row, name, begin, end, more in self._spans if end > first]


def _rank_events(rank: int, spans: list[tuple], shift: int) -> list[dict]:
    """Trace events (times in microseconds) of one rank, its rows named and in a fixed order."""
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
