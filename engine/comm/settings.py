"""CommSettings: how gradients are reduced, by the solver's `comm_param`, MLSL's environment variables, and defaults
that follow from the link."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.comm.buckets import BUCKET_BYTES
from engine.comm.link import ALONE, Link, Links
from engine.config.numbers import whole
from engine.errors import ConfigError
from engine.host.cores import cores_at_once

if TYPE_CHECKING:
    from engine import proto

MANY_CORES = 32  # per rank: see default_servers()
MOST_CORES = 1 << 20  # the largest core number; a larger one is a typing error
MB = 1 << 20
# About how long a message takes on the link, and so how long a more urgent one may have to wait for it.
MESSAGE_SECONDS = 0.02
# A message takes at least so many times the latency, which is then negligible.
LATENCIES = 50
LEAST_BYTES = 256 << 10  # of a message
# MLSL's defaults, for when only one of its two variables is given.
LARGE_MSG_SIZE_MB, LARGE_MSG_CHUNKS = 128, 4
VARIABLES = (
    *("MLSL_NUM_SERVERS", "MLSL_SERVER_AFFINITY", "MLSL_MSG_PRIORITY"),
    *("MLSL_LARGE_MSG_SIZE_MB", "MLSL_LARGE_MSG_CHUNKS"),
)
WATCHDOG_SECONDS = 60.0  # CommParameter's default, for the time before the solver is read
DIRECT_RANKS = 8  # the most that exchange directly: with more, the number of messages matters


@dataclass(frozen=True)
class Reduction:
    """How an allreduce sums, and to what accuracy. The result is the same bits on all ranks in any case.

    hierarchical: sums are made within each host, then by one rank of each host across hosts. They are float32 sums
    either way; the order of the additions differs, and so does the rounding (2^-24 of the sum of magnitudes for each
    addition).
    bf16: values that travel between ranks (hierarchical: hosts) are rounded to bfloat16; sums are made in float32 and
    rounded once: |error| <= 2^-8 (sum of the ranks' magnitudes) + 2^-8 |sum|, and second-order terms.
    error_feedback: what was rounded away is added to the next iteration's gradients, so that over iterations nothing is
    lost but the last rounding. Snapshots do not keep it.
    """

    hierarchical: bool = False
    bf16: bool = False
    error_feedback: bool = False

    def __str__(self) -> str:
        names = {"hierarchical": self.hierarchical, "bf16": self.bf16, "error feedback": self.error_feedback}
        return ", ".join(name for name, on in names.items() if on) or "float32"


@dataclass(frozen=True)
class LocalSteps:
    """The schedule of mode LOCAL. From iteration `start` on, ranks update by themselves; after every `every` of these
    iterations they average weights and optimizer state."""

    every: int
    start: int = 0

    def is_local(self, iteration: int) -> bool:
        """Tells whether ranks update by themselves in an iteration."""
        return iteration >= self.start

    def averages(self, iteration: int) -> bool:
        """Tells whether ranks average at the end of an iteration."""
        return self.is_local(iteration) and (iteration + 1 - self.start) % self.every == 0


@dataclass(frozen=True)
class CommSettings:
    """How gradients are reduced.

    Attributes:
        servers: threads per rank; with 0, gradients are reduced at the end of backward.
        cores: one for each server; None: servers are not pinned.
        bucket_bytes: the largest bucket.
        chunk_bytes: the most of a bucket that is reduced at a time.
        priority: see servers.py.
        reduction: see Reduction.
        shard_updates: see shares.py.
        local: the schedule of mode LOCAL; None in other modes.
        max_staleness: the bound of mode ASYNC; None in other modes.
        staleness_lr: whether mode ASYNC divides a gradient by its staleness.
    """

    servers: int
    cores: tuple[int, ...] | None = None
    bucket_bytes: int = BUCKET_BYTES
    chunk_bytes: int = BUCKET_BYTES
    priority: bool = False
    reduction: Reduction = Reduction()
    shard_updates: bool = False
    local: LocalSteps | None = None
    max_staleness: int | None = None
    staleness_lr: bool = False


def comm_settings(
    param: proto.CommParameter,
    links: Links = ALONE,
    local_rank: int = 0,
    local_size: int = 1,
    environ: Mapping[str, str] = os.environ,
    cores: int | None = None,
) -> CommSettings:
    """Returns the settings of rank `local_rank` of the `local_size` ranks on this host.

    Environment variables override fields: MLSL_NUM_SERVERS (servers), MLSL_SERVER_AFFINITY (affinity),
    MLSL_LARGE_MSG_SIZE_MB / MLSL_LARGE_MSG_CHUNKS (chunk_mb is their quotient), MLSL_MSG_PRIORITY (priority).

    param: the solver's comm_param. cores: how many a rank has, for the default number of servers; None: this process's,
    divided by local_size. Raises ConfigError that names the field or the variable.
    """
    servers, seats = _servers(param, local_rank, local_size, environ, cores)
    bf16 = param.compression == param.BF16
    message = _message_bytes(links.slowest, bf16)
    chunk = _megabytes(param, "chunk_mb", message)
    if environ.get("MLSL_LARGE_MSG_SIZE_MB", "").strip() or environ.get("MLSL_LARGE_MSG_CHUNKS", "").strip():
        size = _number(environ, "MLSL_LARGE_MSG_SIZE_MB", LARGE_MSG_SIZE_MB, least=1)
        chunk = max(1, size * MB // _number(environ, "MLSL_LARGE_MSG_CHUNKS", LARGE_MSG_CHUNKS, least=1))
    # By default only between hosts: within one host it takes longer to agree on a bucket than to reduce it.
    priority = param.priority if param.HasField("priority") else links.between is not None
    if param.error_feedback and not bf16:
        raise ConfigError("comm_param: error_feedback needs compression: BF16; without it nothing is lost")
    if param.shard_updates and param.algorithm == param.HIERARCHICAL:
        raise ConfigError("comm_param: shard_updates does not go together with algorithm: HIERARCHICAL: take one out")
    watchdog_seconds(param, environ)
    if param.drift_check < 0:
        raise ConfigError(f"comm_param: drift_check: expected 0 or more, got {param.drift_check}")
    return CommSettings(
        servers,
        seats,
        bucket_bytes=_megabytes(param, "bucket_mb", message),
        chunk_bytes=chunk,
        priority=bool(_number(environ, "MLSL_MSG_PRIORITY", int(priority), most=1)),
        reduction=Reduction(param.algorithm == param.HIERARCHICAL, bf16, param.error_feedback),
        shard_updates=param.shard_updates,
        local=LocalSteps(param.sync_every, param.sync_start) if param.mode == param.LOCAL else None,
        max_staleness=param.max_staleness if param.mode == param.ASYNC else None,
        staleness_lr=param.staleness_lr,
    )


def _servers(
    param: proto.CommParameter, local_rank: int, local_size: int, environ: Mapping[str, str], cores: int | None
) -> tuple[int, tuple[int, ...] | None]:
    """Returns the number of servers, and their cores if they are pinned.

    The affinity lists cores, "39,38,43,42": with S servers, local rank l uses entries l*S to (l+1)*S. A list of S
    entries serves every rank of the host.
    """
    if cores is None:
        cores = cores_at_once() // max(1, local_size)
    if param.servers < 0:
        raise ConfigError(f"comm_param: servers: expected 0 or more, got {param.servers}")
    default = param.servers if param.HasField("servers") else default_servers(cores)
    servers = _number(environ, "MLSL_NUM_SERVERS", default)
    if param.mode == param.ASYNC:
        servers = 1  # whatever the variable says: see strategies/asynchronous.py
    text, entries = environ.get("MLSL_SERVER_AFFINITY", "").strip(), list(param.affinity)
    named = f'MLSL_SERVER_AFFINITY="{text}"' if text else f"comm_param: affinity {','.join(map(str, entries))}"
    if text:
        found = [whole(entry.strip(), 0, MOST_CORES) for entry in text.split(",")]
        entries = [-1 if entry is None else entry for entry in found]
    if not entries or servers == 0:
        return servers, None
    if min(entries) < 0:
        raise ConfigError(f"{named}: expected core numbers separated by commas, such as 39,38,43,42")
    if len(entries) == servers:
        return servers, tuple(entries)
    if len(entries) < local_size * servers:
        raise ConfigError(
            f"{named} lists {len(entries)} cores: expected {servers} (one for each server), or "
            f"{local_size * servers} for the {local_size} ranks on this host"
        )
    return servers, tuple(entries[local_rank * servers : (local_rank + 1) * servers])


def watchdog_seconds(
    param: proto.CommParameter | None = None, environ: Mapping[str, str] = os.environ, where: str | None = None
) -> float:
    """Returns the seconds without progress after which a run is ended; 0: never.

    param: the CommParameter, which ENGINE_WATCHDOG overrides. where: its place, "file:line:column". Raises
    ConfigError."""
    text = environ.get("ENGINE_WATCHDOG", "").strip()
    if not text:
        seconds, named = (WATCHDOG_SECONDS if param is None else param.watchdog), "comm_param: watchdog"
    else:
        named = f'ENGINE_WATCHDOG="{text}"'
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
    if not 0 <= seconds < float("inf"):
        got = f"{named}: expected seconds, 0 or more" + ("" if text else f", got {seconds:g}")
        raise ConfigError(got, None if text else where)
    return seconds


def exchanges_directly(ranks: int, ranks_per_node: int) -> bool:
    """Tells whether float32 sums are made by two exchanges of every rank with every other, in which each rank sums its
    share and then sends the sum: between hosts of one rank each, and within one host.

    MPI's own algorithms send fewer messages, and less over a link that ranks share, but in more steps: they advance one
    step with each MPI_Test, and add slowly."""
    return 1 < ranks <= DIRECT_RANKS and ranks_per_node in (1, ranks)


def ignored_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns a line for each MLSL variable that has no effect here."""
    others = sorted(name for name in environ if name.startswith("MLSL_") and name not in VARIABLES)
    known = {name.removeprefix("MLSL_"): name for name in VARIABLES}
    near = {name: difflib.get_close_matches(name.removeprefix("MLSL_"), known, 1, 0.8) for name in others}
    return [
        f"{name} is ignored" + (f"; did you mean {known[near[name][0]]}?" if near[name] else "; it does nothing here")
        for name in others
    ]


def default_servers(cores: int) -> int:
    """Returns 4, as MLSL, if a rank has many cores (KNL nodes in Codreanu et al. 2017); else 2, as their Skylake
    runs."""
    return 4 if cores >= MANY_CORES else 2


def _message_bytes(link: Link, bf16: bool) -> int:
    """Returns how many bytes of gradients a link carries in MESSAGE_SECONDS, from LEAST_BYTES to BUCKET_BYTES, which
    stay in the cache.

    It is a power of two, so that runs on one link get the same buckets although they measure a little differently: the
    order in which MPI adds, and so the last bits, depend on them. bucket_mb and chunk_mb leave nothing to chance."""
    seconds = max(MESSAGE_SECONDS, LATENCIES * link.latency)
    size = min(BUCKET_BYTES, max(LEAST_BYTES, link.bandwidth * seconds * (2 if bf16 else 1)))
    return 1 << round(math.log2(size))


def _megabytes(param: proto.CommParameter, field: str, default: int) -> int:
    if not param.HasField(field):
        return default
    value = getattr(param, field)
    if not 0 < value < float("inf"):
        raise ConfigError(f"comm_param: {field}: expected more than 0, got {value:g}")
    return max(1, int(value * MB))


def _number(environ: Mapping[str, str], variable: str, default: int, least: int = 0, most: int | None = None) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    value = whole(text, least, MOST_CORES if most is None else most)
    if value is None:
        wanted = f"a number, {least} or more" if most is None else f"a number from {least} to {most}"
        raise ConfigError(f'{variable}="{text}": expected {wanted}')
    return value
