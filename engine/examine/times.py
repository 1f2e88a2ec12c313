"""Holds what `engine time` has measured, and writes it as text for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from engine.errors import printable
from engine.report.table import human, table

SHOWN = 10  # reorders that are shown, those that take longest
MUCH_WAITING = 0.05  # of waited_share, that is worth a line
FUSED_SHOWN = 3  # layers with fused ones that are named; the rest are counted


@dataclass
class Reorder:
    """A change of layout or precision that the plan could not avoid, inside an op or as one of its own ("Plain")."""

    backward: bool
    change: str  # "layout -> layout"
    megabytes: float  # of the result
    ms: float = 0.0  # median over the iterations


@dataclass
class Fused:
    """A layer that another layer's op computes, too: it has no time of its own."""

    name: str
    type: str


@dataclass
class LayerTime:
    """The times of a layer: medians over the iterations, in milliseconds, with those of the layers fused into it."""

    name: str
    type: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    flops: int = 0  # of a forward pass
    gradients: int = 0  # floats that its backward completes
    implementations: list[str] = field(default_factory=list)
    reorders: list[Reorder] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)  # of the tops
    fused: list[Fused] = field(default_factory=list)  # in the order of the work, after the layer's own


@dataclass
class KernelTime:
    """The kernels that were measured for a pass of a layer."""

    layer: str
    name: str  # of the pass
    kernel: str  # the chosen one
    ms: dict[str, float]  # kernel -> milliseconds when the op ran alone


@dataclass
class Times:
    """What was measured, on rank 0; images_per_second counts the images of all ranks in a step of median time.

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
    kernels: list[KernelTime] = field(default_factory=list)
    step_variation: float = 0.0  # standard deviation of the steps over their mean
    # Of the time in which threads could run, the part in which they had no core; of the rank where it is largest.
    waited_share: float = 0.0


def to_json(times: Times) -> dict[str, object]:
    return asdict(times)


def to_text(times: Times) -> str:
    """Returns text for people: the layers in order, then the whole."""
    rows = [
        (
            layer.name,
            "+".join([layer.type, *_types(layer.fused)]),
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
            *_fused(times.layers),
            *_reorders(times),
            *_kernels(times.kernels),
            *_summary(times),
        ]
    )


def _types(fused: list[Fused]) -> list[str]:
    """Returns the types of fused layers, except Split: the engine inserts these, and fused they cost nothing."""
    return [each.type for each in fused if each.type != "Split"]


def _fused(layers: list[LayerTime]) -> Iterator[str]:
    """Yields a line about what the table shows as "Convolution+ReLU": it names the first ones, and counts all."""
    found = [layer for layer in layers if _types(layer.fused)]
    if not found:
        return
    count = sum(len(_types(layer.fused)) for layer in found)
    named = [
        f"{layer.name} also computes {', '.join(each.name for each in layer.fused if each.type != 'Split')}"
        for layer in found[:FUSED_SHOWN]
    ]
    more = f"; and so on, in {len(found)} rows with a + (--json names all)" if len(found) > FUSED_SHOWN else ""
    yield f"Fused, without a row and a time of their own: {count} layers; {'; '.join(named)}{more}"


def _reorders(times: Times) -> Iterator[str]:
    """Yields the sum of all reorders, and a table of the costliest."""
    found = [(layer.name, each) for layer in times.layers for each in layer.reorders]
    if not found:
        yield "Reorders: none"
        return
    total = sum(each.ms for _, each in found)
    share = 100 * total / (times.forward_ms + times.backward_ms)
    yield f"Reorders that the plan could not avoid: {len(found)}, {total:.3f} ms, {share:.1f}% of the above"
    found.sort(key=lambda pair: -pair[1].ms)
    rows = [
        (name, "backward" if each.backward else "forward", each.change, f"{each.megabytes:.2f}", f"{each.ms:.3f}")
        for name, each in found[:SHOWN]
    ]
    yield table(("layer", "pass", "change", "MB", "ms"), rows, "<<<>>")


def _kernels(found: list[KernelTime]) -> Iterator[str]:
    """Yields a table of chosen kernels and runners-up, by layer and pass."""
    if not found:
        return
    yield "Kernels that were measured (ms, of the op alone):"
    rows = []
    for each in found:
        others = sorted((ms, kernel) for kernel, ms in each.ms.items() if kernel != each.kernel)
        chosen = f"{each.ms[each.kernel]:.3f}" if each.kernel in each.ms else ""
        others_text = ", ".join(f"{kernel} {ms:.3f}" for ms, kernel in others)
        rows.append((each.layer, each.name, each.kernel, chosen, others_text))
    yield table(("layer", "pass", "kernel", "ms", "runners-up"), rows, "<<<><")


def _summary(times: Times) -> Iterator[str]:
    steps = "forward, backward, update" if times.phase == "TRAIN" else "forward"
    ranks = f"{times.ranks} ranks x " if times.ranks > 1 else ""
    threads = f"{times.threads} thread{'s' if times.threads > 1 else ''}"
    yield (
        f"{printable(times.net)}, {times.phase}, {times.precision}: {ranks}batch {times.batch}, {threads}, "
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
    if times.waited_share > MUCH_WAITING:
        yield (
            f"note: the threads waited for a core {100 * times.waited_share:.0f}% of their time: other processes had "
            "it, or this run has more threads than cores"
        )
    yield f"images_per_second: {times.images_per_second:.2f}"
    yield (
        f"memory: {human(times.activation_bytes, 'B')} blobs and gradients, {human(times.scratch_bytes, 'B')} scratch, "
        f"{human(times.peak_memory_bytes, 'B')} at most in the whole process"
    )
