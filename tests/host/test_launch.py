"""`python -m engine` keeps the current folder off the import path, so that modules beside the data are not executed."""

import os
import socket
import subprocess
import sys

import pytest

from engine.errors import CommError
from engine.host import launch
from engine.host.launch import own_command
from tests.mpi import ENVIRON, REPO, mpiexec
from tests.solver.harness import digits_net

SOLVER = 'net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 2 random_seed: 1 snapshot_prefix: "s"'


@pytest.fixture
def hostile(tmp_path):
    """Returns a folder with modules that everything here imports, each of which tells that it has been executed."""
    (tmp_path / "engine").mkdir()
    for name in ("numpy", "mpi4py", "json", "engine/__init__", "engine/cli"):
        (tmp_path / f"{name}.py").write_text(f'import os\nos.write(2, b"EXECUTED {name}\\n")\nos._exit(7)\n')
    (tmp_path / "net.prototxt").write_text(digits_net(16))
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path))
    return tmp_path


def run(folder, *arguments: str) -> subprocess.CompletedProcess:
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1"}
    environ.pop("PYTHONPATH", None)
    return subprocess.run(own_command(*arguments), cwd=folder, env=environ, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("arguments", [("--version",), ("check", "net.prototxt"), ("check", "--run", "net.prototxt")])
def test_modules_of_the_current_folder_are_not_executed(hostile, arguments):
    done = run(hostile, *arguments)
    assert "EXECUTED" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--max_restarts", "1"), pytest.param(("--ranks", "2"), marks=pytest.mark.mpi)])
def test_ranks_do_not_execute_modules_of_the_current_folder(hostile, arguments):
    if "--ranks" in arguments:
        mpiexec()
    done = run(hostile, "train", "--solver", "solver.prototxt", *arguments)
    assert "EXECUTED" not in done.stderr and done.returncode == 0, done.stderr


def test_it_starts_itself_also_where_python_does_not_find_it(tmp_path):
    """It may run from a checkout while another engine is installed. It must not look into the current folder even
    then."""
    program = tmp_path / "engine/__main__.py"
    program.parent.mkdir()
    program.write_text((REPO / "engine/__main__.py").read_text())
    (tmp_path / "engine/__init__.py").write_text("")
    (tmp_path / "engine/cli.py").write_text("def main():\n    print(__file__)\n")
    done = subprocess.run([sys.executable, str(program)], cwd=REPO, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.returncode) == (f"{tmp_path}/engine/cli.py\n", 0), done.stderr


def test_nothing_in_engine_starts_python_with_a_module_option():
    found = [path for path in (REPO / "engine").rglob("*.py") if '"-m"' in path.read_text()]
    assert found == []


def test_a_host_is_not_flooded_with_ranks():
    most = launch.RANKS_A_CORE * len(os.sched_getaffinity(0))
    assert str(most) in launch.command_for(most, ["train"])
    with pytest.raises(CommError, match=f"{most + 1} ranks on one host .*: expected {most} at most"):
        launch.command_for(most + 1, ["train"])


def test_only_a_launcher_is_asked_to_end_all_ranks(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "data", "w+b") as data:
        for number in (theirs.fileno(), data.fileno(), "none"):
            launch.end_all(3, {"PMI_FD": str(number)})
        launch.end_all(3, {})
        assert ours.recv(99) == b"cmd=abort exitcode=3\n" and data.read() == b""


def test_of_ranks_that_srun_leaves_running_one_of_each_host_speaks():
    told = [launch.speaks_for_host(environ) for environ in ({}, {"SLURM_LOCALID": "0"}, {"SLURM_LOCALID": "1"})]
    assert told == [True, True, False]
