"""The ranks of a script: one, or as many as mpiexec has started, each with its share of the cores."""

from __future__ import annotations

import atexit
import functools
import logging
import sys
import traceback
import weakref
from collections.abc import Callable

from engine.comm.world import World, world
from engine.host.cores import share_cores
from engine.host.memory import divide_memory
from engine.report.log import set_up

_at_exit: list[Callable[[], None]] = []


@functools.cache
def ranks() -> World:
    """Made on first use, and closed when the script ends. The log goes to stderr, as Caffe's does, unless the script
    has a handler for the logger "engine"."""
    found = world()
    if not logging.getLogger("engine").handlers:
        set_up(found.rank)
    share_cores(found.places())
    if found.size > 1:
        divide_memory(found.neighbours)
        sys.excepthook = _abort
        atexit.register(_close)
    return found


def close_with(owner: object, close: Callable[[], None]) -> None:
    """Calls close() when `owner` is garbage collected, or at the end of the script: threads still running then could
    crash the process. With several ranks, which close things collectively, only at the end, in order."""
    if ranks().size == 1:
        weakref.finalize(owner, close)
    else:
        _at_exit.append(close)


def _close() -> None:
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
