"""Fuzzing over many runs: counts how much each target has run, and goes on until it is enough.

tally.json in the folder of --out counts each target's inputs over all runs, and those since it last found something. A
campaign runs targets in turns, always the one that has run least, until each has run enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.files import atomic_write

TURN = 90.0  # seconds; each turn begins with imports, which take some of them


@dataclass
class Count:
    inputs: int = 0  # in all
    quiet: int = 0  # since the last finding
    findings: int = 0  # number of runs that ended with a finding


class Tally:
    """The counts of all targets, in a file that several processes use at a time."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "tally.json"

    def read(self) -> dict[str, Count]:
        if not self.path.exists():
            return {}
        return {name: Count(**each) for name, each in json.loads(self.path.read_text()).items()}

    def of(self, target: str) -> Count:
        return self.read().get(target, Count())

    def add(self, target: str, inputs: int, findings: int) -> None:
        with self._alone():
            counts = self.read()
            count = counts.setdefault(target, Count())
            count.inputs += inputs
            count.quiet = 0 if findings else count.quiet + inputs
            count.findings += bool(findings)
            text = json.dumps({name: asdict(counts[name]) for name in sorted(counts)}, indent=1)
            with atomic_write(self.path) as file:
                file.write(f"{text}\n".encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def run(
    program: Path, targets: Sequence[str], tally: Tally, inputs: int, processes: int, turn: float, more: Sequence[str]
) -> int:
    """Runs the fuzzer, in several processes at a time, until each target has run `inputs` without a finding.

    A target that finds something has no further turn, since the finding should be mended first.

    Args:
        turn: seconds of a turn.
        more: further options of the fuzzer.

    Returns:
        The number of turns that found something.
    """
    failed: set[str] = set()
    running: dict[subprocess.Popen, str] = {}
    try:
        while True:
            counts = tally.read()
            quiet = {name: counts[name].quiet if name in counts else 0 for name in targets}
            waiting = [name for name in targets if quiet[name] < inputs and name not in {*failed, *running.values()}]
            if not waiting and not running:
                return len(failed)
            while waiting and len(running) < processes:
                name = min(waiting, key=lambda each: quiet[each])
                waiting.remove(name)
                seed = counts[name].inputs + 1 if name in counts else 1
                words = [sys.executable, program, name, "--seconds", str(turn), "--seed", str(seed), *more]
                running[subprocess.Popen(words, cwd=os.getcwd())] = name
            for child in [each for each in running if each.poll() is not None]:
                if child.returncode:
                    failed.add(running[child])
                del running[child]
            time.sleep(0.2)
    finally:
        for child in running:
            child.terminate()


def table(tally: Tally, targets: Sequence[str]) -> str:
    """Returns the counts as a table in Markdown, for docs/security.md."""
    lines = ["| target | inputs | since the last finding |", "|---|---|---|"]
    counts = {name: tally.of(name) for name in targets}
    lines += [f"| `{name}` | {each.inputs:,} | {each.quiet:,} |" for name, each in counts.items()]
    lines.append(f"| all | {sum(each.inputs for each in counts.values()):,} | |")
    return "\n".join(lines)
