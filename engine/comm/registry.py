"""Chooses and makes the communication strategy of a run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.comm import blocking, local, servers  # noqa: F401  they register themselves
from engine.comm.buckets import Bucket
from engine.comm.settings import CommSettings, comm_settings
from engine.comm.strategy import Strategy, strategy_class
from engine.comm.world import World


def make_strategy(
    world: World,
    queue,
    updater,
    buckets: Sequence[Bucket],
    gradients: np.ndarray,
    settings: CommSettings,
    threads: int = 1,
    name: str | None = None,
) -> Strategy:
    """One rank: "local". Several: "servers", or "blocking" without servers. `name` overrides the choice.

    queue: _core.ReadyQueue(len(buckets)); updater: _core.Updater over the same buckets; gradients: the float32 arena;
    threads: the solver's. Raises CommError if the ranks disagree about buckets or how to reduce them.
    """
    if name is None:
        name = "local" if world.size == 1 else "servers" if settings.servers else "blocking"
    # Collectives on one communicator must come in one order on every rank: all must cut and serve alike.
    same = replace(settings, cores=None)
    layout = f"{name} {same} " + " ".join(f"{bucket.begin}-{bucket.end}" for bucket in buckets)
    world.same_on_all_ranks(layout, "communication settings (comm_param, MLSL_NUM_SERVERS) or the gradient buckets")
    return strategy_class(name)(world, queue, updater, buckets, gradients, settings, threads)


def settings_of(world: World, param: Any) -> CommSettings:
    """From a CommParameter and the environment; collective, as it measures the link. Raises ConfigError."""
    return comm_settings(param, world.links(), world.local_rank, world.local_size)
