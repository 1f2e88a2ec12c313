"""Cuts the flat gradient arena into buckets, and buckets into chunks.

A bucket is what backward marks ready, and what the next forward waits for; a chunk of it is reduced at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.comm.shares import ShardedWeights
    from engine.host import _core

# Measured, 102 MB on 2 ranks through shared memory: 22 ms in buckets of 2 to 16 MB, which stay in the cache; 47 ms in
# one bucket.
BUCKET_BYTES = 8 << 20
FLOAT_BYTES = 4
# The largest message. MPI counts are 32-bit ints in most libraries; this also keeps their staging buffers small.
MESSAGE_BYTES = 256 << 20
# The last buckets hold what the next forward waits for at once: each is at most half of what remains, down to this.
TAPER_BYTES = 256 << 10


@dataclass(frozen=True)
class ParameterRange:
    """Floats [begin, end) of the arena that belong to one parameter: the whole of it, or some of a large one."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """A contiguous range [begin, end) of the arena, in floats. It is complete when all of its parameter ranges are."""

    index: int
    begin: int
    end: int
    ranges: tuple[ParameterRange, ...]
    parts: int = 1  # how many parts its layers have (model parallelism); every parts-th rank holds the same part

    @property
    def nbytes(self) -> int:
        return (self.end - self.begin) * FLOAT_BYTES

    @property
    def name(self) -> str:
        """The parameters inside, for messages and the timeline: "fc6" or "conv5_2 .. conv4_1"."""
        first, last = self.ranges[0].name, self.ranges[-1].name
        return first if first == last else f"{first} .. {last}"


def make_buckets(
    parameters: Sequence[tuple[str, int, int]],
    bucket_bytes: int = BUCKET_BYTES,
    parts: Mapping[str, int] = MappingProxyType({}),
) -> list[Bucket]:
    """Returns buckets of about `bucket_bytes`, in the order in which backward completes the parameters.

    Small parameters share a bucket. One larger than `bucket_bytes` is cut into equal buckets of its own, so that
    several servers can work on it. Towards the end buckets become smaller (TAPER_BYTES).

    parameters: (name, offset, count) in floats, offsets ascending as backward completes them. There may be gaps
    (alignment), which are reduced, too. parts: the number of parts of divided parameters, by name (model parallelism);
    a bucket holds only parameters with the same number of parts.
    Raises ValueError if the parameters overlap or are out of order.
    """
    most = max(1, bucket_bytes // FLOAT_BYTES)
    total = max((offset + count for _, offset, count in parameters), default=0)
    groups: list[list[ParameterRange]] = []
    end_before, room, kind = 0, 0, 1
    for name, offset, count in parameters:
        if parts.get(name, 1) != kind:
            room, kind = 0, parts.get(name, 1)
        if offset < end_before:
            raise ValueError(f"parameter {name} starts at {offset}, before the end of the one before it, {end_before}")
        end_before = offset + count
        limit = min(most, max(TAPER_BYTES // FLOAT_BYTES, (total - offset) // 2))
        if count > limit:
            groups.extend([one] for one in _cut(name, offset, count, limit))
            room = 0
        elif groups and count <= room:
            groups[-1].append(ParameterRange(name, offset, end_before))
            room -= count
        else:
            groups.append([ParameterRange(name, offset, end_before)])
            room = limit - count
    return [
        Bucket(i, group[0].begin, group[-1].end, tuple(group), parts.get(group[0].name, 1))
        for i, group in enumerate(groups)
    ]


def _cut(name: str, offset: int, count: int, limit: int) -> Iterable[ParameterRange]:
    """Yields equal ranges of at most `limit` floats; all but the last are a multiple of a cache line (16 floats)."""
    ranges = -(-count // limit)
    step = -(-count // ranges)
    step = min(-(-step // 16) * 16, max(16, limit // 16 * 16))
    for begin in range(offset, offset + count, step):
        yield ParameterRange(name, begin, min(begin + step, offset + count))


def chunk_bounds(bucket: Bucket, chunk_bytes: int) -> list[tuple[int, int]]:
    """Returns [begin, end) of a bucket's chunks, which are reduced at a time, in floats of the arena."""
    step = max(1, min(chunk_bytes, MESSAGE_BYTES) // FLOAT_BYTES)
    return [(begin, min(begin + step, bucket.end)) for begin in range(bucket.begin, bucket.end, step)]


def buckets_of(buckets: Iterable[Bucket]) -> dict[str, list[int]]:
    """Returns the buckets that hold each parameter, by name: a reader of the parameter waits for all of these, and the
    last writer of its gradient completes them."""
    found: dict[str, list[int]] = {}
    for bucket in buckets:
        for one in bucket.ranges:
            found.setdefault(one.name, []).append(bucket.index)
    return found


def parameter_ranges(
    buckets: Sequence[Bucket],
    multipliers: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    bounds: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    sharded: ShardedWeights | None = None,
) -> list[list[_core.ParameterRange]]:
    """Returns the ranges of each bucket as _core.Updater takes them.

    Args:
        multipliers: (lr_mult, decay_mult) by parameter name; 1 for those that are not there.
        bounds: the least and the largest value of a parameter, by name, for those that have bounds.
        sharded: if given, the ranges are those that this rank updates.
    """
    from engine.host import _core

    numbers: dict[str, int] = {}
    for bucket in buckets:
        for one in bucket.ranges:
            numbers.setdefault(one.name, len(numbers))
    found = []
    for bucket in buckets:
        found.append([])
        for one in bucket.ranges:
            options = *multipliers.get(one.name, (1.0, 1.0)), numbers[one.name]
            limits = bounds.get(one.name, (-math.inf, math.inf))
            if sharded is None:
                found[-1].append(_core.ParameterRange(one.begin, one.end, *options, *limits))
                continue
            # An empty range, so that every rank's updater knows the parameter, also without a share of it.
            found[-1].append(_core.ParameterRange(0, 0, *options, *limits))
            for begin, end, at in sharded.shares.of_bucket(bucket.index):
                first, last = max(begin, one.begin), min(end, one.end)
                shifts = 0 if sharded.masters is None else at - begin, at - begin
                if first < last and sharded.sums is not None:
                    found[-1].append(_core.ParameterRange(first - begin + at, last - begin + at, *options, *limits))
                elif first < last:
                    found[-1].append(_core.ParameterRange(first, last, *options, *limits, *shifts))
    return found
