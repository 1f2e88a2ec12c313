"""`engine time --data`: times the data of a solver's net, stage by stage, and tells how many threads keep the net
fed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.config import SolverConfig, net_of_solver, seed_of
from engine.data.decode import pillow_nanoseconds, slow_jpegs
from engine.data.feeder import Feeder
from engine.data.prefetch import data_threads
from engine.data.reader import PictureReader, Sample
from engine.errors import ConfigError
from engine.examine.benchmark import benchmark
from engine.graph.build import build
from engine.report.progress import Progress
from engine.report.table import table
from engine.solver.train_net import memory_budget

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.data.data_source import DataSource
    from engine.net.kernel_table import Kernels

IMAGES, _WARM_UP = 256, 8  # images of a layer that are measured, and that are read before
_LIMIT = 10.0  # seconds that one pass over them may take
_ELAPSED = 2.0  # seconds for which all threads run


@dataclass
class DataLayerTimes:
    """The times of one data layer."""

    name: str
    source: str
    images: int  # that were measured
    batch: int
    stages: dict[str, float]  # stage -> milliseconds of processor time for an image
    waited: float  # milliseconds for an image, beside these, that the first reading waited for the source's files
    threads: int  # decoding threads
    elapsed: float  # images per second with all decoding threads at once

    @property
    def milliseconds(self) -> float:
        """The processor time of one image."""
        return sum(self.stages.values())


@dataclass
class DataTimes:
    """The times of a net's data layers, and of its step."""

    net: str
    precision: str
    step_ms: float  # on synthetic input; 0 if it was not measured
    layers: list[DataLayerTimes]
    notes: list[str] = field(default_factory=list)

    @property
    def core_ms(self) -> float:
        """The processor time of the data of one step, in milliseconds."""
        return sum(layer.batch * layer.milliseconds for layer in self.layers)

    @property
    def threads_needed(self) -> int:
        """The number of decoding threads that keep the net fed; 0 if step_ms was not measured."""
        return max(1, math.ceil(self.core_ms / self.step_ms)) if self.step_ms else 0


def data_times(
    config: SolverConfig, world: World, precision: str, iterations: int, kernels: Kernels | None = None
) -> DataTimes:
    """Times the data layers of the train net, and `iterations` of its steps. Raises ConfigErrors, DataError."""
    if world.size > 1:
        raise ConfigError("--data measures one rank's pipeline: start it without mpiexec")
    net = net_of_solver(config, proto.TRAIN)
    with contextlib.closing(Feeder(net, proto.TRAIN, seed_of(config.message), world)) as feeder:
        build(net, proto.TRAIN, shapes_of=feeder.shapes_of, to_look_at=True)
        if not feeder.readers:
            raise ConfigError("the train net has no data layer, so there is nothing to read", net.path)
        layers = [_measure(name, source) for name, source in feeder.data_sources.items()]
        for layer in layers:
            layer.batch = feeder.batch_sizes[layer.name]
    found = DataTimes(net.message.name or net.path, precision, 0.0, layers)
    budget = memory_budget(config.message)
    found.step_ms = benchmark(net, proto.TRAIN, iterations, world, precision, budget, kernels).step_ms
    found.notes += [note for note in (slow_jpegs(),) if note]
    return found


def _measure(name: str, source: DataSource) -> DataLayerTimes:
    """Times a data layer. Its batch is left 0."""
    reader = source.reader
    samples = source.order(0, min(IMAGES + _WARM_UP, 4 * source.size))
    out = [np.empty((2, *shape), np.float32) for shape in reader.shapes]

    def load(position: int) -> None:
        place = position % 2
        reader.load(Sample(*samples[position], place), [array[place, ...] for array in out])
        if reader.pairs and place:
            reader.join(samples[position - 1 : position + 1], out)

    with Progress(f"Reading {name}") as progress:
        cold = warm = (0.0, 0.0)
        if isinstance(reader, PictureReader):
            fetch = _fetcher(reader, samples)
            cold, _ = _timed(fetch, len(samples), lambda done: progress.update(done, 3 * len(samples)))
            warm, _ = _timed(fetch, len(samples))
        for position in range(min(_WARM_UP, len(samples))):
            load(position)
        (processor, _), stages, count = _timed_stages(load, len(samples))
        elapsed = _all_threads(source)
    read = min(warm[0], processor)
    times = {"read": read, **stages, "transform": max(0.0, processor - read - sum(stages.values()))}
    return DataLayerTimes(
        name=name,
        source=source.name,
        images=count,
        batch=0,
        stages=times if isinstance(reader, PictureReader) else {"load": processor},
        waited=max(0.0, cold[1] - cold[0]),
        threads=data_threads(),
        elapsed=elapsed,
    )


def _fetcher(reader: PictureReader, samples: Sequence[tuple[int, int]]) -> Callable[[int], object]:
    return lambda position: reader.fetch(samples[position][1])


def _timed(
    work: Callable[[int], object], count: int, tell: Callable[[int], None] | None = None
) -> tuple[tuple[float, float], int]:
    """Calls work(0), work(1), ... `count` times, or until _LIMIT is over. Returns the mean (processor, elapsed)
    milliseconds of a call, and the number of calls."""
    begin, processor = time.perf_counter(), time.thread_time()
    done = 0
    while done < count and time.perf_counter() - begin < _LIMIT:
        work(done)
        done += 1
        if tell:
            tell(done)
    passed = time.thread_time() - processor, time.perf_counter() - begin
    return (1e3 * passed[0] / done, 1e3 * passed[1] / done), done


def _timed_stages(load: Callable[[int], None], count: int) -> tuple[tuple[float, float], dict[str, float], int]:
    """Calls load() as _timed() does. Returns in between the processor milliseconds of decoding and of resizing: their
    measured elapsed times, scaled by processor time over elapsed time."""
    from engine.host import _core

    before, pillow = np.array(_core.stage_times()), pillow_nanoseconds()
    _core.measure_stages(True)
    try:
        passed, done = _timed(load, count)
    finally:
        _core.measure_stages(False)
    decoding, resizing, _ = (np.array(_core.stage_times()) - before).tolist()  # the third counts as "transform"
    decoding += pillow_nanoseconds() - pillow
    scale = passed[0] / passed[1] / done / 1e6
    return passed, {"decode": decoding * scale, "resize": resizing * scale}, done


def _all_threads(source: DataSource) -> float:
    """Returns the images per second of a ring with as many threads as a run has, while nothing else runs."""
    size = 16
    with source.batches(size) as batches:
        next(batches)
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < _ELAPSED:
            next(batches)
            done += size
        return done / (time.perf_counter() - begin)


def to_json(found: DataTimes) -> dict[str, object]:
    return {**asdict(found), "core_ms": found.core_ms, "threads_needed": found.threads_needed}


def to_text(found: DataTimes) -> str:
    """Returns text for people: the stages of each layer, and what they mean for the net."""
    lines = []
    for layer in found.layers:
        whole = layer.milliseconds
        rows = [
            (stage, f"{value:.3f}", f"{100 * value / whole:.1f}%", f"{1e3 / value:.0f}" if value > 1e-4 else "")
            for stage, value in layer.stages.items()
        ]
        lines.append(f"Layer '{layer.name}', {layer.images} images of {layer.source}, on one core:")
        header = ("stage", "ms per image", "share", "images per core-second")
        lines.append(table(header, rows, "<>>>", ("all", f"{whole:.3f}", "", f"{1e3 / whole:.0f}")))
        threads = f"{layer.threads} decoding thread{'s' if layer.threads > 1 else ''}"
        lines.append(f"{threads} (ENGINE_DATA_THREADS), nothing else running: {layer.elapsed:.0f} images/s")
        if layer.waited > 0.1 * whole:
            lines.append(f"Its files were waited for, when they were read first: {layer.waited:.3f} ms per image")
    batch = sum(layer.batch for layer in found.layers[:1])
    lines.append(
        f"Net {found.net}, {found.precision}, batch {batch}: a step takes {found.step_ms:.1f} ms, "
        f"{1e3 * batch / found.step_ms:.0f} images/s; its data take {found.core_ms:.1f} ms of one core, "
        f"{100 * found.core_ms / found.step_ms:.1f}% of it"
    )
    threads, has = found.threads_needed, found.layers[0].threads
    enough = "as there are" if threads <= has else f"more than there are: set ENGINE_DATA_THREADS={threads}"
    lines.append(f"Decoding threads that keep it fed: {threads}, {enough}, each on a core that the net does without")
    return "\n".join([*lines, *found.notes])
