"""Signals that wait: for the end of what must not be left half done, or of a call that takes a moment only."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 2.0  # seconds that are left to what an interrupt has to bring to an end


@contextmanager
def undisturbed() -> Iterator[None]:
    """Meanwhile SIGINT does nothing; at the end it does what it would have done. For work that takes no time, and never
    waits for anybody."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])


@contextmanager
def whole() -> Iterator[None]:
    """Meanwhile SIGINT, where it raises KeyboardInterrupt, does so at the end; a second one does so at once."""
    if not raises():
        yield
        return
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP, where they would end the process at once, raise KeyboardInterrupt before, so that
    what is unfinished is removed; then the process ends by the signal. One that comes later than PATIENCE ends it."""
    came: list[tuple[int, float]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append((number, time.monotonic()))
            raise KeyboardInterrupt
        if time.monotonic() - came[0][1] > PATIENCE:
            end_by(number)

    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if in_main else ()
    taken = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, note)
        yield
    finally:
        if came:
            end_by(came[0][0])
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def end_by(number: int) -> None:
    """Ends the process by a signal, as it would have ended without a handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def is_ignored() -> bool:
    """Whether SIGINT is none of this process' business: a script's background jobs are told so, and hand it on."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def raises() -> bool:
    """Whether SIGINT raises KeyboardInterrupt in this thread, as Python and notebooks have it."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
