"""What holds in every test."""

import signal

import pytest

from engine.host.cores import limit_spinning

limit_spinning()  # before anything loads OpenMP's library: its idle threads shall sleep soon, on a busy machine, too
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and all that it starts


@pytest.fixture(autouse=True)
def no_consent(monkeypatch):
    """No test inherits another's consent to import the modules of Python layers, nor the caller's."""
    from engine.layers import python

    monkeypatch.setattr(python, "_consent", [])
    monkeypatch.delenv("ENGINE_PYTHON_LAYERS", raising=False)
