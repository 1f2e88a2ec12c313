import itertools

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import PASSES, Net, NetOptions
from tests.layers.harness import (
    BLOCK,
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

RANDOM = np.random.default_rng(8)


def layer(params):
    return f"""layer {{ name: "layer" type: "Convolution" bottom: "x" top: "y" convolution_param {{ {params}
        weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "uniform" }} }} }}"""


def reference(x, weights, bias, stride, pad, dilation, group):
    """Computes sums over the positions of the kernel, for any number of spatial axes. Window arguments are lists."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in pad)])
    kernel = weights.shape[2:]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    y = np.zeros((len(x), len(weights), *out))
    for g in range(group):
        channels = slice(g * weights.shape[1], (g + 1) * weights.shape[1])
        outputs = slice(g * len(weights) // group, (g + 1) * len(weights) // group)
        for at in itertools.product(*map(range, kernel)):
            window = [slice(a * d, a * d + s * n, s) for a, d, s, n in zip(at, dilation, stride, out)]
            taken = np.moveaxis(x[(slice(None), channels, *window)], 1, -1)
            y[:, outputs] += np.moveaxis(taken @ weights[(outputs, slice(None), *at)].T, -1, 1)
    return y + bias.reshape(-1, *[1] * len(kernel))


@golden(
    *(f"convolution_{name}" for name in ("1d", "3d", "basic", "depthwise", "dilation", "group2", "group3", "group4")),
    *(f"convolution_{name}" for name in ("nobias", "one", "pad_stride", "rect", "stride_3_2")),
)
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, params, window",
    [
        ((2, 3, 7), "num_output: 4 kernel_size: 3 stride: 2", ([2], [0], [1], 1)),
        ((2, 3, 7, 6), "num_output: 4 kernel_size: 3 pad: 1", ([1, 1], [1, 1], [1, 1], 1)),
        ((2, 16, 7, 6), "num_output: 32 kernel_size: 3 pad: 1 stride: 2", ([2, 2], [1, 1], [1, 1], 1)),
        ((2, 4, 7, 6), "num_output: 6 kernel_size: 3 kernel_size: 2 group: 2", ([1, 1], [0, 0], [1, 1], 2)),
        ((1, 2, 9, 8), "num_output: 3 kernel_h: 2 kernel_w: 3 stride_w: 2 pad_h: 1", ([1, 2], [1, 0], [1, 1], 1)),
        ((1, 2, 9, 8), "num_output: 3 kernel_size: 3 dilation: 2 dilation: 3", ([1, 1], [0, 0], [2, 3], 1)),
        (
            (1, 2, 4, 5, 3),
            "num_output: 3 kernel_size: 2 stride: 1 stride: 2 stride: 1",
            ([1, 2, 1], [0] * 3, [1] * 3, 1),
        ),
    ],
)
def test_forward_and_gradients(shape, params, window):
    x = RANDOM.normal(size=shape).astype(np.float32)
    text = net_text(layer(params), x=shape)
    net = make_net(text)
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    np.testing.assert_allclose(net.forward()["y"], reference(x, weights, bias, *window), atol=1e-4)
    check_gradients(text, {"x": x})


@pytest.mark.skipif(BLOCK < 16, reason="only AVX-512 has blocks of 16 channels")
@pytest.mark.parametrize(
    "channels, outputs, kernel, innermost",
    [(20, 50, 5, True), (17, 70, 5, True), (32, 64, 5, False), (20, 50, 3, False), (4, 20, 5, False)],
)
def test_few_channels_for_blocks_are_innermost(channels, outputs, kernel, innermost):
    """Blocks of 16 channels would be half padding, and the kernel is large, so channels are innermost. The results are
    the same."""
    x = RANDOM.normal(size=(2, channels, 12, 12)).astype(np.float32)
    text = net_text(layer(f"num_output: {outputs} kernel_size: {kernel}"), x=x.shape)
    net = make_net(text)
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    window = ([1, 1], [0, 0], [1, 1], 1)
    y = net.forward()["y"]
    np.testing.assert_allclose(y, reference(x, weights, bias, *window), rtol=1e-4, atol=1e-3)
    assert (net.tensors[net.graph.outputs[0]].layout == "acdb") == innermost
    given = RANDOM.normal(size=y.shape).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    turned = np.ascontiguousarray(weights.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])
    wanted = reference(given, turned, np.zeros(channels), [1, 1], [kernel - 1] * 2, [1, 1], 1)
    np.testing.assert_allclose(net.blobs["x"].diff, wanted, rtol=1e-4, atol=1e-3)
    sums = reference(x.swapaxes(0, 1), given.swapaxes(0, 1), np.zeros(outputs), *window).swapaxes(0, 1)
    np.testing.assert_allclose(net.params["layer"][0].diff.get(), sums, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(net.params["layer"][1].diff.get(), given.sum((0, 2, 3)), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(BLOCK < 16, reason="only AVX-512 has blocks of 16 channels")
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(
    "channels, outputs, group, innermost",
    [
        (60, 24, 3, True),
        (24, 60, 3, True),
        (72, 72, 3, True),
        (48, 24, 3, False),
        (64, 64, 8, False),
        (64, 64, 4, False),
        (34, 51, 17, False),
    ],
)
def test_groups_of_few_channels_are_innermost(channels, outputs, group, innermost, kernel):
    """For groups of few channels oneDNN would take blocks of 4 or 8. Except for groups of 8, channels are innermost
    instead. The results are the same."""
    x = RANDOM.normal(size=(2, channels, 9, 8)).astype(np.float32)
    net = make_net(net_text(layer(f"num_output: {outputs} kernel_size: {kernel} group: {group}"), x=x.shape))
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    y = net.forward()["y"]
    np.testing.assert_allclose(y, reference(x, weights, bias, [1, 1], [0, 0], [1, 1], group), rtol=1e-4, atol=1e-4)
    if (channels // group, outputs // group) != (2, 3):  # for which oneDNN itself has channels innermost
        assert (net.tensors[net.graph.outputs[0]].layout == "acdb") == innermost
    given = RANDOM.normal(size=y.shape).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    parts = [np.ascontiguousarray(part.swapaxes(0, 1)[..., ::-1, ::-1]) for part in np.split(weights, group)]
    wanted = reference(given, np.concatenate(parts), np.zeros(channels), [1, 1], [kernel - 1] * 2, [1, 1], group)
    np.testing.assert_allclose(net.blobs["x"].diff, wanted, rtol=1e-4, atol=1e-3)


@needs_bf16
@pytest.mark.parametrize("group", [8, 16])
def test_groups_in_bf16(group):
    """In bf16 groups of 8 channels are innermost, too, as those of 4 are."""
    x = RANDOM.normal(size=(2, 64, 9, 8)).astype(np.float32)
    text = net_text(layer(f"num_output: 64 kernel_size: 3 pad: 1 group: {group}"), x=x.shape)
    found = {}
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.blobs["x"].set(x)
        found[precision] = [net.forward()["y"]]
        set_top_diff(net, "y", x[::-1].copy())
        net.backward()
        found[precision] += [net.blobs["x"].diff, net.params["layer"][0].diff.get()]
        assert BLOCK < 16 or precision == "fp32" or net.tensors[net.graph.outputs[0]].layout == "acdb"
    for mine, wanted in zip(found["bf16"], found["fp32"], strict=True):
        np.testing.assert_allclose(mine, wanted, atol=0.02 * abs(wanted).max())


def test_intels_relu_in_the_layer():
    x = RANDOM.normal(size=(2, 3, 5, 5)).astype(np.float32)
    plain, fused = (
        make_net(net_text(layer("num_output: 4 kernel_size: 3" + more), x=x.shape)) for more in ("", " relu: true")
    )
    for net in (plain, fused):
        net.blobs["x"].set(x)
    np.testing.assert_allclose(fused.forward()["y"], np.maximum(plain.forward()["y"], 0), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (2, 16, 5, 5)])
def test_flops(shape):
    net = make_net(net_text(layer("num_output: 4 kernel_size: 3 stride: 2"), x=shape))
    assert net.graph.layers[-1].flops() == 2 * 4 * 2 * 2 * (2 * shape[1] * 9 + 1)


def test_gradients_of_weights_alone():
    """The bottom is data, which has no gradient."""
    text = net_text(
        layer("num_output: 2 kernel_size: 3") + 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" '
        'top: "loss" }',
        x=(2, 3, 5, 5),
        t=(2, 2, 3, 3),
    ).replace("force_backward: true", "")
    net = Net(parse_net(text), options=NetOptions(keep_all=True))
    assert net.blobs["x"].diff is None
    x = RANDOM.normal(size=(2, 3, 5, 5)).astype(np.float32)
    check_gradients(text, {"x": x, "t": np.zeros((2, 2, 3, 3))})


@pytest.mark.parametrize(
    "params, message",
    [
        ("num_output: 4 kernel_size: 6", "got a kernel of 6 over 5 (size 5, pad 0) on axis 2 of (2, 3, 5, 7)"),
        ("num_output: 4 kernel_size: 3 dilation: 4 pad: 1", "got a kernel of 9 over 7 (size 5, pad 1) on axis 2"),
        (
            "num_output: 4 kernel_size: 3 group: 2",
            "expected group to divide the channels of the bottom, 3, got group 2",
        ),
        ("num_output: 4 kernel_size: 3 group: 3", "expected group to divide the num_output, 4, got group 3"),
        ("kernel_size: 3", "num_output is missing; give it, a number above 0"),
        ("num_output: 4", "kernel_size is missing"),
        ("num_output: 4 kernel_size: 0", "expected kernel of at least 1, got [0, 0]"),
        ("num_output: 4 kernel_size: 3 stride: 0", "expected stride of at least 1, got [0, 0]"),
        ("num_output: 4 kernel_h: 3", "expected both kernel_h and kernel_w, got kernel_h alone"),
        ("num_output: 4 kernel_size: 3 kernel_h: 3 kernel_w: 3", "both kernel_size and kernel_h are given; keep one"),
        (
            "num_output: 4 kernel_size: 3 pad: 1 pad: 1 pad: 1",
            "expected 1 or 2 values of pad, one per spatial axis, got 3",
        ),
        ("num_output: 4 kernel_size: 3 axis: 4", "axis 4 is out of range for a blob of 4 axes"),
    ],
)
def test_errors(params, message):
    assert message in error_of(layer(params), x=(2, 3, 5, 7))


def test_a_bottom_without_channels():
    assert "expected a bottom of at least 2 axes (N, C), got (2,)" in error_of(layer("num_output: 4"), x=(2,))


@pytest.mark.parametrize("params, group", [("num_output: 6", 1), ("num_output: 6 kernel_size: 3 group: 2", 2)])
def test_without_spatial_axes(params, group):
    """As in Caffe, it is an inner product whose weights are (num_output, C / group)."""
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    net = run(layer(params), x=x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    assert weights.shape == (6, 4 // group)
    parts = zip(np.split(x, group, 1), np.split(weights, group), strict=True)
    expected = np.concatenate([part @ each.T for part, each in parts], 1) + bias
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(layer(params), x=x.shape), {"x": x})


@pytest.mark.parametrize("axis, shape, seen", [(2, (2, 3, 4, 5, 6), (6, 4, 5, 6)), (0, (4, 5, 6), (1, 4, 5, 6))])
def test_channels_on_another_axis(axis, shape, seen):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    text = layer(f"num_output: 3 kernel_size: 3 pad: 1 axis: {axis}")
    net = run(text, x=x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    assert net.blobs["y"].shape == (*shape[:axis], 3, *shape[axis + 1 :])
    expected = reference(x.reshape(seen), weights, bias, [1, 1], [1, 1], [1, 1], 1)
    np.testing.assert_allclose(net.blobs["y"].data.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, x=shape), {"x": x})


def several(kind, params):
    weights = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'
    return f"""layer {{ name: "layer" type: "{kind}" bottom: "a" bottom: "b" top: "y" top: "z"
        convolution_param {{ {params} {weights} }} }}"""


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_several_bottoms_share_the_weights(kind):
    a, b = np.random.default_rng(2).normal(size=(2, 2, 3, 5, 4)).astype(np.float32)
    text = several(kind, "num_output: 4 kernel_size: 3 stride: 2 pad: 1")
    net = run(text, a=a, b=b)
    alone = (
        several(kind, "num_output: 4 kernel_size: 3 stride: 2 pad: 1")
        .replace('bottom: "b"', "")
        .replace('top: "z"', "")
    )
    for top, values in (("y", a), ("z", b)):
        single = make_net(net_text(alone, a=values.shape))
        for ours, theirs in zip(single.params["layer"], net.params["layer"], strict=True):
            ours.set(theirs.get())
        single.blobs["a"].set(values)
        np.testing.assert_allclose(net.blobs[top].data, single.forward()["y"], rtol=1e-5, atol=1e-6)
    check_gradients(net_text(text, a=a.shape, b=b.shape), {"a": a, "b": b})


def test_several_bottoms_in_front_of_activations():
    """An activation behind one of the tops must not be fused into the convolution, which computes both tops."""
    relu = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
    a, b = np.random.default_rng(2).normal(size=(2, 2, 16, 5, 4)).astype(np.float32)
    text = several("Convolution", "num_output: 32 kernel_size: 3 pad: 1") + relu
    nets = [make_net(net_text(text, a=a.shape, b=b.shape), passes=passes) for passes in (PASSES, frozenset())]
    for net in nets:
        net.params["layer"][0].set(nets[0].params["layer"][0].get())
        net.blobs["a"].set(a)
        net.blobs["b"].set(b)
        net.forward()
        set_top_diff(net, "y", np.ones((2, 32, 5, 4)))
        set_top_diff(net, "z", np.ones((2, 32, 5, 4)))
        net.backward()
        assert net.blobs["z"].data.min() < 0 <= net.blobs["y"].data.min()
    for found, expected in zip(*(net.params["layer"] for net in nets), strict=True):
        np.testing.assert_allclose(found.diff.get(), expected.diff.get(), rtol=1e-4, atol=1e-4)


def test_errors_of_several_bottoms():
    text = several("Convolution", "num_output: 4 kernel_size: 1")
    assert "expected bottoms of one shape, got (1, 2, 3, 4), (1, 2, 3, 5)" in error_of(
        text, a=(1, 2, 3, 4), b=(1, 2, 3, 5)
    )
    shapes = {"a": (1, 2, 3, 4), "b": (1, 2, 3, 4)}
    assert "expected a top for each bottom, got 2 and 1" in error_of(text.replace('top: "z"', ""), **shapes)


def test_a_branch_without_a_loss_has_no_gradient():
    text = net_text(layer("num_output: 2 kernel_size: 3"), x=(2, 3, 5, 5)).replace("force_backward: true", "")
    net = make_net(text)
    net.forward()
    net.backward()
    assert not net.params["layer"][0].diff.get().any()


def test_a_test_net_reads_the_weights_of_its_train_net():
    text = net_text(layer("num_output: 2 kernel_size: 3"), x=(2, 3, 5, 5)).replace("force_backward: true", "")
    train = make_net(text)
    test = make_net(text, proto.TEST, share=train)
    x = RANDOM.normal(size=(2, 3, 5, 5)).astype(np.float32)
    train.params["layer"][1].set(np.array([1, 2], np.float32))
    for net in (train, test):
        net.blobs["x"].set(x)
    np.testing.assert_allclose(test.forward()["y"], train.forward()["y"], atol=1e-6)


@needs_bf16
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_rows_that_are_shorter_than_the_stride(kind):
    """In bf16 oneDNN's gradient of the weights reads scratch memory that it has not written. Two other layers leave
    values in it here."""
    shape, other = (2, 16, 7, 1) if kind == "Convolution" else (2, 16, 1, 1), (1, 8, 128, 128)
    text = f"""layer {{ name: "c" type: "Convolution" bottom: "x" top: "c"
      convolution_param {{ num_output: 16 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "l" type: "{kind}" bottom: "c" top: "y"
      convolution_param {{ num_output: 16 kernel_size: 3 stride: 2 pad: 1 weight_filler {{ type: "xavier" }} }} }}"""
    for name in "ab":
        text += f"""layer {{ name: "r{name}" type: "LRN" bottom: "{name}" top: "r{name}"
          lrn_param {{ local_size: 1 norm_region: WITHIN_CHANNEL }} }}"""
    net = make_net(net_text(text, a=other, x=shape, b=other), precision="bf16", keep_all=False)
    inputs(net)["x"].set(np.random.default_rng(3).standard_normal(shape, np.float32))
    for name in "ab":
        inputs(net)[name].set(np.ones(other, np.float32))
    found = []
    for left_over in (0, np.nan):
        y = net.forward()["y"]
        set_top_diff(net, "y", np.ones_like(y))
        for name in ("ra", "rb"):
            set_top_diff(net, name, np.full(other, left_over, np.float32))
        net.backward()
        found.append(net.params["l"][0].diff.get())
    assert found[0].tobytes() == found[1].tobytes()
