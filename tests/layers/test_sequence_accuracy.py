import numpy as np
import pytest

from engine import proto
from tests.layers.harness import error_of, make_net, net_text, run

RANDOM = np.random.default_rng(8)


def layer(params=""):
    return f"""layer {{ name: "layer" type: "LabelsequenceAccuracy" bottom: "x" bottom: "l" top: "y"
        labelsequence_accuracy_param {{ {params} }} }}"""


def accuracy(paths, labels, params="", classes=5):
    scores = RANDOM.uniform(0, 1, (*np.shape(paths), classes)) + 2 * np.eye(classes)[np.array(paths)]
    return run(layer(params), x=scores, l=np.array(labels)).blobs["y"].data


@pytest.mark.parametrize(
    "path, label, right",
    [
        ([1, 1, 0, 1, 2], [1, 1, 2], True),
        ([1, 1, 1, 1, 2], [1, 1, 2], False),
        ([0, 0, 0, 0, 0], [0, 0, 0], True),
        ([0, 1, 0, 0, 0], [0, 1, 0], True),
        ([0, 1, 0, 2, 0], [1, 0, 0], False),
        ([0, 1, 0, 0, 0], [1, 2, 0], False),
        ([3, 3, 4, 4, 3], [3, 4, 3], True),
    ],
)
def test_one(path, label, right):
    assert accuracy([path], [label]) == right


def test_several_and_another_blank():
    paths, labels = [[4, 4, 0, 0], [1, 4, 1, 1], [1, 1, 1, 1], [2, 3, 4, 4]], [[0, 4], [1, 1], [1, 1], [2, 3]]
    assert accuracy(paths, labels, "blank_label: 4") == 0.75


def test_errors():
    assert "expected scores (N, T, C)" in error_of(layer(), x=(3, 4), l=(3, 2))
    assert "expected labels (3, L), got (2, 2)" in error_of(layer(), x=(3, 4, 5), l=(2, 2))


INDICATOR = """layer { name: "i" type: "ContinuationIndicator" top: "i"
    continuation_indicator_param { time_step: 3 batch_size: 2 } }"""


def test_a_batch_has_as_many_samples_as_its_data():
    """The number of samples is that of the data, not the indicator's number of steps. The indicator computes
    nothing."""
    net = make_net(INDICATOR + net_text(layer(), x=(2, 3, 4), l=(2, 2)), proto.TEST)
    assert net.graph.batch_size == 2
    assert net.graph.layers[0].flops() == 0


def test_continuation_indicator():
    text = INDICATOR
    net = run(text, phase=proto.TEST)
    np.testing.assert_array_equal(net.blobs["i"].data, [[0, 0], [1, 1], [1, 1]])
    assert "expected time_step and batch_size of at least 1, got 3 and 0" in error_of(text.replace("batch_size: 2", ""))
