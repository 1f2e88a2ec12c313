"""The counting of bounded staleness, without MPI: the bound is kept, nobody waits for ever, and ranks meet after whole
updates."""

import random
from collections import Counter

import pytest

from engine.comm.staleness import Places, Tickets
from engine.comm.strategies.asynchronous import describe_staleness


class Network:
    """Simulates ranks, each with its own pace, that push gradients of several ranges. Messages arrive in any order."""

    def __init__(self, ranks: int, bound: int, ranges: int, seed: int, pace: list[float]):
        self.places = [Places(ranks, bound) for _ in range(ranges)]
        self.tickets = Tickets(ranks, bound)
        self.ranks, self.bound, self.pace, self.random = ranks, bound, pace, random.Random(seed)
        self.travelling: list[tuple[int, int]] = []  # rank, range
        self.missing = [0] * ranks  # replies that each rank waits for
        self.steps = [0] * ranks
        self.met: set[int] = set()
        # For each range, how many gradients of each rank are in updates.
        self.members = [Counter[int]() for _ in range(ranges)]
        # For each range, the ranks whose gradients are in the next update.
        self.sums: list[list[int]] = [[] for _ in range(ranges)]
        self.twice = False  # whether some rank was in one update twice

    def serve(self, number: int) -> None:
        """Lets the server of a range take what has arrived, update and reply."""
        places = self.places[number]
        while True:
            found = places.take()
            if found:
                rank, stale = found
                assert 0 <= stale <= self.bound
                self.members[number][rank] += 1
                self.twice |= rank in self.sums[number]
                self.sums[number].append(rank)
                if places.is_full:
                    assert len(self.sums[number]) == self.ranks
                    self.sums[number] = []
                    places.update()
            while (rank := places.reply()) is not None:
                self.missing[rank] -= 1
            if not found:
                return

    def run(self, until: int, stop_at: int | None = None) -> int:
        """Runs to the next meeting; returns its iteration."""
        for places in self.places:
            places.begin(self.places[0].version)
        self.met, met_at = set(), until
        for _ in range(100_000):
            if len(self.met) == self.ranks:
                return met_at
            able = [rank for rank in range(self.ranks) if rank not in self.met and not self.missing[rank]]
            able = [rank for rank in able if self.random.random() < self.pace[rank]]
            if able and (not self.travelling or self.random.random() < 0.5):
                rank = self.random.choice(able)
                stop = stop_at is not None and sum(self.steps) >= stop_at
                granted, iteration = self.tickets.take(rank, until, stop)
                if granted:
                    assert iteration < until
                    self.steps[rank] += 1
                    self.missing[rank] = len(self.places)
                    self.travelling += [(rank, number) for number in range(len(self.places))]
                    continue
                met_at = iteration
                self.met.add(rank)
                for number, places in enumerate(self.places):
                    places.withdraw(rank)
                    self.serve(number)
            elif self.travelling:
                rank, number = self.travelling.pop(self.random.randrange(len(self.travelling)))
                self.places[number].push(rank)
                self.serve(number)
        raise AssertionError("nobody moves any more")


@pytest.mark.parametrize("bound", [0, 1, 2, 4, 16])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_order_of_messages(ranks, bound):
    """Some ranks are much slower than others. Of two meetings, a rank asks for the second before it is due."""
    for seed in range(12):
        pace = [random.Random(seed + rank).choice([1.0, 1.0, 0.3, 0.05]) for rank in range(ranks)]
        network = Network(ranks, bound, 1 + seed % 4, seed, pace)
        assert network.run(until=12) == 12
        assert {places.version for places in network.places} == {12}
        assert all(members.total() == 12 * ranks for members in network.members)
        network.tickets, network.steps = Tickets(ranks, bound, 12), [0] * ranks
        met = network.run(until=1000, stop_at=3 * ranks)
        assert 14 <= met <= 18 and {places.version for places in network.places} == {met}
        if bound == 0:
            assert not network.twice and {count for members in network.members for count in members.values()} == {met}


def test_a_slow_rank_holds_nobody_up_within_the_bound():
    network = Network(3, 4, 2, 0, [1, 1, 0.1])
    network.run(until=60)
    counts = network.members[0]
    assert counts[2] < 0.5 * counts[0] and counts.total() == 180


def test_who_comes_too_early_waits():
    places = Places(2, 1)
    places.begin(0)
    assert places.is_empty and not places.is_full
    for _ in range(2):  # rank 1's gradient of weights 0 may go into updates 0 and 1
        places.push(0)
        assert places.take() == (0, 0)
        assert places.reply() == 0 and not places.is_empty
    assert places.is_full
    places.update()
    places.push(0)
    assert places.take() == (0, 1) and places.reply() == 0
    places.push(0)
    assert places.take() is None, "the last place is rank 1's"
    places.push(1)
    assert places.take() == (1, 1) and places.is_full
    places.update()
    assert places.take() == (0, 1), "and now rank 0's, of weights 1, has its place"
    assert places.staleness == {0: 2, 1: 3}


def test_the_line_of_the_log():
    text = describe_staleness(Counter({0: 1, 2: 3}), 4)
    assert text == "Staleness of gradients, in updates: 0: 25.0%, 2: 75.0%; mean 1.50, most allowed 4"
    assert describe_staleness(Counter(), 4) == ""
