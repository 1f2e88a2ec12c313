"""The memory plan: nothing that is alive at the same time overlaps, and little is wasted."""

import numpy as np
import pytest

from engine.graph.passes.memory_plan import Lifetime, apart, lower_bound, plan


def overlap(a, b, offsets, lifetimes):
    first, second = lifetimes[a], lifetimes[b]
    together = first.first <= second.last and second.first <= first.last
    return together and offsets[a] < offsets[b] + second.bytes and offsets[b] < offsets[a] + first.bytes


@pytest.mark.parametrize("seed", range(5))
def test_buffers_alive_together_never_overlap(seed):
    rng = np.random.default_rng(seed)
    lifetimes = []
    for _ in range(80):
        first = int(rng.integers(0, 100))
        lifetimes.append(Lifetime(int(rng.integers(1, 10_000)), first, first + int(rng.integers(0, 40))))
    offsets, total = plan(lifetimes)
    for a in range(80):
        assert offsets[a] + lifetimes[a].bytes <= total
        assert not any(overlap(a, b, offsets, lifetimes) for b in range(a))
    assert lower_bound(lifetimes) <= total <= 1.25 * lower_bound(lifetimes)


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(1024, step, step + 1) for step in range(10)]
    assert plan(chain)[1] == 2048
    assert apart(chain)[1] == 10 * 1024
