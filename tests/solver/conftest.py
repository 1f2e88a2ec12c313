"""Runs without a snapshot_prefix leave their files in the current folder: a fresh one for each test."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("current"))
