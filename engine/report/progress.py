"""A progress bar on a terminal, drawn by tqdm; plain log lines, now and then, elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.errors import printable
from engine.report.log import Console, log, terminal

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_SECONDS = 10.0


class Progress:
    """Progress of `total` things (0: unknown), to be used with `with`.

    `line` is a text such as "Processed {done} of {total} files." for where there is no terminal; "" stays silent there.
    """

    def __init__(self, label: str, total: int = 0, line: str = "", begin: int = 0):
        """begin: how many were done before, by another run."""
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
        """`done` things are done; `note` follows the bar."""
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
    """Returns a bar that keeps below the console's lines."""
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
        smoothing=0,  # the mean speed: what comes between, as a test does, takes its share of the time that is left
    )
    bar.dynamic_ncols = lambda _: (console.stream.columns(), None)  # tqdm does not see a launcher's terminal
    console.add(bar)
    return bar
