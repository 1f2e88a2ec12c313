"""The rewriting passes on and off: losses, gradients and statistics stay the same."""

import functools

import numpy as np
import pytest

from engine import proto
from engine.config import Config, parse_net, read_net
from engine.graph.build import build
from engine.net import PASSES, Counters, Net, NetOptions, prepare
from tests.mpi import REPO

# Two layers that read one blob, in-place chains, joins, a shared parameter, and a loss that is read by a layer.
BRANCHES = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv0" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "relu0" type: "ReLU" bottom: "a" top: "a" }
layer { name: "lrn" type: "LRN" bottom: "a" top: "n" lrn_param { local_size: 3 } }
layer { name: "conv1" type: "Convolution" bottom: "n" top: "b" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "bn1" type: "BatchNorm" bottom: "b" top: "b" }
layer { name: "scale1" type: "Scale" bottom: "b" top: "b" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "b" top: "b" }
layer { name: "conv2" type: "Convolution" bottom: "b" top: "c" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "bn2" type: "BatchNorm" bottom: "c" top: "bn2" }
layer { name: "pool" type: "Pooling" bottom: "a" top: "p"
  pooling_param { kernel_size: 3 stride: 1 pad: 1 } }
layer { name: "scale2" type: "Scale" bottom: "bn2" top: "scale2" }
layer { name: "sum" type: "Eltwise" bottom: "scale2" bottom: "p" bottom: "n" top: "sum"
  eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 } }
layer { name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "sigmoid" type: "Sigmoid" bottom: "b" top: "g" }
layer { name: "gate" type: "Eltwise" bottom: "sum" bottom: "g" top: "gated" eltwise_param { operation: PROD } }
layer { name: "most" type: "Eltwise" bottom: "gated" bottom: "b" top: "most" eltwise_param { operation: MAX } }
layer { name: "concat" type: "Concat" bottom: "most" bottom: "sum" top: "all" }
layer { name: "slice" type: "Slice" bottom: "all" top: "s0" top: "s1" slice_param { slice_point: 5 } }
layer { name: "aux" type: "InnerProduct" bottom: "s0" top: "aux"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "aux_loss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "aux_loss" loss_weight: 0.3 }
layer { name: "unread" type: "Silence" bottom: "aux_loss" }
layer { name: "drop" type: "Dropout" bottom: "s1" top: "s1" }
layer { name: "ip" type: "InnerProduct" bottom: "s1" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

NETS = {
    "branches": (lambda: parse_net(BRANCHES, "branches.prototxt"), None),
    "cifar10": (lambda: read_net(REPO / "nets/cifar10.prototxt"), [(6, 3, 28, 28), (6,)]),
    "resnet50": (lambda: read_net(REPO / "nets/resnet50.prototxt"), [(3, 3, 64, 64), (3,)]),
}


def randomise(net: Net) -> None:
    """Sets inputs and the coefficients of Scale layers to random values. Many mistakes would not show at the fillers' 1
    and 0."""
    generator = np.random.default_rng(5)
    for blob in net.inputs:
        values = generator.integers(0, 5, blob.shape) if len(blob.shape) == 1 else generator.uniform(-1, 1, blob.shape)
        net.feed(blob, values.astype(np.float32))
    for parameter in net.all_params():
        if "scale" in parameter.layer:
            values = generator.uniform(0.2, 0.8, parameter.shape)
            net.tensor_of[parameter.owner or parameter].set(values.astype(np.float32))


@functools.cache
def results(name: str, passes: frozenset[str]) -> dict[str, np.ndarray]:
    """Returns losses, gradients by parameter and BatchNorm's statistics after two steps on the same weights."""
    make, shapes = NETS[name]
    net = Net(make(), proto.TRAIN, NetOptions(passes=passes, shapes_of=lambda layer, where: shapes))
    randomise(net)
    found = {}
    for step in range(2):
        net.run_forward(Counters(step))
        for layer, top, _ in net.losses():
            found[f"{layer.name} {step}"] = net.blobs[top].data
        net.backward()
    for placed in net.parameters:
        found[f"gradient of {placed.name}"] = placed.tensor.diff.get()
    found["statistics"] = np.concatenate(
        [np.zeros(0), *(net.tensor_of[each].get() for each in net.graph.params if each.statistics)]
    )
    return found


def one_step(config: Config, passes: frozenset[str]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns the types of the layers that the passes leave, and for random inputs the gradients by parameter and the
    loss."""
    net = Net(config, proto.TRAIN, NetOptions(passes=passes))
    randomise(net)
    net.run_forward()
    net.backward()
    found = {placed.name: placed.tensor.diff.get() for placed in net.parameters}
    return [layer.type for layer in net.graph.layers], {**found, "loss": net.blobs["loss"].data}


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float, of_layers=False):
    """Checks that differences are at most `tolerance` times what is expected, in norm.

    Args:
        of_layers: compare with the largest gradient of the layer instead. The gradient of a bias before a BatchNorm is
            0 and what is found is rounding alone.
    """
    assert found.keys() == expected.keys()

    def group(what: str) -> str:
        return what.partition("[")[0] if of_layers else what

    for what, values in expected.items():
        size = max(np.linalg.norm(other) for name, other in expected.items() if group(name) == group(what))
        assert np.linalg.norm(found[what] - values) <= tolerance * size, what


@pytest.mark.parametrize("one", ["fuse", "subsample"])
@pytest.mark.parametrize("name", NETS)
def test_rewriting_changes_nothing_beyond_rounding(name, one):
    fused, apart = results(name, PASSES), results(name, PASSES - {one})
    assert_near(fused, apart, 3e-5, of_layers=True)


@pytest.mark.parametrize("name", NETS)
def test_sharing_memory_changes_no_bit(name):
    planned, apart = results(name, PASSES), results(name, PASSES - {"memory_plan"})
    assert [what for what, values in apart.items() if values.tobytes() != planned[what].tobytes()] == []


def test_both_passes_do_something():
    config, shapes = NETS["cifar10"][0](), NETS["cifar10"][1]

    def net(passes):
        return Net(config, proto.TRAIN, NetOptions(passes=passes, shapes_of=lambda layer, where: shapes))

    whole, unfused, unplanned = (net(PASSES - off) for off in (set(), {"fuse"}, {"memory_plan"}))
    assert len(whole.program) == len(unfused.program) - 12, "6 pairs of Scale and ReLU behind BatchNorm"
    assert whole.program.activation_bytes < 0.7 * unplanned.program.activation_bytes


def test_strided_convolutions_of_a_pixel_share_what_they_read():
    text = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 7 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 4 kernel_size: 1 stride: 2 } }
layer { name: "b" type: "Convolution" bottom: "x" top: "b"
  convolution_param { num_output: 4 kernel_size: 1 stride: 2 } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c"
  convolution_param { num_output: 4 kernel_size: 3 stride: 2 } }
"""
    graph = prepare(build(parse_net(text, "strided.prototxt"), proto.TRAIN))
    kinds = ["Input", "Split", "Pooling", "Split", "Convolution", "Convolution", "Convolution"]
    assert [layer.type for layer in graph.layers] == kinds
    gathered = graph.layers[2]
    assert gathered.tops[0].shape == (2, 3, 4, 4)
    assert {blob.name: blob.shape for blob in graph.outputs} == {
        "a": (2, 4, 4, 4),
        "b": (2, 4, 4, 4),
        "c": (2, 4, 3, 3),
    }


# A residual block whose shortcut is normalised, too, then one whose shortcut is the bottom itself; with and without
# ReLU.
BLOCKS = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 dim: %(channels)d dim: 6 dim: 5 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 3 } } }
layer { name: "conv0" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: %(channels)d bias_term: false kernel_size: 1 weight_filler { type: "msra" } } }
layer { name: "bn0" type: "BatchNorm" bottom: "a" top: "b" }
layer { name: "scale0" type: "Scale" bottom: "b" top: "b" scale_param { bias_term: true } }
layer { name: "conv1" type: "Convolution" bottom: "x" top: "c"
  convolution_param { num_output: %(channels)d bias_term: false kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "bn1" type: "BatchNorm" bottom: "c" top: "c" batch_norm_param { use_global_stats: %(global_stats)s } }
layer { name: "sum1" type: "Eltwise" bottom: "b" bottom: "c" top: "s" }
%(relu)s
layer { name: "conv2" type: "Convolution" bottom: "s" top: "d"
  convolution_param { num_output: %(channels)d bias_term: false kernel_size: 1 weight_filler { type: "msra" } } }
layer { name: "bn2" type: "BatchNorm" bottom: "d" top: "d" }
layer { name: "sum2" type: "Eltwise" bottom: "d" bottom: "s" top: "t" }
layer { name: "ip" type: "InnerProduct" bottom: "t" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("global_stats", ["false", "true"])
@pytest.mark.parametrize("relu", ["", 'layer { name: "relu" type: "ReLU" bottom: "s" top: "s" }'])
@pytest.mark.parametrize("channels", [16, 10, 72])
def test_norms_add_shortcuts_and_gradients(channels, relu, global_stats):
    text = BLOCKS % {"channels": channels, "relu": relu, "global_stats": global_stats}
    config = parse_net(text, "blocks.prototxt")
    fused, apart = (one_step(config, passes) for passes in (PASSES, PASSES - {"fuse"}))
    for (kinds, _), eltwise, splits in ((fused, False, 1), (apart, True, 2)):
        assert ("Eltwise" in kinds) == eltwise and kinds.count("Split") == splits
    assert_near(fused[1], apart[1], 3e-5)


# Both terms of the sum share one gradient. Neither layer may change it before the other has read it.
SHARED_GRADIENT = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 dim: 16 dim: 6 dim: 5 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 3 } } }
layer { name: "conv0" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "msra" } } }
layer { name: "relu0" type: "ReLU" bottom: "a" top: "a" }
layer { name: "conv1" type: "Convolution" bottom: "x" top: "b"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "msra" } } }
%s
layer { name: "relu1" type: "ReLU" bottom: "b" top: "b" }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "s" }
%s
layer { name: "ip" type: "InnerProduct" bottom: "s" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "b" top: "b" }'
AGAIN = """layer { name: "conv2" type: "InnerProduct" bottom: "b" top: "c"
    inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
  layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "c" bottom: "label" top: "loss2" }"""


@pytest.mark.parametrize("norm", ["", NORM])
@pytest.mark.parametrize("again", ["", AGAIN])
def test_gradients_that_layers_share_stay_whole(norm, again):
    config = parse_net(SHARED_GRADIENT % (norm, again), "shared.prototxt")
    (_, found), (_, expected) = (one_step(config, passes) for passes in (PASSES, frozenset()))
    assert_near(found, expected, 3e-5, of_layers=True)


ACTIVATED = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 dim: 5 dim: 7 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: %(channels)d
  kernel_size: 3 weight_filler { type: "gaussian" std: 0.8 } bias_filler { type: "uniform" min: -1 max: 1 } } }
layer { name: "f" bottom: "a" top: "b" %(activation)s }
layer { name: "ip0" type: "InnerProduct" bottom: "b" top: "c"
  inner_product_param { num_output: 9 weight_filler { type: "xavier" } } }
layer { name: "g" bottom: "c" top: "c" %(activation)s }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("channels", [16, 10])
@pytest.mark.parametrize(
    "activation, left",
    [
        ('type: "ReLU"', 0),
        ('type: "ReLU" relu_param { negative_slope: 0.2 }', 0),
        ('type: "ReLU" relu_param { negative_slope: -0.2 }', 2),
        ('type: "ReLU6"', 0),
        ('type: "ELU" elu_param { alpha: 0.7 }', 0),
        ('type: "ELU" elu_param { alpha: -0.7 }', 2),
        ('type: "TanH"', 0),
        ('type: "Sigmoid"', 2),
    ],
)
def test_activations_behind_weights(activation, left, channels):
    config = parse_net(ACTIVATED % {"activation": activation, "channels": channels}, "activated.prototxt")
    fused, apart = (one_step(config, passes) for passes in (PASSES, PASSES - {"fuse"}))
    assert len(fused[0]) == 6 + left and len(apart[0]) == 6 + 2
    assert_near(fused[1], apart[1], 1e-5)


def test_nothing_is_fused_away_that_somebody_reads():
    text = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 5 dim: 5 } } }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scale" }
layer { name: "relu" type: "ReLU" bottom: "scale" top: "relu" }
layer { name: "again" type: "Sigmoid" bottom: "%s" top: "again" }
"""
    for read, left in (("bn", ["BatchNorm", "Scale", "ReLU"]), ("scale", ["BatchNorm", "ReLU"])):
        graph = prepare(build(parse_net(text % read, "read.prototxt"), proto.TRAIN))
        assert [layer.type for layer in graph.layers] == ["Input", *left, "Sigmoid"]


@pytest.mark.parametrize("kind", ["Convolution", "InnerProduct"])
def test_weights_that_add_to_their_own_source(kind):
    """In a net that is only tested, y = f(x) + x must not be written over x while f still reads it."""
    param = {
        "Convolution": 'convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }',
        "InnerProduct": 'inner_product_param { num_output: 144 weight_filler { type: "xavier" } }',
    }[kind]
    shape = "dim: 2 dim: 144" if kind == "InnerProduct" else "dim: 2 dim: 16 dim: 9 dim: 9"
    config = parse_net(
        f"""
layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}
layer {{ name: "before" type: "{kind}" bottom: "x" top: "a" {param} }}
layer {{ name: "f" type: "{kind}" bottom: "a" top: "b" {param} }}
layer {{ name: "sum" type: "Eltwise" bottom: "b" bottom: "a" top: "sum" }}
layer {{ name: "relu" type: "ReLU" bottom: "sum" top: "sum" }}
layer {{ name: "after" type: "{kind}" bottom: "sum" top: "after" {param} }}""",
        "own.prototxt",
    )
    found = []
    for passes in (PASSES, frozenset()):
        net = Net(config, proto.TEST, NetOptions(passes=passes))
        net.feed(net.inputs[0], np.random.default_rng(2).normal(size=net.inputs[0].shape))
        found.append(net.forward()["after"])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


# Shared parameters

TOWERS = {
    "InnerProduct": "inner_product_param { num_output: 4 weight_filler { type: 'xavier' } }",
    "Convolution": "convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: 'xavier' } }",
    "Scale": "scale_param { bias_term: true filler { type: 'uniform' min: 0.5 max: 2 } }",
    "Bias": "bias_param { filler { type: 'uniform' min: -1 max: 1 } }",
}


def towers(kind: str, names: str, middle: str = "") -> Net:
    text = "".join(
        f"""
layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{ dim: 2 dim: 16 dim: 5 dim: 5 }} }} }}
{middle.replace("#", str(i))}
layer {{ name: "t{i}" type: "{kind}" bottom: "{"m" if middle else "x"}{i}" top: "t{i}" {names} {TOWERS[kind]} }}"""
        for i in range(3)
    )
    dims = {"InnerProduct": "dim: 4", "Convolution": "dim: 16 dim: 3 dim: 3"}.get(kind, "dim: 16 dim: 5 dim: 5")
    text += f"""
layer {{ name: "y" type: "Input" top: "y" input_param {{ shape {{ dim: 2 {dims} }} }} }}
layer {{ name: "loss0" type: "EuclideanLoss" bottom: "t0" bottom: "y" top: "loss0" }}
layer {{ name: "loss1" type: "EuclideanLoss" bottom: "t1" bottom: "y" top: "loss1" loss_weight: 2 }}
layer {{ name: "loss2" type: "EuclideanLoss" bottom: "t2" bottom: "y" top: "loss2" }}"""
    net = Net(parse_net(text, "towers.prototxt"), proto.TRAIN)
    for i, blob in enumerate(net.inputs):
        net.feed(blob, np.random.default_rng(i).uniform(-1, 1, blob.shape).astype(np.float32))
    return net


@pytest.mark.parametrize("middle", ["", 'layer { name: "m#" type: "BatchNorm" bottom: "x#" top: "m#" }'])
@pytest.mark.parametrize("kind", TOWERS)
def test_gradients_of_a_shared_parameter_add(kind, middle):
    """The gradient of the shared parameter is the sum of those that the three layers have with a parameter each, of the
    same values."""
    count = 1 if kind == "Bias" else 2
    shared = towers(kind, " ".join(f'param {{ name: "p{i}" }}' for i in range(count)), middle)
    single = towers(kind, "", middle)
    for layer in ("t0", "t1", "t2"):
        for theirs, ours in zip(shared.params["t0"], single.params[layer], strict=True):
            ours.set(theirs.get())
    losses = [[float(value) for value in net.forward().values()] for net in (shared, single)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for net in (shared, single):
        net.backward()
    assert len(shared.parameters) == count and len(single.parameters) == 3 * count
    for i in range(count):
        expected = sum(single.params[layer][i].diff.get() for layer in ("t0", "t1", "t2"))
        size = max(np.abs(single.params[layer][i].diff.get()).max() for layer in ("t0", "t1", "t2"))
        np.testing.assert_allclose(shared.params["t0"][i].diff.get(), expected, atol=1e-5 * size)
        assert size > 1e-3
