"""Only one run at a time may have a snapshot_prefix."""

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.solver.lock import lock_prefix, unlock_prefix
from tests.mpi import REPO
from tests.solver.harness import digits_net, in_files, make_solver, solve
from tests.solver.test_restart import files, train

HOLDER = """
import sys, time
from engine.solver.lock import lock_prefix
assert lock_prefix(sys.argv[1])
print("has it", flush=True)
time.sleep(float(sys.argv[2]))
"""


def holder(prefix: str, seconds: float = 60) -> subprocess.Popen:
    """Starts another process that locks the prefix, and returns it once it has the lock."""
    command = [sys.executable, "-c", HOLDER, prefix, str(seconds)]
    process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "has it\n"
    return process


@pytest.fixture
def other(tmp_path):
    """Yields another process that has the prefix."""
    process = holder(str(tmp_path / "net"))
    yield process
    process.kill()
    process.wait()


def test_the_error_names_the_other_run(tmp_path, other):
    words = f"snapshot_prefix '{tmp_path}/net' is in use by process {other.pid} on {socket.gethostname()}, since "
    with pytest.raises(EngineError, match=re.escape(words)):
        lock_prefix(str(tmp_path / "net"))
    assert lock_prefix(str(tmp_path / "net2"))
    unlock_prefix(str(tmp_path / "net2"))
    assert not (tmp_path / ".net2.lock").exists()


def test_the_lock_of_a_run_that_was_killed_stops_nobody(tmp_path, other):
    other.kill()
    other.wait()
    assert (tmp_path / ".net.lock").exists()
    assert lock_prefix(str(tmp_path / "net")) and lock_prefix(str(tmp_path / "net"))
    unlock_prefix(str(tmp_path / "net"))
    assert os.listdir(tmp_path) == []


@pytest.fixture
def strange(tmp_path, other, monkeypatch):
    """Makes the lock's file one that this user can read but not write, and returns its path."""
    path, given = tmp_path / ".net.lock", os.open
    theirs = path.read_text()

    def open_own(file, flags, *mode):
        if flags & os.O_RDWR and os.path.exists(file) and path.read_text() == theirs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        return given(file, flags, *mode)

    monkeypatch.setattr(os, "open", open_own)
    return path


def test_the_lock_of_another_user(tmp_path, other, strange, monkeypatch):
    """If the run was killed, a user who may remove the lock's file gets the lock."""
    with pytest.raises(EngineError, match=f"is in use by process {other.pid} on "):
        lock_prefix(str(tmp_path / "net"))
    other.kill()
    other.wait()
    with monkeypatch.context() as patched, pytest.raises(EngineError, match="if that run has ended, remove the file"):
        # Rmdir() fails on a file, as unlink() does in a sticky folder.
        patched.setattr(Path, "unlink", lambda path, missing_ok: path.rmdir())
        lock_prefix(str(tmp_path / "net"))
    assert lock_prefix(str(tmp_path / "net")) and strange.read_text().split()[1] == str(os.getpid())
    unlock_prefix(str(tmp_path / "net"))
    assert os.listdir(tmp_path) == []


def test_it_waits_for_a_run_that_ends(tmp_path):
    process = holder(str(tmp_path / "net"), 0.5)
    assert lock_prefix(str(tmp_path / "net"), patience=30)
    process.wait()
    assert (tmp_path / ".net.lock").exists()  # this process's file, not the one that the other has removed
    unlock_prefix(str(tmp_path / "net"))


def test_a_process_that_a_layer_forked_does_not_hold_it(tmp_path):
    lock_prefix(str(tmp_path / "net"))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # waits until the other end is closed
        os._exit(0)
    unlock_prefix(str(tmp_path / "net"))
    done = subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path / "net"), "0"], cwd=REPO, timeout=30)
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)
    assert done.returncode == 0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_lock_is_left_alone(tmp_path, kind):
    path = tmp_path / ".net.lock"
    if kind == "link":
        (tmp_path / "precious").write_text("precious")
        path.symlink_to(tmp_path / "precious")
    else:
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(EngineError, match=r"\.net\.lock: cannot be locked: "):
        lock_prefix(str(tmp_path / "net"))
    assert kind != "link" or (tmp_path / "precious").read_text() == "precious"


def test_a_second_run_is_refused_and_the_first_keeps_its_files(tmp_path, other):
    folder = files(tmp_path)
    left = tmp_path / ".net_iter_10.caffemodel.4711.0123abcd.tmp"
    left.write_bytes(b"half")
    for more in ((), ("--resume", "auto")):
        status, errors = train(folder, 1, *more)
        assert status == 1 and f"is in use by process {other.pid}" in errors and left.exists(), errors
    other.kill()
    other.wait()
    status, errors = train(folder, 1)
    assert status == 0 and not left.exists() and "which was never finished" in errors, errors
    assert not (tmp_path / ".net.lock").exists()


def test_a_run_that_saves_nothing_needs_none(tmp_path, other):
    status, errors = train(files(tmp_path), 1, "--set", "snapshot=0", "--set", "snapshot_after_train=false")
    assert status == 0, errors


def test_a_solver_of_a_program_takes_it_at_its_first_snapshot(tmp_path, other):
    solver = make_solver("", digits_net(), tmp_path)
    with pytest.raises(EngineError, match="is in use by process"):
        solver.snapshot()
    solver.close()


def test_a_temporary_file_of_another_host_with_the_same_pid(tmp_path):
    """Hosts may share the folder, so such a file need not be this process's own."""
    for kind in ("caffemodel", "solverstate"):
        (tmp_path / f".net_iter_2.{kind}.{os.getpid()}.tmp").write_bytes(b"another host's")
    solve("max_iter: 2", digits_net(), tmp_path)
    assert in_files(tmp_path, 2)


def test_a_prefix_that_leaves_no_room_for_names_is_refused_before_training(tmp_path):
    status, errors = train(files(tmp_path), 1, "--set", f"snapshot_prefix={tmp_path}/{'x' * 220}")
    assert status == 1 and "cannot be written: expected a name of at most" in errors, errors
    assert "Iteration 1," not in errors
