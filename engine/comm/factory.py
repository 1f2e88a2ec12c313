"""Chooses the communication strategy of a run, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.comm.buckets import Bucket
from engine.comm.settings import CommSettings, comm_settings
from engine.comm.strategies.asynchronous import Asynchronous
from engine.comm.strategies.blocking import Blocking
from engine.comm.strategies.local import Local
from engine.comm.strategies.servers import Servers
from engine.comm.strategies.strategy import Strategy
from engine.comm.world import World
from engine.host.cores import fewest_cores

if TYPE_CHECKING:
    from engine import proto


def strategy_of(world: World, settings: CommSettings, buckets: Sequence[Bucket]) -> type[Strategy]:
    """Collective. Returns Local on one rank; on several Asynchronous in mode ASYNC, Blocking if the settings ask for no
    servers, else Servers. Raises CommError if the ranks disagree about buckets or how to reduce them."""
    chosen = Servers if settings.servers else Blocking
    if settings.max_staleness is not None:
        chosen = Asynchronous
    if not buckets:  # nothing learns: servers would have nothing to do
        chosen = Blocking
    if world.size == 1:
        chosen = Local
    # Collectives on one communicator must come in the same order on every rank, so all ranks need the same buckets.
    same = replace(settings, cores=None)
    layout = f"{chosen.__name__} {same} " + " ".join(f"{bucket.begin}-{bucket.end}" for bucket in buckets)
    world.same_on_all_ranks(layout, "communication settings (comm_param, MLSL_NUM_SERVERS) or the gradient buckets")
    return chosen


def settings_of(world: World, param: proto.CommParameter) -> CommSettings:
    """Collective, as it measures the link. Returns the settings by a CommParameter and the environment. Raises
    ConfigError."""
    cores = fewest_cores(world.places())  # hosts may differ, but all ranks need the same number of servers
    return comm_settings(param, world.links(), world.local_rank, world.local_size, cores=cores)
