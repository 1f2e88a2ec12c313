import itertools

import numpy as np
import pytest

from engine import proto
from engine.host import _core
from engine.net import PASSES
from tests.layers.blocked import CONVOLUTION, run_blocked
from tests.layers.harness import (
    BLOCK,
    check_golden,
    check_gradients,
    error_of,
    golden,
    inputs,
    make_net,
    needs_avx512,
    needs_bf16,
    net_text,
    passes_on,
    run,
    set_top_diff,
)

CASES = ["2x2", "3s2", "3s2p1", "ceil_clip", "floor", "global", "overlap", "rect"]
# Some windows reach beyond bottom and padding, since sizes are rounded up. Some have padding on one axis, some on both.
WINDOWS = [
    "kernel_size: 2 stride: 2",
    "kernel_size: 3 stride: 2",
    "kernel_size: 3 stride: 2 pad: 1",
    "kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
    "kernel_h: 3 kernel_w: 4 stride_h: 2 stride_w: 3 pad_h: 1 pad_w: 2",
    "kernel_h: 2 kernel_w: 4 stride_h: 2 stride_w: 3 pad_h: 0 pad_w: 1",
    "kernel_size: 1 stride: 2 round_mode: FLOOR",
    "kernel_size: 7 stride: 7",  # larger than the bottom
    "global_pooling: true",
]

THREE = {"kernel_size": (2, 3, 4), "stride": (2, 2, 3), "pad": (1, 0, 1)}


def layer(window, pool="MAX", bottom="x"):
    param = f"pooling_param {{ pool: {pool} {window} }}"
    return f'layer {{ name: "layer" type: "Pooling" bottom: "{bottom}" top: "y" {param} }}'


def windows_of(net):
    """Yields for each window its place in the top, its place in the bottom, and how many elements lie within bottom and
    padding."""
    pooling = net.graph.layers[-1]
    window, sizes = pooling.window, pooling.shapes[0][2:]
    for place in itertools.product(*(range(size) for size in pooling.tops[0].shape[2:])):
        slices, area = [], 1
        for i, at in enumerate(place):
            begin = at * window["stride"][i] - window["pad"][i]
            end = min(begin + window["kernel"][i], sizes[i] + window["pad"][i])
            area *= end - begin
            slices.append(slice(max(begin, 0), min(end, sizes[i])))
        yield (slice(None), slice(None), *place), (slice(None), slice(None), *slices), area


def check_against_reference(net, pool, bottom, include_pad=True, rtol=1e-5, atol=1e-6):
    x, y, given = net.blobs[bottom].data, net.blobs["y"].data, net.blobs["y"].diff
    expected, gradient = np.zeros(y.shape), np.zeros(x.shape)
    for out, inside, area in windows_of(net):
        part = x[inside].reshape(*x.shape[:2], -1)
        if pool == "MAX":
            expected[out] = part.max(-1)
            share = np.eye(part.shape[-1])[part.argmax(-1)]  # the first of equal values
        else:
            share = np.full(part.shape, 1 / (area if include_pad else part.shape[-1]))
            expected[out] = (part * share).sum(-1)
        gradient[inside] += (share * given[out][..., None]).reshape(x[inside].shape)
    np.testing.assert_allclose(y, expected, rtol, atol)
    np.testing.assert_allclose(net.blobs[bottom].diff, gradient, rtol, atol)


def distinct(shape):
    """Returns values in random order, further apart than the steps of the gradient checker."""
    return np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape) * 0.05


@golden(*(f"pooling_{pool}_{case}" for pool in ("max", "ave") for case in CASES))
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("window", WINDOWS)
def test_gradients(pool, window):
    shape = (2, 2, 6, 8)
    check_gradients(net_text(layer(window, pool), x=shape), {"x": distinct(shape)}, tolerance=5e-3)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(pool, window, channels):
    check_against_reference(run_blocked(layer(window, pool, "c"), size=(2, 3, 6, 8), c=channels), pool, "c")


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 5, 4, 6)])
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_other_numbers_of_spatial_axes(shape, pool):
    net = run(layer("kernel_size: 3 stride: 2 pad: 1", pool), x=distinct(shape).astype(np.float32))
    set_top_diff(net, "y", np.random.default_rng(2).normal(size=net.blobs["y"].shape))
    net.backward()
    check_against_reference(net, pool, "x")


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("window", ["kernel_size: 3 stride: 2 pad: 1", "kernel_size: 3 stride: 2"])
def test_three_axes_blocked(window, pool):
    check_against_reference(run_blocked(layer(window, pool, "c"), size=(2, 3, 4, 5, 6), c=40), pool, "c")


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("spatial", [(5, 6, 8), (4, 7, 9)])
def test_three_axes_with_a_window_each(spatial, pool):
    window = [f"{name}_3d: {value}" for name, values in THREE.items() for value in values]
    shape = (2, 3, *spatial)
    net = run(layer(" ".join(window), pool), x=distinct(shape).astype(np.float32))
    set_top_diff(net, "y", np.random.default_rng(2).normal(size=net.blobs["y"].shape))
    net.backward()
    check_against_reference(net, pool, "x")
    assert net.graph.layers[-1].window == {"kernel": [2, 3, 4], "stride": [2, 2, 3], "pad": [1, 0, 1]}


@pytest.mark.parametrize("bottom", ["x", "c"])
def test_the_first_of_equals_gets_the_gradient(bottom):
    if bottom == "c":
        relu = 'layer { name: "r" type: "ReLU" bottom: "c" top: "r" }'
        net = run_blocked(relu + layer(WINDOWS[1], bottom="r"), passes=PASSES - {"fuse"}, c=40)
        check_against_reference(net, "MAX", "r")
        return
    net = run(layer(WINDOWS[1]), x=np.zeros((1, 1, 5, 5), np.float32))
    set_top_diff(net, "y", np.ones((1, 1, 2, 2)))
    net.backward()
    assert np.argwhere(net.blobs["x"].diff[0, 0]).tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]


def test_average_without_padding_in_the_divisor():
    net = run_blocked(layer("kernel_size: 3 stride: 2 pad: 1 avg_include_pad: false", "AVE", "c"), c=32)
    check_against_reference(net, "AVE", "c", include_pad=False)


@needs_bf16
@pytest.mark.parametrize("window", WINDOWS[:6])
def test_average_in_bf16(window):
    """Whole numbers are exact, so the only error is the rounding of the averages."""
    text = CONVOLUTION.format(name="c", channels=32) + layer(window, "AVE", "c")
    net = make_net(net_text(text, x=(2, 3, 5, 6)), precision="bf16")
    generator = np.random.default_rng(7)
    inputs(net)["x"].set(generator.integers(-3, 4, (2, 3, 5, 6)).astype(np.float32))
    net.params["c"][0].set(generator.integers(-3, 4, (32, 3, 1, 1)).astype(np.float32))
    net.forward()
    set_top_diff(net, "y", generator.integers(-3, 4, net.blobs["y"].shape))
    net.backward()
    check_against_reference(net, "AVE", "c", rtol=0.01, atol=0.03)


@pytest.mark.parametrize("channels", [3, 32])
@pytest.mark.parametrize(
    ("window", "size", "pooled"), [("kernel_size: 1 stride: 2", 6, 4), ("kernel_size: 2 stride: 3", 6, 3)]
)
def test_windows_beyond_the_bottom(window, size, pooled, channels):
    """Without padding Caffe keeps such windows. Their maximum is the value that it starts from."""
    net = run_blocked(layer(window, bottom="c"), size=(2, 3, size, size), c=channels)
    top, beyond = net.blobs["y"].data, np.finfo(np.float32).min
    assert top.shape == (2, channels, pooled, pooled)
    assert (top[:, :, -1] == beyond).all() and (top[:, :, :, -1] == beyond).all()
    kernel, stride = (int(word) for word in window.split()[1::2])
    c, given, expected = net.blobs["c"].data, net.blobs["y"].diff, np.zeros((2, channels, size, size), np.float32)
    for i, j in itertools.product(range(pooled - 1), repeat=2):
        part = (..., slice(stride * i, stride * i + kernel), slice(stride * j, stride * j + kernel))
        best = c[part].max((2, 3), keepdims=True)
        np.testing.assert_array_equal(top[:, :, i, j], best[..., 0, 0])
        expected[part] += (c[part] == best) * given[:, :, i : i + 1, j : j + 1]
    np.testing.assert_allclose(net.blobs["c"].diff, expected, atol=1e-6)
    message = error_of(layer(window, "AVE"), x=(1, 1, size, size))
    assert "its last window lies beyond the bottom" in message and "round_mode: FLOOR" in message


def test_negative_numbers_beside_padding():
    y = run(layer("kernel_size: 3 stride: 2 pad: 1"), x=np.full((1, 1, 4, 4), -5, np.float32)).blobs["y"].data
    assert (y == -5).all()


@pytest.mark.parametrize(
    "size, window, pooled",
    [
        (6, "kernel_size: 3 stride: 2", 3),
        (6, "kernel_size: 3 stride: 2 round_mode: FLOOR", 2),
        (5, "kernel_size: 2 stride: 3 pad: 1", 2),  # a third window would start in the padding
        (5, "kernel_size: 1 stride: 3", 3),  # nothing is padded: the third stays, though it starts beyond the bottom
        (7, "kernel_size: 2 stride: 3 round_mode: FLOOR", 2),
    ],
)
def test_sizes(size, window, pooled):
    assert make_net(net_text(layer(window), x=(1, 1, size, size))).blobs["y"].shape == (1, 1, pooled, pooled)


@pytest.mark.parametrize(
    "window, message",
    [
        ("stride: 2", "kernel_size is missing"),
        ("kernel_size: 2 pad: 2", "expected pad below kernel, got pad 2 and kernel 2"),
        ("kernel_size: 9", "expected a kernel that fits into the padded bottom (size 5, pad 0), got 9"),
        ("kernel_h: 2", "expected both kernel_h and kernel_w, got kernel_h alone"),
        ("kernel_size: 2 kernel_w: 2", "both kernel_size and kernel_w are given; keep one of them"),
        ("global_pooling: true kernel_size: 2", "expected no kernel_size with global_pooling"),
        ("global_pooling: true pad: 1", "expected pad 0 with global_pooling"),
        ("kernel_size: 2 stride: 0", "expected kernel and stride of at least 1"),
    ],
)
def test_errors(window, message):
    assert message in error_of(layer(window), x=(1, 2, 5, 6))


def test_two_values_for_three_axes():
    assert "expected 3 values of kernel_size_3d, got 2" in error_of(
        layer("kernel_size_3d: 2 kernel_size_3d: 2"), x=(1, 2, 5, 6, 7)
    )


def with_mask(window, bottom="x"):
    return layer(window, bottom=bottom).replace('top: "y"', 'top: "y" top: "mask"')


def masks_of(net, x):
    """Returns the places of the maxima, row * W + column. Of equal values in a window the first counts."""
    found = np.zeros(net.blobs["mask"].data.shape, np.int64)
    for out, inside, _ in windows_of(net):
        part = x[inside]
        rows, columns = np.unravel_index(part.reshape(*part.shape[:2], -1).argmax(-1), part.shape[2:])
        found[out] = (rows + inside[2].start) * x.shape[3] + columns + inside[3].start
    return found


@pytest.mark.parametrize("window", WINDOWS)
def test_mask(window):
    x = distinct((2, 3, 6, 8)).astype(np.float32)
    net = run(with_mask(window), x=x)
    alone = run(layer(window), x=x)
    np.testing.assert_array_equal(net.blobs["y"].data, alone.blobs["y"].data)
    np.testing.assert_array_equal(net.blobs["mask"].data, masks_of(net, x))
    check_gradients(net_text(with_mask(window), x=x.shape), {"x": x}, ignore=["mask"], tolerance=5e-3)


def test_mask_names_the_first_of_equal_values():
    net = run(with_mask("kernel_size: 2 stride: 2"), x=np.zeros((1, 1, 4, 4), np.float32))
    assert net.blobs["mask"].data.ravel().tolist() == [0, 2, 8, 10]


def test_mask_of_blocked_blobs():
    """40 channels leave padding in a block of 16, which has no mask."""
    net = run_blocked(with_mask("kernel_size: 3 stride: 2 pad: 1", "c"), c=40)
    check_against_reference(net, "MAX", "c")
    assert not net.blobs["mask"].tensor.is_plain
    np.testing.assert_array_equal(net.blobs["mask"].data, masks_of(net, net.blobs["c"].data))


@pytest.mark.parametrize("blocked", [False, True])
def test_a_mask_changes_nothing_where_there_is_nan(blocked):
    """As in Caffe, NaN is passed over. If a window has no number, its maximum is -FLT_MAX, and it has no place in the
    mask."""
    nan, channels = np.nan, 40
    x = np.array([[[[nan, 1, nan, nan], [2, 3, nan, nan]]]], np.float32)
    for text in (with_mask, layer):
        if blocked:
            net = run_blocked(text("kernel_size: 2 stride: 2", bottom="c"), size=x.shape, c=channels)
            net.params["c"][0].set(np.ones((channels, 1, 1, 1), np.float32))
            net.blobs["x"].set(x)
            net.forward()
        else:
            net = run(text("kernel_size: 2 stride: 2"), x=x.repeat(channels, 1))
        assert net.blobs["y"].data.reshape(channels, 2).tolist() == [[3, np.finfo(np.float32).min]] * channels
        if "mask" in net.blobs:
            assert net.blobs["mask"].data.reshape(channels, 2).tolist() == [[5, -1]] * channels


STOCHASTIC = "kernel_size: 3 stride: 2"


def test_stochastic_takes_values_by_their_share():
    """A value is taken as often as its share of the window's sum says. Another step takes other values."""
    x = np.tile(np.array([1, 0, 3, 4], np.float32).reshape(1, 1, 2, 2), (50, 40, 1, 1))
    net = run(layer("kernel_size: 2", "STOCHASTIC"), x=x)
    first = net.blobs["y"].data.copy()
    for value, share in ((1, 1 / 8), (3, 3 / 8), (4, 4 / 8)):
        assert abs((first == value).mean() - share) < 0.05
    assert (first != 0).all()
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, first)  # depends on seed, step and sample alone
    net.forward((1, 0, 50))
    assert (net.blobs["y"].data != first).mean() > 0.3


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_stochastic_gradients(phase):
    x = np.random.default_rng(3).uniform(0.5, 2, (2, 3, 5, 6)).astype(np.float32)
    net = run(layer(STOCHASTIC, "STOCHASTIC"), phase, x=x)
    for out, inside, _ in windows_of(net):
        part, y = x[inside], net.blobs["y"].data[out]
        if phase == proto.TEST:
            np.testing.assert_allclose(y, (part**2).sum((2, 3)) / part.sum((2, 3)), rtol=1e-5)
        else:
            assert (part == y[..., None, None]).any((2, 3)).all()
    if phase == proto.TEST:
        check_gradients(net_text(layer(STOCHASTIC, "STOCHASTIC"), x=x.shape), {"x": x}, phase=phase)
        return
    set_top_diff(net, "y", np.ones_like(net.blobs["y"].data))
    net.backward()
    assert net.blobs["x"].diff.sum() == net.blobs["y"].data.size and ((net.blobs["x"].diff > 0) <= (x > 0)).all()


def test_stochastic_of_zeros():
    for phase in (proto.TRAIN, proto.TEST):
        assert not run(layer(STOCHASTIC, "STOCHASTIC"), phase, x=np.zeros((1, 1, 5, 5))).blobs["y"].data.any()


def test_errors_of_mask_and_stochastic():
    assert "expected one top, for only pool MAX has a mask" in error_of(
        layer(STOCHASTIC, "AVE").replace('top: "y"', 'top: "y" top: "mask"'), x=(1, 1, 5, 5)
    )
    assert "expected a bottom of 4 axes (N, C, H, W) with a second top, the mask," in error_of(
        with_mask("kernel_size: 2"), x=(1, 1, 5)
    )
    assert "expected pad 0 with pool STOCHASTIC, got [1, 1]" in error_of(
        layer("kernel_size: 3 pad: 1", "STOCHASTIC"), x=(1, 1, 5, 5)
    )
    assert "expected planes of at most 16777216 pixels" in error_of(with_mask("kernel_size: 2"), x=(1, 1, 4097, 4096))


@pytest.mark.parametrize("layout", ["plain", "blocked"])
def test_a_window_beyond_the_plane_has_no_place_in_the_mask(layout):
    """As in Caffe, the value is -FLT_MAX and the place is -1, to which no gradient goes."""
    conv = """layer { name: "c" type: "Convolution" bottom: "x" top: "c"
      convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "constant" value: 1 } } }"""
    below = "c" if layout == "blocked" else "x"
    text = (
        (conv if layout == "blocked" else "")
        + f'''
    layer {{ name: "p" type: "Pooling" bottom: "{below}" top: "y" top: "mask"
      pooling_param {{ kernel_size: 1 stride: 5 }} }}'''
    )
    net = make_net(net_text(text, x=(1, 1, 3, 3)))
    inputs(net)["x"].set(np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3))
    found = net.forward()
    lowest = np.finfo(np.float32).min
    assert (found["mask"][0, 0] == [[0, -1], [-1, -1]]).all()
    assert (found["y"][0, 0] == [[1, lowest], [lowest, lowest]]).all()
    set_top_diff(net, "y", np.ones_like(found["y"]))
    net.backward()
    expected = np.zeros((3, 3))
    expected[0, 0] = found["y"].shape[1]
    assert (np.asarray(inputs(net)["x"].diff)[0, 0] == expected).all()


def test_padding_of_blocked_channels_is_zero_beyond_the_plane_too():
    """Layers that read whole blocks expect zeros behind the last channel."""
    below = CONVOLUTION.format(name="c", channels=BLOCK - 3)
    net = make_net(net_text(below + with_mask("kernel_size: 1 stride: 5", "c"), x=(1, 1, 3, 3)))
    tensors = [net.blobs[name].tensor for name in ("y", "mask")]
    memory = [_core.Arena(tensor.nbytes) for tensor in tensors]
    for tensor, arena in zip(tensors, memory, strict=True):
        assert not tensor.is_plain
        tensor.place(arena, 0)
    y, mask = (np.asarray(arena)[: 4 * BLOCK].reshape(4, BLOCK) for arena in memory)
    y[:], mask[:] = np.nan, np.nan
    net.forward()
    assert (y[1:, :-3] == np.finfo(np.float32).min).all() and (mask[1:, :-3] == -1).all()
    assert not y[:, -3:].any() and not mask[:, -3:].any()


def test_padding_of_blocked_channels_is_zero_where_a_window_lies_beyond_the_plane():
    below = CONVOLUTION.format(name="c", channels=BLOCK + 3)
    net = make_net(net_text(below + layer("kernel_size: 1 stride: 3", bottom="c"), x=(1, 2, 5, 5)))
    tensor = net.blobs["y"].tensor
    memory = _core.Arena(tensor.nbytes)
    assert tensor.shape == (1, BLOCK + 3, 3, 3) and not tensor.is_plain
    tensor.place(memory, 0)
    values = np.asarray(memory)[: 2 * 9 * BLOCK].reshape(2, 9, BLOCK)
    values[:] = np.nan
    net.forward()
    assert (values[0, 2] == np.finfo(np.float32).min).all()  # the windows of the third column lie beyond the plane
    assert not values[1, :, 3:].any()


def test_a_window_of_more_places_than_a_number_counts():
    window = "".join(f"kernel_size_3d: {1 << n} " for n in (30, 30, 4))  # a wide one takes oneDNN seconds
    pad = "".join(f"pad_3d: {1 << n} " for n in (29, 29, 3))
    x = np.full((1, 1, 1, 1, 1), -3, np.float32)
    y = run(layer(f"{window} {pad} round_mode: FLOOR"), x=x).blobs["y"].data
    assert y.shape == (1, 1, 2, 2, 2) and (y == -3).all()


@pytest.mark.parametrize("pool, window", [("MAX", 2), ("MAX", 3), ("AVE", 3)])
@pytest.mark.parametrize("plane", [(1, 6), (6, 1), (1, 1)])
@pytest.mark.parametrize("channels", [1, 7, BLOCK, 24])
@pytest.mark.parametrize("convolved", [True, False])
def test_axes_of_one_element_that_padding_makes_longer(pool, window, plane, channels, convolved):
    """The strides of such axes do not tell the order of axes. Layers that read the top must know it all the same."""
    behind = [
        'type: "Upsample" upsample_param { scale: 2 }',
        'type: "Sigmoid"',
        'type: "BNLL"',
        'type: "TanH"',
        'type: "BatchNorm"',
        'type: "PReLU"',
        'type: "Scale" scale_param { bias_term: true filler { type: "gaussian" std: 1 } }',
        'type: "Bias" bias_param { filler { type: "gaussian" std: 1 } }',
        'type: "LRN" lrn_param { local_size: 3 }',
        'type: "Pooling" pooling_param { pool: MAX kernel_size: 2 }',
        'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } }',
        'type: "ROIPooling" bottom: "boxes" roi_pooling_param { pooled_h: 2 pooled_w: 2 }',
    ]
    layers = [f'layer {{ name: "l{i}" bottom: "p" top: "t{i}" {text} }}\n' for i, text in enumerate(behind)]
    layers.append(
        'layer { name: "m" type: "Pooling" bottom: "p" top: "tm" top: "mask" pooling_param { kernel_size: 2 } }'
    )
    in_front = (
        'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { kernel_size: 1 '
        f'num_output: {channels} weight_filler {{ type: "xavier" }} }} }}\n'
    )
    pooled = layer(f"kernel_size: {window} stride: 1 pad: {window - 1}", pool, "c" if convolved else "x")
    pooled = pooled.replace('top: "y"', 'top: "p"')
    shape = (3, channels, *plane)
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    boxes = np.array([[0, 0, 0, 1, 1], [2, 0, 0, 0, 0]], np.float32)
    text = (in_front if convolved else "") + pooled + "".join(layers)
    net = make_net(net_text(text, x=shape, boxes=boxes.shape))
    net.blobs["x"].set(x)
    net.blobs["boxes"].set(boxes)
    net.forward()
    values = net.blobs["p"].data
    plain = make_net(net_text("".join(layers), p=values.shape, boxes=boxes.shape))
    plain.blobs["p"].set(values)
    plain.blobs["boxes"].set(boxes)
    for name, own in plain.params.items():
        for mine, given in zip(own, net.params[name], strict=True):
            mine.set(given.get())
    plain.forward()
    tops = [f"t{i}" for i in range(len(behind))] + ["tm"]
    for name in [*tops, "mask"]:
        np.testing.assert_allclose(net.blobs[name].data, plain.blobs[name].data, atol=1e-5, err_msg=name)
    for each in (net, plain):
        for name in tops:
            each.blobs[name].diff[...] = 1
        each.backward()
    np.testing.assert_allclose(net.blobs["p"].diff, plain.blobs["p"].diff, atol=1e-4)


@needs_avx512
def test_on_avx2():
    """AVX2 has kernels of its own."""
    assert passes_on("AVX2", __file__, "blocked or beyond or golden or first_of_equals or of_one_element")
