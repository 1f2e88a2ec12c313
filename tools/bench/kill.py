"""Kills ranks of real runs at random moments: each run must end soon with one message, and resume to the same result.

    python tools/bench/kill.py --kills 100

For each kill the digits are trained on 4 ranks; at a random moment of the run, start-up and snapshots included, one
rank gets SIGKILL or SIGSTOP. Then it is checked that the run ends within the limit (10 s; where a rank is stopped 10 s
and the watchdog's time), that one message says why, that no process is left, that every snapshot is whole; and that
`--resume auto` ends with the same bits as a run that was never killed. Exit status 1 if something was not so.

Who says why is reported: ours, or the launcher alone, which knows process ids and no ranks. Until the ranks know each
other, some tenths of a second after their start, only the launcher can tell.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from engine.errors import EngineError  # noqa: E402
from engine.host.launch import OVERSUBSCRIBE, command_for  # noqa: E402
from engine.report.table import table  # noqa: E402
from engine.solver.resume import read_whole  # noqa: E402

SOLVER = """
net: "{net}" base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.0005 random_seed: 1
max_iter: {iterations} display: 10 snapshot: 10 snapshot_prefix: "{folder}/net"
comm_param {{ bucket_mb: 0.1 chunk_mb: 0.1 watchdog: {watchdog} drift_check: 25 servers: 1 }}
"""
SECONDS_TO_END = 10.0
LINGER_SECONDS = 8.0  # in which sentinels end, too
OURS, LAUNCHER, NOT_NEEDED, NOBODY = "ours", "the launcher only", "none: the run ended well", "nobody"  # who told
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


@dataclass
class Run:
    """One training with a mark in its environment, by which its processes are found."""

    folder: Path
    options: argparse.Namespace
    mark: str = field(default_factory=lambda: f"ENGINE_KILL={uuid.uuid4()}")

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        solver = self.folder / "solver.prototxt"
        net, iterations, watchdog = REPO / "nets/digits.prototxt", self.options.iterations, self.options.watchdog
        solver.write_text(SOLVER.format(net=net, folder=self.folder, iterations=iterations, watchdog=watchdog))
        arguments = ["train", "--solver", str(solver), "--resume", "auto", "--watchdog", str(watchdog)]
        name, value = self.mark.split("=")
        paths = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**OVERSUBSCRIBE, **os.environ, name: value, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command_for(self.options.ranks, arguments), cwd=REPO, env=environ, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def processes(self) -> dict[int, int | None]:
        """Process id -> rank, None for what is no rank (sentinels, the launcher)."""
        found: dict[int, int | None] = {}
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if self.mark.encode() in variables:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    rank = next((v for v in variables if re.match(rb"(PMI|OMPI_COMM_WORLD)_RANK=", v)), None)
                    is_rank = rank is not None and b"train" in words and words[1].endswith(b"/__main__.py")
                    found[int(entry.name)] = int(rank.split(b"=")[1]) if is_rank else None
            except OSError:  # it has just ended
                continue
        return found

    def end(self, seconds: float) -> float | None:
        """How long it took to end; None if it had not when the time was over, and was ended by force."""
        begin = time.monotonic()
        try:
            self.process.wait(seconds)
            return time.monotonic() - begin
        except subprocess.TimeoutExpired:
            return None

    def left_behind(self) -> int:
        """Processes that live on too long; ends them."""
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


def result(folder: Path, iterations: int) -> bytes:
    """The bits of weights and optimizer state."""
    state = read_whole(str(folder / f"net_iter_{iterations}.solverstate"))
    return Path(state.learned_net).read_bytes() + b"".join(values.tobytes() for values in state.history)


def kill_one(run: Run, how: str, rank: int, moment: float) -> dict | None:
    """Starts a run and kills a rank `moment` seconds later: what came of it; None if it had ended before."""
    run.start()
    begin = time.monotonic()
    time.sleep(moment)
    victim = None
    while victim is None and run.process.poll() is None:
        victim = next((pid for pid, number in run.processes().items() if number == rank), None)
        if victim is None and time.monotonic() - begin > moment + 10:
            break
    try:
        if victim is None or run.process.poll() is not None:
            raise ProcessLookupError
        os.kill(victim, SIGNALS[how])
        moment = time.monotonic() - begin
    except ProcessLookupError:
        run.end(30)
        run.left_behind()
        return None
    before = run.text()
    limit = SECONDS_TO_END + (run.options.watchdog if how == "SIGSTOP" else 0)
    phase = "set-up" if "Solving" not in before else "training" if "Optimization Done." not in before else "end"
    longest = limit if how == "SIGKILL" or phase == "training" else SECONDS_TO_END + 10 * run.options.watchdog
    seconds = run.end(longest + 20)
    text = run.text()
    heads = [line for line in text.splitlines() if line.startswith("engine: ")]
    messages = [line for line in heads if not line.startswith("engine:   ")]
    launcher = re.search(r"BAD TERMINATION|exited on signal|terminated", text)
    return {
        "how": how, "phase": phase, "moment": moment, "seconds": seconds, "limit": longest,
        "messages": messages, "named": any(f"rank {rank} (pid {victim} " in line for line in messages),
        # A process that is about to leave may still end well.
        "teller": OURS if messages else LAUNCHER if launcher else NOT_NEEDED if run.process.returncode == 0 else NOBODY,
        "left": run.left_behind(), "traceback": "Traceback" in text,
    }  # fmt: skip


def damaged(folder: Path) -> list[str]:
    """States under their final names that are not whole."""
    bad = []
    for path in sorted(folder.glob("*.solverstate")):
        try:
            read_whole(str(path))
        except EngineError as error:
            bad.append(str(error))
    return bad


def faults(found: dict, run: Run, reference: bytes) -> list[str]:
    """What was not as it must be, and the resumed run's."""
    bad = []
    if found["seconds"] is None:
        bad.append("did not end")
    elif found["seconds"] > found["limit"]:
        bad.append(f"took {found['seconds']:.1f} s to end")
    if found["left"]:
        bad.append(f"{found['left']} processes left")
    if found["traceback"]:
        bad.append("a traceback")
    if len(found["messages"]) > 1:
        bad.append(f"{len(found['messages'])} messages")
    if found["teller"] == NOBODY:
        bad.append("nobody told")
    bad += damaged(run.folder)
    again = Run(run.folder, run.options)
    again.start()
    if again.end(120) is None or again.process.returncode != 0:
        bad.append(f"did not resume: {again.text()[-300:]}")
    elif result(run.folder, run.options.iterations) != reference:
        bad.append("resumed to another result")
    again.left_behind()
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--watchdog", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="FOLDER", help="where runs with a fault are kept")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as root:
        whole = Run(Path(root) / "whole", options)
        begin = time.monotonic()
        whole.start()
        if whole.end(600) is None or whole.process.returncode != 0:
            print(whole.text(), file=sys.stderr)
            return 1
        length = time.monotonic() - begin
        reference = result(whole.folder, options.iterations)
        print(f"A run takes {length:.1f} s.", flush=True)
        rows, bad = [], 0
        while len(rows) < options.kills:
            how, rank = random.choice(list(SIGNALS)), random.randrange(options.ranks)
            run = Run(Path(root) / f"{len(rows)}", options)
            shutil.rmtree(run.folder, ignore_errors=True)
            moment = random.uniform(0, length)
            found = kill_one(run, how, rank, moment)
            if found is None:  # it was done already
                continue
            wrong = faults(found, run, reference)
            rows.append(found)
            bad += bool(wrong)
            said = found["messages"][0] if found["messages"] else f"({found['teller']})"
            took = "-" if found["seconds"] is None else f"{found['seconds']:.1f} s"
            when = f"{found['moment']:.2f} s ({found['phase']})"
            print(f"{len(rows):3d}  {how} of rank {rank} at {when}, {took}: {said[:150]}")
            print(*(f"     FAULT: {text}" for text in wrong), sep="\n", end="\n" if wrong else "", flush=True)
            if wrong and options.keep:
                shutil.copytree(run.folder, Path(options.keep) / run.folder.name, dirs_exist_ok=True)
            shutil.rmtree(run.folder)
    print(summary(rows))
    for teller in (LAUNCHER, NOT_NEEDED, NOBODY):
        mine = sorted((row["moment"], row["phase"]) for row in rows if row["teller"] == teller)
        if mine:
            moments = ", ".join(f"{moment:.2f} s ({phase})" for moment, phase in mine)
            print(f"Told by {teller}: {len(mine)} kills, at {moments}")
    print(f"{len(rows)} kills, {bad} with a fault")
    return int(bad > 0)


def summary(rows: list[dict]) -> str:
    """By kind of kill: how many, and the seconds until the run had ended."""
    cells = []
    for (how, phase), count in sorted(Counter((row["how"], row["phase"]) for row in rows).items()):
        mine = [row for row in rows if (row["how"], row["phase"]) == (how, phase)]
        seconds = sorted(row["seconds"] for row in mine if row["seconds"] is not None) or [float("nan")]
        named = sum(row["named"] for row in mine)
        own, launcher = (sum(row["teller"] == teller for row in mine) for teller in (OURS, LAUNCHER))
        middle, most = f"{seconds[len(seconds) // 2]:.1f}", f"{seconds[-1]:.1f}"
        cells.append((how, phase, count, own, named, launcher, middle, most))
    heads = ("signal", "when", "kills", "told by us", "rank named", "launcher only", "median s", "most s")
    return table(heads, cells, "<<>>>>>>")


if __name__ == "__main__":
    sys.exit(main())
