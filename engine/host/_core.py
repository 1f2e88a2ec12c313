"""The C++ extension, engine.host._ext, with oneDNN's library loaded before it. Everything imports it from here."""

import ctypes
import importlib
import os

from engine.host import _dnnl
from engine.host.interrupts import undisturbed

_dnnl.preload()
with undisturbed():  # an interrupt while a C++ module initialises would abort the process, or look like a defect
    _ext = importlib.import_module("engine.host._ext")

from engine.host._ext import *  # noqa: E402, F403
from engine.host._ext import onednn_version  # noqa: E402

_dnnl.check_version(onednn_version())

# fork() copies the calling thread alone: the child would wait for ever for the other threads of the OpenMP team. So the
# team ends before a fork, and both processes make a new one when they compute again. libgomp can do so since GCC 9.
_openmp = ctypes.CDLL(_ext.__file__)
if hasattr(_openmp, "omp_pause_resource_all"):
    os.register_at_fork(before=lambda: _openmp.omp_pause_resource_all(1))


def set_threads(count: int) -> None:
    """Gives the calling thread's OpenMP team so many threads, where OMP_NUM_THREADS was set after libgomp read it."""
    _openmp.omp_set_num_threads(count)
