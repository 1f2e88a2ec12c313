import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text, run

RANDOM = np.random.default_rng(2)


def layer(params="", tops=("y",)):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "SoftmaxWithLoss" bottom: "x" bottom: "l" {tops} {params} }}'


def sample(shape, axis=1):
    x = RANDOM.normal(size=shape).astype(np.float32)
    label_shape = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    labels = RANDOM.integers(0, shape[axis], label_shape).astype(np.float32)
    labels.flat[0] = 2  # the label that some tests ignore occurs
    return x, labels


def reference(x, labels, axis=1, ignore=None, smoothing=0.0, normalization="VALID", fixed=1.0):
    """Returns the loss and the probabilities."""
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    logs = x - x.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    own = np.take_along_axis(logs, labels.astype(int)[..., None], -1)[..., 0]
    losses = -(1 - smoothing) * own - smoothing * logs.mean(-1)
    valid = labels != ignore if ignore is not None else np.ones_like(labels, bool)
    outer = np.prod(np.moveaxis(x, -1, axis).shape[:axis])
    divisor = {"VALID": max(1, valid.sum()), "FULL": labels.size, "BATCH_SIZE": outer, "NONE": 1, "PRE_FIXED": fixed}
    return (losses * valid).sum() / divisor[normalization], np.moveaxis(np.exp(logs), -1, axis)


@golden(
    "softmax_loss",
    "softmax_loss_batch_size",
    "softmax_loss_full",
    "softmax_loss_none",
    "softmax_loss_pixels",
    "softmax_loss_valid",
    "softmax_loss_weight",
)
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("normalization", ["VALID", "FULL", "BATCH_SIZE", "NONE", "PRE_FIXED"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_forward_and_gradients(normalization, smoothing):
    x, labels = sample((3, 5, 2, 2))
    text = layer(
        f"loss_weight: 2 loss_param {{ ignore_label: 2 normalization: {normalization} pre_fixed_normalizer: 7 "
        f"label_smoothing: {smoothing} }}"
    )
    loss, _ = reference(x, labels, 1, 2, smoothing, normalization, 7.0)
    np.testing.assert_allclose(run(text, x=x, l=labels).blobs["y"].data, loss, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), {"x": x, "l": labels})


@pytest.mark.parametrize("shape, axis", [((4, 3), 1), ((2, 3, 4), -1), ((6, 5, 6), 0)])
def test_axis(shape, axis):
    x, labels = sample(shape, axis)
    labels = labels.reshape(shape[0], -1) if axis == 0 else labels  # the axes of both bottoms before `axis` must agree
    text = layer(f"softmax_param {{ axis: {axis} }}")
    expected = reference(x, labels.reshape(np.delete(shape, axis)), axis)[0]
    np.testing.assert_allclose(run(text, x=x, l=labels).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), {"x": x, "l": labels})


@pytest.mark.parametrize("normalize, mode", [("true", "VALID"), ("false", "BATCH_SIZE")])
def test_older_normalize(normalize, mode):
    x, labels = sample((2, 4, 3, 3))
    text = layer(f"loss_param {{ ignore_label: 2 normalize: {normalize} }}")
    np.testing.assert_allclose(
        run(text, x=x, l=labels).blobs["y"].data, reference(x, labels, 1, 2, 0, mode)[0], rtol=1e-5
    )


def test_second_top_holds_the_probabilities():
    x, labels = sample((4, 5))
    net = run(layer(tops=("y", "p")), x=x, l=labels)
    loss, probabilities = reference(x, labels)
    np.testing.assert_allclose(net.blobs["y"].data, loss, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["p"].data, probabilities, atol=1e-6)
    text = net_text(layer(tops=("y", "p")), x=x.shape, l=labels.shape)
    check_gradients(text, {"x": x, "l": labels}, ignore={"p"})


def test_a_loss_without_a_top():
    """As in Caffe, the loss counts but is no output of the net."""
    x, labels = sample((4, 5))
    net, named = run(layer(tops=()), x=x, l=labels), run(layer(), x=x, l=labels)
    assert list(net.outputs()) == [] and list(named.outputs()) == ["y"]
    net.backward()
    named.backward()
    assert named.blobs["x"].diff.any()
    np.testing.assert_array_equal(net.blobs["x"].diff, named.blobs["x"].diff)


def test_extreme_scores_stay_finite():
    x = np.array([[1e4, -1e4], [1e4, -1e4]], np.float32)
    net = run(layer(), x=x, l=np.array([0, 1], np.float32))
    assert 0 < net.blobs["y"].data < 100
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, [[0, 0], [0.5, -0.5]], atol=1e-6)


def test_all_labels_ignored():
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    net = run(layer("loss_param { ignore_label: 255 }"), x=x, l=np.full(3, 255, np.float32))
    net.backward()
    assert net.blobs["y"].data == 0 and not net.blobs["x"].diff.any()


def test_an_ignored_label_hides_what_is_no_number():
    net = run(
        layer("loss_param { ignore_label: 2 }"), x=np.array([[np.nan] * 3, [1, 2, 3]], np.float32), l=np.float32([2, 0])
    )
    net.backward()
    assert np.isfinite(net.blobs["y"].data)
    np.testing.assert_array_equal(net.blobs["x"].diff[0], 0)
    assert np.isfinite(net.blobs["x"].diff).all()


def test_weights_of_classes_and_smoothing():
    x, labels = sample((4, 3))
    text = layer("softmax_param { class_weight: [0.5, 0, 3] } loss_param { label_smoothing: 0.2 normalization: NONE }")
    expected = sum(
        weight * reference(x[labels == label], labels[labels == label], smoothing=0.2, normalization="NONE")[0]
        for label, weight in enumerate([0.5, 0, 3])
    )
    np.testing.assert_allclose(run(text, x=x, l=labels).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_not_a_number_shows():
    x = np.array([[np.nan, 0], [1, 2]], np.float32)
    assert np.isnan(run(layer(), x=x, l=np.zeros(2, np.float32)).blobs["y"].data)


@pytest.mark.parametrize("label, shown", [(4, "4"), (-1, "-1"), (np.nan, "nan"), (1e9, "1000000000")])
def test_a_label_that_is_no_class(label, shown):
    net = make_net(net_text(layer(), x=(3, 4), l=(3,)))
    net.blobs["l"].set(np.array([0, 1, label], np.float32))
    with pytest.raises(DataError, match=rf"layer 'layer': label {shown} at position 2 is outside \[0, 4\)"):
        net.forward()


def test_wrong_shapes():
    assert "expected 3 labels, one for each position of (3, 4) outside axis 1, got labels of shape (3, 2)" in error_of(
        layer(), x=(3, 4), l=(3, 2)
    )
    assert "same first axis, got (3, 4) and (2,)" in error_of(layer(), x=(3, 4), l=(2,))
    assert "expected pre_fixed_normalizer above 0" in error_of(
        layer("loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 0 }"), x=(3, 4), l=(3,)
    )
    assert "expected label_smoothing in [0, 1), got 1" in error_of(
        layer("loss_param { label_smoothing: 1 }"), x=(3, 4), l=(3,)
    )


@pytest.mark.parametrize("shape, axis", [((6, 5), 1), ((3, 5, 2, 2), 1), ((2, 3, 4), -1)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_distributions(shape, axis, smoothing):
    """Such distributions come from mix_param, but here not all have a sum of 1."""
    x, targets = sample(shape, axis)[0], RANDOM.uniform(0, 1, shape).astype(np.float32)
    text = layer(f"softmax_param {{ axis: {axis} }} loss_weight: 2 loss_param {{ label_smoothing: {smoothing} }}")
    z, t = (np.moveaxis(each.astype(np.float64), axis, -1) for each in (x, targets))
    logs = z - z.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    t = (1 - smoothing) * t + smoothing * t.sum(-1, keepdims=True) / shape[axis]
    net = run(text, x=x, l=targets)
    np.testing.assert_allclose(net.blobs["y"].data, -(t * logs).sum() * shape[axis] / x.size, rtol=1e-5)
    check_gradients(net_text(text, x=shape, l=shape), {"x": x, "l": targets})


def test_distributions_of_one_class_each_are_labels():
    x, labels = sample((6, 5))
    one_hot = np.eye(5, dtype=np.float32)[labels.astype(int)]
    losses = [run(layer(), x=x, l=each).blobs["y"].data for each in (labels, one_hot)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("params", ["loss_param { ignore_label: 2 }", "softmax_param { class_weight: [1, 2, 3] }"])
def test_distributions_have_no_class_to_ignore(params):
    assert "labels that are distributions have no class to ignore" in error_of(layer(params), x=(4, 3), l=(4, 3))
