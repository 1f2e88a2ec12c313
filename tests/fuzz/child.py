"""The process that runs a target: judges what comes of each input, and tells its parent, which outlives it."""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path
from random import Random

from engine.errors import EngineError, printable
from tests.fuzz.target import Run, Target

SECONDS, MEGABYTES = 10, 2048  # an input that takes more processor time or memory is a finding
BATCH = 20_000  # inputs that one process runs; what libraries leak is freed at its end
MOST_BYTES = 1 << 20  # the largest input
LONGEST_LINE = 2000
GUIDED_LINE = re.compile(r"cov: (\d+)")
ROOT = Path(__file__).resolve().parents[2]


class Board:
    """Memory that parent and child share: the input that runs now, and counts of inputs."""

    _HEAD = struct.Struct("QQQ")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._HEAD.size + MOST_BYTES)

    def begin(self, data: bytes) -> None:
        """Notes that the child runs an input."""
        count, refused, _ = self._HEAD.unpack_from(self._memory)
        self._memory[self._HEAD.size : self._HEAD.size + len(data)] = data
        self._HEAD.pack_into(self._memory, 0, count + 1, refused, len(data))

    def refuse(self) -> None:
        """Notes that the input raised an error, as it should."""
        count, refused, length = self._HEAD.unpack_from(self._memory)
        self._HEAD.pack_into(self._memory, 0, count, refused + 1, length)

    @property
    def count(self) -> int:
        return self._HEAD.unpack_from(self._memory)[0]

    @property
    def refused(self) -> int:
        return self._HEAD.unpack_from(self._memory)[1]

    @property
    def input(self) -> bytes:
        """The last input."""
        return self._memory[self._HEAD.size : self._HEAD.size + self._HEAD.unpack_from(self._memory)[2]]


class TookTooLong(BaseException):
    """Raised when an input takes too long. It is not an Exception, so that no code catches it."""


class Findings:
    """A folder with a file for each place that raised, or that is to blame otherwise. Further inputs for the same place
    are only counted."""

    def __init__(self, folder: Path, target: str):
        self._folder, self._target = folder, target

    def keep(self, key: str, data: bytes, report: str) -> None:
        """Writes the input, the report, and the command that repeats it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / re.sub(r"[^\w.-]+", "_", key)[:120]
        if not path.exists():
            path.write_bytes(data)
            command = f"python tests/fuzz/run.py --repeat {self._target} {path}"
            path.with_name(f"{path.name}.txt").write_text(f"{command}\n\n{report}", errors="backslashreplace")

    def files(self) -> list[Path]:
        """Returns the reports."""
        return sorted(self._folder.glob("*.txt"))

    def take(self) -> list[bytes]:
        """Returns the inputs that an earlier run found, and forgets them: they are tried again."""
        inputs = [path.with_suffix("").read_bytes() for path in self.files()]
        shutil.rmtree(self._folder, ignore_errors=True)
        return inputs


class Judge:
    """Calls a target, and judges what it does."""

    def __init__(self, run: Run, board: Board, findings: Findings):
        self._run, self._board, self._findings = run, board, findings
        self._megabytes = megabytes()
        signal.signal(signal.SIGPROF, _end)

    def __call__(self, data: bytes) -> None:
        data = data[:MOST_BYTES]
        self._board.begin(data)
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            self._run(data)
        except EngineError as error:
            self._board.refuse()
            self._judge(error, data)
        except TookTooLong as error:
            self._findings.keep(f"hang_{_place(error).rpartition('_')[0]}", data, traceback.format_exc())
        except BaseException as error:
            self._findings.keep(f"{type(error).__name__}_{_place(error)}", data, traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if (took := time.process_time() - begin) > SECONDS + 1:  # in C code, where Python's signal handler does not run
            self._findings.keep("slow", data, f"{took:.1f} s of the processor's time\n")
        if (more := megabytes() - self._megabytes) > MEGABYTES:
            self._findings.keep("memory", data, f"{more:.0f} MB\n")
            os._exit(0)  # since peak memory never falls, a new process must go on

    def _judge(self, error: EngineError, data: bytes) -> None:
        """Checks that an error is one clear line. Only several errors of a text, and a user's traceback, may be several
        lines."""
        lines = str(error).split("\n")
        if not all(line and line == printable(line) and len(line) < LONGEST_LINE for line in lines):
            self._findings.keep(f"unclear_{_place(error)}", data, f"{error!r}\n{traceback.format_exc()}")


def megabytes() -> float:
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _end(number: int, frame: object) -> None:
    raise TookTooLong


def _place(error: BaseException) -> str:
    """Returns the place where engine raised the error, or called what raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "/engine/" in frame.filename] or frames
    return f"{inner[-1].filename.split('/engine/')[-1]}_{inner[-1].lineno}"


def prepare(log: Path) -> None:
    """Prepares a child: what it prints goes to a file, and if it dies of a signal, so does its place in Python."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet()


def quiet() -> None:
    logging.disable()
    warnings.simplefilter("ignore")


def plain(
    target: Target,
    corpus: list[bytes],
    judge: Judge,
    board: Board,
    seed: int,
    last: int,
    until: float,
    more: list[bytes],
) -> None:
    """Runs inputs from the board's count on, until number `last` or until a time. The corpus comes first as it is, then
    changes of it.

    Args:
        more: further inputs to change.
    """
    base = corpus + more
    for number in range(board.count, min(last, board.count + BATCH)):
        random = Random(f"{target.name} {seed} {number}")
        judge(corpus[number] if number < len(corpus) else target.mutate(random.choice(base), random, base))
        if time.monotonic() > until:
            break


def guided(
    target: Target, corpus: list[bytes], judge: Judge, seed: int, until: float, more: Path, folder: Path
) -> None:
    """Lets Atheris choose the changes by the branches of engine that inputs reach.

    Args:
        more: where inputs that reached new branches are kept.
        folder: for temporary files.
    """
    import atheris

    (folder / "corpus").mkdir()
    for number, data in enumerate(corpus):
        (folder / "corpus" / str(number)).write_bytes(data)

    def mutate(data: bytearray, most: int, number: int) -> bytes:
        random = Random(number)
        if random.random() < 0.3:
            return atheris.Mutate(bytes(data), most)
        return target.mutate(bytes(data), random, corpus)[:most]

    # longer inputs take time and reach nothing new
    seconds, most = max(1, int(until - time.monotonic())), max(map(len, corpus))
    options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", f"-runs={50 * BATCH}", f"-max_len={most}"]
    options += [f"-artifact_prefix={folder}/", "-report_slow_units=1000000", "-len_control=0"]
    options += ["-timeout=1000000", "-rss_limit_mb=0"]  # Judge watches both
    options += [f"-handle_{signal}=0" for signal in ("segv", "abrt", "fpe", "bus", "ill")]
    atheris.Setup([sys.argv[0], str(more), str(folder / "corpus"), *options], judge, custom_mutator=mutate)
    atheris.Fuzz()


def coverage(log: Path) -> int | None:
    """Returns what Atheris said last: how many branches of engine it has reached."""
    found = GUIDED_LINE.findall(log.read_text(errors="replace"))
    return int(found[-1]) if found else None
