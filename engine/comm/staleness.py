"""Bounded staleness: whose gradient goes into which update, for one range of floats that one rank updates.

The protocol is that of Zhang et al. 2016, "Staleness-aware async-SGD for distributed deep learning", 1-softsync: an
update has as many gradients as there are ranks, whosever they are, so that it means what a synchronous one does. A
gradient's staleness is the number of updates between the weights that it was computed with and the update that it goes
into. To bound it, an update keeps a gradient's place where it is the last that the gradient may go into; who comes too
early waits.

Why nobody waits for ever. With a bound of 1 or more, whoever gets weights of version v must push by update v + bound,
which has a place for every rank. So at most `ranks` gradients have their last chance in one update, and a gradient
that may wait does so only for ranks that are computing. Such a rank could itself wait only for a place in another
range; but it waits there with a gradient that it pushed here before, so that a circle of such ranks would go back in
time. With a bound of 0 everybody gets new weights after an update, and each pushes once: synchronous training.
"""

from __future__ import annotations

from collections import Counter, deque


class Places:
    """Of one range. version: updates made so far. staleness: how many gradients have had which."""

    def __init__(self, ranks: int, bound: int):
        self.ranks, self.bound = ranks, bound
        self.version = 0
        self.staleness: Counter[int] = Counter()
        self._taken = 0  # places of the update to come
        self._versions: dict[int, int] = {}  # of the weights that a rank computes with
        self._waiting: deque[int] = deque()  # ranks whose gradient has come
        self._owed: deque[int] = deque()  # ranks whose gradient is in, and who wait for weights

    def begin(self, version: int) -> None:
        """All ranks have the weights of a version, and nothing is under way."""
        assert not self._taken and not self._waiting and not self._owed
        self.version = version
        self._versions = dict.fromkeys(range(self.ranks), version)

    def withdraw(self, rank: int) -> None:
        """It will push nothing until all begin anew."""
        self._versions.pop(rank, None)

    def push(self, rank: int) -> None:
        """Its gradient has come."""
        self._waiting.append(rank)

    def take(self) -> tuple[int, int] | None:
        """The next gradient to add to the sum, (rank, staleness); None if none may be. Then ask is_full()."""
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
        """Whether this update is its gradient's last chance."""
        return self.version - self._versions[rank] >= self.bound

    @property
    def is_empty(self) -> bool:
        """Nothing is in the sum yet."""
        return not self._taken

    @property
    def is_full(self) -> bool:
        """The sum is complete: update(), and the next take() is of the next one."""
        return self._taken == self.ranks

    def update(self) -> None:
        """The update has been made."""
        self.version += 1
        self._taken = 0

    def reply(self) -> int | None:
        """The next rank to send the weights of this version to; None if nobody may have them yet."""
        if not self._owed or (self.bound == 0 and self._taken):
            return None
        rank = self._owed.popleft()
        self._versions[rank] = self.version
        return rank


class Tickets:
    """Of the run: which iteration the next gradient of a rank counts as, so that all meet after a whole update.

    With a bound of 0 every rank computes one gradient of each update, else whoever comes first takes the next.
    """

    def __init__(self, ranks: int, bound: int, iteration: int = 0):
        """iteration: that all have come to."""
        self._ranks, self._bound = ranks, bound
        self._counts = [0] * ranks
        self._first = iteration
        self._limit: int | None = None

    def take(self, rank: int, until: int, stop: bool) -> tuple[bool, int]:
        """(True, iteration), or (False, the iteration after which all meet): `until`, or an earlier one that a rank has
        asked for. stop: this rank does."""
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
