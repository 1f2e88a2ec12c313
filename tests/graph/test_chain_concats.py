"""A chain of Concats, each of which appends to the top of the last, writes into one blob. The results have the same
bits as with a copy at each Concat."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import PASSES, Counters, Net, NetOptions
from tests.layers.harness import PRECISIONS

HEAD = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: %(batch)d dim: 16 dim: %(size)d dim: %(size)d } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: %(batch)d } } }
layer { name: "conv0" type: "Convolution" bottom: "x" top: "a0"
  convolution_param { num_output: %(first)d kernel_size: 1 weight_filler { type: "msra" } } }
"""
LAYER = """
layer { name: "bn%(n)d" type: "BatchNorm" bottom: "a%(n)d" top: "b%(n)d" }
layer { name: "scale%(n)d" type: "Scale" bottom: "b%(n)d" top: "b%(n)d" scale_param { bias_term: true } }
layer { name: "relu%(n)d" type: "ReLU" bottom: "b%(n)d" top: "b%(n)d" }
layer { name: "conv%(n)d" type: "Convolution" bottom: "b%(n)d" top: "c%(n)d"
  convolution_param { num_output: %(growth)d kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "concat%(n)d" type: "Concat" bottom: "a%(n)d" bottom: "c%(n)d" %(third)s top: "a%(next)d" }
"""
TAIL = """
layer { name: "bn" type: "BatchNorm" bottom: "a%(n)d" top: "b" }
layer { name: "relu" type: "ReLU" bottom: "b" top: "b" }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
BLOCKS = 3


def dense_layers(batch=3, size=6, first=32, growth=16, third=""):
    """Returns the text of the layers of a dense block, without the tail.

    Args:
        third: text of a third bottom of the second Concat.
    """
    text = HEAD % {"batch": batch, "size": size, "first": first}
    for n in range(1, BLOCKS + 1):
        layer = LAYER % {"n": n, "next": n + 1, "growth": growth, "third": third if n == 2 else ""}
        text += layer.replace('"a1"', '"a0"')
    return text


def dense_block(more="", **shape):
    """Returns a net with a dense block. `more`: layers that read its blobs."""
    return parse_net(dense_layers(**shape) + more + TAIL % {"n": BLOCKS + 1}, "dense.prototxt")


def built(config, chained, phase=proto.TRAIN, **options):
    return Net(config, phase, NetOptions(passes=PASSES if chained else PASSES - {"chain_concats"}, **options))


def results(net):
    """Returns what two steps on the same weights give: outputs, gradients, and the statistics of BatchNorms."""
    generator = np.random.default_rng(5)
    for blob in net.inputs:
        values = generator.integers(0, 5, blob.shape) if len(blob.shape) == 1 else generator.normal(size=blob.shape)
        net.feed(blob, values.astype(np.float32))
    for parameter in net.all_params():
        if "scale" in parameter.layer:
            values = generator.uniform(-0.8, 0.8, parameter.shape)
            net.tensor_of[parameter].set(values.astype(np.float32))
    found = {}
    for step in range(2):
        net.run_forward(Counters(step))
        found |= {f"{name} {step}": values for name, values in net.outputs().items()}
        if net.has_backward:
            net.backward()
    found |= {placed.name: placed.tensor.diff.get() for placed in net.parameters if placed.tensor.diff is not None}
    found["statistics"] = np.concatenate([net.tensor_of[each].get() for each in net.graph.params if each.statistics])
    return found


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    assert [what for what, values in expected.items() if values.tobytes() != found[what].tobytes()] == []


def chains(net):
    return [(layer.name, layer.continues) for layer in net.graph.layers if layer.type == "Concat" and layer.sizes]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"batch": 1},
        {"first": 16},  # one block of channels: a blob of its own is then rows of all channels, one in the chain is not
        {"first": 20, "growth": 12},  # sizes that blocks of channels do not divide
        {"size": 1},
        {"batch": 2, "size": 37, "first": 64, "growth": 32},  # several parts of the norms' grid
    ],
    ids=str,
)
def test_a_chain_changes_no_bit(shape, precision):
    config = dense_block(**shape)
    chained, apart = (built(config, each, precision=precision) for each in (True, False))
    assert chains(chained) == [("concat1", False), ("concat2", True), ("concat3", True)]
    assert not chains(apart)
    assert_same_bits(results(chained), results(apart))


def test_parts_that_begin_within_a_block_of_channels():
    """If built apart, the first Concat's blob would be laid out in blocks. Other kernels then compute it, with other
    rounding."""
    chained, apart = (built(dense_block(growth=8), each) for each in (True, False))
    assert len(chains(chained)) == 3
    found, expected = results(chained), results(apart)
    for what, values in expected.items():
        np.testing.assert_allclose(found[what], values, rtol=1e-3, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_in_phase_test_too(precision):
    chained, apart = (built(dense_block(), each, proto.TEST, precision=precision) for each in (True, False))
    assert len(chains(chained)) == 3
    assert_same_bits(results(chained), results(apart))


def test_norms_of_several_ranks_read_parts_too():
    """The second rank is one that computes the same: sums over ranks are twice as large."""
    config = dense_block(more="bn_sync: true")
    chained, apart = (built(config, each) for each in (True, False))
    assert len(chains(chained)) == 3
    found = [results(built(dense_block(), True))]
    for net in (chained, apart):
        net.program.set_ranks(2, lambda values: np.multiply(values, 2, out=values))
        found.append(results(net))
    assert_same_bits(*found[1:])
    for what, expected in found[0].items():
        if what != "statistics":  # the unbiased variance is that of twice as many samples
            np.testing.assert_allclose(found[1][what], expected, rtol=1e-3, atol=1e-5)


def test_a_third_bottom():
    config = dense_block(third='bottom: "c1"')
    assert_same_bits(*(results(built(config, each)) for each in (True, False)))


def test_the_block_takes_less_memory():
    config = dense_block(batch=4, size=20, first=64)
    chained, apart = (built(config, each).program.activation_bytes for each in (True, False))
    assert chained < 0.9 * apart


def test_recomputation_leaves_parts_alone():
    config = dense_block(batch=4, size=20)
    whole = built(config, True)
    tight = built(config, True, memory_budget=2_400_000)
    assert tight.repeats
    assert_same_bits(results(tight), results(whole))


# Layers that read the second Concat's top and cannot read it within a larger blob.
OTHERS = {
    "convolution": 'layer { name: "o" type: "Convolution" bottom: "a2" top: "o" '
    'convolution_param { num_output: 5 kernel_size: 1 weight_filler { type: "msra" } } }',
    "pooling": 'layer { name: "o" type: "Pooling" bottom: "a2" top: "o" pooling_param { kernel_size: 2 stride: 2 } }',
    "norm of slices": 'layer { name: "o" type: "BatchNorm" bottom: "a2" top: "o" '
    "batch_norm_param { stats_batch_size: 1 } }",
    "sum": 'layer { name: "n" type: "BatchNorm" bottom: "a2" top: "n" } '
    'layer { name: "o" type: "Eltwise" bottom: "n" bottom: "a2" top: "o" }',
    "nothing learns": 'layer { name: "o" type: "BatchNorm" bottom: "a2" top: "o" propagate_down: false }',
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_readers_break_the_chain(other):
    more = (
        OTHERS[other]
        + """
        layer { name: "oip" type: "InnerProduct" bottom: "o" top: "oip"
          inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
        layer { name: "oloss" type: "SoftmaxWithLoss" bottom: "oip" bottom: "label" top: "oloss" }"""
    )
    config = dense_block(more=more)
    chained, apart = (built(config, each) for each in (True, False))
    assert chains(chained) == [("concat2", False), ("concat3", True)]
    assert_same_bits(results(chained), results(apart))


def test_no_chain_where_every_blob_is_kept():
    net = Net(dense_block(), proto.TRAIN, NetOptions().watched())
    assert not chains(net)


PROJECTION = """
layer { name: "proj" type: "Convolution" bottom: "x" top: "e"
  convolution_param { num_output: 80 kernel_size: 1 weight_filler { type: "msra" } } }
"""
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "a%d" bottom: "e" top: "sum" }'


@pytest.mark.parametrize("relu", ["", 'layer { name: "r" type: "ReLU" bottom: "sum" top: "sum" }'])
def test_a_sum_at_the_end_shares_gradients_with_no_chain(relu):
    """The sum's bottoms share one gradient. If the last Concat were in a chain, its Splits would add to it before the
    layer of the other bottom reads it."""
    text = dense_layers(batch=2) + PROJECTION
    tail = (TAIL % {"n": BLOCKS + 1}).replace(f'"a{BLOCKS + 1}"', '"sum"')
    config = parse_net(text + SUM % (BLOCKS + 1) + relu + tail, "dense.prototxt")
    chained, apart = built(config, True), built(config, False)
    assert [name for name, _ in chains(chained)] == ["concat1", "concat2"]
    assert_same_bits(results(chained), results(apart))


@pytest.mark.parametrize(
    "bottoms, names", [(("e", "a4"), ["concat1", "concat2", "concat3"]), (("a4",), ["concat1", "concat2"])]
)
def test_a_concat_at_the_end_has_a_gradient_of_its_own_where_it_copies(bottoms, names):
    """A Concat of one bottom copies nothing: its top is its bottom, and so is the gradient."""
    named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    text = dense_layers(batch=2) + PROJECTION + f'layer {{ name: "end" type: "Concat" {named} top: "sum" }}'
    config = parse_net(text + (TAIL % {"n": BLOCKS + 1}).replace('"a4"', '"sum"'), "dense.prototxt")
    chained, apart = built(config, True), built(config, False)
    assert [name for name, _ in chains(chained)] == names
    assert_same_bits(results(chained), results(apart))


def test_a_gradient_that_is_set_is_no_chains():
    """The gradient that a loss_weight sets must stay the same in all passes, so no chain may write into it."""
    text = dense_layers(batch=2)
    text = text.replace(f'top: "a{BLOCKS + 1}"', f'top: "a{BLOCKS + 1}" loss_weight: 0.1')
    config = parse_net(text, "dense.prototxt")
    chained, apart = built(config, True), built(config, False)
    assert [name for name, _ in chains(chained)] == ["concat1", "concat2"]
    assert_same_bits(results(chained), results(apart))
