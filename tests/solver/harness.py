"""Shared by the tests of the solver: small nets on real data, solvers made from text, and comparisons of two runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.comm.world import World
from engine.config import parse_solver
from engine.errors import EngineError
from engine.report.observer import Observer
from engine.solver.solver import Solver
from engine.weights import read_caffemodel, read_solverstate
from tests.mpi import REPO, run_ranks

if TYPE_CHECKING:
    from engine.report.observer import TestRecord

DIGITS = REPO / "examples/digits"

# The net has no BatchNorm, whose statistics would depend on which samples a rank has.
DIGITS_NET = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0625 crop_size: 6 mirror: true }
  data_param { source: "%(digits)s/digits_train_lmdb" backend: LMDB batch_size: %(batch)d shuffle: true } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0625 crop_size: 6 }
  data_param { source: "%(digits)s/digits_test_lmdb" backend: LMDB batch_size: 47 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip1" type: "InnerProduct" bottom: "conv" top: "ip1"
  inner_product_param { num_output: 32 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "ip1" top: "ip1" }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.3 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


def digits_net(batch: int = 16) -> str:
    """Returns a net of a convolution, dropout and two inner products on crops of the digits, mirrored at random."""
    return DIGITS_NET % {"digits": DIGITS, "batch": batch}


def with_defaults(text: str, defaults: str) -> str:
    """Returns `text` with those fields of `defaults` that it lacks. Both are "field: value field: value ..."."""
    given = {word for word in text.split() if word.endswith(":")}
    words = defaults.split()
    missing = [f"{field} {value}" for field, value in zip(words[::2], words[1::2]) if field not in given]
    return " ".join([text, *missing])


def make_solver(text: str, net: str, folder: Path | str = "", world: World | None = None, **options) -> Solver:
    """Makes a solver of `net`, both given as text.

    Unless `text` says otherwise, it is SGD at a fixed rate of 0.01 for 20 iterations. With a `folder`, its file is
    "net.prototxt" in there, and it writes its snapshots there; without one it writes none.
    """
    length = "" if "max_epoch:" in text else "max_iter: 20"
    text = with_defaults(text, f'base_lr: 0.01 lr_policy: "fixed" {length}')
    files = f'snapshot_prefix: "{folder}/net"' if folder else "snapshot_after_train: false"
    config = parse_solver(f"{with_defaults(text, files)} net_param {{ {net} }}", str(Path(folder) / "net.prototxt"))
    return Solver(config, world or World(), **options)


def solve(
    text: str, net: str, folder: Path | str = "", *, restore: Path | str = "", world: World | None = None
) -> Solver:
    """Runs a solver to its end, from the start or from the solverstate `restore`, and returns it."""
    solver = make_solver(text, net, folder, world)
    if restore:
        solver.restore(str(restore))
    assert solver.solve()
    solver.close()
    return solver


def learned(solver: Solver) -> dict[str, np.ndarray]:
    """Returns copies of weights, statistics and histories by name, in Caffe's shapes. With sharded updates all ranks
    have to call it, and only rank 0 gets the whole."""
    solver.optimizer.wait()
    sharding, history = solver.optimizer.sharding, solver.optimizer.history
    weights = solver.net.weights_by_layer(sharding.whole_weights() if sharding else {})
    values: dict[str, np.ndarray] = {}
    for layer, blobs in weights.items():
        values |= {f"{layer}[{i}]": blob for i, blob in enumerate(blobs)}
    return values | {f"history {i}": blob for i, blob in enumerate(history.to_blobs(history.wholes()))}


def in_files(folder: Path, iteration: int) -> dict[str, np.ndarray]:
    """Returns what learned() does, from the snapshot of an iteration."""
    stem = folder / f"net_iter_{iteration}"
    model = read_caffemodel(f"{stem}.caffemodel")
    values = {f"{layer}[{i}]": blob for layer, blobs in model.items() for i, blob in enumerate(blobs)}
    history = read_solverstate(f"{stem}.solverstate").history
    return values | {f"history {i}": blob for i, blob in enumerate(history)}


def different(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    """Returns the names of arrays whose bits differ."""
    assert a.keys() == b.keys()
    return [name for name in a if a[name].tobytes() != b[name].tobytes()]


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Returns the largest difference of any array, relative to the array's largest element."""
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max()) for name in a)


def send_at(solver: Solver, iteration: int, number: int) -> None:
    """Makes the process send itself a signal at the beginning of an iteration's step."""
    step = solver.step

    def signalled() -> None:
        if solver.iteration == iteration:
            os.kill(os.getpid(), number)
        step()

    solver.step = signalled


def send_in_test(solver: Solver, iteration: int, number: int) -> list[int]:
    """Makes the process send itself a signal after the second batch of a test of three. Returns a list, to which each
    batch of a test appends its iteration."""
    batches: list[int] = []

    def signalled(net, size, keys) -> None:
        batches.append(solver.iteration)
        if solver.iteration == iteration and len(batches) % 3 == 2:
            os.kill(os.getpid(), number)

    (evaluator,) = solver.test_nets.evaluators
    evaluator.on_forward = signalled
    return batches


class Losses(Observer):
    """Collects the losses of tests, by iteration."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def test(self, record: TestRecord) -> None:
        self.losses[record.iteration] = record.outputs["loss"][0]


def all_fine(
    ranks: int, program: str, timeout: float = 120, names: dict[str, object] | None = None, **environ: str
) -> str:
    """Runs a program, in which `names` are defined, on ranks, each of which has to print "fine"; returns the log."""
    done = run_ranks(ranks, program, timeout=timeout, environ=environ, names=names)
    assert done.returncode == 0 and done.stdout.count("fine") == ranks, done.stdout + done.stderr[-3000:]
    return done.stderr


def assert_refused(text: str, words: str) -> None:
    """Checks that making a solver of the digits with this text fails with one line that has `words` and the place."""
    import pytest  # not above: ranks import this module, too, and do not need pytest

    with pytest.raises(EngineError, match=words) as found:
        make_solver(text, digits_net())
    assert len(str(found.value).splitlines()) == 1 and "net.prototxt:1:" in str(found.value)
