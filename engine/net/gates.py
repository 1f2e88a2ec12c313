"""The gates of a net's program: the ops at which gradients are ready, and those that wait for updated parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.net.net import Net


def gates(net: Net, buckets_of: dict[str, list[int]]) -> list[tuple[list[int], list[int]]]:
    """Returns, for every op, the buckets that its forward waits for, and those that are ready after its backward.

    A bucket is ready when the first op that reads any of its parameters, which is the last in backward, has written its
    gradient. buckets_of: the buckets of each parameter, by name."""
    waits: list[list[int]] = [[] for _ in range(len(net.program))]
    readies: list[list[int]] = [[] for _ in range(len(net.program))]
    first_use = {parameter.name: op for parameter, op in net.first_uses().items()}
    last_writer: dict[int, int] = {}
    for name, buckets in buckets_of.items():
        for bucket in buckets:
            last_writer[bucket] = min(last_writer.get(bucket, len(waits)), first_use[name])
    for bucket, op in sorted(last_writer.items()):
        readies[op].append(bucket)
    for op, params in enumerate(net.builder.op_params):
        waits[op] = sorted({bucket for parameter in params for bucket in buckets_of.get(parameter.name, [])})
    return list(zip(waits, readies, strict=True))
