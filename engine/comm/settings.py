"""How many communication servers a rank has, and on which cores they run: MLSL's environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ConfigError

MANY_CORES = 32  # per rank


@dataclass(frozen=True)
class ServerSettings:
    """servers: threads per rank, 0 reduces at the end of backward. cores: one for each server, or None: not pinned."""

    servers: int
    cores: tuple[int, ...] | None


def default_servers(cores: int) -> int:
    """MLSL's 4 where a rank has many cores (the paper's KNL nodes); else 2, as in its Skylake runs."""
    return 4 if cores >= MANY_CORES else 2


def server_settings(
    local_rank: int = 0, local_size: int = 1, environ: Mapping[str, str] = os.environ, cores: int | None = None
) -> ServerSettings:
    """Reads MLSL_NUM_SERVERS and MLSL_SERVER_AFFINITY for rank `local_rank` of the `local_size` ranks on this host.

    The affinity lists cores, "39,38,43,42": with S servers, local rank l uses entries l*S to (l+1)*S. A list of S
    entries serves every rank of the host. cores: of the host (default: those that this process may use); for the
    default number of servers. Raises ConfigError that names the variable.
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    servers = _number(environ, "MLSL_NUM_SERVERS", default_servers(cores // max(1, local_size)))
    text = environ.get("MLSL_SERVER_AFFINITY", "").strip()
    if not text or servers == 0:
        return ServerSettings(servers, None)
    try:
        entries = [int(entry) for entry in text.split(",")]
    except ValueError:
        entries = [-1]
    if min(entries) < 0:
        raise ConfigError(
            f'MLSL_SERVER_AFFINITY="{text}": expected core numbers separated by commas, such as 39,38,43,42'
        )
    if len(entries) == servers:
        return ServerSettings(servers, tuple(entries))
    if len(entries) < local_size * servers:
        raise ConfigError(
            f'MLSL_SERVER_AFFINITY="{text}" lists {len(entries)} cores: expected {servers} (one for each server), or '
            f"{local_size * servers} for the {local_size} ranks on this host"
        )
    return ServerSettings(servers, tuple(entries[local_rank * servers : (local_rank + 1) * servers]))


def _number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(f'{variable}="{text}": expected a number, 0 or more')
    return int(text)
