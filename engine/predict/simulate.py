"""Simulates a training step on any number of ranks: when buckets become ready, who reduces them, what has to wait.

It supposes that all ranks are equally fast, so that one of them stands for all. Its solver thread, its servers and the
link are simulated as they work in program.cpp and servers.py: a server takes one chunk of one of its buckets at a time;
an allreduce first takes its messages' latency, then its bytes share the link with those of the other servers; then the
server updates the weights, and the next forward waits for each bucket before its first reader. Sharded updates send as
many messages and bytes, half of them before the update and half after it, and update a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.comm.buckets import Bucket
from engine.comm.link import Link
from engine.comm.settings import CommSettings, exchanges_directly

STEPS = 4  # that are simulated; the last one counts, for the first waits for no update
LEAST_RATE = 0.05  # the least speed of compute, as a fraction, when servers take cores from it


@dataclass(frozen=True)
class Network:
    """The model of a network. Consecutive ranks are on one node."""

    ranks: int  # of all nodes
    between: Link | None  # a node's link to the others; None: not known
    ranks_per_node: int = 1
    within: Link = field(default_factory=Link)  # the link of two ranks of a node
    cpu: float = 0.0  # seconds of processor time for a byte that a rank reduces
    cores: float = 0.0  # of a node; 0: enough for everything

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.ranks // self.ranks_per_node)

    def allreduce(self, nbytes: float) -> tuple[float, float]:
        """Returns the seconds of latency, and those that the bytes take on a link that is not shared.

        The model is reduce-scatter by recursive halving, then allgather by doubling (Rabenseifner 2004; Thakur,
        Rabenseifner, Gropp 2005): 2 log2(p) messages, and 2 (p - 1) / p of the bytes each way. A node's link carries,
        for all its ranks together, no more than that, for the larger exchanges stay within the node. Ranks that
        exchange directly send as many bytes in 2 steps.

        Args:
            nbytes: of the gradients as they are sent.
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
    """A step of forward or backward."""

    seconds: float
    waits: Sequence[int] = ()  # the buckets that it waits for
    readies: Sequence[int] = ()  # the buckets that are ready after it


@dataclass(frozen=True)
class Work:
    """A step of a rank."""

    forward: Sequence[Op]
    backward: Sequence[Op]
    update: float  # seconds of one thread for a byte of gradients
    threads: int = 1  # compute threads
    together: bool = False  # whether the seconds were measured while all ranks of the node computed

    @property
    def compute(self) -> float:
        """Seconds of forward and backward."""
        return sum(op.seconds for op in (*self.forward, *self.backward))


def step_seconds(work: Work, buckets: Sequence[Bucket], settings: CommSettings, network: Network) -> float:
    """Returns the seconds of a step in the middle of training. On one rank the compute threads update after backward;
    without buckets, nothing waits."""
    total = sum(bucket.nbytes for bucket in buckets)
    crowded = 1.0
    if network.cores and not work.together:
        crowded = max(1.0, work.threads * network.ranks_per_node / network.cores)
    if network.ranks == 1 or not buckets:
        return work.compute * crowded + total * work.update / work.threads
    if settings.servers == 0:  # all buckets are reduced at the end of backward, which waits for them
        last = replace(work.backward[-1], readies=[bucket.index for bucket in buckets])
        first = replace(work.forward[0], waits=last.readies)
        backward = [replace(op, readies=()) for op in work.backward[:-1]]
        work = replace(work, forward=[first, *work.forward[1:]], backward=[*backward, last])
        settings = replace(settings, servers=1, priority=False)
    return _Simulation(work, buckets, settings, network, crowded).run()


@dataclass
class _Stage:
    """What a server does at present."""

    kind: str  # "latency", "wire", "update"
    left: float  # seconds of work that are left
    nbytes: float = 0.0
    rate: float = 1.0  # seconds of work done in a second


class _Server:
    """One server, with the state of its buckets in its present step."""

    def __init__(self, buckets: Sequence[Bucket]):
        self.buckets = buckets
        self.step = 0
        self.left: dict[int, list[float]] = {}  # bucket -> bytes of each of its chunks that are not reduced yet
        self.stages: list[_Stage] = []  # the present one and those that follow it
        self.index = -1  # the bucket that it works on


class _Simulation:
    """Simulates STEPS steps, from event to event: an op or a stage of a server ends, and others may begin."""

    def __init__(self, work: Work, buckets: Sequence[Bucket], settings: CommSettings, network: Network, crowded: float):
        self.work, self.settings, self.network, self.crowded = work, settings, network, crowded
        count = max(1, min(settings.servers, len(buckets)))
        self.servers = [_Server(buckets[server::count]) for server in range(count)]
        for server in self.servers:
            self._open(server)
        self.ready = [-1] * len(buckets)  # the last step in which each bucket has become ready
        self.done = [-1] * len(buckets)  # the last step in which each bucket was updated
        # The solver's step, the place of its op, and the seconds left of that op; None: it has not begun yet.
        self.step, self.place, self.left = 0, 0, None
        self.ops = [*work.forward, *work.backward]
        self.now, self.ends = 0.0, []

    def run(self) -> float:
        """Returns the seconds of the last step."""
        while len(self.ends) < STEPS:
            self._begin()
            self._advance()
        return self.ends[-1] - self.ends[-2]

    def _open(self, server: _Server) -> None:
        """Gives a server the chunks of its next step."""
        half = 0.5 if self.settings.reduction.bf16 else 1.0
        for bucket in server.buckets:
            count = max(1, -(-bucket.nbytes // self.settings.chunk_bytes))
            server.left[bucket.index] = [half * bucket.nbytes / count] * count

    def _begin(self) -> None:
        """Lets the solver begin its op, and each idle server its next chunk, if they need not wait."""
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
        """Returns the bucket that a server takes next, as in servers.py; None if it must wait."""
        ready = [index for index in server.left if self.ready[index] >= server.step]
        if self.settings.priority:
            return max(ready, default=None)
        first = min(server.left)
        return first if first in ready else None

    def _advance(self) -> None:
        """Goes on to the next moment at which something ends."""
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
        """Returns the speed of compute, as a fraction, when the servers of a node take the cores that they need."""
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
