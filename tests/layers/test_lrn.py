import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import (
    check_golden,
    check_gradients,
    error_of,
    golden,
    needs_avx512,
    needs_bf16,
    net_text,
    passes_on,
    run,
    set_top_diff,
)

LAYER = """layer {{ name: "layer" type: "LRN" bottom: "{bottom}" top: "y" lrn_param {{
    local_size: {size} alpha: 2 beta: 0.75 k: 2 norm_region: {region} }} }}"""
RANDOM = np.random.default_rng(1)


HUGE = 2**31 - 1


def reference(x, size, region, beta=0.75):
    x = x.astype(np.float64)
    half, squares = min(size // 2, max(x.shape)), np.zeros_like(x)
    if region == "ACROSS_CHANNELS":
        padded = np.pad(x**2, ((0, 0), (half, half), (0, 0), (0, 0)))
        for i in range(2 * half + 1):
            squares += padded[:, i : i + x.shape[1]]
        return x / (2 + 2 / size * squares) ** beta
    padded = np.pad(x**2, ((0, 0), (0, 0), (half, half), (half, half)))
    for i in range(2 * half + 1):
        for j in range(2 * half + 1):
            squares += padded[:, :, i : i + x.shape[2], j : j + x.shape[3]]
    return x / (1 + 2 / size**2 * squares) ** beta


@golden("lrn_across", "lrn_within")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("size", [1, 3, 5, 13, HUGE, 2 * HUGE + 1])
def test_forward_and_gradients(region, size):
    x = RANDOM.normal(size=(2, 6, 4, 5)).astype(np.float32)
    layer = LAYER.format(bottom="x", size=size, region=region)
    np.testing.assert_allclose(run(layer, x=x).blobs["y"].data, reference(x, size, region), rtol=1e-5)
    check_gradients(net_text(layer, x=x.shape), {"x": x})


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_wide_pictures(region):
    """The sums over a long row are computed a stretch at a time."""
    x, layer = RANDOM.normal(size=(1, 3, 2, 300)).astype(np.float32), LAYER.format(bottom="x", size=3, region=region)
    np.testing.assert_allclose(run(layer, x=x).blobs["y"].data, reference(x, 3, region), rtol=1e-5)
    check_gradients(net_text(layer, x=x.shape), {"x": x}, samples=200)


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("size", [1, 3, 5, 101, HUGE])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(region, size, channels):
    net = run_blocked(LAYER.format(bottom="c", size=size, region=region), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, size, region), rtol=1e-5, atol=1e-6)
    plain = run(LAYER.format(bottom="x", size=size, region=region), x=c.data)
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("size", [3, 5])
def test_powers_that_are_not_roots(region, size):
    layer = LAYER.replace("0.75", "0.6").format(bottom="c", size=size, region=region)
    net = run_blocked(layer, c=24)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, size, region, beta=0.6), rtol=1e-5, atol=1e-6)
    plain = run(layer.replace('"c"', '"x"'), x=c.data)
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=1e-4, atol=1e-5)


@needs_bf16
@pytest.mark.parametrize("size", [3, 5, 7])
def test_bf16(size):
    layer = LAYER.format(bottom="c", size=size, region="ACROSS_CHANNELS")
    net = run_blocked(layer, c=40, precision="bf16")
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, size, "ACROSS_CHANNELS"), rtol=1e-2, atol=1e-3)
    plain = run(layer.replace('"c"', '"x"'), x=c.data)
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=3e-2, atol=3e-3)


@pytest.mark.parametrize("channels", [4, 20])
@pytest.mark.parametrize("size", [1, 7, HUGE])
def test_after_a_layer_that_puts_channels_last(size, channels):
    text = f"""layer {{ name: "c" type: "Deconvolution" bottom: "x" top: "c" convolution_param {{
        num_output: {channels} kernel_size: 2 weight_filler {{ type: "xavier" }} }} }} """
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    net = run(text + LAYER.format(bottom="c", size=size, region="ACROSS_CHANNELS"), x=x)
    blobs = net.blobs
    expected = reference(blobs["c"].data, size, "ACROSS_CHANNELS")
    np.testing.assert_allclose(blobs["y"].data, expected, rtol=1e-5, atol=1e-6)


def test_errors():
    layer = LAYER.format(bottom="x", size=4, region="ACROSS_CHANNELS")
    assert "expected an odd local_size, got 4" in error_of(layer, x=(2, 6, 4, 5))
    assert "expected a bottom of 4 axes" in error_of(layer, x=(2, 6))


@needs_avx512
def test_on_avx2():
    """AVX2 has kernels of its own."""
    assert passes_on("AVX2", __file__, "blocked or golden or roots")
