"""The C++ extension, engine.host._ext, with oneDNN's library loaded before it. Everything imports it from here."""

import ctypes
import importlib
import os

from engine.host import _dnnl
from engine.host.interrupts import undisturbed

_dnnl.preload()
with undisturbed():  # in the middle of a C++ module's initialisation an interrupt would abort, or look like a defect
    _ext = importlib.import_module("engine.host._ext")

from engine.host._ext import *  # noqa: E402, F403
from engine.host._ext import onednn_version  # noqa: E402

_dnnl.check_version(onednn_version())

# A process that is forked has the forking thread alone, and would wait for that thread's team for ever: the team ends
# before, and both processes make another when they compute again. libgomp can do so since GCC 9.
_openmp = ctypes.CDLL(_ext.__file__)
if hasattr(_openmp, "omp_pause_resource_all"):
    os.register_at_fork(before=lambda: _openmp.omp_pause_resource_all(1))
