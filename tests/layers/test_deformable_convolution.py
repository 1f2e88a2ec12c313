import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(11)
SIZE = (2, 4, 6, 7)
WINDOWS = [  # fields as text, then kernel, stride, pad and dilation of rows and columns
    ("kernel_size: 3 pad: 1", (3, 3), (1, 1), (1, 1), (1, 1)),
    ("kernel_size: 3 stride: 2", (3, 3), (2, 2), (0, 0), (1, 1)),
    ("kernel_size: 3 pad: 2 dilation: 2", (3, 3), (1, 1), (2, 2), (2, 2)),
    ("kernel_h: 1 kernel_w: 2 pad_h: 1 pad_w: 0 stride_h: 2 stride_w: 1", (1, 2), (2, 1), (1, 0), (1, 1)),
]


def layer(window="kernel_size: 3 pad: 1", num_output=6, more="", x="x"):
    return f"""layer {{ name: "layer" type: "DeformableConvolution" bottom: "{x}" bottom: "offsets" top: "y"
        deformable_convolution_param {{ num_output: {num_output} {window} {more}
            weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "gaussian" }} }} }}"""


def sizes(size, kernel, stride, pad, dilation):
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, pad, dilation, strict=True)
    ]


def offsets_for(x, window, groups=1, far=2.0):
    """Returns random offsets that keep positions at least 0.1 away from where other pixels would be read."""
    kernel, height, width = window[0], *sizes(x[2:], *window)
    offsets = RANDOM.uniform(-far, far, (x[0], 2 * groups * kernel[0] * kernel[1], height, width))
    return (np.floor(offsets) + 0.1 + 0.8 * (offsets % 1)).astype(np.float32)


def value(plane, row, column):
    height, width = plane.shape
    if not (0 <= row < height and 0 <= column < width):
        return 0.0
    padded = np.pad(plane, ((0, 1), (0, 1)), mode="edge")
    top, left = int(row), int(column)
    (a, b), (c, d) = padded[top : top + 2, left : left + 2]
    down, across = row - top, column - left
    return (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)


def reference(x, offsets, weights, bias, kernel, stride, pad, dilation, groups=1, deformable=1):
    """Computes the layer position by position, as the paper defines it."""
    n, channels, *size = x.shape
    height, width = sizes(size, kernel, stride, pad, dilation)
    offsets = offsets.reshape(n, deformable, *kernel, 2, height, width)
    columns = np.zeros((n, channels, *kernel, height, width))
    for image, c, i, j, h, w in np.ndindex(columns.shape):
        down, across = offsets[image, c * deformable // channels, i, j, :, h, w]
        row, column = h * stride[0] - pad[0] + i * dilation[0] + down, w * stride[1] - pad[1] + j * dilation[1] + across
        columns[image, c, i, j, h, w] = value(x[image, c], row, column)
    outputs, each = len(weights), channels // groups
    y = np.zeros((n, outputs, height, width))
    for o in range(outputs):
        first = o * groups // outputs * each
        y[:, o] = np.einsum("ncijhw,cij->nhw", columns[:, first : first + each], weights[o]) + bias[o]
    return y


@pytest.mark.parametrize("text, kernel, stride, pad, dilation", WINDOWS)
@pytest.mark.parametrize("groups, deformable", [(1, 1), (2, 2), (1, 4), (2, 1)])
def test_forward_and_gradients(text, kernel, stride, pad, dilation, groups, deformable):
    window = (kernel, stride, pad, dilation)
    x, offsets = RANDOM.normal(size=SIZE).astype(np.float32), offsets_for(SIZE, window, deformable)
    text = layer(text, more=f"group: {groups} deformable_group: {deformable}")
    net = run(text, x=x, offsets=offsets)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    expected = reference(x, offsets, weights, bias, *window, groups, deformable)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    assert all(blob.diff is not None for blob in net.blobs.values())
    check_gradients(net_text(text, x=x.shape, offsets=offsets.shape), {"x": x, "offsets": offsets})


def test_no_offsets_is_a_convolution():
    x = RANDOM.normal(size=SIZE).astype(np.float32)
    net = run(layer(), x=x, offsets=np.zeros((2, 18, 6, 7), np.float32))
    convolution = layer().replace('bottom: "offsets"', "").replace("DeformableConvolution", "Convolution")
    other = run(convolution.replace("deformable_convolution_param", "convolution_param"), x=x)
    np.testing.assert_allclose(net.blobs["y"].data, other.blobs["y"].data, rtol=1e-4, atol=1e-5)


def test_beyond_the_edges():
    """Between the last pixel and the edge the value is that pixel's, and outside it is 0. In neither case has the
    offset a gradient."""
    x = np.ones((1, 1, 4, 5), np.float32)
    offsets = np.zeros((1, 2, 4, 5), np.float32)
    offsets[0, 0, :, 0] = [-0.5, 0.5, 1.5, 0.5]  # rows -0.5, 1.5, 3.5 and 3.5
    offsets[0, 1, 0, 2:] = [2.5, 2.0, np.nan]  # columns 4.5 and 5
    net = run(layer("kernel_size: 1", num_output=1, more="bias_term: false"), x=x, offsets=offsets)
    expected = np.ones((4, 5))
    expected[0, 0] = expected[0, 3] = expected[0, 4] = 0
    weight = net.params["layer"][0].get().ravel()[0]
    np.testing.assert_allclose(net.blobs["y"].data[0, 0], weight * expected, rtol=1e-6)
    set_top_diff(net, "y", np.ones((1, 1, 4, 5), np.float32))
    net.backward()
    np.testing.assert_array_equal(net.blobs["offsets"].diff, np.zeros_like(offsets))
    assert net.blobs["x"].diff.sum() == pytest.approx(weight * 17, rel=1e-5)


@pytest.mark.parametrize("channels, deformable", [(32, 1), (32, 4), (40, 1), (48, 2), (20, 4), (8, 2)])
def test_blocked(channels, deformable):
    window = WINDOWS[0][1:]
    text = layer(more=f"deformable_group: {deformable}", x="c", num_output=24)
    offsets = offsets_for(SIZE, window, deformable)
    net = run_blocked(text, size=SIZE, plain={"offsets": offsets}, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    np.testing.assert_allclose(y.data, reference(c.data, offsets, weights, bias, *window, 1, deformable), 1e-3, 1e-4)
    plain = run(layer(more=f"deformable_group: {deformable}", num_output=24), x=c.data, offsets=offsets)
    for tensor, values in zip(plain.params["layer"], (weights, bias), strict=True):
        tensor.set(values)
    plain.forward()
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(net.blobs["offsets"].diff, plain.blobs["offsets"].diff, rtol=1e-3, atol=1e-3)


def test_errors():
    shapes = {"x": SIZE, "offsets": (2, 18, 6, 7)}
    assert "expected offsets (2, 18, 4, 5), two for each place of the window" in error_of(
        layer("kernel_size: 3"), **shapes
    )
    assert "expected deformable_group to divide the channels of the bottom, 4, got 3" in error_of(
        layer(more="deformable_group: 3"), **shapes
    )
    assert "deformable_convolution_param is missing" in error_of(
        layer().replace("deformable_convolution_param", "convolution_param"), **shapes
    )
    assert "expected a bottom (N, C, H, W) and axis 1" in error_of(layer(more="axis: 2"), **shapes)
