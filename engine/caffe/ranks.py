"""The ranks of a script: one, or as many as mpiexec has started. Each has its part of the cores."""

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
_left: list[object] = []  # the codes of sys.exit() with which the script has ended


@functools.cache
def ranks() -> World:
    """Returns the world of this script's ranks, which is made on first use and closed when the script ends.

    Sends the log to stderr, as Caffe does, unless the script has a handler for the logger "engine". Python layers in a
    verb of the command line get the verb's world."""
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
    """Returns a context, also a decorator, for what ranks do together: the watchdog looks after this rank only within.
    Elsewhere the script may take as long as it likes."""
    return _away(False)


def unwatched():
    """Returns a context for the script's own code within watched(): the watchdog looks away."""
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
    """A SystemExit that notes in _left if nobody catches it: only then does the interpreter itself, without a Python
    frame, ask for the code."""

    @property
    def code(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        if sys._getframe().f_back is None:
            _left.append(super().code)
        return super().code


def _exit(status: object = None) -> NoReturn:
    """Replaces sys.exit() if there are several ranks."""
    raise (_Exit if threading.current_thread() is threading.main_thread() else SystemExit)(status)


def close_with(owner: object, close: Callable[[], None]) -> None:
    """Calls close() when `owner` is garbage collected, or at the end of the script: threads that still run then could
    crash the process. Several ranks close things collectively: they call it only at the end, in the order of calls of
    this function."""
    if ranks().size == 1:
        weakref.finalize(owner, close)
    else:
        _at_exit.append(close)


def _close() -> None:
    world = ranks()
    world.board.away(False)
    world.board.enter(END)
    for code in _left:
        if code not in (None, 0):  # the script has failed here, and the other ranks would wait for this one
            said = f"engine: [rank {world.rank}] the script has left by sys.exit({code}): ending all ranks"
            world.abort(*(said, code) if isinstance(code, int) else (None, 1))  # Python has printed it
    try:
        for close in _at_exit:
            close()
        ranks().close()
    except BaseException:
        _abort(*sys.exc_info())


def _abort(kind, error, trace) -> None:
    """Ends all ranks after an exception that this one has not caught: the others would wait for it."""
    ranks().abort("".join(traceback.format_exception(kind, error, trace)))


def solver_count() -> int:
    """Returns the number of ranks that train together."""
    return ranks().size


def solver_rank() -> int:
    return ranks().rank
