"""The precision of a run that asks for bf16."""

import os
import subprocess
import sys

import pytest

from engine.comm import precision
from engine.comm.precision import usable_precision
from engine.comm.world import World
from engine.host import _core


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """Returns a list that collects the warnings."""
    lines: list[str] = []
    monkeypatch.setattr(precision, "warn", lines.append)
    return lines


def test_bf16_where_it_saves_time(warnings, monkeypatch):
    monkeypatch.setattr(_core, "bf16_gain", lambda: 1.9)
    assert usable_precision("bf16", World()) == "bf16"
    assert usable_precision("fp32", World()) == "fp32"
    assert not warnings


def test_fp32_where_bf16_is_there_and_saves_nothing(warnings, monkeypatch):
    monkeypatch.setattr(_core, "bf16_gain", lambda: 0.8)
    assert usable_precision("bf16", World()) == "fp32"
    assert "where bf16 takes 1.2 times as long. Running in fp32." in warnings[0]


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_fp32_where_bf16_is_not_there(isa):
    text = "from engine.comm.world import World; from engine.comm.precision import usable_precision as usable\n"
    text += "print(usable('bf16', World()))"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    ran = subprocess.run([sys.executable, "-P", "-c", text], env=environment, capture_output=True, text=True)
    assert ran.stdout == "fp32\n", ran.stderr
    assert "saves time by AVX512_BF16 or AMX only" in ran.stderr


def test_the_gain_is_measured():
    """Matrix units make it eight times as fast or more; other instructions for bf16 make it twice as fast at most."""
    gain = _core.bf16_gain()
    assert (gain > 0) == ("bf16" in _core.onednn_isa() or "AMX" in _core.onednn_isa())
    assert gain > 2.5 or not _core.has_amx()
