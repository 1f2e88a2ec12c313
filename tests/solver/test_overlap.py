"""Communication overlaps with computing, by the timeline of a real run: late layers are reduced while early ones are
still in backward."""

import json

import pytest

from tests.mpi import run_ranks

# Early layers compute long and the last one has the weights, so its 2 MB are ready long before backward is over.
CONVOLUTION = """
layer { name: "conv#" type: "Convolution" bottom: "c#" top: "c%"
  convolution_param { num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
"""
NET = """
layer { name: "x" type: "DummyData" top: "c0" top: "label"
  dummy_data_param { shape { dim: 8 dim: 16 dim: 24 dim: 24 } shape { dim: 8 }
    data_filler { type: "gaussian" } data_filler { } } }
CONVOLUTIONS
layer { name: "pool" type: "Pooling" bottom: "c4" top: "pool" pooling_param { pool: AVE kernel_size: 6 stride: 6 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 1000 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
NET = NET.replace("CONVOLUTIONS", "".join(CONVOLUTION.replace("#", str(i)).replace("%", str(i + 1)) for i in range(4)))

PROGRAM = """
from engine.comm.world import world
from engine.report.timeline import Timeline
from tests.solver.harness import make_solver
timeline = Timeline({path!r}, iterations=6)
text = "max_iter: 9 random_seed: 1 comm_param {{ bucket_mb: 1 }}"
solver = make_solver(text, {net!r}, world=world(), observers=[timeline])
solver.solve()
solver.close()
world().close()
"""


def spans(path) -> dict[int, list[dict]]:
    """Returns the spans of each rank in a timeline, each with the name of its row and its end."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[int, list[dict]] = {}
    for event in events:
        if event["ph"] == "X":
            place = {"row": rows[event["pid"], event["tid"]], "end": event["ts"] + event["dur"]}
            found.setdefault(event["pid"], []).append(event | place)
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("servers", [2, 0])
def test_late_layers_are_reduced_while_early_ones_are_in_backward(tmp_path, servers):
    path = str(tmp_path / "trace.json")
    done = run_ranks(2, PROGRAM.format(path=path, net=NET), environ={"MLSL_NUM_SERVERS": str(servers)})
    assert done.returncode == 0, done.stderr
    ranks = spans(path)
    assert sorted(ranks) == [0, 1]
    for events in ranks.values():
        whole = [event for event in events if event["row"] == "iterations"]
        assert [event["name"] for event in whole] == [f"iteration {number}" for number in range(2, 8)]
        assert min(event["ts"] for event in events) == whole[0]["ts"]
        overlapped = 0
        for iteration in range(2, 8):
            mine = [event for event in events if event["args"].get("iteration") == iteration]
            first = next(event for event in mine if event["name"] == "conv0 bwd")
            last = next(event for event in mine if event["name"] == "ip bwd")
            reduced = [event for event in mine if "reduce" in event["row"]]
            span = whole[iteration - 2]
            assert all(span["ts"] <= e["ts"] and e["end"] <= span["end"] for e in mine if e["row"] == "compute")
            assert {event["name"] for event in reduced} >= {"reduce ip[0]"} and last["end"] <= first["ts"]
            late = [event for event in reduced if event["name"] == "reduce ip[0]"]
            assert all(event["ts"] >= last["end"] for event in late), "reduced before it was there"
            overlapped += any(event["ts"] < first["end"] for event in late)
        # On a busy machine a server may be late now and then, but not in each iteration. Without overlap it is 0 of 6.
        assert overlapped >= 1 if servers else overlapped == 0


SLOW = """
import time
from engine.comm.mpi_channel import MpiChannel
at_full_speed = MpiChannel.allreduce
def allreduce(self, values, residual=None):
    time.sleep(0.01)
    at_full_speed(self, values, residual)
MpiChannel.allreduce = allreduce
"""


@pytest.mark.mpi
def test_the_next_forward_begins_while_late_layers_are_in_flight(tmp_path):
    path = str(tmp_path / "trace.json")
    program = SLOW + PROGRAM.format(path=path, net=NET).replace("bucket_mb: 1", "bucket_mb: 0.05 priority: true")
    done = run_ranks(2, program, environ={"MLSL_NUM_SERVERS": "1"})
    assert done.returncode == 0, done.stderr
    ranks = spans(path)
    # Of rank 0, which decides the order.
    ends = {e["args"]["iteration"]: e["end"] for e in ranks[0] if e["name"] == "conv0 bwd"}
    for events in ranks.values():
        overlapped = 0
        for iteration in range(2, 7):
            now, then = ([e for e in events if e["args"].get("iteration") == i] for i in (iteration, iteration + 1))
            forward_begins = next(e["ts"] for e in then if e["name"] == "conv1 fwd")
            late = sorted((e for e in now if "reduce" in e["row"] and e["ts"] > ends[iteration]), key=lambda e: e["ts"])
            assert len(late) > 8 and any("conv0[0]" in e["name"] for e in late[:4]), "it goes first"
            overlapped += any(e["name"] == "reduce ip[0]" and e["ts"] > forward_begins for e in late)
        assert overlapped >= 4
