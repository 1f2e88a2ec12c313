"""The ranks of a script: one, or as many as mpiexec has started, each with its share of the cores."""

from __future__ import annotations

import atexit
import functools
import logging
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from engine.comm.settings import watchdog_seconds
from engine.comm.world import World, world
from engine.host.cores import share_cores
from engine.host.memory import divide_memory
from engine.report.log import set_up
from engine.watchdog.board import END

_at_exit: list[Callable[[], None]] = []
_left: list[object] = []  # the code of a sys.exit() that nobody has caught


@functools.cache
def ranks() -> World:
    """Made on first use, and closed when the script ends. The log goes to stderr, as Caffe's does, unless the script
    has a handler for the logger "engine". In a verb of the command line, whose Python layers may ask, they are its."""
    found = world()
    if found.is_of_verb:
        return found
    if not logging.getLogger("engine").handlers:
        set_up(found.rank)
    share_cores(found.places())
    if found.size > 1:
        divide_memory(found.neighbours)
        sys.excepthook, sys.exit = _abort, _exit
        atexit.register(_close)
        found.board.away(True)
        found.watch(watchdog_seconds())
    return found


def watched():
    """Around what ranks do together, also as a decorator: meanwhile the watchdog looks after this one, which may else
    take as long as it likes."""
    return _away(False)


def unwatched():
    """The reverse, around a program's own code within."""
    return _away(True)


@contextmanager
def _away(on: bool) -> Iterator[None]:
    board = ranks().board
    before = board.is_away()
    try:
        board.away(on)
        yield
    finally:
        board.away(before)


class _Exit(SystemExit):
    """Notes that nobody has caught it: only then does the interpreter ask for the code, with no frame of Python's."""

    @property
    def code(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        if sys._getframe().f_back is None:
            _left.append(super().code)
        return super().code


def _exit(status: object = None) -> NoReturn:
    """sys.exit() of several ranks."""
    raise (_Exit if threading.current_thread() is threading.main_thread() else SystemExit)(status)


def close_with(owner: object, close: Callable[[], None]) -> None:
    """Calls close() when `owner` is garbage collected, or at the end of the script: threads still running then could
    crash the process. With several ranks, which close things collectively, only at the end, in order."""
    if ranks().size == 1:
        weakref.finalize(owner, close)
    else:
        _at_exit.append(close)


def _close() -> None:
    world = ranks()
    world.board.away(False)
    world.board.enter(END)
    for code in _left:
        if code not in (None, 0):  # the others would wait for this rank
            said = f"engine: [rank {world.rank}] the script has left by sys.exit({code}): ending all ranks"
            world.abort(*(said, code) if isinstance(code, int) else (None, 1))  # Python has printed it
    try:
        for close in _at_exit:
            close()
        ranks().close()
    except BaseException:
        _abort(*sys.exc_info())


def _abort(kind, error, trace) -> None:
    """One rank's uncaught exception ends all ranks: the others would wait for it."""
    ranks().abort("".join(traceback.format_exception(kind, error, trace)))


def solver_count() -> int:
    """How many ranks train together."""
    return ranks().size


def solver_rank() -> int:
    return ranks().rank
