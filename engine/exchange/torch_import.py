"""`engine import` of state dictionaries: torchvision's classifiers, and others by the names of a net's layers."""

from __future__ import annotations

import os

from engine.config import read_net
from engine.exchange import torchvision
from engine.exchange.deploy_graph import deploy_graph
from engine.exchange.onto import transfer
from engine.exchange.torch_file import read_state
from engine.exchange.torch_names import from_state, modules
from engine.files import check_writable
from engine.weights import write_caffemodel

LEFT_OUT = ("aux1.", "aux2.", "AuxLogits.")


def import_torch(
    source: str | os.PathLike,
    net: str | os.PathLike,
    weights: str | os.PathLike,
    *,
    onto: bool = False,
    batch_size: int = 1,
) -> list[str]:
    """Writes the caffemodel `weights` of a state dictionary, and the prototxt `net` of its architecture.

    Args:
        source: .pth or .safetensors.
        onto: `net` is there. Its layers take the tensors of their names, or, of a dictionary of torchvision's, those of
            the layers that compute the same.
        batch_size: of the net that is written.
    Returns:
        Notes on what was left out.
    Raises:
        WeightsError: the dictionary cannot be read, is of no known architecture, or does not fit the net.
    """
    check_writable(weights)
    state = read_state(source)
    left = sorted({name.split(".")[0] for name in state if name.startswith(LEFT_OUT)})
    notes = [f"{', '.join(left)}: auxiliary classifiers, which only training has, are left out"] if left else []
    if not onto:
        check_writable(net)
        torchvision.build(state, str(source), batch_size).write(net, weights)
        return notes
    config = read_net(net)
    graph = deploy_graph(config)
    named = modules(graph)
    known = {name.rpartition(".")[0] for name in state}
    if torchvision.architecture_of(state) and not known.issuperset(named.values()):
        side = graph.inputs[0].shape[-1] if graph.inputs else 0
        transfer(torchvision.build(state, str(source), batch_size, side), net, weights)
        return notes
    blobs = {layer.name: from_state(layer, module, state, str(source)) for layer, module in named.items()}
    write_caffemodel(weights, config.message, blobs)
    return notes
