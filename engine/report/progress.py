"""Shows progress: by a bar of tqdm on a terminal, by a log line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.errors import printable
from engine.report.log import Console, log, terminal

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_SECONDS = 10.0  # between two log lines


class Progress:
    """Shows how many of a number of things are done. Use it with `with`."""

    def __init__(self, label: str, total: int = 0, line: str = "", begin: int = 0):
        """Draws the bar if there is a terminal.

        Args:
            label: what stands before the bar.
            total: the number of things; 0: unknown.
            line: the log line where there is no terminal, such as "Processed {done} of {total} files."; "": none.
            begin: how many things an earlier run has done.
        """
        self._total, self._line = total, line
        self._shown, self._logged = time.monotonic(), -1
        self._console = terminal()
        self._bar = _bar(self._console, label, total, begin) if self._console else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar."""
        if self._console and self._bar is not None:
            self._console.remove(self._bar)
            self._bar.close()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Shows that `done` things are done, of `total` if that is given. `note` follows the bar."""
        if total is not None:
            self._total = total
        if self._bar is not None:
            self._bar.total = self._total or None
            self._bar.set_postfix_str(printable(note), refresh=False)
            self._bar.update(done - self._bar.n)
            if done == self._total:
                self._bar.refresh()  # tqdm leaves out what comes within 0.1 s
        elif self._line and done != self._logged:
            now = time.monotonic()
            if now - self._shown >= LINE_SECONDS or done == self._total:
                self._shown, self._logged = now, done
                log(self._line.format(done=done, total=self._total))


def _bar(console: Console, label: str, total: int, begin: int) -> tqdm:
    """Returns a bar that stays below the console's lines."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread beside those of the run

    Bar.set_lock(console.lock)  # tqdm's own lock holds a semaphore of the system
    bar = Bar(
        desc=label,
        total=total or None,
        initial=begin,
        file=console.stream,
        leave=False,
        miniters=1,
        smoothing=0,  # mean speed: the time that is left then has room for tests, which come in between
    )
    bar.dynamic_ncols = lambda _: (console.stream.columns(), None)  # tqdm does not see a launcher's terminal
    console.add(bar)
    return bar
