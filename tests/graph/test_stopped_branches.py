"""Branches that send back no gradient, behind a blob whose gradient comes from its loss_weight or from another loss.
The layers below learn as if the branch were not there."""

import numpy as np
import pytest

from engine import proto
from tests.layers.harness import inputs, make_net, needs_bf16, set_top_diff

X = np.random.default_rng(3).standard_normal((2, 8, 4, 4)).astype(np.float32)
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 8 dim: 4 dim: 4 } } } '
LEARNING = """layer { name: "c" type: "Convolution" bottom: "x" top: "c" %s
    convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "xavier" } } } """
WEIGHTED = INPUT + LEARNING % "loss_weight: 0.5"
# The gradient of "c" comes from another layer's loss instead.
OTHER_LOSS = INPUT + LEARNING % "" + 'layer { name: "m" type: "Reduction" bottom: "c" top: "m" loss_weight: 0.5 } '
END = """layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z" propagate_down: false
    inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
    layer { name: "r" type: "Reduction" bottom: "z" top: "loss" loss_weight: 1 } """
LAYERS = {
    "AbsVal": "",
    "BatchNorm": "",
    "Bias": "",
    "BNLL": "",
    "Convolution": "convolution_param { num_output: 3 kernel_size: 1 }",
    "Crop": "crop_param { offset: 1 }",
    "Deconvolution": "convolution_param { num_output: 3 kernel_size: 2 }",
    "Dropout": "",
    "ELU": "",
    "Exp": "",
    "Flatten": "",
    "Im2col": "convolution_param { kernel_size: 2 }",
    "InnerProduct": "inner_product_param { num_output: 3 }",
    "Interp": "interp_param { height: 8 width: 8 }",
    "LRN": "",
    "MVN": "",
    "Normalize": 'norm_param { across_spatial: false scale_filler { type: "constant" value: 1 } }',
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Pooling": "pooling_param { kernel_size: 2 }",
    "Power": "power_param { scale: 2 }",
    "PReLU": "",
    "ReLU": "",
    "Reshape": "reshape_param { shape { dim: 0 dim: -1 } }",
    "Scale": "",
    "Sigmoid": "",
    "Slice": "",
    "Softmax": "",
    "SPP": "spp_param { pyramid_height: 2 }",
    "TanH": "",
    "Tile": "tile_param { tiles: 2 }",
}


def layer(type: str, more: str = "", bottoms: tuple[str, ...] = ("c",), tops: tuple[str, ...] = ("y",)) -> str:
    names = " ".join([*(f'bottom: "{name}"' for name in bottoms), *(f'top: "{name}"' for name in tops)])
    return f'layer {{ name: "l" type: "{type}" {names} {more} }} '


def gradients(text: str, **options) -> list[np.ndarray]:
    """Returns the gradients of layer "c" after two passes, since the second must not see what the first has left."""
    net = make_net(text, proto.TRAIN, **{"keep_all": False, **options})
    inputs(net)["x"].set(X)
    for _ in range(2):
        net.forward()
        net.backward()
    return [tensor.diff.get() for tensor in net.params["c"]]


def check(text: str, alone: str, **options) -> None:
    for given, expected in zip(gradients(text, **options), gradients(alone, **options), strict=True):
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alone", [WEIGHTED, OTHER_LOSS], ids=["loss_weight", "other_loss"])
@pytest.mark.parametrize("type", LAYERS)
def test_one_reader(type, alone):
    crop = 'layer { name: "d" type: "Pooling" bottom: "x" top: "d" pooling_param { kernel_size: 2 } } '
    reader = layer(type, LAYERS[type], ("c", "d") if type == "Crop" else ("c",))
    check(alone + crop * (type == "Crop") + reader + END, alone)


@needs_bf16
@pytest.mark.parametrize("type", ["BatchNorm", "Convolution", "LRN", "Softmax", "TanH"])
def test_in_bf16(type):
    check(WEIGHTED + layer(type, LAYERS[type]) + END, WEIGHTED, precision="bf16")


def test_in_place():
    check(WEIGHTED + layer("TanH", tops=("c",)) + END.replace('"y"', '"c"'), WEIGHTED)


def test_two_readers():
    check(WEIGHTED + layer("TanH") + END + layer("Power", tops=("unread",)), WEIGHTED)


@pytest.mark.parametrize("loss_weight", [0, 1])
def test_a_loss_that_sends_no_gradient(loss_weight):
    more = f"propagate_down: false propagate_down: true loss_weight: {loss_weight}"
    check(WEIGHTED + layer("EuclideanLoss", more, ("c", "x")), WEIGHTED)


@pytest.mark.parametrize("type", ["Eltwise", "Concat"])
def test_a_layer_that_sends_gradients_to_another_bottom_only(type):
    other = LEARNING.replace('"c"', '"d"') % ""
    mixed = layer(type, "propagate_down: false propagate_down: true", ("c", "d"))
    end = 'layer { name: "r" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 } '
    check(WEIGHTED + other + mixed + end, WEIGHTED)


@pytest.mark.parametrize("passes", [frozenset(), None], ids=["plain", "passes"])
def test_a_gradient_from_python_behind_a_layer_without_a_backward(passes):
    """The blob has a blocked layout, but the layer that reads it wants rows."""
    text = "force_backward: true " + INPUT + (LEARNING % "").replace("num_output: 8", "num_output: 32")
    options = {} if passes is None else {"passes": passes}
    net = make_net(text + layer("ArgMax"), proto.TRAIN, **options)
    inputs(net)["x"].set(X)
    net.forward()
    given = np.random.default_rng(4).standard_normal((2, 32, 4, 4)).astype(np.float32)
    set_top_diff(net, "c", given)
    net.backward()
    expected = np.einsum("nohw,nihw->oi", given, X)
    np.testing.assert_allclose(net.params["c"][0].diff.get()[:, :, 0, 0], expected, rtol=1e-4, atol=1e-4)


def test_force_backward():
    check("force_backward: true " + WEIGHTED + layer("TanH") + END, "force_backward: true " + WEIGHTED)


def test_what_stops_at_a_sum_is_not_fused_into_it():
    text = (
        INPUT
        + """
        layer { name: "bn" type: "BatchNorm" bottom: "x" top: "b" }
        layer { name: "scale" type: "Scale" bottom: "b" top: "s" scale_param { bias_term: true } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c"
          convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "xavier" } } }
        layer { name: "sum" type: "Eltwise" bottom: "s" bottom: "c" top: "y"
          propagate_down: false propagate_down: true }
        layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 } """
    )
    net = make_net(text, keep_all=False)
    inputs(net)["x"].set(X)
    net.forward()
    net.backward()
    moved = {placed.name: bool(placed.tensor.diff.get().any()) for placed in net.parameters if placed.tensor.diff}
    assert not any(learns for name, learns in moved.items() if name.startswith("scale")) and any(moved.values()), moved
