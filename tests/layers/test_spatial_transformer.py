import numpy as np
import pytest

from engine.config import parse_net
from engine.errors import ConfigError
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(4)


def layer(params=""):
    return f"""layer {{ name: "layer" type: "SpatialTransformer" bottom: "x" bottom: "theta" top: "y"
        st_param {{ {params} }} }}"""


def place(theta, row, column, size):
    return (theta @ [2 * row - 1, 2 * column - 1, 1] + 1) / 2 * size


def reference(x, theta, height, width):
    """Computes the layer for theta (N, 2, 3). As in Kaichun Mo's layer, rows come first, and 1 is one pixel beyond the
    last."""
    y = np.zeros((*x.shape[:2], height, width))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for n, i, j in np.ndindex(len(x), height, width):
        row, column = place(theta[n], i / height, j / width, x.shape[2:])
        if not (-1 < row < x.shape[2] and -1 < column < x.shape[3]):
            continue
        top, left = int(np.floor(row)), int(np.floor(column))
        window = padded[n, :, top + 1 : top + 3, left + 1 : left + 3]
        down, across = row - top, column - left
        y[n, :, i, j] = np.array([1 - down, down]) @ window @ np.array([1 - across, across])
    return y


def values(turns=0.7):
    """Returns maps that turn, stretch and shift, and partly lead out of the plane."""
    return RANDOM.normal(size=(2, 3, 5, 6)), np.eye(2, 3) + RANDOM.uniform(-turns, turns, (2, 2, 3))


def smooth(height, width):
    """Returns maps that lead between pixels, since derivatives jump at pixels."""
    while True:
        theta = np.eye(2, 3) + RANDOM.uniform(-0.3, 0.3, (2, 3))
        places = np.array([place(theta, i / height, j / width, (5, 6)) for i, j in np.ndindex(height, width)])
        if np.abs(places - np.round(places)).min() > 0.01:
            return theta.ravel()


@pytest.mark.parametrize("params, size", [("", (5, 6)), ("output_H: 7 output_W: 4", (7, 4)), ("output_W: 1", (5, 1))])
def test_formula(params, size):
    x, theta = values()
    expected = reference(x, theta, *size)
    assert expected.any() and not expected.all()
    y = run(layer(params), x=x, theta=theta.reshape(2, 6)).blobs["y"].data
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


def test_the_map_of_nothing_copies():
    x, _ = values()
    theta = np.tile([1.0, 0, 0, 0, 1, 0], (2, 1))
    np.testing.assert_allclose(run(layer(), x=x, theta=theta).blobs["y"].data, x, rtol=1e-5, atol=1e-5)


def test_numbers_that_the_text_gives():
    x, theta = values()
    theta[:, 0, 0], theta[:, 0, 1], theta[:, 1, 0], theta[:, 1, 1] = 0.5, 0, 0.25, 0.5
    params = "theta_1_1: 0.5 theta_1_2: 0 theta_2_1: 0.25 theta_2_2: 0.5"
    y = run(layer(params), x=x, theta=theta[:, :, 2]).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, theta, 5, 6), rtol=1e-3, atol=1e-4)
    theta = np.array([[0, 0.01], [0.4, -0.39]])  # between pixels
    check_gradients(net_text(layer(params), x=x.shape, theta=(2, 2)), {"x": x, "theta": theta}, step=1e-3)


@pytest.mark.parametrize("params, size", [("", (5, 6)), ("output_H: 3 output_W: 4", (3, 4))])
def test_gradients(params, size):
    given = {"x": RANDOM.normal(size=(2, 3, 5, 6)), "theta": np.stack([smooth(*size), smooth(*size)])}
    check_gradients(net_text(layer(params), x=(2, 3, 5, 6), theta=(2, 6)), given, step=1e-3)


def test_no_gradient_of_pixels_without_to_compute_dU():
    x, theta = values(0.3)
    net = run(layer("to_compute_dU: false"), x=x, theta=theta.reshape(2, 6))
    set_top_diff(net, "y", np.ones(x.shape))
    net.backward()
    assert net.blobs["theta"].diff.any() and not (net.blobs["x"].diff is not None and net.blobs["x"].diff.any())


def test_numbers_that_are_none_lead_nowhere():
    x, theta = values()
    theta[0], theta[1] = np.nan, np.inf
    net = run(layer(), x=x, theta=theta.reshape(2, 6))
    set_top_diff(net, "y", np.ones(x.shape))
    net.backward()
    assert not any(net.blobs[name].diff.any() for name in ("x", "theta")) and not net.blobs["y"].data.any()


def test_errors():
    shapes = {"x": (2, 3, 5, 6), "theta": (2, 6)}
    message = error_of(layer("theta_1_3: 0 theta_2_3: 0"), **shapes)
    assert "layer 'layer' (SpatialTransformer): expected a theta (2, 4), six numbers for each sample less 2" in message
    assert "expected a theta (3, 6)" in error_of(layer(), x=(3, 3, 5, 6), theta=(2, 6))
    assert "expected transform_type affine" in error_of(layer('transform_type: "translation"'), **shapes)
    assert "sampler_type bilinear" in error_of(layer('sampler_type: "bicubic"'), **shapes)
    assert "expected output_H and output_W of at least 1" in error_of(layer("output_H: 0"), **shapes)
    assert "expected a bottom (N, C, H, W), got (2, 3)" in error_of(layer(), x=(2, 3), theta=(2, 6))
    with pytest.raises(ConfigError, match="de_transform is RMPE's and is not supported"):
        parse_net(layer("de_transform: true"), "n.prototxt")
    make_net(net_text(layer("de_transform: false"), **shapes))
