import numpy as np
import pytest

from engine import proto
from tests.layers.boxes import decode, overlap, priors
from tests.layers.harness import error_of, run

N, P, CLASSES = 2, 40, 4


def layer(params=""):
    return f"""layer {{ name: "layer" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "y"
        detection_output_param {{ num_classes: {CLASSES} {params} }} }}"""


def bottoms(location_classes=1):
    random = np.random.default_rng(6)  # a generator of its own, so that values do not depend on other tests
    return {
        "loc": random.normal(size=(N, P * location_classes * 4)).astype(np.float32),
        "conf": random.random((N, P * CLASSES)).astype(np.float32),
        "prior": priors(random, P),
    }


def reference(
    loc, conf, prior, code, threshold, top_k, keep, least, location_classes, scaled=True, eta=1.0, background=0
):
    boxes, variances = prior[0].astype(np.float64).reshape(2, P, 4)
    loc, conf = loc.reshape(N, P, location_classes, 4), conf.reshape(N, P, CLASSES)
    rows = []
    for n in range(N):
        found = []
        for label in (c for c in range(CLASSES) if c != background):
            which = label if location_classes > 1 else 0
            decoded = [
                decode(code, boxes[p], variances[p] if scaled else 1, loc[n, p, which].astype(np.float64))
                for p in range(P)
            ]
            order = [p for p in np.argsort(-conf[n, :, label], kind="stable") if conf[n, p, label] > least]
            kept, limit = [], threshold
            for p in order[:top_k]:
                if all(overlap(decoded[p], decoded[other]) <= limit for other in kept):
                    kept.append(p)
                    limit *= eta if eta < 1 and limit > 0.5 else 1
            found += [(n, label, conf[n, p, label], *decoded[p]) for p in kept]
        if keep is not None and len(found) > keep:
            found = sorted(sorted(found, key=lambda row: -row[2])[:keep], key=lambda row: (row[1], -row[2]))
        rows += found
    return np.array(rows)


@pytest.mark.parametrize("code", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
@pytest.mark.parametrize("share", [True, False])
def test_forward(code, share):
    values = bottoms(1 if share else CLASSES)
    text = layer(
        f"share_location: {str(share).lower()} code_type: {code} confidence_threshold: 0.3 keep_top_k: 20 "
        "nms_param { nms_threshold: 0.4 top_k: 15 }"
    )
    y = run(text, proto.TEST, **values).blobs["y"].data
    expected = reference(
        **values, code=code, threshold=0.4, top_k=15, keep=20, least=0.3, location_classes=1 if share else CLASSES
    )
    assert y.shape == (1, 1, N * 20, 7)
    assert len(expected) > 10
    np.testing.assert_allclose(y[0, 0, : len(expected)], expected, rtol=1e-4, atol=1e-5)
    assert (y[0, 0, len(expected) :] == -1).all()


def test_without_limits():
    values = bottoms()
    text = layer("code_type: CENTER_SIZE variance_encoded_in_target: true nms_param { nms_threshold: 0.8 eta: 0.9 }")
    y = run(text, proto.TEST, **values).blobs["y"].data
    expected = reference(
        **values,
        code="CENTER_SIZE",
        threshold=0.8,
        top_k=None,
        keep=None,
        least=-1,
        location_classes=1,
        scaled=False,
        eta=0.9,
    )
    assert y.shape == (1, 1, N * P * (CLASSES - 1), 7)
    np.testing.assert_allclose(y[0, 0, : len(expected)], expected, rtol=1e-4, atol=1e-5)
    assert (y[0, 0, len(expected) :] == -1).all()


def test_limits_are_exclusive():
    """An overlap of exactly 0.5 suppresses no box, and a confidence of exactly 0.5 is too small."""
    boxes = np.float32([[0, 0, 1, 1], [0, 0, 1, 0.5], [0, 0, 0.5, 1]])
    values = {
        "loc": np.zeros((1, 12), np.float32),
        "conf": np.float32([[0, 0.9, 0, 0, 0, 0.75, 0, 0, 0, 0.5, 0, 0]]),
        "prior": np.stack([boxes.ravel(), np.ones(12, np.float32)])[None],
    }
    y = run(layer("confidence_threshold: 0.5 nms_param { nms_threshold: 0.5 }"), proto.TEST, **values).blobs["y"].data
    np.testing.assert_array_equal(y[0, 0, y[0, 0, :, 0] >= 0][:, 2], np.float32([0.9, 0.75]))


def test_nothing_found():
    text = layer("confidence_threshold: 2 keep_top_k: 5 nms_param { nms_threshold: 0.4 }")
    assert (run(text, proto.TEST, **bottoms()).blobs["y"].data == -1).all()


def test_a_net_without_background():
    values = bottoms()
    text = layer("background_label_id: -1 code_type: CORNER nms_param { nms_threshold: 0.3 top_k: 8 }")
    y = run(text, proto.TEST, **values).blobs["y"].data
    expected = reference(
        **values, code="CORNER", threshold=0.3, top_k=8, keep=None, least=-1, location_classes=1, background=-1
    )
    np.testing.assert_allclose(y[0, 0, : len(expected)], expected, rtol=1e-4, atol=1e-5)
    assert set(y[0, 0, :, 1]) >= set(range(CLASSES))


@pytest.mark.parametrize(
    "params, shapes, message",
    [
        ("", {"loc": (2, 99)}, "layer 'layer' (DetectionOutput): expected locations (2, 160), 4 for each of 40 priors"),
        ("", {"conf": (1, 160)}, "expected confidences (2, 160), 4 for each of 40 priors, got (1, 160)"),
        ("", {"prior": (1, 1, 160)}, "expected priors (1, 2, boxes * 4), got (1, 1, 160)"),
        ("share_location: false", {}, "expected locations (2, 640), 16 for each of 40 priors"),
        ("keep_top_k: 0", {}, "expected keep_top_k, top_k and classes that leave room for a detection"),
        ("nms_param { nms_threshold: -1 }", {}, "expected nms_threshold of at least 0, got -1"),
    ],
)
def test_errors(params, shapes, message):
    shapes = {"loc": (2, 160), "conf": (2, 160), "prior": (1, 2, 160), **shapes}
    assert message in error_of(layer(params), proto.TEST, **shapes)


def test_num_classes_is_missing():
    text = layer().replace(f"num_classes: {CLASSES}", "")
    assert "num_classes is missing" in error_of(text, proto.TEST, loc=(2, 160), conf=(2, 160), prior=(1, 2, 160))
