"""The gradient of a convolution's weights in bf16, by kernels of our own where the processor allows: exact for small
whole numbers, in all shapes."""

import os
import subprocess
import sys

import numpy as np
import pytest

from engine import proto
from engine.host import _core
from engine.layers.kernels import WEIGHTS
from engine.net.measure import Trial
from tests.layers.harness import inputs, make_net, needs_bf16, net_text, set_top_diff

pytestmark = needs_bf16

BEFORE = """layer {{ name: "before" type: "Convolution" bottom: "x" top: "x_before" convolution_param {{
  num_output: {} kernel_size: 1 bias_term: false }} }}"""  # its kernel writes the layout of inner blobs
CONVOLUTION = """layer {{ name: "conv" type: "Convolution" bottom: "x_before" top: "y" convolution_param {{
  num_output: {outputs} kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]}
  pad_h: {pad[0]} pad_w: {pad[1]} dilation: {dilation[0]} dilation: {dilation[1]} bias_term: {bias}
  weight_filler {{ type: "gaussian" std: 1 }} }} }}"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'  # fused into the convolution, also in backward
USUAL = dict(kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1), bias="false")
CASES = {
    "one pixel": dict(x=(3, 64, 9, 7), outputs=32, kernel=(1, 1), pad=(0, 0)),
    "one pixel, fewer channels than outputs": dict(x=(3, 32, 9, 7), outputs=96, kernel=(1, 1), pad=(0, 0)),
    "one pixel, every second": dict(x=(2, 64, 9, 8), outputs=128, kernel=(1, 1), pad=(0, 0), stride=(2, 2)),
    "three by three": dict(x=(2, 64, 14, 14), outputs=64),
    "parts of tiles": dict(x=(2, 48, 7, 5), outputs=80),
    "fewer channels than a tile": dict(x=(2, 16, 6, 6), outputs=24),
    "swapped, parts of tiles": dict(x=(2, 24, 5, 5), outputs=72, kernel=(1, 1), pad=(0, 0)),
    "strides, a wide kernel": dict(x=(2, 32, 15, 11), outputs=32, kernel=(5, 3), stride=(2, 3), pad=(2, 0)),
    "holes": dict(x=(1, 32, 13, 13), outputs=32, pad=(2, 2), dilation=(2, 2)),
    "holes in rows": dict(x=(2, 32, 9, 13), outputs=32, pad=(1, 3), dilation=(1, 3)),
    "bias": dict(x=(2, 64, 7, 7), outputs=48, bias="true"),
    "several runs of pixels": dict(x=(9, 32, 17, 17), outputs=64, bias="true"),  # no shape for Winograd's tiles
    "several runs of an image": dict(x=(2, 16, 47, 47), outputs=48),
    "several slabs of outputs": dict(x=(3, 32, 7, 7), outputs=528, kernel=(1, 1), pad=(0, 0), bias="true"),
    "pictures": dict(x=(2, 3, 30, 29), outputs=64, kernel=(7, 7), stride=(2, 2), pad=(3, 3)),
    "pictures, wide windows": dict(x=(2, 3, 31, 31), outputs=96, kernel=(11, 11), stride=(4, 4), pad=(0, 0)),
    "pictures, one row": dict(x=(2, 3, 9, 20), outputs=32, kernel=(1, 5), pad=(0, 2)),
    "larger sums than pixels": dict(x=(1, 256, 3, 3), outputs=256),
}


def has_pairs() -> bool:
    """Returns whether this processor has the kernel of pairs, and inner blobs have a layout for it."""
    return _core.winograd_lanes("bf16") == 16 and not _core.has_amx()


@pytest.mark.parametrize("kernel", ["by rule", "pairs"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_exact(case, passes, relu, kernel):
    given = USUAL | CASES[case]
    shape = given.pop("x")
    layers = BEFORE.format(shape[1]) + CONVOLUTION.format(**given) + relu * RELU
    options = dict(precision="bf16", accumulate=passes > 1)
    net = make_net(net_text(layers, x=shape), proto.TRAIN, **options)
    (asked,) = (each for each in net.builder.asked if each.layer == "conv")
    if kernel == "pairs":
        net = make_net(net_text(layers, x=shape), proto.TRAIN, **options, kernels={asked.key: {WEIGHTS: kernel}})
        if has_pairs() and shape[1] % 16 == given["outputs"] % 16 == 0:
            Trial(asked, {WEIGHTS: kernel}, dx=False, dw=True)  # raises if there is no such kernel
    assert net.builder.type_of_op.count("ReLU") == 0
    net.params["before"][0].set(np.eye(shape[1], dtype=np.float32).reshape(shape[1], shape[1], 1, 1))
    generator = np.random.default_rng(2)
    x = generator.integers(-3, 4, shape)
    given_weights = generator.integers(-1, 2, net.params["conv"][0].shape)
    net.params["conv"][0].set(given_weights.astype(np.float32))
    inputs(net)["x"].set(x.astype(np.float32))
    y = net.forward()["y"]
    dy = generator.integers(-3, 4, y.shape)
    set_top_diff(net, "y", dy.astype(np.float32))
    net.program.zero_gradients()
    for _ in range(passes):
        net.program.backward()
    if relu:
        assert 0 < (y > 0).mean() < 1
        dy = np.where(y > 0, dy, 0)
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in given["pad"])])
    rows, columns = y.shape[2:]
    weights, dx = net.params["conv"][0].diff.get(), np.zeros(padded.shape)
    for i in range(given["kernel"][0]):
        for j in range(given["kernel"][1]):
            down, right = (
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip((i, j), given["dilation"], (rows, columns), given["stride"], strict=True)
            )
            expected = passes * np.einsum("nohw,nchw->oc", dy, padded[:, :, down, right])
            np.testing.assert_array_equal(weights[:, :, i, j], expected, err_msg=f"{i}, {j}")
            dx[:, :, down, right] += np.einsum("nohw,oc->nchw", dy, given_weights[:, :, i, j])
    if given["bias"] == "true":
        np.testing.assert_array_equal(net.params["conv"][1].diff.get(), passes * dy.sum(axis=(0, 2, 3)))
    top, left = given["pad"]  # the gradient of x behind the ReLU may be read from what this kernel has left
    dx = dx[:, :, top : top + shape[2], left : left + shape[3]]
    np.testing.assert_allclose(inputs(net)["x"].diff, dx, rtol=2**-7, atol=1e-3 * np.abs(dx).max())


@pytest.mark.parametrize("where", ["row-major", "groups"])
def test_where_there_are_no_pairs(where):
    """If a kernel that was asked for is not there, another computes the pass. Only measuring raises an error."""
    layers = CONVOLUTION.format(**USUAL, outputs=64)
    if where == "groups":
        layers = BEFORE.format(32) + layers.replace("bias_term", "group: 2 bias_term")
    text = net_text(layers.replace('"x_before"', '"x"') if where == "row-major" else layers, x=(2, 32, 6, 7))
    found = []
    for kernel in ("pairs", "direct"):
        net = make_net(text, proto.TRAIN, precision="bf16")
        (asked,) = (each for each in net.builder.asked if each.layer == "conv")
        net = make_net(text, proto.TRAIN, precision="bf16", kernels={asked.key: {WEIGHTS: kernel}})
        if kernel == "pairs":
            with pytest.raises(ValueError, match="pairs"):
                Trial(asked, {WEIGHTS: kernel}, dx=False, dw=True)
        generator = np.random.default_rng(2)
        inputs(net)["x"].set(generator.integers(-3, 4, (2, 32, 6, 7)).astype(np.float32))
        for tensors in net.params.values():
            tensors[0].set(generator.integers(-1, 2, tensors[0].shape).astype(np.float32))
        net.forward()
        set_top_diff(net, "y", generator.integers(-3, 4, (2, 64, 6, 7)))
        net.backward()
        found.append(net.params["conv"][0].diff.get())
    np.testing.assert_array_equal(*found)


def test_activations_that_are_no_relu():
    """Backward of such activations runs before the kernel, which can apply a ReLU only."""
    layers = BEFORE.format(32) + CONVOLUTION.format(**USUAL, outputs=64)
    text = net_text(layers + 'layer { name: "f" type: "TanH" bottom: "y" top: "y" }', x=(2, 32, 6, 7))
    (asked,) = (each for each in make_net(text, precision="bf16").builder.asked if each.layer == "conv")
    found = []
    for kernel in ("pairs", "direct"):
        net = make_net(text, proto.TRAIN, precision="bf16", kernels={asked.key: {WEIGHTS: kernel}})
        assert net.builder.type_of_op.count("TanH") == 0
        generator = np.random.default_rng(2)
        for tensors in net.params.values():
            tensors[0].set(generator.normal(size=tensors[0].shape, scale=0.1).astype(np.float32))
        inputs(net)["x"].set(generator.normal(size=(2, 32, 6, 7)).astype(np.float32))
        net.forward()
        set_top_diff(net, "y", generator.normal(size=(2, 64, 6, 7)))
        net.backward()
        found.append(net.params["conv"][0].diff.get())
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3 * np.abs(found[1]).max())


@pytest.mark.parametrize("threads", ["1", "3", "4"])
def test_teams_of_any_size(threads):
    """Threads share the pixels or, if sums would be larger than what is read, the channels."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"{__file__}::test_gradients_are_exact"],
        env={**os.environ, "OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:]
