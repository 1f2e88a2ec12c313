"""Order and shares: an epoch has each item once, and the samples of an iteration do not depend on the number of
ranks."""

from itertools import chain, islice

import numpy as np
import pytest

from engine.data.keyed_random import KeyedRandom
from engine.data.sampler import Sampler


def first_samples(sampler, batch_size, ranks, batches, start=0):
    """Returns the samples of each global batch, in the order of ranks."""
    shares = [list(islice(sampler.shares(batch_size, rank, ranks, start), batches)) for rank in range(ranks)]
    return [[sample for share in batch for sample in share.samples] for batch in zip(*shares)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_epoch_holds_every_item_once(shuffle):
    samples = Sampler(10, 7, shuffle).samples(0, 30)
    for epoch in range(3):
        part = samples[10 * epoch : 10 * epoch + 10]
        assert {e for e, _ in part} == {epoch}
        assert sorted(index for _, index in part) == list(range(10))


def test_order_without_shuffle_is_that_of_the_source():
    assert Sampler(3, 1, False).samples(2, 7) == [(0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_shuffle_differs_by_epoch_and_seed_and_repeats():
    first, second = (Sampler(100, 1, True).samples(*part) for part in [(0, 100), (100, 200)])
    assert [i for _, i in first] != [i for _, i in second]
    assert first == Sampler(100, 1, True).samples(0, 100)
    assert first != Sampler(100, 2, True).samples(0, 100)


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_of_an_iteration_do_not_depend_on_the_ranks(shuffle):
    sampler = Sampler(37, 3, shuffle)
    one = first_samples(sampler, 12, 1, 10)
    assert one == first_samples(sampler, 6, 2, 10)
    assert one == first_samples(sampler, 3, 4, 10)


def test_resume_at_any_sample_on_another_number_of_ranks():
    sampler = Sampler(37, 3, True)
    whole = list(chain(*first_samples(sampler, 4, 1, 20)))
    resumed = list(chain(*first_samples(sampler, 5, 2, 3, start=28)))
    assert resumed == whole[28:58]


@pytest.mark.parametrize(("size", "batch_size", "ranks"), [(10, 4, 1), (17, 4, 2), (5, 4, 3), (12, 3, 4), (2, 4, 3)])
def test_an_epoch_over_ranks_is_exact(size, batch_size, ranks):
    sampler = Sampler(size, 1, True)
    shares = [list(sampler.shares(batch_size, rank, ranks, stop=size)) for rank in range(ranks)]
    assert sorted(index for rank in shares for share in rank for _, index in share.samples) == list(range(size))
    for rank in shares:
        assert all(len(share.samples) == batch_size for share in rank[:-1])
        assert all(share.samples for share in rank)


def test_a_rank_with_its_own_items_reads_all_of_it():
    shares = list(islice(Sampler(5, 1, False).shares(2, 1, 2, start=4, owners=(1,)), 3))
    assert [[index for _, index in share.samples] for share in shares] == [[2, 3], [4, 0], [1, 2]]
    assert [share.first_sample for share in shares] == [6, 10, 14]


@pytest.mark.parametrize("groups", [[[0], [1]], [[0], [1], [2]], [[0, 1], [2, 3]], [[0, 2], [1]], [[0, 1, 2]]])
@pytest.mark.parametrize("count", range(1, 8))
def test_tests_read_all_of_sources_that_some_ranks_have(groups, count):
    """Runs five tests of `count` batches, each of which begins with the rank after the last one's.

    Args:
        groups: ranks that share a source, for each source.
    """
    sampler, ranks, read = Sampler(1000, 1, False), sum(map(len, groups)), [[] for _ in groups]
    for begin in range(0, 5 * count, count):
        for k in range(count):
            rank = (begin + k) % ranks
            group = next(number for number, group in enumerate(groups) if rank in group)
            shares = sampler.shares(10, rank, ranks, 10 * begin, owners=groups[group], first_rank=begin % ranks)
            share = next(islice(shares, k // ranks, None))
            assert share.first_sample == 10 * (begin + k)
            read[group] += [index for _, index in share.samples]
    assert all(items == list(range(len(items))) for items in read) and sum(map(len, read)) == 50 * count


def test_a_training_that_skips_items_reads_no_item_twice():
    """Two ranks may share a source while the first sample lies within a batch of another rank."""
    for first in range(0, 90, 5):
        shares = [next(Sampler(1000, 1, False).shares(10, rank, 4, first, owners=(0, 1))) for rank in (0, 1)]
        (a, *_), (b, *_) = ([index for _, index in share.samples] for share in shares)
        assert b == a + 10


def test_keyed_random_is_uniform_and_repeats():
    draws = [KeyedRandom(1, epoch, index).integer(0, 4) for epoch in range(20) for index in range(500)]
    assert all(abs(draws.count(value) - 2000) < 200 for value in range(5))
    values = [KeyedRandom(1, 0, index).uniform(2, 4) for index in range(10000)]
    assert 2 <= min(values) and max(values) < 4 and abs(sum(values) / 10000 - 3) < 0.05
    assert KeyedRandom(1, 2, 3).uniform(0, 1) == KeyedRandom(1, 2, 3).uniform(0, 1)
    assert KeyedRandom(1, 2, 3).uniform(0, 1) != KeyedRandom(1, 3, 2).uniform(0, 1)


def test_keyed_random_is_splitmix64():
    """The numbers stay the same under all versions of engine, so that a resumed run draws what it would have drawn."""
    random = KeyedRandom(0, 0, 0)
    random._state = 1234567  # the example of the algorithm's author, as Rosetta Code has it
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [random.integer(0, 2**64 - 1) for _ in expected] == expected
    random = KeyedRandom(1, 2, 3)
    assert [random.integer(0, 99) for _ in range(4)] == [13, 43, 95, 27]
    assert [random.uniform(0, 1), random.normal()] == [0.9217616540191534, -1.445115327835083]
    assert [random.beta(0.5), random.beta(2)] == [0.9992790222167969, 0.3243548274040222]


def test_orders_are_numpys_permutations_and_two_are_kept():
    sampler = Sampler(1000, 7, True)
    for epoch in range(4):
        wanted = np.random.RandomState([7, 0, epoch]).permutation(1000)
        found = [index for _, index in sampler.samples(1000 * epoch, 1000 * (epoch + 1))]
        assert found == wanted.tolist()
    assert sorted(sampler._orders) == [2, 3] and sampler._orders[3].dtype == np.uint32
