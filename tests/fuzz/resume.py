"""Resumes a run from a snapshot of which one file has been changed."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path

from engine import proto, weights
from engine.comm.world import World
from engine.config import SolverConfig, parse_solver
from engine.errors import EngineError
from engine.solver.global_batch import hold_global_batch
from engine.solver.resume import newest
from engine.solver.snapshot_files import read_whole
from engine.solver.solver import Solver
from tests.fuzz import seeds
from tests.fuzz.target import Run, target

NET = """
layer { name: "d" type: "Data" top: "x" top: "y" data_param { source: "%s/x.mdb" backend: LMDB batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "z" bottom: "y" top: "l" }
"""
SOLVER = "base_lr: 0.1 lr_policy: 'fixed' momentum: 0.9 max_iter: 2 average_loss: 3 snapshot_prefix: '%s/x'"
MOST_STEPS = 100  # micro-batches of an iteration; a global batch of millions is allowed, but slow
# The first letter of an input tells which file it is.
KINDS = {b"S": "solverstate", b"H": "solverstate.h5", b"M": "caffemodel"}


def config(folder: Path, more: str = "") -> SolverConfig:
    text = f"{SOLVER % folder} {more} net_param {{ {NET % folder} }}"
    return parse_solver(text, str(folder / "solver.prototxt"))


def train(folder: Path) -> dict[bytes, bytes]:
    """Returns the files of a snapshot by kind, and leaves the snapshot before it in the folder. The files have no
    digest, by which each change would be found."""
    values = [proto.Datum(channels=1, height=2, width=2, data=bytes(4), label=label) for label in (0, 1)]
    seeds.write_lmdb(folder / "x.mdb", [value.SerializeToString() for value in values])
    solver = Solver(config(folder, "snapshot: 1"), World())
    solver.solve()
    solver.close()
    last = folder / "x_iter_2.solverstate"
    state = weights.read_solverstate(last)
    state.digest = None
    found = {b"M": (folder / "x_iter_2.caffemodel").read_bytes()}
    for kind in (b"S", b"H"):
        weights.write_solverstate(folder / f"x_iter_2.{KINDS[kind]}", state)
        found[kind] = (folder / f"x_iter_2.{KINDS[kind]}").read_bytes()
    for path in folder.glob("x_iter_2.*"):
        path.unlink()
    return found


def snapshot_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [kind + content for kind, content in train(Path(folder)).items()]


@target(100, seeds=snapshot_files)
def snapshot(folder: Path) -> Run:
    good, settings = train(folder), config(folder)

    def run(data: bytes) -> None:
        kind, content = data[:1], data[1:]
        if kind not in KINDS:
            raise EngineError("no kind of file has this letter")
        state = b"S" if kind == b"M" else kind
        for each, written in {**{each: good[each] for each in (state, b"M")}, kind: content}.items():
            (folder / f"x_iter_2.{KINDS[each]}").write_bytes(written)
        try:
            go_on(settings, folder / f"x_iter_2.{KINDS[state]}")
        finally:
            for path in folder.glob("x_iter_2.*"):
                path.unlink()

    return run


def go_on(settings: SolverConfig, state: Path) -> None:
    """Resumes as --resume auto and --snapshot do."""
    found = newest(settings.message.snapshot_prefix)
    assert found is not None, "the snapshot before is whole"
    if found.path != str(state):  # restore() reads it in the same way, so mostly no solver need be built
        read_whole(str(state))
    settings, world = deepcopy(settings), World()
    hold_global_batch(settings, world, found)
    if settings.message.iter_size > MOST_STEPS:
        raise EngineError("too much work to be run here")
    solver = Solver(settings, world)
    try:
        solver.restore(str(state))
        solver.feeder.start(solver.state.samples_seen)
        solver.step()
        solver.optimizer.wait()
    finally:
        solver.feeder.close()
        solver.close()
