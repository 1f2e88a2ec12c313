"""Bounded staleness: which rank's gradient goes into which update, for one share of the parameters that one rank
updates.

The protocol is that of Zhang et al. 2016, "Staleness-aware async-SGD for distributed deep learning", 1-softsync: an
update is the sum of as many gradients as there are ranks, whichever ranks they come from, so that its size is that of a
synchronous update. A gradient's staleness is the number of updates between the weights that it was computed with and
the update that it goes into. To bound it, an update reserves a place for every gradient whose last chance it is; other
gradients wait if only reserved places are left.

Why no rank waits for ever. With a bound of 1 or more, the gradient of a rank that gets weights of version v has its
last chance in update v + bound, which has a place for every rank. So at most `ranks` gradients have their last chance
in one update, and a gradient that waits does so only for ranks that are computing. Such a rank could itself wait only
for a place in another share; but it waits there with a gradient that it pushed here before, so that a circle of such
ranks would go back in time. With a bound of 0 all ranks get new weights after an update, and each pushes once:
synchronous training.
"""

from __future__ import annotations

from collections import Counter, deque


class Places:
    """The places of gradients in the updates of one share.

    version: updates made so far. staleness: how many gradients had each staleness."""

    def __init__(self, ranks: int, bound: int):
        self.ranks, self.bound = ranks, bound
        self.version = 0
        self.staleness: Counter[int] = Counter()
        self._taken = 0  # places of the next update that are taken
        self._versions: dict[int, int] = {}  # rank -> version of the weights with which it computes
        self._waiting: deque[int] = deque()  # ranks whose gradient has come and has no place yet
        self._owed: deque[int] = deque()  # ranks whose gradient has a place, and which wait for new weights

    def begin(self, version: int) -> None:
        """Begins with all ranks at the weights of `version`, when nothing is under way."""
        assert not self._taken and not self._waiting and not self._owed
        self.version = version
        self._versions = dict.fromkeys(range(self.ranks), version)

    def withdraw(self, rank: int) -> None:
        """Reserves no place for a rank, which pushes nothing until begin()."""
        self._versions.pop(rank, None)

    def push(self, rank: int) -> None:
        """Notes that a rank's gradient has come."""
        self._waiting.append(rank)

    def take(self) -> tuple[int, int] | None:
        """Gives the next gradient a place. Returns its (rank, staleness); None if none may have one. If is_full holds
        then, call update()."""
        must = sum(self._must(rank) for rank in self._versions)
        chosen = next((rank for rank in self._waiting if self._must(rank)), None)
        if chosen is None and self._taken + must < self.ranks:
            chosen = next(iter(self._waiting), None)
        if chosen is None:
            return None
        self._waiting.remove(chosen)
        stale = self.version - self._versions.pop(chosen)
        self.staleness[stale] += 1
        self._taken += 1
        self._owed.append(chosen)
        return chosen, stale

    def _must(self, rank: int) -> bool:
        """Tells whether the next update is the last chance of a rank's gradient."""
        return self.version - self._versions[rank] >= self.bound

    @property
    def is_empty(self) -> bool:
        """Whether no place of the next update is taken yet."""
        return not self._taken

    @property
    def is_full(self) -> bool:
        """Whether all places of the next update are taken."""
        return self._taken == self.ranks

    def update(self) -> None:
        """Notes that the update has been made. The places of the next one are free."""
        self.version += 1
        self._taken = 0

    def reply(self) -> int | None:
        """Returns the next rank that is to get the weights of this version; None if there is none."""
        if not self._owed or (self.bound == 0 and self._taken):
            return None
        rank = self._owed.popleft()
        self._versions[rank] = self.version
        return rank


class Tickets:
    """Gives each gradient of a run the iteration as which it counts, so that all ranks meet after a whole update.

    With a bound of 0 every rank computes one gradient of each update; else the ranks that come first take the next.
    """

    def __init__(self, ranks: int, bound: int, iteration: int = 0):
        """iteration: at which all ranks are now."""
        self._ranks, self._bound = ranks, bound
        self._counts = [0] * ranks
        self._first = iteration
        self._limit: int | None = None

    def take(self, rank: int, until: int, stop: bool) -> tuple[bool, int]:
        """Returns (True, the iteration of a rank's next gradient), or (False, the iteration at which all ranks meet) if
        it is to compute no more. They meet at `until`, or earlier if a rank has asked for that by `stop`."""
        whole, rest = divmod(sum(self._counts), self._ranks)
        if stop and self._limit is None:
            begun = whole + bool(rest) if self._bound else max(self._counts)
            self._limit = self._first + begun
        until = until if self._limit is None else min(until, self._limit)
        iteration = self._first + (whole if self._bound else self._counts[rank])
        if iteration >= until:
            return False, until
        self._counts[rank] += 1
        return True, iteration
