"""`engine time`: times every layer forward and backward, and whole training steps, on synthetic input."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.config.phases import PHASE_NAMES
from engine.data.source_shapes import SourceShapes
from engine.errors import ConfigError
from engine.examine.synthetic import feed_synthetic
from engine.examine.times import Fused, KernelTime, LayerTime, Reorder, Times
from engine.host.machine import core_seconds, process_age
from engine.net import Counters, Net, NetOptions
from engine.net.kernel_table import Kernels
from engine.report.log import log
from engine.report.progress import Progress
from engine.solver.optimizer import Optimizer
from engine.solver.state import TrainingState

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig

RATE = 1e-6  # the weights hardly move: the last step computes on the same numbers as the first


def benchmark(
    config: NetConfig,
    phase: int,
    iterations: int,
    world: World,
    precision: str = "fp32",
    memory_budget: int | None = None,
    kernels: Kernels | None = None,
) -> Times:
    """Collective. Builds the net, runs one iteration to warm up and `iterations` that count; returns their times.
    Raises ConfigErrors, and ConfigError if there is nothing to time.

    Args:
        phase: TRAIN times forward, backward and update; TEST times forward alone.
        memory_budget: bytes; None: no limit.
        kernels: which kernels layers use, and whether they are measured.
    """
    shapes_of = SourceShapes(config.message, phase, log, ranks=world.size)
    options = NetOptions(shapes_of=shapes_of, precision=precision, memory_budget=memory_budget)
    kernels = kernels or Kernels()
    net = kernels.build(lambda choices: Net(config, phase, options.replace(kernels=choices)), world)
    if not len(net.program):
        raise ConfigError(f"nothing to compute in phase {PHASE_NAMES[phase]}, so there is nothing to time", config.path)
    feed_synthetic(net, seed=1 + world.rank)
    training = Training(net, world) if phase == proto.TRAIN else None
    age = process_age()
    first = (step(net, training, 0), age)
    spans, reorders, repeats, steps, ends = [], [], [], [], []
    ran, waited = core_seconds()
    with Progress("Timing", iterations) as progress:
        for iteration in range(1, iterations + 1):
            steps.append(step(net, training, iteration, ends))
            spans.append(net.program.spans())
            repeats.append(net.program.repeat_ns / 1e6)
            reorders.append([each[-1] for op in range(len(net.program)) for each in net.program.reorders(op)])
            progress.update(iteration)
    ran, waited = np.subtract(core_seconds(), (ran, waited))
    if training:
        training.optimizer.wait()
        training.optimizer.close()
    spans = np.diff(np.array(spans), axis=2)[:, :, 0]
    times = _times(net, world, precision, first, steps, spans, np.array(reorders))
    if ends and world.size == 1:
        times.update_ms = 1e3 * float(np.median(ends))
    times.waited_share = max(world.gather(max(0.0, waited) / max(ran + waited, 1e-9)) or [0.0])
    times.kernels = _kernel_times(net, kernels)
    times.recomputed, times.recompute_ms = len(net.repeats), float(np.median(repeats))
    return times


class Training:
    """Updates a net by SGD with momentum and weight decay, or by another rule, through the Optimizer of training."""

    def __init__(self, net: Net, world: World, comm_param: proto.CommParameter | None = None, rule: str = "SGD"):
        param = proto.SolverParameter(type=rule, base_lr=RATE, lr_policy="fixed", momentum=0.9, weight_decay=1e-4)
        if comm_param is not None:
            param.comm_param.CopyFrom(comm_param)
        self.optimizer, self.state = Optimizer(net, param, world), TrainingState.new(1)


def step(net: Net, training: Training | None, iteration: int, ends: list[float] | None = None) -> float:
    """Takes one step, and returns its seconds. Without `training` it is forward alone. ends: a list to which the
    seconds after backward are added."""
    begin = time.perf_counter()
    net.run_forward(Counters(iteration))
    if training:
        training.optimizer.wait()
        net.program.zero_gradients()
        with training.optimizer.update(training.state, samples=0):
            net.program.backward()
            computed = time.perf_counter()
        if ends is not None:
            ends.append(time.perf_counter() - computed)
    return time.perf_counter() - begin


def _times(
    net: Net,
    world: World,
    precision: str,
    first: tuple[float, float],
    steps: list[float],
    spans: np.ndarray,
    reorders: np.ndarray,
) -> Times:
    """Makes the Times of what was measured.

    Args:
        first: seconds of the first step, and from the start of the process until that began.
        steps: seconds of each step.
        spans, reorders: see _layer_times().
    """
    from engine.host import _core

    layers = _layer_times(net, spans, reorders)
    batch, median = net.graph.batch_size or 1, float(np.median(steps))
    return Times(
        net=net.name,
        phase=PHASE_NAMES[net.phase],
        precision=precision,
        ranks=world.size,
        threads=_core.threads(),
        batch=batch,
        iterations=len(steps),
        first_iteration_ms=1e3 * first[0],
        to_first_iteration_s=first[1],
        step_ms=1e3 * median,
        forward_ms=sum(layer.forward_ms for layer in layers),
        backward_ms=sum(layer.backward_ms for layer in layers),
        images_per_second=batch * world.size / median,
        activation_bytes=net.program.activation_bytes,
        scratch_bytes=net.program.scratch_bytes,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        onednn=_core.onednn_version(),
        isa=_core.onednn_isa(),
        layers=layers,
        step_variation=float(np.std(steps) / np.mean(steps)),
    )


def _kernel_times(net: Net, kernels: Kernels) -> list[KernelTime]:
    """Returns the times of kernels, for the layers whose kernels were measured."""
    found = []
    for asked in net.builder.asked:
        measured = kernels.table.ops.get(asked.key) if kernels.table else None
        if measured is not None:
            chosen = measured.kernels
            found += [KernelTime(asked.layer, name, chosen.get(name, ""), dict(ms)) for name, ms in measured.ms.items()]
    return found


def _layer_times(net: Net, spans: np.ndarray, reorders: np.ndarray) -> list[LayerTime]:
    """Returns the times of layers, in forward's order.

    Args:
        spans: nanoseconds (iterations, 2 ops): all ops forward, then in reverse order backward.
        reorders: nanoseconds (iterations, reorders of all ops).
    """
    count = len(net.program)
    median = np.median(spans, axis=0) / 1e6
    reorder_ms = iter(np.median(reorders, axis=0) / 1e6)
    layers: dict[str, LayerTime] = {}
    for op, layer in enumerate(net.builder.layer_of_op):
        row = layers.setdefault(layer.name, LayerTime(layer.name, layer.type, flops=layer.flops()))
        row.fused = [Fused(other.name, other.type) for other in net.graph.fused.get(layer, [])]
        row.forward_ms += float(median[op])
        if net.phase == proto.TRAIN and net.program.needs_backward(op):
            row.backward_ms += float(median[2 * count - 1 - op])
        row.implementations.append(net.program.implementation(op))
        for backward, before, after, size, _ in net.program.reorders(op):
            row.reorders.append(Reorder(backward, f"{before} -> {after}", size / 1e6, float(next(reorder_ms))))
        row.layouts = [net.tensors[top].layout for top in layer.tops if top in net.tensors]
    uses = net.first_uses()
    for placed in net.parameters:
        layers[net.builder.layer_of_op[uses[placed.parameter]].name].gradients += placed.count
    return list(layers.values())
