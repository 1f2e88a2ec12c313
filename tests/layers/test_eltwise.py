import numpy as np
import pytest

from engine.net import PASSES
from tests.layers.blocked import run_blocked
from tests.layers.harness import (
    PRECISIONS,
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    needs_bf16,
    net_text,
    run,
    set_top_diff,
)

RANDOM = np.random.default_rng(1)


def layer(param="", bottoms="a b", top="y"):
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "layer" type: "Eltwise" {names} top: "{top}" eltwise_param {{ {param} }} }}'


RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "z" }'
PARAMS = ["", "coeff: 1 coeff: -0.5 coeff: 1", "coeff: 2 coeff: 3 coeff: 4", "operation: PROD", "operation: MAX"]
PARAMS += ["operation: MAX coeff: 5 coeff: 6 coeff: 7"]  # MAX ignores coeff


def random_bottoms(names, shape):
    """Returns values further apart than the steps of the gradient checker, which matters for MAX."""
    values = RANDOM.permutation(len(names) * int(np.prod(shape))).reshape(len(names), *shape) * 0.05 - 2
    return dict(zip(names, values))


def reference(param, x, given):
    """Returns the top and the gradients of the bottoms x."""
    x = np.stack(x).astype(np.float64)
    if "PROD" in param:
        return x.prod(0), [given * np.delete(x, i, 0).prod(0) for i in range(len(x))]
    if "MAX" in param:
        which = np.where(x[0] > x[1], 0, 1)
        for i in range(2, len(x)):
            which = np.where(x[i] > np.take_along_axis(x, which[None], 0)[0], i, which)
        return x.max(0), [given * (which == i) for i in range(len(x))]
    coefficients = [float(word) for word in param.split()[1::2]] or [1.0] * len(x)
    return sum(c * each for c, each in zip(coefficients, x)), [c * given for c in coefficients]


def check_against_reference(net, param, names):
    y = net.blobs["y"]
    expected, gradients = reference(param, [net.blobs[name].data for name in names], y.diff)
    relative = 1e-5 if y.tensor.dtype == "f32" else 2**-8  # only the results are rounded to bf16
    np.testing.assert_allclose(y.data, expected, relative, 1e-5)
    for name, gradient in zip(names, gradients):
        np.testing.assert_allclose(net.blobs[name].diff, gradient, relative, 1e-5, err_msg=name)


@golden("eltwise_sum", "eltwise_coeff", "eltwise_prod", "eltwise_max")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("param", PARAMS)
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4)])
def test_gradients(param, shape):
    bottoms = random_bottoms("abc", shape)
    check_gradients(net_text(layer(param, "a b c"), **dict.fromkeys("abc", shape)), bottoms)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("param", PARAMS)
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(param, channels, precision):
    for names in ("abc",) if "coeff" in param else ("ab", "abc", "abcd"):
        net = run_blocked(layer(param, " ".join(names)), precision=precision, **dict.fromkeys(names, channels))
        assert net.blobs["y"].tensor.dtype == ("f32" if precision == "fp32" else "bf16")
        check_against_reference(net, param, names)


@needs_bf16
def test_one_bottom_in_bf16():
    net = run_blocked(layer("coeff: -2", "a"), precision="bf16", a=40)
    assert net.blobs["y"].tensor.dtype == "bf16" and not net.blobs["y"].tensor.is_plain
    check_against_reference(net, "coeff: -2", "a")


@pytest.mark.parametrize("param", PARAMS)
def test_row_major_and_blocked_together(param):
    plain = {"a": RANDOM.normal(size=(2, 40, 5, 6)).astype(np.float32)}
    net = run_blocked(layer(param, "a b c"), plain=plain, b=40, c=40)
    assert not net.blobs["y"].tensor.is_plain
    check_against_reference(net, param, "abc")


@pytest.mark.parametrize("param", PARAMS)
@pytest.mark.parametrize("bottoms", ["x x x", "x a x"])
def test_one_blob_several_times(param, bottoms):
    shape = (2, 300)
    values = random_bottoms("xa", shape)
    if "MAX" in param and bottoms == "x x x":
        return  # equal bottoms have no derivative
    check_gradients(net_text(layer(param, bottoms), **{name: shape for name in "xa" if name in bottoms}),
                    {name: values[name] for name in "xa" if name in bottoms})  # fmt: skip


def test_the_gradient_of_equals_goes_where_caffe_sends_it():
    shape = (1, 3)
    net = run(layer("operation: MAX", "a b c"), **{name: np.zeros(shape, np.float32) for name in "abc"})
    set_top_diff(net, "y", np.ones(shape))
    net.backward()
    assert [net.blobs[name].diff.sum() for name in "abc"] == [0, 3, 0]


def test_another_blob_has_the_maximum_now():
    net = make_net(net_text(layer("operation: MAX", "a b c"), a=(2,), b=(2,), c=(2,)))
    for largest in "cab":
        for name in "abc":
            net.blobs[name].set(np.full(2, name == largest, np.float32))
        net.forward()
        set_top_diff(net, "y", np.ones(2))
        net.backward()
        assert [net.blobs[name].diff.sum() for name in "abc"] == [2 * (name == largest) for name in "abc"]


@pytest.mark.parametrize("param", PARAMS[:3])
@pytest.mark.parametrize("blocked", [True, False])
def test_relu_behind_a_sum_is_fused(param, blocked):
    """The gradients of the bottoms may be shared, scaled or in other layouts, in each combination."""
    text = layer(param, "a b c") + RELU
    plain = {"a": RANDOM.normal(size=(2, 40, 5, 6)).astype(np.float32)}
    if blocked:
        net = run_blocked(text, plain=plain, b=40, c=40)
        values = {name: net.blobs[name].data for name in "abc"}
    else:
        values = {name: RANDOM.normal(size=(2, 40, 5, 6)).astype(np.float32) for name in "abc"}
        net = run(text, **values)
        set_top_diff(net, "z", RANDOM.normal(size=(2, 40, 5, 6)))
        net.backward()
    assert "y" not in net.blobs
    z = net.blobs["z"]
    expected, gradients = reference(param, [values[name] for name in "abc"], z.diff)
    np.testing.assert_allclose(z.data, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)
    for name, gradient in zip("abc", gradients):
        np.testing.assert_allclose(net.blobs[name].diff, np.where(z.data > 0, gradient, 0), rtol=1e-5, atol=1e-5)


def test_residual_block():
    """x + f(x) and then a ReLU, twice; computed with memory plan and fusion, and without."""
    convolution = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" convolution_param {{
        num_output: 32 kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} }} }}"""
    relu = 'layer {{ name: "relu_{0}" type: "ReLU" bottom: "{0}" top: "{0}" }}'
    text = convolution.format("s", "x")
    for i in "12":
        below = "s" if i == "1" else "sum1"
        text += convolution.format(f"f{i}", below) + relu.format(f"f{i}")
        text += layer("", f"{below} f{i}", f"sum{i}").replace('"layer"', f'"sum{i}"') + relu.format(f"sum{i}")
    x = RANDOM.normal(size=(2, 3, 6, 6)).astype(np.float32)
    results = []
    for options in ({}, {"keep_all": False}, {"passes": PASSES - {"fuse"}, "keep_all": False}, {"passes": frozenset()}):
        net = make_net(net_text(text, x=x.shape), **options)
        net.blobs["x"].set(x)
        set_top_diff(net, "sum2", np.ones(net.forward()["sum2"].shape))
        net.backward()
        results.append([net.outputs()["sum2"], *(tensors[0].diff.get() for _, tensors in sorted(net.params.items()))])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("operation", ["PROD", "SUM coeff: 2 coeff: 3", "MAX"])
def test_gradients_lie_apart(operation, precision):
    """One gradient is that of an input, which no layer reads; the other that of a convolution's top in another
    layout."""
    for names in ("a y", "y a"):
        text = layer(f"operation: {operation}", names, "z") + RELU.replace("ReLU", "TanH").replace('"y"', '"z"')
        plain = {"a": RANDOM.normal(size=(2, 32, 5, 6)).astype(np.float32)}
        run_blocked(text, plain=plain, precision=precision, y=32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("operation", ["PROD", "SUM coeff: 2 coeff: 3 coeff: 4", "MAX"])
def test_a_gradient_lies_over_that_of_the_top(operation, precision):
    """If nobody keeps the top's gradient, the last gradient is written over it, after the others."""
    text = layer(f"operation: {operation}", "a b c") + RELU.replace("ReLU", "TanH")
    run_blocked(text, precision=precision, a=40, b=40, c=40)


def test_errors():
    assert "expected bottoms of one shape, (2, 3), got (2, 4) for bottom 1" in error_of(layer(), a=(2, 3), b=(2, 4))
    assert "expected one coeff for each of 2 bottoms or none, got 1" in error_of(layer("coeff: 1"), a=(2, 3), b=(2, 3))
    assert "expected coeff with operation SUM only" in error_of(
        layer("operation: PROD coeff: 1 coeff: 2"), a=(2, 3), b=(2, 3)
    )
