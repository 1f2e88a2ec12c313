"""Coordinates are mapped through a net. The offsets are compared with those of the published fully convolutional
nets."""

import numpy as np
import pytest

from engine.caffe import NetSpec
from engine.caffe import layers as L
from engine.caffe.coord_map import AxisMismatchException, coord_map_from_to, crop


def vgg():
    """Returns layers with the shapes of FCN's VGG-16: a pad of 100, five times 3 x 3 (pad 1) and 2 x 2 pooling, then 7
    x 7."""
    n = NetSpec()
    n.data = L.Input()
    top = n.data
    for stage in range(5):
        top = L.Convolution(top, kernel_size=3, pad=100 if stage == 0 else 1)
        top = L.ReLU(top, in_place=True)
        top = L.Pooling(top, kernel_size=2, stride=2)
        n[f"pool{stage + 1}"] = top
    n.score = L.Convolution(L.Dropout(L.Convolution(top, kernel_size=7)), kernel_size=1, pad=0)
    return n


def up(top, kernel_size, stride):
    return L.Deconvolution(top, convolution_param=dict(kernel_size=kernel_size, stride=stride))


def offset(top):
    return top.fn.params["crop_param"]["offset"]


def test_the_crops_of_fcn():
    n = vgg()
    assert offset(crop(up(n.score, 64, 32), n.data)) == [19]  # FCN-32s
    upscore2 = up(n.score, 4, 2)
    score_pool4 = crop(L.Convolution(n.pool4, kernel_size=1), upscore2)
    assert (offset(score_pool4), score_pool4.fn.params["crop_param"]["axis"]) == ([5], 2)
    fuse = L.Eltwise(upscore2, score_pool4)
    assert offset(crop(up(fuse, 32, 16), n.data)) == [27]  # FCN-16s
    upscore4 = up(fuse, 4, 2)
    score_pool3 = crop(L.Convolution(n.pool3, kernel_size=1), upscore4)
    assert offset(score_pool3) == [9]
    assert offset(crop(up(L.Eltwise(upscore4, score_pool3), 16, 8), n.data)) == [31]  # FCN-8s


def test_maps():
    data = L.Input()
    conv = L.Convolution(data, kernel_size=4, stride=2, pad=1)
    assert coord_map_from_to(conv, data) == (1, 2, 0.5)
    assert coord_map_from_to(data, conv) == (1, 0.5, -0.25)
    dilated = L.Convolution(data, kernel_size=3, dilation=2)
    assert coord_map_from_to(dilated, data) == (1, 1, 2)
    _, a, b = coord_map_from_to(L.Pooling(data, kernel_h=3, kernel_w=5, stride_h=1, stride_w=2, pad_h=1, pad_w=0), data)
    np.testing.assert_array_equal(a, [1, 2])
    np.testing.assert_array_equal(b, [0, 2])
    assert coord_map_from_to(L.ReLU(data), data) == (None, 1, 0)


def test_a_residual_net_is_walked_once():
    """There are 2^40 ways through its 40 blocks."""
    data = L.Input()
    top = L.Convolution(data, kernel_size=3, pad=2)
    for _ in range(40):
        top = L.Eltwise(top, L.Convolution(top, kernel_size=3, pad=1))
    assert offset(crop(top, data)) == [1]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["first", "last"])
def test_a_shortcut_past_the_only_layer_that_knows_the_axes(order):
    data = L.Input()
    top = L.Eltwise(*[L.ReLU(data), L.Convolution(data, kernel_size=3, pad=1)][order])
    assert offset(crop(top, data)) == [0]


def test_what_cannot_be_cropped():
    data = L.Input()
    with pytest.raises(AssertionError, match="scale"):
        crop(L.Pooling(data, kernel_size=2, stride=2), data)
    with pytest.raises(AssertionError, match="outside"):
        crop(L.Convolution(data, kernel_size=3), data)
    with pytest.raises(AssertionError, match="fraction"):
        crop(L.Convolution(data, kernel_size=4, pad=2), data)
    with pytest.raises(RuntimeError, match="no common blob"):
        crop(L.Input(), data)
    with pytest.raises(RuntimeError, match="no common blob"):
        crop(L.InnerProduct(data, num_output=2), data)
    with pytest.raises(AxisMismatchException):
        coord_map_from_to(L.Pooling(L.Convolution(data, kernel_size=3, axis=2), kernel_size=3), data)
