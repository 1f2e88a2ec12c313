import numpy as np
import pytest

from engine import proto
from engine.errors import ConfigError
from engine.net import Counters
from tests.layers.blocked import run_blocked
from tests.layers.harness import error_of, make_net, net_text, run, set_top_diff

SHAPE = (4, 40, 9, 8)


def layer(ratio=0.3, bottom="x", top="y", name="layer"):
    param = f"dropout_param {{ dropout_ratio: {ratio} }}"
    return f'layer {{ name: "{name}" type: "Dropout" bottom: "{bottom}" top: "{top}" {param} }}'


def kept(shape=SHAPE, step=0, first_sample=0, seed=1, **options):
    """Returns which elements are kept."""
    net = make_net(net_text(layer(**options), x=shape), seed=seed)
    net.blobs["x"].set(np.ones(shape))
    return net.forward(Counters(step, first_sample))["y"] != 0


@pytest.mark.parametrize("ratio", [0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(100,), (20, 200), (4, 5, 60), (2, 16, 10, 9)])
def test_forward_and_gradient(ratio, shape):
    x = np.random.default_rng(1).uniform(1, 2, shape).astype(np.float32)
    net = run(layer(ratio), x=x)
    y = net.blobs["y"].data
    np.testing.assert_allclose(y, np.where(y != 0, x / (1 - ratio), 0), rtol=1e-6)
    set_top_diff(net, "y", x)
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, y)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5, 0.9])
def test_ratio_is_kept(ratio):
    mask = kept((100, 10000), ratio=ratio)
    deviation = np.sqrt(ratio * (1 - ratio))
    assert abs(mask.mean() - (1 - ratio)) < 4 * deviation / 1000
    # The counts vary within samples and across them as those of independent draws.
    assert 0.7 < mask.mean(1).std() / (deviation / 100) < 1.3
    assert 0.9 < mask.mean(0).std() / (deviation / 10) < 1.1


def test_neighbours_are_independent():
    mask = kept((100, 10000), ratio=0.5) - 0.5
    later = kept((100, 10000), ratio=0.5, step=1) - 0.5
    pairs = [(mask[:, :-1], mask[:, 1:]), (mask[:, :-64], mask[:, 64:]), (mask[:-1], mask[1:]), (mask, later)]
    for a, b in pairs:
        assert abs((a * b).mean() / 0.25) < 5e-3  # five standard deviations


def test_samples_are_those_of_the_data_layer_whatever_stands_before_it():
    """A net whose batch begins in the middle of the samples must draw the masks of these samples."""
    constant = 'layer { name: "c" type: "DummyData" top: "c" dummy_data_param { shape { dim: 1 } } }'
    data = """layer { name: "d" type: "MemoryData" top: "x" top: "label"
        memory_data_param { batch_size: %d channels: 1 height: 1 width: 100 } }"""

    def masks(samples, first_sample):
        net = make_net(constant + data % samples + layer(), shapes_of=lambda *_: [(samples, 1, 1, 100), (samples,)])
        net.feed(net.inputs[1], np.ones((samples, 1, 1, 100), np.float32))
        return net.forward(Counters(0, first_sample))["y"] != 0

    np.testing.assert_array_equal(masks(2, 2), masks(4, 0)[2:])


def test_step_seed_and_layer_change_the_mask():
    masks = [kept(), kept(step=1), kept(seed=2), kept(name="other"), kept(first_sample=SHAPE[0])]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert 0.35 < (mask != other).mean() < 0.49  # 2 * 0.3 * 0.7 = 0.42 for independent masks
    np.testing.assert_array_equal(kept(), masks[0])


def test_the_same_on_any_number_of_ranks():
    whole = kept(step=7, first_sample=8)
    shares = [kept((1, *SHAPE[1:]), step=7, first_sample=8 + n) for n in range(SHAPE[0])]
    np.testing.assert_array_equal(np.concatenate(shares), whole)


def test_the_same_in_any_layout():
    net = run_blocked(layer(bottom="c"), size=(4, 3, 9, 8), c=40)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal((y.data != 0), kept())
    scale = np.where(kept(), np.float32(1 / 0.7), 0)
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


def test_a_ratio_of_1_does_nothing_at_test_time_either():
    """BVLC's release builds accept it, since only debug builds check the ratio."""
    x = np.ones((2, 3), np.float32)
    net = make_net(net_text(layer(1), x=x.shape), proto.TEST)
    net.blobs["x"].set(x)
    np.testing.assert_array_equal(net.forward()["y"], x)
    drops = layer(1).replace("dropout_ratio: 1", "dropout_ratio: 1 sample_weights_test: true")
    with pytest.raises(ConfigError, match=r"expected dropout_ratio in \[0, 1\)"):
        make_net(net_text(drops, x=x.shape), proto.TEST)


@pytest.mark.parametrize("ratio", [1, 1.5, -0.1])
def test_ratio_out_of_range(ratio):
    assert "expected dropout_ratio in [0, 1)" in error_of(layer(ratio), x=(2, 3))
