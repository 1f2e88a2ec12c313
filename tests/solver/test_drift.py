"""Ranks whose weights or optimizer state no longer agree are named, with the first blob that differs."""

import pytest

from engine.solver.drift import _describe
from tests.mpi import run_ranks

# In each case (text, rank, fault), the program does the fault to the rank after its third iteration.
PROGRAM = """
from engine.comm.world import world
from engine.errors import CommError
from tests.solver.harness import *

def run(folder, text, rank, fault):
    solver = make_solver(text, digits_net(), folder, world())
    step = solver.step
    def faulty():
        step()
        if (world().rank, solver.iteration) == (rank, 3):
            solver.optimizer.wait()
            exec(fault, dict(solver=solver, placed={{p.name: p for p in solver.net.parameters}}))
    solver.step = faulty
    try:
        solver.solve()
        print("no fault found at", solver.iteration, flush=True)
    except CommError as error:
        messages = world().gather(str(error))
        if messages:
            print(messages[0] if len(set(messages)) == 1 else messages)
    solver.close()

for case in {cases!r}:
    run({folder!r}, *case)
world().close()
"""
WEIGHT = "solver.optimizer.weights[placed['ip1[0]'].offset + 5] += 1e-6"
HISTORY = "solver.optimizer.history.arrays[0][placed['ip2[1]'].offset] *= -1"
# One rank's fault spreads to all by the next iteration, so the check has to come before it.
CASES = {
    ("comm_param { drift_check: 3 } momentum: 0.9 max_iter: 8", 2, WEIGHT): "rank 2 of 4 differs in the weights of "
    "ip1[0]",
    ("comm_param { drift_check: 3 } momentum: 0.9 max_iter: 8", 0, HISTORY): "rank 0 of 4 differs in SGD's momentum of "
    "ip2[1]",
    (
        'comm_param { drift_check: 3 } momentum: 0.9 max_iter: 8 type: "Adam" momentum2: 0.999',
        3,
        HISTORY.replace("arrays[0]", "arrays[1]").replace("*= -1", "+= 1e-6"),
    ): "rank 3 of 4 differs in Adam's second moment of ip2[1]",
    # found at the snapshot
    ("momentum: 0.9 max_iter: 3", 1, WEIGHT): "rank 1 of 4 differs in the weights of ip1[0]",
    (  # ranks average after iterations 3, 5 and 7, and a check is due after 2, 4 and 6
        "comm_param { mode: LOCAL sync_every: 2 sync_start: 1 drift_check: 2 } momentum: 0.9 max_iter: 8 "
        "snapshot_after_train: false",
        2,
        WEIGHT,
    ): "rank 2 of 4 differs in the weights of ip1[0]",
}


@pytest.mark.mpi
def test_one_of_four_ranks(tmp_path):
    done = run_ranks(4, PROGRAM.format(cases=[*CASES], folder=str(tmp_path)))
    assert done.stdout.splitlines() == [f"iteration 3: {message}" for message in CASES.values()], done.stderr
    assert not list(tmp_path.iterdir()), "a snapshot was written"


@pytest.mark.mpi
def test_the_check_can_be_switched_off(tmp_path):
    text = "comm_param { drift_check: 0 } snapshot_after_train: false max_iter: 5"
    done = run_ranks(2, PROGRAM.format(cases=[(text, 1, WEIGHT)], folder=str(tmp_path)))
    assert done.stdout == "no fault found at 5\n" * 2, done.stderr


def test_whom_a_message_names():
    a, b = b"a" * 8, b"b" * 8
    assert _describe(["x", "y"], [1, 1], [a + a, a + b]) == "ranks 0 and 1 differ in y"
    assert _describe(["x", "y"], [1, 1], [a + a, b + b, a + a, b + a, a + a]) == "ranks 1,3 of 5 differ in x"


def test_parts_of_a_parameter_are_compared_with_their_copies():
    a, b = b"a" * 8, b"b" * 8
    assert _describe(["x"], [2], [a, b, a, b]) is None
    assert _describe(["x"], [2], [a, b, a, a]) == "ranks 1 and 3 differ in x"
