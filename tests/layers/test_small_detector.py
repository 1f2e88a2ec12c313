"""SSD's layers work together in a net that learns to find a bright square in noise."""

import numpy as np
import pytest

from engine import proto
from engine.net import PASSES
from tests.layers.boxes import truth_blob
from tests.layers.harness import make_net, net_text

N, SIZE, SIDE = 4, 32, 8  # number and size of the images, and size of the square
HEAD = """layer {{ name: "{name}" type: "Convolution" bottom: "c2" top: "{name}" convolution_param {{
  num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "{name}_perm" type: "Permute" bottom: "{name}" top: "{name}_perm"
  permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
layer {{ name: "{name}_flat" type: "Flatten" bottom: "{name}_perm" top: "{name}_flat" }}"""
BODY = """
layer { name: "c1" type: "Convolution" bottom: "data" top: "c1" convolution_param {
  num_output: 16 kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "msra" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param {
  num_output: 16 kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "msra" } } }
layer { name: "r2" type: "ReLU" bottom: "c2" top: "c2" }
layer { name: "prior" type: "PriorBox" bottom: "c2" bottom: "data" top: "prior"
  prior_box_param { min_size: 8 max_size: 16 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
"""
BODY += HEAD.format(name="loc", outputs=2 * 4) + HEAD.format(name="conf", outputs=2 * 2)
LOSS = """layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior"
  bottom: "label" top: "loss" multibox_loss_param { num_classes: 2 code_type: CENTER_SIZE } }"""
FIND = """layer { name: "each" type: "Reshape" bottom: "conf_flat" top: "each"
  reshape_param { shape { dim: 0 dim: -1 dim: 2 } } }
layer { name: "prob" type: "Softmax" bottom: "each" top: "prob" softmax_param { axis: 2 } }
layer { name: "prob_flat" type: "Flatten" bottom: "prob" top: "prob_flat" }
layer { name: "found" type: "DetectionOutput" bottom: "loc_flat" bottom: "prob_flat" bottom: "prior" top: "found"
  detection_output_param { num_classes: 2 code_type: CENTER_SIZE keep_top_k: 3 confidence_threshold: 0.3
    nms_param { nms_threshold: 0.4 top_k: 20 } } }
layer { name: "eval" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "eval"
  detection_evaluate_param { num_classes: 2 } }"""
SHAPES = {"data": (N, 3, SIZE, SIZE), "label": (1, 1, N, 8)}


def batch(generator):
    data = generator.normal(0, 0.1, SHAPES["data"]).astype(np.float32)
    rows = []
    for n, (x, y) in enumerate(generator.integers(0, SIZE - SIDE, (N, 2))):
        data[n, :, y : y + SIDE, x : x + SIDE] += 1
        rows.append((n, 1, np.array([x, y, x + SIDE, y + SIDE]) / SIZE, 0))
    return {"data": data, "label": truth_blob(rows, padding=0)}


def feed(net, values):
    for name, value in values.items():
        net.blobs[name].set(value)


def train(net, steps, rate=0.02, momentum=0.9):
    generator, losses, velocity = np.random.default_rng(2), [], {}
    for _ in range(steps):
        feed(net, batch(generator))
        losses.append(float(net.forward()["loss"]))
        net.backward()
        for layer, tensors in net.params.items():
            for i, tensor in enumerate(tensors):
                moved = velocity[layer, i] = momentum * velocity.get((layer, i), 0) + rate * tensor.diff.get()
                tensor.set(tensor.get() - moved)
    return losses


def test_it_learns_to_find_squares():
    text = net_text(BODY + LOSS, **SHAPES).replace("force_backward: true", "")
    net = make_net(text, keep_all=False)
    losses = train(net, 150)
    assert np.mean(losses[-10:]) < 0.25 * np.mean(losses[:10])
    test = make_net(net_text(BODY + FIND, **SHAPES), proto.TEST, share=net)
    right = 0
    generator = np.random.default_rng(5)
    for _ in range(5):
        feed(test, batch(generator))
        test.forward()
        rows = test.blobs["eval"].data[0, 0]
        right += rows[rows[:, 0] >= 0, 3].sum()
    assert right >= 0.8 * 5 * N


@pytest.mark.parametrize("passes", [PASSES, frozenset()])
def test_the_memory_plan_changes_nothing(passes):
    text = net_text(BODY + LOSS, **SHAPES).replace("force_backward: true", "")
    results = []
    for keep_all in (True, False):
        net = make_net(text, keep_all=keep_all, passes=passes)
        losses = train(net, 3)
        results.append([losses, *(tensor.get() for tensors in net.params.values() for tensor in tensors)])
    for kept, planned in zip(*results, strict=True):
        np.testing.assert_array_equal(kept, planned)
