"""Which gradients are computed, and which are pruned."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.errors import ConfigError
from engine.graph.build import build
from engine.graph.passes.gradients import mark_gradients
from engine.graph.passes.split import insert_splits
from engine.net import Net

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }'
LABEL = 'layer { name: "l" type: "Input" top: "l" input_param { shape { dim: 4 } } }'


def ip(name: str, bottom: str, more: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" {more} '
        'inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }'
    )


def loss(bottom: str) -> str:
    return f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{bottom}" bottom: "l" top: "loss" }}'


def marked(text: str, phase: int = proto.TRAIN) -> set[str]:
    graph = build(parse_net(text), phase)
    insert_splits(graph)
    mark_gradients(graph, graph.trains)
    return {blob.name for layer in graph.layers for blob in layer.tops if blob.needs_gradient}


def test_gradients_stop_at_the_first_layer_that_learns():
    assert marked(INPUT + LABEL + ip("a", "x") + ip("b", "a") + loss("b")) == {"a", "b"}


def test_frozen_layers_below_are_skipped():
    frozen = ip("a", "x", "param { lr_mult: 0 } param { lr_mult: 0 }")
    assert marked(INPUT + LABEL + frozen + ip("b", "a") + loss("b")) == {"b"}


def test_propagate_down_false_cuts_a_branch():
    text = INPUT + LABEL + ip("a", "x") + ip("b", "a", "propagate_down: false") + loss("b")
    assert marked(text) == {"b"}


def test_a_test_net_has_no_gradients():
    assert marked(INPUT + LABEL + ip("a", "x") + loss("a"), proto.TEST) == set()


def test_force_backward_reaches_the_input():
    assert "x" in marked("force_backward: true " + INPUT + LABEL + ip("a", "x") + loss("a"))


def test_a_branch_without_a_loss_learns_nothing():
    net = Net(parse_net(INPUT + LABEL + ip("a", "x") + ip("side", "x") + loss("a")))
    net.blobs["x"].set(np.ones((4, 6), np.float32))
    net.forward()
    net.backward()
    assert np.abs(net.params["a"][0].diff.get()).max() > 0
    assert np.abs(net.params["side"][0].diff.get()).max() == 0


@pytest.mark.parametrize("readers", [1, 2])
def test_a_loss_weight_beside_readers_takes_one_split(readers):
    """The Split that is there for the readers gets one more top."""
    text = INPUT + ip("a", "x", "loss_weight: 0.5")
    for name in "bc"[:readers]:
        text += (
            ip(name, "a") + f'layer {{ name: "s" type: "Reduction" bottom: "{name}" top: "s{name}" loss_weight: 1 }}'
        )
    graph = build(parse_net(text), proto.TRAIN)
    insert_splits(graph)
    mark_gradients(graph, True)
    (split,) = (layer for layer in graph.layers if layer.type == "Split")
    assert [top.name for top in split.tops] == [f"a_a_split_{number}" for number in range(readers + 1)]
    assert split.loss_weights == [0.0] * readers + [0.5]
    assert [top.gradient_is_set for top in split.tops] == [False] * readers + [True]


def test_the_loss_weight_of_a_layer_that_is_no_loss_is_its_gradient():
    net = Net(parse_net(INPUT + ip("a", "x", "loss_weight: 0.5")))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    net.blobs["x"].set(x)
    net.forward()
    net.backward()
    np.testing.assert_allclose(net.params["a"][0].diff.get(), np.tile(0.5 * x.sum(axis=0), (5, 1)), rtol=1e-5)


def test_a_gradient_cannot_pass_a_layer_that_has_none():
    text = INPUT + LABEL + ip("a", "x")
    text += 'layer { name: "count" type: "Accuracy" bottom: "a" bottom: "l" top: "count" loss_weight: 1 }'
    with pytest.raises(ConfigError, match=r"'count'.*no backward"):
        mark = build(parse_net(text), proto.TRAIN)
        insert_splits(mark)
        mark_gradients(mark, True)
