"""The C++ extension, engine.host._ext, with oneDNN's library loaded before it. Everything imports it from here."""

import importlib
import signal
import threading

from engine.host import _dnnl


def _initialise() -> None:
    """An interrupt in the middle of a C++ module's initialisation would abort, or look like a defect: it waits."""
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    waits = threading.current_thread() is threading.main_thread()
    if callable(handler) and waits:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        importlib.import_module("engine.host._ext")
    finally:
        if callable(handler) and waits:
            signal.signal(signal.SIGINT, handler)
    if callable(handler) and came:
        handler(came[0], None)


_dnnl.preload()
_initialise()

from engine.host._ext import *  # noqa: E402, F403
from engine.host._ext import onednn_version  # noqa: E402

_dnnl.check_version(onednn_version())
