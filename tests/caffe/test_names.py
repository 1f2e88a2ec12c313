"""The three ways to import the interface."""

import pydoc
import subprocess
import sys

import pytest

import engine
import engine.caffe
from tests.mpi import REPO

SCRIPT = """
assert {"AbsVal", "Accuracy"} <= {*caffe.layer_type_list()} and caffe.layer_type_list()[0] == "AbsVal"
assert (caffe.TRAIN, caffe.TEST) == (0, 1)
assert caffe.proto.caffe_pb2.Phase.Name(1) == "TEST"
assert caffe.layers.Convolution(caffe.layers.Input(), num_output=2).to_proto().layer[1].name == "Convolution1"
assert caffe.params.Pooling.MAX == 0
assert caffe.io.Transformer and caffe.Net and caffe.SGDSolver and caffe.Classifier and caffe.coord_map.crop
assert caffe.classifier.Classifier is caffe.Classifier and caffe.detector.Detector is caffe.Detector
assert caffe.pycaffe.Net is caffe._caffe.Net is caffe.Net and caffe.pycaffe.SGDSolver is caffe.SGDSolver
caffe.set_mode_cpu(); caffe.set_random_seed(3); caffe.init_log(); caffe.log("a line")
"""
IMPORTS = {
    "engine": "import engine as caffe",
    "engine.caffe": "import engine.caffe as caffe",
    "caffe": """
import engine.caffe
engine.caffe.install()
import caffe, caffe.io
from caffe import layers as L, params as P, NetSpec
from caffe.proto import caffe_pb2
from caffe.io import load_image
import caffe.proto.caffe_pb2
from caffe.coord_map import crop
from caffe._caffe import SGDSolver
import caffe.pycaffe as pycaffe
assert pycaffe.Net is caffe.Net
assert caffe is engine.caffe and caffe.Layer and L.ReLU
""",
}


@pytest.mark.parametrize("way", IMPORTS)
def test_imports(way):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS[way] + "\n" + SCRIPT], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("a line\n")


def test_modules_that_a_fork_adds_to_the_package(tmp_path):
    """docs/python.md tells how to add SSD's caffe.model_libs."""
    (tmp_path / "model_libs.py").write_text("from caffe import layers as L\ndef layer(): return L.Input()")
    script = f"""
import engine.caffe; engine.caffe.install()
import caffe
caffe.__path__.append({str(tmp_path)!r})
from caffe.model_libs import *
assert layer().to_proto().layer[0].type == "Input"
"""
    subprocess.run([sys.executable, "-c", script], cwd=REPO, check=True)


def test_engine_has_all_of_the_interface():
    assert engine._INTERFACE | {"layers", "proto"} == {*engine.caffe.__all__}
    for name in engine._INTERFACE:
        assert getattr(engine, name) is getattr(engine.caffe, name)
    with pytest.raises(AttributeError, match="'engine' has no attribute 'Nt'"):
        engine.Nt  # noqa: B018


def test_names_can_be_completed():
    assert engine._INTERFACE | {"layers", "proto", "caffe", "__version__"} <= {*dir(engine)}
    solvers = {"SGDSolver", "AdamSolver", "NesterovSolver", "get_solver"}
    assert solvers <= {*dir(engine.caffe)} and solvers <= {*dir(engine)}


def test_a_solver_s_help_says_what_it_does():
    text = pydoc.plain(pydoc.render_doc(engine.caffe.AdamSolver))
    assert 'A solver of type: "Adam", whatever its file says.' in text and "Ctrl-C ends step() and solve()" in text


def test_there_is_one_version():
    """Only the interface has another version: that of Caffe, which scripts compare."""
    project = (REPO / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and 'version = { attr = "engine.__version__" }' in project
    assert engine.__version__ == "0.1.0" and engine.caffe.__version__ == "1.0.0"


def test_importing_engine_is_light():
    program = "import engine, sys; assert 'numpy' not in sys.modules; assert not hasattr(engine, 'x')"
    subprocess.run([sys.executable, "-c", program], cwd=REPO, check=True)
