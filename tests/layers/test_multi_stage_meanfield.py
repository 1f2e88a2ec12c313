import hashlib

import numpy as np
import pytest

from tests.layers.harness import (
    check_gradients,
    digests_by_threads,
    error_of,
    inputs,
    make_net,
    net_text,
    run,
    set_top_diff,
)

RANDOM = np.random.default_rng(41)
# A row at a multiple of theta_alpha lies on faces of simplices, where rounding decides. The first such row here is 237.
DEVIATIONS = "theta_alpha: 2.37 theta_beta: 0.8 theta_gamma: 1.37"


def layer(params=f"num_iterations: 3 {DEVIATIONS}"):
    return f"""layer {{ name: "layer" type: "MultiStageMeanfield" bottom: "u" bottom: "q" bottom: "x" top: "y"
        multi_stage_meanfield_param {{ {params} }} }}"""


def sample(samples=1, classes=3, height=4, width=5):
    """Returns unary scores, scores to begin with, and pictures. They do not depend on which tests run."""
    random = np.random.default_rng(41)
    scores = random.normal(size=(2, samples, classes, height, width)).astype(np.float32)
    return scores[0], scores[1], random.normal(size=(samples, 3, height, width)).astype(np.float32)


def kernel(features):
    """Returns the kernel (points, points) of the permutohedral lattice on features (points, d), by the definitions of
    its paper."""
    points, d = features.shape
    basis = np.zeros((d + 1, d))
    for j in range(d):
        basis[: j + 1, j], basis[j + 1, j] = 1, -(j + 1)
    basis /= np.sqrt((np.arange(d) + 1) * (np.arange(d) + 2))
    vertices, shares = {}, []
    # Pixels of the first column have equal coordinates, which matrix products may round apart.
    for x in np.round(features.astype(np.float64) @ basis.T * np.sqrt(2 / 3) * (d + 1), 9):
        origin = np.rint(x / (d + 1)) * (d + 1)
        excess = int(origin.sum() / (d + 1))  # how far rounding has left the plane
        greatest = np.argsort(origin - x, kind="stable")  # of equal differences the first
        for i in greatest[-excess:] if excess > 0 else greatest[:-excess]:
            origin[i] -= np.sign(excess) * (d + 1)
        greatest = np.argsort(origin - x, kind="stable")
        corners = np.tile(origin, (d + 1, 1))
        for k in range(d + 1):
            corners[k] += k
            corners[k, greatest[d + 1 - k :]] -= d + 1
        system = np.vstack([corners.T, np.ones(d + 1)])
        weights = np.linalg.lstsq(system, np.append(x, 1), rcond=None)[0]
        assert weights.min() > -1e-9  # the point lies in the simplex
        keys = [tuple(map(int, corner)) for corner in corners]
        shares.append([(vertices.setdefault(key, len(vertices)), w) for key, w in zip(keys, weights, strict=True)])
    splat = np.zeros((len(vertices), points))
    for n, each in enumerate(shares):
        for vertex, weight in each:
            splat[vertex, n] += weight
    blurred = splat.copy()
    for axis in range(d + 1):
        step = np.full(d + 1, -1)
        step[axis] = d
        before = blurred.copy()
        for key, vertex in vertices.items():
            for sign in (-1, 1):
                other = vertices.get(tuple(int(v) for v in np.array(key) + sign * step))
                if other is not None:
                    blurred[vertex] += 0.5 * before[other]
    return splat.T @ blurred


def reference(unary, first, picture, params, iterations, alpha=2.37, beta=0.8, gamma=1.37):
    """Computes the layer for one sample, in float64."""
    classes, height, width = unary.shape
    rows, columns = np.divmod(np.arange(height * width), width)
    place = np.stack([columns, rows], 1)
    both = np.concatenate([place / alpha, picture.reshape(3, -1).T / beta], 1)
    means = [matrix / matrix.sum(1, keepdims=True) for matrix in (kernel(place / gamma), kernel(both))]
    u, q = (scores.reshape(classes, -1).astype(np.float64) for scores in (unary, first))
    for _ in range(iterations):
        p = np.exp(q) / np.exp(q).sum(0)
        message = sum(weights @ (p @ mean.T) for weights, mean in zip(params[:2], means, strict=True))
        q = u - params[2] @ message
    return q.reshape(unary.shape)


@pytest.mark.parametrize(
    "iterations, classes, height, width",
    [
        (1, 3, 4, 5),
        (3, 3, 4, 5),
        (2, 8, 4, 5),
        (2, 21, 3, 5),
        (2, 2, 31, 37),  # more points and vertices than a thread takes at once
    ],
)
def test_forward(iterations, classes, height, width):
    unary, first, pictures = sample(2, classes, height, width)
    net = make_net(
        net_text(layer(f"num_iterations: {iterations} {DEVIATIONS}"), u=unary.shape, q=first.shape, x=pictures.shape)
    )
    params = [RANDOM.normal(size=(classes, classes)) for _ in range(3)]
    for parameter, values in zip(net.params["layer"], params, strict=True):
        parameter.set(values[None, None].astype(np.float32))
    for name, values in {"u": unary, "q": first, "x": pictures}.items():
        inputs(net)[name].set(values)
    net.forward()
    for n in range(2):
        expected = reference(unary[n], first[n], pictures[n], params, iterations)
        np.testing.assert_allclose(net.blobs["y"].data[n], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("classes", [3, 9])
def test_gradients(classes):
    unary, first, pictures = sample(2, classes, height=3, width=4)
    text = net_text(layer(f"num_iterations: 2 {DEVIATIONS}"), u=unary.shape, q=first.shape, x=pictures.shape)
    check_gradients(text, {"u": unary, "q": first, "x": pictures}, ignore={"x"})


@pytest.mark.parametrize(
    "params, spatial, bilateral",
    [
        ("", [3, 3, 3], [5, 5, 5]),
        ("spatial_filter_weight: 2 bilateral_filter_weight: 4", [2, 2, 2], [4, 4, 4]),
        ('spatial_filter_weights_str: "1 2 3" bilateral_filter_weights_str: "4 5.5 6"', [1, 2, 3], [4, 5.5, 6]),
    ],
)
def test_parameters_at_the_beginning(params, spatial, bilateral):
    unary, first, pictures = sample()
    net = run(layer(f"num_iterations: 2 {params}"), u=unary, q=first, x=pictures)
    found = [parameter.get() for parameter in net.params["layer"]]
    for values, diagonal in zip(found, (spatial, bilateral, [-1, -1, -1]), strict=True):
        assert values.shape == (1, 1, 3, 3) and (values[0, 0] == np.diag(diagonal)).all()


def test_nets_of_the_first_version():
    """CRF-RNN's own nets are in the older format."""
    bottoms = " ".join(
        f'input: "{name}" ' + " ".join(f"input_dim: {dim}" for dim in shape)
        for name, shape in {"u": (1, 2, 3, 4), "q": (1, 2, 3, 4), "x": (1, 3, 3, 4)}.items()
    )
    text = f"""{bottoms} layers {{ name: "layer" type: MULTI_STAGE_MEANFIELD bottom: "u" bottom: "q" bottom: "x"
        top: "y" blobs_lr: 0.001 blobs_lr: 0.001 blobs_lr: 0.01 multi_stage_meanfield_param {{ num_iterations: 10
        compatibility_mode: POTTS threshold: 2 theta_alpha: 160 theta_beta: 3 theta_gamma: 3 spatial_filter_weight: 3
        bilateral_filter_weight: 5 }} }}"""
    net = make_net(text)
    assert net.blobs["y"].shape == (1, 2, 3, 4)
    assert [parameter.get()[0, 0, 1, 1] for parameter in net.params["layer"]] == [3, 5, -1]


def test_pictures_that_are_no_numbers():
    unary, first, pictures = sample()
    pictures[0, 0, 0], pictures[0, 1, 1, 0] = np.inf, np.nan
    net = run(layer("num_iterations: 2 theta_beta: 1e-30"), u=unary, q=first, x=pictures)
    assert np.isfinite(net.blobs["y"].data).all()


def digest():
    """Returns a hash of all that a forward and a backward pass compute."""
    unary, first, pictures = (np.sin(np.arange(size)) for size in (2 * 5 * 60 * 50, 2 * 5 * 60 * 50, 2 * 3 * 60 * 50))
    net = run(
        layer(f"num_iterations: 2 {DEVIATIONS}"),
        u=unary.reshape(2, 5, 60, 50),
        q=3 * first.reshape(2, 5, 60, 50),
        x=4 * pictures.reshape(2, 3, 60, 50),
    )
    set_top_diff(net, "y", np.cos(np.arange(unary.size)).reshape(2, 5, 60, 50))
    net.backward()
    given = [parameter.diff.get() for parameter in net.params["layer"]]
    given += [net.blobs["y"].data, net.blobs["u"].diff, net.blobs["q"].diff]
    return hashlib.sha256(b"".join(each.tobytes() for each in given)).hexdigest()


def test_results_do_not_depend_on_the_number_of_threads():
    assert len(digests_by_threads("tests.layers.test_multi_stage_meanfield", "127")) == 1


def test_errors():
    shapes = {"u": (1, 3, 4, 5), "q": (1, 3, 4, 5), "x": (1, 3, 4, 5)}
    message = (
        "expected scores (N, C, H, W), twice, and pictures (N, 3, H, W), got (1, 3, 4, 5), (1, 3, 4, 5) and (1, 1,"
    )
    assert message in error_of(layer(), **{**shapes, "x": (1, 1, 4, 5)})
    assert "expected num_iterations from 1 to 1000, got 0" in error_of(layer("num_iterations: 0"), **shapes)
    assert "expected theta_beta above 0, got -1" in error_of(layer("theta_beta: -1"), **shapes)
    wide = {"u": (1, 1, 20000, 20000), "q": (1, 1, 20000, 20000), "x": (1, 3, 20000, 20000)}
    assert "expected at most 357913941 pixels, got 20000 x 20000" in error_of(layer(), **wide)
    message = "expected 3 numbers, one for each class, in spatial_filter_weights_str, '1 2'"
    assert message in error_of(layer('spatial_filter_weights_str: "1 2"'), **shapes)
    assert message.replace("1 2'", "a b c'") in error_of(layer('spatial_filter_weights_str: "a b c"'), **shapes)
