import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run
from tests.layers.test_pooling import distinct


def layer(params, bottom="x"):
    return f'layer {{ name: "layer" type: "SPP" bottom: "{bottom}" top: "y" spp_param {{ {params} }} }}'


def reference(x, levels, pool):
    """Computes the layer: cells of equal size, ceil(size / cells), over the plane with padding on both sides."""
    rows = []
    for cells in (2**level for level in range(levels)):
        kernel = [-(-size // cells) for size in x.shape[2:]]
        pad = [(k * cells - size + 1) // 2 for k, size in zip(kernel, x.shape[2:])]
        pooled = np.zeros((*x.shape[:2], cells, cells))
        for place in np.ndindex(cells, cells):
            begin = [at * k - p for at, k, p in zip(place, kernel, pad)]
            end = [min(b + k, size + p) for b, k, size, p in zip(begin, kernel, x.shape[2:], pad)]
            part = x[:, :, max(begin[0], 0) : end[0], max(begin[1], 0) : end[1]]
            area = np.prod([e - b for b, e in zip(begin, end)])
            pooled[(..., *place)] = part.max((2, 3)) if pool == "MAX" else part.sum((2, 3)) / area
        rows.append(pooled.reshape(len(x), -1))
    return np.concatenate(rows, 1)


@golden("spp")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("levels, spatial", [(1, (3, 4)), (2, (5, 7)), (3, (9, 8))])
def test_forward_and_gradients(levels, spatial, pool):
    x = distinct((2, 3, *spatial)).astype(np.float32)
    text = layer(f"pyramid_height: {levels} pool: {pool}")
    y = run(text, x=x).blobs["y"].data
    assert y.ndim == (4 if levels == 1 else 2)  # with one level the shape is that of the pooling, as in Caffe
    np.testing.assert_allclose(y.reshape(2, -1), reference(x, levels, pool), rtol=1e-5, atol=1e-5)
    check_gradients(net_text(text, x=x.shape), {"x": x}, tolerance=5e-3)


def test_chance_has_no_padding():
    assert "expected pool MAX or AVE, got STOCHASTIC" in error_of(
        layer("pyramid_height: 2 pool: STOCHASTIC"), x=(1, 2, 4, 4)
    )


def test_blocked():
    net = run_blocked(layer("pyramid_height: 3", "c"), size=(2, 3, 8, 9), c=32)
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data, 3, "MAX"), rtol=1e-6)


def test_errors():
    assert "layer 'layer' (SPP): expected pyramid_height of 1 to 16, got 0" in error_of(layer(""), x=(1, 2, 5, 5))
    assert "expected pad below kernel, got pad 2 and kernel 2" in error_of(layer("pyramid_height: 3"), x=(1, 2, 5, 5))
    assert "expected pyramid_height of 1 to 16, got 4000000000" in error_of(
        layer("pyramid_height: 4000000000"), x=(1, 2, 5, 5)
    )
    assert "expected a bottom of 4 axes" in error_of(layer("pyramid_height: 2"), x=(1, 2, 5))
