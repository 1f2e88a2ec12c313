import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

RANDOM = np.random.default_rng(15)


def layer(more="", tops=("loss", "p", "each")):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "SoftmaxWithLossOHEM" bottom: "x" bottom: "l" {tops} {more} }}'


def losses(x, labels):
    """Returns the loss of each label, 0 where the label is -1."""
    log = np.log(np.exp(x.astype(np.float64)).sum(1))
    own = np.take_along_axis(x, np.maximum(labels, 0).astype(int).reshape(len(x), 1, *x.shape[2:]), 1)[:, 0]
    return np.where(labels.reshape(own.shape) == -1, 0, log - own)


@pytest.mark.parametrize(
    "shape, labels",
    [((6, 4), (6,)), ((3, 4, 1, 1), (3, 1, 1, 1)), ((2, 4, 3, 2), (2, 1, 3, 2)), ((2, 4, 30, 50), (2, 1, 30, 50))],
)
def test_forward(shape, labels):
    x = RANDOM.normal(size=shape).astype(np.float32)
    l = RANDOM.integers(-1, 4, labels).astype(np.float32)  # noqa: E741
    l.flat[0] = 2
    net = run(layer("loss_param { ignore_label: -1 }"), x=x, l=l)
    expected = losses(x, l)
    top = (6, 1, 1, 1) if labels == (6,) else labels  # R-FCN's labels have this shape, which its Eltwise expects
    assert net.blobs["each"].shape == top
    np.testing.assert_allclose(net.blobs["each"].data, expected.reshape(top), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.blobs["loss"].data, expected.sum() / (l >= 0).sum(), rtol=1e-5)
    np.testing.assert_allclose(net.blobs["p"].data.sum(1), 1, rtol=1e-5)


def test_gradients_of_the_loss_alone():
    text = net_text(layer("loss_weight: 2", ("loss",)), x=(3, 4), l=(3,))
    x, labels = RANDOM.normal(size=(3, 4)).astype(np.float32), np.array([0, 3, 1], np.float32)
    assert make_net(text).losses()[0][1:] == ("loss", 2.0)
    check_gradients(text, {"x": x, "l": labels})


def test_a_loss_has_weight_1_unless_the_text_says_otherwise():
    assert make_net(net_text(layer(), x=(3, 4), l=(3,))).losses()[0][1:] == ("loss", 1.0)


def test_weight_0_stops_the_gradient():
    text = layer("loss_weight: 0 loss_weight: 0 loss_weight: 0 propagate_down: false propagate_down: false")
    net = make_net(net_text(text, x=(3, 4), l=(3,)).replace("force_backward: true", ""))
    assert net.blobs["x"].diff is None


def test_errors():
    message = error_of(layer(), x=(3, 4), l=(3, 2))
    assert "layer 'layer' (SoftmaxWithLossOHEM): expected 3 labels, one for each position of (3, 4)" in message
