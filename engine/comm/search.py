"""The search of `comm_param { autotune: true }`: chooses the settings to measure next by the times of those before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import TYPE_CHECKING, TypeAlias

from engine.comm.settings import LEAST_BYTES, MB, CommSettings

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World

GAIN = 0.02  # settings win only if they save this fraction of a step: less may be noise
ROUNDS = 6  # rounds of a contest; even, so that it has as many in one order as in the reverse
SLOW, SLOW_AFTER = 1.05, 2  # settings so many times slower than the best leave a contest after so many rounds
PASSES = 3  # how often the search goes through all fields at most: noise might keep it going for ever
SERVERS = 1, 2, 4
MOST_BYTES = 1024 * MB  # the largest bucket to try; it holds nearly every net

# A function from the best settings to those to try in their place, which differ from them in one field.
Others: TypeAlias = Callable[[CommSettings], Iterable[CommSettings]]


@dataclass(frozen=True)
class Trial:
    """The times of steps with some settings, in seconds: medians over a contest. step: of the slowest rank. exposed:
    how long it waited for gradients."""

    settings: CommSettings
    step: float
    exposed: float

    def __str__(self) -> str:
        return f"{1e3 * self.step:.1f} ms a step, {1e3 * self.exposed:.1f} exposed: {as_text(self.settings)}"


class Contest:
    """Compares the best settings with others. They take turns in rounds, as machines change their speed: what counts is
    the median, over the rounds, of the ratio to the best settings' step in the same round.

    current: the settings to measure next; None when the contest is over.
    """

    def __init__(self, best: CommSettings, others: Sequence[CommSettings]):
        self._best, self._left = best, list(others)
        self._steps: dict[CommSettings, list[float]] = {each: [] for each in (best, *others)}
        self._exposed: dict[CommSettings, list[float]] = {each: [] for each in self._steps}
        self._round: list[CommSettings] = []
        self.current: CommSettings | None = None
        self._next_round()

    def tell(self, step: float, exposed: float) -> None:
        """Takes the times of steps with `current`, in seconds."""
        assert self.current is not None
        self._steps[self.current].append(step)
        self._exposed[self.current].append(exposed)
        if self._round:
            self.current = self._round.pop()
        else:
            self._next_round()

    def ratio(self, settings: CommSettings) -> float:
        """Returns how many times as long as with the best settings steps take with these."""
        return median(self._ratios(settings))

    def trials(self) -> list[Trial]:
        """Returns the trials of all settings, the best ones' first."""
        return [Trial(each, median(steps), median(self._exposed[each])) for each, steps in self._steps.items()]

    def winner(self) -> CommSettings | None:
        """Returns the settings that have beaten the best ones, by GAIN at least; None if none have."""
        fastest = min(self._left, key=self.ratio, default=None)
        return None if fastest is None or self.ratio(fastest) > 1 - GAIN else fastest

    def _ratios(self, settings: CommSettings) -> list[float]:
        """Returns the ratio to the best settings' step in each round."""
        return [step / best for step, best in zip(self._steps[settings], self._steps[self._best])]

    def _next_round(self) -> None:
        """Begins the next round, without the settings that are far behind. Every other round is in reverse order."""
        done = len(self._steps[self._best])
        if done >= SLOW_AFTER:
            self._left = [each for each in self._left if median_low(self._ratios(each)) <= SLOW]
        if not self._left or done == ROUNDS:
            self.current = None
            return
        self._round = [self._best, *self._left][:: 1 if done % 2 else -1]
        self.current = self._round.pop()


class Search:
    """Searches for the fastest settings, field by field. Each contest tries other values of one field against the best
    settings so far. If one wins, the field goes on from it; the search goes through all fields again, until none
    changes any more.

    Attributes:
        current: the settings to measure next.
        best: the settings that have won so far.
        is_over: whether `best` is the choice.
        trials: of the contests that are over.
    """

    def __init__(self, settings: CommSettings, fields: Sequence[Others]):
        """fields: in the order in which they are tried."""
        self.best = settings
        self.trials: list[Trial] = []
        self._fields, self._next = list(fields), 0
        self._settled = 0  # fields in a row that have changed nothing
        self._left = PASSES * len(fields)
        self._seen: set[CommSettings] = set()  # settings tried since the present field began
        self._contest: Contest | None = None
        self._go_on()

    @property
    def current(self) -> CommSettings:
        return (self._contest and self._contest.current) or self.best

    @property
    def is_over(self) -> bool:
        return self._contest is None

    def tell(self, step: float, exposed: float) -> None:
        """Takes the times of steps with `current`, in seconds."""
        assert self._contest
        self._contest.tell(step, exposed)
        if self._contest.current is None:
            self.trials += self._contest.trials()
            if winner := self._contest.winner():
                self.best, self._settled = winner, 0
            self._go_on()

    def _go_on(self) -> None:
        """Begins the next contest: of the same field if it has values that were not tried yet, else of the next field
        that has some. There is none if no field changes any more."""
        self._contest = None
        while self._left and self._settled < len(self._fields):
            self._seen.add(self.best)
            others = [each for each in dict.fromkeys(self._fields[self._next](self.best)) if each not in self._seen]
            if others:
                self._seen.update(others)
                self._contest = Contest(self.best, others)
                return
            self._next, self._settled = (self._next + 1) % len(self._fields), self._settled + 1
            self._left -= 1
            self._seen = set()


def free_fields(
    settings: CommSettings, param: proto.CommParameter, world: World, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Returns the fields of comm_param that the search may change, in the order in which it tries them: those that
    neither comm_param nor an MLSL variable gives."""

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
    """Returns what to try for each free field. cores: how many a rank has."""
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
        size = min(max(LEAST_BYTES, int(best.bucket_bytes * factor)), max(MOST_BYTES, best.bucket_bytes))
        yield replace(best, bucket_bytes=size, chunk_bytes=min(size, best.chunk_bytes))


def _chunks(best: CommSettings) -> Iterable[CommSettings]:
    for factor in (1, 0.25, 0.0625):
        yield replace(best, chunk_bytes=min(best.bucket_bytes, max(LEAST_BYTES, int(best.bucket_bytes * factor))))


def _algorithms(best: CommSettings) -> Iterable[CommSettings]:
    yield replace(best, reduction=replace(best.reduction, hierarchical=not best.reduction.hierarchical))


def as_text(settings: CommSettings) -> str:
    """Returns the settings as a solver's text."""
    algorithm = "HIERARCHICAL" if settings.reduction.hierarchical else "PLAIN"
    return (
        f"comm_param {{ servers: {settings.servers} bucket_mb: {settings.bucket_bytes / MB:.9g} "
        f"chunk_mb: {settings.chunk_bytes / MB:.9g} priority: {str(settings.priority).lower()} "
        f"algorithm: {algorithm} }}"
    )


def to_json(settings: CommSettings) -> str:
    """Returns the settings that a search has found, for a snapshot."""
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
    """Returns `settings` with the free fields of to_json()'s text. Raises ValueError if the text is not of that
    form."""
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
