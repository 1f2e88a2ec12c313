"""Upgraded nets, weights and solvers say the same as the old ones, and a second upgrade changes nothing."""

import re
import subprocess
import sys

import numpy as np
import pytest

from engine import proto
from engine.cli import main
from engine.config import read_net, read_solver
from engine.config.upgrade_files import upgrade_net_binary, upgrade_net_text, upgrade_solver_text
from engine.errors import ConfigError, EngineError, WeightsError
from engine.weights import read_caffemodel
from tests.shared import SHARED, needs_shared

V1 = """
name: "old"  input: "x" input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 5
layers { name: "conv" type: CONVOLUTION bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "gaussian" std: 0.01 } } }
"""


def test_a_net_in_text(tmp_path):
    old, new, again = (tmp_path / name for name in ("old", "new", "again"))
    old.write_text(V1)
    notes = upgrade_net_text(str(old), str(new))
    assert [note.removeprefix(f"{old}: ") for note in notes] == [
        "upgraded from the V1 format of layers",
        "upgraded its inputs to an Input layer",
    ]
    assert read_net(new).message == read_net(old).message
    assert 'type: "Convolution"' in new.read_text() and "layers" not in new.read_text()
    assert "std: 0.01\n" in new.read_text()
    assert upgrade_net_text(str(new), str(again)) == []
    assert again.read_bytes() == new.read_bytes()


def test_layers_that_are_others_here_stay(tmp_path):
    """The upgraded net is for Caffe, which has no Proposal and may have layers that write files."""
    old, new = tmp_path / "old", tmp_path / "new"
    python = 'type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" }'
    old.write_text(f'layer {{ name: "p" {python} }} layer {{ name: "w" type: "MatWrite" bottom: "x" }}')
    assert upgrade_net_text(str(old), str(new)) == []
    assert 'module: "rpn.proposal_layer"' in new.read_text() and 'type: "MatWrite"' in new.read_text()


def test_a_solver(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text('net: "n.prototxt" base_lr: 0.1 lr_policy: "fixed" solver_type: ADAM')
    assert upgrade_solver_text(str(old), str(new)) == [f"{old}: upgraded from solver_type to type"]
    assert read_solver(new).message.type == "Adam" and "solver_type" not in new.read_text()
    assert upgrade_solver_text(str(new), str(old)) == []


@pytest.mark.parametrize("version", ["V0", "V1"])
def test_weights(tmp_path, version):
    net = proto.NetParameter(input=["x"], input_dim=[1, 1, 2, 3])
    layer = net.layers.add(bottom=["x"], top=["y"])
    if version == "V0":
        layer.layer.name, layer.layer.type, layer.layer.num_output = "ip", "innerproduct", 1
        blobs = layer.layer.blobs
    else:
        layer.name, layer.type = "ip", layer.INNER_PRODUCT
        blobs = layer.blobs
    blobs.add(num=1, channels=1, height=1, width=6, data=range(6))
    old, new = tmp_path / "old.caffemodel", tmp_path / "new.caffemodel"
    old.write_bytes(net.SerializeToString())
    notes = upgrade_net_binary(str(old), str(new))
    assert notes[0] == f"{old}: upgraded from the {version} format of layers"
    upgraded = proto.NetParameter.FromString(new.read_bytes())
    assert [(layer.name, layer.type) for layer in upgraded.layer] == [("input", "Input"), ("ip", "InnerProduct")]
    assert not upgraded.layers and not upgraded.input
    before, after = read_caffemodel(old), read_caffemodel(new)
    np.testing.assert_array_equal(after["ip"][0], before["ip"][0])
    assert after["ip"][0].tolist() == [[[[0, 1, 2, 3, 4, 5]]]]


def test_weights_that_cannot_be_upgraded_are_named(tmp_path):
    old = tmp_path / "old.caffemodel"
    old.write_bytes(proto.NetParameter(input=["x?"], input_dim=[1, 1, 2, 3]).SerializeToString().replace(b"?", b"\xff"))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(old))}: the name of an input is not UTF-8$"):
        upgrade_net_binary(str(old), str(tmp_path / "new"))


def test_weights_of_c3d_stay_as_they_are(tmp_path):
    """C3D numbers layer types and fields differently: its Convolution3D would be read as an ArgMax."""
    old = tmp_path / "old.caffemodel"
    blob = bytes([8, 1, 16, 1, 24, 1, 32, 1, 40, 1, 50, 4, 0, 0, 0, 0])
    layer = bytes([34, 1, ord("c"), 40, 30, 50, len(blob)]) + blob
    old.write_bytes(bytes([18, len(layer)]) + layer)
    with pytest.raises(WeightsError, match=r"old.caffemodel: a file of Facebook's C3D, which numbers layers"):
        upgrade_net_binary(str(old), str(tmp_path / "new"))


@needs_shared("zoo")
def test_nets_and_solvers_of_the_zoo(tmp_path):
    seen = 0
    for path in sorted((SHARED / "zoo").rglob("*.prototxt"))[::6]:  # all take a minute
        solver = "solver" in path.name
        read, upgrade = (read_solver, upgrade_solver_text) if solver else (read_net, upgrade_net_text)
        try:
            before = read(path).message
        except EngineError:
            continue  # other tests name the files that are wrong
        upgrade(str(path), str(tmp_path / "new"))
        assert read(tmp_path / "new").message == before, path
        seen += 1
    assert seen > 35


@pytest.mark.parametrize("verb", ["upgrade_net_proto_text", "upgrade_solver_proto_text", "upgrade_net_proto_binary"])
def test_what_is_read_is_not_written_over(verb, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("# of the user's\n" if verb.endswith("text") else "")
    assert main([verb, str(file), str(file)]) == 1
    assert "it is a file that is read; choose another name" in capsys.readouterr().err
    assert file.read_text() == ("# of the user's\n" if verb.endswith("text") else "")


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("upgrade_net_proto_text", "%s\n"),
        ("upgrade_solver_proto_text", "net_param { %s }\n"),
    ],
)
def test_an_unknown_type_is_named(tmp_path, verb, text):
    """It needs a process that has not yet built a net."""
    path = tmp_path / "a.prototxt"
    path.write_text(text % 'layer { name: "l" type: "Xyzzy" foo: 1 }')
    command = [sys.executable, "-m", "engine", verb, str(path), str(tmp_path / "b.prototxt")]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 1 and "layer 'l': unknown layer type 'Xyzzy'" in told.stderr
