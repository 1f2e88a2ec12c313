"""Chrome traces, from spans made up for the test."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from engine.comm.strategies.strategy import Event
from engine.comm.world import World
from engine.report.observer import Run, StepRecord, Trace, Wait
from engine.report.timeline import Timeline


class Program:
    """A program of two ops, of which only the second runs backward."""

    def __len__(self):
        return 2

    def needs_backward(self, op):
        return op == 1


class TwoRanks(World):
    """Rank 0 of two. The other sends the same spans, and its clock is 1000 ns behind."""

    size = local_size = 2

    def gather(self, value):
        offset, spans = value
        return [value, (offset + 1000, spans)]


LAYERS = [SimpleNamespace(name=name) for name in ("conv1", "loss")]
NET = SimpleNamespace(program=Program(), builder=SimpleNamespace(layer_of_op=LAYERS))


def started(path, world=None, buckets=("loss[0]",), first=0, **options):
    """Returns the timeline of a run of conv1 and loss that has begun."""
    timeline = Timeline(path, **options)
    timeline.begin(Run(world or World(), NET, [SimpleNamespace(name=name) for name in buckets], first, first + 100))
    return timeline


def trace(*events, spans=()):
    """Returns the trace of one micro-batch. spans: in microseconds, which are easier to read."""
    return Trace((np.array(spans, np.int64) * 1000,), tuple(Event(*event) for event in events), ())


def spans_of(path, pid=0):
    """Returns (row, name, begin, length) of the spans of a rank."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    rows = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == pid
    }
    return [(rows[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == pid]


def test_compute_and_servers(tmp_path):
    timeline = started(tmp_path / "trace.json", warm_up=0, first=5)
    # conv1 forward; loss forward, after a wait; loss backward. conv1 has no backward.
    spans = [[10, 20], [60, 70], [70, 90], [0, 0]]
    timeline.compute(np.array(spans) * 1000, 5)
    timeline.communication(trace((5, 0, 0, 90_000, 95_000, 120_000, 125_000)))
    timeline.write()
    assert spans_of(tmp_path / "trace.json") == [
        ("compute", "conv1 fwd", 0.0, 10.0),
        ("compute", "wait for the weights of loss", 10.0, 40.0),
        ("compute", "loss fwd", 50.0, 10.0),
        ("compute", "loss bwd", 60.0, 20.0),
        ("server 0: reduce", "reduce loss[0]", 85.0, 25.0),
        ("server 0: update", "update loss[0]", 110.0, 5.0),
    ]


def test_updates_that_waited_for_the_norm_do_not_overlap(tmp_path):
    timeline = started(tmp_path / "trace.json", buckets="abc", warm_up=0)
    timeline.communication(trace((0, 0, 0, 0, 0, 10_000, 50_000), (0, 2, 0, 0, 10_000, 30_000, 60_000)))
    timeline.write()
    updates = [span[2:] for span in spans_of(tmp_path / "trace.json") if span[0].endswith("update")]
    assert updates == [(10.0, 40.0), (50.0, 10.0)]


def test_ranks_are_merged(tmp_path):
    timeline = started(tmp_path / "trace.json", TwoRanks())
    timeline.span("test", "test net 0", 5000, 9000)
    timeline.write()
    assert spans_of(tmp_path / "trace.json", 0) == [("test", "test net 0", 0.0, 4.0)]
    assert spans_of(tmp_path / "trace.json", 1) == [("test", "test net 0", 1.0, 4.0)]


class ManyRanks(World):
    """A rank of 100, which all send the same spans."""

    size = 100

    def __init__(self, rank):
        self.rank = rank

    def gather(self, value):
        return None if self.rank else [value] * self.size


@pytest.mark.parametrize("rank, shown", [(0, True), (63, True), (64, False)])
def test_of_many_ranks_the_first_are_shown(tmp_path, rank, shown, monkeypatch):
    told = []
    monkeypatch.setattr("engine.report.timeline.log", told.append)
    timeline = started(tmp_path / "trace.json", ManyRanks(rank), warm_up=0)
    assert timeline.wants_trace(1) == shown
    timeline.communication(trace((0, 0, 0, 90_000, 95_000, 120_000, 125_000)))
    timeline.decoded(0, 10_000, 20_000)
    assert bool(timeline._spans) == shown
    timeline.end(None)
    if rank == 0:
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == set(range(64))
        assert told[0] == "The timeline shows the first 64 of 100 ranks" and len(told) == 2


@pytest.mark.parametrize("first", [0, 50])
def test_it_wants_a_few_iterations_after_the_warm_up(first):
    timeline = started("x", iterations=2, warm_up=1, first=first)
    wanted = [timeline.wants_trace(iteration) for iteration in range(first, first + 5)]
    assert wanted == [False, True, True, False, False]


def test_a_step_is_shown_with_its_parts(tmp_path):
    timeline = started(tmp_path / "trace.json", warm_up=0)
    spans = [[40, 50], [50, 60], [60, 90], [0, 0]]
    record = StepRecord(0, 0.1, 1.0, 0, 100_000, 30_000, 0, 8, (Wait("data", 0, 30_000),), ((5_000, 20_000),))
    timeline.step(dataclasses.replace(record, trace=trace((0, 0, 0, 90_000, 90_000, 95_000, 99_000), spans=spans)))
    timeline.end(None)
    assert sorted(span[:2] for span in spans_of(tmp_path / "trace.json")) == [
        ("compute", "conv1 fwd"),
        ("compute", "loss bwd"),
        ("compute", "loss fwd"),
        ("compute", "wait for data"),
        ("data", "decode a batch"),
        ("iterations", "iteration 0"),
        ("server 0: reduce", "reduce loss[0]"),
        ("server 0: update", "update loss[0]"),
    ]


def test_data_is_decoded_ahead(tmp_path):
    timeline = started(tmp_path / "trace.json", warm_up=0)
    timeline.waiting(0, "data", 100_000, 150_000)
    timeline.decoded(0, 10_000, 140_000)
    timeline.waiting(1, "data", 300_000, 301_000)  # too short to be shown
    timeline.decoded(1, 130_000, 200_000)  # two threads decode two batches at the same time
    timeline.waiting(1, "all updates", 400_000, 430_000)
    timeline.write()
    assert spans_of(tmp_path / "trace.json") == [
        ("compute", "wait for data", 90.0, 50.0),
        ("data", "decode a batch", 0.0, 130.0),
        ("data", "decode a batch", 130.0, 60.0),
        ("compute", "wait for all updates", 390.0, 30.0),
    ]


def test_what_came_before_the_first_iteration_is_left_out(tmp_path):
    timeline = started(tmp_path / "trace.json", iterations=2, warm_up=1, first=11)
    timeline.decoded(11, 50_000, 100_000)
    timeline.decoded(12, 100_000, 400_000)  # long before it is needed
    timeline.iteration(12, 1_000_000, 1_500_000)
    timeline.decoded(13, 900_000, 1_200_000)  # begun before the first iteration that is shown
    timeline.iteration(13, 1_500_000, 1_900_000)
    timeline.decoded(14, 1_400_000, 1_600_000)  # for an iteration that is not shown
    timeline.decoded(15, 1_900_000, 2_000_000)  # begun after the last iteration
    timeline.write()
    assert spans_of(tmp_path / "trace.json") == [
        ("iterations", "iteration 12", 0.0, 500.0),
        ("data", "decode a batch", 0.0, 200.0),
        ("iterations", "iteration 13", 500.0, 400.0),
        ("data", "decode a batch", 400.0, 200.0),
    ]


def test_clocks_are_compared_when_the_last_iteration_is_over(tmp_path):
    asked = []

    class Asked(World):
        def clock_offset(self):
            asked.append(len(asked))
            return 0

    timeline = started(tmp_path / "trace.json", Asked(), iterations=2, warm_up=1, first=10)
    for iteration in range(10, 16):
        timeline.synchronise(iteration)
        assert bool(asked) == (iteration >= 13)
    timeline.write()
    assert asked == [0]
