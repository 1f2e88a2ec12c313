"""Makes signals wait for the end of work that must not be left half done."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 2.0  # seconds that a program has to end in order after an interrupt; a later one ends it at once


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delays SIGINT: its handler runs when the block has ended. For blocks that take a moment and never wait for
    anybody, since no further SIGINT ends them either."""
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
def delaying_interrupt() -> Iterator[None]:
    """Delays the KeyboardInterrupt of a SIGINT to the end of the block; a second SIGINT raises it at once. Does nothing
    where SIGINT raises none."""
    if not interrupt_raises():
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
    """Lets SIGTERM and SIGHUP raise KeyboardInterrupt in the block, where they would have ended the process at once:
    what is unfinished is removed, then the process ends by the signal. Another one, more than PATIENCE later, ends it
    at once."""
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
    """Ends the process by a signal, as if the signal had no handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def is_ignored() -> bool:
    """Returns whether this process ignores SIGINT. Shells start the background jobs of scripts so, and processes that
    such a job starts inherit it."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def interrupt_raises() -> bool:
    """Returns whether SIGINT raises KeyboardInterrupt in this thread: Python's own handler, in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
