"""What was found once, and a few random changes of it and of good inputs, get one clear line from all that reads files.

Always the same inputs; `make fuzz` tries others, for as long as one likes.
"""

import re
import subprocess
import sys

import pytest

from tests.mpi import REPO

targets = pytest.importorskip("tests.fuzz.targets", reason="needs h5py and onnx")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the fuzzer says of each target."""
    folder = tmp_path_factory.mktemp("fuzz")
    command = [sys.executable, REPO / "tests/fuzz/run.py", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    reports = "".join(f"{path.read_text()}\n" for path in folder.glob("findings/*/*.txt"))
    return done.stdout, reports


@pytest.mark.parametrize("name", targets.TARGETS)
def test_only_clear_errors_come_out(said, name):
    lines, reports = said
    assert re.search(rf"^{name}: [0-9]+ inputs .*, 0 findings$", lines, re.M), f"{lines}\n{reports}"
