"""The folder of public reference material beside a checkout of this repository. Tests that need it are skipped
without."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("ENGINE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def needs_shared(path: str) -> pytest.MarkDecorator:
    """Returns a marker that skips a test if SHARED / path is not there."""
    return pytest.mark.skipif(not (SHARED / path).exists(), reason=f"needs {SHARED / path} (or ENGINE_SHARED)")
