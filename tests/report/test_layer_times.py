"""The table of layers at the end of a run has each layer once, with times in the right columns."""

import pytest

from tests.mpi import run_ranks

PROGRAM = """
import time
from engine.comm.mpi_channel import MpiChannel
from engine.comm.world import world
from engine.report.layer_times import LayerTimes
from tests.solver.harness import digits_net, make_solver
world = world()
reduce = MpiChannel.allreduce
def slow(self, values, residual=None):
    time.sleep(0.06)
    reduce(self, values, residual)
MpiChannel.allreduce = slow
text = "max_iter: 6 iter_size: 2 comm_param {{ bucket_mb: 1 }}"
times = LayerTimes()
solver = make_solver(text, digits_net(), world=world, observers=[times])
solver.solve()
table = times.table(world)
if world.rank == 0:
    print(table)
solver.close()
world.close()
"""


def numbers(text: str) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of each column for each layer."""
    header, *lines = text.splitlines()[1:]
    begins = [header.index(name) + len(name) for name in header.split()[2:]]
    ends = dict(zip(header.split()[2:], begins, strict=True))
    found = {}
    for line in lines:
        name = line.split()[0]
        if not name.startswith("-"):
            cells = {column: line.ljust(end)[:end].split(" ")[-1] for column, end in ends.items()}
            found[name] = {column: float(cell) if cell else 0.0 for column, cell in cells.items()}
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("servers", [0, 1])
def test_columns_of_two_ranks(servers):
    done = run_ranks(2, PROGRAM.format(), environ={"MLSL_NUM_SERVERS": str(servers)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Milliseconds per iteration, mean of 5 iterations and 2 ranks; start: ")
    found = numbers(done.stdout)
    own, fused = ["conv", "relu", "ip1", "tanh", "drop", "ip2", "loss", "total"], {"relu", "tanh"}
    assert list(found) in (own, [name for name in own if name not in fused])
    learn = ("conv", "ip1", "ip2")
    for name, row in found.items():
        assert row["forward"] > 0, name
        assert (row["reduce"] > 0) == (name in (*learn, "total")), name
    # There are one or two buckets, each of which takes 60 ms. conv reads the last of them first, and waits.
    assert found["total"]["reduce"] >= 60 and found["total"]["update"] > 0
    if servers:
        assert found["conv"]["wait"] > 20


def test_one_rank_has_no_communication():
    from engine.comm.world import World
    from engine.report.layer_times import LayerTimes
    from tests.solver.harness import digits_net, make_solver

    times = LayerTimes()
    solver = make_solver("max_iter: 4", digits_net(), observers=[times])
    solver.solve()
    text = times.table(World())
    assert "mean of 3 iterations and 1 rank:" in text
    assert text.splitlines()[1].split() == ["layer", "type", "forward", "backward", "update"]
    assert numbers(text)["ip1"]["update"] > 0
    solver.close()
