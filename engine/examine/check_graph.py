"""Finds what is likely a mistake in a net that can be built, and the files that its parameters lack, for `engine
check`."""

from __future__ import annotations

from collections.abc import Iterator

from engine import proto
from engine.errors import FILE, ConfigError, shape_text
from engine.graph.graph import Graph
from engine.layers.accuracy import Accuracy
from engine.layers.base import Blob
from engine.layers.entropy_loss import EntropyLoss
from engine.layers.fillers import fill_parameter
from engine.layers.labels import are_distributions
from engine.layers.softmax_with_loss import SoftmaxWithLoss


def absent_fillers(graph: Graph) -> Iterator[str]:
    """Yields a line for each file that parameters begin with (filler type "file") and that is not there. Raises
    ConfigError for a file that does not fit its parameter."""
    for layer in graph.layers:
        for parameter in layer.params:
            if parameter.filler is not None and parameter.filler.type == "file":
                try:
                    fill_parameter(parameter, 0)
                except ConfigError as error:
                    if error.absent != FILE:
                        raise
                    yield str(error)


def unread(graph: Graph) -> Iterator[str]:
    """Yields a line for each layer of a trained net that has no gradient, as no layer reads its tops: a bottom may have
    a wrong name. Left out are layers whose tops need no reader: those that measure, give data, or show in another form
    what other layers read, too."""
    if graph.phase != proto.TRAIN or not any(any(layer.loss_weights) for layer in graph.layers):
        return
    outputs, readers = set(graph.outputs), graph.readers()
    for layer in graph.layers:
        shows = not layer.params and any(len(readers[bottom]) > 1 for bottom in layer.bottoms)
        needs_reader = layer.bottoms and layer.named_tops and layer.differentiable and not (layer.is_loss or shows)
        if needs_reader and outputs.issuperset(layer.named_tops) and not any(layer.loss_weights):
            tops = ", ".join(f"'{top.name}'" for top in layer.named_tops)
            yield f"{layer.where}: layer '{layer.name}': in phase TRAIN nobody reads its top {tops}"


def distributions(graph: Graph) -> Iterator[str]:
    """Yields a line for each layer whose labels are as many as its scores, which it therefore takes for distributions,
    where neither mix_param nor a Softmax makes such: they may be plain numbers by mistake."""
    if any(layer.message.transform_param.HasField("mix_param") for layer in graph.layers):
        return
    soft = _probabilities(graph)
    for layer in graph.layers:
        if not isinstance(layer, Accuracy | SoftmaxWithLoss) or not are_distributions(layer, layer.axis):
            continue
        scores, labels = layer.bottoms[:2]
        if labels not in soft:
            told = f"its labels '{labels.name}' are as many numbers as the scores '{scores.name}'"
            yield (
                f"{layer.where}: layer '{layer.name}' ({layer.type}): {told} ({shape_text(scores.shape)}): they are "
                "taken for distributions over the classes"
            )


def softmax_again(graph: Graph) -> Iterator[str]:
    """Yields a line for each EntropyLoss that reads a Softmax's top. It takes the softmax of its bottom itself; that of
    some forks reads probabilities."""
    soft = _probabilities(graph)
    for layer in graph.layers:
        if isinstance(layer, EntropyLoss) and layer.bottoms[0] in soft:
            yield (
                f"{layer.where}: layer '{layer.name}' (EntropyLoss): its bottom '{layer.bottoms[0].name}' is a "
                "Softmax's top, of which it takes a softmax again; for a fork whose EntropyLoss takes probabilities, "
                "give it that Softmax's bottom"
            )


def _probabilities(graph: Graph) -> set[Blob]:
    """Returns the tops of Softmax layers."""
    return {top for layer in graph.layers if layer.type == "Softmax" for top in layer.tops}
