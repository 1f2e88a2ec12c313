"""Writes log lines to stderr in glog's format, as Caffe's tools read: `I1121 00:54:47.123456  1234 solver.py:101]
text`.

    from engine.report.log import log
    log(f"Iteration {iteration}, lr = {rate:g}")

A program that uses engine as a library gets the lines from Python's logger "engine".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import sys
import termios
import threading
import time
from typing import Any, Protocol, TextIO

from engine.errors import EngineError, printable
from engine.host.launch import detect
from engine.host.terminal import columns_of, launchers_terminal

_logger = logging.getLogger("engine")


def log(text: str) -> None:
    """Writes a line for the user; on rank 0 only."""
    _logger.info(text, stacklevel=2)


def warn(text: str) -> None:
    """Writes a warning for the user; on rank 0 only."""
    _logger.warning(text, stacklevel=2)


class GlogFormatter(logging.Formatter):
    """Puts glog's prefix before every line of a message: parsers read the time of each line from it."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.localtime(record.created)
        clock = f"{at.tm_mon:02d}{at.tm_mday:02d} {at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
        microseconds = int(record.created % 1 * 1e6)
        place = f"{record.filename}:{record.lineno}"
        prefix = f"{record.levelname[0]}{clock}.{microseconds:06d} {threading.get_native_id():5d} {place}] "
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(prefix + line for line in printable(text, lines=True).split("\n"))


class Output:
    """A stream that writes what it can, and never raises: a run may outlive its terminal."""

    def __init__(self, stream: TextIO | None):
        """stream: None if the descriptor was closed before Python began."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def columns(self) -> int:
        """Returns the width of the terminal that shows this stream, directly or by way of a launcher; 0 if there is
        none, or if it cannot draw a bar."""
        if self._stream is None or os.environ.get("TERM") == "dumb":
            return 0
        try:
            return os.get_terminal_size(self._stream.fileno()).columns
        except (AttributeError, OSError, ValueError):
            pass
        if self._stream is not sys.stderr or detect() is None:
            return 0
        device = launchers_terminal()
        return columns_of(device) if device else 0

    def write(self, text: str) -> None:
        self._try("write", text)

    def flush(self) -> None:
        self._try("flush")

    def settle(self) -> None:
        """Writes what the stream still holds, or throws it away if that fails: Python would try again at the exit."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError, EngineError):  # the stdout of startup.py raises EngineError
            self._discard()

    def drain(self) -> None:
        """Waits, a second at most, until the launcher has read what was written: an abort may throw away what it has
        not."""
        unread = bytearray(4)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, closed, or no pipe: nothing is lost
            for _ in range(100):
                fcntl.ioctl(self.fileno(), termios.FIONREAD, unread)
                if not any(unread):
                    break
                time.sleep(0.01)
            time.sleep(0.05)  # for the launcher's process on this host to pass it on to mpiexec

    def _try(self, method: str, *arguments: str) -> None:
        try:
            getattr(self._stream, method)(*arguments)
        except OSError as error:
            if error.errno in (errno.EIO, errno.EPIPE):  # the terminal, or the reader of the pipe, is gone for good
                self._discard()
        except (AttributeError, ValueError):  # there is no stream, or it is closed
            pass

    def _discard(self) -> None:
        """Sends to /dev/null what the stream still holds, and what is written to its descriptor from now on."""
        with contextlib.suppress(AttributeError, OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)


class Bar(Protocol):
    """What gives way to log lines."""

    def clear(self) -> object: ...

    def refresh(self) -> object: ...


class Console(logging.StreamHandler):
    """stderr, with room for progress bars below the log, if it is a terminal."""

    def __init__(self):
        super().__init__(Output(sys.stderr))
        self.setFormatter(GlogFormatter())
        self.is_terminal = self.stream.columns() > 0
        self._bars: list[Bar] = []

    def emit(self, record: logging.LogRecord) -> None:
        for bar in self._bars:
            bar.clear()
        super().emit(record)
        for bar in self._bars:
            bar.refresh()

    def add(self, bar: Bar) -> None:
        """Adds a bar, which is cleared for each log line and drawn again below it. It must use this console's stream
        and lock."""
        with self.lock or contextlib.nullcontext():
            self._bars.append(bar)

    def remove(self, bar: Bar) -> None:
        with self.lock or contextlib.nullcontext():
            self._bars.remove(bar)


_LEVELS = logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL  # glog's 0 to 3


def set_up(rank: int = 0, level: int | None = None) -> Console:
    """Sends the log to stderr: everything on rank 0, only errors on other ranks. Returns the console.

    Args:
        rank: of this process.
        level: the lowest of glog's levels that is shown; None: GLOG_minloglevel of the environment, as for Caffe.
    """
    given = os.environ.get("GLOG_minloglevel", "").strip() if level is None else ""
    wrong = given and not re.fullmatch("[0-9]{1,9}", given)
    if level is None:
        level = 0 if wrong else int(given or 0)
    for handler in list(_logger.handlers):
        _logger.removeHandler(handler)
    console = Console()
    _logger.addHandler(console)
    least = _LEVELS[min(max(level, 0), len(_LEVELS) - 1)]
    _logger.setLevel(least if rank == 0 else max(least, logging.ERROR))
    _logger.propagate = False
    if wrong:
        warn(f"GLOG_minloglevel must be a whole number, 0 for all lines to 3 for none; got {given!r}; all are shown")
    return console


def terminal() -> Console | None:
    """Returns the console if it is a terminal and this rank's log goes there, else None."""
    console = next((handler for handler in _logger.handlers if isinstance(handler, Console)), None)
    return console if console and console.is_terminal and _logger.isEnabledFor(logging.INFO) else None
