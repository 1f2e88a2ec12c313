"""Building a graph checks the sizes of all blobs and parameters before anything is allocated."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.errors import ConfigError, ConfigErrors
from engine.graph.build import build
from engine.net import Net, NetOptions


def layer(type, params="", bottoms=("x",), tops=("y",)):
    names = [f'bottom: "{name}"' for name in bottoms] + [f'top: "{name}"' for name in tops]
    return f'layer {{ name: "layer" type: "{type}" {" ".join(names)} {params} }}'


def error_of(text, *shapes, shapes_of=None):
    """Returns the error of a net with this layer, whose bottoms x, x1 and so on have these shapes."""
    inputs = []
    for i, shape in enumerate(shapes):
        dims = " ".join(f"dim: {dim}" for dim in shape)
        name = f"x{i or ''}"
        inputs.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n')
    with pytest.raises(ConfigError) as error:
        build(parse_net("".join(inputs) + text), 0, shapes_of=shapes_of)
    return str(error.value)


@pytest.mark.parametrize(
    "text, shape, message",
    [
        ("", (1, 2**31), "top 'x' would be 1 x 2147483648; expected"),
        ("", (1, 2**62), "top 'x' would be 1 x 4611686018427387904; expected"),
        ("", (2**16,) * 4, "top 'x' would be 65536 x 65536 x 65536 x 65536; expected"),
        ("", (1,) * 13, "expected 12 axes at most"),
        (layer("Tile", "tile_param { tiles: 2147483647 }"), (1, 2), "top 'y' would be 1 x 4294967294"),
        (layer("Interp", "interp_param { height: 2147483647 width: 1 }"), (1, 2, 3, 3), "top 'y' would be"),
        (layer("InnerProduct", "inner_product_param { num_output: 4294967295 }"), (1, 1), "top 'y' would be 1 x 42949"),
        (
            layer("InnerProduct", "inner_product_param { num_output: 2147483647 }"),
            (1, 4),
            "layer 'layer' (InnerProduct): parameter 0 would be 2147483647 x 4; expected 12 axes at most, none of them "
            "empty, and 2147483647 values at most",
        ),
        (layer("Embed", "embed_param { input_dim: 4294967295 num_output: 1 }"), (1,), "parameter 0 would be"),
        (
            layer("Convolution", "convolution_param { num_output: 1 kernel_size: 1 pad: 4294967295 }"),
            (1, 1, 1, 1),
            "pad",
        ),
        (layer("Pooling", "pooling_param { kernel_size: 4294967295 pad: 4294967294 }"), (1, 1, 1, 1), "of at most"),
    ],
)
def test_sizes_beyond_a_blobs(text, shape, message):
    assert message in error_of(text, shape)


def test_classes_are_not_counted_one_by_one():
    text = layer("DetectionEvaluate", "detection_evaluate_param { num_classes: 4000000000 }", ("x", "x1"))
    assert "top 'y' would be 1 x 1 x 4000000" in error_of(text, (1, 1, 2, 7), (1, 1, 2, 8))


@pytest.mark.parametrize("shape", [(4, 0, 3, 3), (0,), (4, 3, 0, 3)])
def test_data_without_values(shape):
    text = 'layer { name: "layer" type: "HDF5Data" top: "x" hdf5_data_param { source: "list" batch_size: 4 } }'
    message = error_of(text, shapes_of=lambda message, where: [shape])
    assert "layer 'layer' (HDF5Data): top 'x' would be " in message and "none of them empty" in message


PHASES = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } %s }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
layer { name: "b" type: "InnerProduct" bottom: "x" top: "%s" inner_product_param { num_output: 2 } }"""


def test_a_bottom_of_the_other_phase_says_so():
    with pytest.raises(ConfigError) as error:
        build(parse_net(PHASES % ("include { phase: TRAIN }", "z"), "net.prototxt"), 1)
    assert (
        "net.prototxt:2:1: layer 'a' (InnerProduct): its bottom 'x' is made by layer 'x' (net.prototxt:1:1), whose "
        "include and exclude rules leave it out of phase TEST; add one that makes it there" in str(error.value)
    )


def net_error(text, phase=0, stages=None):
    with pytest.raises(ConfigError) as error:
        build(parse_net(text, "net.prototxt"), phase, stages=stages)
    return str(error.value)


IN_PLACE = """layer { name: "x" type: "Input" top: "data" top: "label" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "conv1" inner_product_param { num_output: 2 } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "d1" type: "Dropout" bottom: "c1" top: "c1" }"""


def test_layers_in_place_do_not_make_what_they_read():
    expected = "net.prototxt:3:1: layer 'r1' (ReLU): no layer makes its bottom 'c1'; known: conv1, data, label"
    assert net_error(IN_PLACE) == expected


def test_two_layers_that_read_each_other_are_a_cycle():
    text = (
        PHASES % ("", "z")
        + """
        layer { name: "c" type: "Eltwise" bottom: "x" bottom: "v" top: "w" }
        layer { name: "d" type: "ReLU" bottom: "w" top: "v" }"""
    )
    assert "layer 'c' (Eltwise): cycle: c -> d -> c" in net_error(text)


STAGES = """layer { name: "d" type: "Input" top: "x" include { phase: TRAIN } input_param { shape { dim: 2 } } }
layer { name: "d" type: "Input" top: "x" include { phase: TEST stage: "on-test" } input_param { shape { dim: 2 } } }
layer { name: "d" type: "Input" top: "x" include { phase: TEST stage: "on-train" } input_param { shape { dim: 2 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }"""


def test_a_stage_that_is_missing_is_named():
    expected = (
        "net.prototxt:4:1: layer 'a' (InnerProduct): its bottom 'x' is made only in stage 'on-test' by layer 'd' "
        "(net.prototxt:2:1) or in stage 'on-train' by layer 'd' (net.prototxt:3:1); give one: "
        '--stage on-test, or test_state { stage: "on-test" } in a solver'
    )
    assert net_error(STAGES, phase=1) == expected
    misspelt = net_error(STAGES, phase=1, stages=["on-tets"])
    assert misspelt == f"{expected}; no rule of the net names stage 'on-tets'; did you mean 'on-test'?"


def test_a_net_names_its_level_and_stages():
    rules = 'include { phase: TEST min_level: 1 stage: "on-test" }'
    config = parse_net('state { level: 1 stage: "on-test" } ' + PHASES % (rules, "z"))
    assert [len(build(config, 1).layers), len(build(config, 1, level=2).layers)] == [3, 3]
    for other in ({"level": 0}, {"stages": []}):
        with pytest.raises(ConfigError, match="its bottom 'x' is made"):
            build(config, 1, **other)


def test_two_layers_with_one_top_are_told_how_to_take_turns():
    with pytest.raises(ConfigError) as error:
        build(parse_net(PHASES % ("", "y"), "net.prototxt"), 1)
    expected = (
        "net.prototxt:3:1: layer 'b' (InnerProduct): top 'y' is made by layer 'a' (net.prototxt:2:1) already, and both "
        "are in phase TEST; give it another name, or each of them one phase: include { phase: TRAIN }"
    )
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "filler, message",
    [
        ('type: "xaver"', "unknown filler 'xaver'; did you mean 'xavier'?"),
        ('type: "bilinear"', "filler 'bilinear': expected 4 axes with a square kernel; got 2 x 3"),
        ('type: "uniform" min: 2 max: 1', "filler 'uniform': expected min up to max; got 2 to 1"),
    ],
)
def test_fillers_are_checked_before_anything_is_filled(filler, message):
    text = layer("InnerProduct", f"inner_product_param {{ num_output: 2 weight_filler {{ {filler} }} }}")
    assert f"layer 'layer' (InnerProduct): parameter 0: {message}" in error_of(text, (1, 3))


@pytest.mark.parametrize("flags", ["propagate_down: false", 3 * "propagate_down: true "])
def test_propagate_down_for_each_bottom(flags):
    """As in Caffe. If the number is wrong, it is unclear which bottoms are meant."""
    message = error_of(layer("Eltwise", flags, bottoms=("x", "x1")), (2,), (2,))
    assert f"propagate_down is given {flags.count('_')} times, expected once for each of its 2 bottoms" in message


@pytest.mark.parametrize("tops, weights", [(["y"], 2), (["y", "p"], 1), (["y", "p"], 3)])
def test_loss_weight_for_each_top(tops, weights):
    """As in Caffe, loss_weight is given for all tops or for none."""
    message = error_of(layer("SoftmaxWithLoss", weights * "loss_weight: 1 ", ("x", "x1"), tops), (4, 3), (4,))
    assert f"loss_weight is given {weights} times, expected once for each of its {len(tops)} tops" in message


@pytest.mark.parametrize(
    "kind, param, field, value, reader",
    [
        ("Softmax", "softmax_param", "pos_mult", "2", "WeightedSoftmaxWithLoss"),
        ("Softmax", "softmax_param", "class_weight", "[1, 2, 3]", "SoftmaxWithLoss"),
        ("FocalLoss", "softmax_param", "pos_mult", "2", "WeightedSoftmaxWithLoss"),
        ("FocalLoss", "softmax_param", "class_weight", "[1, 2, 3]", "SoftmaxWithLoss"),
        ("FocalLoss", "loss_param", "label_smoothing", "0.1", "SoftmaxWithLoss"),
        ("FocalLoss", "loss_param", "weight_by_label_freqs", "true", "SoftmaxWithLoss"),
        ("SoftmaxWithLoss", "softmax_param", "pos_cid", "2", "WeightedSoftmaxWithLoss"),
        ("HingeLoss", "loss_param", "class_weighting", "[1, 2, 3]", "SoftmaxWithLoss"),
    ],
)
def test_fields_that_few_types_read(kind, param, field, value, reader):
    text = layer(kind, f"{param} {{ {field}: {value} }}", bottoms=("x",) if kind == "Softmax" else ("x", "x1"))
    message = error_of(text, (4, 3), (4,))
    assert message.endswith(f"layer 'layer' ({kind}): {field} is for {reader}; take it out of {param}")


def test_fields_that_few_types_read_may_have_their_defaults():
    text = layer("FocalLoss", "loss_param { label_smoothing: 0 } softmax_param { pos_mult: 1 }", ("x", "x1"))
    inputs = 'input: "x" input: "x1" input_shape { dim: 4 dim: 3 } input_shape { dim: 4 } '
    assert build(parse_net(inputs + text), 0).layers[-1].type == "FocalLoss"


IP = 'type: "InnerProduct" bottom: "x" inner_product_param { num_output: 2 }'


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (f'layer {{ name: "c" top: "a" {IP} }} layer {{ name: "c" top: "b" {IP} }}', "has the name of the layer at"),
        (
            'layer { name: "c" type: "ReLU" bottom: "x" top: "r" } '
            f'layer {{ name: "c" top: "a" {IP} }} layer {{ name: "c" top: "b" {IP} }}',
            "has the name of the layer at",
        ),
        ('layer { name: "s" type: "Slice" bottom: "x" top: "y" top: "y" }', "has the top 'y' twice"),
    ],
)
def test_names_that_are_given_twice(layers, message):
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 4 }} }} }} {layers}'
    with pytest.raises(ConfigError, match=message):
        build(parse_net(text, "net.prototxt"), proto.TRAIN)


def test_a_top_that_a_wrong_layer_makes_already():
    """Two errors are told: the first layer's own, and that the second layer makes the same top."""
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }'
    text += (
        f'layer {{ name: "c1" top: "y" param {{}} param {{}} param {{}} {IP} }} layer {{ name: "c2" top: "y" {IP} }}'
    )
    with pytest.raises(ConfigErrors) as caught:
        build(parse_net(text, "net.prototxt"), proto.TRAIN)
    first, second = caught.value.errors
    assert "layer 'c1' (InnerProduct): 3 param entries for 2 parameter blobs" in str(first)
    assert "top 'y' is made by layer 'c1' (net.prototxt:1:83) already" in str(second)


def test_layers_without_weights_may_share_a_name():
    relu = 'layer { name: "r" type: "ReLU" bottom: "x" top: "%s" }'
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }'
    assert len(build(parse_net(text + relu % "a" + relu % "b", "net.prototxt"), proto.TRAIN).layers) == 3


def test_a_layer_may_have_a_phase_of_its_own():
    """As in Caffe's net.cpp, a layer inherits the net's phase only if it has none. A norm with phase TEST is frozen in
    training."""
    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" phase: TEST }
    layer { name: "drop" type: "Dropout" bottom: "y" top: "z" phase: TEST }"""
    net = Net(parse_net(text, "net.prototxt"), proto.TRAIN, NetOptions().watched())
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    net.feed(net.inputs[0], values)
    net.params["bn"][1].set(np.ones(4, np.float32))
    net.params["bn"][2].set(np.ones(1, np.float32))
    net.forward()
    np.testing.assert_allclose(net.blobs["z"].data, values, rtol=1e-4)


SWAPPED = """
layer { name: "x" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 16 dim: 3 } shape { %s } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "last" type: "%s" bottom: "label" bottom: "ip" top: "last" }"""


@pytest.mark.parametrize("type", ["SoftmaxWithLoss", "Accuracy", "FocalLoss"])
def test_labels_before_scores_are_told_of(type):
    expected = "its first bottom 'label' (16) has no axis 1, of the classes; expected the scores first, then the labels"
    assert expected in net_error(SWAPPED % ("dim: 16", type), phase=1)
    expected = "got labels of shape (16, 10); expected the scores first, then the labels"
    assert expected in net_error(SWAPPED % ("dim: 16 dim: 1", type), phase=1)


@pytest.mark.parametrize("type", ["Convolution", "InnerProduct"])
def test_swapped_tops_of_a_data_layer_are_told_of(type):
    param = "convolution_param { num_output: 2 kernel_size: 1 }" if type == "Convolution" else ""
    text = f"""layer {{ name: "d" type: "Data" top: "label" top: "data" data_param {{ batch_size: 16 }} }}
        layer {{ name: "first" type: "{type}" bottom: "data" top: "y"
          inner_product_param {{ num_output: 2 }} {param} }}"""
    with pytest.raises(ConfigError) as error:
        build(parse_net(text, "net.prototxt"), 0, shapes_of=lambda message, where: [(16, 3, 8, 8), (16,)])
    assert str(error.value).endswith(
        "; its bottom 'data' is the second top of layer 'd' (net.prototxt:1:1), whose first, 'label', has the "
        "pictures: are its tops swapped?"
    )
