"""If one rank ends, in whatever way, all end soon, and the reason is told once."""

import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.mpi import REPO, run_ranks

PROGRAM = """
import os, sys, time
from types import SimpleNamespace
from engine.comm.world import world
def kill(pid=os.getpid(), kill=os.kill, write=os.write):
    write(1, b"PID %d\\n" % pid)
    kill(pid, 9)
class Late:
    def __del__(self, kill=kill):
        kill()
w = world()
w.gather(0)
how, who = {how!r}, {who}
if w.rank == who or who is None:
    time.sleep(0.2)
    if how == "kill":
        kill()
    if how == "abort":
        w.abort("solver.prototxt:3:1: no such thing")
    if how == "finalize":  # where all the others are, too
        w._mpi = SimpleNamespace(Finalize=kill)
    if how == "exit late":  # when the interpreter clears the modules away
        sys.last = Late()
    if how == "exit":
        sys.exit(3)
    w.barrier()
else:
    while time.sleep(0.001) is None and {busy}:  # the others compute, or wait in MPI
        pass
    w.barrier()
w.close()
print("end", flush=True)
"""


def sentinels(mark: str) -> list[str]:
    """Returns the process ids of the sentinels with `mark` in their environment, which are those of one run."""
    found = subprocess.run(["pgrep", "-f", "engine/watchdog"], capture_output=True, text=True).stdout.split()
    return [pid for pid in found if mark.encode() in environment_of(pid)]


def environment_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # the process has ended
        return b""


def end(ranks: int, how: str, who: int | None, busy: bool = False) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Runs PROGRAM; returns the finished process and the lines on stderr that are the engine's."""
    mark = f"SENTINELS_OF={uuid.uuid4()}"
    begin = time.monotonic()
    environ = dict([mark.split("=")])
    done = run_ranks(ranks, PROGRAM.format(how=how, who=who, busy=busy), timeout=60, environ=environ)
    assert time.monotonic() - begin < 30
    deadline = time.monotonic() + 6
    while sentinels(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not sentinels(mark), "sentinels outlive their ranks"
    return done, [line for line in done.stderr.splitlines() if "engine:" in line or "prototxt" in line]


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "who", "busy"), [(2, 0, False), (2, 1, True), (4, 0, True), (4, 2, False)])
def test_a_killed_rank_is_named_once(ranks, who, busy):
    done, lines = end(ranks, "kill", who, busy)
    pid = done.stdout.split()[1]
    assert done.returncode != 0 and "end" not in done.stdout
    assert len(lines) == 1 and lines[0].startswith(f"engine: rank {who} (pid {pid} on "), done.stderr
    assert lines[0].endswith("died, killed or crashed (dmesg tells whether for want of memory): stopping all ranks")


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "who"), [(2, 0), (4, 3)])
@pytest.mark.parametrize("how", ["finalize", "exit late"])
def test_a_rank_that_is_killed_on_its_way_out(how, ranks, who):
    done, lines = end(ranks, how, who)
    pid = done.stdout.partition("PID ")[2].split()[0]
    assert done.returncode != 0
    assert len(lines) == 1 and lines[0].startswith(f"engine: rank {who} (pid {pid} on "), done.stderr
    assert lines[0].endswith("stopping all ranks; the run was complete, all its files are written")


@pytest.mark.mpi
def test_a_rank_that_leaves_without_a_word():
    """Even if a rank ends by exit(), a line names it."""
    done, lines = end(2, "exit", 1)
    assert done.returncode != 0
    assert len(lines) == 1 and lines[0].startswith("engine: rank 1 "), done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "who"), [(2, 1), (4, 0), (4, None)])
def test_an_abort_tells_its_reason_once(ranks, who):
    done, lines = end(ranks, "abort", who)
    assert done.returncode == 1
    assert lines == ["solver.prototxt:3:1: no such thing"], done.stderr
    assert "Abort" not in done.stderr


@pytest.mark.mpi
def test_an_orderly_end_is_quiet():
    begin = time.monotonic()
    done, lines = end(2, "close", 1)
    assert (done.returncode, lines, done.stderr) == (0, [], "")
    assert done.stdout.count("end") == 2
    assert time.monotonic() - begin < 30


def test_a_sentinel_ends_with_its_rank_without_others():
    program = "from engine.watchdog.sentinel import Sentinel; "
    program += "from engine.watchdog.board import Board; "
    program += "s = Sentinel(0, Board()); print(s.hub(one_host=True), s._process.pid)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=20)
    token, *addresses, pid = done.stdout.split()
    assert len(token) == 32 and all(":" in address for address in addresses)
    deadline = time.monotonic() + 5
    while environment_of(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not environment_of(pid)


REDUCING = """
import os, signal, subprocess, sys, threading, time
import numpy as np
from engine.comm.world import world
w = world()
channel, values = w.channel(), np.ones(152_080, np.float32)
channel.allreduce(values)
pids = w.broadcast_object(w.gather(os.getpid()))
victim, other = pids[{victim}], pids[1 - {victim}]
if w.rank == {victim}:
    memory = np.ones(60_000_000)
    # The other goes on when the victim's memory is out of reach, and its connections are not closed yet.
    script = f"import os, time\\nwhile open('/proc/{{victim}}/cmdline').read(): pass\\nos.kill({{other}}, 18)"
    subprocess.Popen([sys.executable, "-c", script])
    w.barrier()
    time.sleep(0.3)
    os.kill(other, signal.SIGSTOP)
    threading.Thread(target=channel.allreduce, args=[values], daemon=True).start()
    time.sleep(0.2)
    print("PID", victim, flush=True)
    os.kill(victim, signal.SIGKILL)
w.barrier()
channel.allreduce(values)
time.sleep(10)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("victim", [0, 1])
def test_the_killed_rank_is_named_also_if_mpi_misses_it_first(victim):
    done = run_ranks(2, REDUCING.format(victim=victim), timeout=30)
    assert "Fatal error" not in done.stderr, "MPI has ended a rank by itself"
    lines = [line for line in done.stderr.splitlines() if "engine:" in line]
    assert len(lines) == 1 and lines[0].startswith(f"engine: rank {victim} (pid {done.stdout.split()[1]} "), done.stderr
