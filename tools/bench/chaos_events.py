"""The events that tools/bench/chaos.py lets happen to a run. Each is a function, registered by event()."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos_run import Run

SECONDS_TO_END = 10.0
PATIENCE = 240.0  # seconds for a run that is to complete, on a crowded machine


@dataclass(frozen=True)
class Event:
    """Something that happens to a run.

    act: does it, and returns what was hit, for the report; raises ProcessLookupError if the run has ended before.
    ends: whether the run has to end by it; None if it may end or go on.
    needs: "root", "netlab", "terminal", "shim" (chaos_shim.c) or "ranks", more than one; "" for nothing.
    watchdog: whether only the watchdog can find out, which takes its time.
    """

    act: Callable[[Run], str]
    ends: bool | None
    needs: str = ""
    watchdog: bool = False


EVENTS: dict[str, Event] = {}


def event(ends: bool | None, needs: str = "", watchdog: bool = False) -> Callable:
    """Decorator: registers a function as an Event, under its name."""

    def register(act: Callable[[Run], str]) -> Callable[[Run], str]:
        EVENTS[act.__name__] = Event(act, ends, needs, watchdog)
        return act

    return register


def _signal_rank(run: Run, number: signal.Signals) -> str:
    rank = random.randrange(run.ranks)
    pid = run.pid_of(rank)
    os.kill(pid, number)
    return f"rank {rank}, pid {pid}"


@event(ends=True)
def kill(run: Run) -> str:
    """A rank dies."""
    return _signal_rank(run, signal.SIGKILL)


@event(ends=True, needs="ranks", watchdog=True)
def stop(run: Run) -> str:
    """A rank stands still, and the others miss it. (A single rank is a whole run, and may be suspended.)"""
    return _signal_rank(run, signal.SIGSTOP)


@event(ends=False)
def pause(run: Run) -> str:
    """A rank stands still, but for less than the watchdog's time."""
    rank = random.randrange(run.ranks)
    pid = run.pid_of(rank)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(run.options.watchdog * random.uniform(0.05, 0.3))
    os.kill(pid, signal.SIGCONT)
    return f"rank {rank}, pid {pid}"


@event(ends=True)
def kill_launcher(run: Run) -> str:
    """mpiexec, or the supervisor of --ranks and --max_restarts, dies."""
    os.kill(run.process.pid, signal.SIGKILL)
    return f"pid {run.process.pid}"


@event(ends=None)
def interrupt(run: Run) -> str:
    """The run gets the signal of a person or a scheduler. Before the training has begun, it ends at once."""
    number = random.choice([signal.SIGINT, signal.SIGTERM])
    os.kill(run.process.pid, number)
    return number.name


@event(ends=None)
def interrupt_rank(run: Run) -> str:
    return _signal_rank(run, random.choice([signal.SIGINT, signal.SIGTERM]))


@event(ends=None, needs="terminal")
def close_terminal(run: Run) -> str:
    """The terminal is closed: SIGHUP, and every later write fails. Launchers may end; a rank alone goes on."""
    os.close(run.screen)
    return "the terminal"


@event(ends=None, needs="root")
def fill_disk(run: Run) -> str:
    """The disk has no space for the next snapshot, or only for a part of it."""
    left = random.choice([0, 100, 20_000])
    try:
        with open(run.folder / "filler", "wb") as filler:
            filler.write(b"x" * max(0, shutil.disk_usage(run.folder).free - left))
    except OSError:  # a snapshot has filled the disk first
        pass
    return f"{left} bytes left"


@event(ends=False, needs="shim")
def step_clock(run: Run) -> str:
    """The time of day jumps, forwards or backwards."""
    seconds = random.choice([-86400.0, -3600.0, -5.0, 5.0, 3600.0, 86400.0])
    with open(run.folder / "clock", "r+b") as clock:  # in place, because the processes have mapped it
        clock.write(struct.pack("d", seconds))
    return f"{seconds:+.0f} s"


@event(ends=False)
def second_job(run: Run) -> str:
    """Somebody starts the same solver again while it runs. The run that takes the lock second is refused, and the
    other one is not disturbed."""
    again = Run(run.folder, run.options, run.ranks, environ=run.environ)
    again.start()
    again.end(PATIENCE)
    again.left_behind()
    if again.process.returncode == 0 and run.end(SECONDS_TO_END) is None:
        return "FAULT: both ran"
    return f"status {again.process.returncode}"


@event(ends=True, needs="netlab", watchdog=True)
def cut_link(run: Run) -> str:
    """The network between two hosts is gone, until the run has ended."""
    for rank in range(run.ranks):  # before the ranks have started, only mpiexec would notice the cut
        run.pid_of(rank)
    subprocess.run(["ip", "link", "set", "nlv2", "down"], check=True)
    return "the link of host 2"


@event(ends=False, needs="netlab")
def cut_link_shortly(run: Run) -> str:
    """The network between two hosts is gone for less than the watchdog's time."""
    subprocess.run(["ip", "link", "set", "nlv2", "down"], check=True)
    time.sleep(random.uniform(0.1, 0.3 * run.options.watchdog))
    subprocess.run(["ip", "link", "set", "nlv2", "up"], check=True)
    return "the link of host 2"
