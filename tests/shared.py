"""The folder of public reference material that stands beside a checkout of this repository; tests go without it."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("ENGINE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def needs_shared(path: str) -> pytest.MarkDecorator:
    """Skips a test if SHARED / path is not there."""
    return pytest.mark.skipif(not (SHARED / path).exists(), reason=f"needs {SHARED / path} (or ENGINE_SHARED)")
