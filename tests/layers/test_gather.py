"""Gather and Scatter, whose tops are their bottoms."""

import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(5)


def layer(kind="Gather", tops="z"):
    more = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "y" top: "top" {more} }}'


@pytest.mark.parametrize("kind", ["Gather", "Scatter"])
def test_tops_are_bottoms(kind):
    x, y = RANDOM.normal(size=(3, 4, 2, 2)), RANDOM.normal(size=3)
    net = run(layer(kind), x=x, y=y)
    assert np.array_equal(net.blobs["top"].data, x.astype(np.float32))
    assert np.array_equal(net.blobs["z"].data, y.astype(np.float32))
    check_gradients(net_text(layer(kind), x=x.shape, y=y.shape), {"x": x, "y": y})


def test_labels_that_pass_through_it():
    """The layer that reads them still takes them as labels, without a gradient."""
    text = (
        layer()
        + """
        layer { name: "ip" type: "InnerProduct" bottom: "top" top: "ip"
          inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "z" top: "loss" }"""
    )
    net = run(text, x=RANDOM.normal(size=(4, 5)), y=np.array([0, 1, 2, 1]))
    net.backward()
    assert net.blobs["x"].diff.any() and np.isfinite(net.blobs["loss"].data)


def test_a_top_for_each_bottom():
    assert "expected a top for each bottom, got 2 and 3" in error_of(layer(tops="zu"), x=(3, 4), y=(3,))
