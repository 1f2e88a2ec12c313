"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys

import pytest

from engine.host.cores import CROWDED_SPIN_COUNT

# This has to be set before libgomp is loaded: several tests run at a time, and each takes all cores for its own.
os.environ.setdefault("GOMP_SPINCOUNT", CROWDED_SPIN_COUNT)
# The thread that OpenBLAS starts with NumPy spins for a while, a fifth of the processor time in which a command starts.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests start thousands of processes. Without this, each would compile all modules and draw the curve of its run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("ENGINE_CURVE", "0")
# Background jobs of a shell ignore it, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Exempts the ten thousand tests and their modules from garbage collection, which makes it faster in tests of
    leaks."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_consent(monkeypatch):
    """Lets no test inherit the consent to import modules of Python layers from another test, or from the caller."""
    from engine.layers import python

    monkeypatch.setattr(python, "_consent", [])
    monkeypatch.delenv("ENGINE_PYTHON_LAYERS", raising=False)
