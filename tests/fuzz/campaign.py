"""Fuzzing over many runs: how much each target has run, and going on until it is enough.

tally.json in the folder of --out counts, over all runs, each target's inputs and those since it last found something.
A campaign gives the targets their turns, the one that has run least first, until each has run so many.
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

TURN = 90.0  # seconds; a turn begins with imports, which take some


@dataclass
class Count:
    inputs: int = 0  # in all
    quiet: int = 0  # since the last finding
    findings: int = 0  # runs that ended with one


class Tally:
    """Used by several processes at a time."""

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
    """Runs the fuzzer, so many processes at a time, until each target has run `inputs` without a finding.

    turn: seconds. more: options of the fuzzer. Returns how many turns found something; such a target has no further
    turn, for what it found is to be mended first.
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
    """In Markdown, for docs/security.md."""
    lines = ["| target | inputs | since the last finding |", "|---|---|---|"]
    counts = {name: tally.of(name) for name in targets}
    lines += [f"| `{name}` | {each.inputs:,} | {each.quiet:,} |" for name, each in counts.items()]
    lines.append(f"| all | {sum(each.inputs for each in counts.values()):,} | |")
    return "\n".join(lines)
