"""The memory plan lets no two buffers overlap that are alive at the same time, and wastes little."""

import numpy as np
import pytest

from engine.graph.passes.memory_plan import ALIGNMENT, Lifetime, apart, join, plan
from engine.host import _core


def overlap(a, b, offsets, lifetimes):
    first, second = lifetimes[a], lifetimes[b]
    return first.meets(second) and offsets[a] < offsets[b] + second.bytes and offsets[b] < offsets[a] + first.bytes


def lower_bound(lifetimes):
    """Returns the bytes alive at the fullest step, which each plan needs at least."""
    steps = [Lifetime(0, ((first, first),)) for life in lifetimes for first, _ in life.spans]
    return max(sum(-(-life.bytes // ALIGNMENT) * ALIGNMENT for life in lifetimes if life.meets(step)) for step in steps)


@pytest.mark.parametrize("seed", range(5))
def test_buffers_alive_together_never_overlap(seed):
    rng = np.random.default_rng(seed)
    lifetimes = []
    for _ in range(80):
        first = int(rng.integers(0, 100))
        last = first + int(rng.integers(0, 40))
        spans = ((first, last),) if rng.random() < 0.7 else ((first, last), (last + 2, last + int(rng.integers(2, 20))))
        lifetimes.append(Lifetime(int(rng.integers(1, 10_000)), spans))
    offsets, total = plan(lifetimes)
    for a in range(80):
        assert offsets[a] + lifetimes[a].bytes <= total
        assert not any(overlap(a, b, offsets, lifetimes) for b in range(a))
    assert lower_bound(lifetimes) <= total <= 1.25 * lower_bound(lifetimes)


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(1024, ((step, step + 1),)) for step in range(10)]
    assert plan(chain)[1] == 2048
    assert apart(chain)[1] == 10 * 1024


def test_a_result_lies_where_its_dead_input_lay():
    lifetimes = [Lifetime(8, ((0, 1),)), Lifetime(8, ((1, 2), (5, 6))), Lifetime(8, ((2, 3),)), Lifetime(4, ((6, 7),))]
    group, chains = join(lifetimes, [(6, 1, 3), (1, 0, 1), (2, 1, 2)])
    assert group == [0, 0, 2, 0]  # 2 may not lie over 1, which is read again at 5
    assert chains == [Lifetime(8, ((0, 2), (5, 7))), Lifetime(8, ((2, 3),))]


def test_one_result_lies_where_an_input_lay_if_a_step_has_two():
    """That nobody reads the first result does not matter: the step writes it all the same."""
    lifetimes = [Lifetime(8, ((0, 5),)), Lifetime(8, ((5, 5),)), Lifetime(8, ((5, 9),))]
    assert join(lifetimes, [(5, 0, 1), (5, 0, 2)])[0] == [0, 0, 2]


def test_small_arenas_are_small():
    for size, allocated in ((1, 4 << 10), (5000, 8 << 10), (3 << 20, 4 << 20)):
        values = np.frombuffer(_core.Arena(size), np.float32)
        assert values.nbytes == allocated
        assert not values.any() and values.ctypes.data % 64 == 0
