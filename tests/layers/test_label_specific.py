import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, set_top_diff

RANDOM = np.random.default_rng(5)
PARAMS = {
    "LabelSpecificAdd": "label_specific_add_param",
    "LabelSpecificMargin": "label_specific_margin_param",
    "LabelSpecificAffine": "label_specific_affine_param",
    "LabelSpecificRescale": "label_specific_rescale_param",
}
LABELS = np.array([0, 3, 1, 2, 3])


def layer(kind, params, top='top: "y" top: "numbers"'):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "t" {top} {PARAMS[kind]} {{ {params} }} }}'


def scores(kind):
    low, high = (0.3, 3) if kind == "LabelSpecificAffine" else (-0.9, 0.9)
    return RANDOM.uniform(low, high, (5, 4)).astype(np.float32)


def margin(x, degrees):
    return np.cos(np.arccos(x) + np.radians(degrees))


def affine(x, scale, bias, power):
    return np.minimum(scale * np.pi ** (1 - power) * x**power + np.radians(bias), np.pi - 1e-4)


# layer, parameters, iteration, the numbers of the step, the own score, what other scores are multiplied by
CASES = [
    ("LabelSpecificAdd", "bias: -0.35", 0, [-0.35], lambda x: np.where(x > 0.35, x - 0.35, x), 1),
    (
        "LabelSpecificAdd",
        "bias: 9 bias_base: -0.6 bias_gamma: 0.5 bias_power: 0.5 bias_min: -2 bias_max: 1 iteration: 2",
        3,
        [-0.6 + 3.5**0.5 - 1],
        lambda x: np.where(x > -(-0.6 + 3.5**0.5 - 1), x - 0.6 + 3.5**0.5 - 1, x),
        1,
    ),
    ("LabelSpecificAdd", "bias_base: 4 bias_max: 0.5", 7, [0.5], lambda x: np.where(x > -0.5, x + 0.5, x), 1),
    ("LabelSpecificMargin", "margin_base: 8 gamma: 0", 3, [8], lambda x: margin(x, 8), 1),
    ("LabelSpecificMargin", "margin_base: 2 gamma: 0.5 power: 2 iteration: 1", 3, [10], lambda x: margin(x, 10), 1),
    ("LabelSpecificMargin", "margin_base: 2 margin_max: 6", 30, [6], lambda x: margin(x, 6), 1),
    ("LabelSpecificMargin", "", 30, [0], lambda x: x, 1),
    ("LabelSpecificAffine", "scale_base: 1.2 scale_max: 2", 4, [1.2, 0, 1], lambda x: affine(x, 1.2, 0, 1), 1),
    (
        "LabelSpecificAffine",
        "scale_base: 0.5 scale_gamma: 1 bias_base: 5 bias_gamma: 2 bias_max: 20 power_base: 1 power_gamma: 0.25 "
        "power_min: 0.1 iteration: 1",
        0,
        [1, 7, 0.8],
        lambda x: affine(x, 1, 7, 0.8),
        1,
    ),
    ("LabelSpecificRescale", "positive_weight: 0.5 negative_weight: 1.5", 0, [0.5], lambda x: x / 2, 1.5),
    ("LabelSpecificRescale", "positive_weight: 3 for_ip: true", 0, [3], lambda x: np.where(x > 0, 3 * x, x), 1),
    ("LabelSpecificRescale", "positive_weight: 0.5 bias_fix: true", 0, [0.5], lambda x: x / 2 + 0.5, 1),
    (
        "LabelSpecificRescale",
        "positive_weight: 1.5 power_on_positive: true",
        0,
        [1.5],
        lambda x: np.sign(x) * np.abs(x) ** 1.5,
        1,
    ),
    (
        "LabelSpecificRescale",
        "positive_weight_base: 2 gamma: 0.25 power: 1 iteration: 2 positive_weight_min: 0.1",
        1,
        [1],
        lambda x: x,
        1,
    ),
    ("LabelSpecificRescale", "positive_weight_base: 2 positive_weight_max: 1.25", 0, [1.25], lambda x: 1.25 * x, 1),
]


def run(kind, params, x, iteration, phase=proto.TRAIN):
    net = make_net(net_text(layer(kind, params), x=x.shape, t=LABELS.shape), phase)
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(LABELS)
    net.forward((iteration, 0, None))
    return net


@pytest.mark.parametrize("kind, params, iteration, numbers, own, factor", CASES)
def test_formula(kind, params, iteration, numbers, own, factor):
    x = scores(kind)
    net = run(kind, params, x, iteration)
    expected = x.astype(np.float64) * factor
    rows = np.arange(len(x))
    expected[rows, LABELS] = own(x[rows, LABELS].astype(np.float64))
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.blobs["numbers"].data, numbers, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind, params", [(case[0], case[1]) for case in CASES if case[2] == 0])
def test_gradients(kind, params):
    x = scores(kind)
    x[np.abs(x) < 0.1] = 0.2
    x[np.abs(x - 0.35) < 0.05] = 0.5
    x = np.minimum(x, 2.2)  # angles that stay below pi with the margin
    text = net_text(layer(kind, params, 'top: "y"'), x=x.shape, t=LABELS.shape)
    check_gradients(text, {"x": x, "t": LABELS}, step=2e-3, tolerance=5e-3)


@pytest.mark.parametrize("kind, params", [(case[0], case[1]) for case in CASES])
def test_nothing_changes_in_test(kind, params):
    x = scores(kind)
    np.testing.assert_allclose(run(kind, params, x, 0, proto.TEST).blobs["y"].data, x, rtol=1e-6)


def test_rescale_in_test():
    x = scores("LabelSpecificRescale")
    net = run("LabelSpecificRescale", "positive_weight: 0.5 rescale_test: true", x, 0, proto.TEST)
    rows = np.arange(len(x))
    np.testing.assert_allclose(net.blobs["y"].data[rows, LABELS], x[rows, LABELS] / 2)


def test_the_margin_is_a_parameter():
    """A file of weights holds the margin, which counts unless margin_base is given."""
    x = scores("LabelSpecificMargin")
    net = make_net(net_text(layer("LabelSpecificMargin", ""), x=x.shape, t=LABELS.shape))
    net.params["layer"][0].set(np.array([20], np.float32))
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(LABELS)
    net.forward()
    rows = np.arange(len(x))
    np.testing.assert_allclose(net.blobs["y"].data[rows, LABELS], margin(x[rows, LABELS], 20), rtol=1e-4, atol=1e-5)


def test_the_margin_at_the_ends_of_a_cosine():
    """Scores of 1, of -1 and, by rounding, beyond, and one whose angle exceeds pi with the margin."""
    x = np.zeros((5, 4), np.float32)
    rows = np.arange(len(x))
    x[rows, LABELS] = [1, -1, 1.000001, -0.995, 0.9]
    net = make_net(net_text(layer("LabelSpecificMargin", "margin_base: 20 margin_max: 20"), x=x.shape, t=LABELS.shape))
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(LABELS)
    net.forward((0, 0, None))
    set_top_diff(net, "y", np.ones_like(x))
    net.backward()
    inside = np.clip(x[rows, LABELS].astype(np.float64), -1 + 1e-4, 1 - 1e-4)
    np.testing.assert_allclose(net.blobs["y"].data[rows, LABELS], margin(inside, 20), rtol=1e-4)
    slope = np.cos(np.radians(20)) + np.sin(np.radians(20)) * 0.9 / np.sqrt(1 - 0.9**2)
    np.testing.assert_allclose(inputs(net)["x"].diff[rows, LABELS], [2, 0, 2, 0, slope], rtol=1e-5)


def test_errors():
    for kind, params, message in (
        ("LabelSpecificMargin", "type: SOFT", "expected neither type SOFT nor auto_tune"),
        ("LabelSpecificAffine", "auto_tune: true", "expected no auto_tune"),
    ):
        assert message in error_of(layer(kind, params), x=(5, 4), t=(5,))
    assert "expected one label for each sample of (5, 4), got (6,)" in error_of(
        layer("LabelSpecificAdd", ""), x=(5, 4), t=(6,)
    )
