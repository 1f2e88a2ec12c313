"""Gives each test of the solver a fresh current folder, where runs without a snapshot_prefix leave their files."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("current"))
