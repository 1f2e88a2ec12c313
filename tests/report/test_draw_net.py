"""Pictures and tables of nets have every layer, with graphviz and without."""

import shutil
from xml.etree import ElementTree

import pytest

from engine import proto
from engine.config import parse_net, read_net
from engine.errors import EngineError
from engine.examine.summarize import net_graph, summarize
from engine.report.draw_net import draw_net, nodes_of
from engine.report.layered import draw
from tests.mpi import REPO

SVG = "{http://www.w3.org/2000/svg}"
NET = """
name: "a <net>"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "pool" type: "Pooling" bottom: "y" top: "z" pooling_param { pool: AVE global_pooling: true } }
layer { name: "pool2" type: "Pooling" bottom: "x" top: "w" pooling_param { kernel_size: 8 } }
layer { name: "join" type: "Concat" bottom: "z" bottom: "w" top: "out" }
"""


@pytest.fixture
def graph():
    return net_graph(parse_net(NET), proto.TEST)


def test_layers_in_place_share_a_box(graph):
    nodes = nodes_of(graph)
    assert [node.lines[0] for node in nodes] == [
        "x (Input)",
        "conv (Convolution)",
        "pool (Pooling)",
        "pool2 (Pooling)",
        "join (Concat)",
    ]
    assert nodes[1].lines[2:] == ["+ bn (BatchNorm)", "+ relu (ReLU)"]
    assert [(to.lines[0], what) for to, what in nodes[0].edges] == [
        ("conv (Convolution)", "x: 2 x 3 x 8 x 8"),
        ("pool2 (Pooling)", "x: 2 x 3 x 8 x 8"),
    ]
    assert [what for _, what in nodes[1].edges] == ["y: 2 x 4 x 8 x 8"]


@pytest.mark.parametrize("rankdir", ["TB", "LR"])
def test_our_own_picture(graph, tmp_path, monkeypatch, rankdir):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert draw_net(graph, str(tmp_path / "x.svg"), rankdir) == "engine"
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    assert root.find(f"{SVG}title").text == "a <net>"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"conv (Convolution)", "num_output 4, bias_term false, pad 1, kernel_size 3", "+ relu (ReLU)"} <= set(texts)
    boxes = [element for element in root.iter(f"{SVG}rect") if element.get("x")]
    assert len(boxes) == 5 and len(list(root.iter(f"{SVG}path"))) == 5
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
    with pytest.raises(EngineError, match=r"x.png: .png needs graphviz's program dot; install it, or name a .svg"):
        draw_net(graph, str(tmp_path / "x.png"))


def overlap(a, b) -> bool:
    ends = []
    for side, size in (("x", "width"), ("y", "height")):
        (a0, a1), (b0, b1) = ((float(e.get(side)), float(e.get(side)) + float(e.get(size))) for e in (a, b))
        ends.append(a0 < b1 and b0 < a1)
    return all(ends)


def test_boxes_of_a_large_net_do_not_overlap():
    nodes = nodes_of(net_graph(read_net(REPO / "nets/googlenet.prototxt"), proto.TRAIN))
    root = ElementTree.fromstring(draw("GoogLeNet", nodes))
    boxes = [element for element in root.iter(f"{SVG}rect") if element.get("x")]
    assert len(boxes) == len(nodes) > 70
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs graphviz")
def test_graphviz(graph, tmp_path):
    assert draw_net(graph, str(tmp_path / "x.svg")) == "graphviz"
    texts = [element.text for element in ElementTree.parse(tmp_path / "x.svg").iter(f"{SVG}text")]
    assert {"join (Concat)", "+ bn (BatchNorm)", "y: 2 x 4 x 8 x 8"} <= set(texts)
    draw_net(graph, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_graphviz_s_language(graph, tmp_path):
    draw_net(graph, str(tmp_path / "x.dot"), "LR")
    text = (tmp_path / "x.dot").read_text()
    assert text.startswith('digraph "a <net>" {\n  rankdir=LR;') and text.count(" -> ") == 5
    with pytest.raises(EngineError, match=r"x.gif: cannot draw '.gif'; known: .png, .svg"):
        draw_net(graph, str(tmp_path / "x.gif"))


def test_summary(graph):
    lines = summarize(graph).splitlines()
    conv = next(line for line in lines if line.startswith("conv "))
    assert conv.split() == [
        *("conv Convolution num_output 4, bias_term false, pad 1, kernel_size 3 2 x 4 x 8 x 8 108 2, 0".split()),
        *("27.65 k 91.9".split()),
    ]
    assert lines[-1].split()[:4] == ["total", "7", "layers", "117"]
