import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(7)


def layer(params="", bottoms=("x",)):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    filler = 'weight_filler { type: "gaussian" std: 1 }'
    return (
        f'layer {{ name: "layer" type: "InnerDistance" {names} top: "y" '
        f"inner_distance_param {{ num_output: 4 {filler} {params} }} }}"
    )


def distances(x, w, kind):
    if kind == "product":
        return x @ w.T
    gap = x[:, None] - w[None]
    return np.abs(gap).sum(-1) if kind == "L1" else (gap**2).sum(-1)


@pytest.mark.parametrize("kind", ["L1", "L2", "product"])
def test_of_a_parameter(kind):
    x = RANDOM.normal(size=(3, 5))
    text = layer(f'distance_type: "{kind}"')
    net = run(text, x=x)
    w = net.params["layer"][0].get()
    np.testing.assert_allclose(net.blobs["y"].data, distances(x, w, kind), rtol=1e-4)
    check_gradients(net_text(text, x=x.shape), {"x": x}, step=2e-3, tolerance=5e-3)


@pytest.mark.parametrize("kind", ["L1", "L2", "product"])
def test_of_a_bottom(kind):
    x, w = RANDOM.normal(size=(3, 5)), RANDOM.normal(size=(6, 5))
    text = layer(f'distance_type: "{kind}"', ("x", "w"))
    net = run(text, x=x, w=w)
    np.testing.assert_allclose(net.blobs["y"].data, distances(x, w, kind), rtol=1e-4)
    check_gradients(net_text(text, x=x.shape, w=w.shape), {"x": x, "w": w}, step=2e-3, tolerance=5e-3)


def test_axis():
    x = RANDOM.normal(size=(2, 3, 4, 2))
    net = run(layer("axis: 2"), x=x)
    w = net.params["layer"][0].get()
    np.testing.assert_allclose(net.blobs["y"].data, distances(x.reshape(6, 8), w, "L2").reshape(2, 3, 4), rtol=1e-4)


def test_rows_of_length_1():
    x = RANDOM.normal(size=(3, 5))
    net = run(layer("normalize: true"), x=x)
    w = net.params["layer"][0].get()
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(net.blobs["y"].data, distances(x, w, "L2"), rtol=1e-4)


@pytest.mark.parametrize("bottoms", [("x", "t"), ("x", "w", "t")])
def test_centers_learn_from_their_own_samples(bottoms):
    values = {"x": RANDOM.normal(size=(3, 5)), "w": RANDOM.normal(size=(4, 5)), "t": np.array([2, 0, 2])}
    values = {name: values[name] for name in bottoms}
    shapes = {name: each.shape for name, each in values.items()}
    net = make_net(net_text(layer("update_center_only: true", bottoms), **shapes))
    for name, each in values.items():
        inputs(net)[name].set(each)
    net.forward()
    given = RANDOM.normal(size=(3, 4))
    set_top_diff(net, "y", given)
    net.backward()
    x, t = values["x"], values["t"]
    w = values["w"] if "w" in values else net.params["layer"][0].get()
    diff = net.blobs["w"].diff if "w" in values else net.params["layer"][0].diff.get()
    expected = np.zeros((4, 5))
    for i in range(3):
        expected[t[i]] += 2 * given[i, t[i]] * (w[t[i]] - x[i])
    np.testing.assert_allclose(diff, expected, rtol=1e-4, atol=1e-5)
    every = (2 * given[:, :, None] * (x[:, None] - w[None])).sum(1)
    np.testing.assert_allclose(net.blobs["x"].diff, every, rtol=1e-4, atol=1e-5)


def test_errors():
    assert "expected distance_type L2, L1, product, got 'cos'" in error_of(layer('distance_type: "cos"'), x=(2, 3))
    assert "expected no transpose" in error_of(layer("transpose: true"), x=(2, 3))
    assert "expected as bottoms x, centers where they are no parameter, labels; got 1" in error_of(
        layer("update_center_only: true"), x=(2, 3)
    )
    assert "expected 2 labels, one for each sample of (2, 3), got (3,)" in error_of(
        layer("update_center_only: true", ("x", "t")), x=(2, 3), t=(3,)
    )
    assert "expected centers of 3 numbers each, as samples have, got (4, 5)" in error_of(
        layer("", ("x", "w")), x=(2, 3), w=(4, 5)
    )
    assert "expected num_output above 0, got 0" in error_of(layer().replace("num_output: 4", ""), x=(2, 3))
