"""Several ranks, through mpi4py. Imported only when a launcher started more than one."""

import fcntl
import functools
import hashlib
import os
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from engine.comm.launch import Launch
from engine.comm.sentinel import Sentinel
from engine.comm.world import Agreement, Channel, World
from engine.errors import CommError

# MPI counts are 32-bit ints in most libraries; a piece of this many bytes also keeps their staging buffers small.
PIECE_BYTES = 256 << 20
# How long a rank whose MPI call has failed waits before it says so: mostly because another rank has died, of which the
# sentinels hear only when the system has cleared its memory away. They name it, and end this one meanwhile.
PATIENCE_SECONDS = 3.0


def _import_mpi():
    import mpi4py

    # Initialised by _load_mpi, and finalised only by close(): at the exit of a rank that failed, MPI_Finalize would
    # wait for the others.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def mpi_library() -> str | None:
    """Name and version of the library that mpi4py finds, None if there is none; MPI itself is not started."""
    try:
        return _library(_import_mpi())
    except (ImportError, RuntimeError):
        return None


def _load_mpi(launch: Launch):
    """mpi4py's MPI module, initialised for calls from any thread."""
    try:
        MPI = _import_mpi()
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CommError(
            f"started by {launch.launcher} as rank {launch.rank} of {launch.size}, but MPI cannot be loaded "
            f"({reason}): install mpi4py and an MPI library (pip install mpi4py mpich), or load the cluster's module"
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    # Communicators made from it inherit this. By default an error would end the process on the spot: it would look as
    # if this rank had died.
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CommError(f"{_library(MPI)} was built without MPI_THREAD_MULTIPLE, which communication servers need")
    if MPI.COMM_WORLD.size != launch.size:
        raise CommError(
            f"{launch.launcher} started {launch.size} ranks but {_library(MPI)} sees {MPI.COMM_WORLD.size}: "
            "the launcher and the MPI library are from different installations"
        )
    return MPI


def _library(mpi) -> str:
    return mpi.Get_library_version().splitlines()[0].strip("\0 ,")


def _checked(method: Callable) -> Callable:
    """For methods that call MPI: raises CommError where it fails."""

    @functools.wraps(method)
    def call(self, *args, **options):
        try:
            return method(self, *args, **options)
        except self._mpi.Exception as error:
            time.sleep(PATIENCE_SECONDS)
            raise CommError(f"MPI has failed: {str(error).splitlines()[0]}") from error

    return call


def _wait(request) -> None:
    """Waits for a request without burning the core that computes: MPI's own wait spins."""
    pause = 20e-6
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, 200e-6)


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    if not values.flags.c_contiguous:
        raise ValueError("MPI needs a C-contiguous array")
    flat = values.reshape(-1)
    step = max(1, PIECE_BYTES // max(1, values.itemsize))
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]


class _MpiAgreement(Agreement):
    def __init__(self, mpi, comm, flags: int):
        self._mpi = mpi
        self._values = np.array([flags], np.int64)
        self._request = comm.Iallreduce(mpi.IN_PLACE, self._values, mpi.BOR)

    @_checked
    def finish(self) -> int:
        _wait(self._request)
        return int(self._values[0])


class _MpiChannel(Channel):
    """Iallreduce, never Allreduce: that one waits spinning, and in it MPICH ends a rank on the spot when it cannot read
    the memory of another that is being killed; the sentinels might then name the wrong one."""

    def __init__(self, mpi, comm, one_host: bool):
        self._mpi, self._comm, self._one_host = mpi, comm.Dup(), one_host

    @_checked
    def allreduce(self, values: np.ndarray) -> None:
        if self._one_host:  # asleep until all ranks are here; the sum is then made in memory, at full speed
            _wait(self._comm.Ibarrier())
        for piece in _pieces(values):
            request = self._comm.Iallreduce(self._mpi.IN_PLACE, piece)
            if self._one_host:
                request.Wait()
            else:
                _wait(request)

    def close(self) -> None:
        self._comm.Free()


class MpiWorld(World):
    """See World for what the methods promise."""

    def __init__(self, launch: Launch):
        self._sentinel = Sentinel(launch.rank)
        self._mpi = _load_mpi(launch)
        self._comm = self._mpi.COMM_WORLD.Dup()
        self._flags_comm = self._comm.Dup()
        self.rank, self.size = self._comm.rank, self._comm.size
        local = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = local.rank, local.size
        local.Free()
        self._sentinel.join(self.broadcast_object(self._sentinel.hub()))

    @_checked
    def barrier(self) -> None:
        self._comm.Barrier()

    @_checked
    def allreduce(self, values: np.ndarray) -> None:
        for piece in _pieces(values):
            self._comm.Allreduce(self._mpi.IN_PLACE, piece)

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

    @_checked
    def broadcast(self, values: np.ndarray, root: int = 0) -> None:
        for piece in _pieces(values):
            self._comm.Bcast(piece, root)

    @_checked
    def broadcast_object(self, value, root: int = 0):
        return self._comm.bcast(value, root)

    @_checked
    def gather(self, value) -> list | None:
        return self._comm.gather(value)

    @_checked
    def agree(self, flags: int) -> Agreement:
        return _MpiAgreement(self._mpi, self._flags_comm, flags)

    @_checked
    def same_on_all_ranks(self, value: str | bytes, what: str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        digests = self._comm.allgather(hashlib.sha256(data).digest())
        other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
        if other is None:
            return
        first, second = self.broadcast_object(value), self.broadcast_object(value, other)
        detail = f": {_difference(first, second)}" if isinstance(first, str) and isinstance(second, str) else ""
        raise CommError(f"ranks 0 and {other} differ in {what}{detail}")

    @_checked
    def channel(self) -> Channel:
        return _MpiChannel(self._mpi, self._comm, self.local_size == self.size)

    def abort(self, message: str | None = None, status: int = 1) -> None:
        if not self._sentinel.failed():
            time.sleep(1)  # the rank that failed first is printing its message, and ends this one when it has
        elif message:
            print(message, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            _drain(stream.fileno())
        # MPI_Abort ends the other ranks; what it would print is about itself, the reason stands above.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.__stderr__.fileno())
        self._mpi.COMM_WORLD.Abort(status)
        os._exit(status)  # never MPI_Finalize: it waits for ranks that are no more

    def close(self) -> None:
        self._comm.Barrier()
        self._sentinel.farewell()
        self._flags_comm.Free()
        self._comm.Free()
        self._mpi.Finalize()


def _drain(fd: int) -> None:
    """Waits, a second at most, until the launcher has read what was written: an abort may throw the rest away."""
    unread = bytearray(4)
    for _ in range(100):
        try:
            fcntl.ioctl(fd, termios.FIONREAD, unread)
        except OSError:  # not a pipe: nothing can be lost
            return
        if not any(unread):
            break
        time.sleep(0.01)
    time.sleep(0.05)  # from the launcher's local part to mpiexec


def _difference(first: str, second: str, width: int = 40) -> str:
    """Both texts from a little before the first character that differs."""
    same = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    begin = max(0, same - width // 4)
    return " and ".join(f'"{"..." if begin else ""}{text[begin : begin + width]}"' for text in (first, second))
