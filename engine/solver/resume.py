"""--resume auto: finds the newest complete snapshot, and keeps its global batch on another number of ranks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine import proto, weights
from engine.config import SolverConfig, expand_ranks, net_of_solver
from engine.data import batch_size_of, set_batch_size
from engine.errors import ConfigError, EngineError, WeightsError
from engine.files import TEMPORARY, atomic_write, check_writable, is_regular, opened, read_text, reason, take_in
from engine.graph.build import kept_layers
from engine.report.log import log, warn
from engine.solver.lock import lock_prefix
from engine.solver.validate import saves
from engine.weights import SolverState

if TYPE_CHECKING:
    from hashlib import _Hash

    from engine.comm.world import World

# Names a file for the snapshots that were there before a run that is restarted after crashes; they do not count.
KNOWN = "ENGINE_KNOWN_SNAPSHOTS"
RESTART_SECONDS = 10.0  # for what is left of the start before to end

Identity = tuple[str, int, int, int]  # path, inode, time in ns, size: of a file that nobody has written since


@dataclass(frozen=True)
class Snapshot:
    """path: of a solverstate. global_batch: samples in an iteration of all ranks. model: the path of its weights.
    samples_seen: the position in the sequence of samples. max_iter: where its run was to end. None: the state tells
    not. tests_without_gain: of early_stopping. last_judged: the iteration of the last test of that, or of
    snapshot_best."""

    path: str
    iteration: int
    ranks: int | None
    global_batch: int | None
    model: str = ""
    samples_seen: int | None = None
    max_iter: int | None = None
    tests_without_gain: int = 0
    last_judged: int | None = None


def snapshot_prefix(config: SolverConfig, world: World) -> str:
    """snapshot_prefix with %# and %* expanded; where there is none, or where it is a folder, the solver's name."""
    prefix = config.message.snapshot_prefix or str(Path(config.path).with_suffix(""))
    prefix = expand_ranks(prefix, world.rank, world.size)
    if prefix.endswith("/") or Path(prefix).is_dir():
        prefix = str(Path(prefix) / Path(config.path).stem)
    return prefix


def newest(prefix: str, known: Collection[Identity] = (), begun_from: str | None = None) -> Snapshot | None:
    """The whole snapshot of the highest iteration; tells of those that it steps over, whatever is wrong with them.

    known: files that do not count. begun_from: only those of runs that began with these weights count.
    """
    for iteration, path in sorted(_states(prefix), reverse=True):
        try:
            if _identity(path) in known:
                continue
            whole = read_whole(path)
            state = whole.state
            if state.iteration != iteration:
                raise WeightsError(f"it is of iteration {state.iteration}", path)
            if begun_from is not None and state.begun_from != begun_from:
                warn(f"Skipping the snapshot {path}: its run began with other weights than this stage does")
                continue
        except Exception as error:  # anybody may have put anything there, and the one before it may be good
            told = error if isinstance(error, EngineError) else EngineError(f"cannot be read: {reason(error)}", path)
            warn(f"Skipping a snapshot that is damaged: {told}")
            continue
        return Snapshot(
            path,
            state.iteration,
            state.ranks,
            state.global_batch,
            whole.model,
            state.samples_seen,
            state.max_iter,
            state.tests_without_gain or 0,
            state.last_judged,
        )
    return None


def _states(prefix: str) -> list[tuple[int, str]]:
    """(iteration, path) of what is named like the solverstates of a prefix."""
    folder, stem = Path(prefix).parent, re.escape(Path(prefix).name)
    found = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = re.fullmatch(rf"{stem}_iter_([0-9]+)\.solverstate(\.h5)?", name)
        if match:
            found.append((int(match[1]), str(folder / name)))
    return found


def warn_of_later(config: SolverConfig, world: World, iteration: int) -> None:
    """Of the rank that writes, where a run begins after `iteration`: snapshots of another one with the same prefix
    that go further, which newest() would find before this run's."""
    later = sorted(each for each in _states(snapshot_prefix(config, world)) if each[0] > iteration)
    if later and saves(config.message):
        more = f" (and {len(later) - 1} more)" if len(later) > 1 else ""
        warn(
            f"{later[-1][1]}{more} is of a later iteration than this run begins with, {iteration}, and --resume auto "
            "goes on from the highest: move it away, or give another snapshot_prefix"
        )


def _identity(path: str) -> Identity:
    found = os.stat(path)
    return path, found.st_ino, found.st_mtime_ns, found.st_size


def note_known(prefixes: Sequence[str]) -> None:
    """At the first start of a run that may be restarted."""
    note = os.environ.get(KNOWN)
    if note and not os.path.exists(note):
        present = [_identity(path) for prefix in prefixes for _, path in _states(prefix) if is_regular(path)]
        with atomic_write(note) as file:
            file.write(json.dumps(present).encode())


def known() -> set[Identity]:
    """The files that do not count: those that note_known() found."""
    note = os.environ.get(KNOWN)
    return {tuple(each) for each in json.loads(read_text(note))} if note and os.path.exists(note) else set()


def take_prefix(config: SolverConfig, world: World) -> None:
    """Before anything is read or written: makes snapshot_prefix this run's own, if it saves anything, and removes what
    runs that were killed have left. Of the rank that writes, after note_known(). Raises EngineError; see
    lock_prefix()."""
    if not saves(config.message):
        return
    prefix = snapshot_prefix(config, world)
    check_writable(f"{prefix}_iter_{2**31 - 1}.solverstate.h5")
    locked = lock_prefix(prefix, RESTART_SECONDS if "ENGINE_SUPERVISOR" in os.environ else 0)
    if not locked:  # what seems to be left may be another run's
        return
    folder, stem = Path(prefix).parent, re.escape(Path(prefix).name)
    for name in os.listdir(folder):
        match = TEMPORARY.fullmatch(name)
        if match and re.fullmatch(rf"{stem}_iter_[0-9]+(_ema|_best)?\.(caffemodel|solverstate)(\.h5)?", match["name"]):
            (folder / name).unlink(missing_ok=True)
            log(f"Removed {folder / name}, which was never finished")


@dataclass(frozen=True)
class Whole:
    """What a solverstate and its weights hold. model: the path of the weights."""

    state: SolverState
    model: str
    blobs: dict[str, list[np.ndarray | None]]


def read_whole(path: str) -> Whole:
    """A solverstate and its weights. Raises WeightsError where one of the files is not there, or not what was
    written."""
    state = weights.read_solverstate(path)
    model = find_model(state.learned_net, path)
    blobs = weights.read_caffemodel(model)
    if state.digest and state.digest != digest(model, state.history):
        raise WeightsError(
            f"it or {model} has changed since it was written: the digest differs (--weights {model} starts from these "
            "weights all the same)",
            path,
        )
    return Whole(state, model, blobs)


def digest(model: str | Path, history: Sequence[np.ndarray]) -> str:
    """The digest() that a state in files should have."""
    found = hashlib.sha256()
    with opened(model, WeightsError) as file:
        take_in(file, found)
    return finish(found, history)


def finish(model: _Hash, history: Sequence[np.ndarray]) -> str:
    """SHA-256 of a caffemodel's bytes, which `model` has taken in, and of the history's values, in hexadecimal."""
    for values in history:
        model.update(np.ascontiguousarray(values, "<f4").data)
    return model.hexdigest()


def find_model(named: str, state: str) -> str:
    """The weights that a state names: those beside it, for they have moved together, else those at the path itself."""
    beside = os.path.join(os.path.dirname(state), os.path.basename(named))
    for path in (beside, named):
        if is_regular(path):
            return path
    if os.path.normpath(beside) == os.path.normpath(named):
        raise WeightsError(f"its weights '{named}' do not exist", state)
    raise WeightsError(f"neither its weights '{named}' nor '{beside}' exist", state)


def hold_global_batch(config: SolverConfig, world: World, snapshot: Snapshot) -> None:
    """Changes iter_size and the train net's batch_size so that an iteration has the samples that it had.

    Raises ConfigError, with the numbers, where they do not allow it.
    """
    layers = data_layers(config)
    batch = batch_size_of(layers[0]) if layers else 1
    steps = max(1, config.message.iter_size)
    before = snapshot.global_batch or (snapshot.ranks or world.size) * batch * steps
    slices = _slices(config)
    multiple = _multiple(layers, slices)
    size, new_steps = share(before, world.size, batch, steps, adjustable=bool(layers), multiple=multiple)
    if new_steps > 1 and config.message.HasField("adversarial"):  # which trains on one batch at a time
        each = {ranks: before // ranks for ranks in range(1, before + 1) if before % ranks == 0}
        fitting = [ranks for ranks, size in each.items() if size <= batch and size % multiple == 0]
        raise ConfigError(
            f"--resume auto: {world.size} rank{'s' if world.size > 1 else ''} of batch_size {batch} cannot hold the "
            f"snapshot's global batch of {before}, for adversarial goes without iter_size; ranks that can: "
            f"{', '.join(map(str, fitting[:8]))}; --snapshot goes on with another global batch"
        )
    if snapshot.ranks not in (None, world.size) and any("%#" in str(layer) for layer in layers):
        warn("The data of each rank is a source of its own (%#): with another number of ranks their order is another")
    if (size, new_steps) == (batch, steps):
        return
    for layer in layers:
        set_batch_size(layer, batch_size_of(layer) * size // batch)
    set_iter_size(config.message, new_steps)
    log(
        f"Global batch {before} held: {world.size} rank{'s' if world.size > 1 else ''} x {size} x iter_size "
        f"{new_steps} (the files say {batch} x {steps}, ranks of the snapshot: {snapshot.ranks})"
    )
    if size != batch and 0 in slices:
        warn(f"BatchNorm takes its statistics from {size} samples now, not {batch}")


def _slices(config: SolverConfig) -> set[int]:
    """How many samples the BatchNorm layers of the train net take statistics from; 0: all of a batch."""
    train = net_of_solver(config, proto.TRAIN)
    layers = (train.message.layer[index] for index in kept_layers(train))
    params = (layer.batch_norm_param for layer in layers if layer.type == "BatchNorm")
    whole = train.message.bn_stats_batch_size
    return {param.stats_batch_size or whole for param in params if not param.use_global_stats}


def _multiple(layers: Sequence[proto.LayerParameter], slices: Collection[int]) -> int:
    """What must divide the first data layer's batch_size: mix_param takes pairs, BatchNorm whole slices, and the
    batch_size of another data layer changes by the same factor."""
    if not layers:
        return 1
    batch = batch_size_of(layers[0])
    found = [math.gcd(size, batch) for size in slices if size]  # a batch may be that of several data layers together
    for layer in layers:
        unit = batch * (2 if layer.transform_param.HasField("mix_param") else 1)
        found.append(unit // math.gcd(unit, batch_size_of(layer)))
    return math.lcm(*found)


def data_batch(config: SolverConfig) -> int:
    """Samples of one rank in an iteration, as the files have it."""
    layers = data_layers(config)
    return (batch_size_of(layers[0]) if layers else 1) * max(1, config.message.iter_size)


def share(
    total: int, ranks: int, batch: int, steps: int, adjustable: bool = True, multiple: int = 1
) -> tuple[int, int]:
    """(batch_size, iter_size) of each of `ranks` ranks, of which the product is their share of `total` samples: with
    the batch_size that is nearest to `batch` from below, and that `multiple` divides. Raises ConfigError."""
    if ranks * batch * steps == total:
        return batch, steps
    step = multiple if adjustable else batch
    if size := _batch_size(total, ranks, batch, step):
        return size, total // ranks // size
    fitting = [str(number) for number in range(1, 4 * ranks + 1) if _batch_size(total, number, batch, step)]
    can = ", ".join(fitting[-8:]) or f"none up to {4 * ranks}"
    advice = f"ranks that can: {can}; --snapshot goes on with another global batch"
    if total % ranks:
        raise ConfigError(f"--resume auto: {ranks} ranks cannot share the snapshot's global batch of {total}; {advice}")
    wanted = f"{(batch + 1) // 2} to {batch}" if adjustable else str(batch)
    if multiple > 1:
        wanted += f" that {multiple} divides, by mix_param, stats_batch_size or another data layer"
    raise ConfigError(
        f"--resume auto: the snapshot's global batch of {total} is {total // ranks} for each of {ranks} ranks, which "
        f"is no multiple of a batch_size of {wanted}; {advice}"
    )


def _batch_size(total: int, ranks: int, batch: int, step: int) -> int:
    """Of each of `ranks` ranks: the multiple of `step` that is nearest to `batch` from below, 0 where none from the
    half of it on divides their share."""
    each, rest = divmod(total, ranks)
    size = max((size for size in range(step, min(batch, each) + 1, step) if each % size == 0), default=0)
    return 0 if rest or (each > batch and 2 * size < batch) else size


def set_iter_size(param: proto.SolverParameter, steps: int) -> None:
    """Of a solver; gradients are clipped as before, for the limit is one of the sum over micro-batches, as in Caffe."""
    if param.clip_gradients > 0:
        param.clip_gradients *= steps / max(1, param.iter_size)
    param.iter_size = steps


def data_layers(config: SolverConfig) -> list[proto.LayerParameter]:
    """Those of the train net that have a batch_size, in its phase."""
    train = net_of_solver(config, proto.TRAIN)
    found = []
    for layer in (train.message.layer[index] for index in kept_layers(train)):
        if layer.bottom:
            continue
        try:
            batch_size_of(layer)
        except ConfigError:  # DummyData and its kin
            continue
        found.append(layer)
    return found
