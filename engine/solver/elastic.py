"""`comm_param { elastic { } }`: when ranks die, the others go on from what they have in memory.

Every few iterations each rank copies its weights and optimizer state, which are the same on all ranks. When ranks die
in an iteration, some of the others have made more of its updates than others have; so all that are left go back to the
newest copy that all of them have, divide the samples anew, and train the iterations since then again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import CommError, ConfigError
from engine.host.launch import detect
from engine.host.memory import require_memory
from engine.report.log import set_up, warn
from engine.solver.elastic_param import divide_micro_batches, require_ranks
from engine.solver.global_batch import set_iter_size
from engine.solver.resolve import rate_share

if TYPE_CHECKING:
    from engine.solver.solver import Solver


def refuse(solver: Solver) -> None:
    """Raises ConfigError for comm_param.elastic where a rank holds something that no other rank has."""
    lost = "model_parallel, of which each rank holds a part" if solver.model_parallel else ""
    if any(reader.owners is not None for feeder in solver.feeders for reader in feeder.readers.values()):
        lost = "data of which each rank has a source of its own (%# or stage_part)"
    if lost and solver.param.comm_param.HasField("elastic"):
        raise ConfigError(
            f"comm_param.elastic does not go together with {lost}: take one of them out",
            solver.config.place("comm_param.elastic"),
        )


def make(solver: Solver) -> Elastic | None:
    """Collective. Returns what lets a run outlive its ranks; None if the solver does not ask for it, or if this MPI
    cannot do it, for which a warning says why.

    Raises ConfigError if fewer ranks were started than min_ranks, CommError if fewer are left: of several stages, an
    earlier one may have lost some."""
    param, size = solver.param.comm_param, solver.world.size
    if not param.HasField("elastic"):
        return None
    launch = detect()
    require_ranks(solver.param, launch.size if launch else 1, solver.config.place)
    if size < (least := param.elastic.min_ranks):
        raise CommError(
            f"there {'are' if size > 1 else 'is'} {size} rank{'s' if size > 1 else ''}, and "
            f"comm_param.elastic.min_ranks is {least}: start as many, with --resume auto where some have died"
        )
    if size == 1:
        return None
    why = solver.world.outlive()
    if why:
        warn(f"comm_param.elastic: a rank that dies ends this run all the same (--resume auto goes on): {why}")
        return None
    return Elastic(solver)


class _Copy:
    """A copy of everything that an iteration begins with, in memory that is allocated once. iteration: which it begins;
    -1 if the copy is empty."""

    def __init__(self, solver: Solver):
        self._arrays = [np.empty_like(array) for array in solver.replica.arrays()]
        self.iteration = -1

    def take(self, solver: Solver) -> None:
        """Copies what the solver has now."""
        for mine, live in zip(self._arrays, solver.replica.arrays(), strict=True):
            np.copyto(mine, live)
        self.iteration, self._state = solver.iteration, solver.state.copy()
        self._test_samples = solver.test_nets.samples
        self._average_begun = solver.average is not None and solver.average.begun

    def restore(self, solver: Solver) -> None:
        """Gives the solver back what it had when it was copied."""
        if solver.average:
            solver.average.catch_up()  # or it would later take in the weights that are restored here
            solver.average.begun = self._average_begun
        for mine, live in zip(self._arrays, solver.replica.arrays(), strict=True):
            np.copyto(live, mine)
        solver.state.take(self._state)
        solver.test_nets.samples = self._test_samples


class Elastic:
    """Lets a solver go on without the ranks that die: outlive() runs the training, keep() follows each iteration."""

    def __init__(self, solver: Solver):
        self._solver, self._param = solver, solver.param.comm_param.elastic
        self._iter_size = max(1, solver.param.iter_size)
        self._micro_batches = self._iter_size * solver.world.size  # of all ranks at the start
        # World numbers the ranks anew after a death. These are the first numbers: this rank's, and those that are left.
        self._number, self._left = solver.world.rank, list(range(solver.world.size))
        total = sum(array.nbytes for array in solver.replica.arrays())
        require_memory(2 * total, "the copies of comm_param.elastic", "without it, a rank that dies ends the run")
        # Two, the newest last: a death may keep some ranks from taking the newest copy, so that all must go back
        # to the one before.
        self._copies = [_Copy(solver), _Copy(solver)]

    def keep(self) -> None:
        """Takes a copy if one is due after the last iteration (keep_every)."""
        solver = self._solver
        if solver.iteration % self._param.keep_every == 0:
            self._take_copy()

    def _take_copy(self) -> None:
        solver = self._solver
        solver.optimizer.wait()
        if solver.average:
            solver.average.catch_up()
        self._copies.reverse()
        self._copies[-1].take(solver)

    def outlive(self, train: Callable[[], bool], end: Callable[[bool], None]) -> bool:
        """Runs train(), again after each death, then end() with what train() returned, which is returned here.

        end() tells users how the run ended. It is called again if a rank dies in it, and if rank 0, which writes the
        log, has died. Raises CommError if fewer ranks are left than min_ranks."""
        world, finished = self._solver.world, False

        def run() -> None:
            nonlocal finished
            finished = train()

        self._take_copy()
        while not self._by_all(run):
            with self._solver.signals:  # a signal that comes now ends the run after its next iteration
                self._go_on()
        if world.has_lost_ranks:
            self._drop_dead_ranks()
        speaker, told = -1, False
        while not told or speaker != self._left[0]:
            speaker = self._left[0]
            told = self._by_all(partial(end, finished))
            if not told or world.has_lost_ranks:
                self._drop_dead_ranks()
        world.stop_outliving()
        return finished

    def _by_all(self, work: Callable[[], None]) -> bool:
        """Collective. Runs work(). Returns, the same on all ranks that are left, whether all of them have finished it.
        Raises CommError where it fails though no rank has died."""
        world, well = self._solver.world, True
        try:
            work()
        except CommError:
            if not world.has_lost_ranks:
                raise
            well = False
            world.revoke()  # the others meet here, too
        return world.all_are_well(well)

    def _go_on(self) -> None:
        """Collective. Brings the ranks that are left back to a common copy, and warns of what that changes."""
        solver, world, begin = self._solver, self._solver.world, time.monotonic()
        reached, before = solver.iteration, self._left
        self._regroup(self._restore)
        solver.observers.gone_back(solver.iteration)
        dead = [str(rank) for rank in before if rank not in self._left]
        batch = f"{world.size} x {solver.feeder.batch_size or solver.calendar.rows} x iter_size {solver.iter_size}"
        warn(
            f"Rank {' and '.join(dead)} died in iteration {reached}; the others ({world.size}) go on after iteration "
            f"{solver.iteration}, in global batches of {batch}, at {solver.optimizer.rate_share:g} of the rate "
            f"({time.monotonic() - begin:.2f} s)"
        )

    def _drop_dead_ranks(self) -> None:
        """Collective, where ranks have died after the last iteration: the others go on without them, from where they
        are."""

        def rejoin() -> None:
            self._solver.optimizer.rejoin()
            self._solver.snapshots.take_over()

        self._regroup(rejoin)

    def _regroup(self, rejoin: Callable[[], None]) -> None:
        """Collective over the ranks that are left. Makes a new world of them, again if another dies meanwhile.

        rejoin: makes what depends on the world anew, such as channels; called in each attempt."""
        solver, world, before = self._solver, self._solver.world, self._left

        def regroup() -> None:
            world.revoke()
            solver.optimizer.stop_after_loss()
            world.shrink()
            rejoin()
            self._left = world.broadcast_object(world.gather(self._number)) or []

        while not self._by_all(regroup):
            pass
        if world.rank == 0 and self._number != before[0]:
            set_up(0)  # rank 0 has died: this rank writes the log now

    def _restore(self) -> None:
        """Collective. Goes back to the newest copy that all ranks have, and divides the global batch among the ranks
        that are left. Raises CommError if these are fewer than min_ranks."""
        solver, world = self._solver, self._solver.world
        if world.size < self._param.min_ranks:
            raise CommError(
                f"{world.size} rank{'s are' if world.size > 1 else ' is'} left, and comm_param.elastic.min_ranks is "
                f"{self._param.min_ranks}: the run ends; --resume auto goes on from its last snapshot"
            )
        found = world.gather(self._copies[-1].iteration)
        newest = world.broadcast_object(min(found) if found else 0)
        if self._copies[-1].iteration != newest:  # this rank's own newest is of an iteration that is trained again
            self._copies.reverse()
            self._copies[0].iteration = -1
        assert self._copies[-1].iteration == newest
        solver.optimizer.rejoin()
        division = divide_micro_batches(self._micro_batches, world.size, self._param.batch, self._iter_size)
        set_iter_size(solver.param, division.iter_size)
        before = solver.calendar.samples(newest)
        batch = round(solver.global_batch * division.share)
        solver.calendar = replace(solver.calendar, batch=batch, begun=newest, before=before)
        solver.optimizer.rate_share = rate_share(solver.given, batch, solver.global_batch)
        self._copies[-1].restore(solver)
        for feeder in solver.feeders:
            feeder.regroup()
        solver.feeder.start(solver.state.samples_seen)
        world.board.net(0)  # a test may have been broken off
        solver.snapshots.take_over()
        solver.test_nets.find_best(solver.state.goals, solver.snapshots)
