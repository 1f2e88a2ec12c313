"""`engine time`: every layer forward and backward, and whole training steps, on synthetic input."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import proto
from engine.comm.buckets import buckets_of, make_buckets, parameter_ranges
from engine.comm.factory import make_strategy, settings_of
from engine.comm.strategies.strategy import Step
from engine.data.source_shapes import SourceShapes
from engine.examine.synthetic import feed_synthetic
from engine.examine.times import Fused, LayerTime, Reorder, Times
from engine.graph.build import TRAIN
from engine.net import Net
from engine.net.gates import gates
from engine.report.log import log
from engine.report.progress import Progress

if TYPE_CHECKING:
    from engine.comm.strategies.strategy import Strategy
    from engine.comm.world import World
    from engine.config import Config

RATE = 1e-6  # the weights hardly move: the last step computes on the same numbers as the first


def benchmark(
    config: Config,
    phase: int,
    iterations: int,
    world: World,
    precision: str = "fp32",
    memory_budget: int | None = None,
) -> Times:
    """Collective. Builds the net, runs one iteration to warm up and `iterations` that count. Raises ConfigErrors."""
    state = config.message.state
    shapes_of = SourceShapes(phase, log)
    net = Net(
        config,
        phase,
        level=state.level,
        stages=state.stage,
        shapes_of=shapes_of,
        precision=precision,
        memory_budget=memory_budget,
    )
    feed_synthetic(net, seed=1 + world.rank)
    strategy = connect(net, world) if phase == TRAIN else None
    age = process_age()
    first = (step(net, strategy, 0), age)
    spans, reorders, repeats, steps, ends = [], [], [], [], []
    begin = time.perf_counter()
    with Progress("Timing", iterations) as progress:
        for iteration in range(1, iterations + 1):
            steps.append(step(net, strategy, iteration, ends))
            spans.append(net.program.spans())
            repeats.append(net.program.repeat_ns / 1e6)
            reorders.append([each[-1] for op in range(len(net.program)) for each in net.program.reorders(op)])
            progress.update(iteration)
    if strategy:
        strategy.wait_all()
    seconds = time.perf_counter() - begin
    if strategy:
        strategy.close()
    spans = np.diff(np.array(spans), axis=2)[:, :, 0]
    times = _times(net, world, precision, first, steps, seconds, spans, np.array(reorders))
    if ends and world.size == 1:
        times.update_ms = 1e3 * float(np.median(ends))
    times.recomputed, times.recompute_ms = len(net.repeats), float(np.median(repeats))
    return times


def process_age() -> float:
    """Seconds since this process was started (proc(5), stat: starttime, in clock ticks since boot)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def step(net: Net, strategy: Strategy | None, iteration: int, ends: list[float] | None = None) -> float:
    """One step; its seconds. ends: gets those after backward."""
    begin = time.perf_counter()
    net.run_forward(iteration)
    if strategy:
        strategy.wait_all()
        net.program.zero_gradients()
        strategy.start(Step(iteration, RATE))
        net.program.backward()
        computed = time.perf_counter()
        strategy.backward_done()
        if ends is not None:
            ends.append(time.perf_counter() - computed)
    return time.perf_counter() - begin


def connect(net: Net, world: World, comm_param: Any = None) -> Strategy:
    """SGD with momentum and weight decay, connected to the net's gradients as the solver does it."""
    from engine.host import _core

    settings = settings_of(world, comm_param or proto.CommParameter())
    buckets = make_buckets([(p.name, p.offset, p.count) for p in net.parameters], settings.bucket_bytes)
    weights, gradients = (np.frombuffer(arena, np.float32)[: net.arena_size] for arena in (net.weights, net.gradients))
    updater = _core.Updater(
        "SGD",
        weights,
        gradients,
        [np.zeros_like(weights)],
        parameter_ranges(buckets),
        {"momentum": 0.9},
        weight_decay=1e-4,
    )
    queue = _core.ReadyQueue(len(buckets))
    strategy = make_strategy(world, queue, updater, buckets, gradients, settings, _core.threads())
    net.program.set_queue(queue, gates(net, buckets_of(buckets)))
    return strategy


def _times(
    net: Net,
    world: World,
    precision: str,
    first: tuple[float, float],
    steps: list[float],
    seconds: float,
    spans: np.ndarray,
    reorders: np.ndarray,
) -> Times:
    """first: seconds of the first step, and from the start of the process to its beginning; spans, reorders: see
    _layer_times()."""
    from engine.host import _core

    layers = _layer_times(net, spans, reorders)
    shapes = [blob.shape for blob in net.inputs if blob.shape]
    batch = shapes[0][0] if shapes else 1
    return Times(
        net=net.name,
        phase="TRAIN" if net.phase == TRAIN else "TEST",
        precision=precision,
        ranks=world.size,
        threads=_core.threads(),
        batch=batch,
        iterations=len(steps),
        first_iteration_ms=1e3 * first[0],
        to_first_iteration_s=first[1],
        step_ms=1e3 * float(np.median(steps)),
        forward_ms=sum(layer.forward_ms for layer in layers),
        backward_ms=sum(layer.backward_ms for layer in layers),
        images_per_second=batch * world.size * len(steps) / seconds,
        activation_bytes=net.program.activation_bytes,
        scratch_bytes=net.program.scratch_bytes,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        onednn=_core.onednn_version(),
        isa=_core.onednn_isa(),
        layers=layers,
    )


def _layer_times(net: Net, spans: np.ndarray, reorders: np.ndarray) -> list[LayerTime]:
    """In forward's order. spans (iterations, 2 ops) and reorders (iterations, those of all ops): nanoseconds."""
    count = len(net.program)
    median = np.median(spans, axis=0) / 1e6
    reorder_ms = iter(np.median(reorders, axis=0) / 1e6)
    layers: dict[str, LayerTime] = {}
    for op, layer in enumerate(net.builder.layer_of_op):
        row = layers.setdefault(layer.name, LayerTime(layer.name, layer.type, flops=layer.flops()))
        row.fused = [Fused(other.name, other.type) for other in net.graph.fused.get(layer, [])]
        row.forward_ms += float(median[op])
        if net.phase == TRAIN and net.program.needs_backward(op):
            row.backward_ms += float(median[2 * count - 1 - op])
        row.implementations.append(net.program.implementation(op))
        for backward, before, after, size, _ in net.program.reorders(op):
            row.reorders.append(Reorder(backward, f"{before} -> {after}", size / 1e6, float(next(reorder_ms))))
        row.layouts = [net.tensors[top].layout for top in layer.tops if top in net.tensors]
    uses = net.first_uses()
    for placed in net.parameters:
        layers[net.builder.layer_of_op[uses[placed.parameter]].name].gradients += placed.count
    return list(layers.values())
