"""The scripts of examples/, as a user runs them: the figures that they print, and what they refuse."""

import os
import re
import subprocess
import sys

import pytest

from engine.examine.check import check_file
from tests.mpi import REPO


def run(name, folder):
    """Runs an example in Python; returns what it has printed."""
    environ = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPO / "examples/python" / name), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(text, word):
    """Returns the numbers that follow a word, in order."""
    return [float(value) for value in re.findall(rf"{word} (\d+\.\d+)", text)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder that train_net.py has filled, and what it has printed."""
    folder = tmp_path_factory.mktemp("out")
    return folder, run("train_net.py", folder)


def test_train_net(trained):
    folder, printed = trained
    assert figures(printed, "test accuracy")[-1] > 0.95
    assert figures(printed, "moved by")[-1] > 0.01
    assert (folder / "digits.caffemodel").exists()


def test_net_surgery(trained):
    printed = run("net_surgery.py", trained[0])
    assert "ip1: (64, 512) becomes (64, 32, 4, 4)" in printed
    assert "the same probabilities: True" in printed
    found, labels = re.findall(r"\[([\d ]+)\]", printed)
    assert found == labels


def test_extract_features(trained):
    printed = run("extract_features.py", trained[0])
    assert figures(printed, "by features")[0] > figures(printed, "by pixels")[0] > 0.9


def test_python_loss(tmp_path):
    printed = run("python_loss.py", tmp_path)
    assert figures(printed, "test accuracy")[-1] > 0.94
    assert 0.7 < figures(printed, "right class")[0] < 0.92  # the smoothing of labels asks for 0.91


def test_fine_tune(trained):
    from_scratch, fine_tuned = figures(run("fine_tune.py", trained[0]), "test accuracy")
    assert fine_tuned > from_scratch > 0.6


@pytest.mark.parametrize("name", ["net_surgery.py", "extract_features.py", "fine_tune.py"])
def test_what_needs_weights_says_who_makes_them(name, tmp_path):
    done = script(f"python/{name}", tmp_path)
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    said = f"{tmp_path}: no digits.caffemodel in it: run train_net.py first, with the same folder\n"
    assert done.stderr == said


def script(name, *words):
    command = [sys.executable, str(REPO / "examples" / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_full_video_gan_has_the_guides_parameters(tmp_path):
    """PRACE's Best Practice Guide, section 6.1, says 131 and 81 million. No weights are made to count them."""
    assert script("adversarial/video_gan.py", "--size", "full", "--source", tmp_path, "--to", tmp_path).returncode == 0
    found = {name: check_file(f"{tmp_path}/video_{name}.prototxt") for name in ("generator", "discriminator")}
    assert not any(report.errors for report in found.values())
    counts = {name: {net.parameters for net in report.nets} for name, report in found.items()}
    assert counts == {"generator": {131_572_643}, "discriminator": {81_368_641}}
    shapes = [dict(layer.tops).get("made") for layer in found["generator"].nets[0].layers]
    assert (1, 3, 6, 128, 128) in shapes


@pytest.mark.parametrize(
    "name, words, said",
    [
        ("shapes/make_shapes.py", ["out", "--train", "0"], "--train and --test: expected numbers above 0"),
        ("shapes/make_shapes.py", ["out", "--test", "many"], "argument --test: invalid int value: 'many'"),
        ("shapes/make_shapes.py", ["file", "--train", "1"], "file: cannot be written: "),
        ("volumes/make_volumes.py", ["out", "--test", "-3"], "--train and --test: expected numbers above 0"),
        ("volumes/make_volumes.py", ["file"], "file: cannot be written: "),
        ("text/sample.py", ["no.caffemodel"], "no.caffemodel: cannot be read: No such file or directory"),
        ("text/sample.py", ["file", "--net", "no.prototxt"], "no.prototxt: cannot be read: No such file or directory"),
        ("adversarial/moving_digits.py", ["out", "--clips", "3"], "--clips: expected 4 or more, got 3"),
        ("adversarial/moving_digits.py", ["file"], "file: cannot be written: "),
        ("adversarial/video_gan.py", ["--size", "huge"], "argument --size: invalid choice: 'huge'"),
        ("adversarial/video_gan.py", ["--to", "nowhere"], "nowhere: cannot be written: "),
        ("adversarial/video_gan.py", ["--to", "file"], "file: cannot be written: "),
        ("adversarial/video_gan.py", ["--source", 'a"b'], "--source and --test_list: expected names without quotes"),
    ],
)
def test_what_the_scripts_refuse_is_one_line(name, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = script(name, *words)
    assert done.returncode in (1, 2) and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert done.returncode == 2 or len(done.stderr.splitlines()) == 1  # status 2 comes with the usage
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and not (tmp_path / "file").read_text()
