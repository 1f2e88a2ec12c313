"""`engine export --torch`: writes the weights of a net as a state dictionary."""

from __future__ import annotations

import os

import numpy as np

from engine.config import NetConfig
from engine.exchange.deploy_graph import deploy_graph, read_weights
from engine.exchange.torch_file import write_state
from engine.exchange.torch_names import modules, to_state
from engine.files import check_writable


def export_torch(config: NetConfig, weights: str, target: str | os.PathLike) -> list[str]:
    """Writes the parameters of the deployed net as "layer.weight" and so on, in the order of its layers; returns notes.

    Args:
        weights: a caffemodel.
    Raises:
        ConfigError: the net does not fit together.
        WeightsError: the weights do not fit the net.
        EngineError: the file cannot be written.
    """
    check_writable(target)
    graph = deploy_graph(config)
    values = read_weights(graph, config, weights)
    named = modules(graph)
    state: dict[str, np.ndarray] = {}
    for layer, module in named.items():
        arrays = [values[parameter.owner or parameter].reshape(parameter.shape) for parameter in layer.params]
        state.update({f"{module}.{name}": tensor for name, tensor in to_state(layer, arrays).items()})
    write_state(target, state)
    return list(config.notes)  # not those of the graph: they are on layers, and a state dictionary has none
