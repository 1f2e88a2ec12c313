"""Disturbs real trainings at random moments until they are complete. Their weights must be those of a quiet run.

    python tools/bench/chaos.py --events 100                 [--netlab PATH/TO/netlab, for cut links; as root]
    python tools/bench/chaos.py --events 100 --only kill,stop --ranks 4

A story is one training of the digits in several runs. A run is started with `--resume auto`, something happens to it
(chaos_events.py), and the next run is started, mostly on another number of ranks with the same global batch, until the
training is complete. After each event the run must end, or go on, within a time, as the event demands; one message must
say why; no process may be left, and no snapshot damaged. At the end the weights must be those of a run that was left
alone: the same bits if the number of ranks never changed, else equal up to rounding. Rounding makes a far smaller
difference than one lost or repeated iteration, which is measured at the beginning. The exit status is 1 if anything was
otherwise.

Events that need root (a full disk, cut links) are left out, with a message, if the program does not run as root.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from chaos_events import EVENTS, PATIENCE, SECONDS_TO_END
from chaos_run import Run  # which also lets engine be found

from engine.errors import EngineError
from engine.report.table import table
from engine.solver.snapshot_files import read_whole
from engine.watchdog.board import SLOW_FACTOR
from engine.watchdog.guard import HUB_SECONDS

# Exit statuses after SIGINT or SIGTERM during the set-up, which need no message.
INTERRUPTED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
# Event -> an exit status that needs no message after it: Hydra's mpiexec dies of SIGPIPE if it is interrupted while it
# starts its proxies, and a single process may be killed before it has a sentinel.
SPEAKING = {"interrupt": -signal.SIGPIPE, "kill": -signal.SIGKILL}
DISK_BYTES = 32 << 20  # the size of the disk that becomes full: room for all snapshots, and some more


@dataclass(frozen=True)
class Seen:
    """What was seen of an event and its run."""

    event: str
    run: str  # ranks and style
    phase: str  # of the run when it happened
    seconds: float | None  # from the event to the end of the run; None if it did not end
    did: str  # what Event.act returned
    message: str  # engine's first one, or words in parentheses if there is none
    faults: list[str]


def disturb(run: Run, name: str, moment: float) -> Seen | None:
    """Starts a run, lets the event happen `moment` seconds later, and judges how the run ends. Returns None if the run
    had ended before the event."""
    happening = EVENTS[name]
    run.start()
    time.sleep(moment)
    phase = run.phase()
    try:
        if run.process.poll() is not None:
            raise ProcessLookupError
        did = happening.act(run)
    except ProcessLookupError:
        run.end(30)
        run.left_behind()
        return None
    restarts = run.style == "--max_restarts"
    slow = phase != "training" or name == "cut_link"  # a rank may be cut off while it waits for a snapshot
    watchdog = run.options.watchdog * (SLOW_FACTOR if slow else 1) if happening.watchdog else 0.0
    watchdog += HUB_SECONDS if name == "cut_link" else 0
    limit = SECONDS_TO_END + watchdog if happening.ends and not restarts else PATIENCE
    seconds = run.ranks_end(limit + 20) if name == "cut_link" else run.end(limit + 20)
    if happening.needs == "netlab":
        subprocess.run(["ip", "link", "set", "nlv2", "up"], check=True)
        run.end(20)
    (run.folder / "filler").unlink(missing_ok=True)
    message, faults = judge(run, name, did, seconds, limit)
    return Seen(name, f"{run.ranks} x {run.style}", phase, seconds, did, message, faults)


def judge(run: Run, name: str, did: str, seconds: float | None, limit: float) -> tuple[str, list[str]]:
    """Judges a run after an event. Returns (message, faults) for Seen.

    seconds: until the run had ended; None if it has not. limit: how many they may be."""
    happening, faults = EVENTS[name], []
    restarts = run.style == "--max_restarts"
    left, status = run.left_behind(), run.process.returncode
    text = run.own_text()  # read last, because a sentinel may speak after its rank has ended
    heads = [line for line in text.splitlines() if line.startswith("engine: ")]
    messages = [line for line in heads if not line.startswith("engine:   ")]
    if len(messages) > 1 and name == "interrupt":  # mpiexec may have ended a rank, of which its sentinel tells, too
        messages = [line for line in messages if not line.startswith("engine: stopped by SIG")]
    launcher = re.search(r"BAD TERMINATION|exited on signal|terminated", text)
    if did.startswith("FAULT"):
        faults.append(did)
    if seconds is None:
        faults.append("did not end")
    elif seconds > limit:
        faults.append(f"took {seconds:.1f} s to end")
    if left:
        faults.append(f"{left} processes left")
    if "Traceback" in text:
        faults.append("a traceback")
    if happening.ends is False and status != 0 and not (name == "second_job" and did == "status 0"):
        faults.append(f"ended with status {status}, but should have gone on")
    if len(messages) > 1 and not restarts and name != "second_job":
        faults.append(f"{len(messages)} messages: {messages}")
    # Somebody must tell why a run has failed, except on a terminal that is gone, or if the launcher was killed.
    told = bool(messages or launcher) or status in (*INTERRUPTED, SPEAKING.get(name))
    if status != 0 and not told and name not in ("close_terminal", "kill_launcher"):
        faults.append(f"nobody told (status {status})")
    faults += damaged(run.folder)
    return messages[0] if messages else "(the launcher's)" if launcher else f"(none; status {status})", faults


def damaged(folder: Path) -> list[str]:
    """Returns a line for each solver state under its final name that is not whole."""
    bad = []
    for path in sorted(folder.glob("*.solverstate")):
        try:
            read_whole(str(path))
        except EngineError as error:
            bad.append(f"damaged: {error}")
    return bad


def result(folder: Path, iteration: int) -> list[np.ndarray]:
    """Returns what a training has come to: the bytes of its weights file, then the arrays of the optimizer's history,
    into which all gradients so far have gone."""
    state = read_whole(str(folder / f"net_iter_{iteration}.solverstate")).state
    weights = np.frombuffer((folder / f"net_iter_{iteration}.caffemodel").read_bytes(), np.uint8)
    return [weights, *(np.array(values) for values in state.history)]


def distance(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """Returns the largest difference between the histories of two results, relative to the largest value of `b`'s."""
    largest = max(float(np.abs(values).max()) for values in b[1:])
    return max(float(np.abs(x - y).max()) for x, y in zip(a[1:], b[1:], strict=True)) / largest


def complete(run: Run) -> None:
    """Runs a training undisturbed. Raises RuntimeError with the end of its log if it does not complete."""
    run.start()
    if run.end(PATIENCE) is None or run.process.returncode != 0:
        run.left_behind()
        raise RuntimeError(f"status {run.process.returncode}: {run.own_text()[-600:]}")
    run.left_behind()


class Quiet:
    """Runs that were left alone, on 1, 2 and 4 ranks, to compare stories with.

    results: those of result(), by ranks. seconds: of a whole run, by ranks. tolerance: the distance() that rounding may
    make."""

    def __init__(self, root: Path, options: argparse.Namespace):
        self.results, self.seconds = {}, {}
        for ranks in sorted({1, 2, 4, options.ranks or 4}):
            run = Run(root / f"quiet{ranks}", options, ranks)
            begin = time.monotonic()
            complete(run)
            self.seconds[ranks] = time.monotonic() - begin
            self.results[ranks] = result(run.folder, options.iterations)
        reference = self.results[1]
        rounding = max(distance(found, reference) for found in self.results.values())
        # One more iteration at the end changes the weights less than one that is lost or repeated in the middle.
        options.iterations += 1
        longer = Run(root / "longer", options, 1)
        complete(longer)
        lost = distance(result(longer.folder, options.iterations), reference)
        options.iterations -= 1
        # More than the quiet runs show, because a story that changes its ranks rounds in other ways, and momentum is
        # smaller near the end; but far less than an iteration makes.
        self.tolerance = 100 * rounding
        print(f"Quiet runs take {', '.join(f'{s:.1f} s on {n}' for n, s in self.seconds.items())}. Their states differ")
        print(f"by {rounding:.1e}; one iteration makes {lost:.1e}; {self.tolerance:.1e} is tolerated.", flush=True)
        if self.tolerance > lost / 100:
            raise RuntimeError("a lost iteration could not be told from rounding")

    def faults(self, folder: Path, iterations: int, ranks: set[int]) -> list[str]:
        """Returns what is wrong with the weights of a story that has run on these numbers of ranks."""
        found = result(folder, iterations)
        if len(ranks) == 1:
            same = all(np.array_equal(a, b) for a, b in zip(found, self.results[min(ranks)], strict=True))
            return [] if same else ["other bits than the quiet run's"]
        far = distance(found, self.results[1])
        return [] if far <= self.tolerance else [f"weights differ by {far:.1e}"]


def possible(options: argparse.Namespace) -> list[str]:
    """Returns the names of the events that can happen here. Prints which are left out. Raises SystemExit for unknown
    names."""
    names = options.only.split(",") if options.only else list(EVENTS)
    if unknown := sorted(set(names) - set(EVENTS)):
        raise SystemExit(f"no event {', '.join(unknown)}; there are {', '.join(EVENTS)}")
    have = {"", "terminal"} | (set() if options.ranks == 1 else {"ranks"})
    have |= {"root"} if os.geteuid() == 0 else set()
    have |= {"shim"} if options.shim else set()
    have |= {"netlab"} if options.netlab else set()
    for name in names:
        if EVENTS[name].needs not in have:
            print(f"Left out: {name}, which needs {EVENTS[name].needs}.")
    return [name for name in names if EVENTS[name].needs in have]


def a_run(folder: Path, options: argparse.Namespace, name: str, ranks: int) -> Run:
    """Returns a run to which the event can happen, started in a random style."""
    needs, environ = EVENTS[name].needs, {}
    if options.shim:
        (folder / "clock").write_bytes(struct.pack("d", 0.0))
        environ = {"LD_PRELOAD": options.shim, "CHAOS_CLOCK": str(folder / "clock")}
        if random.random() < 0.2:
            environ["CHAOS_SLOW_DISK"] = str(random.choice([20, 100]))
    if needs == "netlab":
        return Run(folder, options, 2, "netlab", environ=environ)
    style = random.choice(["mpiexec", "mpiexec", "--ranks", "--max_restarts"])
    ranks = max(ranks, 2) if needs == "ranks" else ranks
    return Run(folder, options, ranks, style, terminal=needs == "terminal", environ=environ)


def story(folder: Path, options: argparse.Namespace, quiet: Quiet, names: list[str], count: int) -> list[Seen]:
    """Runs one training, which is disturbed `count` times, or until it is complete, and then completed. Returns what
    was seen; faults at the end are added to the last event."""
    folder.mkdir()
    others = [name for name in names if name != "fill_disk"]
    on_disk = "fill_disk" in names and (not others or random.random() < 0.3)
    if on_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", folder], check=True)
    numbers = [options.ranks] if options.ranks else random.choice([[1], [2], [4], [1, 2, 4], [1, 2, 4]])
    used, seen = set(), []
    try:
        while len(seen) < count and not (folder / f"net_iter_{options.iterations}.solverstate").exists():
            name = random.choice([*names, "fill_disk"] if on_disk else others)
            run = a_run(folder, options, name, random.choice(numbers))
            used.add(run.ranks)
            found = disturb(run, name, random.uniform(0, 0.9 * quiet.seconds[run.ranks]))
            if found:
                seen.append(found)
        last = Run(folder, options, random.choice(numbers))
        used.add(last.ranks)
        try:
            complete(last)
            wrong = quiet.faults(folder, options.iterations, used) + damaged(folder)
        except (RuntimeError, EngineError) as error:
            wrong = [f"did not complete: {error}"]
        if wrong:
            seen = seen or [Seen("none", str(last.ranks), "", None, "", "", [])]
            seen[-1].faults.extend(wrong)
        if options.keep and any(found.faults for found in seen):
            shutil.copytree(folder, Path(options.keep) / folder.name, dirs_exist_ok=True)
            shutil.copy(last.log, options.keep)
    finally:
        if on_disk:
            subprocess.run(["umount", folder], check=True)
    shutil.rmtree(folder)
    return seen


def summary(seen: list[Seen]) -> str:
    """Returns a table by event and phase: how many there were, how many engine told of, the seconds until the run had
    ended, and the faults."""
    cells = []
    for (name, phase), count in sorted(Counter((found.event, found.phase) for found in seen).items()):
        mine = [found for found in seen if (found.event, found.phase) == (name, phase)]
        seconds = sorted(found.seconds for found in mine if found.seconds is not None) or [float("nan")]
        told = sum(not found.message.startswith("(") for found in mine)
        faults = sum(bool(found.faults) for found in mine)
        cells.append((name, phase, count, told, f"{seconds[len(seconds) // 2]:.1f}", f"{seconds[-1]:.1f}", faults))
    return table(("event", "when", "count", "told by us", "median s", "most s", "faults"), cells, "<<>>>>>")


def compile_shim(folder: Path) -> str | None:
    """Compiles the library that steps clocks and slows disks. Returns its path, None if there is no C compiler."""
    compiler, library = shutil.which(os.environ.get("CC", "cc")), folder / "chaos_shim.so"
    if compiler is None:
        return None
    source = Path(__file__).with_name("chaos_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--only", metavar="A,B", help=f"of {', '.join(EVENTS)}")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), help="always so many (default: 1, 2 and 4 in turn)")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--watchdog", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--netlab", metavar="FILE", help="a script that starts ranks on hosts that can be cut off")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="FOLDER", help="where stories with a fault are kept")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the runs are to heed it, also those of a background job
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as root:
        options.shim = compile_shim(Path(root))
        names = possible(options)
        quiet = Quiet(Path(root), options)
        seen: list[Seen] = []
        if options.netlab:
            subprocess.run([options.netlab, "up", "2", "1gbit"], check=True)
        try:
            stories = 0
            while len(seen) < options.events:
                count = min(random.randint(1, 4), options.events - len(seen))
                for found in story(Path(root) / f"story{stories}", options, quiet, names, count):
                    seen.append(found)
                    took = "-" if found.seconds is None else f"{found.seconds:.1f} s"
                    what = f"{found.event} ({found.did}) of {found.run} in {found.phase}"
                    print(f"{len(seen):4d}  {what}, {took}: {found.message[:140]}")
                    print(*(f"      FAULT: {text}\n" for text in found.faults), sep="", end="", flush=True)
                stories += 1
        finally:
            if options.netlab:
                subprocess.run([options.netlab, "down"], check=True)
            print(summary(seen))
            bad = sum(bool(found.faults) for found in seen)
            print(f"{len(seen)} events, {bad} with a fault, seed {options.seed}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
