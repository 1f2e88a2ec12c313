"""Loads weights from files into a net, layer by layer, and warns of what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import WeightsError, shortened
from engine.net import Net
from engine.report.log import warn
from engine.weights import read_caffemodel


def listed(layers: Sequence[str]) -> str:
    """Returns names of layers for a message, as many as fit into a line."""
    return shortened(", ".join(layers), 200)


def require_all(missing: Sequence[str], source: str, why: str) -> None:
    """Raises WeightsError if there are `missing` layers, which a source of weights lacks. why: words that say why it
    must have them."""
    if missing:
        raise WeightsError(f"lacks layers of the net, {listed(missing)}; {why}", source)


def load_file(net: Net, path: str) -> list[str]:
    """Gives a net the weights of one file, by layer name. Returns the layers that the file lacks. Raises WeightsError,
    also if it has none of the net's layers: the net would keep its initial values."""
    lacking = net.load_weights(read_caffemodel(path), path)
    if has_none(net, lacking):
        raise WeightsError(none_of(net), path)
    return lacking


def has_none(net: Net, lacking: Sequence[str]) -> bool:
    """Returns whether a file that lacks these layers has no layer of the net at all."""
    return bool(lacking) and len(lacking) == len(net.owning_layers())


def none_of(net: Net) -> str:
    """Returns the message about a file that has none of the net's layers."""
    return (
        f"none of its layers is one of the net's, which has {listed(net.owning_layers())}: "
        "weights are matched by the layers' names"
    )


def load(net: Net, paths: Sequence[str]) -> None:
    """Gives a net the weights of files, one after the other, by layer name: a later file's layers take the place of an
    earlier one's. Warns of layers that several files have, or none. Raises WeightsError as load_file() does."""
    holder: dict[str, str] = {}
    layers = net.owning_layers()
    for path in paths:
        fresh = set(load_file(net, path))
        taken = [layer for layer in layers if layer not in fresh]
        for earlier in dict.fromkeys(holder[layer] for layer in taken if layer in holder):
            both = [layer for layer in taken if holder.get(layer) == earlier]
            warn(f"{path} takes the place of {earlier} in {len(both)} layers: {listed(both)}")
        holder.update(dict.fromkeys(taken, path))
    missing = sorted(layer for layer in layers if layer not in holder)
    if missing:
        warn(f"Not in {', '.join(paths)}, so with initial values: {', '.join(missing)}")
