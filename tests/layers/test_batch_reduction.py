import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(8)


def layer(params="", reduction="operation: MEAN axis: 1"):
    return f"""layer {{ name: "layer" type: "BatchReduction" bottom: "x" top: "y"
        batch_reduction_param {{ reduction_param {{ {reduction} }} {params} }} }}"""


def of_terms(terms, operation, k):
    """Reduces terms along the first axis."""
    if operation == "TOPK":
        return np.sort(terms, 0)[-k:].mean(0)
    return terms.sum(0) if operation == "SUM" else terms.mean(0)


def distinct(*shape):
    """Returns values so far apart that the steps of the gradient checker do not change their order."""
    return (RANDOM.permutation(np.prod(shape)).reshape(shape) / 10 - 3).astype(np.float32)


@pytest.mark.parametrize("operation, k", [("SUM", 0), ("MEAN", 0), ("TOPK", 3), ("TOPK", 1)])
@pytest.mark.parametrize("shape, axis", [((2, 5, 3), 1), ((4, 3), -1), ((6, 2, 2), 0), ((5,), 0)])
def test_one_group(shape, axis, operation, k):
    x = distinct(*shape)
    text = layer(reduction=f"operation: {operation} axis: {axis} {f'k: {k}' if k else ''}")
    net = run(text, x=x)
    expected = of_terms(np.moveaxis(x.astype(np.float64), axis, 0), operation, k or 1)
    assert net.blobs["y"].shape == expected.shape
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5, atol=1e-6)
    check_gradients(net_text(text, x=shape), {"x": x})


@pytest.mark.parametrize("operation", ["SUM", "MEAN"])
def test_levels(operation):
    x = distinct(2, 14, 5)
    text = layer("level: 1 level: 2 level: 3", f"operation: {operation} axis: 1")
    terms = np.moveaxis(x.astype(np.float64), 1, 0)
    groups = [of_terms(each, operation, 0) for each in (terms[:1], terms[1:5], terms[5:])]
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, np.stack(groups, 1), rtol=1e-5, atol=1e-6)
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_one_level_has_an_axis_unless_it_is_1():
    x = distinct(2, 4, 3)
    means = x.mean(1)
    np.testing.assert_allclose(run(layer("level: 2"), x=x).blobs["y"].data, means[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(layer("level: 1"), x=x).blobs["y"].data, means, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operation, k", [("SUM", 0), ("MEAN", 0), ("TOPK", 2)])
def test_diagonals(operation, k):
    x = distinct(2, 4, 4, 3)
    text = layer("pos: true", f"operation: {operation} axis: 1 {f'k: {k}' if k else ''}")
    terms = np.stack([x[:, i, i] for i in range(4)]).astype(np.float64)
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, of_terms(terms, operation, k), rtol=1e-5, atol=1e-6)
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_large_and_blocked():
    text = layer(reduction="operation: MEAN axis: 2").replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(2, 3, 37, 41), c=40)
    np.testing.assert_allclose(net.blobs["y"].data, net.blobs["c"].data.mean(2), rtol=1e-4, atol=1e-5)


def test_what_is_not_a_number_stays_one():
    x = distinct(1, 4, 3)
    x[0, 1, 1] = np.nan
    y = run(layer(reduction="operation: TOPK axis: 1 k: 2"), x=x).blobs["y"].data
    assert np.isnan(y).tolist() == [[False, True, False]]


@pytest.mark.parametrize(
    "text, shape, message",
    [
        (layer(), (), "layer 'layer' (BatchReduction): expected a bottom of at least 1 axis, got a scalar"),
        (layer(reduction="operation: SUMSQ"), (3, 4), "expected operation SUM, MEAN or TOPK, got SUMSQ"),
        (layer(reduction="coeff: 2"), (3, 4), "expected coeff of 1, for the fork does not read it, got 2"),
        (layer(reduction="operation: SUM k: 2"), (3, 4), "k is for operation TOPK, not for SUM: take it out"),
        (layer(reduction="k: 1"), (3, 4), "k is for operation TOPK, not for SUM: take it out"),
        (layer("level: 1 level: 2"), (3, 4), "squares add up to the size of axis 1, 4, got [1, 2]"),
        (layer("level: 0 level: 2"), (3, 4), "squares add up to the size of axis 1, 4, got [0, 2]"),
        (layer("pos: true"), (3, 4, 5), "axes 1 and 2 of one size, got levels [] and a bottom (3, 4, 5)"),
        (layer("pos: true"), (3, 4), "axes 1 and 2 of one size, got levels [] and a bottom (3, 4)"),
        (
            layer(reduction="operation: TOPK axis: 1 k: 5"),
            (3, 4),
            "k from 1 to 4, the number of terms, got levels [] an",
        ),
        (
            layer("level: 1 level: 1", "operation: TOPK axis: 1"),
            (3, 2),
            "one level at most, and k from 1 to 1, the num",
        ),
    ],
)
def test_errors(text, shape, message):
    assert message in error_of(text, x=shape)


def test_top_k_is_no_reduction():
    text = 'layer { name: "layer" type: "Reduction" bottom: "x" top: "y" reduction_param { operation: TOPK k: 2 } }'
    assert "expected operation SUM, ASUM, SUMSQ or MEAN; TOPK and its k are for BatchReduction" in error_of(
        text, x=(3,)
    )
