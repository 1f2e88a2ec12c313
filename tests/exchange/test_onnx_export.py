"""`engine export --onnx`: the model's inputs and outputs, folding, names, and what cannot be expressed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from engine.cli import main
from engine.config import parse_net
from engine.errors import EngineError
from engine.exchange import onnx_file
from engine.exchange.onnx_export import export_onnx
from engine.exchange.onnx_file import write_model
from engine.weights import read_caffemodel, write_caffemodel
from tests.exchange import harness
from tests.shared import SHARED, needs_shared

CLASSIFIER = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
"""


def export(text: str, folder, **options) -> tuple[list[str], str]:
    """Exports a net with random weights to x.onnx; returns the notes and the path of the weights."""
    harness.runtime()
    weights = harness.random_weights(parse_net(text, "net.prototxt"), folder / "x.caffemodel")
    return export_onnx(parse_net(text, "net.prototxt"), weights, folder / "x.onnx", **options), weights


def names(model) -> tuple[list[str], list[str]]:
    return [each.name for each in model.get_inputs()], [each.name for each in model.get_outputs()]


@pytest.mark.parametrize("loss", ["SoftmaxWithLoss", "SoftmaxWithLossOHEM", "FocalLoss", "SoftmaxWithFocalLoss"])
def test_a_training_net_loses_its_labels_and_ends_in_probabilities(loss, tmp_path):
    text = CLASSIFIER.replace("SoftmaxWithLoss", loss)
    notes, weights = export(text, tmp_path)
    model = harness.session(tmp_path / "x.onnx")
    assert names(model) == (["data"], ["prob"])
    assert model.get_inputs()[0].shape == ["batch", 3, 8, 8]
    assert notes == [
        f"layer 'loss' ({loss}) becomes Softmax: top 'prob'",
        "layer 'accuracy' (Accuracy) is left out",
    ]
    text = text.replace("dim: 4", "dim: 7", 2).replace("{ dim: 4 }", "{ dim: 7 }")
    scores = harness.engine_outputs(text, weights, {})  # DummyData feeds it
    found = harness.onnx_outputs(tmp_path / "x.onnx", {"data": scores["data"]})["prob"]
    expected = np.exp(scores["ip"]) / np.exp(scores["ip"]).sum(1, keepdims=True)
    harness.assert_close(found, expected)


def test_the_data_of_training_need_not_be_there_whatever_leaves_it_out(tmp_path):
    text = """
    layer { name: "data" type: "Data" top: "data" exclude { phase: TEST } data_param { source: "gone" batch_size: 8 } }
    layer { name: "data" type: "Input" top: "data" include { phase: TEST } input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 2 } }"""
    notes, _ = export(text, tmp_path)
    assert notes == []


@pytest.mark.parametrize("fold", [False, True])
def test_nodes_have_the_names_of_layers_and_norms_are_folded_on_demand(fold, tmp_path):
    export(CLASSIFIER, tmp_path, fold=fold)
    found = {node.name: node.op_type for node in harness.nodes(tmp_path / "x.onnx")}
    assert found["conv"] == "Conv" and found["relu"] == "Relu" and found["ip"] == "Gemm"
    assert ("BatchNormalization" in found.values()) == (not fold)
    assert "scale" not in found and "drop" not in found


@pytest.mark.parametrize(
    "layer",
    [
        'type: "Convolution" convolution_param { num_output: 6 kernel_size: 3 group: 3 bias_term: false }',
        'type: "DepthwiseConvolution" convolution_param { num_output: 6 kernel_size: 3 }',
        'type: "Deconvolution" convolution_param { num_output: 4 kernel_size: 2 group: 2 }',
        'type: "InnerProduct" inner_product_param { num_output: 4 transpose: true }',
        'type: "InnerProduct" inner_product_param { num_output: 4 bias_term: false }',
    ],
)
@pytest.mark.parametrize(
    "norm", ['type: "BatchNorm"', 'type: "BN"', 'type: "BN" bn_param { bn_mode: INFERENCE }', 'type: "Scale"']
)
def test_folding_changes_no_result(layer, norm, tmp_path):
    if "BN" in norm and "Inner" in layer:
        norm += " "  # its parameters are (1, C, 1, 1) all the same
    text = f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 6 dim: 5 dim: 4 }} }} }}
    layer {{ name: "a" bottom: "x" top: "a" {layer} }}
    layer {{ name: "n" bottom: "a" top: "n" {norm} }}
    layer {{ name: "s" type: "Scale" bottom: "n" top: "s" scale_param {{ bias_term: true }} }}"""
    _, weights = export(text, tmp_path, fold=True)
    assert len(harness.nodes(tmp_path / "x.onnx")) <= 3  # an InnerProduct's Flatten, and the output's name
    inputs = harness.random_inputs({"x": (2, 6, 5, 4)})
    expected = harness.engine_outputs(text, weights, inputs)["s"]
    harness.assert_close(harness.onnx_outputs(tmp_path / "x.onnx", inputs)["s"], expected)


def test_a_norm_is_not_folded_where_another_layer_reads_what_lies_between(tmp_path):
    text = CLASSIFIER.replace('name: "bn" type: "BatchNorm" bottom: "conv" top: "conv"',
                              'name: "bn" type: "BatchNorm" bottom: "conv" top: "n"')  # fmt: skip
    text = text.replace('name: "scale" type: "Scale" bottom: "conv" top: "conv"',
                        'name: "scale" type: "Scale" bottom: "n" top: "n"')  # fmt: skip
    text += 'layer { name: "sum" type: "Eltwise" bottom: "n" bottom: "conv" top: "sum" }'
    text = text.replace('name: "relu" type: "ReLU" bottom: "conv" top: "conv"',
                        'name: "relu" type: "ReLU" bottom: "n" top: "relu"')  # fmt: skip
    text = text.replace('name: "drop" type: "Dropout" bottom: "conv" top: "conv"',
                        'name: "drop" type: "Dropout" bottom: "relu" top: "relu"')  # fmt: skip
    _, weights = export(text, tmp_path, fold=True)
    scores = harness.engine_outputs(text, weights, {})
    found = harness.onnx_outputs(tmp_path / "x.onnx", {"data": scores["data"]})
    harness.assert_close(found["sum"], scores["sum"])
    assert "BatchNormalization" in {node.op_type for node in harness.nodes(tmp_path / "x.onnx")}


@pytest.mark.parametrize("first", ["folded", "plain"])
def test_a_layer_that_shares_weights_does_not_get_what_was_folded_into_them(first, tmp_path):
    conv = 'type: "Convolution" param { name: "w" } convolution_param { num_output: 3 kernel_size: 1 bias_term: false }'
    layers = {
        "folded": f"""layer {{ name: "c1" bottom: "x" top: "a" {conv} }}
            layer {{ name: "bn" type: "BatchNorm" bottom: "a" top: "a" }}""",
        "plain": f'layer {{ name: "c2" bottom: "x" top: "b" {conv} }}',
    }
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 4 } } }'
    text += layers.pop(first) + layers.popitem()[1]
    _, weights = export(text, tmp_path, fold=True)
    inputs = harness.random_inputs({"x": (2, 3, 5, 4)})
    expected, found = harness.engine_outputs(text, weights, inputs), harness.onnx_outputs(tmp_path / "x.onnx", inputs)
    for name in "ab":
        harness.assert_close(found[name], expected[name])


def test_a_shared_weight_is_stored_once(tmp_path):
    import onnx

    shared = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 6 }'
    text = f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 6 }} }} }}
    layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "a" {shared} }}
    layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b" {shared} }}"""
    _, weights = export(text, tmp_path)
    assert [each.name for each in onnx.load(tmp_path / "x.onnx").graph.initializer] == ["a.0", "a.1"]
    inputs = harness.random_inputs({"x": (2, 6)})
    expected = harness.engine_outputs(text, weights, inputs)["b"]
    harness.assert_close(harness.onnx_outputs(tmp_path / "x.onnx", inputs)["b"], expected)


IN_PLACE = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "a" type: "%s" bottom: "data" top: "data" }
layer { name: "b" type: "Sigmoid" bottom: "data" top: "data" }
"""
CONVOLUTION = """layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 2 kernel_size: 1 } }"""


@pytest.mark.parametrize("type", ["AbsVal", "BatchNorm", "Dropout"])
@pytest.mark.parametrize(("more", "output", "name"), [(CONVOLUTION, "c", "c"), ("", "data", "data/output")])
def test_an_input_that_layers_work_on_in_place_has_its_name(type, more, output, name, tmp_path):
    text = IN_PLACE % type + more
    notes, weights = export(text, tmp_path)
    assert names(harness.session(tmp_path / "x.onnx")) == (["data"], [name])
    assert notes == ([] if name == output else [
        "output 'data' is named 'data/output': another version of the blob has its name"
    ])  # fmt: skip
    inputs = harness.random_inputs({"data": (2, 3, 4, 4)})
    expected = harness.engine_outputs(text, weights, inputs)[output]
    harness.assert_close(harness.onnx_outputs(tmp_path / "x.onnx", inputs)[name], expected)


def test_of_two_versions_of_a_blob_that_are_outputs_the_last_has_its_name(tmp_path):
    """One is an output because ONNX cannot express the layer that reads it, the other because the net ends in it."""
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 4 dim: 4 } } }
    layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 3 dim: 5 } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 18 kernel_size: 1 } }
    layer { name: "q" type: "PSROIPooling" bottom: "c" bottom: "rois" top: "q"
      psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 } }
    layer { name: "d" type: "Power" bottom: "c" top: "c" power_param { scale: 2 } }"""
    notes, _ = export(text, tmp_path, partial=True)
    assert names(harness.session(tmp_path / "x.onnx")) == (["x"], ["c/output", "c"])
    assert "output 'c' is named 'c/output': another version of the blob has its name" in notes
    found = harness.onnx_outputs(tmp_path / "x.onnx", harness.random_inputs({"x": (2, 6, 4, 4)}))
    harness.assert_close(2 * found["c/output"], found["c"])


def test_hdf5_has_a_shared_blob_once(tmp_path):
    """In HDF5, Caffe leaves out a blob that another layer owns."""
    h5py = pytest.importorskip("h5py")
    ip = 'bottom: "x" inner_product_param { num_output: 6 }'
    text = f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 6 }} }} }}
    layer {{ name: "a" type: "InnerProduct" top: "a" {ip} param {{ }} param {{ name: "b" }} }}
    layer {{ name: "b" type: "InnerProduct" top: "b" {ip} param {{ }} param {{ name: "b" }} }}"""
    _, weights = export(text, tmp_path)
    blobs = read_caffemodel(weights)
    write_caffemodel(path := tmp_path / "x.h5", parse_net(text).message, {**blobs, "b": blobs["b"][:1]})
    export_onnx(parse_net(text), str(path), tmp_path / "x.onnx")
    inputs = harness.random_inputs({"x": (2, 6)})
    expected = harness.engine_outputs(text, str(path), inputs)
    for name, values in harness.onnx_outputs(tmp_path / "x.onnx", inputs).items():
        harness.assert_close(values, expected[name])
    with h5py.File(path, "r+") as file:
        del file["data/b/0"]
        file["data/b/1"] = blobs["b"][1]
    with pytest.raises(EngineError, match="layer 'b', blob 0: the file does not have it"):
        export_onnx(parse_net(text), str(path), tmp_path / "x.onnx")


INEXPRESSIBLE = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 4 dim: 4 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: 18 kernel_size: 1 } }
layer { name: "p" type: "Python" bottom: "a" top: "p" python_param { module: "json" layer: "L" } }
layer { name: "r" type: "ReLU" bottom: "p" top: "r" }
layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 3 dim: 5 } } }
layer { name: "q" type: "PSROIPooling" bottom: "a" bottom: "rois" top: "q"
  psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 } }
layer { name: "s" type: "Sigmoid" bottom: "a" top: "s" }
"""


def test_all_that_cannot_be_expressed_is_named_in_one_line(tmp_path):
    with pytest.raises(EngineError) as error:
        (tmp_path / "x.caffemodel").write_bytes(b"")
        harness.runtime()
        export_onnx(parse_net(INEXPRESSIBLE, "net.prototxt"), str(tmp_path / "x.caffemodel"), tmp_path / "x.onnx")
    assert str(error.value) == (
        "net.prototxt: ONNX cannot express layer 'p' (Python) at net.prototxt:4:1; layer 'q' (PSROIPooling) at "
        "net.prototxt:7:1; --partial ends the model before them"
    )
    assert not (tmp_path / "x.onnx").exists()


def test_partial_ends_before_them(tmp_path):
    harness.runtime()
    weights = harness.random_weights(
        parse_net("\n".join(INEXPRESSIBLE.splitlines()[:3]), "net.prototxt"), tmp_path / "x.caffemodel"
    )
    export_onnx(parse_net(INEXPRESSIBLE, "net.prototxt"), weights, tmp_path / "x.onnx", partial=True)
    assert names(harness.session(tmp_path / "x.onnx")) == (["x"], ["a", "s"])


def test_a_net_that_holds_its_batch_fixed_says_so(tmp_path):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 } } }
    layer { name: "r" type: "Reshape" bottom: "x" top: "r" reshape_param { shape { dim: 3 dim: 4 } } }"""
    notes, _ = export(text, tmp_path)
    assert len(notes) == 1 and "holds its batch of 2 fixed" in notes[0] and "layer 'r' (Reshape)" in notes[0]
    assert harness.session(tmp_path / "x.onnx").get_inputs()[0].shape == [2, 6]


@pytest.mark.parametrize(
    ("blobs", "message"),
    [
        ({}, "layer 'conv': the file has no such layer, the net 2"),
        (
            {"conv": [np.zeros((4, 3, 3, 3))]},
            "layer 'conv': the file has 1 blobs, the net 2; define the layer as the file's net does (bias_term: "
            "whether it has a bias)",
        ),
        (
            {"conv": [np.zeros((4, 3, 5, 3)), np.zeros(4)]},
            "layer 'conv', blob 0: the file has 4 x 3 x 5 x 3, the net 4 x 3 x 3 x 3",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(blobs, message, tmp_path):
    harness.runtime()
    config = parse_net(CLASSIFIER, "net.prototxt")
    path = str(tmp_path / "x.caffemodel")
    write_caffemodel(
        path, config.message, {name: [np.float32(each) for each in given] for name, given in blobs.items()}
    )
    with pytest.raises(EngineError) as error:
        export_onnx(config, path, tmp_path / "x.onnx")
    assert str(error.value) == f"{path}: {message}"


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    (tmp_path / "net.prototxt").write_text(CLASSIFIER)
    assert main(["export", "--onnx", str(tmp_path / "net.prototxt"), "x.caffemodel", str(tmp_path / "x.onnx")]) == 1
    assert "ONNX files need the onnx package: pip install prototxt-engine[onnx]" in capsys.readouterr().err


def test_a_net_of_segnets_kind(tmp_path):
    """SegNet's Pooling keeps the places of maxima, and its Upsample puts values back there."""
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }
    layer { name: "a" type: "Convolution" bottom: "x" top: "a"
      convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
    layer { name: "bn" type: "BN" bottom: "a" top: "a" bn_param { bn_mode: INFERENCE } }
    layer { name: "p" type: "Pooling" bottom: "a" top: "p" top: "places" pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "b" type: "Convolution" bottom: "p" top: "b"
      convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
    layer { name: "up" type: "Upsample" bottom: "b" bottom: "places" top: "up"
      upsample_param { upsample_h: 9 upsample_w: 8 } }
    layer { name: "y" type: "Convolution" bottom: "up" top: "y" convolution_param { num_output: 2 kernel_size: 3 } }"""
    _, weights = export(text, tmp_path, fold=True)
    inputs = harness.random_inputs({"x": (2, 3, 9, 8)})
    expected = harness.engine_outputs(text, weights, inputs)["y"]
    harness.assert_close(harness.onnx_outputs(tmp_path / "x.onnx", inputs)["y"], expected)
    twice = {"x": np.concatenate([inputs["x"]] * 2)}
    found = harness.onnx_outputs(tmp_path / "x.onnx", twice)["y"]
    harness.assert_close(found, np.concatenate([expected] * 2))


@needs_shared("zoo")
def test_mobilenet_ssd_goes_as_far_as_onnx_does(tmp_path):
    """Its DetectionOutput alone is left out."""
    harness.runtime()
    text = (SHARED / "zoo/intel/models/benchmark/ssd_mobilenet/deploy.prototxt").read_text()
    text = text.replace("dim: 32 dim: 3 dim: 300 dim: 300", "dim: 1 dim: 3 dim: 160 dim: 160")
    text = text.replace('type: "constant"\n      value: 0.01', 'type: "gaussian"')
    config = parse_net(text, "deploy.prototxt")
    weights = harness.random_weights(config, tmp_path / "x.caffemodel")
    with pytest.raises(EngineError, match=r"cannot express layer 'detection_out' \(DetectionOutput\)"):
        export_onnx(config, weights, tmp_path / "x.onnx")
    export_onnx(config, weights, tmp_path / "x.onnx", fold=True, partial=True)
    model = harness.session(tmp_path / "x.onnx")
    assert names(model) == (["data"], ["mbox_loc", "mbox_priorbox", "mbox_conf_flatten"])
    expected = harness.engine_outputs(text, weights, {})
    for name, values in harness.onnx_outputs(tmp_path / "x.onnx", {"data": expected["data"]}).items():
        harness.assert_close(values, expected[name])


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            'type: "Slice" top: "a" top: "b" slice_param { axis: 0 slice_point: 1 }',
            "cuts at places of an axis",
        ),
        (
            'type: "BatchNorm" top: "a" batch_norm_param { use_global_stats: false stats_batch_size: 2 }',
            "stats_batch",
        ),
        (
            'type: "BatchNorm" top: "a" batch_norm_param { use_global_stats: false } } bn_stats_batch_size: 2 #',
            "stats_batch",
        ),
        ('type: "Dropout" top: "a" dropout_param { sample_weights_test: true }', "sample_weights_test"),
    ],
)
def test_what_would_be_something_else_is_refused(layer, reason, tmp_path):
    text = f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 4 dim: 6 dim: 5 dim: 4 }} }} }}
    layer {{ name: "l" bottom: "x" {layer} }}"""
    with pytest.raises(EngineError, match=reason):
        export(text, tmp_path)


def test_the_size_of_regions_in_intel_s_words(tmp_path):
    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 8 dim: 8 } } }
    layer { name: "r" type: "Input" top: "r" input_param { shape { dim: 3 dim: 5 } } }
    layer { name: "l" type: "ROIPooling" bottom: "x" bottom: "r" top: "y" roi_pooling_param { %s } }"""
    shapes = []
    for name, size in (("a", "pooled_size: 3"), ("b", "pooled_h: 3 pooled_w: 3")):
        (tmp_path / name).mkdir()
        export(text % size, tmp_path / name)
        (pool,) = [each for each in harness.nodes(tmp_path / name / "x.onnx") if each.op_type == "MaxRoiPool"]
        shapes.append(next(list(each.ints) for each in pool.attribute if each.name == "pooled_shape"))
    assert shapes[0] == shapes[1] == [3, 3]


def test_a_large_model_has_its_weights_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 100)
    monkeypatch.setattr(onnx_file, "EXTERNAL_FROM", 16)
    _, weights = export(CLASSIFIER, tmp_path)
    assert (tmp_path / "x.onnx.data").exists()
    scores = harness.engine_outputs(CLASSIFIER, weights, {})
    found = harness.onnx_outputs(tmp_path / "x.onnx", {"data": scores["data"]})["prob"]
    expected = np.exp(scores["ip"]) / np.exp(scores["ip"]).sum(1, keepdims=True)
    harness.assert_close(found, expected)


def test_weights_beside_a_model_are_not_written_without_it(tmp_path, monkeypatch):
    import onnx

    def made():
        weights = onnx.numpy_helper.from_array(np.arange(2000, dtype=np.float32), "w")
        return onnx.ModelProto(graph=onnx.GraphProto(name="net", initializer=[weights]))

    monkeypatch.setattr("engine.exchange.onnx_file.MOST_BYTES", 1000)
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError, match="it is a folder"):
        write_model(tmp_path / "folder", made())
    replace = os.replace

    def failing(source, target):
        if str(target).endswith(".onnx"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("engine.files.os.replace", failing)
    with pytest.raises(EngineError, match=r"x.onnx: cannot be written: No space left"):
        write_model(tmp_path / "x.onnx", made())
    assert os.listdir(tmp_path) == ["folder"]
    monkeypatch.setattr("engine.files.os.replace", replace)
    write_model(tmp_path / "x.onnx", made())
    assert sorted(os.listdir(tmp_path)) == ["folder", "x.onnx", "x.onnx.data"]
    read = onnx.load(tmp_path / "x.onnx").graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), np.arange(2000))


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("fails", [".onnx", ".onnx.data", None])
def test_the_weights_beside_a_model_stay_where_another_cannot_be_written(fails, links, tmp_path, monkeypatch):
    import onnx

    def made(values):
        weights = onnx.numpy_helper.from_array(values, "w")
        return onnx.ModelProto(graph=onnx.GraphProto(name="net", initializer=[weights]))

    monkeypatch.setattr("engine.exchange.onnx_file.MOST_BYTES", 1000)
    first, second = np.arange(2000, dtype=np.float32), np.ones(3000, np.float32)
    write_model(tmp_path / "x.onnx", made(first))
    replace = os.replace

    def failing(source, target):
        if fails and str(target).endswith(fails) and Path(source).stat().st_size != first.nbytes:
            raise OSError(5, "Input/output error")
        replace(source, target)

    def without(*names, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("engine.files.os.replace", failing)
    if not links:
        monkeypatch.setattr("engine.exchange.onnx_file.os.link", without)
    if fails:
        with pytest.raises(EngineError, match=rf"x{fails}: cannot be written: Input/output error"):
            write_model(tmp_path / "x.onnx", made(second))
    else:
        write_model(tmp_path / "x.onnx", made(second))
    assert sorted(os.listdir(tmp_path)) == ["x.onnx", "x.onnx.data"]
    read = onnx.load(tmp_path / "x.onnx").graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), first if fails else second)
