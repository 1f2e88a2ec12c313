"""Compares with runs of BVLC's Caffe: the same losses and weights, and runs go on from its files."""

import numpy as np
import pytest

from engine.solver.solver import Solver
from engine.weights import read_caffemodel, read_solverstate
from tests.shared import SHARED, needs_shared
from tests.solver.harness import distance, learned, make_solver

CASES = """sgd nesterov adagrad rmsprop adadelta adam sgd_l1 sgd_clip sgd_iter_size policy_exp policy_inv
policy_multistep policy_poly policy_sigmoid policy_step""".split()
FILES = SHARED / "golden/files"

pytestmark = [needs_shared("golden/solvers"), pytest.mark.parametrize("case", CASES)]


def open_case(case: str) -> tuple[Solver, dict[str, np.ndarray]]:
    """Makes the solver of a case with the case's one batch and new weights; returns it with the case's arrays."""
    arrays = dict(np.load(SHARED / f"golden/solvers/{case}.npz"))
    solver = make_solver(str(arrays["solver"]), str(arrays["net"]))
    for blob in ("x", "l"):
        solver.net.blobs[blob].set(arrays[blob])
    return solver, arrays


def weights(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, list[np.ndarray]]:
    return {layer: [arrays[f"{prefix}_{layer}_{i}"] for i in (0, 1)] for layer in ("conv", "ip")}


def run(solver: Solver, steps: int) -> list[float]:
    """Takes steps; returns the loss before each update."""
    solver.feeder.start(solver.state.samples_seen)
    losses = []
    for _ in range(steps):
        solver.step()
        losses.append(solver.state.recent_loss[-1])
    return losses


def test_ten_steps(case):
    solver, arrays = open_case(case)
    assert solver.net.load_weights(weights(arrays, "before"), case) == []
    np.testing.assert_allclose(run(solver, 10), arrays["losses"], rtol=3e-5, atol=2e-7)
    after = solver.net.weights_by_layer()
    for layer, blobs in weights(arrays, "after10").items():
        for ours, theirs in zip(after[layer], blobs, strict=True):
            # Steps of RMSProp and Adam do not shrink with the gradient, so weights whose gradient is nearly 0 agree in
            # few digits.
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4 if case == "rmsprop" else 2e-6)


@needs_shared("golden/files")
def test_caffe_s_files_go_on(case):
    """Compares steps 11 and 12 from Caffe's snapshot with those of a run of ours from the start."""
    whole, arrays = open_case(case)
    whole.net.load_weights(weights(arrays, "before"), case)
    losses = run(whole, 12)
    resumed, _ = open_case(case)
    resumed.restore(str(FILES / f"{case}_iter_10.solverstate"))
    assert resumed.iteration == 10
    np.testing.assert_allclose(run(resumed, 2), losses[10:], rtol=2e-4 if case == "rmsprop" else 1e-5)
    assert distance(learned(whole), learned(resumed)) < (2e-3 if case == "rmsprop" else 2e-5)


@needs_shared("golden/files")
def test_caffe_s_weights_by_layer_name(case):
    arrays = dict(np.load(SHARED / f"golden/solvers/{case}.npz"))
    read = read_caffemodel(FILES / f"{case}_iter_10.caffemodel")
    for layer, blobs in weights(arrays, "after10").items():
        for ours, theirs in zip(read[layer], blobs, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@needs_shared("golden/files")
def test_the_state_counts_steps_as_caffe_s_does(case, tmp_path):
    """Caffe goes on from this number. If it were 0, Caffe would begin at the first rate again."""
    arrays = dict(np.load(SHARED / f"golden/solvers/{case}.npz"))
    solver = make_solver(str(arrays["solver"]), str(arrays["net"]), tmp_path)
    run(solver, 10)
    solver.snapshot()
    ours = read_solverstate(tmp_path / "net_iter_10.solverstate")
    assert ours.current_step == read_solverstate(FILES / f"{case}_iter_10.solverstate").current_step
    assert ours.current_step == (2 if case in ("policy_step", "policy_multistep") else 0)
    solver.close()
