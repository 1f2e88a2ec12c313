"""`engine compare` finds where two nets begin to differ, in weights, in histories and in what they compute."""

import numpy as np
import pytest

from engine import proto
from engine.cli import main
from engine.config import parse_net
from engine.errors import ConfigError
from engine.examine.compare import compare_files, compare_nets, to_text
from engine.weights import SolverState, read_caffemodel, write_caffemodel, write_solverstate
from tests.layers.harness import needs_bf16

NET = """
layer { name: "data" type: "Input" top: "data" top: "label" input_param {
  shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "y"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" %s }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "ip" inner_product_param { num_output: 5
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def models(tmp_path):
    """Writes two files of weights that differ in one value of ip's bias; returns their paths."""
    random = np.random.default_rng(3)
    shapes = {"conv": [(4, 3, 3, 3), (4,)], "ip": [(5, 144), (5,)]}
    blobs = {name: [random.normal(0, 0.1, s).astype(np.float32) for s in each] for name, each in shapes.items()}
    for name in "ab":
        if name == "b":
            blobs["ip"][1][3] += 0.25
        write_caffemodel(tmp_path / f"{name}.caffemodel", parse_net(NET % "").message, blobs)
    return str(tmp_path / "a.caffemodel"), str(tmp_path / "b.caffemodel")


def test_weights(models, capsys):
    found = compare_files(*models)
    first = found.first_beyond(0)
    assert (first.layer, first.what) == ("ip", "blob 1") and first.largest == pytest.approx(0.25, rel=1e-6)
    assert [each.largest > 0 for each in found.differences] == [False, False, False, True]
    assert to_text(found, 0).splitlines()[-1] == "the first that differs at all: ip, blob 1"
    assert main(["compare", *models]) == 1
    assert main(["compare", models[0], models[0]]) == 0
    assert main(["compare", *models, "--tolerance", "1e9"]) == 0
    assert "nothing differs by more than 1e+09" in capsys.readouterr().out


def test_what_the_nets_compute(models):
    configs = parse_net(NET % ""), parse_net(NET % "")
    found = compare_nets(configs, ([models[0]], [models[1]]), proto.TRAIN)
    assert [each.layer for each in found.differences] == ["conv", "relu", "ip", "loss"]
    assert [each.largest > 0 for each in found.differences] == [False, False, True, True]
    assert found.differences[2].largest == pytest.approx(0.25, rel=1e-4)


def test_the_data_that_are_supposed_are_told_once(models, tmp_path, capsys):
    net = tmp_path / "net.prototxt"
    layers = (NET % "").split("\n", 3)[3]
    net.write_text(
        'layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "/none" '
        "batch_size: 2 } transform_param { crop_size: 8 } }\n" + layers
    )
    assert main(["compare", models[0], models[0], "--model", str(net)]) == 0
    assert capsys.readouterr().err.count("source /none is not here; taking data of 3 x 8 x 8") == 1


@pytest.mark.parametrize("other", [False, True])
def test_an_unknown_stage_is_told_once_of_each_net(models, other, tmp_path, capsys):
    nets = [str(tmp_path / name) for name in ("net.prototxt", "other.prototxt")]
    for net in nets:
        (tmp_path / net).write_text(NET % "")
    arguments = ["--model", nets[0], *(["--other_model", nets[1]] if other else []), "--stage", "deplyo"]
    assert main(["compare", models[0], models[0], *arguments]) == 0
    told = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()]
    assert told == [f"{net}: no rule of the net names stage 'deplyo'" for net in nets[: 1 + other]]


def test_the_layer_in_place_that_differs_is_named(models):
    configs = parse_net(NET % ""), parse_net(NET % "relu_param { negative_slope: 0.1 }")
    found = compare_nets(configs, ([models[0]], [models[0]]), proto.TRAIN)
    assert found.first_beyond(0).layer == "relu"


@needs_bf16
def test_precisions(models):
    configs = parse_net(NET % ""), parse_net(NET % "")
    found = compare_nets(configs, ([models[0]], [models[0]]), proto.TRAIN, "bf16")
    assert found.first_beyond(1e-4).layer == "conv" and found.first_beyond(0.05) is None


def test_labels_of_several_axes_are_labels(models):
    text = (NET % "").replace("shape { dim: 2 } }", "shape { dim: 2 dim: 1 dim: 1 dim: 1 } }")
    found = compare_nets((parse_net(text), parse_net(text)), ([models[0]], [models[0]]), proto.TRAIN)
    assert found.differences[-1].layer == "loss" and 0 < found.differences[-1].scale < 100


def test_histories_and_what_is_not_a_number(tmp_path):
    a = [np.float32([1, 2, np.nan]), np.float32([1, 2])]
    b = [np.float32([1, 2, np.nan]), np.float32([1, np.inf])]
    for name, history in (("a", a), ("b", b)):
        write_solverstate(tmp_path / f"{name}.solverstate", SolverState(1, "x", history))
    found = compare_files(str(tmp_path / "a.solverstate"), str(tmp_path / "b.solverstate"))
    assert [each.largest for each in found.differences] == [0, np.inf]
    assert found.first_beyond(1e9).what == "1"


def test_files_of_other_nets(models, tmp_path):
    other = proto.NetParameter()
    other.layer.add(name="ip")
    other.layer.add(name="more")
    blobs = {"ip": [np.zeros((5, 144)), np.zeros(5)], "more": [np.zeros(1)]}
    write_caffemodel(tmp_path / "other", other, blobs)
    found = compare_files(models[0], str(tmp_path / "other"))
    only = f"\nonly in {models[0]}: conv, blob 0; conv, blob 1\nonly in {tmp_path}/other: more, blob 0\n"
    assert only in to_text(found, 0)
    ip = read_caffemodel(models[0])["ip"]
    write_caffemodel(tmp_path / "same.caffemodel", other, {"ip": ip})
    found = compare_files(models[0], str(tmp_path / "same.caffemodel"))
    assert to_text(found, 0).endswith("\nnothing differs at all in what both have")
    assert main(["compare", models[0], str(tmp_path / "same.caffemodel")]) == 1
    write_caffemodel(tmp_path / "other", other, {"ip": [np.zeros((5, 100)), np.zeros(5)]})
    with pytest.raises(ConfigError, match=r"layer 'ip', blob 0: 5 x 144 in .*, 5 x 100 in"):
        compare_files(models[0], str(tmp_path / "other"))
    write_caffemodel(tmp_path / "other", other, {"more": [np.zeros(1)]})
    with pytest.raises(ConfigError, match="have nothing in common"):
        compare_files(models[0], str(tmp_path / "other"))
