"""The mean average precision, by hand and against others' formulas."""

from argparse import ArgumentParser

import numpy as np
import pytest

from engine.comm.world import World
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
from engine.report.average_precision import AP_VERSIONS, Detections
from engine.verbs.test import add_arguments
from tests.layers.boxes import overlap

# Class 1 has four boxes, and detections that are right, wrong and right in the order of scores. Class 2 has one box,
# which is not found, class 3 none.
BOXES = [(-1, 1, 3, -1, -1), (-1, 2, 1, -1, -1), (-1, 3, 0, -1, -1)]
FOUND = [(0, 1, 0.5, 1, 0), (0, 1, 0.9, 1, 0), (1, 1, 0.7, 0, 1), (1, 3, 0.8, 0, 1), (1, 1, 0.6, 0, 0), (-1,) * 5]
# The precisions are 1, 1/2 and 2/3 at recalls of 1/4, 1/4 and 1/2.
BY_HAND = {
    "11point": (3 + 3 * 2 / 3) / 11,
    "101point": (26 + 25 * 2 / 3) / 101,
    "MaxIntegral": 1 / 4 + 2 / 3 / 4,
    "Integral": 1 / 4 + 2 / 3 / 4,
}


@pytest.mark.parametrize("version", BY_HAND)
def test_by_hand(version):
    detections = Detections()
    detections.add_rows(np.array(BOXES + FOUND[:2]))
    detections.add_rows(np.array([(-1, 1, 1, -1, -1), *FOUND[2:]]).reshape(1, 1, -1, 5))
    assert detections.average_precisions(version) == pytest.approx({1: BY_HAND[version], 2: 0})
    assert detections.mean(version) == pytest.approx(BY_HAND[version] / 2)


def test_the_envelope_of_precisions():
    """A wrong detection comes before a right one. The integral takes a precision of 1/2 at the first box; the best
    precision from there on is 2/3."""
    detections = Detections()
    detections.add_rows(np.array([(-1, 1, 2, -1, -1), (0, 1, 0.9, 0, 1), (0, 1, 0.8, 1, 0), (0, 1, 0.7, 1, 0)]))
    assert detections.mean("Integral") == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert detections.mean("MaxIntegral") == pytest.approx(2 / 3)
    assert detections.mean("11point") == pytest.approx(2 / 3)


def test_rows_of_eval_detection():
    """The rows have two images and two classes."""
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
    """Half of the boxes are found: that of the first image after a wrong detection, at a precision of 1/2, or of 1/3 if
    that of the second image comes before it, too."""
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


# Others' formulas, on random boxes.


CLASSES, IMAGES = 3, 25
JUDGED = NET.replace("height: 2 width: 7", "height: 40 width: 7").replace("height: 1 width: 8", "height: 12 width: 8")
JUDGED = JUDGED.replace("num_classes: 2", f"num_classes: {CLASSES + 1} evaluate_difficult_gt: false")


def random_case(difficult, apart):
    """Makes boxes and detections.

    Args:
        difficult: the share of boxes that are difficult.
        apart: whether no two boxes of one class and image may overlap.

    Returns:
        Rows of truth (image, label, x1, y1, x2, y2, difficult) and of detections (image, label, score, x1, y1, x2, y2).
    """
    draw = np.random.default_rng(7)
    truth, found = [], []
    for image in range(IMAGES):
        mine = []
        for _ in range(draw.integers(0, 9)):
            label, corner, size = draw.integers(1, CLASSES + 1), draw.uniform(0, 0.7, 2), draw.uniform(0.1, 0.3, 2)
            box = np.float32([*corner, *(corner + size)])
            if apart and any(each[1] == label and overlap(each[2:6], box) > 0 for each in mine):
                continue
            mine.append((image, label, *box.tolist(), int(draw.random() < difficult)))
        for _, label, *box, _ in mine * 3:  # right ones, nearly right ones, and those of another class
            moved = np.float32(box) + draw.normal(0, 0.02, 4).astype(np.float32)
            label = draw.integers(1, CLASSES + 1) if draw.random() < 0.2 else label
            found.append((image, label, draw.random(dtype=np.float32), *moved.tolist()))
        truth += mine
    return truth, found


def judged(truth, found):
    """Returns the average precisions by layer and evaluator: version -> label -> value."""
    evaluator = Evaluator(parse_net(JUDGED), world=World())
    detections, boxes = np.full((IMAGES, 1, 40, 7), -1.0), np.full((IMAGES, 1, 12, 8), -1.0)
    for image in range(IMAGES):
        for place, row in enumerate(row for row in found if row[0] == image):
            detections[image, 0, place] = [0, *row[1:]]
        for place, row in enumerate(row for row in truth if row[0] == image):
            boxes[image, 0, place] = [0, row[1], 0, *row[2:]]
    labels = np.zeros(IMAGES)
    evaluator.feeder.set_arrays("detections", detections, labels)
    evaluator.feeder.set_arrays("truth", boxes, labels)
    evaluator.run(IMAGES)
    result = {version: evaluator.detections["map"].average_precisions(version) for version in AP_VERSIONS}
    evaluator.close()
    return result


def voc(truth, found, label, version):
    """Computes an average precision as VOCevaldet and VOCap of VOC's development kit do, with shares in place of
    pixels."""
    wanted = {i: [[*row[2:], False] for row in truth if row[:2] == (i, label)] for i in range(IMAGES)}
    boxes = sum(not row[4] for rows in wanted.values() for row in rows)
    right, wrong = [], []
    for image, _, _, *box in sorted((row for row in found if row[1] == label), key=lambda row: -row[2]):
        best = max(wanted[image], key=lambda row: overlap(row[:4], box), default=None)
        enough = best is not None and overlap(best[:4], box) >= 0.5
        right.append(bool(enough and not best[4] and not best[5]))
        wrong.append(bool(not enough or (not best[4] and best[5])))
        if enough and not best[4]:
            best[5] = True
    right, wrong = np.cumsum(right), np.cumsum(wrong)
    recall, precision = right / boxes, right / np.maximum(right + wrong, 1e-9)
    if version == "11point":
        return sum(max(precision[recall >= t / 10], default=0) / 11 for t in range(11))
    recall, precision = np.array([0, *recall, 1]), np.array([0, *precision, 0])
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    steps = np.flatnonzero(recall[1:] != recall[:-1]) + 1
    return np.sum((recall[steps] - recall[steps - 1]) * precision[steps])


@pytest.mark.parametrize("version", ["11point", "MaxIntegral"])
@pytest.mark.parametrize("difficult", [0, 0.3])
def test_it_is_voc_s(version, difficult):
    truth, found = random_case(difficult, apart=False)
    ours = judged(truth, found)[version]
    assert set(ours) == {1, 2, 3} and 0.2 < min(ours.values()) and max(ours.values()) < 0.95
    for label, value in ours.items():
        assert value == pytest.approx(voc(truth, found, label, version), abs=1e-6)


def coco(truth, found):
    """Returns pycocotools' average precision of each label at an overlap of 0.5, over boxes of all sizes."""
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def as_coco(image, label, x1, y1, x2, y2):
        return {"image_id": image + 1, "category_id": int(label), "bbox": [x1, y1, x2 - x1, y2 - y1]}

    database = COCO()
    database.dataset = {
        "images": [{"id": image + 1} for image in range(IMAGES)],
        "categories": [{"id": label} for label in range(1, CLASSES + 1)],
        "annotations": [
            {**as_coco(*row[:6]), "id": n, "area": 0.1, "iscrowd": 0} for n, row in enumerate(truth, start=1)
        ],
    }
    database.createIndex()
    results = database.loadRes([{**as_coco(*row[:2], *row[3:]), "score": row[2]} for row in found])
    evaluation = COCOeval(database, results, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][0, :, :, 0, 2]  # overlap 0.5, recalls, classes, all areas, 100 boxes
    return {label: precision[:, label - 1].mean() for label in range(1, CLASSES + 1)}


def test_the_verb_knows_all_versions():
    parser = ArgumentParser()
    add_arguments(parser)
    choices = next(action.choices for action in parser._actions if action.dest == "ap_version")
    assert set(choices) == set(AP_VERSIONS)


def test_it_is_coco_s_where_boxes_of_a_class_are_apart():
    """If boxes overlap, a detection whose best box is taken may take the second best one by COCO's rules, but not by
    VOC's."""
    truth, found = random_case(0, apart=True)
    ours, theirs = judged(truth, found)["101point"], coco(truth, found)
    assert ours == pytest.approx(theirs, abs=1e-6) and 0.2 < min(ours.values()) and max(ours.values()) < 0.95
    for version in ("11point", "MaxIntegral", "Integral"):
        assert judged(truth, found)[version] != pytest.approx(theirs, abs=1e-4)
