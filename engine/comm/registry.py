"""Chooses and makes the communication strategy of a run."""

from collections.abc import Sequence

import numpy as np

from engine.comm import blocking, local, servers  # noqa: F401  they register themselves
from engine.comm.buckets import Bucket
from engine.comm.settings import server_settings
from engine.comm.strategy import Strategy, strategy_class
from engine.comm.world import World


def make_strategy(
    world: World,
    queue,
    updater,
    buckets: Sequence[Bucket],
    gradients: np.ndarray,
    threads: int = 1,
    name: str | None = None,
) -> Strategy:
    """One rank: "local". Several: "servers", or "blocking" when MLSL_NUM_SERVERS is 0. `name` overrides the choice.

    queue: _core.ReadyQueue(len(buckets)); updater: _core.Updater over the same buckets; gradients: the float32 arena;
    threads: the solver's. Raises ConfigError for a malformed variable, CommError if the ranks disagree about buckets or
    servers.
    """
    settings = server_settings(world.local_rank, world.local_size)
    if name is None:
        name = "local" if world.size == 1 else "servers" if settings.servers else "blocking"
    # Collectives on one communicator must come in one order on every rank: all must cut and serve alike.
    layout = f"{name} {settings.servers} " + " ".join(f"{bucket.begin}-{bucket.end}" for bucket in buckets)
    world.same_on_all_ranks(layout, "number of servers (MLSL_NUM_SERVERS) or the gradient buckets")
    return strategy_class(name)(world, queue, updater, buckets, gradients, settings, threads)
