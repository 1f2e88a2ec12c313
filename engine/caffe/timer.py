"""caffe.Timer: a stopwatch."""

from __future__ import annotations

import time


class Timer:
    """Measures from start() to stop()."""

    def __init__(self):
        self._begin: float | None = None  # while it runs
        self._seconds = 0.0

    def start(self) -> None:
        """Starts at 0; does nothing if it runs already."""
        if self._begin is None:
            self._begin = time.perf_counter()

    def stop(self) -> None:
        if self._begin is not None:
            self._seconds, self._begin = time.perf_counter() - self._begin, None

    @property
    def ms(self) -> float:
        """Milliseconds between the last start() and stop(), 0 if there were none. Stops a running one, as in Caffe."""
        self.stop()
        return 1000 * self._seconds
