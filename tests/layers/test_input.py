import numpy as np
import pytest

from tests.layers.harness import error_of, make_net


def layer(tops, shapes):
    tops = " ".join(f'top: "{top}"' for top in tops)
    shapes = " ".join("shape {" + " ".join(f"dim: {dim}" for dim in shape) + "}" for shape in shapes)
    return f'layer {{ name: "layer" type: "Input" {tops} input_param {{ {shapes} }} }}'


def test_a_shape_for_each_top_or_one_for_all():
    net = make_net(layer(["a", "b"], [(2, 3), (4,)]))
    assert net.blobs["a"].shape == (2, 3) and net.blobs["b"].shape == (4,)
    net = make_net(layer(["a", "b"], [(2, 3)]))
    assert net.blobs["a"].shape == net.blobs["b"].shape == (2, 3)


def test_values_reach_the_net():
    net = make_net(layer(["a"], [(2, 3)]))
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    net.blobs["a"].set(values)
    np.testing.assert_array_equal(net.forward()["a"], values)


@pytest.mark.parametrize(
    "tops, shapes, message",
    [
        (["a"], [], "its shape is not given; set it, as with --set"),
        (["a", "b", "c"], [(1,), (2,)], "expected 1 or 3 shapes in input_param for 3 tops, got 2"),
        (["a"], [(2, 0)], "expected dims above 0, got (2, 0)"),
        (["a"], [(0, 2)], "expected dims above 0, got (0, 2); where there is nothing, give one dummy row"),
    ],
)
def test_errors(tops, shapes, message):
    assert message in error_of(layer(tops, shapes))
