import numpy as np

from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text

RANDOM = np.random.default_rng(1)


def layer(dims=(3, 4), name="layer", top="y", more=""):
    dims = " ".join(f"dim: {dim}" for dim in dims)
    return f"""layer {{ name: "{name}" type: "Parameter" top: "{top}" {more}
        parameter_param {{ shape {{ {dims} }} }} }}"""


LOSS = 'layer {{ name: "l{0}" type: "EuclideanLoss" bottom: "{0}" bottom: "t" top: "loss{0}" }}'


@golden("parameter")
def test_golden(case):
    check_golden(case)


def test_learns():
    text = net_text(layer() + LOSS.format("y"), t=(3, 4)).replace("force_backward: true", "")
    values = RANDOM.normal(size=(3, 4))
    check_gradients(text, {"t": RANDOM.normal(size=(3, 4))}, params={"layer": [values]})


def test_shared():
    """Two layers share a parameter, whose gradient is the sum of theirs."""
    more = 'param { name: "p" }'
    text = layer(more=more) + layer(name="other", top="z", more=more) + LOSS.format("y") + LOSS.format("z")
    check_gradients(net_text(text, t=(3, 4)).replace("force_backward: true", ""), {"t": RANDOM.normal(size=(3, 4))})


def test_a_top_changed_in_place_leaves_the_parameter():
    text = layer() + 'layer { name: "p" type: "Power" bottom: "y" top: "y" power_param { shift: 1 } }'
    net = make_net(text, keep_all=False)
    for _ in range(2):
        np.testing.assert_array_equal(net.forward()["y"], 1)
    np.testing.assert_array_equal(net.params["layer"][0].get(), 0)


def test_errors():
    assert "layer 'layer' (Parameter): expected dims above 0, got (3, 0)" in error_of(layer((3, 0)))
