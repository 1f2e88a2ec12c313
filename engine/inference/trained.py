"""Loads weights from files into a net, for the tools."""

from __future__ import annotations

from collections.abc import Sequence

from engine.net import Net
from engine.report.log import warn
from engine.weights import read_caffemodel


def load(net: Net, paths: Sequence[str]) -> None:
    """File after file, by layer name; says which layers none of them has. Raises WeightsError."""
    missing = None
    for path in paths:
        fresh = set(net.load_weights(read_caffemodel(path), path))
        missing = fresh if missing is None else missing & fresh
    if missing:
        warn(f"Not in {', '.join(paths)}, so with initial values: {', '.join(sorted(missing))}")
