import numpy as np
import pytest

from engine.layers.proposal import anchor_boxes
from tests.layers.harness import error_of, inputs, make_net, net_text

SMALL = "scale: 1 scale: 2 ratio: 1 ratio: 2"
TOPS = ("labels", "offsets", "inside", "outside")


def layer(params=SMALL, bottoms="stg"):
    names = " ".join(f'bottom: "{name}"' for name in ("scores", "truth", "size", "image")[: len(bottoms)])
    names += "".join(f' top: "{name}"' for name in TOPS)
    return f'layer {{ name: "layer" type: "AnchorTarget" {names} anchor_target_param {{ {params} }} }}'


def run(params, truth, size=(96, 128), step=0, grid=(6, 8), anchors=4):
    truth = np.array(truth, np.float32).reshape(-1, 5)
    text = net_text(layer(params), scores=(1, 2 * anchors, *grid), truth=truth.shape, size=(1, 3))
    net = make_net(text)
    inputs(net)["truth"].set(truth)
    inputs(net)["size"].set(np.array([[*size, 1]], np.float32))
    net.forward((step, 0, None))
    return [net.blobs[name].data for name in TOPS]


def iou(a, b):
    """Returns the overlaps (A, B) of boxes (A, 4) and (B, 4), whose last pixels belong to them."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = np.prod(np.maximum(high - low + 1, 0), -1)
    area_a, area_b = (np.prod(x[:, 2:] - x[:, :2] + 1, -1) for x in (a, b))
    return both / (area_a[:, None] + area_b[None] - both)


def offsets_to(boxes, truth):
    size, wanted = boxes[:, 2:] - boxes[:, :2] + 1, truth[:, 2:4] - truth[:, :2] + 1
    moved = (truth[:, :2] + wanted / 2 - boxes[:, :2] - size / 2) / size
    return np.concatenate([moved, np.log(wanted / size)], 1)


def reference(truth, size, grid, border=0, positive=0.7, negative=0.3, clobber=False):
    """Returns labels (H W, A) and offsets (H W, A, 4) before any are chosen at random."""
    truth = np.array([row for row in truth if row[4] > 0], np.float64).reshape(-1, 5)
    anchors = anchor_boxes(16, [1, 2], [1, 2])
    rows, columns = np.mgrid[: grid[0], : grid[1]] * 16.0
    shifts = np.stack([columns, rows, columns, rows], -1).reshape(-1, 1, 4)
    boxes = (shifts + anchors).reshape(-1, 4)
    inside = (boxes[:, :2] >= -border).all(1) & (boxes[:, 2] < size[1] + border) & (boxes[:, 3] < size[0] + border)
    labels, overlaps = np.full(len(boxes), -1), iou(boxes, truth[:, :4])
    most = overlaps.max(1)
    if not clobber:
        labels[most < negative] = 0
    nearest = (overlaps == np.where(inside[:, None], overlaps, 0).max(0)) & (overlaps > 0)
    labels[nearest.any(1)] = 1
    labels[most >= positive] = 1
    if clobber:
        labels[most < negative] = 0
    labels[~inside] = -1
    return labels, offsets_to(boxes, truth[overlaps.argmax(1)]), inside


TRUTH = [[20, 18, 52, 47, 3], [70, 40, 85, 71, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "params, options",
    [
        ("", {}),
        ("allowed_border: 20", {"border": 20}),
        ("positive_overlap: 0.5 negative_overlap: 0.45", {"positive": 0.5, "negative": 0.45}),
        ("negative_overlap: 0.8 clobber_positives: true", {"negative": 0.8, "clobber": True}),
    ],
)
def test_formula(params, options):
    labels, offsets, inner, outer = run(f"{SMALL} batch_size: 1000 {params}", TRUTH)
    expected, wanted, inside = reference(TRUTH, (96, 128), (6, 8), **options)
    assert 0 < (expected == 1).sum() < 50 or "clobber" in params
    by_anchor = labels.reshape(4, -1).T.ravel()
    np.testing.assert_array_equal(by_anchor, expected)
    found = offsets.reshape(4, 4, -1).transpose(2, 0, 1).reshape(-1, 4)
    np.testing.assert_allclose(found[inside], wanted[inside], rtol=1e-4, atol=1e-5)
    assert not found[~inside].any()
    weights = inner.reshape(4, 4, -1).transpose(2, 0, 1).reshape(-1, 4)
    np.testing.assert_array_equal(weights, np.repeat((expected == 1)[:, None], 4, 1))
    weights = outer.reshape(4, 4, -1).transpose(2, 0, 1).reshape(-1, 4)
    each = np.repeat((expected >= 0)[:, None], 4, 1) / (expected >= 0).sum()
    np.testing.assert_allclose(weights, each, rtol=1e-5)


def test_a_choice_of_anchors():
    everything = run(f"{SMALL} batch_size: 1000", TRUTH)[0]
    params = f"{SMALL} batch_size: 12 fg_fraction: 0.25 positive_overlap: 0.3"
    first, again, later = (run(params, TRUTH, step=step)[0] for step in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()
    for labels in (first, later):
        assert (labels == 1).sum() == 3 and (labels == 0).sum() == 9
        assert (everything[labels == 0] == 0).all()


def test_weights_of_positives():
    labels, _, inner, outer = run(
        f"{SMALL} positive_weight: 0.75 bbox_inside_weight: 1 bbox_inside_weight: 2 bbox_inside_weight: 3 "
        "bbox_inside_weight: 4",
        TRUTH,
    )
    labels, outer, inner = labels.ravel(), outer.reshape(4, 4, -1)[:, 0].ravel(), inner.reshape(4, 4, -1)
    np.testing.assert_allclose(outer[labels == 1], 0.75 / (labels == 1).sum(), rtol=1e-5)
    np.testing.assert_allclose(outer[labels == 0], 0.25 / (labels == 0).sum(), rtol=1e-5)
    assert sorted(set(inner.max((0, 2)).tolist())) == [1, 2, 3, 4]


def test_without_objects_all_is_background():
    labels, offsets, inner, _ = run(f"{SMALL} batch_size: 1000", [[0, 0, 0, 0, 0]])
    assert (labels <= 0).all() and (labels == 0).any() and not offsets.any() and not inner.any()


@pytest.mark.parametrize(
    "params, shapes, message",
    [
        (SMALL, {"scores": (2, 8, 6, 8)}, "expected scores (1, 8, 'H', 'W') of one image, 4 anchors, got (2, 8, 6, 8)"),
        ("", {}, "expected scores (1, 18, 'H', 'W')"),
        (SMALL, {"truth": (3, 4)}, "expected true boxes (G, 5) of x1, y1, x2, y2 and class, got (3, 4)"),
        (SMALL, {"size": (1,)}, "expected an image size (1, 3)"),
        (f"{SMALL} positive_weight: 1", {}, "expected positive_weight between 0 and 1, or below 0, got 1"),
        (f"{SMALL} bbox_inside_weight: 1", {}, "expected 4 values of bbox_inside_weight, got 1"),
        (f"{SMALL} scale: -1 scale: 1", {}, "got (1, 8, 6, 8)"),
        (f"{SMALL} feat_stride: 0", {}, "expected feat_stride, base_size and batch_size of at least 1"),
    ],
)
def test_errors(params, shapes, message):
    assert message in error_of(layer(params), **{"scores": (1, 8, 6, 8), "truth": (3, 5), "size": (1, 3), **shapes})
