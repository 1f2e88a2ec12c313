"""Small SSD and YOLO nets learn to find rectangles. This covers AnnotatedData with its augmentations, the losses, and
the mean average precision of tests."""

import csv
import json

import lmdb
import numpy as np
import pytest

import engine
from engine import proto
from engine.cli import main
from tests.solver.harness import make_solver

SIDE = 48

DATA = """
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: {phase} }}
  data_param {{ source: "{source}" backend: LMDB batch_size: {batch} shuffle: {shuffle} }}
  transform_param {{ scale: 0.01 mean_value: 128 mirror: {shuffle} resize_param {{ height: 48 width: 48 }}
    emit_constraint {{ emit_type: CENTER }} {augment} }}
  annotated_data_param {{ label_map_file: "{folder}/labelmap.prototxt" {samplers} }} }}
"""
AUGMENT = "distort_param { brightness_prob: 0.5 brightness_delta: 16 } expand_param { prob: 0.3 max_expand_ratio: 1.5 }"
SAMPLERS = """batch_sampler { max_sample: 1 max_trials: 1 } batch_sampler { max_sample: 1 max_trials: 20
  sampler { min_scale: 0.6 max_scale: 1 min_aspect_ratio: 0.7 max_aspect_ratio: 1.4 }
  sample_constraint { min_object_coverage: 0.9 } }"""


def convolution(name: str, bottom: str, outputs: int, stride: int = 1, relu: bool = True) -> str:
    text = f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
      num_output: {outputs} kernel_size: 3 pad: 1 stride: {stride} weight_filler {{ type: "msra" }} }} }}"""
    return text + (f'layer {{ name: "{name}_relu" type: "ReLU" bottom: "{name}" top: "{name}" }}' if relu else "")


def head(name: str, outputs: int) -> str:
    """Returns layers that predict `outputs` values for each place, flattened in the order of the priors."""
    return (
        convolution(name, "c3", outputs, relu=False)
        + f"""layer {{ name: "{name}_perm" type: "Permute" bottom: "{name}" top: "{name}_perm"
          permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
        layer {{ name: "{name}_flat" type: "Flatten" bottom: "{name}_perm" top: "{name}_flat" }}"""
    )


# There are two classes besides the background. Each place of a grid of 6 x 6 has a square prior of 20 pixels and two
# stretched ones.
BODY = (
    convolution("c1", "data", 16, 2)
    + convolution("c2", "c1", 32, 2)
    + convolution("c3", "c2", 32, 2)
    + head("loc", 3 * 4)
    + head("conf", 3 * 3)
    + """
layer { name: "priors" type: "PriorBox" bottom: "c3" bottom: "data" top: "priors" prior_box_param {
  min_size: 20 aspect_ratio: 2 flip: true variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "priors" bottom: "label"
  top: "loss" include { phase: TRAIN } propagate_down: true propagate_down: true propagate_down: false
  propagate_down: false loss_param { normalization: VALID }
  multibox_loss_param { loc_loss_type: SMOOTH_L1 conf_loss_type: SOFTMAX num_classes: 3 share_location: true
    match_type: PER_PREDICTION overlap_threshold: 0.5 use_prior_for_matching: true background_label_id: 0
    code_type: CENTER_SIZE neg_pos_ratio: 3 neg_overlap: 0.5 } }
layer { name: "scores" type: "Reshape" bottom: "conf_flat" top: "scores" include { phase: TEST }
  reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" softmax_param { axis: 2 } include { phase: TEST } }
layer { name: "prob_flat" type: "Flatten" bottom: "prob" top: "prob_flat" include { phase: TEST } }
layer { name: "found" type: "DetectionOutput" bottom: "loc_flat" bottom: "prob_flat" bottom: "priors" top: "found"
  include { phase: TEST } detection_output_param { num_classes: 3 share_location: true background_label_id: 0
    nms_param { nms_threshold: 0.45 top_k: 50 } code_type: CENTER_SIZE keep_top_k: 20 confidence_threshold: 0.05 } }
layer { name: "map" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "map" include { phase: TEST }
  detection_evaluate_param { num_classes: 3 background_label_id: 0 overlap_threshold: 0.5 } }
"""
)


def picture(random: np.random.RandomState) -> proto.AnnotatedDatum:
    """Draws one or two rectangles on noise, bright ones of class 1 and dark ones of class 2."""
    pixels = random.normal(128, 10, (1, SIDE, SIDE))
    message = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
    for left in (0, SIDE // 2)[: random.randint(1, 3)]:
        width, height = random.randint(14, 24), random.randint(14, 30)
        x, y = left + random.randint(0, 25 - width), random.randint(0, SIDE - height)
        label = random.randint(1, 3)
        pixels[0, y : y + height, x : x + width] += 80 if label == 1 else -80
        box = message.annotation_group.add(group_label=label).annotation.add().bbox
        box.xmin, box.ymin, box.xmax, box.ymax = (edge / SIDE for edge in (x, y, x + width, y + height))
    data = pixels.clip(0, 255).astype(np.uint8).tobytes()
    message.datum.CopyFrom(proto.Datum(channels=1, height=SIDE, width=SIDE, data=data))
    return message


RANDOM = np.random.RandomState(0)
PICTURES = {name: [picture(RANDOM) for _ in range(count)] for name, count in (("train", 256), ("test", 64))}


@pytest.fixture
def databases(tmp_path):
    for name, pictures in PICTURES.items():
        with lmdb.open(str(tmp_path / name), map_size=1 << 26, lock=False) as environment:
            with environment.begin(write=True) as transaction:
                for i, each in enumerate(pictures):
                    transaction.put(f"{i:04d}".encode(), each.SerializeToString())
    items = ((0, "background"), (1, "bright"), (2, "dark"))
    lines = [f'item {{ name: "{name}" label: {label} display_name: "{name}" }}' for label, name in items]
    (tmp_path / "labelmap.prototxt").write_text("\n".join(lines))
    return tmp_path


def overlap(one, other) -> float:
    """Returns the intersection over union of two boxes (x1, y1, x2, y2)."""
    width, height = (min(one[k + 2], other[k + 2]) - max(one[k], other[k]) for k in (0, 1))
    if width <= 0 or height <= 0:
        return 0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def average_precision(found: list, label: int) -> float:
    """Returns the area under the curve of precision over recall in the test pictures.

    Args:
        found: rows (image, label, score, x1, y1, x2, y2).
    """
    boxes = [
        [(a.bbox.xmin, a.bbox.ymin, a.bbox.xmax, a.bbox.ymax) for g in each.annotation_group for a in g.annotation]
        for each in pictures_of(label)
    ]
    used, right = set(), []
    for image, _, _, *box in sorted((row for row in found if row[1] == label), key=lambda row: -row[2]):
        best, which = max(((overlap(box, other), k) for k, other in enumerate(boxes[int(image)])), default=(0, 0))
        right.append(best >= 0.5 and (image, which) not in used)
        used |= {(image, which)} if right[-1] else set()
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    return float(np.sum(precision * np.array(right)) / sum(map(len, boxes)))


def pictures_of(label: int) -> list[proto.AnnotatedDatum]:
    """Returns the test pictures with the boxes of one class only."""
    return [
        proto.AnnotatedDatum(annotation_group=[group for group in each.annotation_group if group.group_label == label])
        for each in PICTURES["test"]
    ]


def test_a_small_ssd_learns(databases):
    train = {"phase": "TRAIN", "batch": 16, "shuffle": "true", "augment": AUGMENT, "samplers": SAMPLERS}
    test = {"phase": "TEST", "batch": 16, "shuffle": "false", "augment": "", "samplers": ""}
    net = BODY
    for part in (test, train):
        net = DATA.format(source=databases / part["phase"].lower(), folder=databases, **part) + net
    solver = make_solver(
        'type: "Adam" base_lr: 0.002 delta: 1e-8 momentum: 0.9 max_iter: 150 test_iter: 4 test_interval: 150 '
        'test_initialization: false eval_type: "detection" ap_version: "11point" show_per_class_result: true '
        f'snapshot_prefix: "{databases}/ssd" snapshot_after_train: true',
        net,
    )
    solver.feeder.start()
    before = solver.test_nets.evaluators[0].run(4)
    assert solver.solve()
    after = solver.test_nets.evaluators[0].run(4)
    solver.close()
    assert list(after) == ["map", "map_class1", "map_class2"]
    assert before["map"] < 0.3 and after["map"] > 0.8, (before, after)
    check_report(databases, net)


V2_BIASES = " ".join(f"biases: {side}" for side in (2.4, 2, 2.4, 3.4))  # in pixels of the plane of 6 x 6
V2 = f"""
layer {{ name: "loss" type: "RegionLoss" bottom: "fine" bottom: "label" top: "loss" include {{ phase: TRAIN }}
  region_loss_param {{ num_class: 2 num: 2 object_scale: 5 noobject_scale: 1 coord_scale: 1 thresh: 0.6
    {V2_BIASES} }} }}
layer {{ name: "found" type: "YoloDetectionOutput" bottom: "fine" top: "found" include {{ phase: TEST }}
  yolo_detection_output_param {{ num_classes: 2 num_box: 2 {V2_BIASES} }} }}"""

V3_BIASES = " ".join(f"biases: {side}" for side in (16, 16, 20, 20, 20, 28, 23, 23))  # in pixels of the picture
V3_LOSS = """layer {{ name: "loss_{name}" type: "Yolov3" bottom: "{name}" bottom: "label" top: "loss_{name}"
  include {{ phase: TRAIN }} yolov3_param {{ num_class: 2 num: 2 object_scale: 5 coord_scale: 1 thresh: 0.6
    anchors_scale: {scale} {biases} {mask} }} }}"""
V3 = (
    convolution("c4", "c3", 32, 2)
    + convolution("coarse", "c4", 2 * 7, relu=False)
    + V3_LOSS.format(name="fine", scale=8, biases=V3_BIASES, mask="mask: 0 mask: 1")
    + V3_LOSS.format(name="coarse", scale=16, biases=V3_BIASES, mask="mask: 2 mask: 3")
    + f"""
layer {{ name: "found" type: "Yolov3DetectionOutput" bottom: "coarse" bottom: "fine" top: "found"
  include {{ phase: TEST }} yolov3_detection_output_param {{ num_classes: 2 num_box: 2 {V3_BIASES}
    mask: 2 mask: 3 mask: 0 mask: 1 anchors_scale: 16 anchors_scale: 8 mask_group_num: 2 }} }}"""
)


@pytest.mark.parametrize("layers", [V2, V3], ids=["v2", "v3"])
def test_a_small_yolo_learns(databases, layers):
    net = BODY[: BODY.index('layer { name: "loc"')]
    net += convolution("fine", "c3", 2 * 7, relu=False) + layers
    net += BODY[BODY.index('layer { name: "map"') :]
    yolo = "yolo_data_type: 1 yolo_data_jitter: 0.2"
    train = {"phase": "TRAIN", "batch": 16, "shuffle": "true", "augment": "", "samplers": yolo}
    test = {"phase": "TEST", "batch": 16, "shuffle": "false", "augment": "", "samplers": ""}
    for part in (test, train):
        net = DATA.format(source=databases / part["phase"].lower(), folder=databases, **part) + net
    solver = make_solver(
        'type: "Adam" base_lr: 0.002 delta: 1e-8 momentum: 0.9 max_iter: 250 test_iter: 4 test_interval: 250 '
        'test_initialization: false eval_type: "detection" ap_version: "11point"',
        net,
    )
    solver.feeder.start()
    before = solver.test_nets.evaluators[0].run(4)
    assert solver.solve()
    after = solver.test_nets.evaluators[0].run(4)
    solver.close()
    assert before["map"] < 0.3 and after["map"] > 0.8, (before, after)


def check_report(folder, net: str):
    """Compares `engine test --report` of the trained net with average_precision()."""
    (folder / "net.prototxt").write_text(net)
    files = [str(folder / name) for name in ("net.prototxt", "ssd_iter_150.caffemodel", "report")]
    assert main(["test", "--model", files[0], "--weights", files[1], "--report", files[2]]) == 0
    trained = engine.Net(files[0], files[1], engine.TEST)
    found = []
    for batch in range(4):
        trained.forward()
        rows = trained.blobs["found"].data.reshape(-1, 7)
        found += [(batch * 16 + row[0], *row[1:]) for row in rows.tolist() if row[0] >= 0]
    expected = {"bright": average_precision(found, 1), "dark": average_precision(found, 2)}
    with open(folder / "report/report.json") as file:
        report = json.load(file)["detections"]["map"]
    assert report["average_precision"] == pytest.approx(expected, abs=1e-9) and min(expected.values()) > 0.5
    assert report["map"] == pytest.approx(np.mean([*expected.values()]), abs=1e-9)
    with open(folder / "report/detections.csv") as file:
        table = list(csv.DictReader(file))
    counts = [sum(len(each.annotation_group) for each in pictures_of(k)) for k in (1, 2)]
    assert [(row["name"], row["boxes"]) for row in table] == [("bright", str(counts[0])), ("dark", str(counts[1]))]


def test_classes_of_yolo_have_the_names_of_their_labels(databases, monkeypatch):
    """Class 0 of YOLO is label 1 of the label map, whose label 0 is the background."""
    monkeypatch.setattr("engine.inference.trained.load", lambda *_: None)
    part = {"phase": "TEST", "batch": 16, "shuffle": "false", "augment": "", "samplers": ""}
    net = DATA.format(source=databases / "test", folder=databases, **part) + convolution("c", "data", 14, 12, False)
    net += """layer { name: "map" type: "EvalDetection" bottom: "c" bottom: "label" top: "map" eval_detection_param {
        side: 4 num_class: 2 num_object: 2 biases: 1 biases: 1 biases: 2 biases: 2 } }"""
    (databases / "net.prototxt").write_text(net)
    files = [str(databases / name) for name in ("net.prototxt", "net.caffemodel", "report")]
    assert main(["test", "--model", files[0], "--weights", files[1], "--report", files[2]]) == 0
    with open(databases / "report/detections.csv") as file:
        table = list(csv.DictReader(file))
    counts = [sum(len(each.annotation_group) for each in pictures_of(k)) for k in (1, 2)]
    assert counts[0] != counts[1]
    assert [(row["name"], row["boxes"]) for row in table] == [("bright", str(counts[0])), ("dark", str(counts[1]))]
