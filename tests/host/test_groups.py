"""Limits of processor time by control groups, as containers have them."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.host.groups import _processor_limit
from tests.mpi import REPO


def test_the_limit_of_a_group(tmp_path):
    assert _processor_limit(tmp_path, 2) == _processor_limit(tmp_path, 1) == math.inf
    for text, limit in (("250000 100000", 2.5), ("max 100000", math.inf), ("no numbers", math.inf)):
        (tmp_path / "cpu.max").write_text(f"{text}\n")
        assert _processor_limit(tmp_path, 2) == limit
    (tmp_path / "cpu.cfs_period_us").write_text("50000\n")
    for text, limit in (("75000", 1.5), ("-1", math.inf)):
        (tmp_path / "cpu.cfs_quota_us").write_text(f"{text}\n")
        assert _processor_limit(tmp_path, 1) == limit


@pytest.fixture
def group():
    """Yields the folder of a control group with processor time for one and a half cores; skips the test if none can be
    made."""
    for top, name, value in (
        ("/sys/fs/cgroup", "cpu.max", "150000 100000"),
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "150000"),
    ):
        folder = Path(top, f"engine_test_{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / name).exists():
                (folder / name).write_text(value)
                yield folder
                return
        except OSError:
            pass
        finally:
            folder.rmdir()
    pytest.skip("may not make a control group")


PROGRAMS = {
    "a verb": "import sys; from engine.cli import main; sys.exit(main(['device_query']))",
    "a script": "import engine.caffe; from engine.host import _core; print('threads per rank', _core.threads())",
}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_starts_as_many_threads_as_its_group_keeps_busy(group, program):
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', group, sys.executable, "-c", PROGRAMS[program]]
    done = subprocess.run(command, cwd=REPO, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("threads per rank")]
    assert line.split()[3] == "1"
    if program == "a verb":
        assert "processor time of 1.5 in a control group" in done.stdout
