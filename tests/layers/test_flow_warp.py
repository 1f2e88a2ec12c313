import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(2)


def layer(params=""):
    return f'layer {{ name: "layer" type: "FlowWarp" bottom: "x" bottom: "f" top: "y" flow_warp_param {{ {params} }} }}'


def reference(x, flow, fill=0.0):
    n, _, height, width = x.shape
    y = np.full(x.shape, fill)
    for i, row, column in np.ndindex(n, height, width):
        across, down = column + flow[i, 0, row, column], row + flow[i, 1, row, column]
        if not (0 <= across < width and 0 <= down < height):
            continue
        left, top = int(across), int(down)
        right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
        a, b = across - left, down - top
        upper = (1 - a) * x[i, :, top, left] + a * x[i, :, top, right]
        lower = (1 - a) * x[i, :, bottom, left] + a * x[i, :, bottom, right]
        y[i, :, row, column] = (1 - b) * upper + b * lower
    return y


def values():
    """Returns flows that lead between pixels, not to their borders, and some of them out of the plane."""
    x = RANDOM.normal(size=(2, 3, 5, 6))
    return x, np.round(RANDOM.uniform(-3, 3, (2, 2, 5, 6))) + RANDOM.uniform(0.1, 0.9, (2, 2, 5, 6))


@pytest.mark.parametrize("params, fill", [("", 0.0), ("fill_value: NOT_A_NUMBER", np.nan)])
def test_formula(params, fill):
    x, flow = values()
    expected = reference(x, flow, fill)
    assert (expected == 0).any() if fill == 0 else np.isnan(expected).any()
    np.testing.assert_allclose(run(layer(params), x=x, f=flow).blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_gradients():
    x, flow = values()
    check_gradients(net_text(layer(), x=x.shape, f=flow.shape), {"x": x, "f": flow}, step=5e-3)


def test_flows_that_are_no_numbers_lead_nowhere():
    x, flow = values()
    flow[0] = np.nan
    flow[1] = np.inf
    net = run(layer(), x=x, f=flow)
    set_top_diff(net, "y", np.ones(x.shape))
    net.backward()
    assert not net.blobs["y"].data.any() and not net.blobs["x"].diff.any() and not net.blobs["f"].diff.any()


def test_wrong_shapes():
    assert "expected a bottom (N, C, H, W) and a flow (N, 2, H, W), got (1, 3, 4, 5) and (1, 3, 4, 5)" in error_of(
        layer(), x=(1, 3, 4, 5), f=(1, 3, 4, 5)
    )
