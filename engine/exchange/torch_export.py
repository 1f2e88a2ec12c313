"""`engine export --torch`: the weights of a net as a state dictionary."""

from __future__ import annotations

import os

import numpy as np

from engine.config import NetConfig
from engine.exchange.deploy_graph import deploy_graph, read_weights
from engine.exchange.torch_file import write_state
from engine.exchange.torch_names import modules, to_state
from engine.files import check_writable


def export_torch(config: NetConfig, weights: str, target: str | os.PathLike) -> list[str]:
    """Writes what phase TEST of a net has: "layer.weight" and so on, in the order of the file. Returns notes.

    Raises ConfigError, WeightsError where net and weights do not fit, EngineError if the file cannot be written.
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
    return list(config.notes)  # those of the graph are of layers, which a state does not have
