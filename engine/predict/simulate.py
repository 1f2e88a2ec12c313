"""Simulates a training step on any number of ranks: when buckets become ready, who reduces them, what has to wait.

The ranks are taken to be alike and in step, so that one of them stands for all. Its solver thread, its servers and the
link are simulated as they work in program.cpp and servers.py: a server takes one chunk of one of its buckets at a time;
an allreduce first takes its messages' latency, then its bytes share the link with those of the other servers; then the
server updates the weights, and the next forward waits for each bucket before its first reader. Sharded updates send as
many messages and bytes, one half before the update and one behind it, and update a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.comm.buckets import Bucket
from engine.comm.link import Link
from engine.comm.settings import CommSettings, exchanges_directly

STEPS = 4  # the last is the result: the first has no update in flight
LEAST_RATE = 0.05  # of compute that servers take the cores from


@dataclass(frozen=True)
class Network:
    """`ranks` in all, consecutive ones on one node. between: a node's link to the others, None if not known; within: of
    two ranks of a node. cpu: seconds of processor time for a byte that a rank reduces. cores: of a node; 0: enough for
    everything."""

    ranks: int
    between: Link | None
    ranks_per_node: int = 1
    within: Link = field(default_factory=Link)
    cpu: float = 0.0
    cores: float = 0.0

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    def allreduce(self, nbytes: float) -> tuple[float, float]:
        """Seconds of latency, and of the link alone, for float32 gradients of so many bytes on the wire.

        Reduce-scatter by recursive halving, then allgather by doubling (Rabenseifner 2004; Thakur, Rabenseifner, Gropp
        2005): 2 log2(p) messages, and 2 (p - 1) / p of the bytes each way; of a node's ranks together as much crosses
        its link, for the larger exchanges stay in the node. Where ranks exchange directly: as many bytes in 2 steps.
        """
        near = min(self.ranks_per_node, self.ranks)
        inside, across = math.ceil(math.log2(near)), math.ceil(math.log2(self.nodes))
        if exchanges_directly(self.ranks, near):
            across = 1
        latency = 2 * inside * self.within.latency
        wire = 2 * (near - 1) / near * nbytes / self.within.bandwidth
        if self.nodes > 1 and self.between is not None:
            latency += 2 * across * self.between.latency
            wire += 2 * (self.nodes - 1) / self.nodes * nbytes / self.between.bandwidth
        return latency, wire


@dataclass(frozen=True)
class Op:
    """A step of forward or backward: seconds; the buckets that it waits for, and those that are ready after it."""

    seconds: float
    waits: Sequence[int] = ()
    readies: Sequence[int] = ()


@dataclass(frozen=True)
class Work:
    """A rank's step. update: seconds of one thread for a byte of gradients. threads: that compute. together: the
    seconds are those of a rank when all ranks of its node compute, not of one that is alone."""

    forward: Sequence[Op]
    backward: Sequence[Op]
    update: float
    threads: int = 1
    together: bool = False

    @property
    def compute(self) -> float:
        return sum(op.seconds for op in (*self.forward, *self.backward))


def step_seconds(work: Work, buckets: Sequence[Bucket], settings: CommSettings, network: Network) -> float:
    """Of a step when training is under way. On one rank, the threads update after backward; without buckets, nothing
    waits."""
    total = sum(bucket.nbytes for bucket in buckets)
    crowded = 1.0
    if network.cores and not work.together:
        crowded = max(1.0, work.threads * network.ranks_per_node / network.cores)
    if network.ranks == 1 or not buckets:
        return work.compute * crowded + total * work.update / work.threads
    if settings.servers == 0:  # all buckets at the end of backward, which waits for them
        last = replace(work.backward[-1], readies=[bucket.index for bucket in buckets])
        first = replace(work.forward[0], waits=last.readies)
        backward = [replace(op, readies=()) for op in work.backward[:-1]]
        work = replace(work, forward=[first, *work.forward[1:]], backward=[*backward, last])
        settings = replace(settings, servers=1, priority=False)
    return _Simulation(work, buckets, settings, network, crowded).run()


@dataclass
class _Stage:
    """What a server does at present. rate: seconds of work per second."""

    kind: str  # "latency", "wire", "update"
    left: float
    nbytes: float = 0.0
    rate: float = 1.0


class _Server:
    """The buckets of one server in one step after the other."""

    def __init__(self, buckets: Sequence[Bucket]):
        self.buckets = buckets
        self.step = 0
        self.left: dict[int, list[float]] = {}  # bucket -> bytes of its chunks that are not reduced
        self.stages: list[_Stage] = []
        self.index = -1


class _Simulation:
    def __init__(self, work: Work, buckets: Sequence[Bucket], settings: CommSettings, network: Network, crowded: float):
        self.work, self.settings, self.network, self.crowded = work, settings, network, crowded
        count = max(1, min(settings.servers, len(buckets)))
        self.servers = [_Server(buckets[server::count]) for server in range(count)]
        for server in self.servers:
            self._open(server)
        self.ready = [-1] * len(buckets)  # the last step in which it was
        self.done = [-1] * len(buckets)
        self.step, self.place, self.left = 0, 0, None  # of the solver: None means that it has not begun the op
        self.ops = [*work.forward, *work.backward]
        self.now, self.ends = 0.0, []

    def run(self) -> float:
        while len(self.ends) < STEPS:
            self._begin()
            self._advance()
        return self.ends[-1] - self.ends[-2]

    def _open(self, server: _Server) -> None:
        """The chunks of the server's next step."""
        half = 0.5 if self.settings.reduction.bf16 else 1.0
        for bucket in server.buckets:
            count = max(1, -(-bucket.nbytes // self.settings.chunk_bytes))
            server.left[bucket.index] = [half * bucket.nbytes / count] * count

    def _begin(self) -> None:
        """Whoever can go on does."""
        op = self.ops[self.place]
        if self.left is None and all(self.done[bucket] >= self.step - 1 for bucket in op.waits):
            self.left = op.seconds * self.crowded
        for server in self.servers:
            if not server.stages and (index := self._choice(server)) is not None:
                server.index, nbytes = index, server.left[index].pop(0)
                latency, wire = self.network.allreduce(nbytes)
                server.stages = [_Stage("latency", latency), _Stage("wire", wire, nbytes)]
                if not server.left[index]:
                    del server.left[index]
                    size = next(bucket.nbytes for bucket in server.buckets if bucket.index == index)
                    ranks = self.network.ranks if self.settings.shard_updates else 1
                    server.stages.append(_Stage("update", size * self.work.update / ranks))

    def _choice(self, server: _Server) -> int | None:
        """As in servers.py; None while nothing is ready."""
        ready = [index for index in server.left if self.ready[index] >= server.step]
        if self.settings.priority:
            return max(ready, default=None)
        first = min(server.left)
        return first if first in ready else None

    def _advance(self) -> None:
        """To the next moment at which something ends."""
        active = [server.stages[0] for server in self.servers if server.stages]
        wires = [stage for stage in active if stage.kind == "wire"]
        for stage in wires:
            stage.rate = 1 / len(wires)
        speed = self._speed(active)
        times = [stage.left / stage.rate for stage in active]
        if self.left is not None:
            times.append(self.left / speed)
        passed = min(times)
        self.now += passed
        for server in self.servers:
            if server.stages:
                server.stages[0].left -= passed * server.stages[0].rate
                if server.stages[0].left <= 1e-12:
                    self._stage_done(server)
        if self.left is not None:
            self.left -= passed * speed
            if self.left <= 1e-12:
                self._op_done()

    def _speed(self, active: list[_Stage]) -> float:
        """Of compute, when the servers of a node take what they need of its cores."""
        if not self.network.cores:
            return 1.0
        ranks = self.network.ranks_per_node
        taken = sum(1.0 for stage in active if stage.kind == "update")
        for stage in active:
            if stage.kind == "wire" and stage.left > 0:
                seconds = self.network.allreduce(stage.nbytes)[1]
                taken += self.network.cpu * stage.nbytes / max(seconds, 1e-12) * stage.rate
        computing = min(self.network.cores, self.work.threads * ranks)
        return min(1.0, max(LEAST_RATE, (self.network.cores - taken * ranks) / computing))

    def _stage_done(self, server: _Server) -> None:
        server.stages.pop(0)
        if server.stages or server.index in server.left:
            return
        self.done[server.index] = server.step
        if not server.left:
            server.step += 1
            self._open(server)

    def _op_done(self) -> None:
        for bucket in self.ops[self.place].readies:
            self.ready[bucket] = self.step
        self.left, self.place = None, self.place + 1
        if self.place == len(self.ops):
            self.ends.append(self.now)
            self.place, self.step = 0, self.step + 1
