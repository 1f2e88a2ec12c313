"""`--tensorboard DIR`: writes event files for TensorBoard by the tensorboardX library."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError
from engine.files import check_writable, reason
from engine.report.log import log, warn
from engine.report.metrics import elements
from engine.report.observer import Observer, Run, StepRecord, TestRecord, ValuesRecord

if TYPE_CHECKING:
    from engine.net import Net


@dataclass
class _Since:
    """Sums over the iterations since the last display; times in nanoseconds."""

    begin: int = 0
    end: int = 0
    count: int = 0
    data: int = 0
    ranks: int = 0
    samples: int = 0

    def add(self, record: StepRecord) -> None:
        self.begin = self.begin if self.count else record.begin
        self.end = record.end
        self.count += 1
        self.data += record.waited_data
        self.ranks += record.waited_ranks
        self.samples += record.samples


class TensorBoard(Observer):
    """Writes on rank 0: losses, the learning rate and where the time went, whenever an iteration is displayed; the
    outputs of every test; the net's graph; every `histograms` iterations, how weights and gradients are distributed.

    A run that goes on from a snapshot, or without ranks that have died, adds another file to the folder. That file
    tells TensorBoard to forget what was shown from that iteration on, so that no step is there twice.
    """

    def __init__(self, folder: str, histograms: int = 0, rank: int = 0):
        """Makes the folder, on rank 0. Raises EngineError if tensorboardX is missing, or the folder cannot be made or
        written to. histograms: iterations between them; 0: none."""
        self._folder, self._histograms = Path(folder), histograms
        self._writer: Any = None
        self._error: OSError | None = None  # why the file could not be written
        self._since = _Since()
        if rank == 0:
            _library()
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EngineError(f"--tensorboard: cannot be made: {reason(error)}", folder) from None
            check_writable(self._folder / "events.out.tfevents")

    def begin(self, run: Run) -> None:
        self._world = run.world
        if self._world.rank:
            return
        self._open(run.first)
        self._writer.file_writer.event_writer.add_event(_graph_event(run.net))
        log(f"Event files in {self._folder}: tensorboard --logdir {self._folder}")

    def _open(self, first: int) -> None:
        """Opens a file for what is shown from an iteration on."""
        # TensorBoard reads files in the order of their names, which tell two of one second apart by this number only.
        before = len(list(self._folder.glob("events.out.tfevents.*")))
        self._writer = _library().SummaryWriter(str(self._folder), filename_suffix=f".{before:05}")
        # An error would end the library's thread with a traceback, and the run would wait for that for ever.
        writer = self._writer.file_writer.event_writer
        for name in ("write_event", "flush", "close"):
            setattr(writer._ev_writer, name, self._noting(getattr(writer._ev_writer, name)))
        for event in _purge_events(first):  # here, for the thread of SummaryWriter would write its own before _noting()
            writer.add_event(event)

    def _noting(self, write: Callable[..., object]) -> Callable[..., object]:
        """Returns a function that does what `write` does, but keeps an OSError for _is_open()."""

        def noting(*arguments: object) -> object:
            try:
                return write(*arguments)
            except OSError as error:
                self._error = error

        return noting

    def _is_open(self) -> bool:
        """Returns whether there is a file to write. One that could not be written is closed, with a warning."""
        if self._writer and self._error:
            self.close()
        return self._writer is not None

    def gone_back(self, iteration: int) -> None:
        self._since = _Since()
        self.close()
        if self._world.rank:
            return
        try:
            self._open(iteration)
        except (EngineError, OSError) as error:  # this rank may have taken rank 0's place, and never have written
            self._warn(error)

    def wants_values(self, iteration: int) -> bool:
        return self._histograms > 0 and iteration % self._histograms == 0 and self._is_open()

    def step(self, record: StepRecord) -> None:
        if not self._is_open():
            return
        self._since.add(record)
        if record.figures is None:
            return
        at, figures = record.iteration, record.figures
        self._add("loss/train", figures.loss, at)
        several = {name: values for name, values in figures.outputs.items() if name not in figures.loss_weights}
        for name, value in _named(several):
            self._add(f"train/{name}", value, at)
        if len(figures.loss_weights) > 1:  # each of them, before its weight
            for name, value in _named(
                {name: values for name, values in figures.outputs.items() if name in figures.loss_weights}
            ):
                self._add(f"train/{name}", value, at)
        self._add("learning_rate", record.rate, at)
        self._add_times(at)
        self._since = _Since()

    def _add_times(self, iteration: int) -> None:
        """Adds this rank's mean times of the iterations since the last display."""
        since = self._since
        whole = since.end - since.begin
        self._add("time/ms_per_iteration", whole / since.count / 1e6, iteration)
        for name, nanoseconds in (("data", since.data), ("ranks", since.ranks)):
            self._add(f"time/ms_waiting_for_{name}", nanoseconds / since.count / 1e6, iteration)
        if whole:
            self._add("time/samples_per_second", since.samples / whole * 1e9, iteration)

    def test(self, record: TestRecord) -> None:
        if not self._is_open():
            return
        net = f"_{record.index}" if record.index else ""
        for name, value in _named(record.outputs):
            is_loss = name in record.loss_weights
            self._add(f"loss/test{net}_{name}" if is_loss else f"test{net}/{name}", value, record.iteration)
        self._writer.flush()

    def values(self, record: ValuesRecord) -> None:
        if not self._is_open():
            return
        for kind, arrays in (("weights", record.weights), ("gradients", record.gradients)):
            for name, values in arrays.items():
                finite = values[np.isfinite(values)]
                if finite.size:
                    self._writer.add_histogram(f"{kind}/{name}", finite, record.iteration)

    def finished(self, iteration: int, loss: float) -> None:
        if self._is_open():
            self._add("loss/train", loss, iteration)

    def _add(self, tag: str, value: float, iteration: int) -> None:
        self._writer.add_scalar(tag, float(value), iteration)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None
        if self._error:
            self._warn(self._error)
            self._error = None

    def _warn(self, error: Exception) -> None:
        warn(f"--tensorboard: the event files in {self._folder} end here: {reason(error)}")


def _named(outputs) -> list[tuple[str, float]]:
    """Returns (name, value) of each element of outputs; elements of one output are numbered if it has several."""
    return [
        (f"{name}/{index}" if np.size(values) > 1 else name, value)
        for name, values in outputs.items()
        for index, (_, value) in enumerate(elements({name: values}))
    ]


def _library():
    try:
        import tensorboardX
    except ImportError:
        raise EngineError("--tensorboard needs tensorboardX: pip install prototxt-engine[tensorboard]") from None
    return tensorboardX


def _proto(name: str) -> Any:
    return import_module(f"tensorboardX.proto.{name}_pb2")


def _purge_events(first: int) -> list:
    """Returns the events that tell TensorBoard to forget what earlier files show from this iteration on."""
    make, session = _proto("event").Event, _proto("event").SessionLog
    return [
        make(step=first, file_version="brain.Event:2"),
        make(step=first, session_log=session(status=session.START)),
    ]


def _graph_event(net: Net):
    """Returns the net as a graph that TensorBoard draws, with a node for each layer. A "/" in a name makes a group."""
    graph = _proto("graph").GraphDef(versions=_proto("versions").VersionDef(producer=22))
    makers: dict[object, str] = {}
    for layer in net.graph.layers:
        name = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", layer.name)
        node = graph.node.add(name=name, op=layer.type)
        node.input.extend(dict.fromkeys(makers[blob] for blob in layer.bottoms if blob in makers))
        for top in layer.tops:
            makers[top] = name
            shape = node.attr["_output_shapes"].list.shape.add()
            for size in top.shape:
                shape.dim.add(size=size)
    return _proto("event").Event(graph_def=graph.SerializeToString())
