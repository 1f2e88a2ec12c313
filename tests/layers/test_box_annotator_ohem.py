import numpy as np
import pytest

from tests.layers.harness import error_of, run

RANDOM = np.random.default_rng(15)


def layer(per_image=2):
    return f"""layer {{ name: "layer" type: "BoxAnnotatorOHEM" bottom: "rois" bottom: "losses" bottom: "labels"
        bottom: "weights" top: "l" top: "w"
        box_annotator_ohem_param {{ roi_per_img: {per_image} ignore_label: -1 }} }}"""


@pytest.mark.parametrize("spatial", [(), (1, 1), (2, 3)])
@pytest.mark.parametrize("per_image", [1, 3, 50])
def test_forward(spatial, per_image):
    n, c = 7, 4
    rois = RANDOM.uniform(0, 9, (n, 5, *spatial)).astype(np.float32)
    rois[:, 0] = RANDOM.integers(-1, 3, (n, *spatial))
    losses = RANDOM.permutation(n * int(np.prod(spatial))).astype(np.float32).reshape(n, 1, *(spatial or (1, 1)))
    labels = RANDOM.integers(0, 9, losses.shape).astype(np.float32)
    weights = RANDOM.normal(size=(n, c, *spatial)).astype(np.float32)
    net = run(layer(per_image), rois=rois, losses=losses, labels=labels, weights=weights)
    images = rois[:, :1].reshape(losses.shape)
    hard = np.zeros(losses.shape, bool)
    for image in range(3):
        own = losses[images == image]
        if own.size:
            hard |= (images == image) & (losses >= np.sort(own)[-min(per_image, own.size)])
    np.testing.assert_array_equal(net.blobs["l"].data, np.where(hard, labels, -1))
    np.testing.assert_array_equal(net.blobs["w"].data, np.where(hard, weights.reshape(n, c, *hard.shape[2:]), 0))


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"rois": (7, 4)}, "layer 'layer' (BoxAnnotatorOHEM): expected regions (R, 5, H, W), got (7, 4)"),
        ({"losses": (6,)}, "expected 7 losses, one for each region, got (6,)"),
        ({"labels": (7, 2)}, "expected 7 labels, one for each region, got (7, 2)"),
        ({"weights": (6, 4)}, "expected weights (7, 'C', 1, 1), got (6, 4)"),
    ],
)
def test_errors(shapes, message):
    shapes = {"rois": (7, 5), "losses": (7,), "labels": (7,), "weights": (7, 4), **shapes}
    assert message in error_of(layer(), **shapes)


def test_no_region_at_all():
    shapes = {"rois": (7, 5), "losses": (7,), "labels": (7,), "weights": (7, 4)}
    assert "expected roi_per_img of at least 1, got 0" in error_of(layer(0), **shapes)


def test_mining_in_a_net():
    """With R-FCN's three layers, of each image only the losses of the two hardest regions have a gradient."""
    text = """
    layer { name: "first" type: "SoftmaxWithLossOHEM" bottom: "x" bottom: "labels" top: "t" top: "p" top: "losses"
            loss_weight: 0 loss_weight: 0 loss_weight: 0 propagate_down: false propagate_down: false }
    """
    text += layer(2).replace("box_annotator", "propagate_down: false " * 4 + "box_annotator", 1)
    text += """
    layer { name: "silence" type: "Silence" bottom: "t" bottom: "p" bottom: "w" }
    layer { name: "second" type: "SoftmaxWithLossOHEM" bottom: "x" bottom: "l" top: "y" loss_weight: 1
            loss_param { ignore_label: -1 normalization: PRE_FIXED pre_fixed_normalizer: 4 } }
    """
    rois = RANDOM.uniform(0, 9, (12, 5)).astype(np.float32)
    rois[:, 0] = np.arange(12) % 2
    labels = RANDOM.integers(0, 5, (12, 1)).astype(np.float32)
    scores = RANDOM.normal(size=(12, 5)).astype(np.float32)
    net = run(text, x=scores, labels=labels, rois=rois, weights=np.ones((12, 8), np.float32))
    net.backward()
    each = net.blobs["losses"].data.ravel()
    hardest = {i for image in (0, 1) for i in sorted(range(image, 12, 2), key=lambda i: -each[i])[:2]}
    assert set(np.flatnonzero(np.abs(net.blobs["x"].diff).sum(1))) == hardest
    np.testing.assert_allclose(net.blobs["y"].data, sum(each[i] for i in hardest) / 4, rtol=1e-5)
