"""Decides which layers are divided among ranks, and into how many parts, by the net's `multinode { model_parallel }`
and the layers' own `multinode`, as in Intel's Caffe."""

from __future__ import annotations

from engine.config import NetConfig
from engine.config.suggestions import suggestion
from engine.errors import ConfigError
from engine.layers.model_parallel import Part
from engine.layers.weighted import Weighted

DIVISIBLE = ("InnerProduct", "Convolution")


def model_parts(config: NetConfig, ranks: int) -> dict[str, int]:
    """Returns layer name -> number of parts, for the layers that have more than one. On one rank there are none.

    model_parallel { layer_from layer_to num_nodes model_parts } divides all InnerProduct and Convolution layers from
    one to the other, in the order of the file. If a field is missing (or 0), layer_to is layer_from, num_nodes is the
    number of ranks, and model_parts is num_nodes. `multinode { num_nodes model_parts }` of a layer overrides that.
    Groups of model_parts consecutive ranks hold one copy. Raises ConfigErrors for unknown layers and numbers that do
    not divide the ranks.
    """
    names = [layer.name for layer in config.message.layer]
    asked: dict[str, tuple[int, int]] = {}
    for index, entry in enumerate(config.message.multinode.model_parallel):
        where = config.where(path="multinode")
        first, last = (_position(names, name, where) for name in (entry.layer_from, entry.layer_to or entry.layer_from))
        if last < first:
            raise ConfigError(f"model_parallel {index}: layer_to '{entry.layer_to}' is before layer_from", where)
        for layer in config.message.layer[first : last + 1]:
            if layer.type in DIVISIBLE:
                asked[layer.name] = entry.num_nodes, entry.model_parts
    for layer in config.message.layer:
        if layer.HasField("multinode"):
            asked[layer.name] = layer.multinode.num_nodes, layer.multinode.model_parts
    if ranks == 1:
        return {}
    parts = {name: _parts(config, names.index(name), nodes, count, ranks) for name, (nodes, count) in asked.items()}
    return {name: count for name, count in parts.items() if count > 1}


def _position(names: list[str], name: str, where: str) -> int:
    """Returns the index of a layer. Raises ConfigError if it is unknown."""
    if name not in names:
        raise ConfigError(f"model_parallel: no layer '{name}'{suggestion(name, names)}", where)
    return names.index(name)


def _parts(config: NetConfig, index: int, nodes: int, count: int, ranks: int) -> int:
    """Returns the number of parts of layer `index` of the file. nodes, count: its num_nodes and model_parts, 0 if they
    are not given. Raises ConfigError if they do not fit."""
    layer, where = config.message.layer[index], config.where(index)
    if nodes not in (0, ranks):
        raise ConfigError(f"layer '{layer.name}': multinode num_nodes {nodes}, but there are {ranks} ranks", where)
    count = count or ranks
    if ranks % count:
        raise ConfigError(f"layer '{layer.name}': model_parts {count} does not divide the {ranks} ranks", where)
    if count > 1 and layer.type not in DIVISIBLE:
        known = " and ".join(DIVISIBLE)
        raise ConfigError(f"layer '{layer.name}' ({layer.type}) has model_parts {count}; only {known} can", where)
    return count


def take_part(layer: Weighted, part: Part) -> None:
    """Makes a layer hold its part alone. Call it before its parameters are made. Raises ConfigError for a layer that
    cannot be divided."""
    param, count = layer.param, part.count
    if param.num_output % count:
        raise layer.error(f"expected a num_output that {count} parts divide, got {param.num_output}")
    whole = {"axis": 1, "transpose": False, "group": 1, "relu": False}
    for field, wanted in whole.items():
        if hasattr(param, field) and getattr(param, field) != wanted:
            raise layer.error(f"a layer in parts needs {field} {wanted}, got {getattr(param, field)}")
    if any(spec.name or spec.lr_mult == 0 for spec in layer.message.param):
        raise layer.error("a layer in parts can neither share its params nor have an lr_mult of 0")
    layer.part, layer.bf16 = part, False
