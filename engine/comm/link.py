"""Measures the link: the latency and bandwidth between two hosts, and between two ranks of one host."""

import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np

PROBE_BYTES = 1 << 20
TIMED_SECONDS = 0.06
PINGS = 20


@dataclass(frozen=True)
class Link:
    """The worst of the links that were measured at the same time. latency: seconds, one way. bandwidth: bytes/s, each
    way with both in use; infinite if there is no such link."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def __str__(self) -> str:
        return f"{self.latency * 1e6:.0f} us, {self.bandwidth / 1e6:.0f} MB/s"


@dataclass(frozen=True)
class Links:
    """between: the link of two hosts. within: that of two ranks on one host. None if there are no two such ranks."""

    between: Link | None = None
    within: Link | None = None

    @property
    def slowest(self) -> Link:
        return self.between or self.within or Link()

    def __str__(self) -> str:
        named = {"between hosts": self.between, "within a host": self.within}
        return "; ".join(f"{where} {link}" for where, link in named.items() if link)


ALONE = Links()


def measure(mpi: ModuleType, comm, local) -> Links:
    """Collective; takes about 0.2 s. Measures the links within hosts, then those between hosts.

    comm: of all ranks. local: of this host's ranks. All pairs of neighbouring ranks measure at once; between hosts it
    is one rank of every host, as the ranks of a host share its link."""
    within = _worst(mpi, comm, local if local.size > 1 else None)
    leaders = comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
    several = leaders != mpi.COMM_NULL and leaders.size > 1
    between = _worst(mpi, comm, leaders if several else None)
    if leaders != mpi.COMM_NULL:
        leaders.Free()
    return Links(between, within)


def _worst(mpi: ModuleType, comm, group) -> Link | None:
    """Returns the worst link among the pairs of all ranks' groups, the same on all ranks; None if there is no pair.

    group: this rank's, None if it has no pair to measure."""
    found = np.array([0.0, -np.inf])  # latency, -bandwidth: the worst is the largest
    if group is not None and (peer := group.rank ^ 1) < group.size:
        link = _pair(group, peer)
        found[:] = link.latency, -link.bandwidth
    comm.Allreduce(mpi.IN_PLACE, found, mpi.MAX)
    return Link(float(found[0]), float(-found[1])) if found[0] > 0 else None


def _pair(comm, peer: int) -> Link:
    """Measures the link to rank `peer`, which calls this, too."""
    small, mine, theirs = np.zeros(1), np.ones(PROBE_BYTES, np.uint8), np.empty(PROBE_BYTES, np.uint8)

    def exchange(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            comm.Sendrecv(mine, peer, recvbuf=theirs, source=peer)
        return time.perf_counter() - begin

    def ping() -> None:
        if comm.rank < peer:
            comm.Send(small, peer)
            comm.Recv(small, peer)
        else:
            comm.Recv(small, peer)
            comm.Send(small, peer)

    ping()  # opens the connection
    times = []
    for _ in range(PINGS):
        begin = time.perf_counter()
        ping()
        times.append(time.perf_counter() - begin)
    exchange(2)  # fills buffers on the way, and uses up what a rate limit lets pass at first
    repeats = np.array([max(1, min(64, int(TIMED_SECONDS / exchange(1))))])
    if comm.rank < peer:
        comm.Send(repeats, peer)
    else:
        comm.Recv(repeats, peer)
    bandwidth = PROBE_BYTES * int(repeats[0]) / exchange(int(repeats[0]))
    return Link(sorted(times)[PINGS // 2] / 2, bandwidth)
