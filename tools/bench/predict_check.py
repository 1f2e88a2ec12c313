#!/usr/bin/env python3
"""Compares `engine predict` with measured training steps on rate-limited hosts that are simulated on this machine.

    python tools/bench/predict_check.py --netlab netlab
    python tools/bench/predict_check.py --netlab netlab --hosts 2 --links 1gbit --model nets/digits.prototxt

It needs root and `netlab`; see tools/bench/comm.py, whose ranks are measured here. For each number of hosts and each
link, every round runs `engine predict` on the hosts, which measures the network, and the net on all hosts at once
without communication; then the same ranks train together. The figures are meaningful only if the machine is otherwise
idle.

The columns are medians over the rounds: the milliseconds of the predicted step, how many of them are exposed
communication, those of the measured step, and the error of the prediction.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Check:
    """Predicts and measures steps. folder: for temporary files."""

    def __init__(self, options: argparse.Namespace, folder: str):
        self.options = options
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.told = Path(folder) / "told.json"
        self.common = ["--model", options.model, "--precision", options.precision, "--comm", options.comm]
        self.common += ["--iterations", str(options.iterations)]

    def run(self, command: list[str]) -> str:
        """Returns what a command prints. Raises SystemExit if it fails."""
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def predicted(self, hosts: int, launcher: list[str]) -> tuple[float, float]:
        """Returns the predicted milliseconds of a step, and how many of them are exposed communication."""
        command = [sys.executable, "-m", "engine", "predict", *self.common, "--ranks", str(hosts)]
        batch = f"layer[data].data_param.batch_size={self.options.batch}"
        self.run([*launcher, *command, "--set", batch, "--json", str(self.told)])
        told = json.loads(self.told.read_text())["predictions"][0]
        return told["step_ms"], told["exposed_ms"]

    def measured(self, launcher: list[str]) -> float:
        """Returns the measured milliseconds of the slowest rank's step."""
        command = [sys.executable, str(ROOT / "tools/bench/comm.py"), "--work", *self.common]
        told = self.run([*launcher, *command, "--batch", str(self.options.batch)])
        return max(rank["step"] for rank in json.loads(told.strip().splitlines()[-1])["ranks"])

    def rows(self) -> Iterator[tuple[int, str, float, float, float]]:
        """Yields (hosts, link, predicted, exposed, measured): milliseconds, medians over the rounds."""
        options = self.options
        for hosts in map(int, options.hosts.split(",")):
            for link in options.links.split(","):
                subprocess.run([options.netlab, "up", str(hosts), link], check=True)
                try:
                    launcher = [options.netlab, "run", str(hosts)]
                    rounds = [
                        (*self.predicted(hosts, launcher), self.measured(launcher)) for _ in range(options.rounds)
                    ]
                finally:
                    subprocess.run([options.netlab, "down"], check=True)
                predicted, exposed, measured = map(statistics.median, zip(*rounds, strict=True))
                yield hosts, link, predicted, exposed, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "nets/resnet50.prototxt"))
    parser.add_argument("--batch", type=int, default=16, help="per rank")
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--links", default="10gbit,1gbit,200mbit")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--comm", default="", help="fields of comm_param, as in a solver")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--netlab", default="netlab")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"{Path(options.model).stem}, batch {options.batch}, {options.precision}, 1 thread per host")
        print(f"{'hosts':>5s}{'link':>9s}{'predicted':>11s}{'exposed':>9s}{'measured':>10s}{'error':>8s}")
        for hosts, link, predicted, exposed, measured in Check(options, folder).rows():
            error = 100 * (predicted / measured - 1)
            row = f"{hosts:5d}{link:>9s}{predicted:11.1f}{exposed:9.1f}{measured:10.1f}{error:+7.1f}%"
            print(row, flush=True)


if __name__ == "__main__":
    main()
