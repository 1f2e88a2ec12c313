"""A rank whose user's code has forked is noticed when it dies, although the child lives on."""

import time

import pytest

from tests.mpi import run_ranks

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
    assert time.monotonic() - begin < 12, "it was hidden until the child ended"
    named = [line for line in done.stderr.splitlines() if line.startswith(f"engine: rank {victim} (pid ")]
    assert len(named) == 1 and done.returncode != 0, done.stderr


@pytest.mark.mpi
def test_a_forked_child_does_not_speak_for_its_rank():
    child = "w._sentinel.farewell(); w._sentinel.failed(); os._exit(0)"
    done = run_ranks(2, FORKS.format(victim=1, killed=False, child=child), timeout=40)
    assert (done.stdout.count("end"), done.returncode, done.stderr) == (2, 0, "")
