"""Reductions of one thread over MPI: plain, hierarchical, and of gradients that travel as bfloat16.

Only collectives that do not block are used, and asked about now and then. MPI's own waiting spins on a core that the
slower rank may need, and in its blocking reductions MPICH ends a rank on the spot when it cannot read the memory of
another that is being killed; the sentinels might then name the wrong one.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from engine.comm.buckets import MESSAGE_BYTES
from engine.comm.link import Link
from engine.comm.mpi_faults import LOSSES, checked
from engine.comm.settings import Reduction, exchanges_directly
from engine.comm.shares import ALIGNMENT, bounds_of_share, bounds_of_shares
from engine.comm.world import Channel, Scattered

# The least and the longest sleep between two looks at a request. While nothing comes, each is a SLEEP_DIVISOR-th of the
# time since something did; while something does, so long as the link needs for SLEEP_BYTES, which the system's socket
# buffers hold.
FIRST_SLEEP, LONGEST_SLEEP, SLEEP_DIVISOR, SLEEP_BYTES = 40e-6, 2e-3, 4, 512 << 10
IDLE_LOOK, MOST_LOOKS = 8e-6, 64  # seconds; in a row, in case that all take so long here


def wait(request, flowing: float = FIRST_SLEEP) -> None:
    """Waits for a request. flowing: seconds to sleep between looks while something comes."""
    least, looks, moved = FIRST_SLEEP, 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        if request.Test():
            return
        now = time.perf_counter()
        looks += 1
        # Libraries move a little of a message at each look, such as 64 KB: a look that took its time has moved one.
        if now - begin >= IDLE_LOOK and looks < MOST_LOOKS:
            least, moved = flowing, now
            continue
        time.sleep(min(LONGEST_SLEEP, max(least, (now - moved) / SLEEP_DIVISOR)))
        looks = 0


def messages(values: np.ndarray) -> Iterator[np.ndarray]:
    """The values as flat views that MPI can take."""
    if not values.flags.c_contiguous:
        raise ValueError("MPI needs a C-contiguous array")
    flat = values.reshape(-1)
    step = max(1, MESSAGE_BYTES // max(1, values.itemsize))
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]


Rows = Sequence[np.ndarray] | np.ndarray  # one for each rank


class MpiChannel(Channel):
    def __init__(self, mpi: ModuleType, comm, local, reduction: Reduction, link: Link):
        """comm: of all ranks; local: of this host's; link: the slowest, from which follows how long to sleep."""
        self._mpi, self._reduction = mpi, reduction
        self._comm = self._across = comm.Dup()
        self._local = None
        self._sleep = max(FIRST_SLEEP, SLEEP_BYTES / link.bandwidth)
        self._room = np.empty(0, np.uint8)
        largest = comm.allreduce(local.size, mpi.MAX)  # hosts may have different numbers of ranks
        if reduction.hierarchical and 1 < largest < comm.size:
            self._local = local.Dup()
            self._across = comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
        crowd = 1 if self._local is not None else largest  # of ranks that share a link
        self._direct = self._across != mpi.COMM_NULL and exchanges_directly(self._across.size, crowd)
        self._in_memory = local.size == comm.size and not self._direct

    @checked
    def follow(self, choice: int) -> int:
        if self._comm.size == 1:
            return choice
        value = np.array([choice], np.int64)
        self._wait(self._comm.Ibcast(value, 0))
        return int(value[0])

    @checked
    def allreduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        self._gather_ranks()
        rests = messages(residual) if residual is not None and self._reduction.error_feedback else None
        for message in messages(values):
            rest = next(rests) if rests else None
            if self._local is None:
                self._reduce(message, rest)
            else:
                self._hierarchical(self._local, message, rest)

    @checked
    def reduce(self, values: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray | None:
        if self._local is not None or not self._packs or values.nbytes > MESSAGE_BYTES:
            return self.allreduce(values, residual)
        self._gather_ranks()
        return self._sum_bf16(next(messages(values)), residual)

    @checked
    def reduce_scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> None:
        from engine.host import _core

        self._gather_ranks()
        comm = self._across
        bounds = bounds_of_shares(values.size, comm.size)
        begin, end = bounds[comm.rank]
        if self._packs:
            _, received = self._exchange_bf16(values, residual)
            _core.sum_bf16_rows(received, comm.rank, values[begin:end])
        elif self._direct:
            self._sum_share(values)
        else:
            sums = self._rows(1, end - begin, np.float32)[0]
            counts = [last - first for first, last in bounds]
            self._wait(comm.Ireduce_scatter(values, sums, counts))
            values[begin:end] = sums

    @checked
    def scatter(self, values: np.ndarray, residual: np.ndarray | None = None) -> Scattered | None:
        if not self._packs:
            return self.reduce_scatter(values, residual)
        self._gather_ranks()
        packed, received = self._exchange_bf16(values, residual)
        begin, end = bounds_of_share(values.size, self._across.size, self._across.rank)
        return Scattered(received, self._across.rank, packed[begin:end])

    @checked
    def all_gather(self, values: np.ndarray, mine: np.ndarray | None = None) -> None:
        from engine.host import _core

        if mine is None:
            self._pass_on(values)
            return
        begin, end = bounds_of_share(values.size, self._across.size, self._across.rank)
        packed = self._rows(1, values.size, np.uint16)[0]  # where scatter() has put Scattered.packed
        if mine.dtype == np.float32:
            _core.pack_bf16(mine, packed[begin:end])
        self._pass_on(packed)
        _core.unpack_bf16_away(packed, values)  # the next forward is far away

    def _gather_ranks(self) -> None:
        """Where MPI adds on one host, asleep until all ranks are here: it does so at full speed then, and spins."""
        if self._in_memory:
            wait(self._comm.Ibarrier())

    @property
    def _packs(self) -> bool:
        return self._reduction.bf16 and self._across.size > 1

    def _hierarchical(self, local, values: np.ndarray, residual: np.ndarray | None) -> None:
        leads = local.rank == 0
        self._wait(local.Ireduce(self._mpi.IN_PLACE if leads else values, values if leads else None))
        if leads:
            self._reduce(values, residual)
        self._wait(local.Ibcast(values))

    def _reduce(self, values: np.ndarray, residual: np.ndarray | None) -> None:
        from engine.host import _core

        if self._packs:
            _core.unpack_bf16(self._sum_bf16(values, residual), values)
        elif self._direct and values.dtype == np.float32:
            self._sum_direct(values)
        else:
            self._wait(self._across.Iallreduce(self._mpi.IN_PLACE, values))

    def _sum_bf16(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Rank r adds up the r-th share of the values, in float32, and passes the sum on, rounded once. Returns the
        sums."""
        from engine.host import _core

        comm = self._across
        packed, received = self._exchange_bf16(values, residual)
        begin, end = bounds_of_share(values.size, comm.size, comm.rank)
        rest = None if residual is None else residual[begin:end]
        _core.sum_bf16(received, comm.rank, values[begin:end], packed[begin:end], rest)
        self._exchange([packed[begin:end]] * comm.size, self._shares_of(packed))
        return packed

    def _exchange_bf16(self, values: np.ndarray, residual: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Sends the other ranks their shares. Returns the values as bfloat16, but for this rank's share, for which
        there is room, and rows (ranks, stride) with what has come."""
        from engine.host import _core

        comm = self._across
        begin, end = bounds_of_share(values.size, comm.size, comm.rank)
        share = bounds_of_share(values.size, comm.size, 0)[1]
        share = -(-share // ALIGNMENT) * ALIGNMENT
        sent, received = self._rows(2 * comm.size, share, np.uint16).reshape(2, comm.size, share)
        packed = sent.reshape(-1)[: values.size]
        for first, last in ((0, begin), (end, values.size)):  # of the others
            if first < last:
                rest = None if residual is None else residual[first:last]
                _core.pack_bf16(values[first:last], packed[first:last], rest)
        self._exchange(self._shares_of(packed), received[:, : end - begin])
        return packed, received

    def _sum_direct(self, values: np.ndarray) -> None:
        """The same with float32, in place."""
        self._sum_share(values)
        self._pass_on(values)

    def _sum_share(self, values: np.ndarray) -> None:
        """Of this rank, in place."""
        from engine.host import _core

        comm = self._across
        shares = self._shares_of(values)
        mine = shares[comm.rank]
        received = self._rows(comm.size, shares[0].size, np.float32)
        self._exchange(shares, received[:, : mine.size])
        _core.sum_rows(received, comm.rank, mine)

    def _pass_on(self, values: np.ndarray) -> None:
        """This rank's share to all, and theirs into their places."""
        comm = self._across
        if self._direct:
            shares = self._shares_of(values)
            self._exchange([shares[comm.rank]] * comm.size, shares)
        else:
            bounds = bounds_of_shares(values.size, comm.size)
            places = [end - begin for begin, end in bounds], [begin for begin, _ in bounds]
            self._wait(comm.Iallgatherv(self._mpi.IN_PLACE, [values, places]))

    def _shares_of(self, values: np.ndarray) -> list[np.ndarray]:
        """Views, of every rank."""
        return [values[begin:end] for begin, end in bounds_of_shares(values.size, self._across.size)]

    def _rows(self, count: int, length: int, dtype: type) -> np.ndarray:
        """Room for (count, length) values, used again by the next call."""
        nbytes = count * length * np.dtype(dtype).itemsize
        if self._room.size < nbytes:
            self._room = np.zeros(nbytes, np.uint8)
        return self._room[:nbytes].view(dtype).reshape(count, length)

    def _exchange(self, sent: Rows, received: Rows) -> None:
        """Row r of `sent` to rank r, whose own arrives in row r of `received`; an empty one needs no message. Not MPI's
        Ialltoall: that goes on by small steps, each of which would wait for the next look at it."""
        comm = self._across
        others = [(comm.rank + i) % comm.size for i in range(1, comm.size)]
        requests = [comm.Irecv(received[rank], rank) for rank in others if received[rank].size]
        requests += [comm.Isend(sent[rank], rank) for rank in others if sent[rank].size]
        try:
            for request in requests:
                self._wait(request)
        except self._mpi.Exception:
            if LOSSES.outlived:  # the arrays will be used again
                comm.Revoke()
                for request in requests:
                    with contextlib.suppress(self._mpi.Exception):
                        request.Wait()
            raise

    def _wait(self, request) -> None:
        if self._in_memory:
            request.Wait()
        else:
            wait(request, self._sleep)

    def revoke(self) -> None:
        """Ends what any rank waits for here; nothing more can be done with it."""
        for comm in (self._comm, self._local, self._across):
            if comm is not None and comm != self._mpi.COMM_NULL:
                comm.Revoke()

    def close(self) -> None:
        if self._local is not None:
            self._local.Free()
            if self._across != self._mpi.COMM_NULL:
                self._across.Free()
        self._comm.Free()
