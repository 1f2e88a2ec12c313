"""`engine time`: every layer forward and backward, and whole training steps, on synthetic input."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import proto
from engine.comm.buckets import buckets_of, make_buckets, segments_of
from engine.comm.factory import make_strategy, settings_of
from engine.comm.strategy import Step
from engine.examine.source_shapes import SourceShapes
from engine.examine.synthetic import feed_synthetic
from engine.graph.build import TRAIN
from engine.net import Net
from engine.net.gates import gates
from engine.report.log import log
from engine.report.progress import Progress
from engine.report.table import human, table

if TYPE_CHECKING:
    from engine.comm.strategy import Strategy
    from engine.comm.world import World
    from engine.config import Config

RATE = 1e-6  # the weights hardly move: the last step computes on the same numbers as the first
SHOWN = 10  # reorders, of those that take longest


@dataclass
class Reorder:
    """A change of layout or precision that the plan could not avoid, inside an op or as one of its own ("Plain").
    Milliseconds: the median over the iterations."""

    backward: bool
    change: str  # "layout -> layout"
    megabytes: float  # of the result
    ms: float = 0.0


@dataclass
class LayerTime:
    """Medians over the iterations, in milliseconds. A fused layer's time is that of the layer that does its work."""

    name: str
    type: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    flops: int = 0  # of a forward pass
    gradients: int = 0  # floats that its backward completes
    implementations: list[str] = field(default_factory=list)
    reorders: list[Reorder] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)  # of the tops


@dataclass
class Times:
    """What was measured, on rank 0; images_per_second counts the images of all ranks.

    A step is forward, backward and update in phase TRAIN, forward alone in phase TEST.
    """

    net: str
    phase: str
    precision: str
    ranks: int
    threads: int
    batch: int  # per rank
    iterations: int
    first_iteration_ms: float
    to_first_iteration_s: float  # from the start of the process until the first iteration begins
    step_ms: float  # median
    forward_ms: float
    backward_ms: float
    images_per_second: float
    activation_bytes: int
    scratch_bytes: int
    peak_memory_bytes: int
    onednn: str
    isa: str
    layers: list[LayerTime]
    update_ms: float = 0.0  # on one rank, where it follows backward; servers update beside compute
    recomputed: int = 0  # layers that run forward twice, for a memory budget
    recompute_ms: float = 0.0  # what that takes, on top of forward_ms and backward_ms


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
    from engine import _core

    settings = settings_of(world, comm_param or proto.CommParameter())
    buckets = make_buckets([(p.name, p.offset, p.count) for p in net.parameters], settings.bucket_bytes)
    weights, gradients = (np.frombuffer(arena, np.float32)[: net.arena_size] for arena in (net.weights, net.gradients))
    segments = [[_core.Segment(*piece) for piece in pieces] for pieces in segments_of(buckets, {})]
    hyper = _core.Hyper(momentum=0.9, weight_decay=1e-4)
    updater = _core.Updater("sgd", weights, gradients, [np.zeros_like(weights)], segments, hyper)
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
    from engine import _core

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


def to_json(times: Times) -> dict[str, Any]:
    return asdict(times)


def to_text(times: Times) -> str:
    """For people: the layers in order, then the whole."""
    rows = [
        (
            layer.name,
            layer.type,
            f"{layer.forward_ms:.3f}",
            f"{layer.backward_ms:.3f}" if layer.backward_ms else "",
            f"{100 * (layer.forward_ms + layer.backward_ms) / (times.forward_ms + times.backward_ms):.1f}%",
            f"{layer.flops / layer.forward_ms / 1e6:.1f}" if layer.flops and layer.forward_ms else "",
            " ".join(layer.layouts),
            ", ".join(dict.fromkeys(layer.implementations)),
        )
        for layer in times.layers
    ]
    header = ("layer", "type", "forward ms", "backward ms", "share", "GFLOP/s fwd", "layout", "implementation")
    total = ("total", "", f"{times.forward_ms:.3f}", f"{times.backward_ms:.3f}", "", "", "", "")
    return "\n".join(
        [
            "Average time per layer (median):",
            table(header, rows, "<<>>>><<", total),
            *_reorders(times),
            *_summary(times),
        ]
    )


def _reorders(times: Times) -> Iterator[str]:
    """The costliest one by one, all in sum."""
    found = [(layer.name, each) for layer in times.layers for each in layer.reorders]
    total = sum(each.ms for _, each in found)
    share = 100 * total / (times.forward_ms + times.backward_ms)
    if not found:
        yield "Reorders: none"
        return
    yield f"Reorders that the plan could not avoid: {len(found)}, {total:.3f} ms, {share:.1f}% of the above"
    found.sort(key=lambda pair: -pair[1].ms)
    rows = [
        (name, "backward" if each.backward else "forward", each.change, f"{each.megabytes:.2f}", f"{each.ms:.3f}")
        for name, each in found[:SHOWN]
    ]
    yield table(("layer", "pass", "change", "MB", "ms"), rows, "<<<>>")


def _summary(times: Times) -> Iterator[str]:
    steps = "forward, backward, update" if times.phase == "TRAIN" else "forward"
    ranks = f"{times.ranks} ranks x " if times.ranks > 1 else ""
    threads = f"{times.threads} thread{'s' if times.threads > 1 else ''}"
    yield (
        f"{times.net}, {times.phase}, {times.precision}: {ranks}batch {times.batch}, {threads}, "
        f"oneDNN {times.onednn} with {times.isa}"
    )
    first = f"the first {times.first_iteration_ms:.3f} ms, begun {times.to_first_iteration_s:.3f} s after the start"
    yield f"step ({steps}): {times.step_ms:.3f} ms median of {times.iterations}, {first}"
    inside = times.forward_ms + times.backward_ms + times.recompute_ms + times.update_ms
    outside = max(0.0, times.step_ms - inside)
    if times.update_ms:
        yield f"update: {times.update_ms:.3f} ms"
    what = "engine's own work, communication that is not hidden" if times.ranks > 1 else "engine's own work"
    yield f"beyond that ({what}): {outside:.3f} ms, {1e3 * outside / len(times.layers):.1f} us per layer"
    if times.recomputed:
        yield (
            f"memory budget: {times.recomputed} layers are computed twice, which takes {times.recompute_ms:.3f} ms, "
            f"{100 * times.recompute_ms / times.step_ms:.1f}% of the step"
        )
    yield f"images_per_second: {times.images_per_second:.2f}"
    yield (
        f"memory: {human(times.activation_bytes, 'B')} blobs and gradients, {human(times.scratch_bytes, 'B')} scratch, "
        f"{human(times.peak_memory_bytes, 'B')} at most in the whole process"
    )
