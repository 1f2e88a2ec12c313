"""Fuzzes engine, target after target; see targets.py.

    python tests/fuzz/run.py                            a few fixed inputs for each target, as CI does
    python tests/fuzz/run.py --seconds 600              so long, in all, guided by coverage (pip install atheris)
    python tests/fuzz/run.py --seconds 60 net nets      these targets alone
    python tests/fuzz/run.py --inputs 1000000           until each target has run so many without a finding
    python tests/fuzz/run.py --repeat net FILE          one input, with what comes of it

What it finds is in build/fuzz/findings/TARGET/, each with the command that repeats it; the exit status is then 1. The
next run tries it again, and forgets it if it is mended: before that, put it into tests/fuzz/corpus/TARGET/.
What has reached new lines is in build/fuzz/corpus/TARGET/, and is where the next run begins. build/fuzz/tally.json
counts the inputs of all runs; --tally prints it. tests/fuzz/tally.json is what campaigns (--inputs) have come to so
far: copy it to build/fuzz/ to go on from there, and back when you are done.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.target import Target

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOMS = ("config", "data", "graph", "layers", "net", "solver", "weights")  # parts of engine that atheris watches
PATIENCE = 60  # seconds without a new input, after which a child is taken to wait or to compute in C
RESTARTS = 500  # of a target that dies each time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--seconds", type=float, help="for all targets together; with --inputs, of a turn")
    parser.add_argument("--inputs", type=int, help="go on until each target has run so many without a finding")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time, with --inputs")
    parser.add_argument("--tally", action="store_true", help="print what all runs together have come to")
    parser.add_argument("--seed", type=int, default=1, help="of the changes")
    parser.add_argument("--plain", action="store_true", help="no coverage: as it is without atheris")
    parser.add_argument("--sanitized", action="store_true", help="with csrc/ compiled for ASan and UBSan; plain")
    parser.add_argument("--out", type=Path, default=ROOT / "build/fuzz", help="for findings and what reaches new lines")
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"), help="runs this input")
    options = parser.parse_args()
    if options.sanitized:
        restart_sanitized()
    watched = (
        bool(options.seconds) and not options.plain and not options.repeat and "ENGINE_SANITIZED" not in os.environ
    )
    targets = import_targets(watched)
    from tests.fuzz import campaign

    unknown = set(options.targets) - set(targets)
    if unknown:
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join(targets)}")
    names = options.targets or list(targets)
    chosen = [targets[name] for name in names]
    if options.repeat:
        return repeat(targets[options.repeat[0]], Path(options.repeat[1]))
    tally = campaign.Tally(options.out)
    if options.tally:
        print(campaign.table(tally, names))
        return 0
    if options.inputs:
        more = ["--out", str(options.out), *(["--plain"] if options.plain else [])]
        turn = options.seconds or campaign.TURN
        return min(1, campaign.run(Path(__file__), names, tally, options.inputs, options.processes, turn, more))
    seconds = options.seconds / len(chosen) if options.seconds else None
    found = 0
    for target in chosen:
        supervisor = Supervisor(target, options.out, options.seed, seconds, watched)
        findings = supervisor.run()
        tally.add(target.name, supervisor.count, findings)
        found += findings
    return 1 if found else 0


def import_targets(watched: bool) -> dict:
    """Returns the targets by name. `watched`: load engine's modules as atheris instruments them."""
    with contextlib.ExitStack() as stack:
        if watched:
            try:
                import atheris
            except ImportError:
                raise SystemExit("atheris is missing: pip install atheris, or --plain to go without") from None
            stack.enter_context(atheris.instrument_imports(include=["engine"]))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))  # atheris prints a line for each module
            for room in ROOMS:
                package = importlib.import_module(f"engine.{room}")
                for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                    importlib.import_module(module.name)
        from tests.fuzz.targets import TARGETS
    return TARGETS


def restart_sanitized() -> None:
    """Runs this program again with the extension that is compiled for the sanitizers. Each report of theirs then counts
    as a crash."""
    from tests.sanitize import run as sanitize

    prefix, environment = sanitize.sanitized("memory")
    environment["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    suppressions = sanitize.HERE / "undefined.supp"
    environment["UBSAN_OPTIONS"] = f"halt_on_error=1:abort_on_error=1:print_stacktrace=1:suppressions={suppressions}"
    arguments = [argument for argument in sys.argv if argument != "--sanitized"]
    os.execvpe(prefix[0], [*prefix, sys.executable, *arguments], environment)


def repeat(target: Target, path: Path) -> int:
    from tests.fuzz import child

    child.quiet()
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        run = target.prepare(Path(folder))
        try:
            run(data)
        except child.EngineError as error:
            print(f"refused: {error}")
        else:
            print("taken")
    return 0


class Supervisor:
    """Runs a target in child processes, a new one whenever one dies, and prints a line about it."""

    def __init__(self, target: Target, out: Path, seed: int, seconds: float | None, watched: bool):
        from tests.fuzz import child

        self._child, self._target, self._seed, self._seconds = child, target, seed, seconds
        self._guided = watched and target.guided
        self._board = child.Board()
        self._findings = child.Findings(out / "findings" / target.name, target.name)
        self._log, self._more = out / f"{target.name}.log", out / "corpus" / target.name
        self._more.mkdir(parents=True, exist_ok=True)
        self._again = self._findings.take()
        self._deadly: set[bytes] = set()  # inputs that ended a process, which the next one must not begin with

    @property
    def count(self) -> int:
        """Returns the number of inputs so far."""
        return self._board.count

    def run(self) -> int:
        """Returns how many findings there are."""
        begin = time.monotonic()
        until = begin + (self._seconds or float("inf"))
        for _ in range(RESTARTS):
            if self._one_process(until):
                break
        count, seconds = self._board.count, time.monotonic() - begin
        found = self._findings.files()
        reached = f", {self._child.coverage(self._log)} branches reached" if self._guided else ""
        refused = 100 * self._board.refused / max(1, count)
        print(
            f"{self._target.name}: {count} inputs in {seconds:.0f} s, {count / seconds:.0f}/s, {refused:.0f}% refused"
            f"{reached}, {len(found)} findings",
            *found,
            sep="\n  ",
            flush=True,
        )
        return len(found)

    def _one_process(self, until: float) -> bool:
        """Runs a child, and returns whether all is done."""
        begun = self._board.count
        shared_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(prefix="fuzz_", dir=shared_memory) as folder:
            pid = os.fork()
            if pid == 0:
                self._in_child(Path(folder), until)
            status, reason = self._watch(pid)
        said = self._log.read_text(errors="replace")
        if self._board.count == begun:
            raise SystemExit(f"{self._target.name} does not begin:\n{said}")
        if os.WIFSIGNALED(status) or reason:
            what = reason or f"signal_{os.WTERMSIG(status)}"
            self._findings.keep(f"{what}_{self._python_place(said)}", self._board.input, said)
        elif os.WEXITSTATUS(status) == 1 and said.rstrip().split("\n")[-1].startswith("engine: "):
            self._board.refuse()  # a damaged file that ends a process with one clear line
        elif status:
            self._findings.keep(f"exit_{os.WEXITSTATUS(status)}", self._board.input, said)
        self._deadly.add(self._board.input)
        return time.monotonic() > until or (not self._seconds and self._board.count >= self._target.inputs)

    def _in_child(self, folder: Path, until: float) -> None:
        child = self._child
        try:
            child.prepare(self._log)
            (folder / "work").mkdir()
            judge = child.Judge(self._target.prepare(folder / "work"), self._board, self._findings)
            corpus = self._target.corpus() + self._again
            if self._guided:
                corpus = [data for data in corpus if data not in self._deadly]
                seed = self._seed + self._board.count
                child.guided(self._target, corpus, judge, seed, until, self._more, folder)
            else:
                last = 2**62 if self._seconds else self._target.inputs
                more = [path.read_bytes() for path in sorted(self._more.glob("*"))] if self._seconds else []
                child.plain(self._target, corpus, judge, self._board, self._seed, last, until, more)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
        os._exit(0)

    def _watch(self, pid: int) -> tuple[int, str]:
        """Waits for a child. Returns its status, and why it was killed."""
        count, since, reason = -1, time.monotonic(), ""
        ended = os.pidfd_open(pid)
        while not select.select([ended], [], [], 0.05)[0]:
            if self._board.count != count:
                count, since = self._board.count, time.monotonic()
            if not reason and (why := self._why_to_end(pid, since)):
                reason = why
                os.kill(pid, signal.SIGABRT)  # makes it print where it is
                since = time.monotonic()
            elif reason and time.monotonic() - since > 5:
                os.kill(pid, signal.SIGKILL)
        os.close(ended)
        return os.waitpid(pid, 0)[1], reason

    def _why_to_end(self, pid: int, since: float) -> str:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > 2 * self._child.MEGABYTES << 20:
            return "memory"
        return "hang" if time.monotonic() - since > PATIENCE else ""

    @staticmethod
    def _python_place(said: str) -> str:
        """Returns where engine was, from what Python printed when it died."""
        found = re.search(r'File ".*?/engine/(.*?)", line (\d+)', said)
        return f"{found[1]}_{found[2]}" if found else "unknown"


if __name__ == "__main__":
    sys.exit(main())
