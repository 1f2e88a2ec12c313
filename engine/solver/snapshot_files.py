"""The files of a snapshot: their paths, and the digest that tells whether they are what was written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine import weights
from engine.config import SolverConfig, expand_ranks
from engine.errors import WeightsError
from engine.files import is_regular, opened, take_in
from engine.weights import SolverState

if TYPE_CHECKING:
    from hashlib import _Hash

    from engine.comm.world import World


def snapshot_prefix(config: SolverConfig, world: World) -> str:
    """Returns snapshot_prefix with %# and %* expanded. If it is a folder, the solver file's name is added; if it is not
    given, it is the solver file's path without the suffix."""
    prefix = config.message.snapshot_prefix or str(Path(config.path).with_suffix(""))
    prefix = expand_ranks(prefix, world.rank, world.size)
    if prefix.endswith("/") or Path(prefix).is_dir():
        prefix = str(Path(prefix) / Path(config.path).stem)
    return prefix


@dataclass(frozen=True)
class Whole:
    """A solverstate and its weights. model: the path of the weights. blobs: the weights by layer."""

    state: SolverState
    model: str
    blobs: dict[str, list[np.ndarray | None]]


def read_whole(path: str) -> Whole:
    """Reads a solverstate and its weights. Raises WeightsError if a file is missing, or is not what was written."""
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
    """Returns the digest that a state holds of its files: the SHA-256, in hexadecimal, of the bytes of the caffemodel
    and of the history's values. Raises WeightsError if the model cannot be read."""
    found = hashlib.sha256()
    with opened(model, WeightsError) as file:
        take_in(file, found)
    return add_history(found, history)


def add_history(model: _Hash, history: Sequence[np.ndarray]) -> str:
    """Returns the digest as digest() does. model: a hash that has taken in the bytes of the caffemodel."""
    for values in history:
        model.update(np.ascontiguousarray(values, "<f4").data)
    return model.hexdigest()


def find_model(named: str, state: str) -> str:
    """Returns the path of the weights that a state names: a file of that name beside the state if there is one, as both
    may have been moved, else the named path. Raises WeightsError if neither is there."""
    beside = os.path.join(os.path.dirname(state), os.path.basename(named))
    for path in (beside, named):
        if is_regular(path):
            return path
    if os.path.normpath(beside) == os.path.normpath(named):
        raise WeightsError(f"its weights '{named}' do not exist", state)
    raise WeightsError(f"neither its weights '{named}' nor '{beside}' exist", state)
