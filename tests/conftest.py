"""What holds in every test."""

import gc
import os
import signal
import sys

import pytest

from engine.host.cores import CROWDED_SPIN_COUNT

# Before anything loads libgomp: several tests run at a time, each of which takes the cores for its own.
os.environ.setdefault("GOMP_SPINCOUNT", CROWDED_SPIN_COUNT)
# The thread that OpenBLAS starts with NumPy spins for a while: a fifth of the processor time in which a command starts.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Else each of the thousands of processes that tests start would compile all modules, and draw the curve of its run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("ENGINE_CURVE", "0")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and all that it starts


def pytest_collection_finish():
    """Ten thousand tests and their modules are no garbage: who looks for some, as tests of leaks do, passes them by."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_consent(monkeypatch):
    """No test inherits another's consent to import the modules of Python layers, nor the caller's."""
    from engine.layers import python

    monkeypatch.setattr(python, "_consent", [])
    monkeypatch.delenv("ENGINE_PYTHON_LAYERS", raising=False)
