"""What the command line does before anything else: its streams, its open files, what Ctrl-C does from now on, and when
Python looks for garbage.

Imports as little as it can, for until then an interrupt ends with Python's traceback.
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

FILES = 64  # open at once: libraries, data, the sentinel, MPI
MOST_FILES = 65536
START_OBJECTS = 100_000  # more than the imports of `engine train` make (78,000), of which one search takes 0.1 s


def open_streams() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that was closed when Python began: the next file, a database
    maybe, would get its number, and what this process or one that it starts prints would be written into it."""
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
    # A file's name may be in no encoding.
    sys.stdout = _Stdout(raw, encoding, "backslashreplace", line_buffering=raw.isatty(), write_through=unbuffered)


class ReaderGone(EngineError):
    """Nobody reads stdout any more, as in `engine check net.prototxt | head`: no error of anybody's."""


class _Stdout(io.TextIOWrapper):
    """What an OSError does not tell: that it was stdout which could not be written."""

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
    """Raises the limit of open files as far as this user may, for data may be many files, but not to millions: some
    programs close every number before they start another. Raises EngineError where it stays too low."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if most < FILES:
        raise EngineError(f"at most {hard} files may be open at once (ulimit -n); expected at least {FILES}")
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def collect_late() -> None:
    """What imports make is no garbage, but Python looks for some among it, every 700 objects and again at the end: a
    quarter of the processor time of a short run. Here it looks when START_OBJECTS are there, from then on as ever, and
    not at the end."""
    usual = gc.get_threshold()

    def as_ever(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(as_ever)
            gc.set_threshold(*usual)

    gc.callbacks.append(as_ever)
    gc.set_threshold(START_OBJECTS, *usual[1:])
    atexit.register(gc.freeze)


def collect_as_ever() -> None:
    """Ends what collect_late() began, for a user's code: its files may be closed, and its last lines written, only when
    Python finds the objects that hold them, if need be at the end."""
    gc.collect(0)
    atexit.unregister(gc.freeze)


class Interrupts:
    """SIGINT raises KeyboardInterrupt, but once: the next one comes while the first brings things to an end, which it
    must not disturb. One that comes later than PATIENCE ends the process at once."""

    def __init__(self) -> None:
        self._ending: float | None = None  # since when

    def catch(self) -> None:
        """Takes over SIGINT, unless it is ignored, as a shell's background jobs do, or no business of this process."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            sys.unraisablehook = self._ignored

    @property
    def came(self) -> bool:
        """Whether one was raised: another exception may follow from it, as where it meets an import."""
        return self._ending is not None

    def hold(self) -> None:
        """From now on SIGINT raises nothing."""
        if self._ending is None:
            self._ending = time.monotonic()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._ending is None:
            self.hold()
            raise KeyboardInterrupt
        if time.monotonic() - self._ending > PATIENCE:
            end_by(number)

    def _ignored(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Brings back an interrupt that came where nothing can be raised, in a callback of C code."""
        if unraisable.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(unraisable)
        elif not sys.is_finalizing():
            from threading import Timer

            self._ending = None
            Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
