import numpy as np
import pytest

from engine.net import Counters
from tests.layers.harness import error_of, make_net


def layer(params, tops=("a", "b")):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "DummyData" {tops} dummy_data_param {{ {params} }} }}'


def test_constants():
    net = make_net(layer("shape { dim: 2 dim: 3 } shape { dim: 2 } data_filler { value: 5 } data_filler { value: 1 }"))
    tops = net.forward()
    np.testing.assert_array_equal(tops["a"], np.full((2, 3), 5))
    np.testing.assert_array_equal(tops["b"], np.ones(2))


def test_older_shapes_and_zeros_without_a_filler():
    tops = make_net(layer("num: 2 num: 4 channels: 3 height: 1 width: 5")).forward()
    np.testing.assert_array_equal(tops["a"], np.zeros((2, 3, 1, 5)))
    np.testing.assert_array_equal(tops["b"], np.zeros((4, 3, 1, 5)))


def test_random_values_are_new_at_every_step_and_the_same_in_every_run():
    text = layer('shape { dim: 100 } data_filler { type: "gaussian" } data_filler { type: "uniform" max: 2 }')
    net, again = make_net(text), make_net(text)
    first = {name: values.copy() for name, values in net.forward().items()}
    second = net.forward(Counters(1))
    assert not np.array_equal(first["a"], second["a"]) and not np.array_equal(first["b"], second["b"])
    np.testing.assert_array_equal(again.forward(Counters(1))["a"], second["a"])
    assert not np.array_equal(make_net(text, seed=2).forward(Counters(1))["a"], second["a"])
    assert 0 <= second["b"].min() and 1.5 < second["b"].max() < 2


@pytest.mark.parametrize(
    "params, message",
    [
        ("", "expected 1 or 2 of dummy_data_param.num for 2 tops, got 0"),
        (
            "shape { dim: 1 } shape { dim: 1 } shape { dim: 1 }",
            "expected 1 or 2 of dummy_data_param.shape for 2 tops, got 3",
        ),
        ("shape { dim: 0 }", "expected dims above 0, got (0,)"),
        ("shape { dim: 1048576 } per_sample: true", "per_sample: expected at most 65536 samples, got 1048576"),
        ("shape { } per_sample: true", "per_sample: expected a first axis, of samples, got a shape without axes"),
    ],
)
def test_errors(params, message):
    assert message in error_of(layer(params))


def test_values_of_a_sample_are_its_own_whatever_the_batch():
    text = 'shape {{ dim: {} dim: 3 }} data_filler {{ type: "gaussian" }} per_sample: true'
    whole, half = (make_net(layer(text.format(n), ("a",))) for n in (4, 2))
    both = whole.forward(Counters(7, first_sample=20))["a"].copy()
    np.testing.assert_array_equal(half.forward(Counters(3, first_sample=22))["a"], both[2:])
    assert len(np.unique(both)) == 12
