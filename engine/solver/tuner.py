"""`comm_param { autotune: true }`: measures in the first iterations, which train like all others, how gradients are
best reduced on this machine (as Horovod's autotuner does, Sergeev and Del Balso 2018)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.comm.search import Search, as_text, fields_of, free_fields, from_json, to_json
from engine.comm.settings import CommSettings
from engine.errors import Complaint, ConfigError, WeightsError
from engine.host.cores import fewest_cores
from engine.report.log import log
from engine.report.observer import Observer
from engine.solver.modes import Mode

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.data.feeder import Feeder
    from engine.solver.optimizer import Optimizer

WARM_UP, TIMED = 1, 4  # iterations of each trial


def complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields what does not go with comm_param.autotune."""
    comm = param.comm_param
    others = {
        f"mode: {Mode.Name(comm.mode)}": comm.mode != comm.SYNC,
        "shard_updates": comm.shard_updates,
        "adversarial, which has two nets": param.HasField("adversarial"),
    }
    for other, is_there in others.items():
        if comm.autotune and is_there:
            yield (
                "comm_param.autotune",
                f"comm_param.autotune does not go together with {other}: take it out, and set the fields by hand",
            )


def refuse(observers: Sequence[Observer], place: Callable[[str], str]) -> None:
    """Raises ConfigError for observers that want the events of single buckets: a search changes the buckets."""
    if any(type(each).wants_trace is not Observer.wants_trace for each in observers):
        raise ConfigError(
            "comm_param.autotune does not go together with --timeline and --layer_times, which need "
            "the same buckets throughout: run without them once, then put what the log says at the end into the solver",
            place("comm_param.autotune"),
        )


class Tuner:
    """Wraps each iteration until the search is over; then the optimizer has the settings of the fastest steps.

    A trial's time is the median of TIMED steps of the slowest rank, without its waits for data. It counts whole steps,
    not exposed communication alone: servers that take cores from the compute threads make steps longer, and yet leave
    no communication exposed.

    is_done: whether the search is over. chosen: what it has found, as JSON for snapshots; None before.
    """

    def __init__(self, optimizer: Optimizer, feeder: Feeder, world: World):
        self._optimizer, self._feeder, self._world = optimizer, feeder, world
        settings, cores = optimizer.strategy.settings, fewest_cores(world.places())
        self._cores = settings.cores
        param = optimizer.param.comm_param
        self._free = free_fields(settings, param, world)
        self._search = Search(settings, fields_of(settings, param, world, cores))
        self._times: list[tuple[float, float]] = []
        self.is_done = world.broadcast_object(self._search.is_over)  # rank 0's search counts: see _read()
        if self.is_done:
            log("autotune: comm_param gives all fields that could be tried; nothing is measured")
        self.chosen: str | None = None

    def restore(self, chosen: str | None, ranks: int | None, source: str) -> None:
        """Collective. Goes on with the settings that a snapshot's run has chosen, if it had as many ranks: sums are
        then made in the same order. Raises WeightsError if they cannot be read."""
        if chosen is None or self.is_done or ranks != self._world.size:
            return
        read = self._world.broadcast_object(self._read(chosen) if self._world.rank == 0 else None)
        if not isinstance(read, CommSettings):
            raise WeightsError(f"{source}: what autotune has chosen cannot be read: {read}")
        self._use(read)
        self.is_done, self.chosen = True, chosen
        log(f"autotune: as in the snapshot: {as_text(read)}")

    def _read(self, chosen: str) -> CommSettings | str:
        """Returns the settings, or why they cannot be read. Rank 0 alone decides, as in a search: hosts may have
        different numbers of ranks, and so different fields that are free to try."""
        try:
            return from_json(chosen, self._optimizer.strategy.settings, self._free)
        except ValueError as error:
            return str(error)

    def _use(self, settings: CommSettings) -> None:
        """Collective. Makes the optimizer reduce gradients with these settings, on the cores of the solver's."""
        wanted = replace(settings, cores=self._cores)
        if wanted != self._optimizer.strategy.settings:
            self._optimizer.communicate(wanted)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Times the iteration inside the context. Collective at the end of a trial's last one."""
        waited, begin = self._feeder.wait_seconds, time.perf_counter()
        exposed = self._optimizer.waited_ns()
        yield
        step = time.perf_counter() - begin - (self._feeder.wait_seconds - waited)
        self._times.append((step, (self._optimizer.waited_ns() - exposed) / 1e9))
        if len(self._times) == WARM_UP + TIMED:
            self._end_trial()

    def end(self) -> None:
        """Logs the best settings so far if the run is over before the search."""
        if not self.is_done:
            log(f"autotune: the run has ended before the search; best so far: {as_text(self._search.best)}")

    def _end_trial(self) -> None:
        search, all_times = self._search, self._world.gather(self._times[WARM_UP:])
        self._times = []
        if all_times is not None:  # on rank 0
            step, exposed = np.median(np.max(np.array(all_times), axis=0), axis=0)
            known = len(search.trials)
            search.tell(float(step), float(exposed))
            for trial in search.trials[known:]:
                log(f"autotune: {trial}")
        current, self.is_done = self._world.broadcast_object((search.current, search.is_over))
        self._use(current)
        if self.is_done:
            self.chosen = to_json(current)
            count = len({trial.settings for trial in search.trials})
            log(f"autotune: the fastest of {count} settings; to keep it: {as_text(current)}")
