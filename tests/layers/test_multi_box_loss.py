import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.boxes import encode, overlap, priors, random_boxes, truth_blob
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

N, P = 3, 24
# Two boxes of one image, and three of another, one of them difficult. The last image has none.
TRUTH = [(0, 1, 0), (0, 2, 0), (1, 3, 0), (1, 1, 1), (1, 2, 0)]
NORMALIZERS = {"VALID": None, "FULL": N * P, "BATCH_SIZE": N, "NONE": 1}


def layer(params="", classes=4, normalization="VALID", flags=""):
    return f"""layer {{ name: "layer" type: "MultiBoxLoss" bottom: "loc" bottom: "conf" bottom: "prior" bottom: "truth"
        top: "loss" loss_weight: 2 {flags} loss_param {{ normalization: {normalization} }}
        multibox_loss_param {{ num_classes: {classes} {params} }} }}"""


def bottoms(classes=4, location_classes=1):
    random = np.random.default_rng(6)  # a generator of its own, so that values do not depend on other tests
    truth = [(n, label, box, difficult) for (n, label, difficult), box in zip(TRUTH, random_boxes(random, len(TRUTH)))]
    return {
        "loc": 2 * random.normal(size=(N, P * location_classes * 4)).astype(np.float32),
        "conf": 2 * random.normal(size=(N, P * classes)).astype(np.float32),
        "prior": priors(random, P),
        "truth": truth_blob(truth),
    }


def match(truths, boxes, threshold, per_prediction, cross_boundary):
    """Returns two values for each prior: the index of its box, -1 (none) or -2 (ignored), and its largest overlap."""
    table = np.array([[overlap(box, truth[1]) for truth in truths] for box in boxes]).reshape(len(boxes), -1)
    which = np.full(len(boxes), -1)
    if cross_boundary and truths:
        which[((boxes < 0) | (boxes > 1)).any(1)] = -2
    most = np.where(which == -2, 0, table.max(1, initial=0))
    free = set(range(len(truths)))
    while free:
        pairs = [
            (table[p, t], -p, -t) for p in range(len(boxes)) for t in free if which[p] == -1 and table[p, t] > 1e-6
        ]
        if not pairs:
            break
        most_of_all, p, t = max(pairs)
        which[-p], most[-p] = -t, most_of_all
        free.remove(-t)
    if per_prediction and truths:
        rest = (which == -1) & (most >= threshold)
        which[rest] = table[rest].argmax(1)
    return which, most


def class_losses(scores, labels, logistic, targets):
    if logistic:
        return (np.logaddexp(0, scores) - scores * targets).sum(-1)
    return np.log(np.exp(scores).sum(-1)) - np.take_along_axis(scores, labels[:, None], 1)[:, 0]


def reference(loc, conf, prior, truth, *, code="CORNER", classes=4, location_classes=1, mining=True, ratio=3.0,
              negative=0.5, threshold=0.5, per_prediction=True, cross_boundary=False, difficult=True, l2=False,
              logistic=False, weight=1.0, scaled=True, inside=False, normalizer=None, agnostic=False):  # fmt: skip
    boxes, variances = prior[0].astype(np.float64).reshape(2, P, 4)
    loc = loc.astype(np.float64).reshape(N, P, location_classes, 4)
    conf = conf.astype(np.float64).reshape(N, P, classes)
    location_loss = class_loss = matches = 0
    for n in range(N):
        truths = [(int(row[1]), row[3:7].astype(np.float64)) for row in truth[0, 0] if row[0] == n]
        if not difficult:
            hard = [row[7] for row in truth[0, 0] if row[0] == n]
            truths = [each for each, out in zip(truths, hard) if not out]
        which, most = match(truths, boxes, threshold, per_prediction, cross_boundary)
        matched = which >= 0
        labels = np.array([(1 if agnostic else truths[t][0]) if t >= 0 else 0 for t in which])
        targets = np.eye(classes)[labels] * (1 if mining else matched[:, None])
        losses = class_losses(conf[n], labels, logistic, targets)
        chosen = matched | (not mining)
        if mining:
            others = [p for p in np.argsort(-losses, kind="stable") if which[p] == -1 and most[p] < negative]
            chosen[others[: int(matched.sum() * ratio)]] = True
        class_loss += losses[chosen].sum()
        matches += matched.sum()
        for p in np.flatnonzero(matched):
            label, box = labels[p], truths[which[p]][1]
            target = encode(code, boxes[p], variances[p] if scaled else 1, box)
            d = np.abs(loc[n, p, label if location_classes > 1 else 0] - target) / (1 if scaled else variances[p])
            d[inside & ((boxes[p] < 0) | (boxes[p] > 1))] = 0
            location_loss += np.where(l2 | (d < 1), d**2 / 2, d - 0.5).sum()
    assert matches > 3
    return (weight * location_loss + class_loss) / max(1, normalizer or matches)


CASES = [
    ("", {}),
    ("code_type: CENTER_SIZE loc_weight: 0.5", {"code": "CENTER_SIZE", "weight": 0.5}),
    ("code_type: CORNER_SIZE loc_loss_type: L2", {"code": "CORNER_SIZE", "l2": True}),
    ("mining_type: NONE", {"mining": False}),
    ("do_neg_mining: false", {"mining": False}),
    ("mining_type: NONE share_location: false", {"mining": False, "location_classes": 4}),
    ("neg_pos_ratio: 1.5 neg_overlap: 0.2", {"ratio": 1.5, "negative": 0.2}),
    ("overlap_threshold: 0.2", {"threshold": 0.2}),
    ("match_type: BIPARTITE", {"per_prediction": False}),
    ("use_difficult_gt: false", {"difficult": False}),
    ("ignore_cross_boundary_bbox: true overlap_threshold: 0.2", {"cross_boundary": True, "threshold": 0.2}),
    ("bp_inside: true overlap_threshold: 0.2", {"inside": True, "threshold": 0.2}),
    ("conf_loss_type: LOGISTIC", {"logistic": True}),
    ("conf_loss_type: LOGISTIC mining_type: NONE", {"logistic": True, "mining": False}),
    ("encode_variance_in_target: true code_type: CENTER_SIZE", {"scaled": False, "code": "CENTER_SIZE"}),
]


@pytest.mark.parametrize("params, how", CASES)
def test_forward_and_gradients(params, how):
    values = bottoms(location_classes=how.get("location_classes", 1))
    loss = run(layer(params), **values).blobs["loss"].data
    np.testing.assert_allclose(loss, reference(**values, **how), rtol=1e-4)
    shapes = {name: value.shape for name, value in values.items()}
    check_gradients(net_text(layer(params), **shapes), values, step=3e-3, tolerance=4e-3)


@pytest.mark.parametrize("locations", [True, False])
@pytest.mark.parametrize("confidences", [True, False])
def test_without_a_gradient_a_term_is_not_in_the_loss(locations, confidences):
    values = bottoms()
    flags = [str(flag).lower() for flag in (locations, confidences, False, False)]
    text = layer(flags=" ".join(f"propagate_down: {flag}" for flag in flags))
    alone = reference(**values, weight=0)  # the loss of the confidences alone
    expected = confidences * alone + locations * (reference(**values) - alone)
    net = run(text, **values)
    np.testing.assert_allclose(net.blobs["loss"].data, expected, rtol=1e-4)
    assert [net.blobs[name].diff is not None for name in ("loc", "conf")] == [locations, confidences]
    if locations or confidences:
        shapes = {name: value.shape for name, value in values.items()}
        check_gradients(net_text(text, **shapes), values, step=3e-3, tolerance=4e-3)


@pytest.mark.parametrize("normalization", NORMALIZERS)
def test_normalization(normalization):
    values = bottoms()
    loss = run(layer(normalization=normalization), **values).blobs["loss"].data
    np.testing.assert_allclose(loss, reference(**values, normalizer=NORMALIZERS[normalization]), rtol=1e-4)


@pytest.mark.parametrize("more", ["", "mining_type: NONE share_location: false"])
def test_all_objects_alike(more):
    """The label of an object makes no difference."""
    how = {"location_classes": 2, "mining": False} if more else {}
    values = bottoms(classes=2, location_classes=how.get("location_classes", 1))
    loss = run(layer(f"map_object_to_agnostic: true {more}", classes=2), **values).blobs["loss"].data
    np.testing.assert_allclose(loss, reference(**values, classes=2, agnostic=True, **how), rtol=1e-4)


def test_objects_alike_are_not_of_the_background():
    values = bottoms(classes=2)
    values["truth"][0, 0, 0, 1] = 0
    with pytest.raises(DataError, match="label 0, expected one of 0 or more that is not the background, 0"):
        run(layer("map_object_to_agnostic: true", classes=2), **values)


@pytest.mark.parametrize(("threshold", "counted"), [(0.5, 2), (0.51, 1)])
def test_an_overlap_that_just_reaches_the_threshold(threshold, counted):
    """Both priors lie in the box. The prior of the same size is matched in any case, the other if the threshold lets
    it."""
    boxes = np.float32([[0, 0, 1, 1], [0, 0, 1, 0.5]])
    values = {
        "loc": np.zeros((1, 8), np.float32),
        "conf": np.zeros((1, 8), np.float32),
        "prior": np.stack([boxes.ravel(), np.ones(8, np.float32)])[None],
        "truth": truth_blob([(0, 1, boxes[0], 0)]),
    }
    text = layer(f"overlap_threshold: {threshold} loc_weight: 0 neg_overlap: 0.4", normalization="NONE")
    np.testing.assert_allclose(run(text, **values).blobs["loss"].data, counted * np.log(4), rtol=1e-6)


def test_priors_without_boxes_that_all_count():
    """Without mining all priors count. None is matched, so the sum is divided by 1."""
    values = bottoms() | {"truth": truth_blob([])}
    losses = class_losses(values["conf"].reshape(-1, 4), np.zeros(N * P, int), False, None)
    np.testing.assert_allclose(run(layer("mining_type: NONE"), **values).blobs["loss"].data, losses.sum(), rtol=1e-5)


def test_images_without_boxes():
    values = bottoms() | {"truth": truth_blob([])}
    net = run(layer(), **values)
    assert net.blobs["loss"].data == 0
    net.backward()
    assert not net.blobs["conf"].diff.any()


def test_no_gradient_reaches_priors_and_truth():
    net = make_net(net_text(layer(), **{name: value.shape for name, value in bottoms().items()}))
    assert [net.blobs[name].diff is None for name in ("loc", "conf", "prior", "truth")] == [False, False, True, True]


@pytest.mark.parametrize(
    "params, message",
    [
        ("mining_type: HARD_EXAMPLE", "layer 'layer' (MultiBoxLoss): expected mining_type MAX_NEGATIVE or NONE"),
        ("nms_param { }", "expected mining_type MAX_NEGATIVE or NONE, without nms_param"),
        ("use_prior_for_matching: false", "expected use_prior_for_matching"),
        ("background_label_id: 4", "expected background_label_id below num_classes, 4"),
        ("map_object_to_agnostic: true", "expected num_classes 2 with map_object_to_agnostic, got 4"),
        ("neg_pos_ratio: 0", "expected neg_pos_ratio above 0, got 0"),
    ],
)
def test_errors(params, message):
    assert message in error_of(layer(params), **{name: value.shape for name, value in bottoms().items()})


def test_agnostic_background():
    """With map_object_to_agnostic there are two classes, of which the background must be the first."""
    shapes = {name: value.shape for name, value in bottoms(classes=2).items()}
    text = layer("map_object_to_agnostic: true background_label_id: 1", classes=2)
    assert "expected background_label_id 0 with map_object_to_agnostic, got 1" in error_of(text, **shapes)


def test_errors_of_shapes():
    shapes = {name: value.shape for name, value in bottoms().items()}
    assert "expected locations (3, 384), 16 for each of 24 priors" in error_of(layer("share_location: false"), **shapes)
    assert "expected ground truth (1, 1, M, 8)" in error_of(layer(), **{**shapes, "truth": (3, 8)})
    assert "expected share_location with mining_type MAX_NEGATIVE" in error_of(
        layer("share_location: false"), **{**shapes, "loc": (N, P * 16)}
    )
