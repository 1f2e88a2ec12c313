"""caffe.draw makes the same pictures as `engine draw_net`."""

import pytest

import engine.caffe as caffe
from engine.caffe import draw
from engine.caffe import layers as L
from engine.proto import caffe_pb2


def test_pictures(tmp_path):
    pytest.importorskip("pygraphviz")
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 4]))
    n.ip = L.InnerProduct(n.data, num_output=2)
    n.trained = L.ReLU(n.ip, include=dict(phase=caffe.TRAIN))
    message = n.to_proto()
    assert isinstance(message, caffe_pb2.NetParameter)
    path = tmp_path / "net.svg"
    draw.draw_net_to_file(message, str(path))
    assert "ip (InnerProduct)" in path.read_text()
    assert b"trained" in path.read_bytes()
    assert b"trained" in draw.draw_net(message, "TB", "svg", phase=caffe.TRAIN)
    text = draw.draw_net(message, "TB", "dot", phase=caffe.TEST)
    assert b"rankdir=TB" in text
    assert b"trained" not in text


def test_nets_are_not_built():
    """The net cannot be built: it has a Python layer whose module is absent, a data layer without data, and layers of
    both phases."""
    message = caffe_pb2.NetParameter(name="far")
    message.layer.add(name="data", type="Data", top=["data"]).data_param.source = "nowhere"
    message.layer.add(name="mine", type="Python", bottom=["data"], top=["mine"]).python_param.module = "absent"
    text = draw.draw_net(message, "LR", "dot")
    assert b"mine (Python)" in text and text.count(b" -> ") == 1
