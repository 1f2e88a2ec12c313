"""The C++ extension, engine.host._ext, with oneDNN's library loaded before it. Everything imports it from here."""

import importlib

from engine.host import _dnnl
from engine.host.interrupts import undisturbed

_dnnl.preload()
with undisturbed():  # in the middle of a C++ module's initialisation an interrupt would abort, or look like a defect
    importlib.import_module("engine.host._ext")

from engine.host._ext import *  # noqa: E402, F403
from engine.host._ext import onednn_version  # noqa: E402

_dnnl.check_version(onednn_version())
