"""The command line as a user meets it: help, options, errors, and verbs from end to end."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from engine import verbs
from engine.cli import main
from engine.config import read_net
from engine.verbs.command_line import parse, verb_names
from engine.weights import write_caffemodel
from tests.mpi import ENVIRON, run_ranks

REPO = Path(__file__).resolve().parents[2]
DIGITS = ["--solver", "solvers/digits.prototxt"]
# Other tests train this solver, too, and only one run at a time may have a prefix.
NO_SNAPSHOT = ["--set", "snapshot_after_train=false"]
VERBS = verb_names()


def start(*arguments, **options) -> subprocess.Popen:
    """Starts `engine` with these arguments."""
    environ = {**ENVIRON, **os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environ, text=True, **{"cwd": REPO, **streams, **options})


def engine(*arguments, **options) -> subprocess.CompletedProcess:
    """Runs `engine` with these arguments; returns the finished process."""
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def fails(*arguments) -> str:
    """Runs a command that must end with status 1 and one line on stderr; returns the line."""
    done = engine(*arguments)
    lines = [line for line in done.stderr.splitlines() if not re.match(r"[IW]\d{4} ", line)]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith("engine: ")
    return lines[0]


def test_help_names_every_verb():
    done = engine("--help")
    assert done.returncode == 0 and set(VERBS) <= set(done.stdout.split())
    assert re.search(r"VERB\n +train .*\n +test ", done.stdout)  # in the order that verbs give themselves


def test_each_file_is_a_verb_but_those_that_verbs_share():
    files = {path.stem for path in (REPO / "engine/verbs").glob("*.py")}
    assert files - set(VERBS) == {"__init__", "command_line", "options", "runtime"}


def test_without_a_verb_it_lists_them():
    done = engine()
    assert (done.returncode, done.stdout) == (2, "") and set(VERBS) <= set(done.stderr.split())


def test_version():
    done = engine("--version")
    assert done.returncode == 0 and re.fullmatch(r"engine \S.*\n", done.stdout)


def loaded_by(program: str) -> set[str]:
    """Returns the names of the modules that a program has loaded when it ends."""
    program += "\nimport sys; print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, text=True, capture_output=True, check=True)
    return set(done.stdout.partition("modules:")[2].split())


HEAVY = {"numpy", "google.protobuf", "lmdb", "PIL", "mpi4py", "psutil", "tabulate", "tqdm", "engine.proto"}


def test_help_imports_nothing_heavy():
    modules = loaded_by("from engine.cli import main; main(['--help'])")
    assert {f"engine.verbs.{verb}" for verb in VERBS} <= modules
    assert not (HEAVY | {"inspect", "subprocess", "engine.verbs.runtime"}) & modules


def test_verbs_import_when_they_run():
    modules = loaded_by(f"import importlib\nfor verb in {VERBS}: importlib.import_module('engine.verbs.' + verb)")
    own = {module for module in modules if module.startswith("engine.")}
    assert own == {"engine.errors", "engine.verbs", "engine.verbs.options", *(f"engine.verbs.{verb}" for verb in VERBS)}
    assert not HEAVY & modules


HELLO = '''"""Greets those who are named."""

SUMMARY = "greet people"
EXAMPLES = ["engine hello --name Ada"]


def add_arguments(parser):
    parser.add_argument("--name", required=True, help="whom to greet")


def run(options):
    print(f"Hello, {options.name}!")
    return 7
'''


def test_a_new_file_is_a_new_verb(tmp_path, monkeypatch, capsys):
    (tmp_path / "hello.py").write_text(HELLO)
    monkeypatch.setattr(verbs, "__path__", [*verbs.__path__, str(tmp_path)])
    try:
        assert main(["--help"]) == 0
        assert re.search(r"\n +hello +greet people\n\n", capsys.readouterr().out)  # it comes last
        assert main(["hello", "-name", "Ada"]) == 7 and capsys.readouterr().out == "Hello, Ada!\n"
        assert main(["hello", "--nam", "Ada"]) == 2
        assert "did you mean '--name'?" in capsys.readouterr().err
    finally:
        sys.modules.pop("engine.verbs.hello", None)
        vars(verbs).pop("hello", None)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_description_and_examples(verb, capsys):
    with pytest.raises(SystemExit) as left:
        parse([verb, "--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0 and f"examples:\n  engine {verb}" in text


@pytest.mark.parametrize("form", [["--solver", "x"], ["--solver=x"], ["-solver", "x"], ["-solver=x"]])
def test_flags_in_caffes_forms(form):
    assert parse(["check", "--", "-folder"]).files == ["-folder"]  # behind "--" it is a name
    options = parse(["train", *form, "-weights", "a,b", "--set", "max_iter=1", "--set", "base_lr=-2", "-stage=x,y"])
    assert options.solver == "x" and options.weights == ["a", "b"] and options.stage == ["x", "y"]
    assert options.set == ["max_iter=1", "base_lr=-2"]


def test_switches_and_backends_in_caffes_forms():
    options = parse(
        ["convert_imageset", "-backend=lmdb", "--shuffle=true", "--gray=false", "--noencoded", "root/", "db"]
    )
    assert (options.shuffle, options.gray, options.encoded) == (True, False, False)
    assert parse(["compute_image_mean", "-backend", "leveldb", "db", "mean.binaryproto"]).out == "mean.binaryproto"
    assert parse(["convert_imageset", "root", "--", "--noshuffle"]).paths == ["--noshuffle"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trane"],
        ["train"],
        ["train", "--solver", "x", "--snapshot", "y", "--weights", "z"],
        ["time", "--model", "x", "--iterations", "0"],
        ["predict", "--model", "x", "--ranks", "2,x"],
        ["predict", "--model", "x", "--ranks", "2", "--latency", "-1"],
        ["predict", "--model", "x", "--ranks", "2", "--bandwidth", "nan"],
        ["predict", "--model", "x", "--ranks", "2", "--images_per_second", "0"],
        ["verify", "--solver", "x", "--tolerance", "inf"],
        ["compare", "a", "b", "--tolerance", "nan"],
        ["time", "--model", "x", "--iterations", "1" * 5000],
        ["time", "--model", "x", "--iterations", "\N{ARABIC-INDIC DIGIT THREE}"],
        ["time", "--model", "x", "--memory_budget", "9" * 5000],
        ["check", "x", "--level", str(2**31)],
        ["convert_imageset", "a", "b", "--seed", "-1"],
        ["convert_imageset", "a", "b", "--backend", "leveldb"],
        ["convert_imageset", "a", "b", "--shuffle=maybe"],
        ["extract_features", "a", "b", "c", "d", "1", "lmdb", "TPU"],
        ["convert_imageset", "a", "b", "--seed", str(2**32)],
        ["convert_imageset", "a", "b", "--resize_height", "-1"],
        ["convert_imageset", "a", "b", "--resize_width", "65537"],
        ["classify", "--model", "x", "--weights", "y", "z", "--images_dim", "4,-4"],
        ["preview", "x.prototxt", "x.png", "--count", "1001"],
        ["generate", "x.caffemodel", "x.prototxt", "made", "x.png", "--count", "1001"],
        ["classify", "--model", "x", "--weights", "y", "z", "--input_scale", "nan"],
        ["classify", "--model", "x", "--weights", "y", "z", "--input_scale=-inf"],
        ["classify", "--model", "x", "--weights", "y", "z", "--input_scale", "1e300"],
        ["classify", "--model", "x", "--weights", "y", "z", "--input_scale", "half"],
        ["classify", "--model", "x", "--weights", "y", "z", "--mean_value", "1,2,1e300"],
    ],
)
def test_wrong_usage_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        parse(arguments)
    text = capsys.readouterr().err
    assert left.value.code == 2 and "usage: engine" in text and max(map(len, text.splitlines())) < 700


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["trian", "--solver", "x"], "unknown verb 'trian'; did you mean 'train'?"),
        (["xyz"], "unknown verb 'xyz'; known: average, check, "),
        (["train", "--solver", "x", "--snapsot", "y"], "arguments: --snapsot; did you mean '--snapshot'?"),
        (["train", "-slover=x"], "arguments: --slover; did you mean '--solver'?"),
        (["summarize", "--xyz", "x"], "unrecognized arguments: --xyz; NET has no flag\n"),
        (["check", "--model", "x"], "unrecognized arguments: --model; FILE has no flag\n"),
        (["plot_log", "a.log", "--output", "b.log"], "unrecognized arguments: --output; OUT and LOG have no flag\n"),
        (["test", "--iter", "3"], "unrecognized arguments: --iter; did you mean '--iterations'?"),
        (["train", "x.prototxt"], "'x.prototxt' has no flag; did you mean '--solver x.prototxt'?"),
        (["predict", "x.prototxt"], "'x.prototxt' has no flag; did you mean '--model x.prototxt'?"),
        (["--verson"], "arguments: --verson; did you mean '--version'?"),
        (
            ["train", "--solver", "x", "-gpu", "all"],
            "--gpu: this engine computes on processors, with all cores that it",
        ),
        (["train", "--solver", "x", "--gpus=0,1"], "--gpus: this engine computes on processors"),
        (["train", "--solver", "x", "--resume", "a_iter_5.solverstate"], "--snapshot FILE goes on from a .solverstate"),
    ],
)
def test_unknown_verbs_and_flags_are_met_with_the_nearest(arguments, expected, capsys):
    with pytest.raises(SystemExit) as left:
        parse(arguments)
    assert left.value.code == 2 and expected in capsys.readouterr().err


def test_a_factor_may_be_below_zero():
    asked = parse(
        ["classify", "--model", "x", "--weights", "y", "z", "--input_scale", "-0.5", "--mean_value", "1,-2e3"]
    )
    assert (asked.input_scale, asked.mean_value) == (-0.5, [1, -2000])


def test_a_solver_for_a_gpu_is_told_what_computes(tmp_path, capsys):
    text = Path("solvers/digits.prototxt").read_text().replace("solver_mode: CPU", "solver_mode: GPU")
    (tmp_path / "solver.prototxt").write_text(text.replace("nets/", f"{REPO}/nets/"))
    for path, told in ((tmp_path / "solver.prototxt", True), (REPO / "solvers/digits.prototxt", False)):
        assert main(["check", str(path)]) == 0
        line = "note: solver_mode: GPU is ignored, this engine computes on the processor"
        assert (line in capsys.readouterr().out) is told


def test_errors_are_one_line_each(tmp_path):
    assert "no_such.prototxt" in fails("train", "--solver", "no_such.prototxt")
    assert fails("train", "--solver", "solvers/digits.prototxt, no.prototxt").startswith("engine: no.prototxt: ")
    net = tmp_path / "net.prototxt"
    net.write_text('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }')
    (tmp_path / "empty.caffemodel").write_bytes(b"")
    fails("test", "--model", net, "--weights", tmp_path / "empty.caffemodel")  # it says nothing else
    assert "did you mean 'base_lr'?" in fails("train", *DIGITS, "--set", "base_lrr=1")
    assert "did you mean 'step'?" in fails("train", *DIGITS, "--set", "lr_policy=stepp", *NO_SNAPSHOT)
    assert f"{tmp_path}/no.caffemodel" in fails(
        "test", "--model", "nets/digits.prototxt", "--weights", tmp_path / "no.caffemodel"
    )
    (tmp_path / "data.mdb").write_bytes(b"x" * 100)
    line = fails("train", *DIGITS, *NO_SNAPSHOT, "--set", f"layer[data@TRAIN].data_param.source={tmp_path}")
    assert f"{tmp_path}" in line and "nets/digits.prototxt:3:1" in line
    assert "no folder /nowhere" in fails("train", *DIGITS, "--set", "snapshot_prefix=/nowhere/digits")


def test_training_tells_what_the_solver_says_twice(tmp_path):
    solver = tmp_path / "twice.prototxt"
    solver.write_text("base_lr: 0.5\n" + (REPO / "solvers/digits.prototxt").read_text())
    done = engine(
        "train", "--solver", solver, *NO_SNAPSHOT, "--set", "max_iter=1", "--set", f"snapshot_prefix={tmp_path}/x"
    )
    assert done.returncode == 0, done.stderr
    assert "'base_lr' is given twice; first in line 1; the last one counts" in done.stderr


def test_check_shows_all_errors(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.prototxt").write_text(f'layer {{ name: "{name}" type: "Nope" }}')
    done = engine("check", tmp_path / "a.prototxt", tmp_path / "b.prototxt", "solvers/digits.prototxt")
    assert done.returncode == 1 and "conv2" in done.stdout
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["layer 'a'", "layer 'b'"]


LISTED = """
layer { name: "d" type: "ImageData" top: "x" top: "y" transform_param { mean_file: "mean" }
  image_data_param { source: "train.txt" batch_size: 2 } annotated_data_param { label_map_file: "map" } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


@pytest.mark.parametrize(
    "words, name",
    [
        ("time --model net.prototxt", "./net.prototxt"),
        ("time --data solver.prototxt", "solver.prototxt"),
        ("time --data solver.prototxt", "net.prototxt"),
        ("time --model net.prototxt --kernels table", "table"),
        ("find_rate --solver solver.prototxt", "solver.prototxt"),
        ("find_rate --solver solver.prototxt", "test.prototxt"),
        ("find_rate --solver solver.prototxt --weights a,b", "b"),
        ("doctor --solver solver.prototxt,solver.prototxt", "solver.prototxt"),
        ("doctor --solver solver.prototxt", "net.prototxt"),
        ("test --model net.prototxt --weights a", "a"),
        ("test --model net.prototxt --weights a", "net.prototxt"),
        ("predict --profile table --ranks 2 --latency 1 --bandwidth 1", "table"),
        ("predict --model net.prototxt --ranks 2 --latency 1 --bandwidth 1", "net.prototxt"),
        ("test --model listed.prototxt --weights a", "train.txt"),
        ("test --model listed.prototxt --weights a", "mean"),
        ("test --model listed.prototxt --weights a", "map"),
        ("test --model listed.prototxt --weights a --set layer[d].image_data_param.source=b", "b"),
        ("test --model listed.prototxt --weights a --set layer[d].image_data_param.source=db", "db/data.mdb"),
        ("find_rate --solver solver.prototxt --set net=listed.prototxt", "train.txt"),
        ("find_rate --solver solver.prototxt --set weights=a,b", "b"),
    ],
)
def test_json_goes_into_no_file_that_is_read(tmp_path, monkeypatch, capsys, words, name):
    monkeypatch.chdir(tmp_path)
    for each in ("net.prototxt", "test.prototxt"):
        shutil.copy(REPO / "nets/digits.prototxt", each)
    for each in ("a", "b", "table", "train.txt", "mean", "map"):
        Path(each).write_text(each)
    Path("listed.prototxt").write_text(LISTED)
    shutil.copytree(REPO / "examples/digits/digits_test_lmdb", "db")
    text = 'net: "net.prototxt" test_net: "test.prototxt" test_iter: 1 test_interval: 5 base_lr: 1 lr_policy: "fixed"'
    Path("solver.prototxt").write_text(text)
    before = Path(name).read_bytes()
    assert main([*words.split(), "--json", name]) == 1
    told = f"engine: {name}: cannot be written: it is a file that is read; choose another name"
    assert told in capsys.readouterr().err.splitlines()
    assert Path(name).read_bytes() == before


@pytest.mark.parametrize("name", ["solver.prototxt", "a", "net.prototxt", "train.txt"])
def test_a_timeline_goes_into_no_file_that_is_read(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 1 lr_policy: "fixed"')
    Path("net.prototxt").write_text(LISTED)
    for each in ("a", "train.txt"):
        Path(each).write_text(each)
    assert main(["train", "--solver", "solver.prototxt", "--snapshot", "a", "--timeline", name]) == 1
    assert f"engine: {name}: cannot be written: it is a file that is read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "find_rate --solver solver.png --output solver.png",
        "find_rate --solver solver.png --output x.png --set layer[d].image_data_param.source=x.png.csv",
        "check solver.png --plot solver.png",
        "check solver.png --plot net.svg",
        "draw_net net.svg net.svg",
        "preview net.png net.png",
        "generate a net.png x net.png",
        "generate net.png net.svg x net.png",
        "plot_log net.png net.png",
    ],
)
def test_no_picture_takes_the_place_of_a_file_that_is_read(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    shutil.copy(REPO / "nets/digits.prototxt", "net.png")
    Path("net.svg").write_text(LISTED.replace("train.txt", "list").replace('mean_file: "mean"', "crop_size: 4"))
    Path("solver.png").write_text('net: "net.svg" base_lr: 1 lr_policy: "fixed" max_iter: 5')
    Image.new("RGB", (4, 4)).save("a.png")
    for each in ("a", "list", "x.png.csv"):
        Path(each).write_text("a.png 1\n")
    before = {each: each.read_bytes() for each in Path().iterdir()}
    assert main(words.split()) == 1
    assert "cannot be written: it is a file that is read; choose another name" in capsys.readouterr().err
    assert {each: each.read_bytes() for each in Path().iterdir()} == before


@pytest.mark.parametrize("name", ["labels.csv", "ip_labels.csv", "ip_2_labels.csv"])
def test_no_report_takes_the_place_of_a_file_that_is_read(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(LISTED.replace("train.txt", name))
    Path(name).write_text("a.png 1\n")
    Path("a").write_text("a")
    assert main("test --model net.prototxt --weights a --report .".split()) == 1
    told = f"engine: --report .: would replace {name}, which the net reads; choose another folder"
    assert told in capsys.readouterr().err.splitlines()
    assert Path(name).read_text() == "a.png 1\n"


def test_check_json():
    done = engine("check", "--json", "solvers/digits.prototxt")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and [net["phases"] for net in found["files"][0]["nets"]] == [["TRAIN"], ["TEST"]]


def test_device_query():
    found = json.loads(engine("device_query", "--json").stdout)
    assert found["onednn"] and found["cores_allowed"] == sorted(os.sched_getaffinity(0))


def test_time(tmp_path):
    done = engine("time", "--model", "nets/digits.prototxt", "--iterations", "2", "--json", tmp_path / "times.json")
    assert done.returncode == 0 and "images_per_second" in done.stdout
    assert json.loads((tmp_path / "times.json").read_text())["images_per_second"] > 0


MODEL = ["--model", "nets/digits.prototxt", "--iterations", "1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["time", *MODEL], "images_per_second: "),
        (["time", "--data", "solvers/digits.prototxt", "--iterations", "1"], "Decoding threads"),
        (["predict", *MODEL, "--ranks", "2", "--latency", "1", "--bandwidth", "1"], "efficiency"),
        (["find_rate", "--solver", "solvers/digits.prototxt", "--iterations", "5"], "The loss"),
        (["doctor"], "oneDNN"),
    ],
)
def test_on_stdout_json_is_alone(arguments, told):
    """Whatever else is told goes to stderr, so that stdout can be parsed."""
    done = engine(*arguments, "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout) and told in done.stderr


def test_images_to_trained_net(tmp_path, monkeypatch):
    """Images of two kinds become an LMDB and a mean. A net trains on them and is tested, and the log has Caffe's
    form."""
    monkeypatch.setenv("ENGINE_CURVE", "1")
    for kind, value in (("dark", 20), ("light", 230)):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (8, 8), (value, value, value + number)).save(tmp_path / f"images/{kind}/{number}.png")
    done = engine("convert_imageset", tmp_path / "images", tmp_path / "lmdb", "--shuffle")
    assert done.returncode == 0 and "Wrote 16 images" in done.stderr
    done = engine("compute_image_mean", tmp_path / "lmdb", tmp_path / "mean.binaryproto")
    assert done.returncode == 0 and "mean_value channel [2]: 125" in done.stderr
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(f"""
        name: "kinds"
        layer {{ name: "data" type: "Data" top: "data" top: "label"
          data_param {{ source: "{tmp_path}/lmdb" batch_size: 4 }}
          transform_param {{ mean_file: "{tmp_path}/mean.binaryproto" scale: 0.01 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
        layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
          include {{ phase: TEST }} }}
    """)
    solver.write_text(
        f'net: "{net}" base_lr: 0.01 lr_policy: "fixed" max_iter: 20 display: 10 test_iter: 4 test_interval: 10 '
        f'snapshot_prefix: "{tmp_path}/kinds"'
    )
    done = engine("train", "--solver", solver)
    assert done.returncode == 0, done.stderr
    assert all(re.match(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.py:\d+\] ", line) for line in done.stderr.splitlines())
    for expected in ("Solving kinds", "Iteration 10, Testing net (#0)", "Iteration 10, lr = 0.01", "Test net output #"):
        assert expected in done.stderr
    assert (tmp_path / "kinds_iter_20.solverstate").exists() and (tmp_path / "kinds_curve.png").exists()
    done = engine("test", "--model", net, "--weights", tmp_path / "kinds_iter_20.caffemodel", "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)["accuracy"] == [1.0]


def test_undecodable_images(tmp_path):
    (tmp_path / "images/a").mkdir(parents=True)
    (tmp_path / "images/a/bad.png").write_bytes(b"no picture")
    Image.new("RGB", (8, 8)).save(tmp_path / "images/a/good.png")
    assert "bad.png" in fails("convert_imageset", tmp_path / "images", tmp_path / "lmdb")
    assert not (tmp_path / "lmdb").exists()
    done = engine("convert_imageset", tmp_path / "images", tmp_path / "lmdb", "--skip_bad_images")
    assert done.returncode == 0 and "Skipped 1 images" in done.stderr and "a/bad.png" in done.stderr


def test_interrupt_ends_with_130():
    # Background jobs of a shell ignore SIGINT, and so would processes that they start.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = start("time", "--model", "nets/digits.prototxt", "--iterations", "1000000", preexec_fn=heed)
    try:
        while (used := psutil.Process(process.pid).cpu_times()).user + used.system < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and err.splitlines()[-1] == "interrupted"


def test_a_closed_pipe_is_no_defect():
    shell = f"{sys.executable} -m engine check solvers/digits.prototxt | head -n 1"
    done = subprocess.run(["bash", "-c", shell], cwd=REPO, text=True, capture_output=True, timeout=60, check=False)
    assert done.stderr == ""


# Under mpiexec


def on_ranks(ranks: int, *arguments, timeout: float = 90) -> subprocess.CompletedProcess:
    return run_ranks(ranks, ["-m", "engine", *map(str, arguments)], timeout=timeout)


@pytest.fixture
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


@pytest.mark.mpi
def test_two_ranks_train_and_test(tmp_path, in_repo):
    prefix = tmp_path / "digits"
    done = on_ranks(
        2,
        *("train", *DIGITS, "--set", "max_iter=150", "--set", f"snapshot_prefix={prefix}"),
        *("--timeline", tmp_path / "t.json"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Solving digits") == 1
    accuracy = float(re.findall(r"Test net output #\d+: accuracy = (\S+)", done.stderr)[-1])
    assert accuracy > 0.97
    names = {
        event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["pid"] == 1
    }
    assert {"conv2 fwd", "conv2 bwd"} <= names and any(name.startswith("reduce ") for name in names)
    model = ["--model", "nets/digits.prototxt", "--weights", f"{prefix}_iter_150.caffemodel"]
    for ranks in (1, 2):
        assert on_ranks(ranks, "test", *model, "--json", tmp_path / f"{ranks}.json").returncode == 0
    one, two = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2))
    assert one["accuracy"] == two["accuracy"] == [pytest.approx(accuracy, abs=1e-5)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["train", *DIGITS, "--set", "base_lrr=1"], "base_lr"),
        (
            ["train", *DIGITS, *NO_SNAPSHOT, "--set", "layer[data@TRAIN].data_param.source=/nowhere/lmdb"],
            "/nowhere/lmdb",
        ),
    ],
)
def test_an_error_of_all_ranks_is_printed_once(arguments, expected, in_repo):
    done = on_ranks(2, *arguments)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert len(lines) == 1 and expected in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(
    "arguments",
    [
        ["extract_features", "x.caffemodel", "nets/digits.prototxt", "label", "labels", "1"],
        ["check", "solvers/digits.prototxt", "--json"],
    ],
)
def test_a_verb_of_one_process_is_not_run_by_several(arguments, in_repo):
    done = on_ranks(2, *arguments)
    assert done.returncode != 0 and done.stdout == "" and not os.path.exists("labels")
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert len(lines) == 1
    told = rf"engine: {arguments[0]} runs on one rank; start it without .*mpiexec \(exit status 1\)"
    assert re.fullmatch(told, lines[0])


@pytest.mark.mpi
def test_an_error_of_one_rank_ends_the_others_and_names_it(tmp_path, in_repo):
    # %# stands for the rank: the data of rank 1 does not exist.
    shutil.copytree("examples/digits/digits_train_lmdb", tmp_path / "part0")
    source = f"layer[data@TRAIN].data_param.source={tmp_path}/part%#"
    done = on_ranks(2, "train", *DIGITS, *NO_SNAPSHOT, "--set", source)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert len(lines) == 1 and lines[0].startswith("engine: [rank 1] ") and "part1" in lines[0]
    assert lines[0].endswith(" (exit status 1)")  # whichever status the launcher returns


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 1])
def test_json_goes_into_no_file_that_a_rank_reads(tmp_path, rank):
    """The other rank has nothing against it and waits for the first, but must end, too."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for each in (0, 1):
        (tmp_path / f"list_{each}_of_2.txt").write_text("a.png 0\n" * 4)
    text = LISTED.replace('transform_param { mean_file: "mean" }', "")
    text = re.sub("annotated_data_param {.*?}", "", text).replace(
        "batch_size: 2", f'batch_size: 2 root_folder: "{tmp_path}/"'
    )
    net, name = tmp_path / "net.prototxt", tmp_path / f"list_{rank}_of_2.txt"
    net.write_text(text.replace("train.txt", f"{tmp_path}/list_%#_of_%*.txt"))
    blobs = [np.zeros((2, 192), np.float32), np.zeros(2, np.float32)]
    write_caffemodel(tmp_path / "x.caffemodel", read_net(net).message, {"ip": blobs})
    done = on_ranks(2, "test", "--model", net, "--weights", tmp_path / "x.caffemodel", "--json", name)
    assert done.returncode != 0 and f"{name}: cannot be written: it is a file that is read" in done.stderr
    assert name.read_text() == "a.png 0\n" * 4


@pytest.mark.mpi
def test_all_ranks_samples_and_bad_images_are_told(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "list_0.txt").write_text("good.png 0\n" * 4)
    (tmp_path / "list_1.txt").write_text("good.png 0\nbad.png 1\ngood.png 0\n" * 2)
    net = tmp_path / "net.prototxt"
    net.write_text(f"""
        layer {{ name: "data" type: "ImageData" top: "data" top: "label" image_data_param {{
          source: "{tmp_path}/list_%#.txt" root_folder: "{tmp_path}/" batch_size: 2 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 2 }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
    """)
    blobs = [np.zeros((2, 192), np.float32), np.zeros(2, np.float32)]
    write_caffemodel(tmp_path / "x.caffemodel", read_net(net).message, {"ip": blobs})
    done = on_ranks(2, "test", "--model", net, "--weights", tmp_path / "x.caffemodel", "--skip_bad_images")
    assert done.returncode == 0, done.stderr
    assert "Testing all 10 samples." in done.stderr and "Skipped 2 images" in done.stderr and "bad.png" in done.stderr


def test_a_verb_of_one_solver_says_so_of_several(capfd):
    assert main(["find_rate", "--solver", "a.prototxt, b.prototxt"]) == 1
    assert "engine: find_rate takes one solver, got 2: a.prototxt, b.prototxt" in capfd.readouterr().err
