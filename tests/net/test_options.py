"""NetOptions: what is chosen about a net before it is built."""

import dataclasses

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import DEFAULT, PASSES, Net, NetOptions

TEXT = """
state { level: 1 stage: "late" }
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" include { min_level: 1 stage: "late" } }
layer { name: "old" type: "ReLU" bottom: "y" top: "y" include { max_level: 0 } }
"""


def test_options_are_values():
    options = NetOptions(seed=3)
    assert options.replace(seed=1) == DEFAULT and options.seed == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 4


def test_a_watched_net_keeps_everything():
    options = NetOptions(seed=3, memory_budget=1000).watched()
    assert options == NetOptions(seed=3, passes=frozenset(), keep_all=True)
    assert (options.plain().plain_parameters, DEFAULT.passes) == (True, PASSES)


def test_gradients_that_are_kept_are_each_in_a_place_of_its_own():
    """This also holds for the gradient of a shortcut that a BatchNorm adds, which otherwise shares its place with the
    sum's."""
    text = """force_backward: true
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
    layer { name: "shortcut" type: "Power" bottom: "x" top: "shortcut" power_param { scale: 2 } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" }
    layer { name: "sum" type: "Eltwise" bottom: "bn" bottom: "shortcut" top: "sum" }"""
    net = Net(parse_net(text), proto.TRAIN, NetOptions(keep_all=True))
    assert "bn" not in net.blobs  # it is fused with the sum
    diffs = {blob.name: tensor.diff for blob, tensor in net.tensors.items()}
    given = np.random.default_rng(1).normal(size=(2, 3, 4, 4)).astype(np.float32)
    diffs["sum"].set(given)
    net.feed(net.inputs[0], given[::-1])
    net.forward()
    net.backward()
    np.testing.assert_array_equal(diffs["shortcut"].get(), given)
    kept = diffs["x"].get()
    diffs["shortcut"].set(np.zeros_like(given))
    np.testing.assert_array_equal(diffs["sum"].get(), given)
    net.backward()
    np.testing.assert_array_equal(diffs["x"].get(), kept)


def test_level_and_stages_are_those_of_the_nets_state():
    net = Net(parse_net(TEXT), proto.TRAIN, DEFAULT.watched())
    assert [layer.name for layer in net.graph.layers] == ["x", "ip", "relu"]


def test_a_net_is_built_again_with_its_own_options():
    net = Net(parse_net(TEXT), proto.TEST, NetOptions(seed=7, keep_all=True).plain())
    again = Net(parse_net(TEXT), proto.TEST, net.options, share=net, before=net)
    assert (again.options, again.seed) == (net.options, 7)
    assert all(again.tensor_of[p] is net.tensor_of[q] for p, q in zip(again.all_params(), net.all_params()))


def test_a_test_net_has_the_shared_weights_of_a_layer_that_only_training_has():
    """As in Caffe, weights are shared by the names of layers. The layer that owns these is not in the test net."""
    shared = (
        'param { name: "w" } param { name: "b" } inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'
    )
    text = f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 4 }} }} }}
    layer {{ name: "aux" type: "InnerProduct" bottom: "x" top: "aux" include {{ phase: TRAIN }} {shared} }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" {shared} }}"""
    config = parse_net(text, "net.prototxt")
    train = Net(config, proto.TRAIN, NetOptions(seed=1))
    test = Net(config, proto.TEST, NetOptions(seed=2), share=train)
    for index in (0, 1):
        assert test.params["ip"][index].get().tobytes() == train.params["ip"][index].get().tobytes()
    train.params["ip"][0].set(np.full((3, 4), 7, np.float32))
    assert (test.params["ip"][0].get() == 7).all()


def test_a_test_net_has_the_shared_weights_whose_first_layer_only_tests_have():
    product = """layer { name: "%s" type: "InnerProduct" bottom: "x" top: "%s" param { name: "w" } %s
        inner_product_param { num_output: 3 bias_term: false weight_filler { type: "xavier" } } } """
    text = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } } '
    text += product % ("first", "a", "include { phase: TEST }") + product % ("both", "b", "")
    config = parse_net(text, "net.prototxt")
    train = Net(config, proto.TRAIN)
    test = Net(config, proto.TEST, share=train)
    train.params["both"][0].set(np.full((3, 4), 7, np.float32))
    assert (test.params["both"][0].get() == 7).all() and (test.params["first"][0].get() == 7).all()
