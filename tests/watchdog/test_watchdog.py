"""A run that hangs ends by itself, and says where each rank was."""

import os
import pty
import re
import selectors
import signal
import socket
import subprocess
import sys
import termios
import time

import pytest

from engine import proto
from engine.comm.settings import watchdog_seconds
from engine.config import parse_net
from engine.errors import ConfigError
from engine.net import Net
from engine.watchdog import board as places
from engine.watchdog.board import Board
from engine.watchdog.guard import Watch
from engine.watchdog.hub import Hub
from engine.watchdog.report import Answer, report
from tests.mpi import ENVIRON, REPO, mpiexec, run_ranks
from tests.watchdog.test_dead_rank import SOLVER, pid_of_rank

SECONDS = 3.0  # longer than any step, also on a busy machine


def train(folder, ranks: int, servers: int = 2, *arguments: str) -> subprocess.Popen:
    """Starts a training of the digits."""
    (folder / "solver.prototxt").write_text(SOLVER.format(net=REPO / "nets/digits.prototxt", folder=folder))
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "MLSL_NUM_SERVERS": str(servers)}
    environ["ENGINE_TEST"] = str(os.getpid())
    command = [sys.executable, "-m", "engine", "train", "--solver", folder / "solver.prototxt", *arguments]
    if ranks > 1:
        command = [mpiexec(), "-n", str(ranks), *command]
    return subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Reads what a process says until it has said `text`."""
    lines = []
    while text not in (line := process.stderr.readline()):
        lines.append(line)
        assert line, "".join(lines)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "victim", "servers"), [(2, 0, 2), pytest.param(2, 1, 0, marks=pytest.mark.slow), (4, 2, 2)]
)
def test_a_stopped_rank_is_named(tmp_path, ranks, victim, servers):
    stop_one(tmp_path, train(tmp_path, ranks, servers, "--watchdog", str(SECONDS)), victim, "Iteration 60,")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ASYNC", "LOCAL"])
def test_a_stopped_rank_is_named_where_ranks_do_not_wait_for_each_other(tmp_path, mode):
    """The rank is stopped between two snapshots, at which ranks do wait for each other."""
    words = ("--watchdog", str(SECONDS), "--set", f"comm_param.mode={mode}", "--set", "snapshot=100")
    stop_one(tmp_path, train(tmp_path, 2, 1, *words), 1, "Snapshotting solver state", ", loss = ")


def stop_one(tmp_path, process: subprocess.Popen, victim: int, *said: str) -> None:
    """Stops a rank as soon as its run has said all of `said`, and checks what the run says of it."""
    try:
        for text in said:
            wait_for(process, text)
        stopped = pid_of_rank(victim)
        os.kill(stopped, signal.SIGSTOP)
        begin = time.monotonic()
        _, rest = process.communicate(timeout=40)
    finally:
        process.terminate()
    assert process.returncode != 0 and SECONDS <= time.monotonic() - begin < SECONDS + 15
    lines = [line for line in rest.splitlines() if line.startswith("engine:")]
    assert lines[0].startswith(
        f"engine: no progress for {SECONDS:g} s, stopping all ranks: rank {victim} (pid {stopped} on "
    ), rest
    assert "is stopped by a signal (SIGSTOP): iteration " in lines[0]
    assert re.fullmatch(rf"engine:   the last snapshot is {tmp_path}/net_iter_\d+\.solverstate", lines.pop()), rest
    told = [number for line in lines[1:] for number in re.match(r"engine:   ranks? ([\d,-]+), for", line)[1].split(",")]
    assert len(told) >= 1 and all("iteration" in line for line in lines[1:]), rest
    assert [line for line in lines if "no progress" in line] == lines[:1]
    assert pid_of_rank(victim) is None


@pytest.mark.mpi
def test_a_run_that_is_suspended_as_a_whole_goes_on(tmp_path):
    process = train(tmp_path, 2, 2, "--watchdog", str(SECONDS), "--set", "max_iter=200", "--set", "snapshot=1000")
    try:
        wait_for(process, "Iteration 20,")
        pids = [pid_of_rank(0), pid_of_rank(1)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(SECONDS + 2)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        _, rest = process.communicate(timeout=60)
    finally:
        process.terminate()
    assert process.returncode == 0 and "Optimization Done." in rest and "no progress" not in rest, rest


COMPLETE = """
import os, signal
from engine.comm.world import world
w = world()
w.watch(1)
complete = w._sentinel.complete
def stop():
    complete()
    if w.rank == {rank}:
        os.kill(os.getpid(), signal.SIGSTOP)
w._sentinel.complete = stop
w.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_stopped_when_the_run_is_complete(rank):
    begin = time.monotonic()
    done = run_ranks(3, COMPLETE.format(rank=rank), timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert done.returncode != 0 and time.monotonic() - begin < 40
    assert len([line for line in lines if f"rank {rank} (pid" in line and "(SIGSTOP)" in line]) == 1, done.stderr
    assert "died" not in done.stderr


EXIT = """
import os, signal
from engine.comm.world import world
w = world()
w.watch(1)
w.close()
w._sentinel._process.stdin.close()  # as the interpreter does when it ends
if w.rank == {rank}:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_on_its_way_out(rank):
    done = run_ranks(2, EXIT.format(rank=rank), timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert f"rank {rank} (pid" in lines[0] and "(SIGSTOP)" in lines[0], done.stderr
    assert lines[1:] == ["engine:   the run was complete, all its files are written"]


NOT_UP = """
import os, signal
from engine.comm.world import world
from engine.host.launch import detect
if detect().rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
world()
"""


@pytest.mark.mpi
def test_one_rank_tells_where_rank_0_does_not_come_up():
    """Rank 0's sentinel, which would choose the rank that speaks, is not there."""
    done = run_ranks(3, NOT_UP, timeout=60, environ={"ENGINE_WATCHDOG": "0.1"})
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    assert done.returncode != 0 and len(lines) in (1, 2), done.stderr  # two, if the other rank looks before it is ended
    told = r"engine: rank [12] \(pid .*\) waits for MPI: a rank has not come up for \d+ s: stopping it"
    assert all(re.match(told, line) for line in lines)


SLEEPS = """
import sys, time
from engine.cli import main
from engine.data.prefetch import Prefetcher
from engine.comm.world import world
take = Prefetcher.next
count = 0
def slow(self):
    global count
    count += 1
    if count == 40 and world().rank == {rank}:
        time.sleep(60)
    return take(self)
Prefetcher.__next__ = slow
sys.exit(main(["train", "--solver", "solvers/digits.prototxt", "--watchdog", "3",
    "--set", "test_initialization=false", "--set", "snapshot_prefix={folder}/net"]))
"""


@pytest.mark.mpi
def test_a_rank_that_waits_for_data_is_named(tmp_path):
    done = run_ranks(3, SLEEPS.format(rank=1, folder=tmp_path), timeout=90)
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine:")]
    assert done.returncode != 0
    assert "stopping all ranks: rank 1 (pid " in lines[0], done.stderr
    assert lines[0].endswith("): iteration 39, waits for data from layer 'data' (examples/digits/digits_train_lmdb)")
    assert re.match(r"engine:   ranks 0,2, for \d+ s: iteration (39|40), .*waits for the ", lines[1]), lines


def test_one_rank_is_watched_too(tmp_path):
    program = SLEEPS.format(rank=0, folder=tmp_path)
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=90)
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine:")]
    assert done.returncode == -signal.SIGKILL and len(lines) == 1
    assert lines[0].endswith("): iteration 39, waits for data from layer 'data' (examples/digits/digits_train_lmdb)")


def test_a_board_is_read_by_another():
    mine = Board()
    theirs = Board(mine.descriptor)
    assert theirs.text() == "set-up" and theirs.is_slow()
    mine.describe_net(0, ["conv1", "ip"], ["layer 'data'"], ["ip", "conv1"])
    mine.iteration(7)
    mine.numbers[places.PLACE], mine.numbers[places.OP] = places.BACKWARD, 1
    assert theirs.text() == "iteration 7, backward of layer ip" and not theirs.waits_for_others()
    mine.enter(places.UPDATE, 1)
    assert theirs.text() == "iteration 7, waits for the last update, waits for the gradients of bucket 1 (conv1)"
    mine.net(2)
    mine.enter(places.DATA)
    assert theirs.text() == "iteration 7, test net #1, waits for data from its source"
    mine.enter(places.UPDATE)
    mine.away(True)
    assert theirs.text() == "iteration 7, the program's own code" and not theirs.waits_for_others()


def test_a_wait_within_a_wait_does_not_end_it():
    """A collective operation may be made up of others, so waits are nested."""
    board = Board()
    board.enter(places.DATA)
    with board.waiting():
        with board.waiting():
            pass
        assert board.waits_for_others() and board.text().endswith("waits for the other ranks")
    assert not board.waits_for_others()


def test_the_executor_writes_to_the_board():
    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "tanh" type: "TanH" bottom: "x" top: "y" }"""
    board, net = Board(), Net(parse_net(text), proto.TEST)
    net.set_board(board, 0, [])
    net.forward()
    assert board.text() == "iteration 0, forward of layer tanh" and board.beats() == (len(net.program), 0)


def test_how_long_is_too_long():
    board = Board()
    watch = Watch(board, os.getpid(), 2.0)
    begin = watch.since
    watch.look(begin + 1)
    assert not watch.is_stuck(begin + 2.5), "set-up may take ten times as long"
    board.enter(places.DATA)
    for seconds in (2.0, 3.5):
        watch.look(begin + seconds)
    assert not watch.is_stuck(begin + 3.5) and watch.is_stuck(begin + 4)
    watch.look(begin + 60)  # it was stopped itself, and so has not looked for long
    assert not watch.is_stuck(begin + 61)
    board.away(True)
    for seconds in range(61, 201):
        watch.look(begin + seconds)
    assert not watch.is_stuck(begin + 200), "a program's own code may take as long as it likes"
    watch.set_limit(0)
    assert not watch.is_stuck(begin + 1000)


def test_the_hub_names_nobody_before_all_have_joined(capfd):
    """If one rank dies, the launcher kills the others. So the first that the hub misses need not be the first that
    died."""
    for joined, named in ((2, False), (3, True)):
        hub = Hub(selectors.DefaultSelector())
        hub.expected = 3
        pairs = [socket.socketpair() for _ in range(joined)]
        for number, (ours, theirs) in enumerate(pairs):
            hub.admit(theirs)
            ours.sendall(f"rank {hub.token} {number} {10 + number} n1\nhere\n".encode())
        for event in (None, pairs[1][0].close):
            if event:
                event()
            for key, _ in hub.selector.select(1):
                key.data()
        assert hub.ended and hub.stop_at is not None
        assert ("rank 1 (pid 11 on n1) died" in capfd.readouterr().err) == named


@pytest.mark.parametrize(("left", "judged"), [(2, False), (1, True)])
def test_stopped_ranks_are_a_suspended_run_only_if_they_are_all(capfd, left, judged):
    hub = Hub(selectors.DefaultSelector())
    hub.expected, hub.seconds = 2, 5.0
    hub.answers = {f"{rank}": Answer(rank, 10 + rank, "n1", 9.0, "T", False, "end of the run") for rank in range(left)}
    hub.judge()
    assert hub.ended == judged and ("rank 0 (pid 10 on n1) is stopped" in capfd.readouterr().err) == judged


def test_a_run_waits_for_the_terminal_that_somebody_has_stopped():
    """Somebody has pressed Ctrl-S, to read what is on the screen."""
    hub = Hub(selectors.DefaultSelector())
    hub.expected, hub.seconds = 1, 5.0
    screen, terminal = pty.openpty()
    before = os.dup(2)
    os.dup2(terminal, 2)
    try:
        for judged, flow in ((False, termios.TCOOFF), (True, termios.TCOON)):
            termios.tcflow(terminal, flow)
            hub.answers = {"0": Answer(0, 10, "n1", 9.0, "S", False, "here")}
            hub.judge()
            assert hub.ended == judged
        assert b"no progress for 5 s" in os.read(screen, 4096)
    finally:
        termios.tcflow(terminal, termios.TCOON)
        os.dup2(before, 2)
        for descriptor in (screen, terminal, before):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("idle", "waits", "judged"),
    [
        *[((9.0, 1.0), (True, False), False), ((9.0, 4.0), (True, False), False), ((9.0, 1.0), (True, True), False)],
        *[((9.0, 5.0), (True, False), True), ((1.0, 5.0), (True, False), True), ((9.0, 5.0), (True, True), True)],
    ],
)
def test_a_slow_rank_is_waited_for_while_it_makes_progress(idle, waits, judged):
    hub = Hub(selectors.DefaultSelector())
    hub.expected, hub.seconds = 2, 5.0
    hub.answers = {f"{rank}": Answer(rank, 10 + rank, "n1", idle[rank], "S", waits[rank], "here") for rank in range(2)}
    hub.judge()
    assert hub.ended == judged


SLOW = """
import time
from engine.comm.world import world
from engine.watchdog.board import DATA
w = world()
w.board.enter(DATA)
w.watch(0.5)
for _ in range(9 if w.rank == 1 else 0):
    time.sleep(0.2)
    w.board.beat()
w.barrier()
print("all there", flush=True)
w.close()
"""


@pytest.mark.mpi
def test_ranks_wait_for_a_slow_one_for_any_time():
    done = run_ranks(3, SLOW, timeout=60)
    assert done.returncode == 0 and done.stdout.count("all there") == 3, done.stderr


def test_who_is_blamed():
    def answer(rank: int, idle: float, state: str = "S", waits: bool = True, text: str = "iteration 3, here") -> Answer:
        return Answer(rank, 10 + rank, "n1", idle, state, waits, text)

    waiting = [answer(rank, 60) for rank in (0, 1, 3)]
    lines = report(60, [*waiting, answer(2, 61, waits=False, text="iteration 3, backward of layer x")], []).splitlines()
    assert lines == [
        "engine: no progress for 60 s, stopping all ranks: rank 2 (pid 12 on n1): iteration 3, backward of layer x",
        "engine:   ranks 0-1,3, for 60 s: iteration 3, here",
    ]
    assert "rank 2 (pid 12 on n1) waits for a disk" in report(60, [*waiting, answer(2, 61, "D")], [])
    assert "rank 2 (pid 12 on n1): no answer, is the host down?" in report(60, waiting, ["rank 2 (pid 12 on n1)"])
    assert "all ranks wait for each other" in report(60, waiting, [])


def test_the_limit():
    class Param:
        watchdog = 5.0

    assert watchdog_seconds(environ={}) == 60 and watchdog_seconds(Param, {}) == 5
    assert watchdog_seconds(Param, {"ENGINE_WATCHDOG": "2.5"}) == 2.5
    with pytest.raises(ConfigError, match=r'ENGINE_WATCHDOG="soon": expected seconds, 0 or more'):
        watchdog_seconds(None, {"ENGINE_WATCHDOG": "soon"})
