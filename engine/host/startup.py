"""What the command line sets up before anything else: the standard streams, the limit of open files, what Ctrl-C does,
and when Python collects garbage.

It imports as little as it can: an interrupt during its imports ends with Python's traceback.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import time
from types import FrameType

from engine.errors import EngineError
from engine.host.interrupts import PATIENCE, end_by

FEWEST_FILES = 64  # that must be open at once: libraries, data, the sentinel, MPI
MOST_FILES = 65536
START_OBJECTS = 100_000  # more than the imports of `engine train` make (78,000); one collection of these takes 0.1 s


def open_streams() -> None:
    """Opens /dev/null in place of each of stdin, stdout and stderr that was closed when Python began. Else the next
    file to be opened, maybe a database, would get that number, and what is printed would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(null, True)
    sys.stdin = sys.stdin or open(0, closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    unbuffered = bool(getattr(sys.stdout, "write_through", False))
    raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    # Names of files may have bytes that no encoding knows: they are printed with backslashes.
    sys.stdout = _Stdout(raw, encoding, "backslashreplace", line_buffering=raw.isatty(), write_through=unbuffered)


class ReaderGone(EngineError):
    """Nobody reads stdout any more, as in `engine check net.prototxt | head`: the program ends without a message."""


class _Stdout(io.TextIOWrapper):
    """Raises EngineError, which says that it is stdout that cannot be written; an OSError would not."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _unwritten(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _unwritten(error) from None


def _unwritten(error: OSError) -> EngineError:
    kind = ReaderGone if error.errno == errno.EPIPE else EngineError
    return kind(f"standard output cannot be written: {error.strerror}")


def allow_files() -> None:
    """Raises the limit of open files as far as this user may, for data may be many files, but not above MOST_FILES:
    some programs close every possible descriptor before they start another. Raises EngineError if fewer than
    FEWEST_FILES are allowed."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if most < FEWEST_FILES:
        raise EngineError(f"at most {hard} files may be open at once (ulimit -n); expected at least {FEWEST_FILES}")
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def collect_late() -> None:
    """Delays Python's first garbage collection until START_OBJECTS objects exist, and drops the one at the exit.

    Imports make no garbage, but Python would search it after every 700 new objects, which takes a quarter of the
    processor time of a short run. After the first collection, thresholds are the usual ones again."""
    usual = gc.get_threshold()

    def as_ever(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(as_ever)
            gc.set_threshold(*usual)

    gc.callbacks.append(as_ever)
    gc.set_threshold(START_OBJECTS, *usual[1:])
    atexit.register(gc.freeze)


def collect_as_ever() -> None:
    """Undoes collect_late() before a user's code runs: some of its files may be closed, and their last lines written,
    only when Python collects the objects that hold them, at the exit if not before."""
    gc.collect(0)
    atexit.unregister(gc.freeze)


class Interrupts:
    """Lets SIGINT raise KeyboardInterrupt once: a second one would disturb what ends the program in order after the
    first. One that comes more than PATIENCE seconds after the first ends the process at once."""

    def __init__(self) -> None:
        self._ending: float | None = None  # when the first SIGINT came, or hold() was called

    def catch(self) -> None:
        """Installs the handler, unless SIGINT has one other than Python's, or is ignored, as by a shell's background
        jobs."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            sys.unraisablehook = self._ignored

    @property
    def came(self) -> bool:
        """Whether SIGINT has come. The exception that is caught may be another one that follows from it, as of an
        import that was interrupted."""
        return self._ending is not None

    def hold(self) -> None:
        """Lets SIGINT raise nothing from now on."""
        if self._ending is None:
            self._ending = time.monotonic()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._ending is None:
            self.hold()
            raise KeyboardInterrupt
        if time.monotonic() - self._ending > PATIENCE:
            end_by(number)

    def _ignored(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Sends SIGINT again where its exception was lost, in a callback from C code, which cannot raise."""
        if unraisable.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(unraisable)
        elif not sys.is_finalizing():
            from threading import Timer

            self._ending = None
            Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
