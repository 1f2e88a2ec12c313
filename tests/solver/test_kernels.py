"""Training with chosen kernels: the same bits with the same choice, on one rank and on two, and after a resume."""

import json
from pathlib import Path

import pytest

import engine.caffe as caffe
from engine import proto
from engine.cli import main
from engine.config import read_net
from engine.net import Net
from engine.net.kernel_table import Table, this_machine
from engine.net.measure import Measured
from engine.weights import read_solverstate
from tests.mpi import run_ranks

NET = """
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 2 dim: 32 dim: 6 dim: 6 } shape { dim: 2 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {
  num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "score" inner_product_param {
  num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 4 snapshot: 2'


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Makes a folder with a net and a solver, and a cache of its own; returns the folder."""
    monkeypatch.setenv("ENGINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path))
    return tmp_path


def arguments(folder: Path, name: str, *more: str) -> list[str]:
    """Returns the words of `engine train` with this prefix."""
    prefix = f"snapshot_prefix={folder}/{name}"
    return ["train", "--solver", str(folder / "solver.prototxt"), "--set", prefix, *more]


def weights(folder: Path, name: str) -> bytes:
    """Returns the bytes of the weights at the end."""
    return (folder / f"{name}_iter_4.caffemodel").read_bytes()


def table(folder: Path, kernel: str) -> str:
    """Writes a table in which one kernel does all passes of the convolution; returns its path."""
    net = Net(read_net(str(folder / "net.prototxt")), proto.TRAIN)
    ops = {op.key: Measured(dict.fromkeys(op.passes, kernel)) for op in net.builder.asked}
    path = folder / f"{kernel}.json"
    path.write_text(Table(this_machine(), ops).to_text())
    return str(path)


def test_a_resume_keeps_the_kernels(folder):
    pinned = table(folder, "winograd")
    assert main(arguments(folder, "whole", "--kernels", pinned)) == 0
    assert main(arguments(folder, "default")) == 0
    different = weights(folder, "whole") != weights(folder, "default")
    if not different:
        pytest.skip("this processor has one kernel alone")
    half = str(folder / "whole_iter_2.solverstate")
    assert "winograd" in (read_solverstate(half).kernels or "")
    assert read_solverstate(str(folder / "default_iter_2.solverstate")).kernels is None
    for name, kernels in {"resumed": [], "measured": ["--kernels", "measure"]}.items():
        assert main(arguments(folder, name, "--snapshot", half, *kernels)) == 0
        assert weights(folder, name) == weights(folder, "whole"), name
        assert "winograd" in (read_solverstate(str(folder / f"{name}_iter_4.solverstate")).kernels or "")
    assert main(arguments(folder, "other", "--snapshot", half, "--kernels", "default")) == 0
    assert weights(folder, "other") != weights(folder, "whole")


def test_a_program_hands_the_kernels_on(folder, capfd):
    """The program's nets are built with kernels by rules of thumb before it restores a snapshot. Its own snapshots
    still name those of the snapshot."""
    assert main(arguments(folder, "whole", "--kernels", table(folder, "direct"))) == 0
    half = folder / "whole_iter_2.solverstate"
    solver = caffe.SGDSolver(str(folder / "solver.prototxt"))
    solver.restore(half)
    assert "Kernels: this program does not compute by those of the snapshot" in capfd.readouterr().err
    solver.step(1)
    solver.snapshot()
    assert read_solverstate(half).kernels
    assert read_solverstate(folder / "solver_iter_3.solverstate").kernels == read_solverstate(half).kernels


def test_a_snapshot_in_hdf5_names_the_kernels(folder):
    pytest.importorskip("h5py")
    pinned, hdf5 = table(folder, "direct"), ["--set", "snapshot_format=HDF5"]
    assert main(arguments(folder, "whole", "--kernels", pinned, *hdf5)) == 0
    saved = read_solverstate(str(folder / "whole_iter_2.solverstate.h5")).kernels
    assert saved and set(json.loads(saved)["machine"]) == set(this_machine())


def test_what_is_no_table_is_refused(folder, capsys):
    assert main(arguments(folder, "a", "--kernels", str(folder / "net.prototxt"))) == 1
    assert "net.prototxt: expected the JSON that --kernels measure keeps" in capsys.readouterr().err
    assert main(arguments(folder, "a", "--kernels", "measured")) == 2
    assert "expected default, measure or the file of a table, got 'measured'" in capsys.readouterr().err
    assert not list(folder.glob("a_iter*"))


@pytest.mark.mpi
def test_the_same_bits_with_the_same_cache(folder):
    """Of two ranks one measures, and both compute alike (snapshots compare the ranks). The second run reads the cache
    and comes to the same bits."""
    for name in ("first", "second"):
        done = run_ranks(2, ["-m", "engine", *arguments(folder, name, "--kernels", "measure")], timeout=200)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Kernels: measuring") == (name == "first")
    assert weights(folder, "first") == weights(folder, "second")
    (kept,) = (folder / "cache").glob("kernels.*.json")
    assert main(arguments(folder, "alone", "--kernels", str(kept))) == 0
    assert main(arguments(folder, "again", "--kernels", str(kept))) == 0
    assert weights(folder, "alone") == weights(folder, "again")
