"""Tests a solver's features two at a time: a feature that works by itself may fail together with another.

A pair is trained for 8 iterations, and once more from its snapshot of iteration 4: both must end with the same bits. On
two ranks, with half of the batch each, it must end where one rank does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from engine.comm.world import World
from engine.config import parse_solver
from engine.errors import EngineError
from engine.solver.solver import Solver
from tests.solver.harness import different, digits_net, distance, learned

BATCH, HALF, END = 32, 4, 8
SOLVER = """
base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 3 momentum: 0.9 weight_decay: 0.01 random_seed: 3
max_iter: 8 snapshot: 4 snapshot_prefix: "%s/net" test_iter: 1 test_interval: 100 test_initialization: false
average_loss: 3 comm_param { bucket_mb: 0.005 chunk_mb: 0.002 watchdog: 0 servers: 1 } net_param { %s }
"""

# The arguments of --set that switch each feature on.
FEATURES: dict[str, list[str]] = {
    "nesterov": ["type=Nesterov"],
    "adam": ["type=Adam"],
    "adamw": ["type=Adam", "decoupled_weight_decay=true"],
    "rmsprop": ["type=RMSProp", "momentum=0"],
    "adadelta": ["type=AdaDelta", "base_lr=1", "delta=1e-6"],
    "l1": ["regularization_type=L1"],
    "decay in steps": [
        "weight_decay_schedule.policy=multistep",
        "weight_decay_schedule.stepvalue=2,6",
        "weight_decay_schedule.gamma=0.5",
    ],
    "iter_size": ["iter_size=2"],
    "growing batch": ["batch_growth.stepvalue=3"],
    "warm-up": ["warmup_iter=5"],
    "corrected momentum": ["momentum_correction=true"],
    "momentum policy": ["momentum_policy=poly", "max_momentum=0.95"],
    "plateau": ["lr_policy=plateau", "plateau_winsize=2,2"],
    "restarts": ["lr_policy=sgdr", "cycle_iter=3"],
    "larc": ["local_lr_auto=true", "larc_policy=clip"],
    "clipped": ["clip_gradients=0.3"],
    "clamped weights": ["clamp_weights_lower=-0.2", "clamp_weights_upper=0.2"],
    "average of weights": ["ema=0.6"],
    "tests": ["test_interval=3", "test_iter=2"],
    "best": ["snapshot_best=loss", "test_interval=2"],
    "early stopping": ["early_stopping.output=accuracy", "early_stopping.patience=99", "test_interval=2"],
    "epochs": ["epoch_size=1280", "warmup_epoch=0.1"],
    "hdf5": ["snapshot_format=HDF5"],
    "few kept": ["snapshot_keep=2"],
    "debug": ["debug_info=true"],
    "bf16": ["precision=BF16"],
    "no servers": ["comm_param.servers=0"],
    "two servers": ["comm_param.servers=2"],
    "at the end": ["layer_wise_reduce=false"],
    "priority": ["comm_param.priority=true"],
    "compressed": ["comm_param.compression=BF16"],
    "error feedback": ["comm_param.compression=BF16", "comm_param.error_feedback=true"],
    "hierarchical": ["comm_param.algorithm=HIERARCHICAL"],
    "sharded": ["comm_param.shard_updates=true"],
    "drift check": ["comm_param.drift_check=2"],
    "local": ["comm_param.mode=LOCAL", "comm_param.sync_every=3"],
}
ROUNDED = {"compressed", "error feedback", "bf16"}  # two ranks differ from one by more than the order of sums
APART = {"local"}  # two ranks are meant to train otherwise than one
FORGETS = {"error feedback"}  # a snapshot does not hold what rounding has left over


def pairs() -> list[tuple[str, str]]:
    """Returns all pairs but those that would set one field to two values."""

    def values(name: str) -> dict[str, str]:
        return dict(each.split("=") for each in FEATURES[name])

    def agree(a: dict[str, str], b: dict[str, str]) -> bool:
        return all(b.get(field, value) == value for field, value in a.items())

    return [(a, b) for a, b in combinations(FEATURES, 2) if agree(values(a), values(b))]


def trained(pair: tuple[str, str], folder: Path, world: World, restore: str = "") -> Solver:
    """Runs a solver to its end and returns it. Raises EngineError if the solver is refused."""
    fields = dict(each.split("=") for name in pair for each in FEATURES[name])
    config = parse_solver(
        SOLVER % (folder, digits_net(BATCH // world.size)),
        str(folder / "net.prototxt"),
        [f"{field}={value}" for field, value in fields.items()],
    )
    solver = Solver(config, world)
    if restore:
        solver.restore(restore)
    assert solver.solve()
    solver.close()
    return solver


def faults(some: list[tuple[str, str]], folder: Path, world: World) -> Iterator[str]:
    """Trains each pair, and yields a line for each fault or refusal. All ranks have to call it."""
    for pair in some:
        try:
            yield from (f"{' and '.join(pair)}: {fault}" for fault in _faults(pair, folder, world))
        except EngineError as error:
            yield f"{' and '.join(pair)}: refused: {error}"
        world.barrier()
        if world.rank == 0:
            shutil.rmtree(folder)
            folder.mkdir()
        world.barrier()


def _faults(pair: tuple[str, str], folder: Path, world: World) -> Iterator[str]:
    """Yields what is wrong with a pair. Raises EngineError if the solver is refused."""
    whole = learned(trained(pair, folder, world))
    suffix = ".h5" if "hdf5" in pair else ""
    resumed = learned(trained(pair, folder, world, f"{folder}/net_iter_{HALF}.solverstate{suffix}"))
    if world.rank == 0 and not FORGETS & {*pair} and (names := different(whole, resumed)):
        yield f"other bits after going on: {', '.join(names)}"
    if world.rank == 0 and not all(np.isfinite(values).all() for values in whole.values()):
        yield "not finite"
    if world.rank == 0 and world.size > 1 and not APART & {*pair}:
        (alone := folder / "alone").mkdir()
        apart = distance(whole, learned(trained(pair, alone, World())))
        if apart > (0.05 if ROUNDED & {*pair} else 1e-4):
            yield f"{apart:.2g} from one rank"
