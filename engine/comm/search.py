"""The search of `comm_param { autotune: true }`: which settings to measure next, by how long steps took with others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from engine.comm.settings import LEAST_BYTES, MB, CommSettings

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World

GAIN = 0.02  # of a step: what is less may be noise, and the settings stay
SERVERS = 1, 2, 4

# Settings to try in place of the best ones, which differ in one field.
Others: TypeAlias = Callable[[CommSettings], Iterable[CommSettings]]


@dataclass(frozen=True)
class Trial:
    """What steps took with some settings, in seconds: a step of the slowest rank, and what it waited for gradients."""

    settings: CommSettings
    step: float
    exposed: float

    def __str__(self) -> str:
        return f"{1e3 * self.step:.1f} ms a step, {1e3 * self.exposed:.1f} exposed: {as_text(self.settings)}"


class Search:
    """One field after another takes its values, while the others keep their best; the best so far is measured again
    beside each field's values, as machines change their speed. A value has to win by GAIN.

    current: what to measure next; best: the settings of the fastest steps so far; is_over: whether that is the choice.
    fields: in the order in which they are tried.
    """

    def __init__(self, settings: CommSettings, fields: Sequence[Others]):
        self.current = self.best = settings
        self.trials: list[Trial] = []
        self._fields = list(fields)
        self._left: list[CommSettings] = []  # of a field
        self._beaten: float | None = None  # the step of the best, measured beside them
        self._next_field()

    def tell(self, step: float, exposed: float) -> None:
        """What the steps with `current` took, in seconds."""
        self.trials.append(Trial(self.current, step, exposed))
        if self._beaten is None:
            self._beaten = step
        elif step < self._beaten * (1 - GAIN):
            self.best, self._beaten = self.current, step
        if self._left:
            self.current = self._left.pop(0)
        else:
            self._next_field()

    def _next_field(self) -> None:
        """The next one that has other values; the best is measured first."""
        self.current, self._beaten = self.best, None
        while self._fields and not self._left:
            others = self._fields.pop(0)(self.best)
            self._left = [each for each in dict.fromkeys(others) if each != self.best]
        self.is_over = not self._left


def free_fields(
    settings: CommSettings, param: proto.CommParameter, world: World, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Those of comm_param that are to be found, in the order in which they are tried: what it or a variable of MLSL's
    gives stays."""

    def is_free(field: str, *variables: str) -> bool:
        return not (param.HasField(field) or any(environ.get(f"MLSL_{name}", "").strip() for name in variables))

    free = {
        "bucket_mb": is_free("bucket_mb"),
        "chunk_mb": is_free("chunk_mb", "LARGE_MSG_SIZE_MB", "LARGE_MSG_CHUNKS"),
        "priority": is_free("priority", "MSG_PRIORITY"),
        "servers": is_free("servers", "NUM_SERVERS") and not settings.cores,
        "algorithm": is_free("algorithm") and 1 < world.local_size < world.size,
    }
    return [field for field, is_there in free.items() if is_there]


def fields_of(
    settings: CommSettings,
    param: proto.CommParameter,
    world: World,
    cores: int,
    environ: Mapping[str, str] = os.environ,
) -> list[Others]:
    """What is worth trying of each free field. cores: of a rank."""
    counts = [count for count in SERVERS if count <= max(1, cores)]
    others: dict[str, Others] = {
        "bucket_mb": _buckets,
        "chunk_mb": _chunks,
        "priority": lambda best: [replace(best, priority=not best.priority)],
        "servers": lambda best: [replace(best, servers=count) for count in counts],
        "algorithm": _algorithms,
    }
    return [others[field] for field in free_fields(settings, param, world, environ)]


def _buckets(best: CommSettings) -> Iterable[CommSettings]:
    for factor in (0.25, 4):
        size = max(LEAST_BYTES, int(best.bucket_bytes * factor))
        yield replace(best, bucket_bytes=size, chunk_bytes=min(size, best.chunk_bytes))


def _chunks(best: CommSettings) -> Iterable[CommSettings]:
    for factor in (1, 0.25, 0.0625):
        yield replace(best, chunk_bytes=min(best.bucket_bytes, max(LEAST_BYTES, int(best.bucket_bytes * factor))))


def _algorithms(best: CommSettings) -> Iterable[CommSettings]:
    yield replace(best, reduction=replace(best.reduction, hierarchical=not best.reduction.hierarchical))


def as_text(settings: CommSettings) -> str:
    """The settings as a solver has them."""
    algorithm = "HIERARCHICAL" if settings.reduction.hierarchical else "PLAIN"
    return (
        f"comm_param {{ servers: {settings.servers} bucket_mb: {settings.bucket_bytes / MB:.9g} "
        f"chunk_mb: {settings.chunk_bytes / MB:.9g} priority: {str(settings.priority).lower()} "
        f"algorithm: {algorithm} }}"
    )


def to_json(settings: CommSettings) -> str:
    """What a search has found, for a snapshot."""
    return json.dumps(
        {
            "servers": settings.servers,
            "bucket_bytes": settings.bucket_bytes,
            "chunk_bytes": settings.chunk_bytes,
            "priority": settings.priority,
            "hierarchical": settings.reduction.hierarchical,
        }
    )


def from_json(text: str, settings: CommSettings, free: Collection[str]) -> CommSettings:
    """The settings with what a search has found of the free fields. Raises ValueError where that cannot be."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("expected an object")
    kept = {
        "servers": _number(found, "servers") if "servers" in free else settings.servers,
        "bucket_bytes": _number(found, "bucket_bytes") if "bucket_mb" in free else settings.bucket_bytes,
        "chunk_bytes": _number(found, "chunk_bytes") if "chunk_mb" in free else settings.chunk_bytes,
        "priority": bool(found.get("priority")) if "priority" in free else settings.priority,
    }
    by_hosts = bool(found.get("hierarchical")) if "algorithm" in free else settings.reduction.hierarchical
    return replace(settings, **kept, reduction=replace(settings.reduction, hierarchical=by_hosts))


def _number(found: Mapping[str, object], name: str) -> int:
    value = found.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected 1 or more, got {value!r}")
    return value
