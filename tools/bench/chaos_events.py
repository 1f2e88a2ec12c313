"""What tools/bench/chaos.py lets happen to a run: the functions that are marked as events."""

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
PATIENCE = 240.0  # for a run that is to complete, on a crowded machine


@dataclass(frozen=True)
class Event:
    """Something that happens to a run.

    `act` does it and returns what it did it to. `wait` seconds may pass until a run that it ends has ended, beside
    SECONDS_TO_END. `ends` tells whether a run ends by it: True, False, or None where both is right.
    """

    act: Callable[[Run], str]
    ends: bool | None
    needs: str = ""  # "root", "netlab", "terminal", "shim", "ranks": more than one
    watchdog: bool = False  # whether it is the watchdog that finds out


EVENTS: dict[str, Event] = {}


def event(ends: bool | None, needs: str = "", watchdog: bool = False) -> Callable:
    def register(act: Callable[[Run], str]) -> Callable[[Run], str]:
        EVENTS[act.__name__] = Event(act, ends, needs, watchdog)
        return act

    return register


def _signal_rank(run: Run, number: signal.Signals) -> str:
    rank = random.randrange(run.ranks)
    pid = run.pid_of(rank)
    os.kill(pid, number)
    return f"rank {rank} (pid {pid} "


@event(ends=True)
def kill(run: Run) -> str:
    """A rank dies."""
    return _signal_rank(run, signal.SIGKILL)


@event(ends=True, needs="ranks", watchdog=True)
def stop(run: Run) -> str:
    """A rank stands still, and the others miss it. A single one is the whole run, which may be suspended."""
    return _signal_rank(run, signal.SIGSTOP)


@event(ends=False)
def pause(run: Run) -> str:
    """A rank stands still for less than the watchdog's time."""
    rank = random.randrange(run.ranks)
    pid = run.pid_of(rank)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(run.options.watchdog * random.uniform(0.05, 0.3))
    os.kill(pid, signal.SIGCONT)
    return f"rank {rank} (pid {pid} "


@event(ends=True)
def kill_launcher(run: Run) -> str:
    """mpiexec, or the supervisor of --ranks and --max_restarts, dies."""
    os.kill(run.process.pid, signal.SIGKILL)
    return f"pid {run.process.pid}"


@event(ends=None)
def interrupt(run: Run) -> str:
    """A signal by which a person or a scheduler ends a run; before the training begins, it ends at once."""
    number = random.choice([signal.SIGINT, signal.SIGTERM])
    os.kill(run.process.pid, number)
    return number.name


@event(ends=None)
def interrupt_rank(run: Run) -> str:
    return _signal_rank(run, random.choice([signal.SIGINT, signal.SIGTERM]))


@event(ends=None, needs="terminal")
def close_terminal(run: Run) -> str:
    """SIGHUP, and every write fails from then on. Launchers may end; a rank alone goes on."""
    os.close(run.screen)
    return "the terminal"


@event(ends=None, needs="root")
def fill_disk(run: Run) -> str:
    """No byte is left for the next snapshot, or a few."""
    left = random.choice([0, 100, 20_000])
    try:
        with open(run.folder / "filler", "wb") as filler:
            filler.write(b"x" * max(0, shutil.disk_usage(run.folder).free - left))
    except OSError:  # a snapshot was quicker
        pass
    return f"{left} bytes left"


@event(ends=False, needs="shim")
def step_clock(run: Run) -> str:
    """The time of day jumps, forwards or backwards."""
    seconds = random.choice([-86400.0, -3600.0, -5.0, 5.0, 3600.0, 86400.0])
    with open(run.folder / "clock", "r+b") as clock:  # in place: processes have mapped it
        clock.write(struct.pack("d", seconds))
    return f"{seconds:+.0f} s"


@event(ends=False)
def second_job(run: Run) -> str:
    """Somebody starts the same solver again, while it runs: whichever comes second to the lock is refused, and the
    other is not disturbed."""
    again = Run(run.folder, run.options, run.ranks, environ=run.environ)
    again.start()
    again.end(PATIENCE)
    again.left_behind()
    if again.process.returncode == 0 and run.end(SECONDS_TO_END) is None:
        return "FAULT: both ran"
    return f"status {again.process.returncode}"


@event(ends=True, needs="netlab", watchdog=True)
def cut_link(run: Run) -> str:
    """The network between two hosts is gone; it comes back when the run has ended."""
    for rank in range(run.ranks):  # without them the cut is nobody's business but mpiexec's
        run.pid_of(rank)
    subprocess.run(["ip", "link", "set", "nlv2", "down"], check=True)
    return "the link of host 2"


@event(ends=False, needs="netlab")
def cut_link_shortly(run: Run) -> str:
    subprocess.run(["ip", "link", "set", "nlv2", "down"], check=True)
    time.sleep(random.uniform(0.1, 0.3 * run.options.watchdog))
    subprocess.run(["ip", "link", "set", "nlv2", "up"], check=True)
    return "the link of host 2"
