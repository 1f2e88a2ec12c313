"""Lets the exceptions of layers written in Python reach the script that has called the net as they were raised."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from engine.layers.python import UserError

P = ParamSpec("P")
T = TypeVar("T")


def as_raised(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function that scripts call: it raises the exception of a layer's code in place of the UserError that
    wraps it. So the script can catch it by its type, as in Caffe; a note names the layer."""

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
            del raised  # or it would hold itself, by its traceback and this frame

    return call
