"""Turns a training net into one for inference, without its data, losses and accuracies."""

from __future__ import annotations

from collections.abc import Sequence

from engine import proto
from engine.config import NetConfig
from engine.errors import ConfigError
from engine.graph.build import kept_layers

_SCORES = ("SoftmaxWithLoss", "Accuracy")  # of classes that exclude each other
_SEVERAL = ("SigmoidCrossEntropyLoss",)  # of labels that do not
_MEASURES = ("Accuracy", "DetectionEvaluate", "EvalDetection", "SegAccuracy")


def input_layer(config: NetConfig) -> proto.LayerParameter | None:
    """The layer that feeds a net in phase TEST from a source; None where it has an Input. Raises ConfigError."""
    feeding = _feeding(test_layers(config))
    if not feeding:
        raise ConfigError("nothing feeds the net in phase TEST", config.path)
    return None if feeding[0].type == "Input" else feeding[0]


def deploy(config: NetConfig, shape: Sequence[int]) -> NetConfig:
    """The net in phase TEST on one Input of `shape` (n, c, h, w), up to the scores of its last loss or Accuracy, which
    go through a Softmax, negated if the Accuracy takes the smallest for the best; where it has neither, those of its
    last SigmoidCrossEntropyLoss, which go through a Sigmoid; or all of it. Raises ConfigError."""
    layers = test_layers(config)
    data = _feeding(layers)[0].top[0]
    usable, known, scores, negated = [], {data}, None, False
    judging, probability = _judging(layers)
    _require_one_input(layers, data, judging, config.path)
    for layer in layers:
        if layer.type in judging and layer.bottom[0] in known:
            scores = layer.bottom[0]
            negated = layer.type == "Accuracy" and layer.accuracy_param.min_is_better
        # Losses and measures read labels, which are unknown here, and so does what reads their tops.
        elif not _feeds(layer) and set(layer.bottom) <= known and not layer.type.endswith("Loss"):
            usable.append(layer)
            known.update(layer.top)
    if scores is not None:
        usable = _needed(usable, scores)
    net = proto.NetParameter(name=config.message.name)
    net.state.CopyFrom(config.message.state)
    net.layer.add(name="data", type="Input", top=[data]).input_param.shape.add(dim=shape)
    net.layer.extend(usable)
    if scores is not None and negated:
        net.layer.add(name="negated", type="Power", bottom=[scores], top=[scores]).power_param.scale = -1
    if scores is not None and (negated or not _ends_in(probability, usable, scores)):
        net.layer.add(name="prob", type=probability, bottom=[scores], top=["prob"])
    return NetConfig(net, config.path)


def _feeds(layer: proto.LayerParameter) -> bool:
    """Whether a layer gives data; what a Parameter layer gives is weights."""
    return not layer.bottom and layer.type != "Parameter"


def _feeding(layers: list[proto.LayerParameter]) -> list[proto.LayerParameter]:
    return [layer for layer in layers if _feeds(layer)]


def _judging(layers: list[proto.LayerParameter]) -> tuple[tuple[str, ...], str]:
    """The types of the layers that judge a net's scores, and of the layer that makes probabilities of these."""
    if any(layer.type in _SCORES for layer in layers):
        return _SCORES, "Softmax"
    return _SEVERAL, "Sigmoid"


def _ends_in(type_: str, layers: list[proto.LayerParameter], scores: str) -> bool:
    return bool(layers) and layers[-1].type == type_ and scores in layers[-1].top


def _require_one_input(layers: list[proto.LayerParameter], data: str, judging: Sequence[str], path: str) -> None:
    """Raises ConfigError where the scores, which layers of these types judge, depend on the picture, which is `data`,
    together with another input."""
    judged = [layer.bottom[0] for layer in layers if layer.type in judging]
    from_data, from_others = {data}, {top for layer in _feeding(layers) for top in layer.top} - {data}
    for layer in _needed(layers, judged[-1]) if judged else layers:
        read, others = set(layer.bottom), [blob for blob in layer.bottom if blob in from_others]
        if layer.type.endswith("Loss") or layer.type in _MEASURES or not layer.top:
            continue
        if others and read & from_data:
            raise ConfigError(
                f"layer '{layer.name}' reads '{others[0]}', which classify cannot give; it gives pictures to one input "
                "only",
                path,
            )
        if others:
            from_others.update(layer.top)
        elif read & from_data:
            from_data.update(layer.top)


def _needed(layers: list[proto.LayerParameter], blob: str) -> list[proto.LayerParameter]:
    """Those on which a blob depends."""
    wanted, found = {blob}, []
    for layer in reversed(layers):
        if wanted & set(layer.top):
            found.append(layer)
            wanted.update(layer.bottom)
    return found[::-1]


def test_layers(config: NetConfig) -> list[proto.LayerParameter]:
    """The layers of a net's phase TEST. Raises ConfigError."""
    return [config.message.layer[index] for index in kept_layers(config, proto.TEST)]
