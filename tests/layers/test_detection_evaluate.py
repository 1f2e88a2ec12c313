import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from tests.layers.boxes import truth_blob
from tests.layers.harness import error_of, make_net, net_text, run

A, B, FAR = (0.1, 0.1, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9), (0.0, 0.8, 0.1, 0.9)
NEAR_A = (0.12, 0.1, 0.42, 0.4)
TRUTH = [(0, 1, A, 0), (0, 1, B, 1), (0, 2, B, 0), (2, 1, A, 0)]
DETECTIONS = [
    (0, 1, 0.5, *A),  # by its score it comes after the next, which has claimed A
    (0, 1, 0.9, *NEAR_A),
    (0, 1, 0.4, *B),  # difficult
    (0, 1, 0.3, *FAR),
    (0, 3, 0.8, *A),  # no box of that label
    (1, 2, 0.7, *A),  # no box in that image
    (2, 1, 0.6, *A),
]
HEAD = [(-1, 1, 3, -1, -1), (-1, 2, 1, -1, -1), (-1, 3, 0, -1, -1)]
FOUND = [
    (0, 1, 0.9, 1, 0),
    (0, 1, 0.5, 0, 1),
    (0, 1, 0.4, 1, 0),
    (0, 1, 0.3, 0, 1),
    (0, 3, 0.8, 0, 1),
    (1, 2, 0.7, 0, 1),
    (2, 1, 0.6, 1, 0),
]


def layer(params="num_classes: 4"):
    return f"""layer {{ name: "layer" type: "DetectionEvaluate" bottom: "found" bottom: "truth" top: "y"
        detection_evaluate_param {{ {params} }} }}"""


def evaluate(params):
    found = np.array([*DETECTIONS, [-1] * 7, [-1] * 7], np.float32)[None, None]
    return run(layer(params), proto.TEST, found=found, truth=truth_blob(TRUTH)).blobs["y"].data


def test_forward():
    y = evaluate("num_classes: 4")
    assert y.shape == (1, 1, 3 + 9, 5)
    np.testing.assert_allclose(y[0, 0], np.array([*HEAD, *FOUND, [-1] * 5, [-1] * 5], np.float32))


def test_difficult_boxes_left_out():
    y = evaluate("num_classes: 4 evaluate_difficult_gt: false")[0, 0]
    assert y[0, 2] == 2
    np.testing.assert_allclose(y[5], np.float32([0, 1, 0.4, 0, 0]))


def test_a_stricter_threshold():
    """The overlap of NEAR_A with A is 0.28 * 0.3 / (0.32 * 0.3) = 0.875."""
    assert evaluate("num_classes: 4 overlap_threshold: 0.87")[0, 0, 3, 3] == 1
    assert evaluate("num_classes: 4 overlap_threshold: 0.88")[0, 0, 3, 3] == 0


@pytest.mark.parametrize("label", [0, 4])
def test_a_label_that_is_none(label):
    net = make_net(net_text(layer(), found=(1, 1, 3, 7), truth=(1, 1, 3, 8)), proto.TEST)
    net.blobs["truth"].set(truth_blob([(0, label, A, 0)]))
    with pytest.raises(DataError, match=f"layer 'layer': row 0 of the ground truth has label {label}, expected one of"):
        net.forward()


def test_errors():
    shapes = {"found": (1, 1, 5, 7), "truth": (1, 1, 3, 8)}
    assert "layer 'layer' (DetectionEvaluate): num_classes is missing" in error_of(layer(""), proto.TEST, **shapes)
    assert "expected overlap_threshold above 0, got 0" in error_of(
        layer("num_classes: 4 overlap_threshold: 0"), proto.TEST, **shapes
    )
    assert "expected detections (1, 1, K, 7)" in error_of(layer(), proto.TEST, **{**shapes, "found": (5, 7)})
    assert "expected ground truth (1, 1, M, 8)" in error_of(layer(), proto.TEST, **{**shapes, "truth": (1, 1, 3, 5)})
