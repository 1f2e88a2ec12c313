"""The world of several ranks, through mpi4py. Imported only when a launcher started more than one rank."""

import contextlib
import functools
import hashlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import NoReturn, cast

import numpy as np

from engine.comm import clock
from engine.comm.link import Links, measure
from engine.comm.mpi_channel import MpiChannel, messages, wait
from engine.comm.mpi_faults import LOSSES, MethodT, checked
from engine.comm.mpi_group import MpiGroup
from engine.comm.mpi_mailbox import MpiMailbox
from engine.comm.settings import Reduction, watchdog_seconds
from engine.comm.world import Agreement, Channel, T, World, difference
from engine.errors import CommError
from engine.host.cores import host_and_cores
from engine.host.launch import Launch
from engine.report.log import Output
from engine.watchdog.board import END, Board
from engine.watchdog.sentinel import Sentinel
from engine.watchdog.wire import network

FINALIZE_SECONDS = 10.0  # for MPI_Finalize, where ranks may have died


def _import_mpi() -> ModuleType:
    import mpi4py

    # Initialised by _load_mpi, and finalised only by close(): at the exit of a rank that failed, MPI_Finalize would
    # wait for the others.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def mpi_library() -> str | None:
    """Returns name and version of the library that mpi4py finds, None if there is none. MPI is not initialised."""
    try:
        return _library(_import_mpi())
    except (ImportError, RuntimeError):
        return None


def _load_mpi(launch: Launch) -> ModuleType:
    """Returns mpi4py's MPI module, initialised for calls from any thread. Raises CommError if it cannot be loaded, or
    if it is not the launcher's."""
    try:
        MPI = _import_mpi()
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CommError(
            f"started by {launch.launcher} as rank {launch.rank} of {launch.size}, but MPI cannot be loaded "
            f"({reason}): install mpi4py and an MPI library (pip install mpi4py mpich), or load the cluster's module"
        ) from error
    if not MPI.Is_initialized():
        # UCX over TCP would send messages of up to some MB in fragments, of which the receiver copies one at each test.
        # Messages above this threshold are written straight to where they belong.
        os.environ.setdefault("UCX_RNDV_THRESH", "64k")
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    # Communicators made from it inherit this. By default an error would end the process on the spot: it would look as
    # if this rank had died.
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CommError(f"{_library(MPI)} was built without MPI_THREAD_MULTIPLE, which communication servers need")
    if MPI.COMM_WORLD.size != launch.job_size:
        raise CommError(
            f"{launch.launcher} started {launch.job_size} ranks but {_library(MPI)} sees {MPI.COMM_WORLD.size}: "
            "the launcher and the MPI library are from different installations"
        )
    return MPI


def _tells_of_deaths() -> bool:
    """Tells whether the launcher was asked to leave the other ranks running when one dies: Open MPI's --with-ft
    ulfm."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"


def _library(mpi: ModuleType) -> str:
    return " ".join(mpi.Get_library_version().splitlines()[0].strip("\0 ,").split())


def collective(method: MethodT) -> MethodT:
    """Decorates methods that need the other ranks: the board shows that this one waits, and they raise CommError if MPI
    fails."""
    checked_method = checked(method)

    @functools.wraps(method)
    def call(self, *args, **options):
        with self.board.waiting():
            return checked_method(self, *args, **options)

    return cast(MethodT, call)


class _MpiAgreement(Agreement):
    def __init__(self, mpi: ModuleType, comm, flags: Callable[[], int], board: Board):
        self._mpi, self.board = mpi, board
        self._values = np.array([flags()], np.int64)
        self._request = comm.Iallreduce(mpi.IN_PLACE, self._values, mpi.BOR)

    @collective
    def finish(self) -> int:
        wait(self._request)
        return int(self._values[0])


class MpiWorld(World):
    """See World for what the methods promise."""

    is_shared = True
    _sentinel: Sentinel

    def __init__(self, launch: Launch):
        self._sentinel = Sentinel(launch.rank, self.board, watchdog_seconds())
        self._mpi = _load_mpi(launch)
        self._channels: weakref.WeakSet[MpiChannel] = weakref.WeakSet()
        self._links: Links | None = None
        self._faults = -1  # the pipe through which the extension tells of faults; -1: none yet
        # What the sentinel was told, for another one after shrink().
        self._saved, self._watched = "", 0.0
        self._left: dict[tuple[str, ...], list[str]] = {}  # folders to remove if this rank is killed -> their locks
        self._whole, self._is_group = self._mpi.COMM_WORLD.Dup(), launch.size < launch.job_size
        self._places = self._whole.allgather(host_and_cores())
        here = self._whole.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.neighbours = here.size
        here.Free()
        self._consist_of(self._whole.Split(launch.first, launch.rank) if self._is_group else self._whole.Dup())
        self._join_sentinels()
        self.watch(0)  # whoever keeps the board up to date says when to begin

    def places(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._places

    def hosts(self) -> list[str]:
        return self._hosts

    def _consist_of(self, comm) -> None:
        """Collective over the ranks of `comm`. Makes this world consist of them."""
        flags, local = comm.Dup(), comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self._comm, self._flags_comm, self._local = comm, flags, local
        self._hosts = comm.allgather(host_and_cores()[0])
        self.rank, self.size = comm.rank, comm.size
        self.local_rank, self.local_size = local.rank, local.size

    def _join_sentinels(self) -> None:
        hub = self._sentinel.hub(one_host=len(set(self.gather(network()) or ())) == 1) or ""
        self._sentinel.join(self.broadcast_object(hub), self.size)

    def watch(self, seconds: float) -> None:
        self._watched = seconds
        super().watch(seconds)

    def saved(self, path: str) -> None:
        self._saved = path
        if self.rank == 0:
            super().saved(path)

    def leaves(self, locks: list[str], folders: list[str]) -> None:
        self._left[tuple(folders)] = locks
        super().leaves(locks, folders)

    def keeps(self, folders: list[str]) -> None:
        self._left.pop(tuple(folders), None)
        super().keeps(folders)

    def hear_faults(self) -> None:
        if self._faults < 0:
            heard, self._faults = os.pipe()
            threading.Thread(target=self._await_fault, args=(heard,), name="faults", daemon=True).start()
            self._sentinel.hear_faults(self._faults)

    def _await_fault(self, heard: int) -> None:
        text = os.read(heard, 1 << 16).decode().rstrip("\n")
        self.abort(f"{text} (exit status 1)")  # the words of cli.py

    @collective
    def barrier(self) -> None:
        self._comm.Barrier()

    @collective
    def allreduce(self, values: np.ndarray) -> None:
        for message in messages(values):
            self._comm.Allreduce(self._mpi.IN_PLACE, message)

    def allreduce_mean(self, arrays: Sequence[np.ndarray]) -> None:
        if not arrays:
            return
        sums = np.concatenate([array.reshape(-1) for array in arrays], dtype=np.float64)
        self.allreduce(sums)
        sums /= self.size
        begin = 0
        for array in arrays:
            array[...] = sums[begin : begin + array.size].reshape(array.shape)
            begin += array.size

    @collective
    def broadcast(self, values: np.ndarray) -> None:
        for message in messages(values):
            self._comm.Bcast(message, 0)

    @collective
    def broadcast_object(self, value: T, root: int = 0) -> T:
        return self._comm.bcast(value, root)

    @collective
    def gather(self, value: T) -> list[T] | None:
        return self._comm.gather(value)

    @collective
    def gather_array(self, values: np.ndarray) -> list[np.ndarray] | None:
        sizes = self._comm.gather(values.size)
        if sizes is None:
            for message in messages(values):
                self._comm.Send(message, 0)
            return None
        found = [values.reshape(-1), *(np.empty(size, values.dtype) for size in sizes[1:])]
        for rank, theirs in enumerate(found[1:], start=1):
            for message in messages(theirs):
                self._comm.Recv(message, rank)
        return found

    @checked
    def agree(self, flags: Callable[[], int]) -> Agreement:
        # Kept alive: if a rank has died, MPI may still write into its values.
        self._agreement = _MpiAgreement(self._mpi, self._flags_comm, flags, self.board)
        return self._agreement

    @collective
    def same_on_all_ranks(self, value: str | bytes, what: str) -> None:
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else bytes(value)
        digests = self._comm.allgather(hashlib.sha256(data).digest())
        other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
        if other is None:
            return
        first, second = self.broadcast_object(value), self.broadcast_object(value, other)
        detail = f": {difference(first, second)}" if isinstance(first, str) and isinstance(second, str) else ""
        raise CommError(f"ranks 0 and {other} differ in {what}{detail}")

    def library(self) -> str:
        return _library(self._mpi)

    @collective
    def links(self) -> Links:
        if self._links is None:
            self._links = measure(self._mpi, self._comm, self._local)
        return self._links

    @collective
    def clock_offset(self) -> int:
        return 0 if self.local_size == self.size else clock.offset(self._comm)

    @collective
    def channel(self, reduction: Reduction | None = None, parts: int = 1) -> Channel:
        reduction, link = reduction or Reduction(), self.links().slowest
        if parts == 1:
            made = MpiChannel(self._mpi, self._comm, self._local, reduction, link)
            self._channels.add(made)
            return made
        with_part = self._comm.Split(self.rank % parts, self.rank)
        local = with_part.Split_type(self._mpi.COMM_TYPE_SHARED)
        channel = MpiChannel(self._mpi, with_part, local, reduction, link)
        local.Free()
        with_part.Free()
        return channel

    @collective
    def mailbox(self) -> MpiMailbox:
        return MpiMailbox(self._mpi, self._comm)

    @collective
    def group(self, count: int) -> MpiGroup:
        return MpiGroup(self._mpi, self._comm.Split(self.rank // count, self.rank), self.board)

    # Ranks that die, and leave the others running

    def outlive(self) -> str:
        if self._is_group:
            return "the groups of a job end together"
        if not _tells_of_deaths():
            return f"{self.library()} ends all ranks with one; Open MPI 5 goes on if its mpiexec has --with-ft ulfm"
        LOSSES.outlived = True
        self._sentinel.outlive(True)
        return ""

    def stop_outliving(self) -> None:
        LOSSES.outlived = False
        self._sentinel.outlive(False)

    @property
    def has_lost_ranks(self) -> bool:
        return LOSSES.happened

    @checked
    def revoke(self) -> None:
        for comm in (self._comm, self._flags_comm, self._local):
            comm.Revoke()
        for channel in list(self._channels):
            channel.revoke()

    @checked
    def all_are_well(self, well: bool) -> bool:
        while True:
            try:
                return bool(self._comm.Agree(int(well)))
            except self._mpi.Exception as error:
                if error.Get_error_class() != self._mpi.ERR_PROC_FAILED:
                    raise
                # All ranks get this error: one has died since they last agreed. It says nothing about the others.
                LOSSES.happened = True
                self._comm.Ack_failed()

    @collective
    def shrink(self) -> None:
        self.revoke()
        self._channels.clear()
        while not self._try_to_consist_of(comm := self._comm.Shrink()):  # more have died meanwhile
            self._comm = comm
        LOSSES.happened = False
        self._sentinel.leave()
        self._sentinel = Sentinel(self.rank, self.board)
        self._sentinel.outlive(True)
        self._join_sentinels()
        self._sentinel.watch(self._watched)
        if self._faults >= 0:
            self._sentinel.hear_faults(self._faults)
        if self._saved:
            self._sentinel.saved(self._saved)
        for folders, locks in self._left.items():
            super().leaves(locks, list(folders))

    def _try_to_consist_of(self, comm) -> bool:
        """Collective. Calls _consist_of(). Returns whether it has worked on all ranks of `comm`."""
        well = 1
        try:
            self._consist_of(comm)
        except self._mpi.Exception:
            well = 0
            comm.Revoke()  # others may wait for this rank
        try:
            return bool(comm.Agree(well))
        except self._mpi.Exception:  # all ranks get it
            return False

    def abort(self, message: str | None = None, status: int = 1) -> NoReturn:
        if not self._sentinel.failed():
            time.sleep(3)  # the rank that failed first is printing its message, and ends this one when it has
        elif message:
            Output(sys.stderr).write(f"{message}\n")
        for stream in (sys.stdout, sys.stderr):
            Output(stream).settle()
            Output(stream).drain()
        # MPI_Abort ends the other ranks. What it would print says nothing about the reason, which is printed already.
        null = os.open(os.devnull, os.O_WRONLY)
        if sys.__stderr__ is not None:
            os.dup2(null, sys.__stderr__.fileno())
        self._mpi.COMM_WORLD.Abort(status)
        os._exit(status)  # without MPI_Finalize, which would wait for ranks that have died

    def close(self) -> None:
        with self._at_the_end():
            self._comm.Barrier()
        self.board.enter(END)
        self._sentinel.complete()
        if self._is_group:  # MPI_Finalize would wait for the other groups, and spin on a core that they need
            self._sentinel.watch(0)
            with self._at_the_end():
                wait(self._whole.Ibarrier())
        for comm in (self._flags_comm, self._local, self._comm, self._whole):
            with self._at_the_end():
                comm.Free()
        late = threading.Timer(FINALIZE_SECONDS, self._leave)
        late.daemon = True
        if _tells_of_deaths():  # then Open MPI's Finalize waits for a rank that dies in it
            late.start()
        self._mpi.Finalize()
        late.cancel()
        self._sentinel.farewell_at_exit()

    def _leave(self) -> None:
        """Ends this process with status 0: all is done, and written."""
        self._sentinel.farewell()
        os._exit(0)

    @contextlib.contextmanager
    def _at_the_end(self) -> Iterator[None]:
        """Ignores MPI's errors at the end of a run that goes on without dead ranks: nothing is lost with one any
        more."""
        try:
            yield
        except self._mpi.Exception:
            if not (_tells_of_deaths() or self._is_group):
                raise
