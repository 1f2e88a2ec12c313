"""`engine test --report` on any number of ranks says what scikit-learn says of all samples at once."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from engine.cli import main
from engine.comm.world import World
from engine.config import parse_net
from engine.data.mean import write_mean
from engine.errors import ConfigError
from engine.inference.evaluator import Evaluator
from engine.inference.judges import Judges, require_judges, scored_blobs
from engine.report.scorecard import Scorecard
from engine.weights import write_caffemodel
from tests.mpi import REPO, run_ranks
from tests.solver.harness import DIGITS

h5py = pytest.importorskip("h5py")

DATA = (
    'layer { name: "data" type: "HDF5Data" top: "x" top: "y" hdf5_data_param { source: "%s/list.txt" batch_size: 16 } }'
)
SEVERAL = DATA + 'layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "x" bottom: "y" top: "loss" %s }'
PIXELS = (
    DATA
    + """
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "y" top: "loss" loss_param { ignore_label: 255 } }"""
)


def data(folder, x, y):
    """Writes x and y for an HDF5Data; returns the folder."""
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "data.h5", "w") as file:
        file["x"], file["y"] = np.asarray(x, np.float32), np.asarray(y, np.float32)
    (folder / "list.txt").write_text(f"{folder}/data.h5\n")
    return folder


def report(folder, net, *more):
    """Runs `engine test --report` for a net without weights; returns its report.json."""
    (folder / "net.prototxt").write_text(net)
    write_caffemodel(folder / "net.caffemodel", parse_net(net, "net").message, {})
    arguments = ["test", "--model", f"{folder}/net.prototxt", "--weights", f"{folder}/net.caffemodel"]
    assert main([*arguments, "--report", f"{folder}/report", *more]) == 0
    blobs = scored_blobs(parse_net(net, "net").message)
    assert len(Scorecard(f"{folder}/report").older(blobs)) == len(list((folder / "report").iterdir()))
    return json.loads((folder / "report/report.json").read_text())


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def metrics():
    """Returns scikit-learn's metrics. Importing them takes seconds, so it is done only when a test runs."""
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.fixture
def several(tmp_path):
    """Writes 150 samples with five labels; returns the folder, the scores and the labels. There are many ties of
    scores, a label that each sample has, and labels of -1, which do not count."""
    random = np.random.default_rng(4)
    there = (random.random((150, 5)) < [0.1, 0.5, 0.9, 0.3, 1.0]).astype(np.float32)
    scores = np.round((there + random.normal(0, 1, there.shape)) * [8, 2, 1, 4, 4]) / 4
    there[random.random(there.shape) < 0.1] = -1
    return data(tmp_path / "data", scores, there), scores, there


def expected(metrics, scores, there):
    """Returns scikit-learn's AUROC of the first four labels."""
    return [metrics.roc_auc_score(y[y >= 0], x[y >= 0]) for x, y in list(zip(scores.T, there.T))[:4]]


def test_roc_of_labels(metrics, several, monkeypatch):
    folder, scores, there = several
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    found = report(folder, SEVERAL % (folder, "loss_param { ignore_label: -1 }"))
    labels = found["labels"]["x"]
    np.testing.assert_allclose(labels["auroc"][:4], expected(metrics, scores, there), atol=1e-6)
    assert labels["auroc"][4] is None and found["samples"] == 150
    assert labels["mean_auroc"] == pytest.approx(np.mean(labels["auroc"][:4]))
    table = rows(folder / "report/labels.csv")
    assert [float(row["auroc"] or "nan") for row in table][:4] == labels["auroc"][:4] and table[4]["auroc"] == ""
    assert [int(row["positive"]) for row in table] == (there == 1).sum(0).tolist()
    table = rows(folder / "report/scores.csv")
    assert [[float(row[f"{label} score"]) for label in range(5)] for row in table] == scores.tolist()
    assert [[float(row[str(label)] or -1) for label in range(5)] for row in table] == there.tolist()
    assert len({row["sample"] for row in table}) == 150 and table[0]["sample"]
    curve = [row for row in rows(folder / "report/roc.csv") if row["label"] == "1"]
    points = [[float(row[f"{kind} positive rate"]) for row in curve] for kind in ("false", "true")]
    assert metrics.auc(*points) == pytest.approx(labels["auroc"][1], abs=1e-9)
    assert {row["threshold"] for row in curve[1:]} <= set(map(repr, map(float, scores[:, 1])))


@pytest.mark.parametrize("kind", ["MultiLabelLoss", "MultiLabelAccuracy"])
def test_roc_of_labels_with_signs(metrics, kind, several, monkeypatch):
    """A label above 0 is there, one below 0 is not, and 0 does not count."""
    folder, scores, there = several
    data(folder, scores, np.choose(there.astype(int) + 1, [0, -0.5, 0.25]))
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    found = report(folder, (SEVERAL % (folder, "")).replace("SigmoidCrossEntropyLoss", kind))
    np.testing.assert_allclose(found["labels"]["x"]["auroc"][:4], expected(metrics, scores, there), atol=1e-6)
    table = rows(folder / "report/scores.csv")
    assert [[float(row[str(label)] or -1) for label in range(5)] for row in table] == there.tolist()


def test_a_report_goes_beside_files_of_like_names(several, monkeypatch):
    """The report may be written there, because those names only end like the names of its own files."""
    folder, *_ = several
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    net = SEVERAL.replace("list.txt", "train_labels.csv") % (folder, "")
    (folder / "list.txt").rename(folder / "train_labels.csv")
    (folder / "net.prototxt").write_text(net)
    write_caffemodel(folder / "net.caffemodel", parse_net(net, "net").message, {})
    files = ["--model", f"{folder}/net.prototxt", "--weights", f"{folder}/net.caffemodel"]
    assert main(["test", *files, "--report", f"{folder}"]) == 0
    assert (folder / "labels.csv").exists()


@pytest.fixture
def pixels(tmp_path):
    """Writes 37 pictures with a label for each pixel, some of which do not count; returns the folder, the scores and
    the labels."""
    random = np.random.default_rng(9)
    labels = random.integers(0, 3, (37, 1, 6, 5))
    scores = random.normal(0, 1, (37, 3, 6, 5)) + 1.5 * (np.arange(3)[None, :, None, None] == labels)
    labels[random.random(labels.shape) < 0.1] = 255
    return data(tmp_path / "data", scores, labels), scores, labels


def test_iou_of_pixels_is_that_of_the_whole_set(metrics, pixels, monkeypatch):
    folder, scores, labels = pixels
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    (folder / "labels.txt").write_text("sky\nroad\ntree\n")
    found = report(folder, PIXELS % folder)["classes"]["x"]
    counted = labels.ravel() != 255
    truth, taken = labels.ravel()[counted], scores.argmax(1).ravel()[counted]
    assert found["by_pixel"] and found["counted"] == counted.sum() and found["names"] == ["sky", "road", "tree"]
    assert found["confusion"] == metrics.confusion_matrix(truth, taken).tolist()
    assert found["mean_iou"] == pytest.approx(metrics.jaccard_score(truth, taken, average="macro"), abs=1e-9)
    assert [row["name"] for row in rows(folder / "report/classes.csv")] == ["sky", "road", "tree"]


def test_labels_that_are_distributions(metrics, tmp_path, monkeypatch):
    """The most probable class counts as the right one."""
    random = np.random.default_rng(9)
    scores, labels = random.normal(0, 1, (37, 3)), random.dirichlet((1, 1, 1), 37)
    folder = data(tmp_path / "data", scores, labels)
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    found = report(folder, PIXELS.replace("loss_param { ignore_label: 255 }", "") % folder)["classes"]["x"]
    assert found["confusion"] == metrics.confusion_matrix(labels.argmax(1), scores.argmax(1)).tolist()


@pytest.mark.parametrize(
    "layer",
    [
        'type: "SoftmaxWithLoss" loss_param { ignore_label: 1 }',
        'type: "Accuracy" accuracy_param { ignore_label: 1 }',
        'type: "Accuracy" accuracy_param { ignore_label: 1 min_is_better: true }',
    ],
)
def test_a_class_that_does_not_count(tmp_path, monkeypatch, layer):
    scores = np.eye(3)[[0, 1, 2, 2]] * (-1 if "min_is_better" in layer else 1)
    folder = data(tmp_path / "data", scores, [0, 1, 2, 0])
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    net = DATA % folder + f'layer {{ name: "judge" {layer} bottom: "x" bottom: "y" top: "judged" }}'
    assert report(folder, net)["classes"]["x"]["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_judges_read_no_matrix_of_infogain(tmp_path):
    """The net has read it already; a second reading would fail, since the file is gone."""
    folder = data(tmp_path / "data", np.eye(3), [0, 1, 2])
    write_mean(folder / "H", np.eye(3, dtype=np.float32)[None])
    text = f'infogain_loss_param {{ source: "{folder}/H" }} loss_param {{ ignore_label: 1 }}'
    net = DATA % folder + f'layer {{ name: "loss" type: "InfogainLoss" bottom: "x" bottom: "y" top: "loss" {text} }}'
    evaluator = Evaluator(parse_net(net, "net"), World())
    (folder / "H").unlink()
    Judges(evaluator.net, print)
    evaluator.close()


def test_figures_that_are_not_finite_are_null(tmp_path, monkeypatch):
    folder = data(tmp_path / "data", np.full((16, 3), np.nan), np.zeros(16))
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    found = report(folder, PIXELS % folder, "--json", f"{folder}/out.json")
    assert found["outputs"] == json.loads((folder / "out.json").read_text()) == {"loss": [None]}


def test_scores_that_are_nan_are_not_right(tmp_path, monkeypatch, capfd):
    """If all scores of a sample are NaN, its first class must not count as the highest."""
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    scores = np.eye(3)[[0, 1, 2, 0]]
    scores[0] = np.nan
    scores[1, 2] = np.nan
    folder = data(tmp_path / "data", scores, [0, 1, 2, 0])
    found = report(folder, PIXELS.replace("loss_param { ignore_label: 255 }", "") % folder)["classes"]["x"]
    assert (found["counted"], found["nan"], found["accuracy"], found["recall"]) == (4, 2, 0.5, [0.5, 0, 1])
    assert "x: 2 of 4 samples have scores that are NaN: they count as wrong" in capfd.readouterr().err

    data(folder, scores, np.eye(3)[[0, 1, 2, 2]])
    found = report(folder, SEVERAL % (folder, ""))["labels"]["x"]
    assert found["auroc"] == [None, None, None]
    assert "x: 4 scores are NaN: their labels have no AUROC" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["FocalLoss", "SoftmaxFocalLoss", "SoftmaxWithFocalLoss", "SoftmaxWithLossOHEM"])
def test_other_losses_of_classes_are_judged_as_softmax_with_loss_is(kind, pixels, monkeypatch):
    folder, *_ = pixels
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    texts = (PIXELS.replace("SoftmaxWithLoss", name) for name in ("SoftmaxWithLoss", kind))
    first, other = (report(folder, text % folder) for text in texts)
    assert other["classes"] == first["classes"] and first["classes"]["x"]["confusion"]


@pytest.mark.parametrize(("shape", "told"), [((4, 3, 5), 1), ((4, 3, 5, 2), 1), ((4, 3, 1, 1), 0)], ids=str)
def test_several_labels_of_each_pixel_are_left_out(tmp_path, shape, told):
    folder = data(tmp_path / "data", np.zeros(shape), np.zeros(shape))
    evaluator, notes = Evaluator(parse_net(SEVERAL % (folder, ""), "net"), World()), []
    assert Judges(evaluator.scoring_net, notes.append).any == (not told)
    assert notes == told * ["Layer loss has labels for each pixel: their ROC is left out of the report"]
    evaluator.close()


def test_classes_too_many_for_a_matrix(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    folder = data(tmp_path / "data", np.eye(4097)[[5, 7, 4096]], [5, 6, 4096])
    found = report(folder, PIXELS.replace("loss_param { ignore_label: 255 }", "") % folder)["classes"]["x"]
    assert found["confusion"] is None and found["accuracy"] == pytest.approx(2 / 3)
    assert {path.name for path in (folder / "report").iterdir()} == {"classes.csv", "report.json"}
    table = rows(folder / "report/classes.csv")
    assert [table[i]["accuracy"] for i in (5, 6, 7, 4096)] == ["1.0", "0.0", "", "1.0"]
    assert "x: no confusion matrix of 4097 classes, which are more than 4096" in capfd.readouterr().err


@pytest.mark.mpi
def test_ranks_find_the_same(metrics, several, pixels):
    """There are more ranks than batches: 37 samples in batches of 16 are three batches."""
    program = """
import json, sys
from engine.comm.world import world
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
from engine.inference.judges import Judges
from engine.net import NetOptions
for kind, net in zip(("several", "pixels"), sys.argv[1:]):
    evaluator = Evaluator(parse_net(net, "net"), world(), NetOptions(keep_all=True))
    judges = Judges(evaluator.scoring_net, print)
    evaluator.on_forward = judges.watch
    evaluator.run()
    (judge,) = judges.gather(world())
    if world().rank == 0:
        from engine.report.scores import roc
        areas = lambda: [roc(x[y >= 0], y[y >= 0] > 0).area for x, y in zip(judge.scores.T, judge.there.T)][:4]
        found = [areas(), judge.scores.tolist()] if kind == "several" else judge.found.matrix.tolist()
        print(json.dumps([judges.samples, found]))
    evaluator.close()
world().close()
"""
    folder, *samples = several
    data(folder, *samples)  # the data of pixels lie in the same folder
    other = data(folder / "pixels", *pixels[1:])
    nets = [SEVERAL % (folder, "loss_param { ignore_label: -1 }"), PIXELS % other]
    done = run_ranks(4, ["-c", program, *nets], timeout=100)
    assert done.returncode == 0, done.stderr
    told_several, told_pixels = map(json.loads, done.stdout.splitlines())

    _, scores, there = several
    assert told_several[0] == len(scores)
    assert told_several[1][0] == pytest.approx(expected(metrics, scores, there), abs=1e-6)
    assert told_several[1][1] == scores.tolist()  # in the order that one rank has

    _, scores, there = pixels
    counted = there.ravel() != 255
    matrix = metrics.confusion_matrix(there.ravel()[counted], scores.argmax(1).ravel()[counted])
    assert told_pixels == [len(scores), matrix.tolist()]


CLASSES = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "{DIGITS}/digits_test_lmdb" backend: LMDB batch_size: 47 }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "ip" top: "ip" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" top: "by_class" }}
"""


@pytest.fixture
def trained(tmp_path):
    net = parse_net(CLASSES, "net").message
    weights = np.random.default_rng(0).normal(0, 0.05, (10, 64)).astype(np.float32)
    write_caffemodel(tmp_path / "net.caffemodel", net, {"ip": [weights, np.zeros(10, np.float32)]})
    (tmp_path / "net.prototxt").write_text(CLASSES)
    return ["test", "--model", f"{tmp_path}/net.prototxt", "--weights", f"{tmp_path}/net.caffemodel"]


def test_classes_agree_with_the_nets_own_accuracies(tmp_path, trained):
    assert main([*trained, "--report", f"{tmp_path}/report", "--json", f"{tmp_path}/out.json"]) == 0
    found = json.loads((tmp_path / "report/report.json").read_text())
    own = json.loads((tmp_path / "out.json").read_text())
    classes = found["classes"]["ip"]
    assert found["outputs"] == own and not classes["by_pixel"] and classes["counted"] == 360
    # The net's own accuracy counts ties of zeros as wrong.
    assert classes["accuracy"] == pytest.approx(own["accuracy"][0], abs=0.02)
    assert sum(map(sum, classes["confusion"])) == 360
    pictures = [(tmp_path / "report" / name).read_bytes()[:4] for name in ("confusion.png", "classes.png")]
    assert pictures == [b"\x89PNG"] * 2


def test_without_matplotlib_there_are_no_pictures(tmp_path, trained, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*trained, "--report", f"{tmp_path}/report"]) == 0
    told = capfd.readouterr().err
    assert told.count("Pictures are left out of the report") == 1 and "pip install" in told
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"classes.csv", "confusion.csv", "report.json"}


def test_a_matplotlib_that_fails_leaves_out_the_pictures_alone(tmp_path, trained):
    command = [sys.executable, "-m", "engine", *trained, "--report", f"{tmp_path}/report", "--json", f"{tmp_path}/x"]
    environment = os.environ | {"MPLBACKEND": "nonsense"}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("Pictures are left out of the report") == 1, done.stderr
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"classes.csv", "confusion.csv", "report.json"}
    assert json.loads((tmp_path / "x").read_text())["accuracy"]


def test_views_are_averaged_in_the_report_too(tmp_path, trained):
    assert main([*trained, "--flip", "--report", f"{tmp_path}/report", "--json", f"{tmp_path}/out.json"]) == 0
    found = json.loads((tmp_path / "report/report.json").read_text())
    plain = json.loads((tmp_path / "out.json").read_text())
    assert found["classes"]["ip"]["accuracy"] == pytest.approx(plain["accuracy"][0], abs=0.02)
    assert found["samples"] == 360


def test_blobs_whose_names_are_one_name_of_files(tmp_path):
    """A number tells the files of such blobs apart."""
    scores = np.eye(4)
    with h5py.File(data(tmp_path, scores, range(4)) / "data.h5", "a") as file:
        file["a/b"], file["a.b"], file["a_b_2"] = scores, scores[::-1], scores
    names = ("a/b", "a.b", "a_b_2")
    losses = "".join(
        f'layer {{ name: "{n}" type: "SoftmaxWithLoss" bottom: "{each}" bottom: "y" top: "loss {n}" }}'
        for n, each in enumerate(names)
    )
    tops = " ".join(f'top: "{each}"' for each in names)
    found = report(tmp_path, (DATA % tmp_path).replace('top: "x"', tops) + losses)
    tables = {path.name: rows(path)[0]["accuracy"] for path in (tmp_path / "report").glob("*_classes.csv")}
    assert tables == {"a_b_classes.csv": "1.0", "a_b_2_classes.csv": "0.0", "a_b_2_2_classes.csv": "1.0"}
    assert set(found["classes"]) == set(names)


NO_JUDGE = (
    r"net\.prototxt: --report: no layer of phase TEST tells right from wrong; expected one of Accuracy, "
    "DetectionEvaluate, EvalDetection, FocalLoss, InfogainLoss, MultiLabelAccuracy, MultiLabelLoss, "
    "SigmoidCrossEntropyLoss, SoftmaxCrossEntropyLoss, "
)


def test_bad_folders_and_nets_are_refused_before_the_test(tmp_path, trained, capfd):
    (tmp_path / "file").write_text("")
    assert main([*trained, "--report", f"{tmp_path}/file"]) == 1
    told = capfd.readouterr().err
    assert f"engine: {tmp_path}/file: --report: cannot be made" in told and "Testing" not in told
    net = DATA % data(tmp_path / "d", np.zeros((4, 2)), np.zeros(4))
    evaluator = Evaluator(parse_net(net, "net.prototxt"), World())
    with pytest.raises(ConfigError, match=NO_JUDGE):
        require_judges(Judges(evaluator.scoring_net, print), False, "net.prototxt")
    evaluator.close()
    assert REPO.is_dir()
