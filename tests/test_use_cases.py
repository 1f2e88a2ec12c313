"""The examples of docs/use_cases.md learn what they are meant to. The page's commands are run by
tests/test_commands.py."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from engine.cli import main
from tests.layers.harness import needs_bf16
from tests.mpi import REPO

EXAMPLES = REPO / "examples"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes the current folder one in which the page's commands can run, and returns it."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(name, *words, status=0):
    """Runs a script of an example; returns what it has printed, on stderr if it is to fail."""
    done = subprocess.run([sys.executable, EXAMPLES / name, *words], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def train(solver, iterations, *changes):
    words = ["train", "--solver", str(solver), "--watchdog", "0"]
    for change in (f"max_iter={iterations}", "test_interval=0", "test_initialization=false", "display=0", *changes):
        words += ["--set", change]
    assert main(words) == 0


def trained(solver, iterations, prefix, *changes, weights=None):
    """Trains; returns what `engine test` says of the net then, by output."""
    train(solver, iterations, *changes)
    net = next(change for change in (*changes, "net=") if change.startswith("net=")).removeprefix("net=")
    net = net or str(solver).replace("solver", "net")
    assert (
        main(["test", "--model", net, "--weights", f"{prefix}_iter_{iterations}.caffemodel", "--json", "x.json"]) == 0
    )
    with open("x.json") as file:
        return {name: value[0] if isinstance(value, list) else value for name, value in json.load(file).items()}


def test_auto_encoder_is_better_than_principal_components(folder):
    found = trained("examples/autoencoder/solver.prototxt", 500, "autoencoder")
    assert found["error"] < 0.764  # the error of 8 components, by NumPy's SVD of the training pictures


def test_table_is_imitated(folder):
    (folder / "gas.csv").write_text(script("table/make_table.py"))
    script("table/to_hdf5.py", "gas.csv", "table")
    found = trained("examples/table/solver.prototxt", 800, "table/table")
    assert found["loss"] < 0.002  # guessing the mean would give 0.5
    scales = json.loads((folder / "table/scales.json").read_text())
    assert list(scales) == ["temperature", "volume", "pressure"] and scales["temperature"]["mean"] == pytest.approx(
        1.45, abs=0.02
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "is no table of numbers"),
        ("a,b\n" + "1,2\n" * 30 + "1\n", "is no table of numbers"),
        ("a,b\n1,x\n", "could not convert string to float"),
        ("a,b\n" + "1,nan\n" * 30, "not finite"),
        ("a,b\n1,2\n", "expected 20 rows or more of 2 numbers"),
        ("a,b\n" + "".join(f"1,{i}\n" for i in range(30)), "column 'a' is the same in all rows"),
    ],
)
def test_what_is_no_table(folder, text, said):
    (folder / "x.csv").write_text(text)
    assert said in script("table/to_hdf5.py", "x.csv", "out", status=1)
    assert not (folder / "out").exists()


def test_volumes_are_told_apart(folder):
    script("volumes/make_volumes.py", "volumes", "--train", "100", "--test", "10")
    assert trained("examples/volumes/solver.prototxt", 120, "volumes/volumes")["accuracy"] > 0.9
    words = ["--model", "examples/volumes/net.prototxt", "--weights", "volumes/volumes_iter_120.caffemodel"]
    assert main(["test", *words, "--report", "report"]) == 0
    found = json.loads((folder / "report/report.json").read_text())["classes"]["scores"]
    assert found["counted"] == 10 * 16**3 and min(found["iou"]) > 0.3, found["iou"]


def shapes(*kinds):
    """Makes the databases of the page."""
    script("shapes/make_shapes.py", "shapes")
    for part in ("train", "test"):
        if "masks" in kinds:
            lists, labels = f"shapes/ImageSets/Segmentation/{part}.txt", "shapes/labelmap.prototxt"
            words = ["shapes", lists, f"shapes/{part}_masks_lmdb", "--masks", "--label_map", labels]
        else:
            words = ["shapes/JPEGImages", f"shapes/instances_{part}.json", f"shapes/{part}_lmdb"]
        assert main(["convert_annotations", *words]) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shapes_are_segmented_and_scored_as_voc_does(folder):
    shapes("masks")
    train("examples/shapes/fcn_solver.prototxt", 2000)
    net, weights = "examples/shapes/fcn.prototxt", "shapes/fcn_iter_2000.caffemodel"
    assert main(["test", "--model", net, "--weights", weights, "--report", "report"]) == 0
    found = json.loads((folder / "report/report.json").read_text())["classes"]["scores"]
    assert main(["extract_features", weights, net, "scores,label", "pixels.npz", "10"]) == 0
    with np.load("pixels.npz") as file:
        predicted, truth = file["scores"].reshape(200, 4, -1).argmax(1), file["label"].reshape(200, -1)
    predicted, truth = predicted[truth != 255], truth[truth != 255]
    iou = [
        ((predicted == label) & (truth == label)).sum() / ((predicted == label) | (truth == label)).sum()
        for label in range(4)
    ]
    np.testing.assert_allclose(found["iou"], iou, atol=1e-6)
    assert found["mean_iou"] == pytest.approx(np.mean(iou), abs=1e-6) and found["counted"] == truth.size
    # If all pixels were taken for background, these would be 0.9 and 0.22.
    assert found["iou"][0] > 0.95 and found["mean_iou"] > 0.8, iou
    assert found["names"] == ["background", "disc", "square", "triangle"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shapes_are_found_and_scored_as_coco_does(folder):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    shapes()
    train("examples/shapes/ssd_solver.prototxt", 1500)
    test = ["test", "--model", "examples/shapes/ssd.prototxt", "--weights", "shapes/ssd_iter_1500.caffemodel"]
    assert main([*test, "--report", "report", "--ap_version", "101point"]) == 0
    found = json.loads((folder / "report/report.json").read_text())["detections"]["map"]
    truth = COCO("shapes/instances_test.json")
    evaluation = COCOeval(truth, truth.loadRes("report/coco_results.json"), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    # The axes: overlap 0.5, recalls, classes, boxes of all sizes, 100 boxes.
    precision = evaluation.eval["precision"][0, :, :, 0, 2]
    assert found["map"] == pytest.approx(precision.mean(), abs=1e-6) and found["map"] > 0.7
    assert list(found["average_precision"]) == ["disc", "square", "triangle"]
    assert [*found["average_precision"].values()] == pytest.approx(precision.mean(0).tolist(), abs=1e-6)


def test_the_text_stays_what_the_page_s_figures_are_of():
    digest = hashlib.sha256((EXAMPLES / "text/book.txt").read_bytes()).hexdigest()
    assert digest == "8100be2e013dc24a0d1026b9f52b95a93aaf8e4c7def53a170f29bbda8934032"


LINE = "a quick brown fox jumps over the lazy dog\n"


@pytest.mark.parametrize("kind, precision", [pytest.param("LSTM", "BF16", marks=needs_bf16), ("GRU", "FP32")])
def test_a_text_is_learned_and_written(kind, precision, folder):
    (folder / "line.txt").write_text(LINE * 100)
    script("text/to_hdf5.py", "line.txt", "text", "--streams", "8", "--steps", "16")
    for name in ("net", "deploy"):
        net = (EXAMPLES / f"text/{name}.prototxt").read_text().replace('"LSTM"', f'"{kind}"')
        (folder / f"{name}.prototxt").write_text(net.replace("batch_size: 16", "batch_size: 8"))
    changes = ("net=net.prototxt", f"precision={precision}", "base_lr=0.01")
    found = trained("examples/text/solver.prototxt", 200, "text/text", *changes)
    assert found["accuracy"] > 0.8 and found["loss"] < 1
    weights = "text/text_iter_200.caffemodel"
    words = ["--net", "deploy.prototxt", "--start", LINE, "--length", str(len(LINE)), "--temperature", "0.1"]
    written = script("text/sample.py", weights, *words)
    assert written.startswith(LINE) and len(written.encode()) == 2 * len(LINE) + 1
    assert sum(a == b for a, b in zip(written[len(LINE) :], LINE)) > 0.8 * len(LINE), written


def test_streams_go_on_from_batch_to_batch(folder):
    """Row b * streams + s is piece b of stream s, and has to predict the bytes one further on."""
    import h5py

    text = bytes(range(250))
    (folder / "x.txt").write_bytes(text)
    script("text/to_hdf5.py", "x.txt", "out", "--streams", "3", "--steps", "4")
    with h5py.File(folder / "out/train.h5") as file:
        rows, cont, following = (np.asarray(file[name]) for name in ("text", "cont", "next"))
    pieces = rows.reshape(-1, 3, 4)
    for stream in range(3):
        joined = pieces[:, stream].ravel()
        assert np.array_equal(joined, np.arange(len(joined)) + joined[0]) and len(joined) > 40
    assert np.array_equal(following, rows + 1)
    assert cont[:3, 0].tolist() == [0, 0, 0] and cont.sum() == cont.size - 3
    script("text/to_hdf5.py", "x.txt", "out", "--streams", "30", "--steps", "4", status=1)
    assert "no.txt: cannot be read" in script("text/to_hdf5.py", "no.txt", "out", status=1)


def test_blanks_need_both_directions(folder):
    """Whether a blank follows "ab" depends on the next letter, which only the second LSTM, from the end, has seen."""
    draw = np.random.default_rng(1)
    (folder / "words.txt").write_text(" ".join(draw.choice(["ab", "abd", "c"], 6000)))
    script("text/to_hdf5.py", "words.txt", "blanks", "--blanks")
    both = (EXAMPLES / "text/blanks.prototxt").read_text()
    alone = both.replace('bottom: "forwards"\n    bottom: "aligned"', 'bottom: "forwards"')
    assert alone != both
    (folder / "both.prototxt").write_text(both)
    alone += 'layer { name: "unread" type: "Silence" bottom: "aligned" }\n'
    (folder / "alone.prototxt").write_text(alone)
    accuracy = {
        name: trained("examples/text/blanks_solver.prototxt", 80, "blanks/blanks", f"net={name}.prototxt")["accuracy"]
        for name in ("both", "alone")
    }
    assert accuracy["both"] > 0.95 and accuracy["alone"] < 0.93, accuracy
