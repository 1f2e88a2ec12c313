"""How the gradient arena is divided into buckets."""

import numpy as np
import pytest

from engine.comm.buckets import ParameterRange, buckets_of, chunk_bounds, make_buckets, parameter_ranges
from engine.comm.shares import ShardedWeights, Shares

FLOATS = 4


def test_small_parameters_share_a_bucket():
    buckets = make_buckets([("ip", 0, 40), ("b", 48, 8), ("conv", 64, 60), ("c", 124, 4)], bucket_bytes=64 * FLOATS)
    assert [(bucket.begin, bucket.end) for bucket in buckets] == [(0, 56), (64, 128)]
    assert [bucket.name for bucket in buckets] == ["ip .. b", "conv .. c"]
    assert [bucket.index for bucket in buckets] == [0, 1]
    assert buckets[0].nbytes == 56 * FLOATS


def test_a_large_parameter_is_cut():
    buckets = make_buckets([("a", 0, 10), ("fc6", 16, 1000), ("b", 1016, 10)], bucket_bytes=256 * FLOATS)
    assert buckets[0].ranges == (ParameterRange("a", 0, 10),)
    assert buckets[-1].ranges == (ParameterRange("b", 1016, 1026),)
    ranges = [bucket.ranges[0] for bucket in buckets[1:-1]]
    assert {one.name for one in ranges} == {"fc6"} and buckets[1].name == "fc6"
    assert [one.begin for one in ranges] == [16, *(one.end for one in ranges[:-1])]
    assert ranges[-1].end == 1016 and all(one.end - one.begin <= 256 for one in ranges)
    assert buckets_of(buckets) == {"a": [0], "fc6": [1, 2, 3, 4], "b": [5]}


def test_the_parts_of_a_large_parameter_are_alike():
    *parts, last = make_buckets([("fc6", 0, 520), ("b", 520, 1)], bucket_bytes=256 * FLOATS)
    # Multiples of 16 floats.
    assert [(bucket.begin, bucket.end) for bucket in parts] == [(0, 176), (176, 352), (352, 520)]
    assert last.name == "b"


def test_every_float_is_in_one_bucket_for_any_size():
    sizes = [37, 1, 500, 64, 3000, 2, 2, 1024, 9]
    parameters, offset = [], 0
    for i, size in enumerate(sizes):
        parameters.append((f"p{i}", offset, size))
        offset += size
    for bucket_bytes in (1, 64, 100, 4096, 10**9):
        buckets = make_buckets(parameters, bucket_bytes)
        assert [bucket.begin for bucket in buckets] == [0, *(bucket.end for bucket in buckets[:-1])]
        assert buckets[-1].end == offset
        ranges = [one for bucket in buckets for one in bucket.ranges]
        assert [one.begin for one in ranges] == [0, *(one.end for one in ranges[:-1])]


def test_the_last_buckets_are_small():
    count = 16_000  # floats, which are 64 KB for each parameter
    parameters = [(f"p{i}", i * count, count) for i in range(400)]
    sizes = [bucket.nbytes for bucket in make_buckets(parameters, bucket_bytes=8 << 20)]
    assert sizes[0] > 8e6 and sizes[-1] <= 256 << 10
    for i, size in enumerate(sizes):
        assert size <= max(256 << 10, sum(sizes[i:]) / 2)
    assert len(sizes) <= 9


def test_a_bucket_is_reduced_in_chunks():
    (bucket,) = make_buckets([("w", 16, 100)])
    assert chunk_bounds(bucket, 40 * FLOATS) == [(16, 56), (56, 96), (96, 116)]
    assert chunk_bounds(bucket, 100 * FLOATS) == chunk_bounds(bucket, 1 << 40) == [(16, 116)]
    assert chunk_bounds(bucket, 1) == [(begin, begin + 1) for begin in range(16, 116)]


def test_divided_parameters_share_a_bucket_with_their_like():
    parameters = [("a", 0, 4), ("b", 4, 1), ("c", 5, 1), ("d", 6, 4)]
    buckets = make_buckets(parameters, 64 * FLOATS, {"b": 2, "c": 2})
    assert [(bucket.name, bucket.parts) for bucket in buckets] == [("a", 1), ("b .. c", 2), ("d", 1)]


def test_ranges_carry_multipliers():
    buckets = make_buckets([("w", 0, 4), ("b", 4, 2)])
    (ranges,) = parameter_ranges(buckets, {"b": (2.0, 0.0)})
    found = [(one.begin, one.end, one.lr_mult, one.decay_mult, one.parameter) for one in ranges]
    assert found == [(0, 4, 1.0, 1.0, 0), (4, 6, 2.0, 0.0, 1)]


@pytest.mark.parametrize("apart", [False, True])
def test_ranges_of_sharded_updates_are_those_of_this_rank(apart):
    """apart: whether sums lie outside the arena. Ranges then count in the rank's own arrays."""
    buckets = make_buckets([("w", 0, 96), ("b", 96, 32), ("v", 128, 40)], bucket_bytes=128 * FLOATS)
    shares = Shares(buckets, chunk_bytes=128 * FLOATS, rank=1, ranks=2)
    weights = np.zeros(168, np.float32)
    sharded = ShardedWeights(shares, weights, sums=np.zeros(shares.count, np.float32) if apart else None)
    found = [
        [(one.begin, one.end, one.parameter) for one in ranges if one.begin < one.end]
        for ranges in parameter_ranges(buckets, sharded=sharded)
    ]
    assert shares.count == 72
    whole = [[(64, 96, 0), (96, 128, 1)], [(160, 168, 2)]]
    assert found == ([[(0, 32, 0), (32, 64, 1)], [(64, 72, 2)]] if apart else whole)


def test_overlapping_parameters_are_refused():
    with pytest.raises(ValueError, match="parameter b starts at 3, before the end of the one before it, 4"):
        make_buckets([("a", 0, 4), ("b", 3, 4)])
