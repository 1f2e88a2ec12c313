import numpy as np
import pytest

from engine import proto
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(45)
TRAIN, TEST = proto.TRAIN, proto.TEST


def layer(params, top="y", bottom="x"):
    return f'layer {{ name: "layer" type: "Noise" bottom: "{bottom}" top: "{top}" noise_param {{ {params} }} }}'


NORMAL = [
    ("gaussian_std: 2 bias: 5", 5, 2, False),
    ("gaussian_std: 2 uniform_range: 9", 0, 2, False),  # as in the fork, gaussian_std counts if both are given
    ("noise_type: GAUSSIAN mean: -1 std_var: 0.5", -1, 0.5, False),
    ("noise_type: GAUSSIAN", 0, 1, False),
    ('filler_param { type: "gaussian" mean: 1 std: 3 }', 1, 3, True),
    ('filler_param { type: "gaussian" mean: 1 } std: 30', 1, 30, True),
    ("sigma: 0.25", 0, 0.25, True),
]
EVEN = [
    ("uniform_range: 2 bias: 1", -1, 3, False),
    ("noise_type: UNIFORM", -1, 1, False),
    ("noise_type: UNIFORM lower: 0 upper: 3", 0, 3, False),
    ('filler_param { type: "uniform" min: -4 max: 0 }', -4, 0, True),
]


def noise(params, phase=TRAIN, shape=(50, 4, 10, 25)):
    x = RANDOM.normal(size=shape).astype(np.float32)
    net = run(layer(params), phase, x=x)
    return net.blobs["y"].data.astype(np.float64) - x


@pytest.mark.parametrize("params, mean, deviation, at_test", NORMAL)
def test_normal(params, mean, deviation, at_test):
    """Mean, deviation and the shares within 1, 2 and 3 deviations are those of a normal distribution. Neighbours along
    each axis are uncorrelated."""
    drawn = (noise(params) - mean) / deviation
    assert abs(drawn.mean()) < 0.02 and abs(drawn.std() - 1) < 0.02
    shares = [(np.abs(drawn) < limit).mean() for limit in (1, 2, 3)]
    np.testing.assert_allclose(shares, [0.6827, 0.9545, 0.9973], atol=0.006)
    for axis in range(4):
        first, second = np.delete(drawn, -1, axis), np.delete(drawn, 0, axis)
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02
    assert noise(params, TEST).any() == at_test


@pytest.mark.parametrize("params, lower, upper, at_test", EVEN)
def test_even(params, lower, upper, at_test):
    drawn = noise(params)
    assert lower - 1e-5 <= drawn.min() and drawn.max() <= upper + 1e-5
    counts, _ = np.histogram(drawn, bins=5, range=(lower, upper))
    assert counts.min() > 0.95 * counts.mean()
    assert noise(params, TEST).any() == at_test


def test_each_step_has_its_own():
    x = np.zeros((4, 300), np.float32)
    net = run(layer("sigma: 1"), x=x)
    first = net.blobs["y"].data.copy()
    assert len(np.unique(first)) > 1000
    np.testing.assert_array_equal(net.forward()["y"], first)  # the same step
    again = net.forward((1, 0, 4))["y"].copy()
    assert (again != first).all()
    # the numbers belong to samples, on whichever rank
    np.testing.assert_array_equal(net.forward((1, 2, 2))["y"][:2], again[2:])


def test_each_step_has_one_of_several_deviations():
    net = run(layer('filler_param { type: "gaussian" } std: [1, 10, 100]'), x=np.zeros((20, 500), np.float32))
    found = [net.forward((step, 0, 20))["y"].std() for step in range(40)]
    near = [min((1, 10, 100), key=lambda each: abs(each / found_ - 1)) for found_ in found]
    np.testing.assert_allclose(found, near, rtol=0.05)
    assert set(near) == {1, 10, 100}


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("params", ["gaussian_std: 2", "sigma: 1"])
def test_gradients(params, phase):
    x = RANDOM.normal(size=(3, 4, 2)).astype(np.float32)
    check_gradients(net_text(layer(params), x=x.shape), {"x": x}, phase=phase)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_in_place(phase):
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    alone, net = run(layer("gaussian_std: 2"), phase, x=x), run(layer("gaussian_std: 2", "x"), phase, x=x)
    np.testing.assert_array_equal(net.blobs["x"].data, alone.blobs["y"].data)
    slopes = RANDOM.normal(size=x.shape).astype(np.float32)
    set_top_diff(net, "x", slopes)
    net.backward()
    np.testing.assert_array_equal(inputs(net)["x"].diff, slopes)


@pytest.mark.parametrize("channels", [24, 5])
def test_in_any_layout(channels):
    """The same numbers as in row-major order are drawn, and none for the padding of channels."""
    net = run_blocked(layer("gaussian_std: 1", bottom="c"), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    alone = make_net(net_text(layer("gaussian_std: 1"), x=c.data.shape))
    alone.blobs["x"].set(c.data)
    np.testing.assert_allclose(alone.forward()["y"], y.data, rtol=1e-6)
    np.testing.assert_array_equal(c.diff, y.diff)


def test_errors():
    forms = (
        "gaussian_std or uniform_range, bias; noise_type or std_var or upper or lower, mean; filler_param, std; sigma"
    )
    wanted = f"expected in noise_param the fields of one fork ({forms}), got "
    for params, got in (
        ("", "nothing"),
        ("mean: 1 std: 2", "mean, std"),  # in that fork all batches have the same noise
        ("sigma: 1 bias: 2", "bias, sigma"),
        ("prob: 0.5", "prob"),  # a field of transform_param
    ):
        assert wanted + got in error_of(layer(params), x=(2, 3))
    below = "expected a standard deviation of 0 or more, got -1 around 0"
    assert below in error_of(layer("sigma: -1"), x=(2, 3))
    assert "a range of 0 or more, got -1 around 1" in error_of(layer("noise_type: UNIFORM lower: 2 upper: 0"), x=(2, 3))
    filler = 'expected a filler_param of type gaussian or uniform, got "xavier"'.replace('"', "'")
    assert filler in error_of(layer('filler_param { type: "xavier" }'), x=(2, 3))
    assert "expected a bottom of at least 1 axis, got a scalar" in error_of(layer("sigma: 1"), x=())
