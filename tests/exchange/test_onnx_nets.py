"""Exports the nets that the repository ships to ONNX, and imports them again: all compute the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from engine.config import parse_net, read_net
from engine.exchange.deploy_graph import deploy_graph
from engine.exchange.onnx_export import export_onnx
from engine.exchange.onnx_import import import_onnx
from tests.exchange import harness
from tests.mpi import REPO

# Net -> height and width of its images in these tests, large enough for its last pooling.
NETS = {
    "alexnet": 67,
    "cifar10": 28,
    "densenet121": 32,
    "digits": 8,
    "googlenet": 64,
    "inception_resnet_v2": 75,
    "inception_v2": 129,
    "inception_v3": 267,
    "resnet50": 32,
    "vgg16": 32,
}
FEWER = 8  # num_output is divided by this, but stays 8 at least


def shrunk(name: str) -> str:
    """Returns the text of a shipped net for smaller images and with fewer channels."""
    text = (REPO / f"nets/{name}.prototxt").read_text()
    text = re.sub(r"crop_size: \d+", f"crop_size: {NETS[name]}", text)
    return re.sub(r"num_output: (\d+)", lambda found: f"num_output: {max(8, int(found[1]) // FEWER)}", text)


def deployed(text: str, batch: int) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Returns the deployed net as prototxt with inputs of this batch, and the shapes of its inputs by name."""
    graph = deploy_graph(parse_net(text, "net.prototxt"))
    shapes = {blob.name: (batch, *blob.shape[1:]) for blob in graph.inputs}
    lines = []
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {dim}" for dim in shape)
        lines.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}')
    lines += [f"layer {{ {layer.message} }}" for layer in graph.layers]
    return "\n".join(lines), shapes


def test_a_weighted_blob_that_is_read_on_stays():
    """A loss_weight on a blob that the net goes on to read does not make the layer a loss, unlike that of a Reduction,
    which computes a penalty that nothing reads."""
    text = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 dim: 4 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" loss_weight: 0.1 inner_product_param { num_output: 5 } }
layer { name: "size" type: "Reduction" bottom: "a" top: "size" loss_weight: 0.1 reduction_param { operation: ASUM } }
layer { name: "unread" type: "Silence" bottom: "size" }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "b" bottom: "t" top: "loss" }
"""
    graph = deploy_graph(parse_net(text, "net.prototxt"))
    assert [layer.name for layer in graph.layers] == ["a", "b"]
    assert [blob.name for blob in graph.outputs] == ["b"]


FOLDED = ("cifar10", "densenet121", "inception_v2", "resnet50")


@pytest.mark.parametrize(("name", "fold"), [*((name, False) for name in NETS), *((name, True) for name in FOLDED)])
def test_a_net_goes_to_onnx_and_back(name, fold, tmp_path):
    harness.runtime()
    text, shapes = deployed(shrunk(name), 2)
    weights = harness.random_weights(parse_net(text), tmp_path / "x.caffemodel")
    inputs = harness.random_inputs(shapes)
    expected = harness.engine_outputs(text, weights, inputs)
    (tmp_path / "x.prototxt").write_text(shrunk(name))
    export_onnx(read_net(tmp_path / "x.prototxt"), weights, tmp_path / "x.onnx", fold=fold)
    found = harness.onnx_outputs(tmp_path / "x.onnx", inputs)
    assert found
    for blob, values in found.items():
        assert np.ptp(values) > 1e-3, "a test of something"
        harness.assert_close(values, expected[blob])
    kinds = {node.op_type for node in harness.nodes(tmp_path / "x.onnx")}
    if fold and name != "densenet121":  # some of its norms follow no convolution
        assert "BatchNormalization" not in kinds
    import_onnx(tmp_path / "x.onnx", tmp_path / "y.prototxt", tmp_path / "y.caffemodel", batch_size=2)
    again = harness.engine_outputs((tmp_path / "y.prototxt").read_text(), str(tmp_path / "y.caffemodel"), inputs)
    for blob, values in found.items():
        harness.assert_close(again[blob], values)
