"""Pictures and tables of nets have every layer, with pygraphviz and without."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from engine import proto
from engine.config import parse_net
from engine.errors import EngineError
from engine.examine.summarize import net_graph, summarize
from engine.report.draw_net import _shapes, draw_layers, draw_net, nodes_of

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
    nodes = nodes_of([layer.message for layer in graph.layers], _shapes(graph))
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
def test_picture(graph, tmp_path, rankdir):
    pytest.importorskip("pygraphviz")
    draw_net(graph, str(tmp_path / "x.svg"), rankdir)
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    texts = {(element.text or "").strip() for element in root.iter(f"{SVG}text")}
    assert {"conv (Convolution)", "num_output 4, bias_term false, pad 1, kernel_size 3", "+ relu (ReLU)"} <= texts
    assert {"join (Concat)", "y: 2 x 4 x 8 x 8"} <= texts
    kinds = [element.get("class") for element in root.iter(f"{SVG}g")]
    assert kinds.count("node") == kinds.count("edge") == 5
    places = {e.find(f"{SVG}text").text: e.find(f"{SVG}text") for e in root.iter(f"{SVG}g") if e.get("class") == "node"}
    first, last = places["x (Input)"], places["join (Concat)"]
    along, across = (
        abs(float(first.get(axis)) - float(last.get(axis))) for axis in ("yx" if rankdir == "TB" else "xy")
    )
    assert along > across


@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_kinds(graph, tmp_path, suffix, magic):
    pytest.importorskip("pygraphviz")
    draw_net(graph, str(tmp_path / f"x.{suffix}"))
    assert (tmp_path / f"x.{suffix}").read_bytes().startswith(magic)


def test_a_picture_without_pygraphviz(graph, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(
        EngineError, match=r"x.svg: drawing needs pygraphviz: pip install prototxt-engine\[plot\]; or name a .dot"
    ):
        draw_net(graph, str(tmp_path / "x.svg"))


def test_names_do_not_break_a_picture(tmp_path):
    pytest.importorskip("pygraphviz")
    name = r"日本 <b>\\N\" -> & charset=\"latin-1\""
    text = f'layer {{ name: "{name}" type: "Input" top: "x" input_param {{ shape {{ dim: 2 }} }} }}'
    draw_net(net_graph(parse_net(text), proto.TEST), str(tmp_path / "x.svg"))
    texts = {element.text for element in ElementTree.parse(tmp_path / "x.svg").iter(f"{SVG}text")}
    assert '日本 <b>\\N" -> & charset="latin-1" (Input)' in texts


def test_graphviz_s_language(graph, tmp_path):
    draw_net(graph, str(tmp_path / "x.dot"), "LR")
    text = (tmp_path / "x.dot").read_text()
    assert text.startswith('digraph "a <net>" {\n  rankdir=LR;') and text.count(" -> ") == 5
    with pytest.raises(EngineError, match=r"x.gif: cannot draw '.gif'; known: .png, .svg"):
        draw_net(graph, str(tmp_path / "x.gif"))


def test_layers_that_do_not_fit_together(tmp_path):
    """The layers are of both phases and of unknown types, and have bottoms that nothing makes."""
    text = "".join(
        f'layer {{ name: "{name}" type: "Data" top: "x" include {{ phase: {name} }} }}' for name in ("TRAIN", "TEST")
    )
    text += 'layer { name: "a" type: "Unheard" bottom: "x" bottom: "nowhere" top: "a" top: "b" }'
    text += 'layer { name: "c" type: "ReLU" bottom: "a" top: "a" }'
    layers = parse_net(text).message.layer
    assert [(node.lines[0], [what for _, what in node.edges]) for node in nodes_of(layers)] == [
        ("TRAIN (Data)", ["x"]),
        ("TEST (Data)", ["x"]),
        ("a (Unheard)", []),
    ]
    draw_layers("n", layers, str(tmp_path / "x.dot"))
    assert (tmp_path / "x.dot").read_text().count(" -> ") == 2


def test_the_verb_draws_nets_that_cannot_be_built(tmp_path):
    (tmp_path / "x.prototxt").write_text('layer { name: "a" type: "Unheard" top: "a" }')
    arguments = ["draw_net", str(tmp_path / "x.prototxt"), str(tmp_path / "x.dot")]
    done = subprocess.run([sys.executable, "-m", "engine", *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and "drawn without shapes" in done.stderr and "unknown" in done.stderr, done.stderr
    assert "a (Unheard)" in (tmp_path / "x.dot").read_text()


def test_summary(graph):
    lines = summarize(graph).splitlines()
    conv = next(line for line in lines if line.startswith("conv "))
    assert conv.split() == [
        *("conv Convolution num_output 4, bias_term false, pad 1, kernel_size 3 2 x 4 x 8 x 8 108 2, 0".split()),
        *("27.65 k 91.9".split()),
    ]
    assert lines[-1].split()[:4] == ["total", "7", "layers", "117"]


def test_labels_of_edges_keep_off_the_lines(graph, tmp_path):
    draw_net(graph, str(tmp_path / "net.dot"))
    edges = [line for line in (tmp_path / "net.dot").read_text().splitlines() if "->" in line]
    assert edges and all('[label="\u00a0\u00a0' in line and '\u00a0\u00a0"]' in line for line in edges)


def test_a_png_that_cannot_be_read_is_told(tmp_path, caplog):
    """600 layers in a row make a png that is too large; a vector picture has no limit."""
    names = range(600)
    layers = [proto.LayerParameter(name=f"r{i}", type="ReLU", bottom=[f"b{i}"], top=[f"b{i + 1}"]) for i in names]
    draw_layers("long", layers, str(tmp_path / "net.svg"))
    assert not caplog.text
    draw_layers("long", layers, str(tmp_path / "net.png"))
    assert "a .png at most 32767" in caplog.text and "A .svg or .pdf has no limit" in caplog.text
