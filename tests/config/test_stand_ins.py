"""Nets of py-faster-rcnn without its modules."""

import pytest

from engine.config import parse_net, read_net
from engine.net import Net

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


@pytest.mark.parametrize("where", ["rpn/__init__.py", "rpn.py"])
def test_the_users_own_module_comes_first(tmp_path, where):
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).touch()
    (tmp_path / "net.prototxt").write_text(NET % RFCN)
    assert read_net(str(tmp_path / "net.prototxt")).message.layer[1].type == "Python"


def test_other_python_layers_stay():
    text = (NET % RFCN).replace("ProposalLayer", "Other")
    assert parse_net(text, "net.prototxt").message.layer[1].type == "Python"


def test_spatial_dropout_of_enet():
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
    layer { name: "drop" type: "Python" bottom: "x" top: "y" python_param {
      module: "spatial_dropout" layer: "SpatialDropoutLayer" param_str: "{\\'phase\\': \\'TRAIN\\', \\'p\\': \\'0.1\\'}" } }"""
    config = parse_net(text, "net.prototxt")
    layer = config.message.layer[1]
    assert layer.type == "SpatialDropout" and layer.spatial_dropout_param.dropout_ratio == pytest.approx(0.1)
    assert Net(config, 0).blobs["y"].shape == (2, 3, 4, 4)
