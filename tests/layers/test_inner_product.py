import numpy as np
import pytest

from engine import proto
from tests.layers.blocked import CONVOLUTION
from tests.layers.harness import (
    PRECISIONS,
    check_golden,
    check_gradients,
    error_of,
    golden,
    inputs,
    make_net,
    needs_bf16,
    net_text,
    run,
    set_top_diff,
)

RANDOM = np.random.default_rng(9)


def layer(params):
    return f"""layer {{ name: "layer" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ {params}
        weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "uniform" }} }} }}"""


@golden("inner_product", "inner_product_axis2", "inner_product_nobias", "inner_product_transpose")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, axis",
    [((3, 4), 1), ((3, 4, 2, 5), 1), ((2, 3, 4, 5), -1), ((2, 3, 4), 0), ((7,), 0), ((2, 1, 2, 3, 2, 2), 1)],
)
@pytest.mark.parametrize("transpose", [False, True])
def test_forward_and_gradients(shape, axis, transpose):
    x = RANDOM.normal(size=shape).astype(np.float32)
    text = net_text(layer(f"num_output: 6 axis: {axis} transpose: {str(transpose).lower()}"), x=shape)
    net = make_net(text)
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    outer = shape[: axis % len(shape)]
    rows = x.reshape(int(np.prod(outer)), -1).astype(np.float64)
    expected = rows @ (weights if transpose else weights.T) + bias
    np.testing.assert_allclose(net.forward()["y"], expected.reshape(*outer, 6), atol=1e-5)
    check_gradients(text, {"x": x})


def test_behind_a_convolution():
    """The kernel takes the blocked blob as it is, but weights keep the order of the file."""
    text = """
    layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 16 kernel_size: 3
            weight_filler { type: "xavier" } } }
    """ + layer("num_output: 6").replace('bottom: "x"', 'bottom: "c"')
    x = RANDOM.normal(size=(2, 16, 5, 5)).astype(np.float32)
    net = make_net(net_text(text, x=x.shape))
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    top = net.forward()["y"]
    np.testing.assert_allclose(top, net.blobs["c"].data.reshape(2, -1) @ weights.reshape(6, -1).T + bias, atol=1e-4)
    check_gradients(net_text(text, x=x.shape), {"x": x})


@needs_bf16
def test_weights_behind_a_convolution_are_narrowed_once():
    """Weights are cast to bf16 once for forward and for the gradient of x, without a transposition."""
    text = """
    layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 64 kernel_size: 3
            weight_filler { type: "xavier" } } }
    layer { name: "ip" type: "InnerProduct" bottom: "c" top: "h" inner_product_param { num_output: 1024
            weight_filler { type: "xavier" } } }
    """ + layer("num_output: 4").replace('bottom: "x"', 'bottom: "h"')
    x = RANDOM.normal(size=(4, 16, 6, 6)).astype(np.float32)
    nets = {precision: make_net(net_text(text, x=x.shape), precision=precision) for precision in ("fp32", "bf16")}
    found = {}
    for precision, net in nets.items():
        for name, own in net.params.items():
            for mine, given in zip(own, nets["fp32"].params[name], strict=True):
                mine.set(given.get())
        net.blobs["x"].set(x)
        net.forward()
        net.blobs["y"].diff[...] = 1
        net.backward()
        found[precision] = [net.blobs["h"].data, net.blobs["x"].diff, net.params["ip"][0].diff.get()]
    for values, expected in zip(found["bf16"], found["fp32"], strict=True):
        np.testing.assert_allclose(values, expected, atol=0.03 * abs(expected).max())
    program = nets["bf16"].program
    size = 2 * 1024 * 1024  # bytes of the weights in bf16
    copies = [each[:3] for op in range(len(program)) for each in program.reorders(op) if each[3] == size]
    assert [backward for backward, *_ in copies] == [False]
    assert len({layout.split()[0] for layout in copies[0][1:]}) == 1


@pytest.mark.parametrize("bottom", ["x", "c"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_of_weights_over_images_add_up(precision, bottom):
    """The bottom is given row-major, or blocked by a convolution. Whole numbers are exact in bf16, too."""
    text = CONVOLUTION.format(name="c", channels=32) + layer("num_output: 40").replace('"x"', f'"{bottom}"')
    net = make_net(net_text(text, x=(4, 16, 3, 5)), precision=precision, accumulate=True)
    x, dy = (RANDOM.integers(-3, 4, shape).astype(np.float32) for shape in [(4, 16, 3, 5), (4, 40)])
    inputs(net)["x"].set(x)
    net.params["c"][0].set(RANDOM.integers(-1, 2, (32, 16, 1, 1)).astype(np.float32))
    net.forward()
    set_top_diff(net, "y", dy)
    net.program.zero_gradients()
    for times in (1, 2):
        net.program.backward()
        weights, bias = (tensor.diff.get() for tensor in net.params["layer"])
        np.testing.assert_array_equal(weights, times * dy.T @ net.blobs[bottom].data.reshape(4, -1))
        np.testing.assert_array_equal(bias, times * dy.sum(0))


@pytest.mark.parametrize("axis", [1, 2])
def test_gradients_of_weights_alone(axis):
    """The bottom is data, which has no gradient."""
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
    shapes = {"x": (2, 3, 4), "t": (*(2, 3, 4)[:axis], 5)}
    text = net_text(layer(f"num_output: 5 axis: {axis}") + loss, **shapes).replace("force_backward: true", "")
    check_gradients(text, {name: RANDOM.normal(size=shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("axis", [1, 2])
def test_intels_relu_in_the_layer(axis):
    x = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
    tops = []
    for more in ("", "relu: true"):
        net = make_net(net_text(layer(f"num_output: 5 axis: {axis} {more}"), x=x.shape))
        net.blobs["x"].set(x)
        tops.append(net.forward()["y"])
    np.testing.assert_allclose(tops[1], np.maximum(tops[0], 0), atol=1e-6)


def test_transposed_weights_where_others_are_row_major():
    text, x = net_text(layer("num_output: 6 transpose: true"), x=(2, 3, 4, 4)), RANDOM.normal(size=(2, 3, 4, 4))
    tops = []
    for plain in (False, True):
        net = make_net(text, plain_parameters=plain)
        net.blobs["x"].set(x.astype(np.float32))
        tops.append(net.forward()["y"])
    np.testing.assert_array_equal(tops[0], tops[1])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_of_weights_over_many_rows(precision, transpose, accumulate):
    """Sequences have so many rows that another kernel may compute the gradient. Small whole numbers are exact in bf16,
    too."""
    text = 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 20 axis: 2 '
    text = net_text(text + f"transpose: {transpose} }} }}", x=(130, 10, 24))
    net = make_net(text, precision=precision, accumulate=accumulate)
    generator = np.random.default_rng(1)
    x, dy = (generator.integers(-3, 4, (130, 10, count)).astype(np.float32) for count in (24, 20))
    inputs(net)["x"].set(x)
    for _ in range(2):
        net.forward()
        set_top_diff(net, "y", dy)
        net.program.backward()
    weights, bias = (tensor.diff.get() for tensor in net.params["ip"])
    times = 2 if accumulate else 1
    expected = times * np.einsum("tno,tni->oi", dy, x)
    np.testing.assert_array_equal(weights, expected.T if transpose == "true" else expected)
    np.testing.assert_array_equal(bias, times * dy.sum((0, 1)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_gradient_of_the_bias_is_exact_over_many_rows(precision):
    net = make_net(net_text(layer("num_output: 4"), x=(300_000, 8)), precision=precision)
    dy = RANDOM.integers(1, 256, (300_000, 4)) / 256  # of the same sign, and exact in bf16
    net.forward()
    set_top_diff(net, "y", dy.astype(np.float32))
    net.backward()
    np.testing.assert_allclose(net.params["layer"][1].diff.get(), dy.sum(0), rtol=1e-6)


def test_flops():
    net = make_net(net_text(layer("num_output: 6"), x=(3, 4, 5)))
    assert net.graph.layers[-1].flops() == 3 * 6 * (2 * 20 + 1)


def test_errors():
    assert "num_output is missing; give it, a number above 0" in error_of(layer(""), x=(2, 3))
    assert "expected num_output above 0, got 0" in error_of(layer("num_output: 0"), x=(2, 3))
    assert "axis 2 is out of range for a blob of 2 axes" in error_of(layer("num_output: 2 axis: 2"), x=(2, 3))


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_rows_of_length_1(phase):
    """In happynear's fork the weights themselves are scaled, and their gradient is that of the inner product alone."""
    text = """layer { name: "layer" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4
        normalize: true bias_term: false weight_filler { type: "gaussian" std: 2 } } }"""
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    net = run(text, phase, x=x)
    weights = net.params["layer"][0].get()
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(net.blobs["y"].data, x @ weights.T, rtol=1e-4, atol=1e-5)
    if phase == proto.TRAIN:
        given = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
        set_top_diff(net, "y", given)
        net.backward()
        np.testing.assert_allclose(net.params["layer"][0].diff.get(), given.T @ x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(net.blobs["x"].diff, given @ weights, rtol=1e-4, atol=1e-5)
    assert "expected normalize without transpose" in error_of(
        text.replace("num_output", "transpose: true num_output"), x=(3, 5)
    )
