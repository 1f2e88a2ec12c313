import numpy as np
import pytest

from engine import proto
from engine.net import Counters
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff

SHAPE = (4, 40, 9, 8)


def layer(ratio=0.3, bottom="x", top="y", name="layer"):
    param = f"spatial_dropout_param {{ dropout_ratio: {ratio} }}"
    return f'layer {{ name: "{name}" type: "SpatialDropout" bottom: "{bottom}" top: "{top}" {param} }}'


def kept(shape=SHAPE, step=0, first_sample=0, seed=1, **options):
    """Returns which channels are kept, (N, C)."""
    net = make_net(net_text(layer(**options), x=shape), seed=seed)
    net.blobs["x"].set(np.ones(shape))
    channels = (net.forward(Counters(step, first_sample))["y"] != 0).reshape(*shape[:2], -1)
    assert (channels == channels[:, :, :1]).all()  # channels are dropped as a whole
    return channels[:, :, 0]


@pytest.mark.parametrize("ratio", [0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(20, 200), (4, 50, 6), (2, 16, 10, 9)])
def test_forward_and_gradient(ratio, shape):
    x = np.random.default_rng(1).uniform(1, 2, shape).astype(np.float32)
    net = run(layer(ratio), x=x)
    y = net.blobs["y"].data
    np.testing.assert_allclose(y, np.where(y != 0, x / (1 - ratio), 0), rtol=1e-6)
    set_top_diff(net, "y", x)
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, y)
    check_gradients(net_text(layer(ratio), x=shape), {"x": x})


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5, 0.9])
def test_ratio_is_kept(ratio):
    mask = kept((100, 10000, 2), ratio=ratio)
    assert abs(mask.mean() - (1 - ratio)) < 4 * np.sqrt(ratio * (1 - ratio)) / 1000


def test_step_seed_and_layer_change_the_mask():
    masks = [kept(), kept(step=1), kept(seed=2), kept(name="other"), kept(first_sample=SHAPE[0])]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert 0.25 < (mask != other).mean() < 0.6  # 2 * 0.3 * 0.7 = 0.42 for independent masks
    np.testing.assert_array_equal(kept(), masks[0])


def test_the_same_on_any_number_of_ranks():
    whole = kept(step=7, first_sample=8)
    shares = [kept((1, *SHAPE[1:]), step=7, first_sample=8 + n) for n in range(SHAPE[0])]
    np.testing.assert_array_equal(np.concatenate(shares), whole)


def test_the_same_in_any_layout():
    net = run_blocked(layer(bottom="c"), size=(4, 3, 9, 8), c=40)
    c, y = net.blobs["c"], net.blobs["y"]
    scale = np.where(kept(), np.float32(1 / 0.7), 0)[:, :, None, None]
    assert not y.tensor.is_plain
    np.testing.assert_allclose(y.data, c.data * scale, rtol=1e-6)
    np.testing.assert_allclose(c.diff, y.diff * scale, rtol=1e-6)


def test_in_place():
    apart, within = run_blocked(layer(bottom="c"), c=40), run_blocked(layer(bottom="c", top="c"), c=40)
    np.testing.assert_array_equal(within.outputs()["c"], apart.outputs()["y"])
    np.testing.assert_array_equal(within.params["c"][0].diff.get(), apart.params["c"][0].diff.get())


def test_does_nothing_at_test_time():
    net = run_blocked(layer(bottom="c"), proto.TEST, c=40)
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["c"].data)
    np.testing.assert_array_equal(net.blobs["c"].diff, net.blobs["y"].diff)


def test_errors():
    assert "layer 'layer' (SpatialDropout): expected dropout_ratio in [0, 1), got 1" in error_of(layer(1), x=(2, 3))
    assert "expected a bottom of at least 2 axes, got (3,)" in error_of(layer(), x=(3,))
