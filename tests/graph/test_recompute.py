"""Memory budgets: results that are computed twice have the same bits, and memory stays within the budget."""

import re
from itertools import pairwise

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.errors import EngineError
from engine.net import Counters, Net, NetOptions
from tests.graph.test_passes import NETS, randomise
from tests.layers.harness import needs_bf16

# Arenas are rounded up to huge pages, so memory may exceed a budget by less than one.
HUGE_PAGE = 2 << 20


def make(precision: str, budget: int | None) -> Net:
    read, shapes = NETS["resnet50"]
    return Net(read(), proto.TRAIN, NetOptions(shapes_of=lambda *_: shapes, precision=precision, memory_budget=budget))


def results(net: Net) -> list[np.ndarray]:
    """Returns losses, gradients and BatchNorm's statistics after two steps on the same weights."""
    randomise(net)
    for step in range(2):
        net.run_forward(Counters(step))
        net.backward()
    found = [tensor.diff.get() for tensor in net.tensor_of.values() if tensor.diff]
    return [*found, *(np.array(each) for each in net.statistics()), *net.outputs().values()]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=[needs_bf16, pytest.mark.slow])])
def test_same_bits_in_less_memory(precision):
    free = make(precision, None)
    assert not free.repeats
    expected = results(free)
    needed = free.program.activation_bytes
    budget = int(0.75 * needed)
    net = make(precision, budget)
    assert net.program.activation_bytes <= budget + HUGE_PAGE
    for mine, his in zip(results(net), expected, strict=True):
        np.testing.assert_array_equal(mine, his)
    assert net.program.repeat_ns > 0
    assert len(make(precision, int(0.8 * needed)).repeats) <= len(net.repeats)  # no more layers than the budget takes
    assert not make(precision, needed).repeats


def test_a_frozen_normalisation_is_not_repeated():
    """The BatchNorm has no backward, for which an op's statistics are kept. But the convolutions, which learn, read its
    bottom and its top."""
    layers = ['type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 9 dim: 9 } }']
    layers += ['type: "TanH" bottom: "x" top: "t"', 'type: "BatchNorm" bottom: "t" top: "z"']
    for bottom, top in ("ta", "zb"):
        param = 'num_output: 32 kernel_size: 1 weight_filler { type: "msra" }'
        layers.append(f'type: "Convolution" bottom: "{bottom}" top: "{top}" convolution_param {{ {param} }}')
    layers.append('type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss"')
    text = "\n".join(f'layer {{ name: "{i}" {layer} }}' for i, layer in enumerate(layers))
    with pytest.raises(EngineError, match="even when 0 layers are computed twice"):
        Net(parse_net(text, "test.prototxt"), proto.TRAIN, NetOptions(memory_budget=1000))


def test_what_cannot_be_reached_is_told_with_what_can():
    with pytest.raises(EngineError, match="expected at least") as error:
        make("fp32", 1000)
    least = re.search(r"at least ([\d.]+) MB", str(error.value))[1]
    net = make("fp32", int(1.01e6 * float(least)))
    assert len(net.repeats) > 10


def test_what_is_computed_again_comes_from_what_is_kept():
    """Of five BatchNorms in a row the first and the third are computed again, from blobs that are kept. The fifth is
    not, since backward begins with it."""
    convolution = 'convolution_param { num_output: 32 kernel_size: 1 weight_filler { type: "msra" } }'
    layers = [
        'type: "Input" top: "x" top: "target" input_param { shape { dim: 8 dim: 32 dim: 20 dim: 20 } }',
        f'type: "Convolution" bottom: "x" top: "a" {convolution}',
        *(f'type: "BatchNorm" bottom: "{bottom}" top: "{top}"' for bottom, top in pairwise("abcdef")),
        f'type: "Convolution" bottom: "f" top: "y" {convolution}',
        'type: "EuclideanLoss" bottom: "y" bottom: "target" top: "loss"',
    ]
    text = "\n".join(f'layer {{ name: "{i}" {layer} }}' for i, layer in enumerate(layers))
    free, tight = (
        Net(parse_net(text, "test.prototxt"), proto.TRAIN, NetOptions(memory_budget=budget))
        for budget in (None, 2_470_000)
    )
    assert [each.op for each in tight.repeats] == [1, 3]  # the fifth would save nothing more
    for mine, his in zip(results(tight), results(free), strict=True):
        np.testing.assert_array_equal(mine, his)
    with pytest.raises(EngineError, match=r"at least 2\.46 MB, .* even when 3 layers are computed twice"):
        Net(parse_net(text, "test.prototxt"), proto.TRAIN, NetOptions(memory_budget=1000))
