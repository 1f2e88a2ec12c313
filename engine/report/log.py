"""Log lines in glog's format, which Caffe's tools read: `I1121 00:54:47.123456  1234 solver.py:101] text`, on stderr.

    from engine.report.log import log
    log(f"Iteration {iteration}, lr = {rate:g}")

A program that uses engine as a library finds the lines in the standard logger named "engine".
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

_logger = logging.getLogger("engine")


def log(text: str) -> None:
    """A line for the user; on rank 0 only."""
    _logger.info(text, stacklevel=2)


def warn(text: str) -> None:
    """A warning for the user; on rank 0 only."""
    _logger.warning(text, stacklevel=2)


class GlogFormatter(logging.Formatter):
    """A prefix on every line of a message: the parsers take the time of each line from it."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.localtime(record.created)
        clock = f"{at.tm_mon:02d}{at.tm_mday:02d} {at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
        microseconds = int(record.created % 1 * 1e6)
        place = f"{record.filename}:{record.lineno}"
        prefix = f"{record.levelname[0]}{clock}.{microseconds:06d} {threading.get_native_id():5d} {place}] "
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(prefix + line for line in text.split("\n"))


class Console(logging.StreamHandler):
    """A stream with room for one status line (a progress bar) below the log, if it is a terminal."""

    def __init__(self, stream=None):
        super().__init__(stream or sys.stderr)
        self.setFormatter(GlogFormatter())
        self.is_terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._erase()
        super().emit(record)
        self._draw()

    def show(self, status: str) -> None:
        """Replaces the status line; "" removes it. Does nothing where there is no terminal."""
        if not self.is_terminal:
            return
        with self.lock:
            self._erase()
            self._status = status
            self._draw()

    def _erase(self) -> None:
        if self._status:
            self.stream.write("\r\x1b[2K")

    def _draw(self) -> None:
        if self._status:
            self.stream.write(self._status)
            self.stream.flush()


def set_up(rank: int = 0) -> Console:
    """Sends the log to stderr: everything on rank 0, errors only elsewhere. Returns the console."""
    for handler in list(_logger.handlers):
        _logger.removeHandler(handler)
    console = Console()
    _logger.addHandler(console)
    _logger.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    _logger.propagate = False
    return console


def terminal() -> Console | None:
    """The console, if it is a terminal and this rank's log goes there."""
    console = next((handler for handler in _logger.handlers if isinstance(handler, Console)), None)
    return console if console and console.is_terminal and _logger.isEnabledFor(logging.INFO) else None
