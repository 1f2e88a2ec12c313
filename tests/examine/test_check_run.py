"""`engine check --run`: nets take a step on synthetic data, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import main
from engine.examine import check_run
from engine.examine.check_run import Row, check_and_run, reason_of, run_apart, summary
from engine.examine.trial import Trial
from tests.shared import SHARED, needs_shared

REPO = Path(__file__).resolve().parents[2]
BROKEN = ("crash", "defect", "memory", "time", "not finite")

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "/none" batch_size: 5 }
  transform_param { crop_size: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{tmp_path}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" test_iter: 9 test_interval: 9 snapshot: 1'
    )
    return tmp_path


def run(*paths, stages=()):
    """Returns the rows of `engine check --run`."""
    return list(check_and_run(map(str, paths), (), 0, stages))


def test_a_net_is_trained_and_tested_in_small_batches(folder):
    train, test = run(folder / "net.prototxt")
    assert (train.phase, train.stage, test.phase, test.stage) == ("TRAIN", "runs", "TEST", "runs")
    assert train.outcome.batch == test.outcome.batch == 2
    assert train.outcome.outputs["loss"][0] > 0 and train.outcome.peak_bytes > 1 << 20


@pytest.mark.parametrize(
    "detections",
    [
        'type: "YoloDetectionOutput" yolo_detection_output_param { num_classes: 1 num_box: 1 biases: [1, 2] }',
        """type: "Yolov3DetectionOutput" yolov3_detection_output_param { num_classes: 1 num_box: 1 biases: [10, 20]
          mask: 0 mask_group_num: 1 anchors_scale: 8 confidence_threshold: 0.01 }""",
    ],
)
def test_boxes_of_a_yolo_that_is_not_trained_are_finite(folder, detections):
    (folder / "net.prototxt").write_text(f"""
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: [1, 3, 16, 16] }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{ num_output: 6 kernel_size: 1
  weight_filler {{ type: "gaussian" std: 4 }} }} }}
layer {{ name: "out" bottom: "conv" top: "out" {detections} }}""")
    rows = run(folder / "net.prototxt")
    assert rows[-1].stage == "runs", rows


def test_data_that_nobody_reads(folder):
    """The tops of the data are then outputs of the test net, one for each sample."""
    (folder / "net.prototxt").write_text(NET[: NET.index('layer { name: "ip"')])
    assert [row.stage for row in run(folder / "net.prototxt")][-1] == "runs"


@pytest.mark.parametrize("name", ["\U0001f600.prototxt", "\udcff.prototxt"])
def test_a_net_of_any_path(folder, name):
    assert [row.stage for row in run((folder / "net.prototxt").rename(folder / name))] == ["runs", "runs"]


def test_a_solver_takes_its_step_and_writes_nothing(folder):
    before = sorted(folder.iterdir())
    (row,) = run(folder / "solver.prototxt")  # the solver gives no max_iter
    assert (row.kind, row.phase, row.stage) == ("solver", "TRAIN", "runs")
    assert sorted(folder.iterdir()) == before


def test_a_solver_that_wants_several_ranks(folder):
    with open(folder / "solver.prototxt", "a") as solver:
        solver.write(" comm_param { elastic { min_ranks: 2 } }")
    (row,) = run(folder / "solver.prototxt")
    assert row.stage == "runs", row


def test_a_solver_whose_net_is_absent(folder):
    (folder / "net.prototxt").unlink()
    (row,) = run(folder / "solver.prototxt")
    assert (row.stage, row.lacks) == ("reads", True) and "net.prototxt" in row.message


def test_a_step_needs_no_folder_for_snapshots(folder):
    """If the net is absent, too, the message names the net, not the folder."""
    solver = folder / "solver.prototxt"
    solver.write_text(f'{solver.read_text()} snapshot_prefix: "{folder}/nowhere/x"')
    (row,) = run(solver)
    assert row.stage == "runs"
    (folder / "net.prototxt").unlink()
    (row,) = run(solver)
    assert row.lacks and "net.prototxt" in row.message and "nowhere" not in row.message


def test_nets_that_need_their_whole_batch(folder):
    reshape = 'layer { name: "r" type: "Reshape" bottom: "ip" top: "r" reshape_param { shape { dim: 5 dim: 3 } } }'
    (folder / "net.prototxt").write_text(NET.replace('bottom: "ip" bottom', 'bottom: "r" bottom') + reshape)
    text = (folder / "net.prototxt").read_text().split("\n")
    text[-2], text[-1] = text[-1], text[-2]  # the Reshape has to come before the loss
    (folder / "net.prototxt").write_text("\n".join(text))
    train, _ = run(folder / "net.prototxt")
    assert (train.stage, train.outcome.batch) == ("runs", 0)


def test_deploy_nets_are_tested_only(folder):
    deploy = 'input: "data" input_shape { dim: 10 dim: 3 dim: 4 dim: 4 }' + NET.split("\n")[3] + NET.split("\n")[4]
    (folder / "deploy.prototxt").write_text(deploy)
    (row,) = run(folder / "deploy.prototxt")
    assert (row.phase, row.stage, row.outcome.batch) == ("TEST", "runs", 2)


def test_reasons_of_those_that_do_not_run(folder, monkeypatch):
    (folder / "unknown.prototxt").write_text(NET.replace("SoftmaxWithLoss", "StrangeLoss"))
    (folder / "text.prototxt").write_text("no prototxt at all {")
    unknown, text = run(folder / "unknown.prototxt", folder / "text.prototxt")
    assert (unknown.stage, unknown.reason) == ("reads", "layer type StrangeLoss is not there")
    assert text.stage == "" and text.message
    (folder / "input.prototxt").write_text('input: "data" ' + "".join(NET.split("\n")[3:5]))
    (folder / "empty.prototxt").write_text("")
    shapeless, empty = run(folder / "input.prototxt", folder / "empty.prototxt")
    assert shapeless.reason == "input without a shape" and "layer[input].input_param" in shapeless.message
    assert empty.reason == "nothing in it"
    (folder / "nan.prototxt").write_text(NET.replace('type: "xavier"', "value: 1e38"))
    assert {row.reason for row in run(folder / "nan.prototxt")} == {"not finite"}
    monkeypatch.setattr(check_run, "TIME_LIMIT", 0.01)
    assert {row.reason for row in run(folder / "net.prototxt")} == {"time"}


def test_a_type_is_counted_whatever_its_fields(folder):
    strange = 'layer { name: "m" type: "PDB-LSTM" bottom: "ip" top: "m" pdb_param { x: 1 } relu_param { y: 2 } }'
    (folder / "net.prototxt").write_text(NET + strange)
    (row,) = run(folder / "net.prototxt")
    assert row.reason == "layer type PDB-LSTM is not there"


def test_a_net_that_lacks_only_its_data(folder):
    """The net fits none of the sizes that its data may have, and the message says so."""
    strict = 'layer { name: "r" type: "Reshape" bottom: "data" top: "r" reshape_param { shape { dim: 7 dim: 11 } } }'
    (folder / "net.prototxt").write_text(NET.replace("crop_size: 4", "").replace('bottom: "data"', 'bottom: "r"'))
    lines = (folder / "net.prototxt").read_text().split("\n")
    (folder / "net.prototxt").write_text("\n".join([*lines[:3], strict, *lines[3:]]))
    (row,) = run(folder / "net.prototxt")
    assert (row.reason, row.lacks) == ("its data are not here", True)
    assert "fits none of the sizes that its data may have" in row.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("n:3: layer 'x': unknown layer type 'Foo'; known", "layer type Foo is not there"),
        (
            "n:7:2: layer 'l': truncation_param is happynear's and is not supported; instead: a Python layer",
            "truncation_param is not supported",
        ),
        (
            "n:7:2: layer 'l': pool: DEF is yjxiong's, SSD's and is not supported; instead: x",
            "pool: DEF is not supported",
        ),
        ("n:1:1: net 'x', above all its layer 'l', needs 26.5 GB, 15.2 GB are free: lower batch_size", "memory"),
        ("n:7:2: layer 'l' (Python): module 'a' is neither in PYTHONPATH", "Python layer whose code is not there"),
    ],
)
def test_what_an_error_is_counted_under(message, reason):
    assert reason_of(message) == reason


def test_a_process_that_ends_badly_is_a_crash(folder, tmp_path):
    outcome = run_apart(Trial(str(folder / "net.prototxt"), "net", "TRAIN", level="no number"))
    assert outcome.reason == "defect" and "TypeError" in outcome.message
    outcome = run_apart(Trial("net.prototxt", "net", "TEST", overrides=None))
    assert outcome.reason == "crash" and "exit status 1" in outcome.message


def test_a_limit_of_memory_that_nobody_may_lift(folder):
    command = [sys.executable, "-m", "engine", "check", "--run", str(folder / "net.prototxt")]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -d 4000000; exec "$@"', "bash", *command], cwd=REPO, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "1 files: 1 read, 1 build, 1 run", done


USER_CODE = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }
layer { name: "y" type: "Python" bottom: "x" top: "y" python_param { module: "%s" layer: "Any" } }
"""


@pytest.mark.parametrize(
    "name, code, reason, told",
    [
        ("leaves", "import sys; sys.exit()", "refused", "import of leaves.Any failed"),
        ("ends", "import os; os._exit(0)", "crash", "exit status 0"),
        ("says", r"import os; os.write(2, b'\xff no text'); os._exit(3)", "crash", "exit status 3; \ufffd no text"),
    ],
)
def test_user_code_that_ends_the_process(folder, name, code, reason, told):
    (folder / f"{name}.py").write_text(code)
    (folder / "net.prototxt").write_text(USER_CODE % name)
    outcome = run_apart(Trial(str(folder / "net.prototxt"), "net", "TEST", python_layers=True))
    assert outcome.reason == reason and told in outcome.message


def test_what_is_counted():
    rows = [
        Row("a", "net", "TRAIN", "runs"),
        Row("a", "net", "TEST", "builds", "memory"),
        Row("b", "solver", "TRAIN", "runs"),
        Row("c", "net", "", "reads", "does not fit together"),
        Row("d", "", "", "", "cannot be read"),
    ]
    lines = summary(rows).splitlines()
    assert lines[0] == "4 files: 3 read, 2 build, 1 run"
    assert "    1  memory" in lines and "    1  cannot be read" in lines


def test_the_command(folder, capsys):
    assert main(["check", "--run", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in lines[:3]] == ["runs"] * 3
    assert lines[3] == "2 files: 2 read, 2 build, 2 run"
    (folder / "net.prototxt").write_text(NET.replace("SoftmaxWithLoss", "StrangeLoss"))
    assert main(["check", "--run", "--json", str(folder / "net.prototxt")]) == 1
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["stage"] == "reads" and "StrangeLoss" in row["reason"]
    assert main(["check", str(folder / "none")]) == 1


@pytest.mark.parametrize("name", ["nets/digits.prototxt", "nets/cifar10.prototxt", "solvers/digits.prototxt"])
def test_our_own_small_nets(name, monkeypatch):
    monkeypatch.chdir(REPO)
    rows = run(name)
    assert [row.stage for row in rows] == ["runs"] * len(rows) and rows, rows


@needs_shared("zoo")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bvlc/examples/mnist/lenet_train_test.prototxt", marks=pytest.mark.slow),
        pytest.param("bvlc/examples/mnist/mnist_autoencoder.prototxt", marks=pytest.mark.slow),
        "bvlc/examples/siamese/mnist_siamese_train_test.prototxt",
        "bvlc/examples/cifar10/cifar10_full_sigmoid_solver_bn.prototxt",
        "bvlc/examples/hdf5_classification/nonlinear_train_val.prototxt",
    ],
)
def test_a_handful_of_public_nets(name):
    rows = run(SHARED / "zoo" / name)
    assert [row.stage for row in rows] == ["runs"] * len(rows) and rows, rows


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_shared("zoo")
def test_public_nets_run_or_say_why_not():
    rows = run(*sorted((SHARED / "zoo").rglob("*.prototxt")))
    print(summary(rows))
    assert [row for row in rows if row.reason.startswith(BROKEN)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((REPO / "nets").glob("*.prototxt")), ids=lambda path: path.stem)
def test_our_own_nets(path, monkeypatch):
    monkeypatch.chdir(REPO)
    rows = run(path)
    assert [row.stage for row in rows] == ["runs"] * len(rows), rows
