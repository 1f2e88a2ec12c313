"""The ranks of a run. `world()` returns a World without MPI if there is only one."""

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
    """A question to all ranks that is under way: see World.agree(). With a single rank, finish() asks it."""

    def __init__(self, flags: Callable[[], int]):
        self._flags = flags

    def finish(self) -> int:
        """Waits for the answer. Returns the bitwise or of every rank's flags, the same on all ranks."""
        return self._flags()


class Scattered(NamedTuple):
    """This rank's share of values, from every rank and not summed yet.

    rows: (ranks, stride), bfloat16 held as uint16. own: this rank's row, which is undefined: its values are where they
    were. packed: where the caller puts the new weights of the share, as bfloat16, for Channel.all_gather()."""

    rows: np.ndarray
    own: int
    packed: np.ndarray


class Channel:
    """Collective calls for one thread of each rank, beside those of other threads.

    Ranks must make channels in the same order, and the same calls in each in the same order. On a single rank the
    methods leave values as they are."""

    def allreduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        """Sums `values` over the ranks, in place, as the channel's Reduction says. The sums are the same bits on all
        ranks.

        values: float32, or also float64 on a channel whose Reduction does not round (the default). residual: with error
        feedback, what rounding has taken from the values so far, in their shape; it is updated."""

    def reduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray | None:
        """Sums as allreduce() does. If the sums travel as bfloat16, they are returned so (as uint16, valid until the
        next call), and `values` are undefined; else returns None."""
        self.allreduce(values, residual)

    def reduce_scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        """Sums float32 `values` over the ranks, in place, for this rank's share (bounds_of_shares) alone; the rest is
        undefined then. Values that travel are rounded as the Reduction says, the sums are not."""

    def scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> Scattered | None:
        """Sums as reduce_scatter() does. If values travel as bfloat16, they are returned without being summed, valid
        until the next call; else returns None."""
        self.reduce_scatter(values, residual)

    def all_gather(self, values: np.ndarray, mine: np.ndarray | None = None) -> None:
        """Fills float32 `values` with every rank's share of them, the same bits on all ranks.

        mine: this rank's share, if shares are to travel as bfloat16: float32, or Scattered.packed of the scatter()
        before. All shares are then rounded in `values`, this rank's too. None: it is in `values`."""

    def follow(self, choice: int) -> int:
        """Returns rank 0's choice on every rank."""
        return choice

    def close(self) -> None:
        """Collective. Frees the channel."""


class World:
    """The world of a single rank. MpiWorld has the same methods for several ranks.

    There all methods are collective but `abort`, `watch`, `hear_faults`, `saved`, `leaves`, `keeps`, `revoke`,
    `library`, `places` and `hosts`: every rank must call them, in one order and from one thread. Only channels and
    mailboxes may be used in other threads."""

    rank = 0
    size = 1
    local_rank = 0  # among the ranks of this host
    local_size = 1
    is_of_verb = False  # whether the command line has set up log, cores and watchdog, and will close this world
    _sentinel: Sentinel | None = None

    @functools.cached_property
    def board(self) -> Board:
        """The board on which this rank shows what it is doing."""
        return Board()

    # The job: all processes that a launcher started. They may be divided into groups, each a world of its own

    is_shared = False  # whether the job has other processes
    neighbours = 1  # how many processes of the job are on this host

    def places(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns host and cores of every process of the job, as they were at the start."""
        return [host_and_cores()]

    def hosts(self) -> list[str]:
        """Returns the host of each rank of this world."""
        return [host_and_cores()[0]]

    def watch(self, seconds: float) -> None:
        """Makes a rank that makes no progress for `seconds` end the run, with a report of where every rank is; 0: stops
        that. The board must be kept up to date. Set-up, snapshots and the end may take ten times as long."""
        # With a supervisor there is always a sentinel, which ends this process when the supervisor ends.
        if self._sentinel is None and (seconds or "ENGINE_SUPERVISOR" in os.environ):
            self._sentinel = Sentinel(0, self.board)
            self._sentinel.join(self._sentinel.hub(one_host=True) or "", 1)
        if self._sentinel:
            self._sentinel.watch(seconds)

    def hear_faults(self) -> None:
        """Makes a fault of a file that is mapped into memory end the run as an error does. It loads the extension, so
        call it after share_cores()."""
        if self._sentinel:
            self._sentinel.hear_faults()

    def saved(self, path: str) -> None:
        """Notes a file from which the run can go on: the report on a rank that dies names it. Called on all ranks."""
        if self._sentinel:
            self._sentinel.saved(path)

    def leaves(self, locks: list[str], folders: list[str]) -> None:
        """Lets the sentinel remove folders if this rank is killed, as soon as no process holds any of the locks.

        locks: files that are locked by flock(). Does nothing without a sentinel: a single rank has one only if it is
        watched."""
        if self._sentinel:
            self._sentinel.leaves(locks, folders)

    def keeps(self, folders: list[str]) -> None:
        """Takes back what leaves() said of these folders."""
        if self._sentinel:
            self._sentinel.keeps(folders)

    def barrier(self) -> None: ...

    def allreduce(self, values: np.ndarray) -> None:
        """Sums a C-contiguous array over the ranks, in place."""

    def allreduce_mean(self, arrays: Sequence[np.ndarray]) -> None:
        """Replaces float32 arrays by their mean over the ranks (BatchNorm's statistics), added up in float64."""

    def broadcast(self, values: np.ndarray) -> None:
        """Overwrites a C-contiguous array, of any size, by rank 0's."""

    def broadcast_object(self, value: T, root: int = 0) -> T:
        """Returns the Python object of rank `root` on every rank."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """Returns every rank's Python object, by rank, on rank 0; None on other ranks. Not for large objects: rank 0
        holds all of them, pickled, at once."""
        return [value]

    def gather_array(self, values: np.ndarray) -> list[np.ndarray] | None:
        """Returns every rank's C-contiguous array, flat, by rank, on rank 0; None on other ranks. The arrays may differ
        in size."""
        return [values.reshape(-1)]

    def agree(self, flags: Callable[[], int]) -> Agreement:
        """Begins to combine the ranks' flags() by a bitwise or, and does not wait for the result. Only one agreement
        may be under way. flags: returns up to 63 bits."""
        return Agreement(flags)

    def same_on_all_ranks(self, value: str | bytes, what: str) -> None:
        """Raises CommError on every rank if values differ; it names two ranks that differ. what: names the value."""

    def library(self) -> str:
        """Returns name and version of the MPI library; "none" on one rank."""
        return "none"

    def links(self) -> Links:
        """Returns the latency and bandwidth between ranks, the same on all. The first call measures, for about 0.2
        s."""
        return Links()

    def clock_offset(self) -> int:
        """Returns the nanoseconds to add to this rank's time.monotonic_ns() to get rank 0's, right to about half the
        latency."""
        return 0

    def channel(self, reduction: Reduction | None = None, parts: int = 1) -> Channel:
        """Returns a new channel, for a communication server. By default its float32 sums are not rounded.

        parts: with more than 1, sums are over the ranks that hold the same part: every parts-th."""
        return Channel()

    def mailbox(self) -> MpiMailbox:
        """Returns a new mailbox: messages between two ranks at a time, for one thread."""
        raise CommError("a single rank has nobody to write to")

    def group(self, count: int) -> MpiGroup:
        """Returns the group of `count` consecutive ranks to which this one belongs, with the methods of
        engine.layers.model_parallel.Group."""
        raise CommError("a single rank cannot form a group")

    # Ranks that die, and leave the others running

    def outlive(self) -> str:
        """Makes the death of a rank leave the others running, if the MPI library can: calls that wait for it raise
        CommError, has_lost_ranks is True then, and shrink() lets the others go on. Returns why that cannot be, or
        ""."""
        return "there is only one rank"

    def stop_outliving(self) -> None:
        """Takes back outlive(): the death of a rank ends all others."""

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a call has failed because a rank has died, since the last shrink()."""
        return False

    def revoke(self) -> None:
        """Ends all waits in this world with CommError, those of other ranks and of this one's other threads."""

    def all_are_well(self, well: bool) -> bool:
        """Tells whether all ranks that are left have passed `well`. Works after revoke(), too, and after deaths, which
        has_lost_ranks tells of."""
        return well

    def shrink(self) -> None:
        """Makes this world consist of the ranks that are left. They get new numbers, in the order of the old ones.
        Channels and groups made before cannot be used any more. Raises CommError if another rank dies meanwhile;
        has_lost_ranks is True then."""
        raise CommError("a single rank has no others to lose")

    def abort(self, message: str | None = None, status: int = 1) -> NoReturn:
        """Ends all ranks now. Of several that fail together, one prints its message. Does not return."""
        if message:
            Output(sys.stderr).write(f"{message}\n")
        raise SystemExit(status)

    def close(self) -> None:
        """Ends a run in order. Only rank and size may be used after it."""
        if self._sentinel:
            self._sentinel.farewell()
            self._sentinel.watch(0)  # what this process still does may take any time


def difference(first: str, second: str, width: int = 40) -> str:
    """Returns both texts, for a message of one line, from a little before the first character that differs. width: how
    many characters of each."""
    same = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    begin = max(0, same - width // 4)
    shown = [" ".join(text[begin : begin + width].split()) for text in (first, second)]
    return " and ".join(f'"{"..." if begin else ""}{text}"' for text in shown)


@functools.cache
def world() -> World:
    """Returns the world of this process, which the first call makes.

    Raises CommError if a launcher started several ranks, and MPI cannot be loaded or does not see them.
    """
    launch = detect()
    if launch is None or launch.job_size == 1:
        return World()
    check_groups(launch)
    from engine.comm.mpi_world import MpiWorld

    return MpiWorld(launch)
