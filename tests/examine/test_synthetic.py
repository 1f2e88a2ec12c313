"""Synthetic inputs are valid for the layers that read them."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.examine.synthetic import feed_synthetic, shrink
from engine.net import Net, NetOptions
from tests.layers.harness import net_text


def fed(layer: str, **shapes) -> dict[str, np.ndarray]:
    """Returns the synthetic values of the inputs of a net of one layer."""
    net = Net(parse_net(net_text(layer, **shapes)), proto.TRAIN, NetOptions(keep_all=True))
    feed_synthetic(net)
    net.run_forward()
    return {name: net.blobs[name].data for name in shapes}


def test_labels_are_classes_also_behind_other_layers():
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "flat" top: "loss" }'
    flat = 'layer { name: "flat" type: "Flatten" bottom: "labels" top: "flat" }'
    labels = fed(flat + loss, scores=(40, 7, 1, 1), labels=(40, 1, 1, 1))["labels"]
    assert set(labels.ravel()) <= set(range(7)) and len(set(labels.ravel())) > 3


def test_sequences_have_classes_on_their_own_axis_and_begin_once():
    text = """layer { name: "g" type: "GRU" bottom: "x" bottom: "cont" top: "y" recurrent_param { num_output: 3 } }
      layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" softmax_param { axis: 2 } }"""
    found = fed(text, x=(5, 40, 2), cont=(5, 40), t=(5, 40))
    assert set(found["t"].ravel()) == {0, 1, 2}
    assert (found["cont"] == (np.arange(5) > 0)[:, None]).all()


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("CTCLoss", {"i": (9, 2), "l": (9, 2)}),
        ("CtcLoss", {"l": (2, 3)}),
        ("WarpCTCLoss", {"l": (2, 3)}),
        ("WarpCTCLoss", {"i": (9, 2), "l": (9, 2)}),
        ("WarpCTCLoss", {"t": (2,), "n": (2,), "l": (4, 2)}),
    ],
)
def test_labels_of_sequences(kind, shapes):
    bottoms = " ".join(f'bottom: "{name}"' for name in ("x", *shapes))
    found = fed(f'layer {{ name: "l" type: "{kind}" {bottoms} top: "loss" }}', x=(9, 2, 4), **shapes)
    assert len(set(found["l"].ravel())) > 1  # and the layer refuses none


@pytest.mark.parametrize(
    ("kind", "shapes", "params"),
    [
        ("CTCLoss", {"i": (5, 2), "l": (20, 2)}, ""),
        ("CtcLoss", {"l": (2, 8)}, ""),
        ("CtcLoss", {"l": (2, 5)}, "time_step: 2"),
        ("WarpCTCLoss", {"l": (2, 8)}, "blank_index: 19"),
        ("WarpCTCLoss", {"t": (2,), "n": (2,), "l": (20, 2)}, ""),
    ],
)
def test_no_more_labels_than_steps_can_spell(kind, shapes, params):
    bottoms = " ".join(f'bottom: "{name}"' for name in ("x", *shapes))
    layer = f'layer {{ name: "l" type: "{kind}" {bottoms} top: "loss" ctc_loss_param {{ {params} }} }}'
    found = fed(layer, x=(5, 2, 20), **shapes)
    if "n" in found:
        assert set(found["n"]) == {2}
    else:
        blank = {"CTCLoss": -1, "CtcLoss": 0, "WarpCTCLoss": 19}[kind]
        labels = found["l"].T if kind == "CTCLoss" else found["l"]
        assert (labels[:, 2:] == blank).all() and (labels[:, 0] != blank).all()


def test_targets_of_a_sigmoid_are_0_or_1():
    loss = 'layer { name: "l" type: "SigmoidCrossEntropyLoss" bottom: "scores" bottom: "targets" top: "loss" }'
    values = fed(loss, scores=(6, 5), targets=(6, 5))
    assert set(values["targets"].ravel()) == {0, 1}


SCORES = 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" }'
CONV = """layer { name: "c" type: "Convolution" bottom: "x" top: "y"
    convolution_param { num_output: 2 kernel_size: 3 } }
  layer { name: "s" type: "Silence" bottom: "y" bottom: "label" }"""


@pytest.mark.parametrize(
    ("layer", "shape", "deviation"),
    [
        (SCORES, (64, 100), 1),  # numbers around 50 would have exponentials that scores do not have
        (SCORES, (64, 100, 1, 1), 1),
        (CONV, (8, 3, 20, 20), 50),
        (CONV, (8, 1, 20, 20), 50),
        (CONV, (8, 64, 20, 20), 1),
    ],
)
def test_pictures_vary_as_pictures_and_all_else_as_features(layer, shape, deviation):
    found = fed(layer, x=shape, label=shape[:1])["x"]
    assert found.std() == pytest.approx(deviation, rel=0.1) and abs(found.mean()) < 0.1 * deviation


def test_regions_lie_in_the_picture():
    pool = """layer { name: "p" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
      roi_pooling_param { pooled_w: 2 pooled_h: 2 spatial_scale: 0.0625 } }"""
    rois = fed(pool, x=(2, 3, 10, 20), rois=(9, 5))["rois"]
    assert set(rois[:, 0]) == {0, 1} and (rois[:, 1:] >= 0).all()
    assert (rois[:, 3] <= 320).all() and (rois[:, 4] <= 160).all() and (rois[:, 3:] > rois[:, 1:3]).all()


def test_words():
    embed = 'layer { name: "e" type: "Embed" bottom: "x" top: "y" embed_param { input_dim: 9 num_output: 2 } }'
    assert set(fed(embed, x=(50,))["x"]) == set(range(9))


@pytest.mark.parametrize(
    "layer, dims",
    [
        ('type: "Input" input_param { shape { dim: 10 dim: 3 } }', (2, 3)),
        ('type: "Input" input_param { shape { dim: 1 dim: 3 } }', (1, 3)),
        ('type: "ContinuationIndicator" continuation_indicator_param { time_step: 5 batch_size: 7 }', (5, 2)),
        ('type: "ContinuationIndicator" continuation_indicator_param { time_step: 5 batch_size: 1 }', (5, 1)),
        ('type: "DummyData" dummy_data_param { num: 7 channels: 3 height: 1 width: 5 }', (2, 3, 1, 5)),
        ('type: "DummyData" dummy_data_param { shape { dim: 7 dim: 5 } }', (2, 5)),
    ],
)
def test_batches_are_cut(layer, dims):
    config = parse_net(f'layer {{ name: "x" top: "x" {layer} }}')
    shrink(config.message, 2)
    assert Net(config).blobs["x"].shape == dims
