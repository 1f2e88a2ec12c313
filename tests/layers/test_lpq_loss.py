import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(5)


def layer(params, bottoms=("a", "b")):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "layer" type: "LpqLoss" {names} top: "y" loss_weight: 1.5 lpq_loss_param {{ {params} }} }}'


def reference(gap, p, q, p_eps=0.0, q_eps=0.01, scale=1.0, by_entries=False):
    numbers = ~np.isnan(gap)
    sums = scale * ((np.abs(np.nan_to_num(gap)) + p_eps) ** p).sum(1)
    return ((sums + q_eps) ** q).sum() / (numbers.sum() / gap.shape[1] if by_entries else len(gap))


CASES = [
    ("p: 2 q: 0.5", {"p": 2, "q": 0.5}),
    ("p: 1 q: 1", {"p": 1, "q": 1}),
    ("p: 0.8 q: 0.4 p_epsilon: 0.05 q_epsilon: 0.1", {"p": 0.8, "q": 0.4, "p_eps": 0.05, "q_eps": 0.1}),
    ("p: 2 q: 0.45 l2_prescale_by_channels: true", {"p": 2, "q": 0.45, "scale": 1 / 3}),
    ("p: 2 q: 0.5 normalize_by_num_entries: true", {"p": 2, "q": 0.5, "by_entries": True}),
]


def gaps():
    a, b = RANDOM.normal(size=(2, 2, 3, 4, 5))
    a[np.abs(a - b) < 0.05] += 0.2
    a[np.abs(a) < 0.05] += 0.2
    return a, b


@pytest.mark.parametrize("params, options", CASES)
def test_formula_and_gradients(params, options):
    a, b = gaps()
    np.testing.assert_allclose(run(layer(params), a=a, b=b).blobs["y"].data, reference(a - b, **options), rtol=1e-5)
    check_gradients(net_text(layer(params), a=a.shape, b=b.shape), {"a": a, "b": b}, step=5e-3)
    alone = layer(params, ["a"])
    np.testing.assert_allclose(run(alone, a=a).blobs["y"].data, reference(a, **options), rtol=1e-5)


@pytest.mark.parametrize("params, options", CASES)
def test_what_is_not_a_number_does_not_count(params, options):
    a, b = gaps()
    b[0, :, 1] = b[1, 2, 3, 4] = np.nan
    net = run(layer(params), a=a, b=b)
    np.testing.assert_allclose(net.blobs["y"].data, reference(a - b, **options), rtol=1e-5)
    net.backward()
    assert np.isfinite(net.blobs["a"].diff).all()
    np.testing.assert_array_equal(net.blobs["a"].diff == 0, np.isnan(b))


def test_episodes():
    a, b = gaps()
    text = layer("p: 2 p: 1 p: 0.5 q: 0.5 q: 1 q: 1 pq_episode_starts_at_iter: 0 pq_episode_starts_at_iter: 5 "
                 "pq_episode_starts_at_iter: 9 p_epsilon: 0.1")  # fmt: skip
    net = run(text, a=a, b=b)
    for iteration, p, q in ((0, 2, 0.5), (4, 2, 0.5), (5, 1, 1), (8, 1, 1), (9, 0.5, 1), (99, 0.5, 1)):
        found = net.forward((iteration, 0, None))["y"]
        np.testing.assert_allclose(found, reference(a - b, p, q, 0.1), rtol=1e-5)


@pytest.mark.parametrize(
    "params, message",
    [
        ("p: 2", "expected one p and q, or as many as pq_episode_starts_at_iter, got 1 of p, 0 of q and 0 iterations"),
        ("", "got 0 of p, 0 of q and 0 iterations"),
        ("p: 1 p: 2 q: 1 q: 1" + 2 * " pq_episode_starts_at_iter: 0", "that rise from 0, got [0, 0]"),
        ("p: 1 q: 1 pq_episode_starts_at_iter: 3", "that rise from 0, got [3]"),
    ],
)  # fmt: skip
def test_errors(params, message):
    assert message in error_of(layer(params), a=(1, 2, 3, 4), b=(1, 2, 3, 4))


def test_wrong_shapes():
    assert "expected bottoms of one shape (N, C, ...), got (1, 2), (1, 3)" in error_of(
        layer("p: 1 q: 1"), a=(1, 2), b=(1, 3)
    )
