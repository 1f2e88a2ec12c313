"""A rank's death is noticed even if its user's code has forked a child that lives on. Rank and child handle their
signals separately."""

import subprocess
import sys
import time

import pytest

from tests.mpi import REPO, run_ranks

FORKS = """
import os, sys, time
from engine.comm.world import world
w = world()
w.barrier()
if w.rank == {victim}:
    if os.fork() == 0:  # as multiprocessing does for a layer that prefetches
        {child}
        time.sleep(25)
        os._exit(0)
    time.sleep(0.5)
    if {killed}:
        os.kill(os.getpid(), 9)
if {killed}:
    w.barrier()
    time.sleep(60)
w.barrier()
w.close()
print("end", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("victim", [0, 1])
def test_a_forked_child_does_not_hide_the_death_of_its_rank(victim):
    begin = time.monotonic()
    done = run_ranks(2, FORKS.format(victim=victim, killed=True, child="pass"), timeout=40)
    assert time.monotonic() - begin < 20, "it was hidden until the child ended"
    named = [line for line in done.stderr.splitlines() if line.startswith(f"engine: rank {victim} (pid ")]
    assert len(named) == 1 and done.returncode != 0, done.stderr


@pytest.mark.mpi
def test_a_forked_child_does_not_speak_for_its_rank():
    child = "w._sentinel.farewell(); w._sentinel.failed(); os._exit(0)"
    done = run_ranks(2, FORKS.format(victim=1, killed=False, child=child), timeout=40)
    assert (done.stdout.count("end"), done.returncode, done.stderr) == (2, 0, "")


SIGNALLED = """
import multiprocessing, os, signal, time
from engine.solver.signals import Signals
signals, told, default = Signals(), [], signal.getsignal(signal.SIGHUP)
signals.on_stop = told.append
signals.heed_hangups()
context = multiprocessing.get_context("fork")
runs = context.Event()

def child():
    runs.set()
    time.sleep(30)

with signals:
    child = context.Process(target=child, daemon=True)
    child.start()
    assert runs.wait(10)
    child.terminate()
    child.join(10)
    assert child.exitcode == -signal.SIGTERM, child.exitcode
    time.sleep(0.2)
    assert not told and not signals.flags
    read, write = os.pipe()
    if os.fork() == 0:  # which leaves the block as its parent does
        os.write(write, b"1" if signal.getsignal(signal.SIGHUP) is default else b"0")
    else:
        os.waitpid(-1, 0)
        assert os.read(read, 1) == b"1"
print("end", flush=True)
with signals:  # notes signals again
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.flags
"""


def test_a_forked_child_has_signals_of_its_own():
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, cwd=REPO)
    assert (done.stdout.count("end"), done.returncode, done.stderr) == (2, 0, "")


LEFT_ALONE = """
import ctypes, os, time
from tests.solver.harness import *
solver = make_solver("max_iter: 2", digits_net(), {folder!r})

def fork():
    if solver.iteration == 1 and {fork} == 0:
        time.sleep(30)
        os._exit(0)

solver.on_gradients = fork
begin = time.monotonic()
assert solver.solve() and time.monotonic() - begin < 20, "it waited for its child"
solver.close()
os.killpg(0, 9)
"""


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])  # Python does not see the second one
def test_a_run_does_not_wait_for_a_forked_child(fork, tmp_path):
    program = LEFT_ALONE.format(folder=str(tmp_path), fork=fork)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPO, start_new_session=True)
    assert done.returncode == -9 and (tmp_path / "net_iter_2.solverstate").exists(), done.stderr
