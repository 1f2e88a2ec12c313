"""Measures allreduces on the ranks that are here, and fits the network model of a simulation to their times."""

import resource
import time
from dataclasses import replace

import numpy as np

from engine.comm.link import Link
from engine.comm.world import World
from engine.host.machine import interrupt_seconds
from engine.predict.simulate import Network

SMALL, LARGE = 4 << 10, 8 << 20  # bytes
SECONDS = 0.5  # that all large ones take together, about


def measure(world: World, cores: float, sharing: int) -> Network:
    """Collective; takes about a second. Returns the network for which the model gives the measured times of a small and
    of a large allreduce.

    Links within a node are as fast as the preflight measured them; with several nodes, the link between nodes takes all
    the rest of the time.

    Args:
        cores: of a node; see Network.
        sharing: ranks on this machine, which share its interrupts.
    """
    channel = world.channel()
    small, large = np.zeros(SMALL // 4, np.float32), np.zeros(LARGE // 4, np.float32)
    for values in (small, large):
        channel.allreduce(values)
    latency = float(np.median([_seconds(channel, small) for _ in range(30)]))
    count = world.broadcast_object(max(1, min(20, int(SECONDS / _seconds(channel, large)))))
    begin, spent = time.perf_counter(), _processor_seconds(sharing)
    for _ in range(count):
        channel.allreduce(large)
    each = (time.perf_counter() - begin) / count
    figures = np.array([latency, each, (_processor_seconds(sharing) - spent) / count / LARGE])
    world.allreduce(figures)
    channel.close()
    latency, each, cpu = (figures / world.size).tolist()
    return fit(world.size, world.local_size, world.links().within, latency, each, cpu, cores)


def fit(ranks: int, near: int, within: Link | None, small: float, large: float, cpu: float, cores: float) -> Network:
    """Returns the network for which the model gives these times.

    Args:
        ranks: of all nodes; near: of a node.
        within: the measured link within a node, if there is one.
        small, large: seconds of an allreduce of SMALL and of LARGE bytes.
        cpu, cores: see Network.
    """
    one_node = ranks <= near
    unknown = "within" if one_node else "between"
    network = Network(ranks, None if one_node else Link(), near, within or Link(), cpu, cores)
    network = replace(network, **{unknown: Link()})  # a link that takes no time
    known = network.allreduce(LARGE)
    unit = replace(network, **{unknown: Link(1.0, 1.0)}).allreduce(LARGE)
    latency = max(0.0, small - known[0]) / (unit[0] - known[0])
    bandwidth = (unit[1] - known[1]) / max(1e-9, large - small - known[1])
    return replace(network, **{unknown: Link(latency, bandwidth)})


def _seconds(channel, values: np.ndarray) -> float:
    begin = time.perf_counter()
    channel.allreduce(values)
    return time.perf_counter() - begin


def _processor_seconds(sharing: int) -> float:
    """Returns the processor seconds of this process so far, with its part of those that the machine has spent on
    interrupts, in which TCP receives."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + interrupt_seconds() / sharing
