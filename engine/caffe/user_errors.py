"""Errors of layers written in Python, as the script that has called the net meets them: those that were raised."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from engine.layers.python import UserError

P = ParamSpec("P")
T = TypeVar("T")


def as_raised(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates what a script calls. The exception of a layer's code passes through as it is, as in Caffe, so that the
    script can catch it by its type; a note names the layer. All that lies between sees a UserError."""

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*arguments, **keywords)
        except UserError as error:
            note, raised = str(error).splitlines()[0], error.raised
        if sys.version_info >= (3, 11) and note not in getattr(raised, "__notes__", ()):
            raised.add_note(note)
        try:
            raise raised  # not in the except clause: its own context stays
        finally:
            del raised  # which would hold itself, by this frame

    return call
