"""The ranks of a run. `world()` answers without MPI when there is only one."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np

from engine.comm.link import Links
from engine.comm.settings import Reduction
from engine.errors import CommError
from engine.host.cores import host_and_cores
from engine.host.launch import check_groups, detect
from engine.report.log import Output
from engine.watchdog.board import Board
from engine.watchdog.sentinel import Sentinel

if TYPE_CHECKING:
    from engine.comm.mpi_group import MpiGroup
    from engine.comm.mpi_mailbox import MpiMailbox


T = TypeVar("T")


class Agreement:
    """A question to all ranks that is under way; one rank is asked when the answer is wanted."""

    def __init__(self, flags: Callable[[], int]):
        self._flags = flags

    def finish(self) -> int:
        """Waits; the bitwise or of every rank's flags, the same on all ranks."""
        return self._flags()


class Scattered(NamedTuple):
    """This rank's share as it has come: rows (ranks, stride) of bfloat16, held as uint16. Row `own` is not among them:
    it stands in the values. packed: where this rank's answer, bfloat16 of the share's size, goes."""

    rows: np.ndarray
    own: int
    packed: np.ndarray


class Channel:
    """A stream of collectives for one thread; the ranks' channels pair up in the order in which they were made, and
    every rank makes the same calls in the same order."""

    def allreduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        """Sums `values` over the ranks, in place, as the channel's Reduction says; the same bits on all ranks. They are
        float32, or float64 on a channel whose Reduction does not round (the default).

        residual: with error feedback, of the shape of `values`: what rounding has taken from them so far."""

    def reduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray | None:
        """The same, but where the sums have come as bfloat16 they are returned so (uint16, until the next call), and
        `values` are undefined."""
        self.allreduce(values, residual)

    def reduce_scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        """Sums float32 `values`: this rank's share of them (bounds_of_shares) then is the sum, the rest is undefined.
        What travels is rounded as the Reduction says, the sum is not."""

    def scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> Scattered | None:
        """The same, but where shares travel as bfloat16 they are not added up yet: they are returned, until the next
        call."""
        self.reduce_scatter(values, residual)

    def all_gather(self, values: np.ndarray, mine: np.ndarray | None = None) -> None:
        """Fills float32 `values` with every rank's share of them; the same bits on all ranks.

        mine: this rank's share, where it is to travel as bfloat16: float32, or Scattered.packed of the scatter()
        before. All shares, its own, too, arrive rounded."""

    def follow(self, choice: int) -> int:
        """Rank 0's choice, on every rank."""
        return choice

    def close(self) -> None:
        """Collective: gives the channel back."""


class World:
    """One rank. MpiWorld has the same methods for several ranks: all but `abort`, `watch`, `hear_faults`, `saved`,
    `leaves`, `keeps`, `revoke`, `library`, `places` and `hosts` are collective there, called by every rank in one order
    and from one thread; only channels work from threads of their own."""

    rank = 0
    size = 1
    local_rank = 0  # among the ranks of this host
    local_size = 1
    is_of_verb = False  # the command line has set up its log, cores and watchdog, and closes it
    _sentinel: Sentinel | None = None

    @functools.cached_property
    def board(self) -> Board:
        """Where this rank says what it is doing."""
        return Board()

    # Others that were started with this rank; they may be divided into groups, which are worlds of their own

    is_shared = False  # whether there were any
    neighbours = 1  # of all that are on this host

    def places(self) -> list[tuple[str, tuple[int, ...]]]:
        """Host and cores of all of them, as they were at the start."""
        return [host_and_cores()]

    def hosts(self) -> list[str]:
        """Of the ranks of this world, in order."""
        return [host_and_cores()[0]]

    def watch(self, seconds: float) -> None:
        """From now on, a rank that makes no progress for `seconds` ends the run with a report of where every rank is;
        0: never. The board must be kept up to date; set-up, snapshots and the end may take ten times as long."""
        if self._sentinel is None and (seconds or "ENGINE_SUPERVISOR" in os.environ):  # a sentinel ends it with that
            self._sentinel = Sentinel(0, self.board)
            self._sentinel.join(self._sentinel.hub(one_host=True) or "", 1)
        if self._sentinel:
            self._sentinel.watch(seconds)

    def hear_faults(self) -> None:
        """From now on, a fault of a file that is mapped into memory ends the run as an error does. It loads the
        extension, so it is not to be called before share_cores()."""
        if self._sentinel:
            self._sentinel.hear_faults()

    def saved(self, path: str) -> None:
        """On all ranks: the run can go on from this file, which is told when a rank dies."""
        if self._sentinel:
            self._sentinel.saved(path)

    def leaves(self, locks: list[str], folders: list[str]) -> None:
        """This rank alone: should it be killed, these folders are to be removed once nobody has one of the locks, which
        are files that flock() locks. Where there is a sentinel: a single rank has one only if it is watched."""
        if self._sentinel:
            self._sentinel.leaves(locks, folders)

    def keeps(self, folders: list[str]) -> None:
        """This rank alone: these folders, which leaves() may have named, are not to be removed."""
        if self._sentinel:
            self._sentinel.keeps(folders)

    def barrier(self) -> None: ...

    def allreduce(self, values: np.ndarray) -> None:
        """Sums a C-contiguous array over the ranks, in place."""

    def allreduce_mean(self, arrays: Sequence[np.ndarray]) -> None:
        """Replaces float32 arrays by their mean over the ranks (BatchNorm's statistics), added up in float64."""

    def broadcast(self, values: np.ndarray) -> None:
        """Overwrites a C-contiguous array of any size with rank 0's."""

    def broadcast_object(self, value: T, root: int = 0) -> T:
        """Rank root's Python object, on every rank."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """Every rank's Python object by rank, on rank 0; None elsewhere. All travel at once: not for large ones."""
        return [value]

    def gather_array(self, values: np.ndarray) -> list[np.ndarray] | None:
        """Every rank's C-contiguous array by rank, flat, on rank 0; None elsewhere. They may have any sizes."""
        return [values.reshape(-1)]

    def agree(self, flags: Callable[[], int]) -> Agreement:
        """Starts the bitwise or of `flags()` (63 bits) over the ranks without waiting; one question at a time."""
        return Agreement(flags)

    def same_on_all_ranks(self, value: str | bytes, what: str) -> None:
        """Raises CommError, on every rank, that names two ranks whose values differ."""

    def library(self) -> str:
        """Name and version of the MPI library, "none" on one rank."""
        return "none"

    def links(self) -> Links:
        """Collective on the first call, which measures for about 0.2 s; the same on all ranks."""
        return Links()

    def clock_offset(self) -> int:
        """Nanoseconds to add to this rank's time.monotonic_ns() to get rank 0's; right to about half the latency."""
        return 0

    def channel(self, reduction: Reduction | None = None, parts: int = 1) -> Channel:
        """Collective: a stream of reductions of its own, for a communication server. Default: exact float32 sums.

        parts: with more than 1, sums are over the ranks that hold the same part: every parts-th."""
        return Channel()

    def mailbox(self) -> MpiMailbox:
        """Collective: messages between two ranks at a time, for one thread."""
        raise CommError("a single rank has nobody to write to")

    def group(self, count: int) -> MpiGroup:
        """Collective: the group of `count` consecutive ranks to which this one belongs, with the methods of
        engine.layers.model_parallel.Group."""
        raise CommError("a single rank cannot form a group")

    # Ranks that die, and leave the others running

    def outlive(self) -> str:
        """Collective. From now on the death of a rank leaves the others running, where the MPI library can: what they
        wait for raises CommError, has_lost_ranks is True then, and shrink() goes on. Returns why not, or ""."""
        return "there is only one rank"

    def end_with_the_first(self) -> None:
        """Collective. The reverse."""

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a call has failed because a rank has died, since the last shrink()."""
        return False

    def revoke(self) -> None:
        """Of one rank: all waits of other ranks in this world end with CommError, and those of other threads."""

    def consents(self, well: bool) -> bool:
        """Collective, also after revoke(), and where ranks have died: has_lost_ranks tells. Whether all that are left
        are well."""
        return well

    def shrink(self) -> None:
        """Collective over the ranks that are left, which get new numbers, in the order of the old ones: this world is
        theirs alone now. Channels and groups made before are of no use any more. Raises CommError where another rank
        dies meanwhile: has_lost_ranks tells."""
        raise CommError("a single rank has no others to lose")

    def abort(self, message: str | None = None, status: int = 1) -> NoReturn:
        """Ends all ranks now. Of several that fail together one prints its message. Does not return."""
        if message:
            Output(sys.stderr).write(f"{message}\n")
        raise SystemExit(status)

    def close(self) -> None:
        """Collective: the orderly end of a run; after it only rank and size may be used."""
        if self._sentinel:
            self._sentinel.farewell()
            self._sentinel.watch(0)  # nobody waits for it, whatever it still does


def difference(first: str, second: str, width: int = 40) -> str:
    """Both texts, for a message of one line, from a little before the first character that differs."""
    same = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    begin = max(0, same - width // 4)
    shown = [" ".join(text[begin : begin + width].split()) for text in (first, second)]
    return " and ".join(f'"{"..." if begin else ""}{text}"' for text in shown)


@functools.cache
def world() -> World:
    """The world of this process, made on first use.

    Raises CommError when a launcher started several ranks and MPI cannot be loaded or does not see them.
    """
    launch = detect()
    if launch is None or launch.job_size == 1:
        return World()
    check_groups(launch)
    from engine.comm.mpi_world import MpiWorld

    return MpiWorld(launch)
