import numpy as np
import pytest

from tests.layers.harness import check_golden, error_of, golden, run

RANDOM = np.random.default_rng(1)


def layer(param=""):
    return f'layer {{ name: "layer" type: "ArgMax" bottom: "x" top: "y" argmax_param {{ {param} }} }}'


def largest(x, top_k):
    """Returns places and values of the largest elements along the last axis. Of equal values the last comes first."""
    places = np.flip(np.argsort(x, -1, kind="stable"), -1)[..., :top_k]
    return places, np.take_along_axis(x, places, -1)


@golden("argmax", "argmax_axis")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("shape, axis", [((7,), 0), ((3, 4), 1), ((2, 5, 4, 60), 1), ((2, 3, 4), -1)])
def test_along_an_axis(shape, axis, top_k):
    x = RANDOM.integers(0, 4, shape).astype(np.float32)  # with ties
    places, values = (np.moveaxis(each, -1, axis) for each in largest(np.moveaxis(x, axis, -1), top_k))
    text = f"axis: {axis} top_k: {top_k}"
    np.testing.assert_array_equal(run(layer(text), x=x).blobs["y"].data, places)
    np.testing.assert_array_equal(run(layer(text + " out_max_val: true"), x=x).blobs["y"].data, values)


def test_what_is_not_a_number_gives_way_to_the_next():
    """A NaN takes the place of the value before it, and the value after it that of the NaN, also where several places
    are searched side by side."""
    nan = np.nan
    rows = np.array([[nan, 1, nan], [2, nan, 1], [nan, 3, 1], [1, 2, nan]], np.float32)
    places = [2, 2, 1, 2]
    np.testing.assert_array_equal(run(layer("axis: 1"), x=rows).blobs["y"].data[:, 0], places)
    np.testing.assert_array_equal(run(layer("axis: 1"), x=rows.T[None]).blobs["y"].data[0, 0], places)


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
def test_of_each_sample(shape, top_k):
    x = RANDOM.normal(size=shape).astype(np.float32)
    places, values = largest(x.reshape(shape[0], -1), top_k)
    rest = (1,) * (len(shape) - 3)
    y = run(layer(f"top_k: {top_k}"), x=x).blobs["y"].data
    np.testing.assert_array_equal(y, places.reshape(shape[0], 1, top_k, *rest))
    y = run(layer(f"top_k: {top_k} out_max_val: true"), x=x).blobs["y"].data
    np.testing.assert_array_equal(y, np.stack([places, values], 1).reshape(shape[0], 2, top_k, *rest))


def test_errors():
    message = "layer 'layer' (ArgMax): expected top_k from 1 to {}, the number of values to choose from, got {}"
    assert message.format(12, 13) in error_of(layer("top_k: 13"), x=(2, 3, 4))
    assert message.format(3, 4) in error_of(layer("top_k: 4 axis: 1"), x=(2, 3, 4))
    assert message.format(12, 0) in error_of(layer("top_k: 0"), x=(2, 3, 4))
