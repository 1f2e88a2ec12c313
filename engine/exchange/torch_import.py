"""`engine import` of state dictionaries: those of torchvision's classifiers, and others for a net whose layers have the
names of their modules."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import numpy as np

from engine.config import read_net
from engine.errors import WeightsError
from engine.exchange import torchvision
from engine.exchange.deploy_graph import deploy_graph
from engine.exchange.net_maker import check_outputs
from engine.exchange.onto import left_out, transfer
from engine.exchange.torch_file import read_state
from engine.exchange.torch_names import from_state, modules
from engine.weights import write_caffemodel


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
        source: a .pth or .safetensors, whatever its name ends in.
        onto: `net` exists, and is not written. Its layers take the tensors of their names. If the dictionary is one of
            torchvision's and lacks such names, they take those of the layers that compute the same.
        batch_size: of the net that is written.
    Returns:
        Notes on what was left out.
    Raises:
        WeightsError: the dictionary cannot be read, is of no known architecture, or does not fit the net.
        EngineError: see check_outputs().
    """
    check_outputs(net, weights, onto)
    state = read_state(source)
    architecture = torchvision.architecture_of(state)
    auxiliary = architecture.auxiliary if architecture else ()
    left = sorted({name.split(".")[0] for name in state}.intersection(auxiliary))
    notes = [f"{', '.join(left)}: auxiliary classifiers, which only training has, are left out"] if left else []
    if not onto:
        torchvision.build(state, str(source), batch_size).write(net, weights)
        return notes
    config = read_net(net)
    graph = deploy_graph(config)
    named = modules(graph)
    known = {name.rpartition(".")[0] for name in state}
    if architecture and not known.issuperset(named.values()):
        side = graph.inputs[0].shape[-1] if graph.inputs else 0
        return notes + transfer(torchvision.build(state, str(source), batch_size, side), net, weights)
    placed: set[str] = set()
    blobs = {layer.name: from_state(layer, module, state, str(source), placed) for layer, module in named.items()}
    notes += _others(state, placed, set(named.values()), auxiliary, net, str(source))
    write_caffemodel(weights, config.message, blobs)
    return notes


def _others(
    state: Mapping[str, np.ndarray],
    placed: Collection[str],
    named: Collection[str],
    auxiliary: Collection[str],
    net: str | os.PathLike,
    source: str,
) -> list[str]:
    """Returns notes on modules of the dictionary that the net has no layer for.

    Raises WeightsError if the net has a layer for a module, but the layer has no place for one of its tensors: it would
    compute something else.

    Args:
        placed: names of the tensors that layers have taken.
        named: names of modules that the net has layers for.
        auxiliary: modules to be silent about.
    """
    rest = [name for name in state if name not in placed and name.split(".")[0] not in auxiliary]
    owners = {name: name.rpartition(".")[0] for name in rest}  # the modules that tensors belong to
    wrong = [name for name in rest if owners[name] in named and not name.endswith(".num_batches_tracked")]
    if wrong:
        raise WeightsError(f"layers of these names in {net} have no place for {torchvision.described(wrong, state)}",
                           source)  # fmt: skip
    strange = dict.fromkeys(owners[name] or name for name in rest if owners[name] not in named)
    return [left_out(list(strange), net)] if strange else []
