"""What wrong input gets, continued: sources of data, Python layers, communication, files to be written."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.mpi import run_ranks
from tests.test_bad_input import NET, SOLVER, refused, train, write
from tests.test_cli import engine

LEARN = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data_layer(kind: str, param: str, more: str = "") -> str:
    return f'layer {{ name: "data" type: "{kind}" top: "data" top: "label" {param} {more} }}{LEARN}'


IMAGES = data_layer("ImageData", 'image_data_param { source: "list.txt" batch_size: 2 }')
WINDOWS = data_layer(
    "WindowData", 'window_data_param { source: "list.txt" batch_size: 4 }', "transform_param { crop_size: 8 }"
)
WINDOW_FILE = "# 0\na.png\n3\n16\n16\n2\n1 0.9 0 0 8 8\n0 0.1 4 4 12 12\n"
SOURCES = {
    "no list": (IMAGES, None, "net.prototxt:1:1: cannot read list.txt: No such file or directory"),
    "an empty list": (IMAGES, "", "net.prototxt:1:1: list.txt has no lines in it"),
    "a line without a label": (IMAGES, "a.png 1\nb.png\n", "list.txt:2: expected `relative/path label`; got 'b.png'"),
    "a missing picture": (
        IMAGES,
        "a.png 1\nnone.png 1\n",
        "net.prototxt:1:1: list.txt: cannot read none.png: No such file or directory",
    ),
    "no window file": (WINDOWS, None, "net.prototxt:1:1: cannot read list.txt: No such file or directory"),
    "a window without corners": (
        WINDOWS,
        WINDOW_FILE.replace("1 0.9 0 0 8 8", "1 0.9"),
        "list.txt:7: expected `class overlap x1 y1 x2 y2`, got '1 0.9'",
    ),
    "a window in words": (
        WINDOWS,
        WINDOW_FILE.replace("0.9", "most"),
        "list.txt:7: expected `class overlap x1 y1 x2 y2`, got '1 most 0 0 8 8'",
    ),
    "a window file without numbers": (
        WINDOWS,
        WINDOW_FILE[4:],
        "list.txt:1: expected `# number of a picture`, got 'a.png'",
    ),
    "a window file that ends too early": (
        WINDOWS,
        WINDOW_FILE[: WINDOW_FILE.rindex("0 0.1")],
        "list.txt:7: the file ends too early: expected `class overlap x1 y1 x2 y2`",
    ),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_wrong_source(what, here):
    net, text, message = SOURCES[what]
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save("a.png")
    if text is not None:
        Path("list.txt").write_text(text)
    assert refused(train(write(here, net))).endswith(f"engine: {message}")
    assert not list((here / "out").iterdir())


def test_a_missing_file_in_a_list_of_hdf5_files(here):
    pytest.importorskip("h5py")
    Path("list.txt").write_text("none.h5\n")
    net = data_layer("HDF5Data", 'hdf5_data_param { source: "list.txt" batch_size: 2 }')
    message = refused(train(write(here, net)))
    assert message == "engine: net.prototxt:1:1: list.txt: cannot read none.h5: No such file or directory"


PYTHON = """layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "user" type: "Python" bottom: "x" top: "y" python_param { module: "mine" layer: "Mine" } }
layer { name: "sum" type: "Reduction" bottom: "y" top: "sum" loss_weight: 1 }
"""
MODULES = {
    "no class": ("Mine = 3", "'Mine' is not a class that derives from caffe.Layer (", 1),
    "of its own": ("class Mine:\n    pass", "'Mine' is not a class that derives from caffe.Layer (", 1),
    "no Python": ("def f(:", "import of mine.Mine failed", 5),
    "leaves": (
        "import caffe, sys\nclass Mine(caffe.Layer):\n    def setup(self, bottom, top):\n        sys.exit(0)",
        "setup of mine.Mine failed",
        5,
    ),
}


@pytest.mark.parametrize("what", MODULES)
def test_a_wrong_python_layer(what, here):
    """The user's own lines follow, and nobody else's."""
    text, message, most = MODULES[what]
    Path("mine.py").write_text(text)
    done = train(write(here, PYTHON))
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert done.returncode == 1 and lines[0].startswith(f"engine: net.prototxt:2:1: layer 'user' (Python): {message}")
    assert 1 <= len(lines) <= most and "importlib" not in done.stderr, done.stderr


def test_a_python_layer_without_names(here):
    message = refused(train(write(here, PYTHON.replace('module: "mine"', ""))))
    assert "layer 'user' (Python): expected python_param { module: ... layer: ... }" in message


FIELDS = {
    "comm_param { watchdog: -1 }": "comm_param: watchdog: expected seconds, 0 or more, got -1",
    "comm_param { drift_check: -5 }": "comm_param: drift_check: expected 0 or more, got -5",
    "memory_budget_mb: -3": "memory_budget_mb: expected 0 or more, got -3",
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_of_the_solver(field, here):
    assert refused(train(write(here, solver=f"{SOLVER}\n{field}"))) == f"engine: solver.prototxt:2:1: {FIELDS[field]}"


def test_doctor_reads_the_whole_solver(here):
    write(here, solver=SOLVER.replace("momentum: 0.9", "momentum: 2"))
    done = engine("doctor", "--solver", here / "solver.prototxt")
    assert re.search(r"solver.prototxt:\d+:\d+: momentum: expected 0 or more and less than 1, got 2", refused(done))


def test_unknown_layers_of_model_parallelism_on_one_rank(here):
    net = NET + 'multinode { model_parallel { layer_from: "ip11" } }'
    message = "net.prototxt:142:1: model_parallel: no layer 'ip11'; did you mean 'ip1'?"
    assert refused(train(write(here, net))).endswith(message)
    assert engine("check", here / "solver.prototxt").stderr.strip().endswith(message)


@pytest.mark.parametrize(
    ("path", "reason"), [("nowhere/t.json", "there is no folder nowhere"), ("out", "it is a folder")]
)
def test_a_file_that_cannot_be_written_is_known_before_training(path, reason, here):
    assert refused(train(write(here), "--timeline", path)) == f"engine: {path}: cannot be written: {reason}"
    assert not list((here / "out").iterdir())


def test_verify_of_one_rank_does_not_start_itself():
    done = engine("verify", "--solver", "solvers/digits.prototxt", "--ranks", "1")
    assert "nothing to compare one rank with" in refused(done)


@pytest.mark.mpi
def test_wrong_usage_is_told_once():
    done = run_ranks(3, ["-m", "engine.cli", "train", "--solver", "x", "--watchdog", "soon"])
    assert done.returncode == 2
    assert done.stderr.count("expected seconds, 0 or more, got 'soon'") == 1 and done.stderr.count("usage") == 1
