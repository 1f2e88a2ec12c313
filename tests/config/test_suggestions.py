"""Suggestions for words of other frameworks, where Caffe's are expected."""

import numpy as np
import pytest

from engine import proto
from engine.config.suggestions import _ELSEWHERE, suggestion
from engine.layers.fillers import _fillers
from engine.layers.registry import layer_types
from engine.solver.policies import POLICIES
from engine.solver.update import solver_types

KNOWN = {
    "layer": set(layer_types()),
    "filler": set(_fillers),
    "policy": set(POLICIES),
    "type": set(solver_types()),
    "field": {
        field.name
        for message in (proto.SolverParameter, proto.ConvolutionParameter, proto.DropoutParameter)
        for field in message.DESCRIPTOR.fields
    },
}


@pytest.mark.parametrize(
    "kind, word, expected",
    [
        ("layer", "Conv2d", "'Convolution'"),
        ("layer", "Linear", "'InnerProduct'"),
        ("layer", "MaxPool2d", "'Pooling' with pool: MAX"),
        ("layer", "AvgPool2d", "'Pooling' with pool: AVE"),
        ("layer", "AdaptiveAvgPool2d", "'Pooling' with pool: AVE global_pooling: true"),
        ("layer", "BatchNorm2d", "'BatchNorm', then 'Scale' with bias_term: true"),
        ("layer", "CrossEntropyLoss", "'SoftmaxWithLoss'"),
        ("layer", "BCEWithLogitsLoss", "'SigmoidCrossEntropyLoss'"),
        ("type", "AdamW", "'Adam' with decoupled_weight_decay: true"),
        ("filler", "kaiming_normal_", "'msra'"),
        ("filler", "kaiming", "'msra'"),
        ("policy", "CosineAnnealingLR", "'cosine'"),
        ("policy", "constant", "'fixed'"),
        ("field", "lr", "'base_lr'"),
        ("field", "learning_rate", "'base_lr'"),
        ("field", "epochs", "'max_epoch'"),
        ("field", "out_features", "'num_output'"),
        ("field", "in_channels", "'num_output' alone; what comes in is known from the bottom"),
    ],
)
def test_pytorch_s_words(kind, word, expected):
    assert suggestion(word, KNOWN[kind]) == f"; here it is {expected}"


def test_words_stand_for_what_is_there():
    everything = set().union(*KNOWN.values())
    assert {name for name, _ in _ELSEWHERE.values()} <= everything


def test_other_words_are_looked_for_as_before():
    assert suggestion("Convolutoin", KNOWN["layer"]) == "; did you mean 'Convolution'?"
    assert suggestion("linear", ["max_iter", "min_iter"]) == "; known: max_iter, min_iter"


@pytest.mark.parametrize(
    "name, found", [("SoftmaxLoss", "SoftmaxWithLoss"), ("EuclidianLoss", "EuclideanLoss"), ("Hinge", "HingeLoss")]
)
def test_losses(name, found):
    assert suggestion(name, layer_types()) == f"; did you mean '{found}'?"


@pytest.mark.parametrize("name", ["VarLoss", "PairwiseLoss", "SVRLoss", "HuberLoss"])
def test_losses_are_not_alike_because_they_are_losses(name):
    assert suggestion(name, layer_types()) == ""


@pytest.mark.parametrize("name, found", [("loss", "loss1"), ("cls_loss", "cls_loss2"), ("loss", "Loss")])
def test_what_is_called_a_loss_may_be_near_what_is_not(name, found):
    """Tops and outputs are often called so."""
    assert suggestion(name, [found, "accuracy"]) == f"; did you mean '{found}'?"


def test_the_nearest_of_very_many_is_not_looked_for():
    assert suggestion("blab", [f"blob{i}" for i in range(10_000)]) == ""
    text = "".join(map(chr, range(256, 756))) * 100
    assert suggestion(text + "a", [text]) == f"; known: {text}"


def test_a_swish_is_near_a_gelu():
    """The hint says how near, and this is the measure."""
    from math import erf, sqrt

    x = np.linspace(-8, 8, 20001)
    gelu = np.array([v * 0.5 * (1 + erf(v / sqrt(2))) for v in x])
    assert np.abs(x / (1 + np.exp(-1.702 * x)) - gelu).max() < 0.021
