import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(33)


def layer(kind="MultiLabelLoss", tops='top: "y"', params=""):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "l" {tops} {params} }}'


def sample(shape):
    """Returns scores, and labels of which some are unknown."""
    labels = RANDOM.integers(-1, 2, shape) * RANDOM.integers(1, 3, shape)
    labels.flat[:3] = -1, 0, 1
    return RANDOM.normal(size=shape).astype(np.float32), labels.astype(np.float32)


@pytest.mark.parametrize("shape, count", [((4, 6), (4, 6)), ((2, 3, 2, 2), (2, 12))])
@pytest.mark.parametrize("full", [False, True])
def test_forward_and_gradients(shape, count, full):
    x, labels = sample(shape)
    text = layer(tops='top: "y" top: "s"', params="loss_param { normalization: FULL }" if full else "")
    net = run(text, x=x, l=labels.reshape(count))
    sigmoids = 1 / (1 + np.exp(-x.astype(np.float64)))
    losses = np.where(labels > 0, -np.log(sigmoids), -np.log(1 - sigmoids)) * (labels != 0)
    np.testing.assert_allclose(net.blobs["y"].data, losses.sum() / (x.size if full else len(x)), rtol=1e-5)
    np.testing.assert_allclose(net.blobs["s"].data, sigmoids, rtol=1e-5)
    check_gradients(net_text(text, x=shape, l=count), {"x": x, "l": labels}, ignore={"s"})


def test_all_are_unknown():
    net = run(layer(), x=np.ones((2, 3)), l=np.zeros((2, 3)))
    assert net.blobs["y"].data == 0


def test_a_label_that_is_no_number_is_not_taken_for_no():
    net = run(layer(), x=np.ones((1, 2)), l=np.array([[1, np.nan]]))
    net.program.backward()
    assert np.isnan(net.blobs["y"].data) and list(np.isnan(net.blobs["x"].diff[0])) == [False, True]


def test_accuracy():
    x, labels = sample((30, 7))
    x[0] = 0
    found = x >= 0
    recall, specificity = found[labels > 0].mean(), (~found)[labels < 0].mean()
    precision = (found & (labels > 0)).sum() / (found & (labels != 0)).sum()
    expected = [
        recall,
        specificity,
        2 / (1 / recall + 1 / specificity),
        precision,
        2 / (1 / recall + 1 / precision),
    ]
    top = run(layer("MultiLabelAccuracy"), phase=proto.TEST, x=x, l=labels).blobs["y"].data
    assert top.shape == (1, 5, 1, 1)
    np.testing.assert_allclose(top.ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "labels, expected", [([0, 0], [0, 0, 0, 0, 0]), ([-1, -1], [0, 0.5, 0, 0, 0]), ([1, 1], [0.5, 0, 0, 1, 2 / 3])]
)
def test_accuracy_of_few(labels, expected):
    net = run(layer("MultiLabelAccuracy"), x=np.array([[1.0, -1.0]]), l=np.array([labels]))
    np.testing.assert_allclose(net.blobs["y"].data.ravel(), expected, rtol=1e-6)


def test_errors():
    for kind in ("MultiLabelLoss", "MultiLabelAccuracy"):
        message = "expected as many labels as scores, (3, 5), got (3, 4)"
        assert message in error_of(layer(kind), x=(3, 5), l=(3, 4))
    ignoring = layer(params="loss_param { ignore_label: 2 }")
    assert "expected no ignore_label: labels that are 0 do not count" in error_of(ignoring, x=(3, 5), l=(3, 5))
