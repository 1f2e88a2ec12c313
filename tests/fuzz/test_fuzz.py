"""What was found once, good inputs, and a few random changes of them: all that reads files raises one clear line for
them.

The inputs are always the same; `make fuzz` tries others, for as long as one likes.
"""

import re
import subprocess
import sys

import pytest

from tests.fuzz import campaign
from tests.mpi import REPO

targets = pytest.importorskip("tests.fuzz.targets", reason="needs h5py and onnx")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Returns what the fuzzer prints of each target."""
    folder = tmp_path_factory.mktemp("fuzz")
    command = [sys.executable, REPO / "tests/fuzz/run.py", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    reports = "".join(f"{path.read_text()}\n" for path in folder.glob("findings/*/*.txt"))
    return done.stdout, reports


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", targets.TARGETS)
def test_only_clear_errors_come_out(said, name):
    lines, reports = said
    assert re.search(rf"^{name}: [0-9]+ inputs .*, 0 findings$", lines, re.M), f"{lines}\n{reports}"


def test_a_campaign_goes_on_until_each_target_has_run_enough(tmp_path):
    command = [sys.executable, REPO / "tests/fuzz/run.py", "--out", tmp_path, "--plain", "image_list", "mean"]
    done = subprocess.run([*command, "--inputs", "400", "--seconds", "0.3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run([*command, "--tally"], capture_output=True, text=True).stdout
    rows = re.findall(r"^\| `(\w+)` \| ([0-9,]+) \| ([0-9,]+) \|$", said, re.M)
    assert [name for name, *_ in rows] == ["image_list", "mean"]
    assert all(int(quiet.replace(",", "")) >= 400 and quiet == count for _, count, quiet in rows)


def test_a_finding_begins_the_count_anew(tmp_path):
    tally = campaign.Tally(tmp_path)
    tally.add("net", 500, 0)
    tally.add("net", 300, 2)
    tally.add("net", 40, 0)
    assert tally.of("net") == campaign.Count(inputs=840, quiet=40, findings=1)
