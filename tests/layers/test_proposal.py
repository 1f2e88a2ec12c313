import numpy as np
import pytest

from engine import proto
from tests.layers.boxes import overlap
from tests.layers.harness import error_of, make_net, net_text, run

RANDOM = np.random.default_rng(8)
N, A, H, W = 2, 6, 4, 5
ANCHORS = "ratio: 0.5 ratio: 1 ratio: 2 scale: 2 scale: 4"
SIZES = np.array([[60, 75, 1.5], [50, 70, 1]], np.float32)


def layer(params=ANCHORS, tops=("rois", "scores")):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f"""layer {{ name: "layer" type: "Proposal" bottom: "score" bottom: "offset" bottom: "size" {tops}
        proposal_param {{ {params} }} }}"""


def bottoms():
    return {
        "score": RANDOM.random((N, 2 * A, H, W)).astype(np.float32),
        "offset": RANDOM.normal(0, 0.3, (N, 4 * A, H, W)).astype(np.float32),
        "size": SIZES,
    }


def reference(score, offset, size, anchors, candidates=6000, most=300, threshold=0.7, least=16, stride=16):
    """Computes the layer. The last pixels of boxes belong to them, so a box is one wider than the difference of its
    corners."""
    result, last = [], np.array([0, 0, 1, 1])
    for n in range(N):
        height, width, scale = size[n % len(size)]
        found = []
        for row, column, a in np.ndindex(H, W, A):
            x1, y1, x2, y2 = anchors[a] + np.array([column, row, column, row]) * stride
            dx, dy, dw, dh = offset[n, 4 * a : 4 * a + 4, row, column]
            w, h = x2 - x1 + 1, y2 - y1 + 1
            x, y, w, h = x1 + w / 2 + dx * w, y1 + h / 2 + dy * h, np.exp(dw) * w, np.exp(dh) * h
            box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
            box = np.clip(box, 0, [width - 1, height - 1, width - 1, height - 1])
            if min(box[2] - box[0], box[3] - box[1]) + 1 >= least * scale:
                found.append((score[n, A + a, row, column], box))
        kept = []
        for value, box in sorted(found, key=lambda each: -each[0])[:candidates]:
            if all(overlap(box + last, other + last) <= threshold for _, other in kept):
                kept.append((value, box))
        result += [(n, *box, value) for value, box in kept[:most]]
    return np.array(result)


def test_anchors_of_faster_r_cnn():
    """The nine anchors that the authors of the paper list."""
    net = make_net(net_text(layer(""), score=(1, 18, 2, 2), offset=(1, 36, 2, 2), size=(1, 3)), proto.TEST)
    expected = [
        [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
        [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
        [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
    ]  # fmt: skip
    np.testing.assert_array_equal(net.graph.layers[-1].anchors(), expected)


@pytest.mark.parametrize(
    "params, how",
    [
        ("", {}),
        ("min_size: 20 nms_thresh: 0.4", {"least": 20, "threshold": 0.4}),
        ("pre_nms_topn: 30 post_nms_topn: 10", {"candidates": 30, "most": 10}),
        ("feat_stride: 8", {"stride": 8}),
    ],
)
def test_forward(params, how):
    values = bottoms()
    net = run(layer(f"{ANCHORS} {params}"), proto.TEST, **values)
    expected = reference(**values, anchors=net.graph.layers[-1].anchors(), **how)
    rois, scores = net.blobs["rois"].data, net.blobs["scores"].data
    assert rois.shape == (N * how.get("most", 300), 5) and len(expected) > 8
    np.testing.assert_allclose(rois[: len(expected)], expected[:, :5], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(scores[: len(expected), 0], expected[:, 5])
    assert (rois[len(expected) :] == -1).all() and (scores[len(expected) :] == -1).all()


@pytest.mark.parametrize("size", [SIZES[:1], SIZES[:1, None, None], SIZES[:, None, None], SIZES[:, :, None]])
def test_shapes_of_sizes(size):
    values = bottoms() | {"size": size}
    net = run(layer(tops=("rois",)), proto.TEST, **values)
    expected = reference(**values | {"size": size.reshape(-1, 3)}, anchors=net.graph.layers[-1].anchors())
    np.testing.assert_allclose(net.blobs["rois"].data[: len(expected)], expected[:, :5], rtol=1e-4, atol=1e-3)


def test_regions_can_be_pooled():
    text = (
        layer(tops=("rois",))
        + """layer { name: "pool" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
        roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.0625 } }"""
    )
    net = run(text, proto.TEST, **bottoms(), x=RANDOM.random((N, 3, H, W)).astype(np.float32))
    used = net.blobs["rois"].data[:, 0] >= 0
    assert net.blobs["y"].data[used].any() and not net.blobs["y"].data[~used].any()


@pytest.mark.parametrize(
    "params, shapes, message",
    [
        ("", {}, "layer 'layer' (Proposal): expected scores ('N', 18, 'H', 'W') for 9 anchors, got (2, 12, 4, 5)"),
        (ANCHORS, {"offset": (2, 24, 4, 4)}, "expected offsets (2, 24, 4, 5), got (2, 24, 4, 4)"),
        (ANCHORS, {"size": (2, 2)}, "expected image sizes (2, 3) of height, width and scale, got (2, 2)"),
        (ANCHORS + " post_nms_topn: 0", {}, "pre_nms_topn and post_nms_topn of at least 1"),
    ],
)
def test_errors(params, shapes, message):
    shapes = {name: value.shape for name, value in bottoms().items()} | shapes
    assert message in error_of(layer(params), proto.TEST, **shapes)
