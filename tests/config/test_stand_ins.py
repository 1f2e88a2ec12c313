"""Nets of py-faster-rcnn run without its Python modules: layers of the engine stand in for them."""

import numpy as np
import pytest

from engine.config import parse_net, read_net
from engine.errors import ConfigError
from engine.net import Net, NetOptions

NET = """
layer { name: "in" type: "Input" top: "score" top: "offset" top: "size" input_param {
  shape { dim: 1 dim: 24 dim: 3 dim: 4 } shape { dim: 1 dim: 48 dim: 3 dim: 4 } shape { dim: 1 dim: 3 } } }
layer { name: "proposal" type: "Python" bottom: "score" bottom: "offset" bottom: "size" top: "rois"
  python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "%s" } }"""
RFCN = "'feat_stride': 8 \\n'scales': !!python/tuple [4, 8, 16, 32]"


def test_the_layer_becomes_ours():
    config = parse_net(NET % RFCN, "net.prototxt")
    layer = config.message.layer[1]
    assert (layer.type, layer.proposal_param.feat_stride) == ("Proposal", 8)
    assert list(layer.proposal_param.scale) == [4, 8, 16, 32]
    assert not layer.HasField("python_param")
    assert config.notes == [
        "net.prototxt: layer 'proposal': module rpn.proposal_layer not found, replaced by a Proposal layer"
    ]
    assert Net(config, 1).blobs["rois"].shape == (300, 5)


def test_without_scales():
    layer = parse_net(NET % "'feat_stride': 16", "net.prototxt").message.layer[1]
    assert (layer.type, layer.proposal_param.feat_stride, len(layer.proposal_param.scale)) == ("Proposal", 16, 0)


@pytest.mark.parametrize(
    ("param_str", "scales", "ratios", "border"),
    [
        ("{'feat_stride': 16, 'scales': None, 'ratios': [0.5, 1, 2]}", [], [0.5, 1, 2], 0),
        ("'min_scales': [9]\\n'scales': [4]\\n'allowed_border': -1", [4], [], -1),
        ("scales:\\n- 4\\n- 8.5\\nratios: !!python/tuple\\n- -1\\n- 1e-1\\nallowed_border: 2", [4, 8.5], [-1, 0.1], 2),
        ("{'scales': (4, 8), 'ratios': [], 'allowed_border': '3'}", [4, 8], [], 3),
    ],
)
def test_numbers_are_those_of_their_own_name(param_str, scales, ratios, border):
    layer = (
        "layer {{ type: 'Python' bottom: ['a', 'b', 'c', 'd'] top: ['e', 'f', 'g', 'h'] "
        'python_param {{ module: "rpn.anchor_target_layer" layer: "{}" param_str: "{}" }} }}'
    )
    message = parse_net(layer.format("AnchorTargetLayer", param_str), "net").message.layer[0]
    param = message.anchor_target_param
    assert (message.type, param.feat_stride, param.allowed_border) == ("AnchorTarget", 16, border)
    assert list(param.scale) == scales and list(param.ratio) == pytest.approx(ratios)


def test_a_number_that_the_layer_cannot_have():
    words = r"net: layer 'proposal': .*-8.* has a number that Proposal cannot have: Value out of range: -8"
    with pytest.raises(ConfigError, match=words):
        parse_net(NET % "'feat_stride': -8", "net")


@pytest.mark.parametrize("where", ["rpn/__init__.py", "rpn.py"])
def test_the_users_own_module_comes_first(tmp_path, where):
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).touch()
    (tmp_path / "net.prototxt").write_text(NET % RFCN)
    assert read_net(str(tmp_path / "net.prototxt")).message.layer[1].type == "Python"


def test_other_python_layers_stay():
    text = (NET % RFCN).replace("ProposalLayer", "Other")
    assert parse_net(text, "net.prototxt").message.layer[1].type == "Python"


@pytest.mark.parametrize("more", ['bottom: "size" top', 'top: "labels" top: "assigned" top'])
def test_a_stranger_s_layer_of_the_same_name(more):
    """Its bottoms or tops are not those of py-faster-rcnn's layer, so it stays a Python layer."""
    config = parse_net((NET % RFCN).replace('top: "rois"', f'{more}: "rois"'), "net.prototxt")
    assert config.message.layer[1].type == "Python" and config.notes == []


def test_spatial_dropout_of_enet():
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
    layer { name: "drop" type: "Python" bottom: "x" top: "y" python_param {
      module: "spatial_dropout" layer: "SpatialDropoutLayer"
      param_str: "{\\'phase\\': \\'TRAIN\\', \\'p\\': \\'0.1\\'}" } }"""
    config = parse_net(text, "net.prototxt")
    layer = config.message.layer[1]
    assert layer.type == "SpatialDropout" and layer.spatial_dropout_param.dropout_ratio == pytest.approx(0.1)
    assert Net(config, 0).blobs["y"].shape == (2, 3, 4, 4)


TRAINING = """
layer { name: "data" type: "Python" top: "data" top: "im_info" top: "gt_boxes"
  python_param { module: "roi_data_layer.layer" layer: "RoIDataLayer" param_str: "'num_classes': 4" } }
layer { name: "features" type: "Pooling" bottom: "data" top: "features" pooling_param {
  pool: AVE kernel_size: 16 stride: 16 } }
layer { name: "score" type: "Convolution" bottom: "features" top: "score" convolution_param {
  num_output: 12 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "offset" type: "Convolution" bottom: "features" top: "offset" convolution_param {
  num_output: 24 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "pairs" type: "Reshape" bottom: "score" top: "pairs" reshape_param {
  shape { dim: 0 dim: 2 dim: -1 dim: 0 } } }
layer { name: "anchors" type: "Python" bottom: "score" bottom: "gt_boxes" bottom: "im_info" bottom: "data"
  top: "labels" top: "targets" top: "inside" top: "outside"
  python_param { module: "rpn.anchor_target_layer" layer: "AnchorTargetLayer"
    param_str: "{'feat_stride': 16, 'scales': !!python/tuple [4, 8]}" } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "pairs" bottom: "labels" top: "loss"
  loss_param { ignore_label: -1 normalize: true } }
layer { name: "boxes" type: "SmoothL1Loss" bottom: "offset" bottom: "targets" bottom: "inside" bottom: "outside"
  top: "boxes" loss_weight: 1 }
layer { name: "prob" type: "Softmax" bottom: "pairs" top: "prob" }
layer { name: "probs" type: "Reshape" bottom: "prob" top: "probs" reshape_param {
  shape { dim: 0 dim: 12 dim: -1 dim: 0 } } }
layer { name: "proposal" type: "Python" bottom: "probs" bottom: "offset" bottom: "im_info" top: "proposals"
  python_param { module: "rpn.proposal_layer" layer: "ProposalLayer"
    param_str: "'feat_stride': 16\\n'scales': [4, 8]" } }
layer { name: "rois" type: "Python" bottom: "proposals" bottom: "gt_boxes"
  top: "rois" top: "classes" top: "box_targets" top: "box_inside" top: "box_outside"
  python_param { module: "rpn.proposal_target_layer" layer: "ProposalTargetLayer" param_str: "'num_classes': 4" } }
"""


def test_a_training_net():
    """It has built-in layers only, and what it computes for one image is finite."""
    config = parse_net(TRAINING, "net.prototxt")
    assert [layer.type for layer in config.message.layer if layer.name in ("data", "anchors", "proposal", "rois")] == [
        "Input",
        "AnchorTarget",
        "Proposal",
        "ProposalTarget",
    ]
    anchors = next(layer for layer in config.message.layer if layer.name == "anchors").anchor_target_param
    assert (anchors.feat_stride, list(anchors.scale)) == (16, [4, 8])
    net = Net(config, 0, NetOptions(keep_all=True))
    assert net.blobs["box_targets"].shape == (128, 16) and net.blobs["labels"].shape == (1, 1, 6 * 38, 63)
    boxes = np.zeros((100, 5), np.float32)
    boxes[:2] = [[100, 120, 300, 400, 2], [500, 50, 620, 180, 1]]
    net.blobs["data"].set(np.random.default_rng(1).normal(size=(1, 3, 600, 1000)))
    net.blobs["im_info"].set(np.array([[600, 1000, 1]]))
    net.blobs["gt_boxes"].set(boxes)
    net.forward()
    net.backward()
    assert set(net.blobs["labels"].data.ravel()) == {-1, 0, 1}
    assert {1, 2} <= set(net.blobs["classes"].data) <= {0, 1, 2}  # the true boxes are among the regions
    assert all(np.isfinite(net.blobs[name].data).all() for name in ("loss", "boxes", "rois", "box_targets"))
    assert all(np.isfinite(each.diff.get()).all() for layer in ("score", "offset") for each in net.params[layer])


def test_data_of_fast_rcnn():
    tops = " ".join(f'top: "{name}"' for name in ("data", "rois", "labels", "targets", "inside", "outside"))
    text = (
        f'layer {{ name: "data" type: "Python" {tops} python_param {{ module: "roi_data_layer.layer" '
        'layer: "RoIDataLayer" param_str: "\'num_classes\': 21" } }'
    )
    net = Net(parse_net(text, "net.prototxt"), 0)
    assert net.blobs["rois"].shape == (128, 5) and net.blobs["targets"].shape == (128, 84)
