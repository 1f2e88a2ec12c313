"""--resume auto: finds the newest complete snapshot, and keeps its global batch on another number of ranks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import weights
from engine.config import SolverConfig, expand_ranks, nets_of_solver
from engine.data import batch_size_of, set_batch_size
from engine.errors import ConfigError, EngineError, WeightsError
from engine.graph.build import kept
from engine.report.log import log, warn

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.weights import SolverState


@dataclass(frozen=True)
class Snapshot:
    """path: of a solverstate. global_batch: samples in an iteration of all ranks, None where the state tells not."""

    path: str
    iteration: int
    ranks: int | None
    global_batch: int | None


def resume(config: SolverConfig, world: World, since: float = 0) -> str | None:
    """Collective, before the solver is made: the solverstate to go on from, or None; makes the solver's nets keep its
    global batch, which may change batch_size and iter_size.

    since: older snapshots (seconds of time.time()) do not count. Raises ConfigError where the batch cannot be held.
    """
    found = world.broadcast_object(newest(snapshot_prefix(config, world), since) if world.rank == 0 else None)
    if found is None:
        log("No snapshot to go on from")
        return None
    hold_global_batch(config, world, found)
    return found.path


def snapshot_prefix(config: SolverConfig, world: World) -> str:
    """snapshot_prefix with %# and %* expanded; where there is none, or where it is a folder, the solver's name."""
    prefix = config.message.snapshot_prefix or str(Path(config.path).with_suffix(""))
    prefix = expand_ranks(prefix, world.rank, world.size)
    if prefix.endswith("/") or Path(prefix).is_dir():
        prefix = str(Path(prefix) / Path(config.path).stem)
    return prefix


def newest(prefix: str, since: float = 0) -> Snapshot | None:
    """The whole snapshot of the highest iteration; tells of those that are damaged, and removes what writers that were
    killed have left."""
    folder, stem = Path(prefix).parent, re.escape(Path(prefix).name)
    states = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(rf"\.{stem}_iter_\d+\.(caffemodel|solverstate)(\.h5)?\.\d+\.tmp", path.name):
            path.unlink(missing_ok=True)
            log(f"Removed {path}, which was never finished")
        match = re.fullmatch(rf"{stem}_iter_(\d+)\.solverstate(\.h5)?", path.name)
        if match and path.stat().st_mtime >= int(since):
            states.append((int(match[1]), str(path)))
    for _, path in sorted(states, reverse=True):
        try:
            state = read_whole(path)
        except EngineError as error:
            warn(f"Skipping a snapshot that is damaged: {error}")
            continue
        return Snapshot(path, state.iteration, state.ranks, state.global_batch)
    return None


def read_whole(path: str) -> SolverState:
    """A solverstate whose weights are there. Raises WeightsError where one of the files is not what was written."""
    state = weights.read_solverstate(path)
    model = find_model(state.learned_net, path)
    weights.read_caffemodel(model)
    if state.digest and state.digest != digest(model, state.history):
        raise WeightsError(f"{path}: it or {model} has changed since it was written: the digest differs")
    return state


def digest(model: str | Path, history: Sequence[np.ndarray]) -> str:
    """SHA-256 of a caffemodel's bytes and of the history's values, as hexadecimal digits."""
    found = hashlib.sha256(Path(model).read_bytes())
    for values in history:
        found.update(np.ascontiguousarray(values, "<f4"))
    return found.hexdigest()


def find_model(named: str, state: str) -> str:
    """The weights that a state names; if they have moved together with it, those beside it."""
    beside = Path(state).with_name(Path(named).name)
    for path in (Path(named), beside):
        if path.is_file():
            return str(path)
    raise WeightsError(f"{state}: neither its weights '{named}' nor '{beside}' exist")


def hold_global_batch(config: SolverConfig, world: World, snapshot: Snapshot) -> None:
    """Changes iter_size and the train net's batch_size so that an iteration has the samples that it had.

    Raises ConfigError, with the numbers, where they do not allow it.
    """
    layers = data_layers(config)
    batch = batch_size_of(layers[0]) if layers else 1
    steps = max(1, config.message.iter_size)
    before = snapshot.global_batch or (snapshot.ranks or world.size) * batch * steps
    size, new_steps = share(before, world.size, batch, steps, adjustable=bool(layers))
    if snapshot.ranks not in (None, world.size) and any("%#" in str(layer) for layer in layers):
        warn("The data of each rank is a source of its own (%#): with another number of ranks their order is another")
    if (size, new_steps) == (batch, steps):
        return
    for layer in layers:
        other, rest = divmod(batch_size_of(layer) * size, batch)
        if rest:
            raise ConfigError(
                f"layer '{layer.name}': batch_size {batch_size_of(layer)} cannot become {size}/{batch} of it"
            )
        set_batch_size(layer, other)
    set_iter_size(config.message, new_steps)
    log(
        f"Global batch {before} held: {world.size} rank{'s' if world.size > 1 else ''} x {size} x iter_size "
        f"{new_steps} (the files say {batch} x {steps}, ranks of the snapshot: {snapshot.ranks})"
    )
    train = nets_of_solver(config).train
    if size != batch and any(layer.type == "BatchNorm" for layer in train.message.layer):
        warn(f"BatchNorm takes its statistics from {size} samples now, not {batch}")


def share(total: int, ranks: int, batch: int, steps: int, adjustable: bool = True) -> tuple[int, int]:
    """(batch_size, iter_size) of each of `ranks` ranks, of which the product is their share of `total` samples: with
    the batch_size that is nearest to `batch` from below. Raises ConfigError."""
    if ranks * batch * steps == total:
        return batch, steps
    each, rest = divmod(total, ranks)
    fitting = [number for number in range(1, 4 * ranks + 1) if total % number == 0]
    advice = f"ranks that can: {', '.join(map(str, fitting[-8:]))}; --snapshot goes on with another global batch"
    if rest:
        raise ConfigError(f"--resume auto: {ranks} ranks cannot share the snapshot's global batch of {total}; {advice}")
    sizes = range(1, min(batch, each) + 1) if adjustable else [batch]
    size = max((size for size in sizes if each % size == 0), default=0)
    if not size or (each > batch and 2 * size < batch):
        wanted = f"{(batch + 1) // 2} to {batch}" if adjustable else str(batch)
        raise ConfigError(
            f"--resume auto: the snapshot's global batch of {total} is {each} for each of {ranks} ranks, which is no "
            f"multiple of a batch_size of {wanted}; {advice}"
        )
    return size, each // size


def set_iter_size(param: Any, steps: int) -> None:
    """Of a solver; gradients are clipped as before, for the limit is one of the sum over micro-batches, as in Caffe."""
    if param.clip_gradients > 0:
        param.clip_gradients *= steps / max(1, param.iter_size)
    param.iter_size = steps


def data_layers(config: SolverConfig) -> list[Any]:
    """Those of the train net that have a batch_size, in its phase."""
    train = nets_of_solver(config).train
    state = train.message.state
    found = []
    for index, layer in enumerate(train.message.layer):
        if layer.bottom or not kept(layer, state.phase, state.level, set(state.stage), train.where(index)):
            continue
        try:
            batch_size_of(layer)
        except ConfigError:  # DummyData and its kin
            continue
        found.append(layer)
    return found
