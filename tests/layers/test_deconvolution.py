import itertools

import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import (
    BLOCK,
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    needs_bf16,
    net_text,
    set_top_diff,
)

RANDOM = np.random.default_rng(3)


def layer(params, bottom="x"):
    return f"""layer {{ name: "layer" type: "Deconvolution" bottom: "{bottom}" top: "y" convolution_param {{ {params}
        weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "uniform" }} }} }}"""


def reference(x, weights, bias, stride, pad, dilation, group):
    """Computes the layer: each pixel of x adds its kernel to the top. Window arguments are lists, a number for each
    spatial axis."""
    kernel, outputs = weights.shape[2:], weights.shape[1] * group
    full = [s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    y = np.zeros((len(x), outputs, *full))
    for g in range(group):
        channels = slice(g * x.shape[1] // group, (g + 1) * x.shape[1] // group)
        tops = slice(g * weights.shape[1], (g + 1) * weights.shape[1])
        for at in itertools.product(*map(range, kernel)):
            window = [slice(a * d, a * d + s * (n - 1) + 1, s) for a, d, s, n in zip(at, dilation, stride, x.shape[2:])]
            taken = np.moveaxis(x[:, channels].astype(np.float64), 1, -1)
            added = np.moveaxis(taken @ weights[(channels, slice(None), *at)], -1, 1)
            y[(slice(None), tops, *window)] += added
    y = y[(..., *(slice(p, n - p) for p, n in zip(pad, full)))]
    return y + bias.reshape(-1, *[1] * len(kernel))


@golden(*(f"deconvolution_{name}" for name in ("basic", "dilation", "nobias", "pad_stride", "rect", "stride_3_2")))
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, params, window",
    [
        ((2, 3, 5), "num_output: 4 kernel_size: 3 stride: 2", ([2], [0], [1], 1)),
        ((2, 3, 5, 4), "num_output: 4 kernel_size: 4 stride: 2 pad: 1", ([2, 2], [1, 1], [1, 1], 1)),
        ((2, 16, 5, 4), "num_output: 32 kernel_size: 3", ([1, 1], [0, 0], [1, 1], 1)),
        ((2, 4, 5, 4), "num_output: 6 kernel_h: 3 kernel_w: 2 stride_w: 3 group: 2", ([1, 3], [0, 0], [1, 1], 2)),
        ((2, 6, 5, 4), "num_output: 6 kernel_size: 4 stride: 2 group: 6", ([2, 2], [0, 0], [1, 1], 6)),
        ((1, 2, 5, 4), "num_output: 3 kernel_size: 3 dilation: 2 dilation: 3", ([1, 1], [0, 0], [2, 3], 1)),
        ((1, 2, 3, 2, 4), "num_output: 3 kernel_size: 2 stride: 2", ([2] * 3, [0] * 3, [1] * 3, 1)),
    ],
)
def test_forward_and_gradients(shape, params, window):
    x = RANDOM.normal(size=shape).astype(np.float32)
    text = net_text(layer(params), x=shape)
    net = make_net(text)
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    weights = weights.reshape(net.graph.layers[-1].params[0].shape)
    np.testing.assert_allclose(net.forward()["y"], reference(x, weights, bias, *window), atol=1e-4)
    check_gradients(text, {"x": x})
    check_gradients(text, {"x": x}, accumulate=True)


@pytest.mark.parametrize("outputs", [8, 16, 40])
def test_blocked(outputs):
    net = run_blocked(layer(f"num_output: {outputs} kernel_size: 4 stride: 2 pad: 1", "c"), c=32)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    expected = reference(net.blobs["c"].data, weights, bias, [2, 2], [1, 1], [1, 1], 1)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-4)
    given = net.blobs["y"].diff
    np.testing.assert_allclose(net.params["layer"][1].diff.get(), given.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_weights_shared_with_the_convolution_that_it_reverses():
    """In a tied autoencoder both layers share the blob (16, 3, 3, 3)."""
    text = """
    layer { name: "down" type: "Convolution" bottom: "x" top: "h" param { name: "w" } convolution_param {
      num_output: 16 kernel_size: 3 bias_term: false weight_filler { type: "gaussian" std: 0.3 } } }
    layer { name: "up" type: "Deconvolution" bottom: "h" top: "y" param { name: "w" } convolution_param {
      num_output: 3 kernel_size: 3 bias_term: false } }"""
    x = RANDOM.normal(size=(2, 3, 6, 5)).astype(np.float32)
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_bilinear_filler_enlarges_a_plane():
    """FCN upsamples so. Inside, a linear function of the position stays linear."""
    text = """layer { name: "up" type: "Deconvolution" bottom: "x" top: "y" convolution_param { num_output: 3 group: 3
        kernel_size: 4 stride: 2 pad: 1 bias_term: false weight_filler { type: "bilinear" } } }"""
    net = make_net(net_text(text, x=(1, 3, 4, 5)))
    rows, columns = np.mgrid[:4, :5]
    net.blobs["x"].set(np.broadcast_to(3 * rows + columns, (1, 3, 4, 5)).astype(np.float32))
    rows, columns = (np.mgrid[:8, :10] - 0.5) / 2
    inside = (slice(None), slice(None), slice(1, -1), slice(1, -1))
    expected = np.broadcast_to(3 * rows + columns, (1, 3, 8, 10))
    np.testing.assert_allclose(net.forward()["y"][inside], expected[inside], rtol=1e-5)


@needs_bf16
@pytest.mark.parametrize("window", ["kernel_size: 4 stride: 2 pad: 1", "kernel_size: 4 stride: 2 stride: 100"])
def test_bf16(window):
    """oneDNN's kernels write outside of the blob if windows lie far apart; such layers run in float32."""
    text = net_text(layer(f"num_output: 16 {window}"), x=(2, 16, 5, 4))
    x = RANDOM.normal(size=(2, 16, 5, 4)).astype(np.float32)
    results = []
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.blobs["x"].set(x)
        y = net.forward()["y"]
        set_top_diff(net, "y", np.cos(np.arange(y.size)).reshape(y.shape))
        net.backward()
        results.append([y, net.blobs["x"].diff, *(tensor.diff.get() for tensor in net.params["layer"])])
    for narrow, wide in zip(results[1], results[0], strict=True):
        assert np.abs(narrow - wide).max() < 0.02 * np.abs(wide).max()


def test_flops():
    net = make_net(net_text(layer("num_output: 4 kernel_size: 3 stride: 2"), x=(2, 3, 5, 5)))
    assert net.graph.layers[-1].flops() == 2 * (2 * 3 * 5 * 5) * (4 * 9) + 2 * 4 * 11 * 11


def test_errors():
    message = error_of(layer("num_output: 4 kernel_size: 3 pad: 4"), x=(1, 2, 3, 9))
    assert "layer 'layer' (Deconvolution): expected a top of at least 1, got -3 on axis 2 of (1, 2, 3, 9)" in message
    assert "expected group to divide the num_output, 4" in error_of(
        layer("num_output: 4 kernel_size: 3 group: 3"), x=(1, 3, 3, 9)
    )


@needs_bf16
def test_depthwise_in_bf16_is_that_of_blocks():
    """FCN enlarges its scores so. oneDNN's first choice is a layout in which a channel does not fill a vector."""
    x, found = RANDOM.normal(size=(2, 21, 9, 8)).astype(np.float32), {}
    text = net_text(
        'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 21 kernel_size: 1 '
        'weight_filler { type: "msra" } } }' + layer("num_output: 21 kernel_size: 4 stride: 2 group: 21", bottom="c"),
        x=x.shape,
    )
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.blobs["x"].set(x)
        found[precision] = net.forward()["y"]
        assert BLOCK < 16 or net.tensors[net.graph.outputs[0]].layout == "aBcd16b"
    wanted = found["fp32"]
    np.testing.assert_allclose(found["bf16"], wanted, atol=0.02 * abs(wanted).max())
