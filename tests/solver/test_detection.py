"""A small SSD learns where rectangles are: AnnotatedData with its augmentations, priors, the loss, the test's mAP."""

import lmdb
import numpy as np
import pytest

from engine import proto
from tests.solver.harness import make_solver

SIDE = 48

DATA = """
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: {phase} }}
  data_param {{ source: "{source}" backend: LMDB batch_size: {batch} shuffle: {shuffle} }}
  transform_param {{ scale: 0.01 mean_value: 128 mirror: {shuffle} resize_param {{ height: 48 width: 48 }}
    emit_constraint {{ emit_type: CENTER }} {augment} }}
  annotated_data_param {{ {samplers} }} }}
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
    """A prediction for each prior, in the order of the priors."""
    return (
        convolution(name, "c3", outputs, relu=False)
        + f"""layer {{ name: "{name}_perm" type: "Permute" bottom: "{name}" top: "{name}_perm"
          permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
        layer {{ name: "{name}_flat" type: "Flatten" bottom: "{name}_perm" top: "{name}_flat" }}"""
    )


# Two classes besides the background, one prior of 20 pixels and two stretched ones on a grid of 6 x 6.
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
    """One or two rectangles on noise: class 1 is bright, class 2 dark."""
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


@pytest.fixture
def databases(tmp_path):
    random = np.random.RandomState(0)
    for name, count in (("train", 256), ("test", 64)):
        with lmdb.open(str(tmp_path / name), map_size=1 << 26, lock=False) as environment:
            with environment.begin(write=True) as transaction:
                for i in range(count):
                    transaction.put(f"{i:04d}".encode(), picture(random).SerializeToString())
    return tmp_path


def test_a_small_ssd_learns(databases):
    train = {"phase": "TRAIN", "batch": 16, "shuffle": "true", "augment": AUGMENT, "samplers": SAMPLERS}
    test = {"phase": "TEST", "batch": 16, "shuffle": "false", "augment": "", "samplers": ""}
    net = "".join(DATA.format(source=databases / part["phase"].lower(), **part) for part in (train, test)) + BODY
    solver = make_solver(
        'type: "Adam" base_lr: 0.002 delta: 1e-8 momentum: 0.9 max_iter: 150 test_iter: 4 test_interval: 150 '
        'test_initialization: false eval_type: "detection" ap_version: "11point" show_per_class_result: true',
        net,
    )
    solver.feeder.start()
    before = solver.evaluators[0].run(4)
    assert solver.solve()
    after = solver.evaluators[0].run(4)
    solver.close()
    assert list(after) == ["map", "map_class1", "map_class2"]
    assert before["map"] < 0.3 and after["map"] > 0.8, (before, after)
