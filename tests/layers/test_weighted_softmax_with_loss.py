import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(31)


def layer(params="", weights=True):
    third = 'bottom: "w"' if weights else ""
    return f"""layer {{ name: "layer" type: "WeightedSoftmaxWithLoss" bottom: "x" bottom: "l" {third} top: "y"
        {params} }}"""


def sample(shape=(3, 4, 2, 3)):
    """Scores and labels."""
    labels = RANDOM.integers(0, shape[1], (shape[0], *shape[2:]))
    return RANDOM.normal(size=shape).astype(np.float32), labels.astype(np.float32)


def reference(x, labels, weights, divisor):
    """Returns the loss. `weights` has the shape of the labels."""
    x = np.moveaxis(x.astype(np.float64), 1, -1)
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    own = np.take_along_axis(logs, labels.astype(int)[..., None], -1)[..., 0]
    return -(own * weights).sum() / divisor


@pytest.mark.parametrize("mode, divisor", [("", 18), ("normalize: false", 3), ("normalization: NONE", 1)])
def test_a_weight_for_each_label(mode, divisor):
    x, labels = sample()
    weights = RANDOM.uniform(0, 2, labels.shape).astype(np.float32)
    weights[0, 0] = 0
    text = layer(f"loss_weight: 3 loss_param {{ {mode} }}")
    expected = reference(x, labels, weights, divisor)
    np.testing.assert_allclose(run(text, x=x, l=labels, w=weights).blobs["y"].data, expected, rtol=1e-5)
    shapes = {"x": x.shape, "l": labels.shape, "w": weights.shape}
    check_gradients(net_text(text, **shapes), {"x": x, "l": labels, "w": weights})


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1, 1)])
def test_a_weight_for_each_sample(shape):
    x, labels = sample()
    weights = np.array([0.5, 0, 2], np.float32)
    text = layer()
    expected = reference(x, labels, weights[:, None, None], 18)
    bottoms = {"x": x, "l": labels, "w": weights.reshape(shape)}
    np.testing.assert_allclose(run(text, **bottoms).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, **{name: values.shape for name, values in bottoms.items()}), bottoms)


def test_labels_that_are_ignored_have_no_weight():
    x, labels = sample((5, 4))
    labels[1] = 255
    weights = RANDOM.uniform(1, 2, 5).astype(np.float32)
    text = layer("loss_param { ignore_label: 255 }")
    counts = labels != 255
    expected = reference(x, np.where(counts, labels, 0), weights * counts, 4)
    np.testing.assert_allclose(run(text, x=x, l=labels, w=weights).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=(5,), w=(5,)), {"x": x, "l": labels, "w": weights})


def test_what_weighs_nothing_may_be_no_number():
    x, labels = sample((5, 4))
    x[2] = np.nan
    weights = np.array([1, 2, 0, 0.5, 1], np.float32)
    net = run(layer(), x=x, l=labels, w=weights)
    counts = weights > 0
    expected = reference(x[counts], labels[counts], weights[counts], 5)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5)
    net.program.backward()
    assert not np.isnan(net.blobs["x"].diff).any() and (net.blobs["x"].diff[2] == 0).all()


@pytest.mark.parametrize("params, number, weight", [("pos_mult: 4", 1, 4), ("pos_mult: 0.5 pos_cid: 3", 3, 0.5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weight_for_one_class(params, number, weight, weighted):
    """shicai's fork has pos_mult, a weight for the labels of class pos_cid."""
    x, labels = sample((6, 4))
    labels[:4] = range(4)
    weights = RANDOM.uniform(1, 2, 6).astype(np.float32)
    text = layer(f"softmax_param {{ {params} }}", weighted)
    each = np.where(labels == number, weight, 1) * (weights if weighted else 1)
    bottoms = {"x": x, "l": labels, **({"w": weights} if weighted else {})}
    np.testing.assert_allclose(run(text, **bottoms).blobs["y"].data, reference(x, labels, each, 6), rtol=1e-5)
    check_gradients(net_text(text, **{name: values.shape for name, values in bottoms.items()}), bottoms)


def test_errors():
    shapes = {"x": (3, 4, 2, 3), "l": (3, 2, 3)}
    message = "expected a weight for each label of (3, 2, 3) or each sample, got weights (2, 3)"
    assert message in error_of(layer(), **shapes, w=(2, 3))
    of_class = layer("softmax_param { pos_mult: 2 pos_cid: 4 }", False)
    assert "expected pos_cid from 0 to 3, the last class, got 4" in error_of(of_class, **shapes)
    both = layer("softmax_param { pos_mult: 2 class_weight: [1, 1, 1, 1] }", False)
    assert "expected pos_mult or a weight for each class, got both" in error_of(both, **shapes)
    plain = of_class.replace("WeightedSoftmaxWithLoss", "SoftmaxWithLoss")
    assert "pos_mult is for WeightedSoftmaxWithLoss; take it out of softmax_param" in error_of(plain, **shapes)
    alone = layer("softmax_param { pos_cid: 2 }", False)
    assert "pos_cid has no effect without pos_mult; add that or take it out" in error_of(alone, **shapes)
    negative = layer("softmax_param { pos_mult: -2 }", False)
    assert "expected weights of classes of 0 or more, got -2" in error_of(negative, **shapes)
