"""Collects what observers are told of an iteration: its StepRecord."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.host.ranks import gather_everywhere
from engine.report.observer import Figures, Observers, StepRecord, Trace, Wait

if TYPE_CHECKING:
    from engine.comm.mpi_group import MpiGroup
    from engine.comm.world import World
    from engine.data.feeder import Feeder
    from engine.net import Net
    from engine.solver.optimizer import Optimizer
    from engine.solver.state import TrainingState


class Recorder:
    """Call begin() before a step, wait() around what the solver's thread waits for, passed() after each backward, and
    end() for the record.

    groups: of ranks that hold layers together, whose exchanges are waiting, too."""

    def __init__(
        self,
        observers: Observers,
        feeder: Feeder,
        optimizers: Sequence[Optimizer],
        groups: Sequence[MpiGroup],
    ):
        self._observers, self._feeder, self._optimizers, self._groups = observers, feeder, optimizers, groups
        self._optimizer = optimizers[0]  # the one whose events are traced
        self._traced = False  # whether any observer has wanted a trace so far
        self._iteration, self._wants_trace = 0, False
        self._spans: list[np.ndarray] = []

    def begin(self, iteration: int) -> None:
        self._iteration, self._begin = iteration, time.monotonic_ns()
        self._waited_before = self._waited()
        self._waits: list[Wait] = []
        self._decoded: list[tuple[int, int]] = []
        self._spans = []
        self._wants_trace = self._observers.wants_trace(iteration)

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        begin = time.monotonic_ns()
        yield
        self._waits.append(Wait(what, begin, time.monotonic_ns()))

    def passed(self, net: Net) -> None:
        """Notes what a micro-batch did, after its backward."""
        if self._feeder.decoded:
            self._decoded.append(self._feeder.decoded)
        if self._wants_trace:
            self._spans.append(net.program.spans())

    def end(self, rate: float, loss: float, samples: int, figures: Figures | None) -> StepRecord:
        """Returns the record of an iteration, after its end. figures: None if no observer wants them."""
        end = time.monotonic_ns()
        waited = [after - before for before, after in zip(self._waited_before, self._waited(), strict=True)]
        return StepRecord(
            iteration=self._iteration,
            rate=rate,
            loss=loss,
            begin=self._begin,
            end=end,
            waited_data=waited[0],
            waited_ranks=waited[1],
            samples=samples,
            waits=tuple(self._waits),
            decoded=tuple(self._decoded),
            figures=figures,
            trace=self.trace(),
        )

    def trace(self) -> Trace | None:
        """Returns the events since the last trace; None as long as no observer has wanted one. Servers may still be
        busy with the last iteration: its last events come in the next trace."""
        following = self._observers.wants_trace(self._iteration + 1)
        self._traced = self._traced or self._wants_trace or following
        if not self._traced:
            return None
        events = self._optimizer.events()
        self._optimizer.trace(self._wants_trace or following)
        return Trace(tuple(self._spans), events, self._optimizer.waited_by_bucket())

    def _waited(self) -> tuple[int, int]:
        """Returns how many nanoseconds this rank has waited so far for data, and for other ranks: their gradients, and
        their parts of layers."""
        exchanged = sum(group.waited_ns for group in self._groups)
        return int(self._feeder.wait_seconds * 1e9), sum(each.waited_ns() for each in self._optimizers) + exchanged


def figures_of(net: Net, state: TrainingState, world: World, in_step: bool) -> Figures:
    """Returns loss and outputs of the last iteration, as means over the ranks. Collective, but where ranks are not in
    step: then they are this rank's own."""
    shown, weights = net.outputs(), {top: weight for _, top, weight in net.losses()}
    outputs = {name: values.astype(np.float64).ravel() for name, values in shown.items()}
    if not in_step:
        return Figures(state.loss, outputs, weights)
    shapes = gather_everywhere(world, {name: values.shape for name, values in shown.items()})
    for name, values in outputs.items():
        if all(each[name] == shown[name].shape for each in shapes):  # else each rank shows its own
            world.allreduce(values)
            values /= world.size
    return Figures(state.mean_loss(world), outputs, weights)
