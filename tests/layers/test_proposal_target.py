import numpy as np
import pytest

from tests.layers.harness import error_of, inputs, make_net, net_text
from tests.layers.test_anchor_target import iou, offsets_to

TOPS = ("regions", "labels", "offsets", "inside", "outside")
RANDOM = np.random.default_rng(8)


def layer(params):
    names = 'bottom: "rois" bottom: "truth"' + "".join(f' top: "{name}"' for name in TOPS)
    return (
        f'layer {{ name: "layer" type: "ProposalTarget" {names} proposal_target_param {{ num_classes: 4 {params} }} }}'
    )


def run(params, rois, truth, step=0):
    rois, truth = np.array(rois, np.float32), np.array(truth, np.float32)
    net = make_net(net_text(layer(params), rois=rois.shape, truth=truth.shape))
    inputs(net)["rois"].set(rois)
    inputs(net)["truth"].set(truth)
    net.forward((step, 0, None))
    return [net.blobs[name].data for name in TOPS]


TRUTH = np.array([[20, 18, 52, 47, 3], [70, 40, 85, 71, 1], [0, 0, 0, 0, 0]], np.float32)


def some_rois(count=60):
    """Returns regions near the true boxes and far from them. The last rows are not used."""
    near = TRUTH[RANDOM.integers(0, 2, count), :4] + RANDOM.normal(0, 8, (count, 4))
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 4)
    rois = np.concatenate([np.zeros((count, 1)), near], 1).astype(np.float32)
    rois[-5:] = -1
    return rois


def test_formula():
    rois = some_rois()
    params = "batch_size: 40 fg_fraction: 1 fg_thresh: 0.6 bg_thresh_hi: 0.5 bg_thresh_lo: 0.05"
    regions, labels, offsets, inner, outer = run(params, rois, TRUTH)
    every = np.concatenate([rois[:-5, 1:], TRUTH[:2, :4]])
    overlaps = iou(every.astype(np.float64), TRUTH[:2, :4].astype(np.float64))
    most = overlaps.max(1)
    objects, others = every[most >= 0.6], every[(most < 0.5) & (most >= 0.05)]
    assert 2 < len(objects) < 40 < len(objects) + len(others)
    np.testing.assert_array_equal(regions[: len(objects), 1:], objects)
    assert not regions[:, 0].any() and not labels[len(objects) :].any()
    assert all((others == each).all(1).any() for each in regions[len(objects) :, 1:])
    assert len(np.unique(regions[len(objects) :], axis=0)) == 40 - len(objects)  # each at most once
    owners = TRUTH[overlaps[most >= 0.6].argmax(1)]
    np.testing.assert_array_equal(labels[: len(objects)], owners[:, 4])
    wanted = np.zeros((40, 4, 4))
    for row, owner in enumerate(owners):
        own = offsets_to(objects[row : row + 1].astype(np.float64), owner[None].astype(np.float64))[0]
        wanted[row, int(owner[4])] = own / [0.1, 0.1, 0.2, 0.2]
    np.testing.assert_allclose(offsets, wanted.reshape(40, 16), rtol=1e-3, atol=1e-4)
    weights = np.zeros((40, 4, 4))
    weights[np.arange(len(owners)), owners[:, 4].astype(int)] = 1
    np.testing.assert_array_equal(inner, weights.reshape(40, 16))
    np.testing.assert_array_equal(outer, weights.reshape(40, 16))


def test_a_choice_of_regions():
    rois = some_rois()
    params = "batch_size: 12 fg_fraction: 0.25 fg_thresh: 0.5 bg_thresh_lo: 0"
    first, again, later = (run(params, rois, TRUTH, step)[0] for step in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()
    assert (run(params, rois, TRUTH)[1] > 0).sum() == 3


def test_means_deviations_and_weights():
    params = (
        "batch_size: 2 fg_fraction: 1 bbox_normalize_mean: 1 bbox_normalize_mean: 2 bbox_normalize_mean: 3 "
        "bbox_normalize_mean: 4 bbox_normalize_std: 1 bbox_normalize_std: 1 bbox_normalize_std: 2 "
        "bbox_normalize_std: 2 "
        "bbox_inside_weight: 0 bbox_inside_weight: 1 bbox_inside_weight: 2 bbox_inside_weight: 3"
    )
    _, labels, offsets, inner, outer = run(params, -np.ones((1, 5)), TRUTH)
    assert labels.tolist() == [3, 1]  # the regions are the true boxes themselves
    np.testing.assert_allclose(offsets[0, 12:], [-1, -2, -1.5, -2])
    assert inner[0, 12:].tolist() == [0, 1, 2, 3] and outer[0, 12:].tolist() == [0, 1, 1, 1]


def test_too_few_regions_are_repeated():
    regions, labels, *_ = run("batch_size: 5 fg_fraction: 1", -np.ones((3, 5)), TRUTH)
    assert labels.tolist() == [3, 1, 3, 1, 3] and (regions[0] == regions[2]).all()
    regions, labels, offsets, *_ = run("batch_size: 3", -np.ones((3, 5)), np.zeros((2, 5)))
    assert not regions.any() and not labels.any() and not offsets.any()


@pytest.mark.parametrize(
    "params, shapes, message",
    [
        ("", {"rois": (3, 4)}, "expected regions (R, 5) of image, x1, y1, x2, y2, got (3, 4)"),
        ("", {"truth": (3, 8)}, "expected true boxes (G, 5), got (3, 8)"),
        ("num_classes: 1", {}, "expected num_classes of at least 2"),
        ("bbox_normalize_std: 1", {}, "expected 4 values of bbox_normalize_std, got 1"),
        ("bbox_normalize_std: 0 " * 4, {}, "expected bbox_normalize_std above 0, got [0.0, 0.0, 0.0, 0.0]"),
    ],
)
def test_errors(params, shapes, message):
    text = layer(params).replace("num_classes: 4 num", "num")
    assert message in error_of(text, **{"rois": (3, 5), "truth": (3, 5), **shapes})
