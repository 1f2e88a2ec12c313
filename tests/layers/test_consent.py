"""Opening a net runs no code of its author: modules of Python layers are imported only with consent, and never by
commands that only look."""

import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import engine.caffe as caffe
from engine.config import read_net
from engine.examine.check import check_file
from engine.host.launch import own_command
from engine.layers import python
from engine.net import Net
from tests.mpi import ENVIRON, mpiexec

MODULE = """
import os, sys
os.write(2, b"EXECUTED\\n")
import caffe

class Mine(caffe.Layer):
    kept = []

    def setup(self, bottom, top):
        self.blobs.add_blob(500)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
        Mine.kept[:] = [bottom[0].data, top[0].data, self.blobs[0].data]

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""
NET = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 64 dim: 1000 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 3000 weight_filler { type: "xavier" } } }
layer { name: "user" type: "Python" bottom: "y" top: "z" python_param { module: "mine_of_consent" layer: "Mine" } }
layer { name: "sum" type: "Reduction" bottom: "z" top: "sum" loss_weight: 1 }
"""
SOLVER = 'net: "net.prototxt" base_lr: 1e-6 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine_of_consent.py").write_text(MODULE)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "input.prototxt").write_text(NET.replace("DummyData", "Input").replace("dummy_data", "input"))
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path


def run(folder, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
    variables = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", **environ}
    return subprocess.run(
        own_command(*arguments), cwd=folder, env=variables, capture_output=True, text=True, timeout=100
    )


RUNNING = {
    "train": ("--solver", "solver.prototxt"),
    "time": ("--model", "net.prototxt", "--iterations", "1"),
    "predict": ("--model", "net.prototxt", "--ranks", "2", "--latency", "1", "--bandwidth", "10"),
}


@pytest.mark.parametrize("verb", RUNNING)
def test_a_verb_that_runs_nets_asks_for_consent(folder, verb):
    done = run(folder, verb, *RUNNING[verb])
    lines = [line for line in done.stderr.splitlines() if "engine:" in line]
    assert done.returncode == 1 and "EXECUTED" not in done.stderr, done.stderr
    assert len(lines) == 1 and lines[0].startswith("engine: net.prototxt:5:1: layer 'user' (Python): its shapes are")
    assert "'mine_of_consent'" in lines[0] and "--python_layers or ENGINE_PYTHON_LAYERS=1" in lines[0]


@pytest.mark.parametrize("consent", ["flag", "variable"])
def test_consent_is_given_in_two_ways(folder, consent):
    environ = {"ENGINE_PYTHON_LAYERS": "1"} if consent == "variable" else {}
    done = run(folder, "train", *RUNNING["train"], *(["--python_layers"] if consent == "flag" else []), **environ)
    assert done.returncode == 0 and "EXECUTED" in done.stderr, done.stderr


def test_what_is_neither_consent_nor_refusal(folder):
    done = run(folder, "train", *RUNNING["train"], ENGINE_PYTHON_LAYERS="yes")
    assert done.returncode == 1 and "EXECUTED" not in done.stderr, done.stderr
    message = "engine: ENGINE_PYTHON_LAYERS must be 0 or 1 (run the code of Python layers); got 'yes'"
    assert [line for line in done.stderr.splitlines() if "engine:" in line] == [message]


@pytest.mark.mpi
def test_ranks_inherit_the_consent(folder):
    mpiexec()
    done = run(folder, "train", *RUNNING["train"], "--python_layers", "--ranks", "2")
    assert done.returncode == 0 and done.stderr.count("EXECUTED") == 2, done.stderr


LOOKING = ("check net.prototxt", "check --run net.prototxt", "summarize net.prototxt", "draw_net net.prototxt net.dot")


@pytest.mark.parametrize("command", LOOKING)
def test_looking_never_imports(folder, command):
    """Commands that only look do not import it even if the environment holds consent to run. With --run they do not
    import it without consent."""
    variable = {} if "--run" in command else {"ENGINE_PYTHON_LAYERS": "1"}
    done = run(folder, *command.split(), **variable)
    assert "EXECUTED" not in done.stderr and "Traceback" not in done.stderr
    assert "layer 'user' (Python): its shapes are known to its author's code only" in done.stdout + done.stderr or (
        "Python layer that may not be imported" in done.stdout
    )


def test_a_net_whose_code_does_not_run_is_shown_without_shapes(folder):
    done = run(folder, "draw_net", "net.prototxt", "net.dot")
    text = (folder / "net.dot").read_text()
    assert done.returncode == 0 and "user (Python)" in text and "sum (Reduction)" in text
    labels = [label.strip() for label in re.findall(r'-> .*\[label="([^"]*)"\]', text)]
    assert "y: 64 x 3000" in labels and "z" in labels
    done = run(folder, "summarize", "net.prototxt")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert done.returncode == 0 and rows["total"][1:3] == ["4", "layers"] and rows["user"][-3:] == ["?", "?", "?"]
    assert "3,003,000" in rows["ip"] and "note: net.prototxt:5:1: layer 'user'" in done.stdout
    (folder / "net.prototxt").write_text(NET + 'layer { name: "odd" type: "Slice" bottom: "nothing" top: "w" }')
    done = run(folder, "draw_net", "net.prototxt", "other.dot")
    assert done.returncode == 0 and "drawn without shapes" in done.stderr and "'nothing'" in done.stderr


def test_check_finds_what_is_wrong_elsewhere(folder):
    report = check_file(str(folder / "net.prototxt"))
    assert report.errors == [] and len(report.refused) == 1 and "mine_of_consent" not in sys.modules
    (folder / "net.prototxt").write_text(NET + 'layer { name: "odd" type: "Slice" bottom: "nothing" top: "w" }')
    report = check_file(str(folder / "net.prototxt"))
    assert len(report.errors) == 1 and "nothing" in report.errors[0] and len(report.refused) == 1


@pytest.mark.skipif("ENGINE_SANITIZED" in os.environ, reason="the sanitizer maps more than a trial may have")
def test_check_run_with_consent_takes_a_step(folder):
    done = run(folder, "check", "--run", "--python_layers", "net.prototxt")
    assert done.returncode == 0 and "TRAIN: runs" in done.stdout, done.stdout + done.stderr


def test_a_library_refuses_as_well(folder, monkeypatch):
    monkeypatch.setattr(python, "_consent", [])
    with pytest.raises(python.ModuleRefused, match="not imported unasked"):
        Net(read_net(str(folder / "net.prototxt")), 1)


@pytest.mark.parametrize("file", ["net.prototxt", "input.prototxt"])
def test_a_program_that_makes_a_net_has_chosen_it_and_may_keep_its_arrays(folder, monkeypatch, file):
    """The arrays can be read after the net is gone, since they keep its memory alive."""
    monkeypatch.setattr(python, "_consent", [])
    net = caffe.Net(str(folder / file), caffe.TEST)
    if file == "input.prototxt":
        net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=(64, 1000))
    net.forward()
    kept = sys.modules.pop("mine_of_consent").Mine.kept
    before = [values.copy() for values in kept]
    del net
    gc.collect()
    filled = [np.ones(5_000_000, np.float32) for _ in range(5)]
    for values, expected in zip(kept, before, strict=True):
        np.testing.assert_array_equal(values, expected)
    assert filled


def test_a_net_with_a_python_layer_is_freed(folder):
    """The program holds a function of the layer. If the layer also held the program, the two would never be freed."""
    program = (
        "import gc, os, resource\nimport engine.caffe as caffe\n"
        "def used(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "sizes = []\n"
        "for _ in range(12):\n    net = caffe.Net('net.prototxt', caffe.TEST)\n    net.forward()\n    del net\n"
        "    caffe.layers\n    import mine_of_consent\n    mine_of_consent.Mine.kept.clear()\n"
        "    gc.collect()\n    sizes.append(used())\n"
        "print((sizes[-1] - sizes[3]) >> 20)\n"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True)
    assert int(done.stdout) < 30, "12 MB for each net"
