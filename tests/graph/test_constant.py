"""Nets that are only tested keep what kernels compute of parameters alone, and compute it anew when the parameters
change."""

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
from engine.net import PASSES, Net, NetOptions
from tests.layers.harness import PRECISIONS

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 8 dim: 6 dim: 6 } } }'
CONV = """layer { name: "conv" type: "Convolution" bottom: "x" top: "y"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 %s weight_filler { type: "msra" } } }"""
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" }'
NORM_RELU = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { relu: true } }'
SCALE = 'layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: %s } }'
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "%s" bottom: "y" top: "s" }'
DENSE = """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 8 weight_filler { type: "msra" } } }"""
POOL = 'layer { name: "pool" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 3 stride: 1 pad: 1 } }'
AGAIN = 'layer { name: "again" type: "Sigmoid" bottom: "p" top: "again" }'

# The layers of each net, and how many ops are left of them.
NETS = {
    "norm": ([CONV % "", NORM], 1),
    "norm without bias": ([CONV % "bias_term: false", NORM, RELU], 1),
    "scale": ([CONV % "bias_term: false", NORM, SCALE % "false"], 1),
    "shift": ([CONV % "", NORM, SCALE % "true", RELU], 1),
    "norm with a ReLU of its own": ([CONV % "", NORM_RELU], 1),
    "groups": ([CONV % "group: 4", NORM, SCALE % "true"], 1),
    "sum of what nobody else reads": ([POOL, CONV % "", NORM, SUM % "p"], 3),  # one is the Split of x
    "sum of what is read again": ([POOL, CONV % "", NORM, SUM % "p", AGAIN], 5),
    "inner product": ([DENSE, RELU], 1),
    "norm of an inner product": ([DENSE, NORM], 2),
}


def make(layers: list[str], passes=PASSES, phase: int = proto.TEST, **options) -> Net:
    config = parse_net("\n".join([INPUT, *layers]), "test.prototxt")
    return Net(config, phase, NetOptions(passes=passes, **options))


def fill(net: Net, seed: int) -> None:
    """Sets the input and all parameters to random values other than their fillers', with variances above 0."""
    generator = np.random.default_rng(seed)
    net.feed(net.inputs[0], generator.standard_normal(net.inputs[0].shape, np.float32))
    for layer, blobs in net.weights_by_layer().items():
        values = [generator.uniform(0.5, 2, blob.shape).astype(np.float32) for blob in blobs]
        net.load_weights({layer: values}, "test")


def outputs_agree(net: Net, other: Net, tolerance: float) -> None:
    """Checks that outputs differ by at most `tolerance` times the largest value of the blob."""
    for name, values in net.forward().items():
        expected = other.forward()[name]
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_outputs_are_those_of_the_layers_one_by_one(name, precision):
    layers, ops = NETS[name]
    net, plain = make(layers, precision=precision), make(layers, frozenset())
    if precision == "fp32":
        assert len(net.program) == ops
    for seed in (1, 2):  # the second time with new weights
        fill(net, seed)
        fill(plain, seed)
        outputs_agree(net, plain, 1e-6 if precision == "fp32" else 2**-6)


def test_nothing_is_folded_that_learns_or_is_read():
    norm = [CONV % "", NORM]
    assert len(make(norm, phase=proto.TRAIN).program) == 2
    assert len(make(["force_backward: true", *norm]).program) == 2
    assert len(make([CONV % "", NORM.replace('top: "y"', 'top: "z"'), SUM % "x"]).program) == 5  # y is read twice


def test_a_test_net_follows_the_net_that_trains():
    layers = [INPUT, CONV % "bias_filler { type: 'constant' value: 1 }", NORM]
    config = parse_net("\n".join(layers), "test.prototxt")
    train = Net(config, proto.TRAIN)
    evaluator = Evaluator(config, world=World(), share=train)
    assert evaluator.run(1)["y"].min() > 1
    np.frombuffer(train.weights, np.float32)[:] = 0  # an update writes to the arena itself, too
    assert evaluator.run(1)["y"].max() == 0


def test_a_norm_that_has_taken_a_sum_over_is_not_folded_into_its_other_term():
    """In a net of phase TEST, a BatchNorm of phase TRAIN is fused with the sum behind it. The convolution before the
    sum must then not be folded with it."""
    norm = """layer { name: "bn" type: "BatchNorm" bottom: "x" top: "n" phase: TRAIN
      batch_norm_param { use_global_stats: true } }"""
    layers = [norm, CONV % "", SUM % "n"]
    net, plain = make(layers), make(layers, frozenset())
    for each in (net, plain):
        fill(each, 1)
    outputs_agree(net, plain, 1e-6)
