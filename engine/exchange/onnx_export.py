"""`engine export --onnx`: writes a net and its weights as an ONNX model.

The model computes what the deployed net does (deploy_graph.py). Its inputs and outputs have the names of their blobs,
its nodes the names of the layers. Where layers turn an input into an output in place, the input has the blob's name,
since the user feeds it by that name. The first axis of an input is dynamic unless the net holds its batch fixed.
"""

from __future__ import annotations

import os
from typing import cast

from engine.config import NetConfig
from engine.errors import ConfigError, EngineError
from engine.exchange.deploy_graph import DeployGraph, deploy_graph, read_weights
from engine.exchange.merge import Merger
from engine.exchange.onnx_file import import_onnx_package, write_model
from engine.exchange.onnx_writer import Writer
from engine.exchange.to_onnx.normalisation import normalised
from engine.exchange.to_onnx.registry import Export, Inexpressible, export_of
from engine.files import check_writable, reason
from engine.layers.base import Layer


def export_onnx(
    config: NetConfig, weights: str, target: str | os.PathLike, *, fold: bool = False, partial: bool = False
) -> list[str]:
    """Writes the model to `target`; returns notes on what was left out or changed.

    Args:
        config: the net.
        weights: a caffemodel.
        fold: fold BatchNorm and Scale into the weights of the layer before them.
        partial: where layers cannot be expressed, end the model before them.
    Raises:
        ConfigError: the net does not fit together, or, unless `partial`, has layers that cannot be expressed: one line
            names them all.
        WeightsError: the weights do not fit the net.
        EngineError: the onnx package is not installed, or the file cannot be written.
    """
    onnx = import_onnx_package()
    check_writable(target)
    refusals: dict[str, str] = {}  # name of a layer -> why its settings cannot be expressed
    while True:  # writing may find further refusals: the graph is then made anew without these layers
        graph = deploy_graph(config, lambda layer: export_of(layer.type) is None or layer.name in refusals)
        if graph.refused and not partial:
            raise _inexpressible(config, graph, refusals)
        if not graph.layers:
            raise ConfigError("nothing of the net is left before the layers that ONNX cannot express", config.path)
        values = read_weights(graph, config, weights)
        named = {top.name: top for layer in graph.layers for top in layer.tops}  # of layers in place, the last
        named.update({blob.name: blob for blob in [*graph.outputs, *graph.inputs]})
        writer = Writer(graph.dims, values, named)
        writer.readers = graph.readers()
        found = _write(graph, writer, fold)
        if not found:
            break
        refusals.update(found)
    model = writer.model(graph.name)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:  # ValueError: the model has more than 2 GB
        if model.ByteSize() < 2**31:
            raise EngineError(f"the model is none to ONNX's own checker: {reason(error)}", str(target)) from None
    write_model(target, model)
    return graph.notes


def _inexpressible(config: NetConfig, graph: DeployGraph, refusals: dict[str, str]) -> ConfigError:
    """Returns the error that names all layers that cannot be expressed."""

    def named(layer: Layer) -> str:
        why = f", {refusals[layer.name]}" if layer.name in refusals else ""
        return f"layer '{layer.name}' ({layer.type}{why}) at {layer.where}"

    layers = "; ".join(map(named, graph.refused))
    return ConfigError(f"ONNX cannot express {layers}; --partial ends the model before them", config.path)


def _write(graph: DeployGraph, writer: Writer, fold: bool) -> dict[str, str]:
    """Writes all layers; returns why the settings of layers cannot be expressed, by the layers' names."""
    refusals: dict[str, str] = {}
    for blob in graph.inputs:
        writer.input(blob)
    merger = Merger(graph, writer, fold)
    for layer in graph.layers:
        try:
            if layer in merger.merged:
                writer.alias(layer.tops[0], writer.values[layer.bottoms[0]])
            elif layer in merger.scales:
                scale, shift = merger.scales[layer]
                writer.layer(layer, lambda out, layer, x: normalised(out, layer, x, scale, shift))  # noqa: B023
            else:
                writer.layer(layer, cast(Export, export_of(layer.type)))
        except Inexpressible as error:
            refusals[layer.name] = str(error)
            for top in layer.tops:
                writer.alias(top, "")
    for blob in graph.outputs:
        name = writer.output(blob)
        if name != blob.name and not refusals:
            graph.notes.append(f"output '{blob.name}' is named '{name}': another version of the blob has its name")
    return refusals
