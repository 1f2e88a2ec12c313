import numpy as np
import pytest

from engine import proto
from tests.layers.boxes import Anchors, overlap, random_boxes, sigmoid, softmax, truth_blob
from tests.layers.harness import error_of, run

SIDE, CLASSES, BIASES = 4, 3, [1.0, 1.5, 2.0, 0.8]
TRUTH = [(0, 1), (0, 2), (0, 2), (2, 3), (2, 1)]


def layer(params="", biases=BIASES):
    biases = " ".join(f"biases: {bias}" for bias in biases)
    return f"""layer {{ name: "layer" type: "EvalDetection" bottom: "x" bottom: "truth" top: "y" eval_detection_param {{
        side: {SIDE} num_class: {CLASSES} num_object: 2 {biases} {params} }} }}"""


def reference(x, truth, threshold, nms, score):
    grid = Anchors(x, CLASSES, BIASES)
    top = np.zeros((len(x), CLASSES + 2 * SIDE**2 * 4))
    for n in range(len(x)):
        truths = [(int(row[1]) - 1, row[3:7].astype(np.float64)) for row in truth[0, 0] if row[0] == n]
        for label, _ in truths:
            top[n, label] += 1
        found = []
        for place in np.ndindex(2, SIDE, SIDE):
            values = grid.values[(n, *place)]
            p, best = sigmoid(values[4]), softmax(values[5:])
            found.append(
                ({"OBJ": p, "PROB": best.max(), "MULTIPLY": p * best.max()}[score], best.argmax(), grid.box(n, *place))
            )
        kept = []
        for each in sorted(found, key=lambda each: -each[0]):
            if nms < 0 or all(overlap(each[2], other[2]) < nms for other in kept):
                kept.append(each)
        claimed, rows = set(), []
        for value, label, box in sorted(kept, key=lambda each: each[1]):
            shared, which = max(
                ((overlap(box, b), -t) for t, (c, b) in enumerate(truths) if c == label), default=(-1, 0)
            )
            right = shared >= max(threshold, 0) and which not in claimed
            claimed |= {which} if right else set()
            if value >= 0.005:
                rows += [label, value, right, not right]
        top[n, CLASSES : CLASSES + len(rows)] = rows
    return top


@pytest.mark.parametrize("score", ["OBJ", "PROB", "MULTIPLY"])
@pytest.mark.parametrize("nms", [-1, 0.3])
@pytest.mark.parametrize("threshold", [0.2, -1])  # image 1 has no true box that a detection could claim
def test_forward(threshold, nms, score):
    generator = np.random.default_rng(6)  # a seed of its own: with others the reference may have no right detection
    x = generator.normal(size=(3, 2 * (5 + CLASSES), SIDE, SIDE)).astype(np.float32)
    boxes = random_boxes(generator, len(TRUTH))
    truth = truth_blob([(n, label, box, 0) for (n, label), box in zip(TRUTH, boxes)])
    y = run(layer(f"threshold: {threshold} nms: {nms} score_type: {score}"), proto.TEST, x=x, truth=truth)
    y = y.blobs["y"].data
    expected = reference(x, truth, threshold, nms, score)
    assert expected[:, CLASSES + 2 :: 4].any()  # some detections are right
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        (layer(), {"x": (2, 15, 4, 4)}, "layer 'layer' (EvalDetection): expected predictions ('N', 16, 4, 4), got"),
        (layer(), {"truth": (2, 8)}, "expected ground truth (1, 1, M, 8), got (2, 8)"),
        (layer(biases=[1, 2]), {}, "expected 4 biases above 0, width and height of each anchor, got [1, 2]"),
    ],
)
def test_errors(text, shapes, message):
    assert message in error_of(text, proto.TEST, **{"x": (2, 16, 4, 4), "truth": (1, 1, 5, 8), **shapes})
