"""A progress bar on a terminal; plain log lines, now and then, elsewhere."""

from __future__ import annotations

import shutil
import time

from engine.report.log import log, terminal

REDRAW_SECONDS = 0.1
LINE_SECONDS = 10.0


class Progress:
    """Progress of `total` things (0: unknown), to be used with `with`.

    `line` is a text such as "Processed {done} of {total} files." for where there is no terminal; "" stays silent there.
    """

    def __init__(self, label: str, total: int = 0, line: str = "", begin: int = 0):
        """begin: how many were done before, by another run."""
        self._label, self._total, self._line, self._first = label, total, line, begin
        self._console = terminal()
        self._begin = self._shown = time.monotonic()
        self._logged = -1

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar."""
        if self._console:
            self._console.show("")

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """`done` things are done; `note` follows the bar."""
        if total is not None:
            self._total = total
        now = time.monotonic()
        finished = done == self._total
        if now - self._shown < (REDRAW_SECONDS if self._console else LINE_SECONDS) and not finished:
            return
        self._shown = now
        if self._console:
            self._console.show(self.text(done, now - self._begin, note))
        elif self._line and done != self._logged:
            self._logged = done
            log(self._line.format(done=done, total=self._total))

    def text(self, done: int, seconds: float, note: str = "") -> str:
        """The bar, cut to the terminal's width: `Testing [#####.....]  50% 50/100 0:05 left, 10.0/s  loss = 1.2`."""
        rate = (done - self._first) / seconds if seconds > 0 else 0.0
        tail = f" {rate:.1f}/s" if rate else ""
        if self._total:
            left = f" {clock((self._total - done) / rate)} left," if rate else ""
            filled = 24 * done // self._total
            bar = f"[{'#' * filled}{'.' * (24 - filled)}] {100 * done // self._total:3d}% {done}/{self._total}{left}"
        else:
            bar = str(done)
        text = f"{self._label} {bar}{tail}" + (f"  {note}" if note else "")
        return text[: shutil.get_terminal_size().columns - 1]


def clock(seconds: float) -> str:
    """62 -> "1:02", 3723 -> "1:02:03"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
