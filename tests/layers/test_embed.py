import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text, set_top_diff

RANDOM = np.random.default_rng(1)
LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'


def layer(param="num_output: 4 input_dim: 7", more=""):
    return f"""layer {{ name: "layer" type: "Embed" bottom: "i" top: "y" {more} embed_param {{ {param}
        weight_filler {{ type: "uniform" }} bias_filler {{ type: "uniform" }} }} }}"""


@golden("embed")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("shape, inputs, width", [((6,), 3, 2), ((3, 5), 7, 4), ((40, 20), 11, 130)])
def test_forward_and_gradients(shape, inputs, width, bias):
    rows = RANDOM.integers(0, inputs, shape)
    text = net_text(layer(f"num_output: {width} input_dim: {inputs} bias_term: {bias}"), i=shape)
    net = make_net(text)
    net.blobs["i"].set(rows)
    weights, *rest = (tensor.get() for tensor in net.params["layer"])
    np.testing.assert_array_equal(net.forward()["y"], weights[rows] + (rest[0] if rest else 0))
    given = RANDOM.normal(size=(*shape, width)).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    expected = np.zeros(weights.shape)
    np.add.at(expected, rows.ravel(), given.reshape(-1, width))
    gradients = [tensor.diff.get() for tensor in net.params["layer"]]
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-4, atol=1e-4)
    if rest:
        np.testing.assert_allclose(gradients[1], given.reshape(-1, width).sum(0), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_the_bias_is_exact_over_many_rows():
    net = make_net(net_text(layer(), i=(300_000,)))
    dy = RANDOM.uniform(0, 1, (300_000, 4)).astype(np.float32)
    net.forward()
    set_top_diff(net, "y", dy)
    net.backward()
    np.testing.assert_allclose(net.params["layer"][1].diff.get(), dy.sum(0, np.float64), rtol=1e-6)


def test_differences():
    """Compared with differences. Row numbers are not moved, since they have no gradient, and one row is read by
    nobody."""
    text = net_text(layer() + LOSS, i=(2, 3), t=(2, 3, 4)).replace("force_backward: true", "")
    bottoms = {"i": np.array([[0, 1, 1], [6, 4, 1]]), "t": RANDOM.normal(size=(2, 3, 4))}
    check_gradients(text, bottoms)
    check_gradients(text, bottoms, accumulate=True)


def test_a_number_outside():
    net = make_net(net_text(layer(), i=(2, 2)))
    for wrong, text in ((7, "7"), (-1, "-1"), (np.nan, "nan")):
        net.blobs["i"].set(np.array([[0, 1], [wrong, 0]]))
        with pytest.raises(DataError, match=rf"layer 'layer': index {text} at position 2 is outside \[0, 7\)"):
            net.forward()


def test_errors():
    assert "layer 'layer' (Embed): num_output is missing" in error_of(layer("input_dim: 3"), i=(2,))
    assert "expected input_dim above 0, got 0" in error_of(layer("num_output: 3 input_dim: 0"), i=(2,))
