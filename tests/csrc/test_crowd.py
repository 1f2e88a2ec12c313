"""Idle threads sleep at once while other processes want their cores, and otherwise spin."""

import os

import pytest

from tests.csrc.program import output_of

TWO_CORES = len(os.sched_getaffinity(0)) > 1


@pytest.mark.skipif(not TWO_CORES, reason="a team takes two cores")
def test_an_idle_team_beside_others(tmp_path, monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    output_of(tmp_path, ["tests/csrc/crowd.cpp", "csrc/crowd.cpp"], ["-O1"])
