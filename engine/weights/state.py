"""The state of a solver: what training goes on from, besides the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import numpy as np


@dataclass
class SolverState:
    """What training goes on from, besides the weights.

    `history` has a float32 array for each parameter; Adam and AdaDelta have a second set after the first. The fields
    from random_seed on are this engine's own: None or empty in a state that Caffe wrote.
    """

    iteration: int = 0
    learned_net: str = ""
    history: list[np.ndarray] = field(default_factory=list)
    current_step: int = 0
    minimum_loss: float = 1e38
    iter_last_event: int = 0
    random_seed: int | None = None
    ranks: int | None = None
    samples_seen: int | None = None  # position in the global sequence of samples
    recent_loss: list[float] = field(default_factory=list)  # the window of average_loss, oldest first
    last_rate: float | None = None  # learning rate of the last update
    global_batch: int | None = None  # samples in an iteration of all ranks
    digest: str | None = None  # of the files: see engine.solver.snapshot_files.digest
    test_samples: list[int] = field(default_factory=list)  # that tests of test_iter batches have read, by test net
    ema: float | None = None  # decay of the averaged weights, which are then the last set of `history`
    begun_from: str | None = None  # the weights a stage has begun from: see engine.solver.stages.digest_of
    max_iter: int | None = None  # of the run that wrote it
    max_epoch: float | None = None  # of that run, if its solver counts in epochs
    kernels: str | None = None  # the kernels that computed it: see engine.net.kernel_table.Kernels.saved
    tuned: str | None = None  # what autotune has chosen: see engine.comm.search.to_json
    best_value: float | None = None  # of the output that snapshot_best names
    best_iteration: int | None = None
    stopping_value: float | None = None  # the best of the output that early_stopping names
    tests_without_gain: int | None = None  # since stopping_value was reached
    last_judged: int | None = None  # the iteration of the last test that snapshot_best and early_stopping have judged
    best_goal: str | None = None  # what best_value is: see engine.solver.goals.Goal
    stopping_goal: str | None = None  # what stopping_value is
    kept_snapshots: list[int] = field(default_factory=list)  # iterations of the run's other snapshots at that time


# Fields of SolverState that have another name in files.
_RENAMED = {"iteration": "iter"}
_ARRAYS = ("history",)


def state_fields() -> list[tuple[str, str, type]]:
    """Returns (name in SolverState, name in files, type) of each field that is not an array. The type is int, float,
    str or list."""
    hints = get_type_hints(SolverState).items()
    return [(name, _RENAMED.get(name, name), _kind(hint)) for name, hint in hints if name not in _ARRAYS]


def _kind(hint: type | UnionType) -> type:
    """Returns float for `float | None`, list for `list[float]`."""
    return get_args(hint)[0] if isinstance(hint, UnionType) else get_origin(hint) or hint
