"""--resume auto: finds the newest whole snapshot that counts, after the run has locked its snapshot_prefix."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import SolverConfig
from engine.errors import EngineError, WeightsError
from engine.files import TEMPORARY, atomic_write, check_writable, is_regular, read_text, reason
from engine.report.log import log, warn
from engine.solver.lock import RESTART_SECONDS, lock_prefix
from engine.solver.snapshot_files import read_whole, snapshot_prefix
from engine.solver.validate import saves

if TYPE_CHECKING:
    from engine.comm.world import World

# The environment variable with the path of a file that lists the snapshots found at the first start of a run that is
# restarted after crashes. These do not count.
KNOWN = "ENGINE_KNOWN_SNAPSHOTS"

# What follows an error for snapshots that would be written over.
OTHERS = "move the snapshots of that run away, or give another snapshot_prefix"

Identity = tuple[str, int, int, int]  # path, inode, time in ns, size: of a file that nobody has written since


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was found. A field is None if the state does not tell it.

    path: of the solverstate. global_batch: samples in an iteration, over all ranks. model: the path of the weights.
    samples_seen: the position in the sequence of samples. max_iter, max_epoch: where its run was to end.
    tests_without_gain: of early_stopping. last_judged: the iteration of the last test by early_stopping or
    snapshot_best."""

    path: str
    iteration: int
    ranks: int | None
    global_batch: int | None
    model: str = ""
    samples_seen: int | None = None
    max_iter: int | None = None
    max_epoch: float | None = None
    tests_without_gain: int = 0
    last_judged: int | None = None


def newest(prefix: str, known: Collection[Identity] = (), begun_from: str | None = None) -> Snapshot | None:
    """Returns the whole snapshot of the highest iteration, or None. Warns of damaged ones, which it skips.

    known: files that do not count. begun_from: the digest of the weights with which the run begins. Raises EngineError
    if the snapshot is of a run that began with others: this run would write its own in the place of that one's.
    """
    for iteration, path in sorted(_states(prefix), reverse=True):
        try:
            if _identity(path) in known:
                continue
            whole = read_whole(path)
            state = whole.state
            if state.iteration != iteration:
                raise WeightsError(f"it is of iteration {state.iteration}", path)
        except Exception as error:  # a file of this name may hold anything, and the snapshot before it may be good
            told = error if isinstance(error, EngineError) else EngineError(f"cannot be read: {reason(error)}", path)
            warn(f"Skipping a snapshot that is damaged: {told}")
            continue
        if begun_from is not None and state.begun_from != begun_from:
            raise EngineError(f"its run began with other weights than this one does; {OTHERS}", path)
        return Snapshot(
            path,
            state.iteration,
            state.ranks,
            state.global_batch,
            whole.model,
            state.samples_seen,
            state.max_iter,
            state.max_epoch,
            state.tests_without_gain or 0,
            state.last_judged,
        )
    return None


def _states(prefix: str) -> list[tuple[int, str]]:
    """Returns (iteration, path) of all files that are named like the solverstates of a prefix."""
    folder, stem = Path(prefix).parent, re.escape(Path(prefix).name)
    found = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = re.fullmatch(rf"{stem}_iter_([0-9]+)\.solverstate(\.h5)?", name)
        if match:
            found.append((int(match[1]), str(folder / name)))
    return found


def warn_of_later(config: SolverConfig, world: World, iteration: int) -> None:
    """Warns, before a run that begins after `iteration`, of another run's snapshots of later iterations with the same
    prefix: newest() would find them instead of this run's. For the rank that writes."""
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
    """Lists the snapshots that are there, at the first start of a run that may be restarted: see KNOWN."""
    note = os.environ.get(KNOWN)
    if note and not os.path.exists(note):
        present = [_identity(path) for prefix in prefixes for _, path in _states(prefix) if is_regular(path)]
        with atomic_write(note) as file:
            file.write(json.dumps(present).encode())


def known() -> set[Identity]:
    """Returns the files that do not count: those that note_known() found."""
    note = os.environ.get(KNOWN)
    return {tuple(each) for each in json.loads(read_text(note))} if note and os.path.exists(note) else set()


def take_prefix(config: SolverConfig, world: World) -> None:
    """Locks the snapshot_prefix of a run that saves anything, and removes unfinished files that killed runs have left.

    For the rank that writes, after note_known(), before anything else is read or written. Raises EngineError as
    lock_prefix() does."""
    if not saves(config.message):
        return
    prefix = snapshot_prefix(config, world)
    check_writable(f"{prefix}_iter_{2**31 - 1}.solverstate.h5")
    locked = lock_prefix(prefix, RESTART_SECONDS if "ENGINE_SUPERVISOR" in os.environ else 0)
    if not locked:  # then another run may be writing what looks unfinished
        return
    folder, stem = Path(prefix).parent, re.escape(Path(prefix).name)
    for name in os.listdir(folder):
        match = TEMPORARY.fullmatch(name)
        if match and re.fullmatch(rf"{stem}_iter_[0-9]+(_ema|_best)?\.(caffemodel|solverstate)(\.h5)?", match["name"]):
            (folder / name).unlink(missing_ok=True)
            log(f"Removed {folder / name}, which was never finished")
