"""Tabulates where training time goes, layer by layer: compute, and each stage of the gradients' reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.report.log import log
from engine.report.observer import Observer, Run, StepRecord, Trace
from engine.report.table import table

if TYPE_CHECKING:
    from engine.comm.world import World

COLUMNS = ("forward", "backward", "start", "reduce", "update", "wait")
LEGEND = (
    "",  # on one rank
    "; start: from ready gradients until their reduction begins; reduce, update: by servers, beside compute; "
    "wait: of the next forward, for the weights",
)
FORWARD, BACKWARD, START, REDUCE, UPDATE, WAIT = range(len(COLUMNS))


class LayerTimes(Observer):
    """Sums times over all iterations of one rank but the first; logs the table, a mean over ranks, at the end.

    The columns forward and backward are compute, of all micro-batches; start is the time from ready gradients until
    their reduction begins; reduce and update are what a server does beside the compute; wait is what the next forward
    waited for the weights. A bucket's times are divided among its layers by their numbers of parameters; a wait counts
    for the layer that reads the bucket first.
    """

    def begin(self, run: Run) -> None:
        net = run.net
        self._world = run.world
        self._layers = list(dict.fromkeys(layer.name for layer in net.builder.layer_of_op))
        row = {name: number for number, name in enumerate(self._layers)}
        self._types = {layer.name: layer.type for layer in net.builder.layer_of_op}
        self._rows = np.array([row[layer.name] for layer in net.builder.layer_of_op])
        self._needs_backward = np.array([net.program.needs_backward(op) for op in range(len(net.program))])
        self._sums = np.zeros((len(self._layers), len(COLUMNS)))
        uses = {parameter.name: op for parameter, op in net.first_uses().items()}
        self._shares: list[list[tuple[int, float]]] = []  # of each bucket: a layer's row, its fraction of the floats
        self._readers: list[int] = []  # of each bucket: the row of the layer that reads it first
        for bucket in run.buckets:
            ops = [uses[one.name] for one in bucket.ranges]
            sizes = np.array([one.end - one.begin for one in bucket.ranges], float)
            self._shares.append([(self._rows[op], size) for op, size in zip(ops, sizes / sizes.sum(), strict=True)])
            self._readers.append(self._rows[min(ops)])
        self._first: int | None = None  # iteration that does not count
        self._counted = 0  # iterations of this rank; in mode ASYNC other ranks may have other numbers
        self._waited = self._waited_first = np.zeros(len(self._shares))

    def wants_trace(self, iteration: int) -> bool:
        return True

    def step(self, record: StepRecord) -> None:
        trace = record.trace
        assert trace is not None, "every iteration's trace is wanted"
        if self._first is None:
            self._first, self._waited_first = record.iteration, np.array(trace.waited, float)
        else:
            self._counted += 1
            for spans in trace.spans:
                self._add_spans(spans)
        self._add_events(trace)

    def gone_back(self, iteration: int) -> None:
        self._sums[:] = 0
        self._first, self._counted = None, 0  # buckets are counted anew

    def end(self, trace: Trace | None) -> None:
        if trace is not None:
            self._add_events(trace)
        log(self.table(self._world))

    def _add_spans(self, spans: np.ndarray) -> None:
        count = len(self._rows)
        lengths = np.diff(spans, axis=1)[:, 0]
        np.add.at(self._sums[:, FORWARD], self._rows, lengths[:count])
        backward = np.where(self._needs_backward, lengths[: count - 1 : -1], 0)
        np.add.at(self._sums[:, BACKWARD], self._rows, backward)

    def _add_events(self, trace: Trace) -> None:
        self._waited = np.array(trace.waited, float)
        for event in trace.events:
            if event.step == self._first:
                continue
            for row, share in self._shares[event.bucket]:
                self._sums[row, START] += share * max(0, event.start - event.ready)
                self._sums[row, REDUCE] += share * (event.reduced - event.start)
                self._sums[row, UPDATE] += share * (event.end - event.reduced)

    def table(self, world: World) -> str:
        """Collective; call it when nothing is in flight. Returns the table: milliseconds per iteration, the mean of the
        ranks."""
        sums, having = self._sums.copy(), np.array([float(self._counted > 0)])
        np.add.at(sums[:, WAIT], self._readers, self._waited - self._waited_first)
        sums /= max(1, self._counted)
        world.allreduce(sums)
        world.allreduce(having)
        if not having[0]:
            return "Layer times need two iterations: the first does not count."
        means = sums / (1e6 * having[0])
        columns = COLUMNS if world.size > 1 else ("forward", "backward", "update")
        chosen = [COLUMNS.index(name) for name in columns]
        rows = [
            (name, self._types[name], *(f"{value:.3f}" if value else "" for value in values))
            for name, values in zip(self._layers, means[:, chosen], strict=True)
        ]
        total = ("total", "", *(f"{value:.3f}" for value in means[:, chosen].sum(axis=0)))
        lines = table(("layer", "type", *columns), rows, "<<" + ">" * len(columns), total)
        whose = f"{world.size} ranks" if world.size > 1 else "1 rank"
        what = f"mean of {self._counted} iterations and {whose}{LEGEND[world.size > 1]}"
        return f"Milliseconds per iteration, {what}:\n{lines}"
