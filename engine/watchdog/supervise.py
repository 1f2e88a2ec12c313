"""Starts ranks on this host; for `engine train --ranks N --max_restarts M`, restarts them after a crash."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from engine.errors import ConfigError
from engine.host.interrupts import is_ignored
from engine.host.launch import OVERSUBSCRIBE, command_for, detect, own_command
from engine.watchdog.process import command_of, descendants, identity

# Statuses after which a restart would not help: done, an error in the input, wrong usage, interrupted.
FINAL = (0, 1, 2, 130)
PAUSE_SECONDS = 2.0  # before a restart, for the last of the ranks to end
RELAY_SECONDS = 2.0  # to copy what a launcher has printed last, even if another process holds its streams open
IMPATIENCE_SECONDS = 10.0  # a second SIGINT within these goes to the launcher, which ends even ranks that hang
OWN_OPTIONS = ("ranks", "max_restarts")


def supervise(arguments: Sequence[str], ranks: int, max_restarts: int, resumes: bool = False) -> int:
    """Runs `engine arguments...`, and again with --resume auto after each crash. Returns the last exit status.

    Signals are passed on to the ranks; after one, there are no more restarts. If this process is killed the ranks
    notice, and end. A restart does not resume from snapshots that are older than the run, unless the run itself
    resumes; the ranks note which these are. Raises ConfigError under a launcher, CommError if there is no mpiexec.

    Args:
        arguments: of the command line, `train` first.
        ranks: how many to start.
        max_restarts: after crashes.
        resumes: whether --resume is among the arguments.
    """
    if detect() is not None:
        raise ConfigError("--ranks and --max_restarts start the ranks themselves: not under mpiexec or srun")
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        return _supervise(without(arguments, OWN_OPTIONS), ranks, max_restarts, resumes, folder)


def run_ranks(ranks: int, arguments: Sequence[str]) -> int:
    """Runs `engine arguments...` on so many ranks of this host; returns the exit status. As under supervise(), signals
    are passed on to the ranks, which end if this process is killed. Raises CommError if there is no mpiexec."""
    return _run(command_for(ranks, arguments), _environ())[0]


def _environ() -> dict[str, str]:
    return {**OVERSUBSCRIBE, **os.environ, "ENGINE_SUPERVISOR": identity(os.getpid())}


def _supervise(command: Sequence[str], ranks: int, max_restarts: int, resumes: bool, folder: str) -> int:
    """Runs and restarts the ranks. folder: where they note which snapshots are older than the run."""
    environ = _environ()
    if not resumes:
        environ["ENGINE_KNOWN_SNAPSHOTS"] = os.path.join(folder, "known")
    for attempt in range(max_restarts + 1):
        again = attempt > 0 and not resumes
        status, stopped = _run(command_for(ranks, [*command, *(["--resume", "auto"] if again else [])]), environ)
        if stopped or status in FINAL:
            return status
        if attempt < max_restarts:
            _say(f"the run has ended with status {status}: restart {attempt + 1} of {max_restarts}")
            time.sleep(PAUSE_SECONDS)
    if max_restarts:
        _say(f"the run has ended with status {status}: no restart is left")
    return status


def without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns a command line without the options of these names and their values."""
    found, words = [], iter(arguments)
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        if word.startswith("-") and name in names:
            if not equals:
                next(words, None)
        else:
            found.append(word)
    return found


def _run(command: Sequence[str], environ: dict[str, str]) -> tuple[int, bool]:
    """Runs a command. Returns its exit status (128 + n for signal n), and whether this process was told to stop
    meanwhile."""
    told: list[int] = []
    launcher = command[: len(own_command())] != own_command()
    # A launcher ends the ranks when the terminal that it prints on is gone: let it print into pipes instead.
    out, err = (subprocess.PIPE if launcher and os.isatty(number) else None for number in (1, 2))
    # In a session of its own: a terminal's Ctrl-C would reach the ranks twice.
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    relays = [
        threading.Thread(target=_relay, args=(source.fileno(), target), daemon=True)
        for source, target in ((process.stdout, 1), (process.stderr, 2))
        if source is not None
    ]
    for relay in relays:
        relay.start()

    interrupted, insisted = -math.inf, False  # when SIGINT came; whether it came again within IMPATIENCE_SECONDS

    def pass_on(number: int, frame) -> None:
        nonlocal interrupted, insisted
        if number != signal.SIGHUP:
            told.append(number)
        again = number == signal.SIGINT and time.monotonic() - interrupted < IMPATIENCE_SECONDS
        if number == signal.SIGINT:
            interrupted, insisted = time.monotonic(), insisted or again
        # Signal the ranks, not the launcher: any launcher would end by SIGHUP, and Open MPI's kills the ranks a second
        # after SIGINT or SIGTERM, maybe amid a snapshot.
        ranks = _ranks_below(process.pid) if launcher and not again else []
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, number)
        if not ranks and (number != signal.SIGHUP or not launcher):
            process.send_signal(number)

    heeded = (signal.SIGTERM, signal.SIGHUP) if is_ignored() else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for relay in relays:
        relay.join(RELAY_SECONDS)
    status = status if status >= 0 else 128 - status
    # MPICH's launcher adds up the signals that end ranks (2 and 9 look like SIGSEGV), and may return 0 if it has ended
    # the ranks itself.
    if told and launcher and (status not in FINAL or (insisted and status == 0)):
        _say(f"stopped by {signal.Signals(told[0]).name}; what mpiexec says of signals is how it has ended the ranks")
        status = 128 + told[0]
    return status, bool(told)


def _ranks_below(launcher: int) -> list[int]:
    """Returns the processes that run engine, of those that a launcher has started on this host."""
    return [pid for pid in descendants(launcher) if own_command()[1] in command_of(pid)[:2]]


def _relay(source: int, target: int) -> None:
    """Copies one descriptor to another until the source ends. Where the target takes no more it reads on, so that the
    writer does not wait."""
    while block := os.read(source, 1 << 16):
        with contextlib.suppress(OSError):
            while block:
                block = block[os.write(target, block) :]


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # this process may outlive its terminal
        print(f"engine: {text}", file=sys.stderr, flush=True)
