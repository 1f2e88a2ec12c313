"""`engine check` tells errors from code of the user and from files that are not on this machine."""

import json

import pytest

from engine.cli import main
from engine.config import read_solver
from engine.examine.check import check_file
from engine.examine.check_text import summary, to_json, to_text

NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { crop_size: 4 %s } data_param { source: "/nowhere/lmdb" backend: LMDB batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 7 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
PYTHON = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 } } }
layer { name: "own" type: "Python" bottom: "x" top: "y" python_param { module: "absent.one" layer: "One" } }
"""


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file and returns its path."""

    def file(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return file


def test_absent_data_and_means(write):
    path = write("net.prototxt", NET % 'mean_file: "/nowhere/mean"')
    report = check_file(path)
    assert report.errors == report.absent_code == [] and len(report.nets) == 2
    assert [line.partition(": ")[2] for line in report.absent_files] == [
        "source /nowhere/lmdb is not here; taking data of 3 x 4 x 4",
        "mean_file /nowhere/mean is not here",
    ]
    assert "\nabsent file: " in to_text(report) and to_json(report)["absent_files"] == report.absent_files


@pytest.mark.parametrize("source", ["/nowhere/x-{000000..000009}.tar", "/nowhere/x-{0..9}.tfrecord", "/nowhere/*.rec"])
def test_absent_shards(write, source):
    report = check_file(write("net.prototxt", (NET % "").replace("/nowhere/lmdb", source).replace("backend: LMDB", "")))
    assert report.errors == report.absent_code == [] and len(report.nets) == 2
    assert [line.partition(": ")[2] for line in report.absent_files] == [
        f"source {source} is not here; taking data of 3 x 4 x 4"
    ]


@pytest.mark.parametrize("loss", ["SigmoidCrossEntropyLoss", "MultiLabelLoss"])
@pytest.mark.parametrize("picture", ["crop_size: 4", ""])
def test_absent_data_with_several_labels(write, picture, loss):
    """It is supposed to have as many labels as the loss compares with scores."""
    text = (NET % "").replace("crop_size: 4", picture).replace("SoftmaxWithLoss", loss)
    report = check_file(write("net.prototxt", text))
    assert report.errors == report.absent_code == [] and len(report.nets) == 2
    data = report.nets[0].layers[0]
    assert dict(data.tops)["label"] == (2, 7)


SEVERAL = """
layer { name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "/nowhere" batch_size: 2 } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 5 kernel_size: %d } }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip" inner_product_param { num_output: 7 } }
"""


@pytest.mark.parametrize(
    ("kernel", "layers", "labels"),
    [
        (3, 'type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss"', 7),
        (3, 'type: "SmoothL1Loss" bottom: "ip" bottom: "label" top: "loss"', 7),
        (3, 'type: "L1Loss" bottom: "label" bottom: "ip" top: "loss"', 7),
        (12, 'type: "EuclideanLoss" bottom: "c" bottom: "label" top: "loss"', 5),
        (3, 'type: "Slice" bottom: "label" top: "a" top: "b" slice_param { axis: 1 slice_point: 3 }', 4),
        (3, 'type: "Slice" bottom: "label" top: "a" top: "b" top: "c2"', 3),
        (
            3,
            'type: "Slice" bottom: "label" top: "a" top: "b" slice_param { axis: -1 slice_point: 3 } }'
            'layer { name: "e" type: "EuclideanLoss" bottom: "ip" bottom: "b" top: "loss"',
            10,
        ),
        (
            3,
            'type: "Slice" bottom: "label" top: "a" top: "b" }'
            'layer { name: "e" type: "EuclideanLoss" bottom: "ip" bottom: "a" top: "loss"',
            14,
        ),
    ],
)
def test_absent_labels_are_as_many_as_the_net_reads(write, kernel, layers, labels):
    """Losses of numbers tell how many labels there are, and so do the slice points of a Slice."""
    report = check_file(write("net.prototxt", SEVERAL % kernel + f'layer {{ name: "l" {layers} }}'))
    assert report.errors == [] and len(report.nets) >= 1
    assert dict(report.nets[0].layers[0].tops)["label"] == (2, labels)


@pytest.mark.parametrize("points", ["", "slice_param { axis: 1 slice_point: 3 }"])
def test_a_slice_without_tops_is_an_error_of_the_net(write, points):
    report = check_file(
        write("net.prototxt", SEVERAL % 3 + f'layer {{ name: "l" type: "Slice" bottom: "label" {points} }}')
    )
    assert report.errors and "layer 'l' (Slice)" in report.errors[0]


FILLED = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 1 weight_filler { type: "file" file: "%s" } } }
"""


def test_absent_and_wrong_files_of_fillers(write, tmp_path):
    report = check_file(write("net.prototxt", FILLED % "/nowhere/theta"))
    assert report.errors == [] and report.absent_files == [
        f"{tmp_path}/net.prototxt:3:1: layer 'ip', parameter 0: filler 'file': /nowhere/theta: cannot be read: "
        "No such file or directory"
    ]
    numbers = write("theta", "1 2 3 4")
    report = check_file(write("net.prototxt", FILLED % numbers))
    assert report.absent_files == [] and f"{numbers}: has 4 numbers, the blob 3" in report.errors[0]
    assert check_file(write("net.prototxt", FILLED % write("theta", "1 2 3"))).errors == []


def test_absent_code_says_where_to_put_it(write, tmp_path):
    report = check_file(write("net.prototxt", PYTHON))
    assert report.errors == report.refused == report.absent_files == []
    (line,) = report.absent_code
    assert line == (
        f"{tmp_path}/net.prototxt:3:1: layer 'own' (Python): module 'absent.one' is neither in PYTHONPATH nor beside "
        f"the prototxt; put absent/one.py into {tmp_path}, or its folder into PYTHONPATH"
    )
    assert "\nabsent code: " in to_text(report)


def test_code_that_is_there_is_not_imported(write, tmp_path):
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent/one.py").write_text("raise SystemExit('imported')")
    report = check_file(write("net.prototxt", PYTHON))
    assert report.errors == report.absent_code == [] and "--python_layers" in report.refused[0]


def test_nets_and_weights_of_a_solver(write):
    net = write("net.prototxt", NET % "")
    common = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 3 snapshot_after_train: false'
    report = check_file(write("a.prototxt", f'net: "else/where.prototxt" {common}'))
    assert report.errors == [] and "else/where.prototxt' is not in the current folder" in report.absent_files[0]
    report = check_file(write("b.prototxt", f'net: "{net}" weights: "/nowhere/a.caffemodel,{net}" {common}'))
    assert report.errors == []
    assert any(line.endswith("weights /nowhere/a.caffemodel are not here") for line in report.absent_files)
    assert not any(f"weights {net}" in line for line in report.absent_files)
    report = check_file(write("c.prototxt", f'net: "else/where.prototxt" {common} momentum: 3'))
    assert "momentum" in report.errors[0] and len(report.absent_files) == 1


POOLED = """
layer { name: "data" type: "DenseImageData" top: "data" top: "label"
  dense_image_data_param { source: "/nowhere/list" batch_size: 1 } }
layer { name: "p" type: "Pooling" bottom: "data" top: "p" top: "mask" pooling_param { kernel_size: 8 stride: 8 } }
layer { name: "up" type: "Upsample" bottom: "p" bottom: "mask" top: "up"
  upsample_param { upsample_h: %d upsample_w: 480 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "up" bottom: "label" top: "loss" }
"""


def test_data_of_a_size_that_the_net_fits(write):
    """Nothing but the net's own layers tells the size, as in SegNet, whose lists name pictures of one size."""
    report = check_file(write("net.prototxt", POOLED % 360))
    assert report.errors == [] and report.nets[0].layers[0].tops == [
        ("data", (1, 3, 360, 480)),
        ("label", (1, 1, 360, 480)),
    ]
    assert report.absent_files[0].endswith("nothing else tells the size of its items, assuming 3 x 360 x 480")
    assert len(report.absent_files) == 1 and report.nets[0].supposition.picture == (3, 360, 480)
    assert main(["check", "--run", report.file]) == 0


def test_data_of_no_size_that_the_net_fits(write):
    report = check_file(write("net.prototxt", POOLED % 7))
    assert report.errors == report.nets == []
    assert (
        "in phase TRAIN the net fits none of the sizes that its data may have; with the first: "
        in report.absent_files[1]
    )


WIDE = """
layer { name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "/nowhere" batch_size: 2 } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 4 kernel_h: 1 kernel_w: %d } }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize(("kernel", "picture"), [(3, (3, 12, 12)), (20, (1, 28, 28)), (170, (3, 224, 224))])
def test_arrays_of_a_file_are_small_until_the_net_wants_more(write, kernel, picture):
    """Rows of HDF5 may have any size. If large ones were supposed, an InnerProduct would have billions of weights."""
    report = check_file(write("net.prototxt", WIDE % kernel))
    assert report.errors == [] and report.nets[0].supposition.picture == picture


ALONE = """
layer { name: "data" type: "Data" top: "data" data_param { source: "/nowhere/a" batch_size: 1 } }
layer { name: "label" type: "Data" top: "label" data_param { source: "/nowhere/b" batch_size: 1 } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a" convolution_param { num_output: 4 kernel_size: 1 } }
layer { name: "b" type: "Convolution" bottom: "data" top: "b" convolution_param { num_output: %d kernel_size: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" }
"""


def test_masks_in_a_data_base_of_their_own(write):
    report = check_file(write("net.prototxt", ALONE % 4))
    assert report.errors == [] and [line[-13:] for line in report.absent_files] == ["3 x 224 x 224", "1 x 224 x 224"]


def test_channels_that_differ_are_an_error_with_any_size(write):
    report = check_file(write("net.prototxt", ALONE % 5))
    assert "expected bottoms of one shape, (1, 4, 224, 224), got (1, 5, 224, 224)" in report.errors[0]
    report = check_file(write("net.prototxt", ALONE.replace("Eltwise", "Eltwice") % 4))
    assert [error.partition("layer 'sum': ")[2] for error in report.errors] == [
        "unknown layer type 'Eltwice'; did you mean 'Eltwise'?"
    ]


STAGED = """
layer { name: "train" type: "Data" top: "data" top: "label" data_param { batch_size: 2 } include { stage: "train" } }
layer { name: "val" type: "Data" top: "data" top: "label" data_param { batch_size: 3 } include { stage: "val" } }
layer { name: "scale" type: "Power" bottom: "raw" top: "data" include { stage: "deploy" } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { bias_term: false } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" exclude { stage: "deploy" } }
"""


def test_a_net_that_only_stages_feed(write):
    """DIGITS has such nets. It fills in the data and the number of classes."""
    path = write("net.prototxt", STAGED)
    report = check_file(path)
    assert report.errors == [] and [net.batch for net in report.nets] == [2, 3, 2, 3]
    assert any("checked with each that does: train, val (--stage)" in note for note in report.notes)
    assert report.absent_files == [
        f"{path}:5:1: layer 'ip': num_output is left to the data, which is not here; assuming 10"
    ]
    assert [net.batch for net in check_file(path, stages=["val"]).nets] == [3, 3]
    assert "no layer makes its bottom 'raw'" in check_file(path, stages=["deploy"]).errors[0]


UNFED = """
layer { name: "scale" type: "Power" bottom: "data" top: "scaled" }
layer { name: "ip" type: "InnerProduct" bottom: "scaled" top: "ip" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_a_net_that_a_program_feeds(write):
    """DIGITS puts a layer into such a net that makes 'data' and 'label'."""
    path = write("net.prototxt", UNFED)
    report = check_file(path)
    assert report.errors == [] and [layer.name for layer in report.nets[0].layers] == ["data", "scale", "ip", "loss"]
    assert report.absent_files[0].startswith(f"{path}: nothing feeds the net: no layer makes 'data' and 'label'")
    assert main(["check", path]) == 0 and main(["check", path, "--strict"]) == 1
    alone = check_file(write("data.prototxt", UNFED.splitlines()[1]))
    assert alone.errors == [] and "no layer makes 'data', as" in alone.absent_files[0]
    other = check_file(write("other.prototxt", UNFED.replace('"label"', '"target"')))
    assert "no layer makes its bottom 'data'" in other.errors[0]


def test_data_layers_that_a_program_fills_in(write):
    first = 'layer { name: "d" type: "Data" top: "data" } layer { name: "l" type: "Data" top: "label" %s }'
    path = write("net.prototxt", first % "" + UNFED)
    report = check_file(path)
    assert report.errors == []
    assert f"{path}:1:1: layer 'd' names no source and no batch_size" in report.absent_files[0]
    named = check_file(write("named.prototxt", first % 'data_param { source: "/nowhere/x" }' + UNFED))
    assert "layer 'l': expected a data_param.batch_size above 0, got 0" in named.errors[0]


def test_a_typing_error_in_a_net_that_is_fed(write):
    report = check_file(write("net.prototxt", NET.replace('bottom: "data"', 'bottom: "date"', 1) % ""))
    assert "no layer makes its bottom 'date'" in report.errors[0]


def test_layers_that_only_a_program_has(write):
    report = check_file(write("net.prototxt", UNFED.replace('"Power"', '"IPlugin"')))
    assert report.errors == [] and "TensorRT's name for a layer that the program has" in report.absent_code[0]


def test_num_output_is_missing_where_data_are_named(write):
    report = check_file(write("net.prototxt", NET.replace("num_output: 7", "") % ""))
    assert "num_output" in report.errors[0]


def test_status(write, capsys):
    lacks, code = write("lacks.prototxt", NET % ""), write("code.prototxt", PYTHON)
    assert main(["check", lacks, code]) == 0
    assert (
        "2 files: 0 in order; without errors but lacking files 1, user code 1; with errors 0" in capsys.readouterr().out
    )
    assert main(["check", lacks, "--strict"]) == 1 and main(["check", code, "--strict"]) == 1
    wrong = write("wrong.prototxt", NET.replace("num_output: 7", "num_output: 0") % "")
    assert main(["check", lacks, wrong]) == 1
    assert "with errors 1" in summary([check_file(wrong), check_file(lacks)])
    capsys.readouterr()
    assert main(["check", code, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["absent_code"]


def test_what_the_user_names_must_be_there(tmp_path):
    assert main(["check", str(tmp_path / "none.prototxt")]) == 1


def test_run_has_the_same_status(write):
    code = write("code.prototxt", PYTHON)
    assert main(["check", "--run", code]) == 0 and main(["check", "--run", code, "--strict"]) == 1


def test_training_still_fails(write):
    from engine.config import nets_of_solver
    from engine.errors import FILE, ConfigError

    path = write("a.prototxt", 'net: "else/where.prototxt"')
    with pytest.raises(ConfigError) as caught:
        nets_of_solver(read_solver(path))
    assert caught.value.absent == FILE
