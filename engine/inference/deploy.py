"""Turns a training net into one for inference, without its data, losses and accuracies."""

from __future__ import annotations

from collections.abc import Sequence

from engine import proto
from engine.config import NetConfig
from engine.config.phases import kept_layers
from engine.errors import ConfigError
from engine.layers.base import Layer
from engine.layers.registry import layer_type


def input_layer(config: NetConfig) -> proto.LayerParameter | None:
    """Returns the layer that feeds a net in phase TEST from a source; None if an Input does. Raises ConfigError if
    nothing feeds it."""
    feeding = _feeding(test_layers(config))
    if not feeding:
        raise ConfigError("nothing feeds the net in phase TEST", config.path)
    return None if feeding[0].type == "Input" else feeding[0]


def deploy(config: NetConfig, shape: Sequence[int]) -> NetConfig:
    """Returns the net of phase TEST on one Input, that gives probabilities. Raises ConfigError.

    It ends with the scores that the last layer which compares scores of classes with labels (a loss, an Accuracy)
    reads, through a Softmax; they are negated if the smallest is the best. Without such a layer it ends with the scores
    of the last layer of several labels, through a Sigmoid. Without either it is the whole net.

    Args:
        shape: (n, c, h, w) of the Input.
    """
    layers = _layers(config)
    data = _feeding(test_layers(config))[0].top[0]
    judges, judge = _judges(layers), None
    _require_one_input(layers, data, judges, config.path)
    usable, known = [], {data}
    for layer in layers:
        bottoms = layer.message.bottom
        if layer in judges and bottoms[0] in known:
            judge = layer
        # Losses and measures are left out, as are layers that read their tops: labels are not known here.
        elif not _feeds(layer.message) and set(bottoms) <= known and not layer.is_loss:
            usable.append(layer)
            known.update(layer.message.top)
    net = proto.NetParameter(name=config.message.name)
    net.state.CopyFrom(config.message.state)
    net.layer.add(name="data", type="Input", top=[data]).input_param.shape.add(dim=shape)
    if judge is None:
        net.layer.extend(layer.message for layer in usable)
        return NetConfig(net, config.path)
    scores, kind = judge.message.bottom[0], judge.probabilities
    usable = _needed(usable, scores)
    net.layer.extend(layer.message for layer in usable)
    if judge.smallest_is_best:
        net.layer.add(name="negated", type="Power", bottom=[scores], top=[scores]).power_param.scale = -1
    if judge.smallest_is_best or not _ends_in(kind, usable, scores):
        prob = net.layer.add(name="prob", type=kind, bottom=[scores], top=["prob"])
        if kind == "Softmax":
            prob.softmax_param.axis = judge.asked_axis
    return NetConfig(net, config.path)


def _feeds(layer: proto.LayerParameter) -> bool:
    """Returns whether a layer gives data. A Parameter layer has no bottom either, but gives weights."""
    return not layer.bottom and layer.type != "Parameter"


def _feeding(layers: list[proto.LayerParameter]) -> list[proto.LayerParameter]:
    return [layer for layer in layers if _feeds(layer)]


def _judges(layers: list[Layer]) -> list[Layer]:
    """Returns the layers that compare scores of classes with labels; if there are none, those of several labels."""
    found = [layer for layer in layers if layer.probabilities]
    return [layer for layer in found if layer.probabilities == "Softmax"] or found


def _ends_in(type_: str, layers: list[Layer], scores: str) -> bool:
    return bool(layers) and layers[-1].type == type_ and scores in layers[-1].message.top


def _require_one_input(layers: list[Layer], data: str, judges: list[Layer], path: str) -> None:
    """Raises ConfigError if the scores depend on another input than the picture, too.

    Args:
        data: the blob of the picture.
        judges: the layers that read the scores.
        path: the net's file, for the error.
    """
    feeding = _feeding([layer.message for layer in layers])
    from_data, from_others = {data}, {top for message in feeding for top in message.top} - {data}
    for layer in _needed(layers, judges[-1].message.bottom[0]) if judges else layers:
        bottoms, tops = layer.message.bottom, layer.message.top
        others = [blob for blob in bottoms if blob in from_others]
        if layer.is_loss or layer.is_measure or not tops:
            continue
        if others and from_data.intersection(bottoms):
            raise ConfigError(
                f"layer '{layer.name}' reads '{others[0]}', which classify cannot give; it gives pictures to one input "
                "only",
                path,
            )
        if others:
            from_others.update(tops)
        elif from_data.intersection(bottoms):
            from_data.update(tops)


def _needed(layers: list[Layer], blob: str) -> list[Layer]:
    """Returns the layers on which a blob depends."""
    wanted, found = {blob}, []
    for layer in reversed(layers):
        if wanted & set(layer.message.top):
            found.append(layer)
            wanted.update(layer.message.bottom)
    return found[::-1]


def _layers(config: NetConfig) -> list[Layer]:
    """Returns the layers of phase TEST as objects of their types, which are not connected. Raises ConfigError."""
    found = []
    for index in kept_layers(config, proto.TEST):
        message, where = config.message.layer[index], config.where(index)
        found.append(layer_type(message.type, message.name, where)(message, where, proto.TEST))
    return found


def test_layers(config: NetConfig) -> list[proto.LayerParameter]:
    """Returns the layers of a net's phase TEST. Raises ConfigError."""
    return [config.message.layer[index] for index in kept_layers(config, proto.TEST)]
