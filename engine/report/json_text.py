"""Writes what verbs have found as JSON."""

from __future__ import annotations

import json
import math


def json_text(value: object, indent: int | None = 1) -> str:
    """Returns a value as JSON. Numbers that are not finite, which JSON does not have, become null."""
    return json.dumps(_finite(value), indent=indent)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
