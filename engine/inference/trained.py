"""Loads weights from files into a net, for the tools."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import WeightsError, shortened
from engine.net import Net
from engine.report.log import warn
from engine.weights import read_caffemodel

_SHOWN = 200  # characters of a list of layers


def load(net: Net, paths: Sequence[str]) -> None:
    """File after file, by layer name: a later file's layers take the place of an earlier one's. Says which layers
    several files have, and which none of them has. Raises WeightsError, also where they have none of the layers."""
    holder: dict[str, str] = {}
    layers = net.owning_layers()
    for path in paths:
        fresh = set(net.load_weights(read_caffemodel(path), path))
        taken = [layer for layer in layers if layer not in fresh]
        for earlier in dict.fromkeys(holder[layer] for layer in taken if layer in holder):
            both = [layer for layer in taken if holder.get(layer) == earlier]
            warn(f"{path} takes the place of {earlier} in {len(both)} layers: {shortened(', '.join(both), _SHOWN)}")
        holder.update(dict.fromkeys(taken, path))
    if layers and not holder:
        raise WeightsError(
            f"none of its layers is one of the net's, which has {shortened(', '.join(layers), _SHOWN)}: weights are "
            "matched by the layers' names",
            ", ".join(paths),
        )
    missing = sorted(layer for layer in layers if layer not in holder)
    if missing:
        warn(f"Not in {', '.join(paths)}, so with initial values: {', '.join(missing)}")
