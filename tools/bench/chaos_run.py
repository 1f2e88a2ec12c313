"""Starts, finds and ends the runs of a training of the digits, which tools/bench/chaos.py disturbs."""

from __future__ import annotations

import argparse
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from engine.host.launch import OVERSUBSCRIBE, command_for, own_command  # noqa: E402

SOLVER = """
net: "{net}" base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.0005 random_seed: 1
max_iter: {iterations} display: 10 snapshot: 10 snapshot_prefix: "{folder}/net"
comm_param {{ bucket_mb: 0.1 chunk_mb: 0.1 watchdog: {watchdog} drift_check: 25 servers: 1 }}
"""
GLOBAL_BATCH = 32
LINGER_SECONDS = 8.0  # until all processes of a run that has ended must be gone, its sentinels included


@dataclass
class Run:
    """One run of a training. All its processes have a mark in their environment, by which they are found."""

    folder: Path  # of the training: solver and snapshots
    options: argparse.Namespace
    ranks: int
    style: str = "mpiexec"  # how its ranks are started: a name in STYLES
    terminal: bool = False  # whether it runs on a terminal of its own
    environ: dict[str, str] = field(default_factory=dict)  # added to the environment

    def start(self) -> None:
        """Starts the processes; its output is added to the training's log."""
        self.mark = f"ENGINE_CHAOS={uuid.uuid4()}"
        self.folder.mkdir(exist_ok=True)
        solver = self.folder / "solver.prototxt"
        net, iterations, watchdog = REPO / "nets/digits.prototxt", self.options.iterations, self.options.watchdog
        solver.write_text(SOLVER.format(net=net, folder=self.folder, iterations=iterations, watchdog=watchdog))
        batch = GLOBAL_BATCH // 4
        arguments = ["train", "--solver", str(solver), "--resume", "auto", "--set", f"iter_size={4 // self.ranks}"]
        arguments += ["--set", f"layer[data].data_param.batch_size={batch}"]
        paths = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        mark = dict([self.mark.split("=")])
        environ = {**OVERSUBSCRIBE, **os.environ, **self.environ, **mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        environ["ENGINE_WATCHDOG"] = str(watchdog)  # holds until a rank has read its solver; the default is 60 s
        command = STYLES[self.style](self, arguments)
        self.begin = time.monotonic()
        self.log_begin = len(self.text())
        if self.terminal:
            self._start_on_terminal(command, environ)
        else:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    command, cwd=REPO, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip

    def _start_on_terminal(self, command: list[str], environ: dict[str, str]) -> None:
        """Starts the command on a terminal of its own. What it writes is copied into the log until the terminal is
        closed."""
        self.screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command], cwd=REPO, env=environ, stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

        def copy() -> None:
            with open(self.log, "ab") as log:
                while True:
                    try:
                        text = os.read(self.screen, 4096)
                    except OSError:  # closed, by us or by its last process
                        return
                    if not text:
                        return
                    log.write(text.replace(b"\r\n", b"\n"))
                    log.flush()

        threading.Thread(target=copy, daemon=True).start()

    @property
    def log(self) -> Path:
        """The path of the log. It lies beside the folder, which may be on a full disk."""
        return self.folder.with_suffix(".log")

    def text(self) -> str:
        """Returns all that the training's runs have written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def own_text(self) -> str:
        """Returns what this run has written so far."""
        return self.text()[self.log_begin :]

    def processes(self) -> dict[int, int | None]:
        """Returns the rank of each process of the run by its id; None for sentinels and the launcher."""
        found: dict[int, int | None] = {}
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if self.mark.encode() in variables:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    rank = next((v for v in variables if re.match(rb"(PMI|OMPI_COMM_WORLD)_RANK=", v)), None)
                    number = int(rank.split(b"=")[1]) if rank else 0 if self.alone() else None
                    is_rank = number is not None and b"train" in words and words[1].endswith(b"/__main__.py")
                    found[int(entry.name)] = number if is_rank else None
            except OSError:  # it has just ended
                continue
        return found

    def alone(self) -> bool:
        """Returns whether the run is a single rank without a launcher: mpiexec is not used for one."""
        return self.ranks == 1 and self.style == "mpiexec"

    def pid_of(self, rank: int) -> int:
        """Waits until a rank has started, and returns its process id. Raises ProcessLookupError if the run has ended,
        or the rank has not started in 10 seconds."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            for pid, number in self.processes().items():
                if number == rank:
                    return pid
            time.sleep(0.02)
        raise ProcessLookupError

    def end(self, seconds: float) -> float | None:
        """Waits until the run has ended, at most so many seconds. Returns how long that took, None if it goes on."""
        begin = time.monotonic()
        try:
            self.process.wait(seconds)
            return time.monotonic() - begin
        except subprocess.TimeoutExpired:
            return None

    def ranks_end(self, seconds: float) -> float | None:
        """Does what end() does for the ranks alone: mpiexec waits for a host that does not answer, however long."""
        begin = time.monotonic()
        while any(rank is not None for rank in self.processes().values()):
            if time.monotonic() - begin > seconds:
                return None
            time.sleep(0.1)
        return time.monotonic() - begin

    def left_behind(self) -> int:
        """Ends the processes that live on after LINGER_SECONDS. Returns how many these were."""
        deadline = time.monotonic() + LINGER_SECONDS
        while (pids := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        return len(pids)

    def phase(self) -> str:
        """Returns "set-up", "training" or "end", by what the run has written."""
        text = self.own_text()
        return "set-up" if "Solving" not in text else "training" if "Optimization Done." not in text else "end"


# A program that makes the terminal on its standard input the controlling one of its session, as a shell's is, and then
# becomes the command that it is given.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def _by_netlab(run: Run, arguments: list[str]) -> list[str]:
    return [run.options.netlab, "run", str(run.ranks), *own_command(*arguments)]


# How ranks are started -> a function that returns the command for a run and the arguments of engine.
STYLES: dict[str, Callable[[Run, list[str]], list[str]]] = {
    "mpiexec": lambda run, arguments: command_for(run.ranks, arguments),
    "--ranks": lambda run, arguments: own_command(*arguments, "--ranks", str(run.ranks)),
    "--max_restarts": lambda run, arguments: own_command(*arguments, "--ranks", str(run.ranks), "--max_restarts", "2"),
    "netlab": _by_netlab,
}
