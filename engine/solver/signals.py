"""What signals do to a run, by default as in Caffe: SIGINT and SIGTERM stop it, SIGHUP takes a snapshot."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from engine.errors import ConfigError
from engine.host.interrupts import PATIENCE, interrupt_raises, is_ignored

STOP, SNAPSHOT = 1, 2  # flags: ranks agree by a bitwise or
EFFECTS = {"stop": STOP, "snapshot": SNAPSHOT, "none": 0}
_END = b"\0"  # no signal's number


class _Listener:
    """A thread that calls tell(number) as soon as a signal comes. Python's own handlers run only when C++ gives the
    main thread back. It hears nothing if somebody else, such as asyncio, listens already."""

    def __init__(self, tell: Callable[[int], None]):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        self._thread = threading.Thread(target=self._listen, args=(tell,), name="signals", daemon=True)
        self._thread.start()

    def _listen(self, tell: Callable[[int], None]) -> None:
        while (number := os.read(self._read, 1)) != _END:
            tell(number[0])

    def close(self) -> None:
        self._unhook()
        os.write(self._write, _END)  # the pipe itself ends only where no process that was forked holds it
        self._thread.join()
        self._close_pipe()

    def forsake(self) -> None:
        """Ends listening in a forked process, which lacks the thread; what it wrote to the pipe the parent would
        read."""
        self._unhook()
        self._close_pipe()

    def _unhook(self) -> None:
        if (before := signal.set_wakeup_fd(-1)) != self._write:
            signal.set_wakeup_fd(before)

    def _close_pipe(self) -> None:
        os.close(self._write)
        os.close(self._read)


class Signals:
    """A context that notes signals; `flags` tells what they ask for until `clear()`.

    A second SIGINT, while the run is stopping already, raises KeyboardInterrupt, for those who cannot wait for the step
    to end; further ones within PATIENCE seconds do nothing. Signals do what they did before where the context is
    entered in another thread than the main one, which alone can take them over, and in processes that user code forks.
    A SIGINT that is ignored, as in a script's background jobs, stays ignored.
    """

    def __init__(self, sigint: str = "stop", sighup: str = "snapshot"):
        for name, effect in (("sigint_effect", sigint), ("sighup_effect", sighup)):
            if effect not in EFFECTS:
                raise ConfigError(f"--{name} '{effect}': expected {', '.join(EFFECTS)}")
        # One entry for each effect: to set one is a single operation, while a handler may interrupt another.
        self._asked: dict[int, bool] = dict.fromkeys((STOP, SNAPSHOT, 0), False)
        # Schedulers end a job's time with SIGTERM: it stops like SIGINT, whatever SIGINT is set to do.
        self._effects = {signal.SIGINT: EFFECTS[sigint], signal.SIGHUP: EFFECTS[sighup], signal.SIGTERM: STOP}
        self.interrupted = False  # whether SIGINT has asked to stop, since clear()
        self._raised = float("-inf")  # when KeyboardInterrupt was last raised
        self.on_stop: Callable[[str], None] | None = None  # called once with the signal's name, in another thread
        self._listener: _Listener | None = None
        self._before: dict[signal.Signals, signal._HANDLER] = {}  # what __exit__() gives back
        self._outside: dict[signal.Signals, signal._HANDLER] = {}  # what signals did before any Signals noted them
        _all.add(self)

    def heed_hangups(self) -> None:
        """Notes SIGHUP from now on: the terminal may be closed before the context is entered."""
        self._take_over(signal.SIGHUP)

    def _take_over(self, number: signal.Signals) -> signal._HANDLER:
        """Notes this signal from now on. Returns the handler before."""
        before = signal.signal(number, self._note)
        if before != self._note:
            self._outside[number] = before
        return before

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in self._effects:
                if number != signal.SIGINT or not is_ignored():
                    self._before[number] = self._take_over(number)
            self._listener = _Listener(self._tell)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._listener:
            self._listener.close()
            self._listener = None

    def forsake(self) -> None:
        """Gives signals their former effects in a process that user code has forked: its signals are not the run's."""
        for number, handler in self._outside.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._before.clear()
        if self._listener:
            self._listener.forsake()
            self._listener = None

    def _tell(self, number: int) -> None:
        if self.on_stop and self._effects.get(signal.Signals(number)) == STOP:
            tell, self.on_stop = self.on_stop, None
            tell(signal.Signals(number).name)

    @contextmanager
    def interrupt(self) -> Iterator[None]:
        """A context in which SIGINT asks to stop instead of raising KeyboardInterrupt; all other signals do what they
        did. For steps that a user's program runs."""
        taken = interrupt_raises()
        if taken:
            self._take_over(signal.SIGINT)
        try:
            yield
        finally:
            if taken:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def flags(self) -> int:
        """What signals have asked for since clear(): STOP, SNAPSHOT, both or 0."""
        return sum(effect for effect, asked in self._asked.items() if asked)

    def clear(self, flags: int) -> None:
        for effect in (STOP, SNAPSHOT):
            if flags & effect:
                self._asked[effect] = False
        if flags & STOP:
            self.interrupted = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        effect = self._effects[signal.Signals(number)]
        if number == signal.SIGINT and effect == STOP and self.flags & STOP:
            if time.monotonic() - self._raised > PATIENCE:
                self._raised = time.monotonic()
                raise KeyboardInterrupt
            return
        self._asked[effect] = True
        if number == signal.SIGINT and effect == STOP:
            self.interrupted = True


_all: weakref.WeakSet[Signals] = weakref.WeakSet()


def _forsake_all() -> None:
    for signals in _all:
        signals.forsake()


os.register_at_fork(after_in_child=_forsake_all)
