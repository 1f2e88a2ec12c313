"""The ranks of --ranks and --max_restarts end with the process that has started them, even if it is killed."""

import contextlib
import functools
import os
import pty
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cli import main
from engine.host.launch import own_command
from engine.watchdog import board as places
from engine.watchdog import supervise
from engine.watchdog.board import Board
from engine.watchdog.guard import Guard, Watch
from engine.watchdog.process import command_of, descendants, has_ended, identity, state_of
from tests.mpi import ENVIRON, REPO, mpiexec
from tests.watchdog.test_dead_rank import SOLVER
from tests.watchdog.test_sentinel import environment_of


def test_a_process_is_known_by_its_number_and_its_beginning():
    process = subprocess.Popen(["sleep", "30"])
    name = identity(process.pid)
    host, pid, start = name.split(" ")
    assert not has_ended(name)
    assert not has_ended(f"elsewhere {pid} {start}")
    assert has_ended(f"{host} {pid} {int(start) - 1}"), "another process has its number now"
    process.kill()
    while state_of(process.pid) != "Z":
        time.sleep(0.01)
    assert has_ended(name), "nobody has waited for it yet"
    process.wait()
    assert has_ended(name)


def test_what_a_process_has_started():
    inner = "import time; print(flush=True); time.sleep(30)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
    process.stdout.readline()
    found = descendants(process.pid)
    assert [command_of(pid) for pid in found] == [[sys.executable, "-c", inner]]
    process.kill()
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert descendants(process.pid) == [] == command_of(process.pid)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
def test_a_closed_terminal_is_a_snapshot_and_nothing_else(tmp_path, ranks):
    if ranks > 1:
        mpiexec()
    text = SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path).replace("snapshot: 20", "")
    (tmp_path / "solver.prototxt").write_text(text)
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    options = ("--max_restarts", "1", "--ranks", str(ranks))
    command = own_command("train", "--solver", f"{tmp_path}/solver.prototxt", *options)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPO)
        os.execve(command[0], command, environ)
    try:
        seen = b""
        while b"Iteration 20," not in seen:
            seen += os.read(terminal, 1 << 16)
        os.close(terminal)
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*.solverstate")) and time.monotonic() < deadline:
            assert state_of(pid) not in ("", "Z")
            time.sleep(0.1)
        os.kill(pid, signal.SIGTERM)
        ended = 0
        while not ended and time.monotonic() < deadline:
            time.sleep(0.1)
            ended, status = os.waitpid(pid, os.WNOHANG)
        assert ended and os.waitstatus_to_exitcode(status) == 0
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert list(tmp_path.glob("*.solverstate"))


# A launcher that kills its rank as soon as it is told to stop. Open MPI's does so a second later.
LAUNCHER = """
import signal, subprocess, sys
rank = subprocess.Popen(sys.argv[1:])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: rank.kill())
raise SystemExit(1 if rank.wait() else 0)
"""
SUPERVISOR = """
import os, sys
from engine.watchdog import supervise
print(supervise._run(sys.argv[1:], dict(os.environ)))
"""


def supervised(folder) -> subprocess.Popen:
    """Starts a supervisor with a launcher and a rank; returns its process as soon as training has begun."""
    text = SOLVER.format(net=REPO / "nets/digits.prototxt", folder=folder).replace("snapshot: 20", "")
    (folder / "solver.prototxt").write_text(text)
    train = own_command("train", "--solver", f"{folder}/solver.prototxt")
    command = [sys.executable, "-c", SUPERVISOR, sys.executable, "-c", LAUNCHER, *train]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=REPO, env=environ, text=True, **pipes)
    while "Iteration 20, lr = " not in (line := process.stderr.readline()):
        assert line, "it has ended"
    return process


def test_ranks_end_by_themselves_where_their_launcher_would_kill_them(tmp_path):
    process = supervised(tmp_path)
    process.send_signal(signal.SIGTERM)
    told, rest = process.communicate(timeout=60)
    assert told == "(0, True)\n", rest
    assert len(list(tmp_path.glob("*.solverstate"))) == 1


def test_a_second_ctrl_c_ends_ranks_that_hang(tmp_path):
    process = supervised(tmp_path)
    (rank,) = (pid for pid in descendants(process.pid) if own_command()[1] in command_of(pid)[:2])
    try:
        os.kill(rank, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGINT)
        told, rest = process.communicate(timeout=30)
        assert told == "(1, True)\n", rest  # the launcher's status is passed on
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
        process.kill()


@pytest.mark.mpi
def test_a_sigterm_leaves_a_rank_that_hangs_to_the_watchdog(tmp_path):
    mpiexec()
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path))
    options = ("--ranks", "2", "--watchdog", "3")
    command = own_command("train", "--solver", f"{tmp_path}/solver.prototxt", *options)
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        while "Iteration 20, lr = " not in (line := process.stderr.readline()):
            assert line
        victim = supervise._ranks_below(process.pid)[-1]
        os.kill(victim, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    told = [line for line in rest.splitlines() if line.startswith("engine:")]
    assert told[0].startswith("engine: no progress for 3 s, stopping all ranks: rank ") and f"(pid {victim} " in told[0]
    assert told[-1].startswith("engine: stopped by SIGTERM") and process.returncode == 143, rest


def ranks_of(mark: str) -> list[int]:
    """Returns the process ids of all processes with `mark` in their environment."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if mark.encode() in environment_of(str(pid))]


def reads_data(pid: int) -> bool:
    """Returns whether a process has opened its LMDB, which is the last thing it does before training."""
    try:
        return "digits_train_lmdb/data.mdb" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # the process has ended
        return False


def killed_at(words: str, command: list[str], environ: dict[str, str]) -> str:
    """Kills a supervisor when its run says these words; returns what is said from then on."""
    process = subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        while words not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGKILL)
        return process.stderr.read()  # until the last rank has ended
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, []), (1, ["--watchdog", "0"]), pytest.param(2, ["--ranks", "2"], marks=pytest.mark.mpi)],
)
def test_ranks_end_with_their_supervisor(tmp_path, ranks, options):
    if ranks > 1:
        mpiexec()
    mark = f"{os.getpid()}-{tmp_path}"
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path))
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "ENGINE_TEST": mark}
    command = own_command("train", "--solver", f"{tmp_path}/solver.prototxt", "--max_restarts", "2", *options)
    rest = killed_at("Iteration 20,", command, environ)
    assert rest.count("engine: the process that has started this run was killed: stopping it") == 1, rest
    assert "Optimization stopped early." in rest and "Snapshotting to" in rest, rest
    deadline = time.monotonic() + 10
    while ranks_of(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ranks_of(mark) == []


@pytest.mark.parametrize("options", [[], ["--max_restarts", "1"]])
def test_a_background_job_does_not_heed_the_terminals_interrupts(tmp_path, options):
    """A script that runs `engine train ... &` makes it ignore SIGINT."""
    text = SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path)
    (tmp_path / "solver.prototxt").write_text(text.replace("snapshot: 20", "snapshot_after_train: false"))
    command = own_command("train", "--solver", f"{tmp_path}/solver.prototxt", *options)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True, preexec_fn=ignore)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            seen = 0
            while seen < 5:
                line = process.stderr.readline()
                assert line, "it has ended"
                seen += ", lr = " in line
            process.send_signal(number)
        rest = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.wait()
    assert "SIGTERM: finishing iteration" in rest and "SIGINT" not in rest and process.returncode == 0


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("verb", ["verify", "groups"])
def test_what_has_started_ranks_ends_with_them(tmp_path, verb, number):
    mpiexec()
    mark = f"{os.getpid()}-{tmp_path}"
    text = SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path)
    (tmp_path / "solver.prototxt").write_text(text.replace("snapshot: 20", "snapshot_after_train: false"))
    train = ["train", "--solver", f"{tmp_path}/solver.prototxt"]
    words = {
        "verify": ["verify", *train[1:], "--ranks", "2", "--iterations", "1000000"],
        "groups": ["groups", "1", *train, "+", "1", *train],
    }
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "ENGINE_TEST": mark}
    command = own_command(*words[verb])
    process = subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        if verb == "groups":
            for _ in range(2):
                while "Iteration 20, lr = " not in (line := process.stderr.readline()):
                    assert line, "it has ended"
        else:  # verify says nothing until it ends
            while sum(reads_data(pid) for pid in ranks_of(mark)) < 2:
                assert process.poll() is None
                time.sleep(0.1)
        process.send_signal(number)
        rest = process.communicate(timeout=30)[1]  # until the last rank has ended; its sentinel ends a little later
        end = time.monotonic() + 10
        while ranks_of(mark) and time.monotonic() < end:
            time.sleep(0.1)
    finally:
        process.kill()
        for pid in (left := ranks_of(mark)):
            os.kill(pid, signal.SIGKILL)
    assert not left
    told = [line for line in rest.splitlines() if line.startswith(("engine: ", "interrupted", "Traceback"))]
    killed = "engine: the process that has started this run was killed: stopping it"
    if verb == "groups":  # each group is a run of its own
        assert rest.count("Optimization stopped early.") == 2
        assert told == [killed] * 2 * (number == signal.SIGKILL)
        assert process.returncode == (-number if number == signal.SIGKILL else 0)
    elif number == signal.SIGTERM:
        assert told[-1].startswith("engine: stopped by SIGTERM; what mpiexec says") and process.returncode == 143
    else:
        assert told == [killed if number == signal.SIGKILL else "interrupted (exit status 130)"]
        assert process.returncode == (-number if number == signal.SIGKILL else 130)


def test_the_last_test_ends_with_the_supervisor(tmp_path):
    """The test is broken off in order, with one message."""
    text = SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path).replace("1000000", "1")
    text += "test_iter: 1000000 test_interval: 10 test_initialization: false"
    (tmp_path / "solver.prototxt").write_text(text)
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1"}
    command = own_command("train", "--solver", f"{tmp_path}/solver.prototxt", "--max_restarts", "2")
    rest = killed_at("Iteration 1, Testing net (#0)", command, environ)
    told = [line for line in rest.splitlines() if line.startswith("engine: ")]
    assert told == ["engine: the process that has started this run was killed: stopping it"]
    assert "Test interrupted." in rest and "Optimization stopped early." in rest, rest


def test_a_run_whose_supervisor_dies_between_two_stages_ends_in_the_set_up_of_the_next(monkeypatch):
    done = subprocess.Popen([sys.executable, "-c", "pass"])
    monkeypatch.setenv("ENGINE_SUPERVISOR", identity(done.pid))
    done.wait()
    board = Board()
    rank = subprocess.Popen(["sleep", "60"])
    guard = Guard(selectors.SelectSelector(), 1, Watch(board, rank.pid, 0), None)
    board.enter(places.END)
    guard.tick(time.monotonic())
    assert rank.poll() is None and guard.interval
    board.enter(places.SET_UP)
    guard.tick(time.monotonic())
    assert rank.wait(10) == -signal.SIGTERM and guard.interval is None


@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]])
def test_only_the_flag_says_that_a_run_resumes(resume, monkeypatch):
    """A folder called "resume" must not be taken for the flag."""
    runs = []

    def run(command, environ):
        runs.append((command, "ENGINE_KNOWN_SNAPSHOTS" in environ))
        return 3, False

    monkeypatch.setattr(supervise, "_run", run)
    monkeypatch.setattr(supervise, "PAUSE_SECONDS", 0)
    command = ["train", "--solver", "x", "--tensorboard", "resume", *resume]
    assert main([*command, "--max_restarts", "1"]) == 3
    again = [*command, *([] if resume else ["--resume", "auto"])]
    assert runs == [(own_command(*each), not resume) for each in (command, again)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_launcher_makes_of_a_signal_is_not_told_as_a_crash(number, monkeypatch, capfd, tmp_path):
    """MPICH's mpiexec adds up the numbers of signals that have ended ranks: SIGINT (2) and SIGKILL (9) give 11, which
    is SIGSEGV."""
    heeds, wait = tmp_path / "heeds", subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process: heeds.touch() or wait(process))
    pauses = f"until [ -e '{heeds}' ]; do sleep 0.1; done; kill -{number.value} $PPID; while :; do sleep 0.1; done"
    shell = f"trap 'exit 11' {number.value}; {pauses}"
    monkeypatch.setattr(supervise, "command_for", lambda ranks, command: ["sh", "-c", shell])
    assert supervise.supervise(["train"], 2, 3) == 128 + number
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"engine: stopped by {number.name}; what mpiexec says")
