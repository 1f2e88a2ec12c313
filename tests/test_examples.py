"""The scripts of examples/python, as a user runs them, and the figures that they print."""

import os
import re
import subprocess
import sys

import pytest

from tests.mpi import REPO


def run(name, folder):
    environ = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, str(REPO / "examples/python" / name), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(text, word):
    """The numbers behind a word, in order."""
    return [float(value) for value in re.findall(rf"{word} (\d+\.\d+)", text)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder that train_net.py leaves, and what it has printed."""
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
    assert 0.7 < figures(printed, "right class")[0] < 0.92  # 0.91 is what the smoothing asks for


def test_fine_tune(trained):
    from_scratch, fine_tuned = figures(run("fine_tune.py", trained[0]), "test accuracy")
    assert fine_tuned > from_scratch > 0.6
