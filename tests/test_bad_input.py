"""Wrong input gets one clear line and exit status 1 on every rank, and nothing is written or overwritten."""

import hashlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from engine import proto
from tests.mpi import REPO, mpiexec, run_ranks
from tests.verbs.test_cli import engine

DIGITS = REPO / "examples/digits"
NET = (REPO / "nets/digits.prototxt").read_text().replace("examples/digits/", f"{DIGITS}/")
SOLVER = (
    'net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" max_iter: 4 momentum: 0.9 '
    'snapshot_prefix: "out/d" snapshot: 2 display: 1'
)
ADDITION = 'layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "conv1" top: "sum" }'


def write(folder: Path, net: str = NET, solver: str = SOLVER) -> Path:
    """Writes a net and a solver; returns the folder."""
    (folder / "out").mkdir(exist_ok=True)
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(solver)
    return folder


def train(folder: Path, *flags: str, ranks: int = 1) -> subprocess.CompletedProcess:
    """Runs `engine train` in a folder; returns the finished process."""
    arguments = ["-m", "engine", "train", "--solver", "solver.prototxt", *flags]
    os.chdir(folder)
    if ranks > 1:
        return run_ranks(ranks, arguments)
    environ = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environ, text=True, capture_output=True, timeout=60)


def refused(done: subprocess.CompletedProcess) -> str:
    """Checks that a run failed as it should; returns the one line that the engine has said."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert done.returncode == 1 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Makes an empty folder the current one, and returns it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


TEXTS = {
    "typo in the net": (
        NET.replace("kernel_size: 3", "kernal_size: 3", 1),
        r"net.prototxt:39:9: layer 'conv1': "
        r"unknown field 'kernal_size' in ConvolutionParameter; did you mean 'kernel_size'",
    ),
    "unknown type": (
        NET.replace('"Convolution"', '"Convolutoin"', 1),
        r"net.prototxt:30:1: layer 'conv1': unknown "
        r"layer type 'Convolutoin'; did you mean 'Convolution'",
    ),
    "cycle": (NET.replace('bottom: "data"', 'bottom: "ip1"', 1), r"layer 'conv1'.*cycle: conv1 -> .* -> ip1 -> conv1"),
    "missing bottom": (
        NET.replace('bottom: "conv1"', 'bottom: "conv11"', 1),
        r"net.prototxt:44:1: layer 'relu1'.*no "
        r"layer makes its bottom 'conv11'; did you mean 'conv1'",
    ),
    "shapes": (
        NET + ADDITION,
        r"layer 'sum' \(Eltwise\): expected bottoms of one shape, \(32, 1, 8, 8\), got \(32, "
        r"32, 8, 8\)",
    ),
    "missing lmdb": (NET.replace("digits_train_lmdb", "nowhere"), r"net.prototxt:3:1: LMDB not found: .*nowhere"),
    "label": (
        NET.replace("num_output: 10", "num_output: 7"),
        r"iteration 0: .*net.prototxt:\d+:1: layer 'loss': label \d at position \d+ is "
        r"outside \[0, 7\); the label needs at least (8|9|10) outputs, there are 7. Its key is '0.*' in .*_lmdb\.",
    ),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_wrong_net(what, here):
    net, message = TEXTS[what]
    assert re.search(message, refused(train(write(here, net))))
    assert not list((here / "out").iterdir())


@pytest.mark.mpi
@pytest.mark.parametrize("what", ["typo in the net", "missing lmdb", "label"])
def test_a_wrong_net_on_two_ranks(what, here):
    net, message = TEXTS[what]
    assert re.search(message, refused(train(write(here, net), ranks=2)))


def test_a_typo_in_the_solver(here):
    message = refused(train(write(here, solver=SOLVER.replace("base_lr", "bas_lr"))))
    assert "solver.prototxt:1:21: unknown field 'bas_lr' in SolverParameter; did you mean 'base_lr'" in message


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
def test_a_loss_that_is_not_a_number(ranks, here):
    net = NET[: NET.index('layer {\n    name: "conv1"')]
    net += (
        'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" '
        'inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
    )
    solver = SOLVER.replace("0.05", "1e38").replace("snapshot: 2", "").replace("max_iter: 4", "max_iter: 50")
    message = refused(train(write(here, net, solver), ranks=ranks))
    assert re.search(r"iteration \d+: the loss is -?(nan|inf); layer 'ip' is the first", message)
    assert not [path for path in (here / "out").iterdir() if path.suffix not in (".lock", ".csv")]


def test_a_truncated_lmdb(here):
    (here / "cut").mkdir()
    whole = (DIGITS / "digits_train_lmdb/data.mdb").read_bytes()
    (here / "cut/data.mdb").write_bytes(whole[: len(whole) // 2])
    message = refused(train(write(here, NET.replace(str(DIGITS / "digits_train_lmdb"), str(here / "cut")))))
    assert f"cut/data.mdb is truncated: {len(whole) // 2} bytes, its header says {len(whole)}" in message


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_an_undecodable_image(here):
    with lmdb.open(str(here / "images"), map_size=1 << 24) as environment, environment.begin(write=True) as items:
        for i in range(40):
            data = b"no picture" if i == 7 else picture(i)
            datum = proto.Datum(channels=1, height=8, width=8, data=data, label=i % 10, encoded=True)
            items.put(b"%08d" % i, datum.SerializeToString())
    folder = write(here, NET.replace(str(DIGITS / "digits_train_lmdb"), str(here / "images")))
    assert "key '00000007': cannot decode 10 bytes as an image" in refused(train(folder))
    done = train(folder, "--skip_bad_images")
    assert done.returncode == 0 and "Skipped 1 undecodable images" in done.stderr, done.stderr
    two = train(folder, "--skip_bad_images", "--set", "layer[data@TRAIN].data_param.batch_size=4", ranks=2)
    assert two.returncode == 0 and "Skipped 1 undecodable images" in two.stderr, two.stderr
    failed = train(folder, "--skip_bad_images", "--set", "base_lr=1e38", "--set", "max_iter=50", "--set", "snapshot=0")
    assert refused(failed) and "Skipped 1 undecodable images" in failed.stderr, failed.stderr
    write(here, NET.replace(str(DIGITS / "digits_test_lmdb"), str(here / "images")))
    tests = ("test_iter=1", "test_interval=100", "test_initialization=false")  # one test, when the run is over
    last = train(folder, "--skip_bad_images", *(word for each in tests for word in ("--set", each)))
    assert last.returncode == 0 and "Skipped 1 undecodable images" in last.stderr, last.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Returns a folder with snapshots of iterations 2 and 4."""
    folder = write(tmp_path_factory.mktemp("trained"))
    before = Path.cwd()
    done = train(folder)
    os.chdir(before)
    assert done.returncode == 0, done.stderr
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


SHAPE = "layer[ip1].inner_product_param.num_output=50"
FILES = {
    "truncated weights": (["--weights", "cut.caffemodel"], "cut.caffemodel: truncated or not a caffemodel"),
    "truncated state": (["--snapshot", "cut.solverstate"], "cut.solverstate: truncated or not a solverstate"),
    "other shape": (
        ["--weights", "out/d_iter_4.caffemodel", "--set", SHAPE],
        "layer 'ip1', blob 0: the file has 128 x 1024, the net 50 x 1024",
    ),
    "no such file": (["--weights", "nowhere.caffemodel"], "nowhere.caffemodel: cannot be read: No such file"),
}


@pytest.mark.parametrize("what", FILES)
def test_wrong_files(what, trained, monkeypatch):
    monkeypatch.chdir(trained)
    for kind in ("caffemodel", "solverstate"):
        whole = (trained / f"out/d_iter_4.{kind}").read_bytes()
        (trained / f"cut.{kind}").write_bytes(whole[: len(whole) // 3])
    before = digests(trained / "out")
    flags, message = FILES[what]
    assert message in refused(train(trained, *flags))
    assert digests(trained / "out") == before


def test_a_full_disk_at_a_snapshot(here):
    """A limit on the size of files stands for the full disk."""
    folder = write(here)
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from engine.cli import main; sys.exit(main(['train', '--solver', 'solver.prototxt']))"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, text=True, capture_output=True, timeout=60)
    assert "out/d_iter_2.caffemodel: cannot be written: File too large" in refused(done)
    left = [path.name for path in (folder / "out").iterdir()]
    assert left in ([], ["d_curve.csv"])  # neither an incomplete file nor a temporary one


@pytest.mark.mpi
def test_a_launcher_without_mpi4py(here):
    mpiexec()
    blocker = here / "blocked"
    blocker.mkdir()
    (blocker / "mpi4py.py").write_text("raise ImportError('blocked by this test')")
    write(here)
    environ = {**os.environ, "PYTHONPATH": f"{blocker}{os.pathsep}{REPO}", "PMI_RANK": "0", "PMI_SIZE": "2"}
    arguments = [sys.executable, "-m", "engine", "train", "--solver", "solver.prototxt"]
    done = subprocess.run(arguments, env=environ, text=True, capture_output=True, timeout=60)
    assert "mpi4py" in refused(done) and "pip install" in refused(done)


# Sources of data, Python layers, communication, files to be written

LEARN = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def data_layer(kind: str, param: str, more: str = "") -> str:
    return f'layer {{ name: "data" type: "{kind}" top: "data" top: "label" {param} {more} }}{LEARN}'


IMAGES = data_layer("ImageData", 'image_data_param { source: "list.txt" batch_size: 2 }')
WINDOWS = data_layer(
    "WindowData", 'window_data_param { source: "list.txt" batch_size: 4 }', "transform_param { crop_size: 8 }"
)
WINDOW_FILE = "# 0\na.png\n3\n16\n16\n2\n1 0.9 0 0 8 8\n0 0.1 4 4 12 12\n"
SOURCES = {
    "no list": (IMAGES, None, "net.prototxt:1:1: list.txt: cannot be read: No such file or directory"),
    "an empty list": (IMAGES, "", "net.prototxt:1:1: list.txt has no lines in it"),
    "a line without a label": (IMAGES, "a.png 1\nb.png\n", "list.txt:2: expected `relative/path label`; got 'b.png'"),
    "a missing picture": (
        IMAGES,
        "a.png 1\nnone.png 1\n",
        "net.prototxt:1:1: list.txt: none.png: cannot be read: No such file or directory",
    ),
    "no window file": (WINDOWS, None, "net.prototxt:1:1: list.txt: cannot be read: No such file or directory"),
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
    """The message shows lines of the user's own code, and no others."""
    text, message, most = MODULES[what]
    Path("mine.py").write_text(text)
    done = train(write(here, PYTHON), "--python_layers")
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert done.returncode == 1 and lines[0].startswith(f"engine: net.prototxt:2:1: layer 'user' (Python): {message}")
    assert 1 <= len(lines) <= most and "importlib" not in done.stderr, done.stderr


def test_a_python_layer_without_names(here):
    message = refused(train(write(here, PYTHON.replace('module: "mine"', "")), "--python_layers"))
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
    done = run_ranks(3, ["-m", "engine", "train", "--solver", "x", "--watchdog", "soon"])
    assert done.returncode == 2
    assert done.stderr.count("expected seconds, 0 or more, got 'soon'") == 1 and done.stderr.count("usage") == 1
