"""Reductions of one thread over MPI: plain, hierarchical, and of gradients that travel as bfloat16.

They use non-blocking collectives only, and test now and then whether these are complete. MPI's own waiting spins on a
core that the slower rank may need. And in its blocking reductions MPICH ends a rank on the spot when it cannot read the
memory of another that is being killed; the sentinels might then name the wrong rank.
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

# The shortest and the longest sleep between two tests of a request, in seconds. While no data come, a sleep is the time
# since the last ones divided by SLEEP_DIVISOR. While data come, it is at least the time that the link needs for
# SLEEP_BYTES, which the system's socket buffers hold.
SHORTEST_SLEEP, LONGEST_SLEEP, SLEEP_DIVISOR, SLEEP_BYTES = 40e-6, 2e-3, 4, 512 << 10
IDLE_SECONDS = 8e-6  # a test that takes longer has moved data
MOST_TESTS = 64  # without a sleep between, as there may be machines on which every test takes longer than that


def wait(request, flowing: float = SHORTEST_SLEEP) -> None:
    """Waits, asleep, for a request. flowing: the shortest sleep between two tests while data come, in seconds."""
    shortest, tests, moved = SHORTEST_SLEEP, 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        if request.Test():
            return
        now = time.perf_counter()
        tests += 1
        # At each test libraries move a little of a message, such as 64 KB. After one that has, test again at once.
        if now - begin >= IDLE_SECONDS and tests < MOST_TESTS:
            shortest, moved = flowing, now
            continue
        time.sleep(min(LONGEST_SLEEP, max(shortest, (now - moved) / SLEEP_DIVISOR)))
        tests = 0


def messages(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yields flat views of the values, each small enough for one message. Raises ValueError for values that are not
    C-contiguous."""
    if not values.flags.c_contiguous:
        raise ValueError("MPI needs a C-contiguous array")
    flat = values.reshape(-1)
    step = max(1, MESSAGE_BYTES // max(1, values.itemsize))
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]


Rows = Sequence[np.ndarray] | np.ndarray  # a row for each rank


class MpiChannel(Channel):
    """See Channel for what the methods promise.

    _across is the communicator over which values are exchanged: of all ranks, or, if the reduction is hierarchical, of
    one rank of each host; ranks that are not in it have MPI.COMM_NULL. _local is then that of this host's ranks, else
    None."""

    def __init__(self, mpi: ModuleType, comm, local, reduction: Reduction, link: Link):
        """Collective. comm: of all ranks. local: of this host's. link: the slowest; waits sleep accordingly."""
        self._mpi, self._reduction = mpi, reduction
        self._comm = self._across = comm.Dup()
        self._local = None
        self._sleep = max(SHORTEST_SLEEP, SLEEP_BYTES / link.bandwidth)
        self._scratch = np.empty(0, np.uint8)  # see _rows()
        largest = comm.allreduce(local.size, mpi.MAX)  # hosts may have different numbers of ranks
        if reduction.hierarchical and 1 < largest < comm.size:
            self._local = local.Dup()
            self._across = comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
        crowd = 1 if self._local is not None else largest  # how many ranks share a link
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
        packed = self._rows(1, values.size, np.uint16)[0]  # the same memory in which scatter() put Scattered.packed
        if mine.dtype == np.float32:
            _core.pack_bf16(mine, packed[begin:end])
        self._pass_on(packed)
        _core.unpack_bf16_away(packed, values)  # the next forward is far away

    def _gather_ranks(self) -> None:
        """Waits, asleep, until all ranks are here, if MPI itself sums within one host: it spins while it does."""
        if self._in_memory:
            wait(self._comm.Ibarrier())

    @property
    def _packs(self) -> bool:
        """Whether values travel as bfloat16."""
        return self._reduction.bf16 and self._across.size > 1

    def _hierarchical(self, local, values: np.ndarray, residual: np.ndarray | None) -> None:
        """Sums within each host, then across hosts, in place."""
        leads = local.rank == 0
        self._wait(local.Ireduce(self._mpi.IN_PLACE if leads else values, values if leads else None))
        if leads:
            self._reduce(values, residual)
        self._wait(local.Ibcast(values))

    def _reduce(self, values: np.ndarray, residual: np.ndarray | None) -> None:
        """Sums over the ranks of _across, in place."""
        from engine.host import _core

        if self._packs:
            _core.unpack_bf16(self._sum_bf16(values, residual), values)
        elif self._direct and values.dtype == np.float32:
            self._sum_direct(values)
        else:
            self._wait(self._across.Iallreduce(self._mpi.IN_PLACE, values))

    def _sum_bf16(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Sums values that travel as bfloat16: rank r sums the r-th share in float32, rounds the sum once, and sends it
        to all. Returns the sums as bfloat16, valid until the next call."""
        from engine.host import _core

        comm = self._across
        packed, received = self._exchange_bf16(values, residual)
        begin, end = bounds_of_share(values.size, comm.size, comm.rank)
        rest = None if residual is None else residual[begin:end]
        _core.sum_bf16(received, comm.rank, values[begin:end], packed[begin:end], rest)
        self._exchange([packed[begin:end]] * comm.size, self._shares_of(packed))
        return packed

    def _exchange_bf16(self, values: np.ndarray, residual: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Sends the other ranks their shares as bfloat16.

        Returns (packed, received), valid until the next call. packed: the values as bfloat16, with this rank's share
        left undefined. received: rows (ranks, stride) with the other ranks' values of this rank's share."""
        from engine.host import _core

        comm = self._across
        begin, end = bounds_of_share(values.size, comm.size, comm.rank)
        share = bounds_of_share(values.size, comm.size, 0)[1]
        share = -(-share // ALIGNMENT) * ALIGNMENT
        sent, received = self._rows(2 * comm.size, share, np.uint16).reshape(2, comm.size, share)
        packed = sent.reshape(-1)[: values.size]
        for first, last in ((0, begin), (end, values.size)):  # the shares of other ranks
            if first < last:
                rest = None if residual is None else residual[first:last]
                _core.pack_bf16(values[first:last], packed[first:last], rest)
        self._exchange(self._shares_of(packed), received[:, : end - begin])
        return packed, received

    def _sum_direct(self, values: np.ndarray) -> None:
        """Sums float32 values by direct exchanges, in place."""
        self._sum_share(values)
        self._pass_on(values)

    def _sum_share(self, values: np.ndarray) -> None:
        """Sums this rank's share of float32 values, in place; the rest of them is undefined then."""
        from engine.host import _core

        comm = self._across
        shares = self._shares_of(values)
        mine = shares[comm.rank]
        received = self._rows(comm.size, shares[0].size, np.float32)
        self._exchange(shares, received[:, : mine.size])
        _core.sum_rows(received, comm.rank, mine)

    def _pass_on(self, values: np.ndarray) -> None:
        """Sends this rank's share of the values to all, and receives theirs into their places."""
        comm = self._across
        if self._direct:
            shares = self._shares_of(values)
            self._exchange([shares[comm.rank]] * comm.size, shares)
        else:
            bounds = bounds_of_shares(values.size, comm.size)
            places = [end - begin for begin, end in bounds], [begin for begin, _ in bounds]
            self._wait(comm.Iallgatherv(self._mpi.IN_PLACE, [values, places]))

    def _shares_of(self, values: np.ndarray) -> list[np.ndarray]:
        """Returns views of every rank's share of the values."""
        return [values[begin:end] for begin, end in bounds_of_shares(values.size, self._across.size)]

    def _rows(self, count: int, length: int, dtype: type) -> np.ndarray:
        """Returns scratch memory for (count, length) values; the next call returns the same memory."""
        nbytes = count * length * np.dtype(dtype).itemsize
        if self._scratch.size < nbytes:
            self._scratch = np.zeros(nbytes, np.uint8)
        return self._scratch[:nbytes].view(dtype).reshape(count, length)

    def _exchange(self, sent: Rows, received: Rows) -> None:
        """Sends row r of `sent` to rank r, and receives that rank's row into row r of `received`. Empty rows are not
        sent. It does without MPI's Ialltoall, which advances by small steps, each at a test of its request."""
        comm = self._across
        others = [(comm.rank + i) % comm.size for i in range(1, comm.size)]
        requests = [comm.Irecv(received[rank], rank) for rank in others if received[rank].size]
        requests += [comm.Isend(sent[rank], rank) for rank in others if sent[rank].size]
        try:
            for request in requests:
                self._wait(request)
        except self._mpi.Exception:
            if LOSSES.outlived:  # the run goes on and uses the arrays again: nothing may still write into them
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
        """Ends every rank's waits in this channel with an error. It cannot be used any more."""
        for comm in (self._comm, self._local, self._across):
            if comm is not None and comm != self._mpi.COMM_NULL:
                comm.Revoke()

    def close(self) -> None:
        if self._local is not None:
            self._local.Free()
            if self._across != self._mpi.COMM_NULL:
                self._across.Free()
        self._comm.Free()
