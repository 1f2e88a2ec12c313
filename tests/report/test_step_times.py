"""How the time of steps is divided, with ranks made up for the test and with real ones."""

import re

import numpy as np
import pytest

from engine.comm.world import World
from engine.report.step_times import MOST, StepTimes, describe
from tests.mpi import run_ranks

PART = re.compile(r"(compute|data|exposed communication|skew) ([\d.]+)")


def parts(line: str) -> dict[str, float]:
    """Returns the parts of a line, and the whole, in milliseconds."""
    return {name: float(value) for name, value in PART.findall(line)} | {"whole": float(line.split()[0])}


def test_two_ranks_of_which_the_slower_one_changes():
    # A step takes 100 ms, 10 of them for data. Rank 0 waits 20 for gradients and rank 1 waits 40; then they change
    # places.
    steps = np.array([[[100, 10, 20], [100, 10, 40]], [[100, 10, 40], [100, 10, 20]]], float)
    line = describe(steps)
    assert parts(line) == {"whole": 100, "compute": 60, "data": 10, "exposed communication": 20, "skew": 10}
    assert line.endswith("skew 10.00"), "over the steps, neither is slower"


def test_one_rank_has_neither_communication_nor_skew():
    assert describe(np.array([[[12, 2, 0], [14, 4, 0]]], float)) == "13.00 ms per iteration: compute 10.00, data 3.00"


def test_the_first_step_of_a_run_does_not_count():
    times = StepTimes()
    for whole in (5_000_000_000, 7_000_000, 9_000_000):
        times.add(whole, 1_000_000, 0)
    assert times.line(World()) == "8.00 ms per iteration: compute 7.00, data 1.00"
    assert times.line(World()) == ""


PROGRAM = """
import time
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import make_solver, digits_net
world = world()
set_up(world.rank)
solver = make_solver("max_iter: 21 display: 10", digits_net(16), world=world)
forward = solver._forward
def slow(*arguments):
    time.sleep(0.1 * world.rank)
    return forward(*arguments)
solver._forward = slow
solver.solve()
solver.close()
world.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("servers", [0, 2])
def test_a_slow_rank_shows_as_skew(servers):
    done = run_ranks(2, PROGRAM, environ={"MLSL_NUM_SERVERS": str(servers)})
    lines = [line.split("] ", 1)[1].strip() for line in done.stderr.splitlines() if "ms per iteration" in line]
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    for line in lines:
        found = parts(line)
        total = sum(value for name, value in found.items() if name != "whole")
        assert total == pytest.approx(found["whole"], abs=0.05)
        assert 25 < found["skew"] < 300 and "(rank 1 is " in line, line


def test_a_run_that_never_asks_takes_no_more_memory():
    times = StepTimes()
    for step in range(3 * MOST):
        times.add(1_000_000 * step, 0, 0)
    mean = f"{2.5 * MOST - 0.5:.2f}"  # of the last MOST steps
    assert times.line(None) == f"{mean} ms per iteration: compute {mean}, data 0.00"
