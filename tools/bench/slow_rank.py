#!/usr/bin/env python3
"""Measures what one slow rank costs the others: training on two ranks, of which the second is disturbed, mode by mode.

    python tools/bench/slow_rank.py --rounds 3
    python tools/bench/slow_rank.py --how stop --seconds 20

Every round runs, one after the other, each mode of comm_param undisturbed and disturbed. Each rank has one thread and
one core (rank r is bound to core r); rank 0 counts its own iterations in `--seconds` of steady training.

  --how sleep  After each backward, rank 1 sleeps twice as long as its forward and backward have taken. So it is three
               times slower, whatever else the machine does, while its server works on. This is the default.
  --how load   Two processes that compute without end share rank 1's core, so that its solver gets a third of it. Its
               server, which mostly sleeps, is woken as soon as before. A rank whose host has other work is slow in
               this way.
  --how stop   Rank 1 is stopped for two thirds of every 30 ms (SIGSTOP, SIGCONT), and its server with it. Rank 0 waits
               up to 20 ms in a step for weights of which rank 1 has a share; no bound of staleness can help.

The columns are medians over the rounds:
  alone       iterations of rank 0 in a second, undisturbed
  disturbed   the same, disturbed
  keeps       disturbed / alone of the same round
  waits       the fraction of its time that rank 0 waits for others, disturbed: on a machine with other work, this tells
              more than the speeds
  rank 1      iterations of rank 1 for each of rank 0, disturbed, which shows whether it was slow at all
"""

import argparse
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
MODES = {
    "SYNC": "",
    "LOCAL, every 8": "mode: LOCAL sync_every: 8",
    "ASYNC, at most 1": "mode: ASYNC max_staleness: 1",
    "ASYNC, at most 4": "mode: ASYNC max_staleness: 4",
    "ASYNC, at most 16": "mode: ASYNC max_staleness: 16",
}
STOPPED, RUNNING = 0.02, 0.01  # seconds of each period of --how stop
WARM = 2.0  # seconds of training before those that count
NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 16 dim: 3 dim: 32 dim: 32 } shape { dim: 16 }
  data_filler { type: "gaussian" } data_filler { value: 1 } } }
%s
layer { name: "ip" type: "InnerProduct" bottom: "conv7" top: "ip" inner_product_param { num_output: 10
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
CONVOLUTION = """
layer { name: "conv%d" type: "Convolution" bottom: "%s" top: "conv%d" convolution_param { num_output: 64 kernel_size: 3
  pad: 1 stride: %d weight_filler { type: "msra" } } }
layer { name: "relu%d" type: "ReLU" bottom: "conv%d" top: "conv%d" }
"""


def net() -> str:
    """Returns the text of a net with eight convolutions, whose step takes about ten milliseconds on one core."""
    layers = [CONVOLUTION % (i, f"conv{i - 1}" if i else "data", i, 2 if i in (3, 6) else 1, i, i, i) for i in range(8)]
    return NET % "".join(layers)


# A rank


def work(options: argparse.Namespace) -> None:
    """Trains as one of the ranks until rank 0 has counted for options.seconds. Rank 0 prints, as JSON, what each rank
    has counted."""
    from engine.comm.world import world
    from engine.config import parse_solver
    from engine.report.observer import Observer, StepRecord
    from engine.solver.solver import Solver

    ranks = world()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[ranks.rank % len(os.sched_getaffinity(0))]})

    class Counting(Observer):
        """Counts iterations and the time that they waited, from WARM to WARM + seconds."""

        def __init__(self) -> None:
            self.begin_at, self.count, self.waited, self.last, self.over = math.inf, 0, 0, 0.0, False
            self.ended = time.monotonic()  # when the last iteration ended
            print(f"pid {ranks.rank} {os.getpid()}", flush=True)

        def step(self, record: StepRecord) -> None:
            now = self.ended = time.monotonic()
            if self.begin_at <= now < self.begin_at + options.seconds:
                self.count, self.waited, self.last = self.count + 1, self.waited + record.waited_ranks, now
            elif now >= self.begin_at + options.seconds and ranks.rank == 0 and not self.over:
                self.over = True
                os.kill(os.getpid(), signal.SIGTERM)  # ends the run after an iteration

    text = f"base_lr: 0 max_iter: {10**7} snapshot_after_train: false comm_param {{ {options.comm} }}"
    config = parse_solver(f'{text} lr_policy: "fixed" net_param {{ {net()} }}', "slow_rank.prototxt")
    counting = Counting()
    solver = Solver(config, ranks, observers=[counting])
    if options.sleeps and ranks.rank == 1:
        solver.on_gradients = lambda: time.sleep(2 * (time.monotonic() - counting.ended))
    counting.begin_at = time.monotonic() + WARM
    solver.solve()
    figures = {"count": counting.count, "seconds": counting.last - counting.begin_at, "waited": counting.waited / 1e9}
    found = ranks.gather(figures)
    solver.close()
    ranks.close()
    if found:
        print(json.dumps(found), flush=True)


# The session


def spin() -> subprocess.Popen:
    """Starts a process that computes without end on rank 1's core."""
    core = sorted(os.sched_getaffinity(0))[-1]
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", code])


def measure(options: argparse.Namespace, comm: str, disturbed: bool) -> list[dict]:
    """Trains once, and returns what each rank has counted. Raises SystemExit if the ranks fail."""
    command = [*shlex.split(options.mpiexec), "-n", "2", sys.executable, __file__, "--work", "--comm", comm]
    command += ["--seconds", str(options.seconds)]
    command += ["--sleeps"] * (disturbed and options.how == "sleep")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MLSL_NUM_SERVERS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)
    others = [spin() for _ in range(2)] if disturbed and options.how == "load" else []
    try:
        assert process.stdout
        if disturbed and options.how == "stop":
            text = ""
            while not (found := re.search(r"pid 1 (\d+)", text)):
                text += process.stdout.readline() or sys.exit("slow_rank.py: the ranks have ended, see above")
            interrupt(int(found[1]), process)
        output = process.communicate()[0]
        if process.returncode:
            sys.exit(f"slow_rank.py: the ranks ended with status {process.returncode}")
        return json.loads(next(line for line in output.splitlines() if line.startswith("[")))
    finally:
        for other in others:
            other.kill()
            other.wait()


def interrupt(pid: int, launcher: subprocess.Popen) -> None:
    """Stops a process for two thirds of the time, until its launcher has ended."""
    while launcher.poll() is None:
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        time.sleep(RUNNING)


def figures(alone: list[dict], disturbed: list[dict]) -> dict[str, float]:
    """Returns the figures of one round, by column."""
    speed, slowed = (each[0]["count"] / each[0]["seconds"] for each in (alone, disturbed))
    return {
        "alone": speed,
        "disturbed": slowed,
        "keeps": slowed / speed,
        "waits": disturbed[0]["waited"] / disturbed[0]["seconds"],
        "rank 1": disturbed[1]["count"] / disturbed[0]["count"],
    }


def table(rounds: dict[str, list[dict[str, float]]]) -> str:
    """Returns the table of medians, in Markdown."""
    columns = ("alone", "disturbed", "keeps", "waits", "rank 1")
    lines = [f"| mode | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for mode, found in rounds.items():
        values = (statistics.median(each[column] for each in found) for column in columns)
        lines.append(f"| {mode} | {' | '.join(f'{value:.3g}' for value in values)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training that are counted (default: 10)")
    parser.add_argument(
        "--how", choices=("sleep", "load", "stop"), default="sleep", help="what slows rank 1 (default: sleep)"
    )
    parser.add_argument("--modes", default="", help="names of modes, separated by semicolons (default: all)")
    parser.add_argument("--mpiexec", default="mpiexec", help="the launcher (default: mpiexec)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sleeps", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--comm", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    modes = [mode.strip() for mode in options.modes.split(";") if mode.strip()] or list(MODES)
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--modes: '{unknown[0]}' is unknown; known: {'; '.join(MODES)}")
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for _ in range(options.rounds):
        for mode in modes:
            rounds[mode].append(figures(*(measure(options, MODES[mode], disturbed) for disturbed in (False, True))))
    print(table(rounds))


if __name__ == "__main__":
    main()
