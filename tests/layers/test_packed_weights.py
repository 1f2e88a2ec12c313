"""Weights are laid out for AMX. With small whole numbers bf16 is exact, so that a single value in a wrong place
shows."""

import numpy as np
import pytest

from tests.layers.harness import inputs, make_net, needs_bf16, net_text, set_top_diff

pytestmark = needs_bf16

CONVOLUTION = """layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {
  num_output: %d kernel_size: %d bias_term: false } }"""
CASES = {  # channels, outputs, kernel, size of the image
    "one pixel, a block of 64 outputs": (64, 64, 1, 9),
    "one pixel, several blocks": (192, 128, 1, 5),
    "one pixel, narrow blocks": (96, 32, 1, 9),
    "small planes": (64, 128, 3, 6),
    "large planes": (64, 192, 3, 14),
    "large planes, blocks of 48 outputs": (64, 48, 3, 14),
    "large planes, blocks of 16 outputs": (64, 16, 5, 12),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_exact(case):
    channels, outputs, kernel, size = CASES[case]
    text = net_text(CONVOLUTION % (outputs, kernel), x=(2, channels, size, size))
    net = make_net(text, precision="bf16")
    generator = np.random.default_rng(1)
    shape = (outputs, channels, kernel, kernel)
    # The weights are sparse, so that no sum exceeds 256. Up to there bf16 holds all whole numbers.
    weights = generator.integers(-4, 5, shape) * (generator.random(shape) < 20 / (max(outputs, channels) * kernel**2))
    x = generator.integers(-2, 3, (2, channels, size, size))
    net.params["conv"][0].set(weights.astype(np.float32))
    inputs(net)["x"].set(x.astype(np.float32))
    y = net.forward()["y"]
    views = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", views, weights)
    assert np.abs(expected).max() <= 256
    np.testing.assert_array_equal(y, expected)

    dy = generator.integers(-2, 3, expected.shape)
    set_top_diff(net, "y", dy.astype(np.float32))
    net.backward()
    wanted = np.zeros(x.shape)
    height = expected.shape[2]
    for i in range(kernel):
        for j in range(kernel):
            wanted[:, :, i : i + height, j : j + height] += np.einsum("nohw,oc->nchw", dy, weights[:, :, i, j])
    assert np.abs(wanted).max() <= 256
    np.testing.assert_array_equal(inputs(net)["x"].diff, wanted)
