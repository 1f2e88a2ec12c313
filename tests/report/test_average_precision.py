"""The mean average precision, worked out by hand."""

import numpy as np
import pytest

from engine.comm.world import World
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
from engine.report.average_precision import Detections

# Class 1: four boxes; found in the order of scores right, wrong, right. Class 2: one box, not found; class 3 has none.
BOXES = [(-1, 1, 3, -1, -1), (-1, 2, 1, -1, -1), (-1, 3, 0, -1, -1)]
FOUND = [(0, 1, 0.5, 1, 0), (0, 1, 0.9, 1, 0), (1, 1, 0.7, 0, 1), (1, 3, 0.8, 0, 1), (1, 1, 0.6, 0, 0), (-1,) * 5]
# Precisions 1, 1/2, 2/3 at recalls 1/4, 1/4, 1/2.
BY_HAND = {"11point": (3 + 3 * 2 / 3) / 11, "MaxIntegral": 1 / 4 + 2 / 3 / 4, "Integral": 1 / 4 + 2 / 3 / 4}


@pytest.mark.parametrize("version", BY_HAND)
def test_by_hand(version):
    detections = Detections()
    detections.add_rows(np.array(BOXES + FOUND[:2]))
    detections.add_rows(np.array([(-1, 1, 1, -1, -1), *FOUND[2:]]).reshape(1, 1, -1, 5))
    assert detections.average_precisions(version) == pytest.approx({1: BY_HAND[version], 2: 0})
    assert detections.mean(version) == pytest.approx(BY_HAND[version] / 2)


def test_the_envelope_of_precisions():
    """Wrong before right: the integral takes precision 1/2 at the first box, the best from there on is 2/3."""
    detections = Detections()
    detections.add_rows(np.array([(-1, 1, 2, -1, -1), (0, 1, 0.9, 0, 1), (0, 1, 0.8, 1, 0), (0, 1, 0.7, 1, 0)]))
    assert detections.mean("Integral") == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert detections.mean("MaxIntegral") == pytest.approx(2 / 3)
    assert detections.mean("11point") == pytest.approx(2 / 3)


def test_rows_of_eval_detection():
    """Two images, two classes."""
    first = [1, 0, *(0, 0.9, 1, 0), *(0, 0, 0, 0)]
    second = [2, 1, *(1, 0.8, 1, 0), *(0, 0.95, 0, 1)]
    detections = Detections()
    detections.add_samples(np.array([first, second]), 2)
    assert detections.average_precisions("Integral") == pytest.approx({0: 1 / 2 / 3, 1: 1})


def test_nothing_at_all():
    assert Detections().mean("11point") == 0


NET = """
layer { name: "detections" type: "MemoryData" top: "detections" top: "n"
  memory_data_param { batch_size: 1 channels: 1 height: 2 width: 7 } }
layer { name: "truth" type: "MemoryData" top: "truth" top: "m"
  memory_data_param { batch_size: 1 channels: 1 height: 1 width: 8 } }
layer { name: "silence" type: "Silence" bottom: "n" bottom: "m" }
layer { name: "map" type: "DetectionEvaluate" bottom: "detections" bottom: "truth" top: "map"
  detection_evaluate_param { num_classes: 2 overlap_threshold: 0.5 } }
"""


def test_a_net_is_judged_over_all_batches():
    """The box of the first image is found behind a wrong one, that of the second is not: half of the boxes, a
    precision of 1/2 or, behind the wrong one of the second image, 1/3."""
    box, other = (0.1, 0.1, 0.5, 0.5), (0.6, 0.6, 0.9, 0.9)
    first, second = [(0, 1, 0.9, *other), (0, 1, 0.8, *box)], [(0, 1, 0.85, *other), (-1,) * 7]
    evaluator = Evaluator(parse_net(NET), world=World(), show_per_class=True)
    labels = np.zeros(2)
    evaluator.feeder.set_arrays("detections", np.array([[first], [second]]), labels)
    evaluator.feeder.set_arrays("truth", np.array([[[(0, 1, 0, *box, 0)]]] * 2), labels)
    batches = []
    found = evaluator.run(2, lambda k, outputs: batches.append(outputs))
    assert {name: value.tolist() for name, value in found.items()} == {
        "map": [pytest.approx(1 / 3 / 2)],
        "map_class1": [pytest.approx(1 / 3 / 2)],
    }
    assert batches == [{}, {}]
    evaluator.close()
