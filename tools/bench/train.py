#!/usr/bin/env python3
"""Training throughput of engine beside its rivals, alternately in one session: only ratios hold on a shared machine.

    python tools/bench/train.py --model nets/resnet50.prototxt --batch 32 --rounds 3 \\
        --rival 'PyTorch' 'python peer_torch.py --net resnet50 --batch 32 --threads 2' \\
        --rival 'PyTorch, tcmalloc' 'env LD_PRELOAD=libtcmalloc.so.4 python peer_torch.py --net resnet50 --batch 32
        --threads 2'

Each rival is a name and a command that prints `N images/s` on its last line. Every round runs engine and each rival
once; the table has medians over the rounds, the spread, and how many times as fast engine is in the same round
(median of ratios). Threads: OMP_NUM_THREADS, as everywhere.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def measure_engine(model: str, batch: int, precision: str, iterations: int) -> float:
    """Images/s of whole training steps: forward, backward, update."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "time.json"
        command = [sys.executable, "-m", "engine.cli", "time", "--model", model, "--phase", "TRAIN"]
        command += ["--iterations", str(iterations), "--precision", precision, "--json", str(report)]
        command += ["--set", f"layer[data].data_param.batch_size={batch}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(report.read_text())["images_per_second"]


def measure_rival(command: str) -> float:
    output = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout
    found = re.findall(r"([0-9.]+) images/s", output)
    if not found:
        raise SystemExit(f"no 'N images/s' in the output of: {command}")
    return float(found[-1])


def row(name: str, values: list[float], ours: list[float] | None) -> str:
    ratio = f"{statistics.median(a / b for a, b in zip(ours, values, strict=True)):8.2f}" if ours else ""
    return f"{name:24s}{statistics.median(values):10.2f}{min(values):10.2f}{max(values):10.2f}{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nets/resnet50.prototxt")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--iterations", type=int, default=5, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"))
    options = parser.parse_args()
    ours: list[float] = []
    rivals: dict[str, list[float]] = {name: [] for name, _ in options.rival}
    for number in range(options.rounds):
        ours.append(measure_engine(options.model, options.batch, options.precision, options.iterations))
        for name, command in options.rival:
            rivals[name].append(measure_rival(command))
        shown = ", ".join(f"{name} {values[-1]:.2f}" for name, values in {"engine": ours, **rivals}.items())
        print(f"round {number + 1} of {options.rounds}, images/s: {shown}", file=sys.stderr, flush=True)
    print(
        f"{Path(options.model).stem}, batch {options.batch}, {options.precision}: images/s, "
        f"median of {options.rounds} rounds"
    )
    print(f"{'':24s}{'median':>10s}{'least':>10s}{'most':>10s}{'engine is':>12s} times as fast")
    print(row("engine", ours, None))
    for name, values in rivals.items():
        print(row(name, values, ours))


if __name__ == "__main__":
    main()
