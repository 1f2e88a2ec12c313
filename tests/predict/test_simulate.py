"""Simulated steps against schedules worked out by hand."""

from dataclasses import replace

import pytest

from engine.comm.buckets import make_buckets
from engine.comm.link import Link
from engine.comm.settings import CommSettings, Reduction
from engine.predict.calibrate import LARGE, SMALL, fit
from engine.predict.simulate import Network, Op, Work, step_seconds

MB = 250_000  # floats of a megabyte


def network(ranks: int = 2, seconds: float = 1.0, **fields) -> Network:
    """Returns a network on which an allreduce of a megabyte takes `seconds`."""
    return Network(ranks, Link(0.0, 2 * (ranks - 1) / ranks * 1e6 / seconds), **fields)


def run(sizes, forward, backward, net, update=0.0, threads=1, bucket=1e12, **settings) -> float:
    """Simulates a step; returns its seconds.

    Args:
        sizes: megabytes of the gradients of each layer, 0 if it has none.
        forward, backward: seconds of each layer.
        update: seconds that a thread takes to update a byte of gradients.
    """
    parameters, offset = [], 0
    for layer in reversed(range(len(sizes))):
        if sizes[layer]:
            parameters.append((str(layer), offset, int(sizes[layer] * MB)))
            offset += int(sizes[layer] * MB)
    buckets = make_buckets(parameters, int(bucket))
    of = {str(layer): [b.index for b in buckets if any(p.name == str(layer) for p in b.ranges)] for layer in range(9)}
    first = {}
    for layer in reversed(range(len(sizes))):
        for index in of[str(layer)]:
            first[index] = layer
    ready = {layer: [index for index, last in first.items() if last == layer] for layer in range(len(sizes))}
    ops = [Op(seconds, of[str(layer)]) for layer, seconds in enumerate(forward)]
    back = [Op(backward[layer], (), ready[layer]) for layer in reversed(range(len(sizes)))]
    given = {"servers": 1, "bucket_bytes": int(bucket), "chunk_bytes": 1 << 40} | settings
    return step_seconds(Work(ops, back, update, threads), buckets, CommSettings(**given), net)


def test_one_rank_updates_with_all_threads():
    seconds = run([1, 1], [1, 1], [2, 2], network(1), update=1e-6, threads=4)
    assert seconds == pytest.approx(6 + 2e6 * 1e-6 / 4)


def test_what_backward_hides_costs_nothing():
    # The reduction of the second layer takes 1 s, and ends during the backward of the first. What forward waits for
    # after it is little.
    assert run([0, 1], [1, 1], [5, 2], network(), bucket=8e6) == pytest.approx(9, abs=1e-6)


def test_the_first_layers_reduction_is_exposed():
    # There is one layer, so nothing can be done during its reduction.
    assert run([1], [1], [2], network(), bucket=8e6) == pytest.approx(3 + 1)
    assert run([1], [1], [2], network(seconds=4), bucket=8e6) == pytest.approx(3 + 4)


def test_updates_are_waited_for():
    assert run([1], [1], [2], network(), update=0.5e-6, bucket=8e6) == pytest.approx(3 + 1 + 0.5)


def test_sharded_updates_are_of_a_share():
    four = network(4)
    whole, sharded = (run([1], [1], [2], four, update=1e-6, shard_updates=on) for on in (False, True))
    assert whole - sharded == pytest.approx(1 - 1 / 4)
    assert run([1], [1], [2], network(1), update=1e-6, shard_updates=True) == pytest.approx(4)


def test_without_servers_all_of_it_is_exposed():
    seconds = run([1, 1], [1, 1], [5, 2], network(), servers=0)
    assert seconds == pytest.approx(9 + 2, rel=1e-3)


def test_a_slow_link_bounds_the_step():
    # 3 MB take 30 s and computing 6 s. Forward may begin with the first layer's weights.
    seconds = run([1, 1, 1], [1, 1, 1], [1, 1, 1], network(seconds=10), priority=True, servers=2, chunk_bytes=100_000)
    assert 30 <= seconds <= 33


def test_priority_lets_the_first_layer_overtake():
    slow = {"servers": 1, "chunk_bytes": 100_000, "bucket": 1e6}
    sizes, forward, backward = [0.1, 4], [3, 3], [1, 1]
    without = run(sizes, forward, backward, network(), **slow)
    with_priority = run(sizes, forward, backward, network(), priority=True, **slow)
    # With priority, the forward of the first layer takes 3 of the 4 s that are left to reduce. Without it, forward
    # waits for all of them.
    assert without == pytest.approx(8 + 3.1, abs=0.2)
    assert with_priority == pytest.approx(8 + 0.2, abs=0.25)


def test_two_servers_share_the_link():
    one, two = (run([2, 2], [1, 1], [1, 1], network(), servers=count, bucket=1e6) for count in (1, 2))
    assert one == pytest.approx(two, rel=0.15)


def test_latency_is_hidden_by_another_server():
    slow = Network(2, Link(0.5, 1e12))
    one, four = (run([1] * 8, [0.1] * 8, [0.1] * 8, slow, servers=count, bucket=1e6) for count in (1, 4))
    assert four < 0.5 * one


def test_bf16_sends_half():
    halves = run([1], [1], [2], network(), bucket=8e6, reduction=Reduction(bf16=True))
    assert halves == pytest.approx(3 + 0.5)


def test_ranks_of_a_node_share_its_link():
    network = Network(8, Link(1e-6, 1e9), ranks_per_node=4, within=Link(1e-7, 1e10))
    latency, wire = network.allreduce(1e9)
    assert latency == pytest.approx(2 * (2 * 1e-7 + 1e-6))
    assert wire == pytest.approx(2 * 3 / 4 / 10 + 2 * 1 / 2)


def test_cores_that_servers_need_are_missing_to_compute():
    crowded = network(cores=1.0, cpu=0.5e-6)  # half a core while the link is busy
    # Reducing the second layer's megabyte takes 1 s of the first layer's backward, which loses half of that.
    assert run([0, 1], [1, 1], [5, 2], crowded, bucket=8e6) == pytest.approx(9.5, abs=1e-6)
    assert run([1], [1], [2], Network(1, Link(), ranks_per_node=1, cores=0.5)) == pytest.approx(6)


@pytest.mark.parametrize(("ranks", "near"), [(2, 1), (4, 1), (2, 2), (8, 2)])
def test_a_fitted_link_gives_what_was_measured(ranks, near):
    within = Link(1e-6, 1e10)
    if ranks == near:
        true = Network(ranks, Link(), near, Link(2e-6, 3e9))
    else:
        true = Network(ranks, Link(5e-5, 1.2e8), near, within)
    small, large = (sum(true.allreduce(nbytes)) for nbytes in (SMALL, LARGE))
    found = fit(ranks, near, within, small, large, 0.0, 2)
    for nbytes in (1 << 20, 64 << 20):
        assert sum(found.allreduce(nbytes)) == pytest.approx(sum(true.allreduce(nbytes)), rel=0.02)


def test_seconds_that_were_measured_in_company_are_not_stretched_again():
    crowd = Network(1, Link(), ranks_per_node=1, cores=0.5)
    work = Work([Op(1)], [Op(2)], 0.0)
    assert step_seconds(work, [], CommSettings(1), crowd) == pytest.approx(6)
    assert step_seconds(replace(work, together=True), [], CommSettings(1), crowd) == pytest.approx(3)
