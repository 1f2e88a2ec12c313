"""The C++ extension, engine._ext, with oneDNN's library loaded before it. Everything imports it from here."""

from engine import _dnnl

_dnnl.preload()

from engine._ext import *  # noqa: E402, F403
