"""Reading nets and solvers: upgrades, errors with their places, overrides, and the zoo of public files."""

import itertools
import os
import time
import warnings

import pytest
from google.protobuf import text_encoding, text_format

from engine import proto
from engine.config.config import parse_net, parse_solver, read, read_net, read_solver
from engine.config.dialects import rows
from engine.config.phases import PHASES, kept_in
from engine.config.prototext import fill, scan, unescaped
from engine.config.solver_nets import net_of_solver, nets_of_solver
from engine.config.stand_ins import stand_in
from engine.config.upgrade import upgrade_net, upgrade_solver
from engine.errors import MOST_ERRORS, ConfigError, ConfigErrors
from tests.shared import SHARED, needs_shared

NET = """name: "tiny"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  include { phase: TRAIN }
  data_param { source: "train_db" batch_size: 4 backend: LMDB }
}
layer {
  name: "data" type: "Data" top: "data" top: "label"
  include { phase: TEST }
  data_param { source: "test_db" batch_size: 4 backend: LMDB }
}
layer {
  name: "inception_3a/1x1" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } }
}
"""


def layers(config):
    return {layer.name: layer for layer in config.message.layer}


def errors_of(parse, text, name="x.prototxt"):
    with pytest.raises(ConfigError) as caught:
        parse(text, name)
    return str(caught.value).splitlines()


# ---- the text format


@needs_shared("zoo")
def test_the_zoo_reads_as_protobuf_reads_it():
    upgrades = {"net": upgrade_net, "solver": upgrade_solver}
    kinds = {"net": 0, "solver": 0}
    for path in (SHARED / "zoo").rglob("*.prototxt"):
        config = read(path)
        kinds[config.kind] += 1
        text = path.read_text()
        expected = text_format.Parse(text, type(config.message)())
        upgrades[config.kind](expected)
        if config.kind == "net":
            stand_in(expected, str(path))
        assert config.message == expected, path
        lines = text.splitlines()
        for index in range(len(config.message.layer) if config.kind == "net" else 0):
            line = int(config.where(index).rsplit(":", 2)[1])
            assert lines[line - 1].strip().startswith(("layer", "input"))
    assert kinds == {"net": 152, "solver": 117}


@pytest.mark.parametrize(
    "text",
    [
        'name: "a" "b\\x41\\n" # a comment\n',
        "name: 'x';input: \"a\", input: 'b'",
        "input_dim: [1, 2, 0x10, 017]",
        "layer < loss_weight: 1.5f loss_weight: .5 loss_weight: -1e-3 >",
        "force_backward: true debug_info: 0",
        "state { phase: TEST level: -1 } layer { phase: 1 }",
        "layer: { name: 'x' type: 'y' }\r\nlayer{}\r\n",
        "",
    ],
)
def test_text_as_protobuf_reads_it(text):
    message = proto.NetParameter()
    assert fill(message, scan(text, "x"), "x") == []
    assert message == text_format.Parse(text, proto.NetParameter())


def test_a_sign_apart_from_its_number():
    """The engine reads it as Caffe does, whose protobuf is in C++. protobuf's reader in Python refuses it."""
    message = parse_net(
        "layer { name: 'a' loss_weight: - 1.5 loss_weight: [- .5f, -\n2] } state { level: - 1 }"
    ).message
    assert list(message.layer[0].loss_weight) == [-1.5, -0.5, -2] and message.state.level == -1


@pytest.mark.parametrize("text", ["true", "True", "t", "1", "false", "False", "f", "0"])
def test_spellings_of_true_and_false(text):
    found = parse_net(f"force_backward: {text}").message
    assert found == text_format.Parse(f"force_backward: {text}", proto.NetParameter())


@pytest.mark.parametrize(
    "text, expected",
    [
        ("layer {\n name: 'a'\n", "x.prototxt:1:1: the '{' of 'layer' is never closed"),
        ("name: 'a'\n}", "x.prototxt:2:1: expected the name of a field, got }"),
        ("name: 'a\n'", "x.prototxt:1:7: this string is not closed on its line"),
        ("name 'a'", "x.prototxt:1:6: expected ':' or '{' after 'name', got 'a'"),
        ("name: @", "x.prototxt:1:7: unexpected character '@'"),
        ("name: 'a'\n\n  @", "x.prototxt:3:3: unexpected character '@'"),
        ("name:", "x.prototxt:1:6: expected a value for 'name', got the end of the file"),
        (
            "layer {\n loss_weight: # to do\n include: { phase: TRAIN } }",
            "x.prototxt:2:2: 'loss_weight' has no value: 'include:' b",
        ),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:f2\nsize 9\n",
            "x.prototxt:1:1: a pointer of Git LFS, not",
        ),
        ("input: ['a' 'b' 3]", "x.prototxt:1:17: expected ',' or ']' in the list of 'input', got 3"),
        ("layer {" * 51, "x.prototxt:1:357: more than 50 messages within each other"),
        ("name: '\\x'", "x.prototxt:1:7: bad escape in a string"),
        ("layer { loss_weight: -\n }", "x.prototxt:1:9: 'loss_weight' expects a finite number, got -"),
    ],
)
def test_syntax_errors(text, expected):
    (error,) = errors_of(parse_net, text)
    assert error.startswith(expected)


@pytest.mark.parametrize(
    "fields, expected",
    [
        (
            "convolution_param { kernel_sise: 3 }",
            "2:21: layer 'a': unknown field 'kernel_sise' in ConvolutionParameter; did you mean 'kernel_size'?",
        ),
        ("pooling_param { pool: MAXX }", "2:17: layer 'a': 'pool' has no value MAXX; did you mean 'MAX'?"),
        (
            "convolution_param { num_output: -1 }",
            "2:21: layer 'a': 'num_output' expects a 32-bit integer of at least 0, got -1",
        ),
        (
            "convolution_param { num_output: 1.5 }",
            "2:21: layer 'a': 'num_output' expects a 32-bit integer of at least 0, got 1.5",
        ),
        ("convolution_param { axis: 3000000000 }", "2:21: layer 'a': 'axis' expects a 32-bit integer, got 3000000000"),
        (
            "dropout_param { dropout_ratio: 'x' }",
            "2:17: layer 'a': 'dropout_ratio' expects a finite number without quotes, got \"x\"",
        ),
        ("dropout_param { dropout_ratio: 1e60 }", "2:17: layer 'a': 'dropout_ratio' expects a finite number, got 1e60"),
        ("loss_weight: inf", "2:1: layer 'a': 'loss_weight' expects a finite number, got inf"),
        ("loss_weight: -nan", "2:1: layer 'a': 'loss_weight' expects a finite number, got -nan"),
        ("loss_weight: \u0661", "2:1: layer 'a': 'loss_weight' expects a finite number, got \u0661"),
        ("phase: \u00b2", "2:1: layer 'a': 'phase' has no value \u00b2; known: TEST, TRAIN"),
        ("phase: 7", "2:1: layer 'a': 'phase' has no value 7; known: TEST, TRAIN"),
        ("propagate_down: maybe", "2:1: layer 'a': 'propagate_down' expects true or false, got maybe"),
        ("type: ReLU", "2:1: layer 'a': 'type' expects a string in quotes, got ReLU"),
        ("relu_param: 3", "2:1: layer 'a': 'relu_param' expects { ... }, got a single value"),
        ("type { x: 3 }", "2:1: layer 'a': 'type' expects a string, got { ... }"),
        ("clip_param { min: 0 }", "2:1: layer 'a': 'max' is missing in ClipParameter"),
    ],
)
def test_values_that_do_not_fit(fields, expected):
    assert errors_of(parse_net, f"layer {{ name: 'a'\n{fields} }}") == [f"x.prototxt:{expected}"]


@pytest.mark.parametrize("digits", ["9" * 5000, "-" + "9" * 5000, "0" * 5000, "0x" + "f" * 5000])
@pytest.mark.parametrize(
    "field", ["phase", "loss_weight", "convolution_param { num_output", "input_param { shape { dim"]
)
def test_numbers_of_any_length(field, digits):
    """Python's int() refuses more than 4,300 digits, and its time grows with the square of their number."""
    (error,) = errors_of(parse_net, f"layer {{ name: 'a'\n{field}: {digits} {'}' * field.count('{')} }}")
    assert error.startswith("x.prototxt:2:") and len(error) <= 600


def test_all_errors_of_a_file_at_once():
    text = NET.replace("batch_size: 4", "batchsize: four", 1).replace('name: "tiny"', 'nane: "tiny"')
    with pytest.raises(ConfigErrors) as caught:
        parse_net(text, "x.prototxt")
    assert [error.where for error in caught.value.errors] == ["x.prototxt:1:1", "x.prototxt:5:35"]
    assert "did you mean 'name'" in str(caught.value) and "did you mean 'batch_size'" in str(caught.value)


def test_escapes_are_those_of_protobuf():
    pieces = ["\\", "x", "4", "f", "g", "u00e9", "U0001f600", "N{DASH}", "777", "n", "é", "中", "\U0001f600"]

    def result(unescape, text):
        try:
            return unescape(text)
        except ValueError as error:
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of invalid escapes, and keeps them as they are
        for text in map("".join, itertools.product(pieces, repeat=4)):
            assert result(unescaped, text) == result(text_encoding.CUnescape, text), text


PROPOSAL = (
    'layer { type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "%s" } }'
)


@pytest.mark.parametrize(
    "text",
    [
        f'name: "{200_000 * chr(92)}"',
        "name: " + f'"{40 * "a"}" ' * 200_000,
        PROPOSAL % ("feat_stride " * 40_000),
        "".join(f"nane{i}: 1 " for i in range(100_000)),
        "layer {" + "".join(f"nane{i}: 1 " for i in range(100_000)) + "}",
        "layer { pooling_param { torch_pooling: true } } " * 20_000,
        f"{'n' * 100_000}: 1",
    ],
    ids=["backslashes", "neighbours", "a layer's text", "errors", "errors of a layer", "refusals", "long name"],
)
def test_texts_are_read_in_linear_time(text):
    begin = time.thread_time()
    try:
        parse_net(text, "x.prototxt")
    except ConfigErrors as errors:
        lines = str(errors).splitlines()
        assert len(lines) == 1 or (len(lines), lines[-1]) == (MOST_ERRORS + 1, "... and more errors")
    assert time.thread_time() - begin < 10


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.prototxt: cannot be read: No such file"):
        read_net(tmp_path / "missing.prototxt")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_solver(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\xfe\0")
    with pytest.raises(ConfigError, match="not a text file"):
        read_net(tmp_path / "binary")
    (tmp_path / "gbk").write_bytes(b'name: "a"  # \xd6\xd0\n layer { name: "\xce" }')
    config = read_net(tmp_path / "gbk")  # protobuf reads this file, too
    assert config.message.name == "a" and config.message.layer[0].name == "\u00ce"
    assert errors_of(parse_net, "base_lr: 1 max_iter: 3 lr_policy: 'fixed'") == [
        "x.prototxt: this is a solver; expected a net"
    ]
    assert errors_of(parse_solver, NET) == ["x.prototxt: this is a net; expected a solver"]
    unknown = "x.prototxt:1:1: unknown field 'nets' in SolverParameter; did you mean 'net'?"
    assert errors_of(parse_solver, "nets: 'a'") == [unknown]  # `nets` is not a field of nets either


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 2500, "a\\0b", "/a\\0b", "a\\nb"])
def test_nets_of_impossible_names(tmp_path, name):
    (tmp_path / "x.prototxt").write_text(f"net: '{name}'")
    with pytest.raises(ConfigError) as error:
        net_of_solver(read_solver(tmp_path / "x.prototxt"), proto.TRAIN)
    assert "is not in the current folder" in str(error.value) or "cannot be read" in str(error.value)
    assert "\n" not in str(error.value) and "\0" not in str(error.value)


def test_where():
    config = parse_net(NET, "x.prototxt")
    assert config.where() == "x.prototxt"
    assert config.where(path="name") == "x.prototxt:1:1"
    assert config.where(2) == "x.prototxt:12:1"
    assert config.where(2, "convolution_param.kernel_size") == "x.prototxt:14:37"
    assert config.where(2, "convolution_param.stride") == "x.prototxt:14:3"


# ---- upgrades


def test_v1_layers():
    config = parse_net("""
    layers { name: "d" type: DATA top: "d"
             data_param { source: "s" scale: 0.5 mean_file: "m" crop_size: 9 mirror: true } }
    layers { name: "ip" type: INNER_PRODUCT bottom: "d" top: "ip" include { phase: TEST }
             blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0 param: "w" param: "b"
             blob_share_mode: PERMISSIVE inner_product_param { num_output: 3 } }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "d" loss_weight: 0.3 }
    """)
    data, ip, loss = config.message.layer
    assert [layer.type for layer in config.message.layer] == ["Data", "InnerProduct", "SoftmaxWithLoss"]
    assert not config.message.layers
    transform = data.transform_param
    assert (transform.scale, transform.mean_file, transform.crop_size, transform.mirror) == (0.5, "m", 9, True)
    assert str(data.data_param).strip() == 'source: "s"'
    assert [(p.name, p.lr_mult, p.decay_mult) for p in ip.param] == [("w", 1, 1), ("b", 2, 0)]
    assert ip.param[0].share_mode == proto.ParamSpec.PERMISSIVE
    assert ip.inner_product_param.num_output == 3 and ip.include[0].phase == proto.TEST
    assert loss.loss_weight[0] == pytest.approx(0.3)
    assert config.where(1) == "<net>:4:5"
    assert config.notes == ["<net>: upgraded from the V1 format of layers"]


OLD_TRANSFORM = 'scale: 0.5 mean_file: "m" crop_size: 9 mirror: true'


@pytest.mark.parametrize(
    ("type", "old_type", "param", "read"),
    [
        ("Data", "DATA", "data_param", ""),
        ("ImageData", "IMAGE_DATA", "image_data_param", ""),
        ("WindowData", "WINDOW_DATA", "window_data_param", " scale: 0.5"),  # WindowData has kept its own `scale`
    ],
)
def test_the_transform_within_data_param_counts_in_v1_layers_only(type, old_type, param, read):
    """As in Caffe. The current format ignores these fields with a note."""
    fields = f'{param} {{ source: "s" {OLD_TRANSFORM} }}'
    old = parse_net(f'layers {{ name: "d" type: {old_type} top: "d" {fields} }}')
    transform = old.message.layer[0].transform_param
    scale = 1 if read else 0.5
    assert (transform.scale, transform.mean_file, transform.crop_size, transform.mirror) == (scale, "m", 9, True)
    assert len(old.notes) == (2 if read else 1)
    current = parse_net(f'layer {{ name: "d" type: "{type}" top: "d" {fields} }}', "net")
    (layer,) = current.message.layer
    assert str(layer.transform_param) == ""
    assert " ".join(str(getattr(layer, param)).split()) == f'source: "s"{read}'
    ignored = "mean_file, crop_size, mirror" if read else "scale, mean_file, crop_size, mirror"
    assert current.notes == [f"net: layer 'd': {param} {{ {ignored} }} has no effect; expected in transform_param"]


@pytest.mark.parametrize(
    "text",
    [
        'layers { name: "d" type: WINDOW_DATA top: "d" window_data_param { scale: 0.5 } }',
        'layers { name: "d" type: WINDOW_DATA top: "d" transform_param { scale: 0.5 } }',
        'layers { layer { name: "d" type: "window_data" scale: 0.5 } top: "d" }',
    ],
)
def test_the_scale_of_windows_in_older_layers(text):
    config = parse_net(text, "net")
    assert not config.message.layer[0].transform_param.HasField("scale")
    assert config.notes[1:] == [
        "net: layer 'd': scale has no effect on WindowData in the older format, as Caffe keeps it in transform_param, "
        "where nothing reads it; if it shall have one, write the net in the current format, in window_data_param"
    ]


def test_window_data_has_few_transforms():
    """Caffe reads nets with the other transforms and ignores them silently, so they are no error here: a note names
    them."""
    others = "pad: 1 resize_param { height: 9 width: 9 } distort_param { } erase_ratio: 0.5 force_gray: false"
    text = f'layer {{ name: "d" type: "WindowData" top: "d" transform_param {{ crop_size: 8 mirror: true {others} }} }}'
    config = parse_net(text, "net")
    given = [field.name for field, _ in config.message.layer[0].transform_param.ListFields()]
    assert given == ["mirror", "crop_size", "force_gray"]
    fields = "resize_param, distort_param, pad, erase_ratio"
    assert config.notes == [f"net: layer 'd': transform_param {{ {fields} }} has no effect on WindowData"]


@pytest.mark.parametrize(("size", "told"), [("", True), ("crop_width: 8 crop_height: 8", False)])
def test_augmentation_without_a_crop(size, told):
    """FlowNet 2's layer transforms only pictures that it also crops."""
    config = parse_net(
        'layer { name: "a" type: "DataAugmentation" bottom: "x" top: "y" augmentation_param { mean: 3 '
        f'mirror {{ rand_type: "bernoulli" prob: 1 }} rotate {{ spread: 0.3 }} {size} }} }}',
        "net",
    )
    fields = "augmentation_param { mirror, rotate }"
    note = f"net: layer 'a': {fields} has no effect without crop_width, as in FlowNet 2"
    assert config.notes == ([note] if told else [])
    assert config.message.layer[0].augmentation_param.HasField("rotate") != told


def test_intel_resizes_or_takes_a_part():
    param = "random_resize_param { min_size: 256 } random_aspect_ratio_param { }"
    config = parse_net(f'layer {{ name: "d" type: "Data" top: "d" transform_param {{ {param} }} }}', "net")
    assert not config.message.layer[0].transform_param.HasField("random_aspect_ratio_param")
    assert config.notes == ["net: layer 'd': random_aspect_ratio_param has no effect beside random_resize_param"]


def test_every_v1_type_has_a_name_of_today():
    kind = proto.V1LayerParameter.DESCRIPTOR.enum_types_by_name["LayerType"]
    window = "kernel_size: 3 kernel_depth: 3"
    needed = {
        "UNPOOLING": 'bottom: "x" bottom: "mask" unpooling_param { unpool_size: 4 }',
        "CONVOLUTION3D": f"convolution_param {{ {window} }}",
        "DECONVOLUTION3D": f"convolution_param {{ {window} }}",
        "POOLING3D": f"pooling_param {{ {window} }}",
    }
    refused = {row.field for row in rows().values() if row.disposition == "refused"}
    names = [value.name for value in kind.values if value.name not in refused]
    text = "\n".join(f"layers {{ type: {name} {needed.get(name, '')} }}" for name in names)
    types = {layer.type for layer in parse_net(text).message.layer}
    assert {"AbsVal", "BNLL", "HDF5Data", "Im2col", "LRN", "MVN", "ReLU", "TanH", "SigmoidCrossEntropyLoss"} <= types
    assert len(types) == len(names) - 5  # two names each: ROIPOOLING, C3D's three layers; MAT_WRITE is left out


def test_v0_layers_and_padding():
    config = parse_net("""
    input: "x" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
    layers { layer { name: "pad" type: "padding" pad: 2 } bottom: "x" top: "px" }
    layers { layer { name: "c" type: "conv" num_output: 4 kernelsize: 5 biasterm: false blobs_lr: 1 weight_decay: 1
                     weight_filler { type: "xavier" } } bottom: "px" top: "c" }
    layers { layer { name: "p" type: "pool" pool: AVE kernelsize: 2 stride: 2 } bottom: "c" top: "p" }
    layers { layer { name: "i" type: "images" source: "l" batchsize: 2 new_height: 7 cropsize: 5 } top: "i" }
    """)
    data, conv, pool, images = config.message.layer
    assert data.type == "Input" and list(data.input_param.shape[0].dim) == [1, 3, 8, 8]
    assert list(conv.bottom) == ["x"] and list(conv.convolution_param.pad) == [2]
    assert list(conv.convolution_param.kernel_size) == [5] and not conv.convolution_param.bias_term
    assert conv.convolution_param.weight_filler.type == "xavier"
    assert [(param.lr_mult, param.decay_mult) for param in conv.param] == [(1, 1)]
    assert [list(layer.top) for layer in config.message.layer] == [["x"], ["c"], ["p"], ["i"]]
    assert pool.pooling_param.pool == pool.pooling_param.AVE and pool.pooling_param.stride == 2
    assert images.type == "ImageData" and images.image_data_param.batch_size == 2
    assert images.transform_param.crop_size == 5
    assert [config.where(i).split(":")[1] for i in range(4)] == ["2", "4", "6", "7"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("layers { layer { name: 'a' type: 'convv' } }", "1:1: layer 'a': unknown type 'convv'; did you mean 'conv'?"),
        (
            "layers { layer { name: 'a' type: 'relu' num_output: 1 } }",
            "1:1: layer 'a': 'num_output' is not an option of 'relu'",
        ),
        (
            "layers { type: CONVOLUTIONS name: 'a' }",
            "1:10: layer 'a': 'type' has no value CONVOLUTIONS; did you mean 'CONVOLUTION'?",
        ),
        (
            "layer {} layers { name: 'a' type: 'ReLU' }",
            "1:29: layer 'a': type \"ReLU\" is of the current format, `layers` of the older one; write `layer`",
        ),
        ("layer {} layers {}", "1:10: both 'layer' and the older 'layers' are given"),
        (
            "input: 'a' input_dim: 1 input_dim: 2",
            "1:1: 1 input with 2 input_dim; expected an input_shape, or 4 input_dim, for each (of clips, 5)",
        ),
    ],
)
def test_upgrades_that_fail(text, expected):
    assert errors_of(parse_net, text) == [f"x.prototxt:{expected}"]


def test_fields_with_new_names():
    config = parse_net("""
    input: "a" input_shape { dim: 2 dim: 3 }
    layer { type: "Concat" concat_param { concat_dim: 0 } }
    layer { type: "SoftmaxWithLoss" loss_param { normalize: false } }
    layer { type: "BatchNorm" param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 2 } }
    """)
    _, concat, loss, norm = config.message.layer
    assert concat.concat_param.axis == 0 and not concat.concat_param.HasField("concat_dim")
    assert loss.loss_param.normalization == loss.loss_param.BATCH_SIZE and not loss.loss_param.HasField("normalize")
    assert [param.lr_mult for param in norm.param] == [0, 0, 0, 2]  # the fourth is that of a scale (Intel's BatchNorm)


@pytest.mark.parametrize("count", [1, 2])
def test_no_solver_updates_statistics(count):
    """As in Caffe, an lr_mult other than 0 is refused. Only in layers of an older form, which name all three params, it
    is set to 0 instead."""
    net = f'layer {{ name: "n" type: "BatchNorm" {count * "param { lr_mult: 0 } "} }}'
    assert [param.lr_mult for param in parse_net(net).message.layer[0].param] == count * [0]
    for given in ("lr_mult: 2", ""):
        wrong = net.replace("lr_mult: 0", given)
        got = f"expected param with lr_mult: 0, or none, got {2 if given else 1}"
        assert errors_of(parse_net, wrong) == [
            f"x.prototxt:1:1: layer 'n' (BatchNorm): no solver updates its statistics: {got}"
        ]


def test_solver_type():
    assert parse_solver("solver_type: ADAM").message.type == "Adam"
    assert parse_solver("").message.type == "SGD"
    assert "both 'type' and the older 'solver_type'" in errors_of(parse_solver, "solver_type: ADAM type: 'SGD'")[0]


# ---- overrides


@pytest.mark.parametrize(
    "override, read_back",
    [
        ("max_iter=7", lambda m: m.max_iter == 7),
        ("stepvalue=10,20, 30", lambda m: list(m.stepvalue) == [10, 20, 30]),
        ("stepvalue=", lambda m: not m.stepvalue),
        ("stepvalue[1]=9", lambda m: list(m.stepvalue) == [1, 9]),
        ("stepvalue[2]=9", lambda m: list(m.stepvalue) == [1, 2, 9]),
        ("solver_mode=CPU", lambda m: m.solver_mode == m.CPU),
        ("net=a b=c.prototxt", lambda m: m.net == "a b=c.prototxt"),
        ("net='quoted'", lambda m: m.net == "quoted"),
        ("base_lr=", lambda m: not m.HasField("base_lr")),
        ("train_state.stage=a,b", lambda m: list(m.train_state.stage) == ["a", "b"]),
        ("test_state[0]={ level: 3 }", lambda m: m.test_state[0].level == 3),
        ("train_state={level: 2}", lambda m: m.train_state.level == 2),
        ("train_state=", lambda m: not m.HasField("train_state")),
        ("stepvalue[0]=", lambda m: list(m.stepvalue) == [2]),
        ("test_net[1]=", lambda m: list(m.test_net) == ["a"]),
        ("test_state[0]=", lambda m: [state.level for state in m.test_state] == [2]),
        ("test_state=", lambda m: not m.test_state),
    ],
)
def test_override_of_a_solver(override, read_back):
    text = "base_lr: 1 stepvalue: [1, 2] max_iter: 5 test_net: ['a', 'b'] test_state: [{ level: 1 }, { level: 2 }]"
    solver = parse_solver(text + " train_state {}", overrides=[override])
    assert read_back(solver.message)


def test_override_of_layers():
    config = parse_net(
        NET,
        overrides=[
            "layer[data].data_param.source=/x",
            "layer[data@TEST].data_param.batch_size=50",
            "layer[inception_3a/1x1].convolution_param.kernel_size=5,7",
            "layer[inception_3a/1x1].param[0].lr_mult=0",
            "layer[2].convolution_param.weight_filler.type=msra",
            "layer[2].loss_param={ normalize: true }",
        ],
    )
    train, test, conv = config.message.layer
    assert [train.data_param.source, test.data_param.source] == ["/x", "/x"]
    assert [train.data_param.batch_size, test.data_param.batch_size] == [4, 50]
    assert conv.loss_param.normalization == proto.LossParameter.VALID  # upgraded, too
    assert list(conv.convolution_param.kernel_size) == [5, 7]
    assert conv.convolution_param.weight_filler.type == "msra" and conv.param[0].lr_mult == 0
    assert config.where(1) == "<net>:7:1"


def test_override_of_the_scale_of_windows():
    """Of its own older transform fields WindowData still reads only `scale`."""
    text = 'layer { name: "d" type: "WindowData" top: "d" }'
    config = parse_net(text, overrides=["layer[d].window_data_param.scale=0.5"])
    assert config.message.layer[0].window_data_param.scale == 0.5 and config.notes == []
    with pytest.raises(ConfigError, match=r"'mirror' has no effect there; say transform_param\.mirror"):
        parse_net(text, overrides=["layer[d].window_data_param.mirror=true"])


def test_layers_that_an_override_removes_take_their_places_along():
    config = parse_net(NET, overrides=["layer[1]=", "layer[data].top[1]="])
    assert [(layer.name, list(layer.top)) for layer in config.message.layer] == [
        ("data", ["data"]),
        ("inception_3a/1x1", ["conv"]),
    ]
    assert [config.where(0), config.where(1)] == ["<net>:2:1", "<net>:12:1"]
    same = parse_net("layer { name: 'a' } layer { name: 'b' } layer { name: 'a' }", overrides=["layer[2]="])
    assert [layer.name for layer in same.message.layer] == ["a", "b"]


def test_rules_that_an_override_removes_leave_the_layer_in_both_phases():
    config = parse_net(NET, overrides=["layer[data@TEST]=", "layer[data].include="])
    data, conv = config.message.layer
    assert (data.name, list(data.include), conv.name) == ("data", [], "inception_3a/1x1")


@pytest.mark.parametrize(
    "override, expected",
    [
        ("layer[dat].type=x", "no layer 'dat'; did you mean 'data'?"),
        ("layer[9].type=x", "no layer '9'"),
        ("layer.type=x", "'layer' is a list; say layer[NAME]"),
        ("layer=", "'layer' is a list; say layer[NAME]"),
        ("layer[data].include={}", "'include' is a list; say include[0]"),
        ("layer[data].param.lr_mult=0", "'param' is a list; say param[0]"),
        ("layer[data].tipe=x", "unknown field 'tipe' in LayerParameter; did you mean 'type'?"),
        ("layer[data].data_param.batch_size=-4", "'batch_size' expects a 32-bit integer of at least 0, got -4"),
        ("layer[data].data_param.backend=LMDBX", "'backend' has no value LMDBX; did you mean 'LMDB'?"),
        ("layer[data].include.phase=TEST", "'include' is a list; say include[0]"),
        ("layer[data].type.x=1", "'type' is a single value, it has no fields"),
        ("layer[data].data_param={ sorce: 'x' }", "unknown field 'sorce' in DataParameter; did you mean 'source'?"),
        ("name[0]=x", "'name' is not a list"),
        ("name", "expected PATH=VALUE, such as max_iter=100"),
        ("input_dim=3", "'input_dim' is upgraded when the file is read; say layer[input].input_param.shape[0].dim"),
        ("layer[data].loss_param.normalize=false", "'normalize' is upgraded when the file is read; say normalization"),
        ("layer[data].concat_param.concat_dim=2", "'concat_dim' is upgraded when the file is read; say axis"),
        ("layer[data].data_param.crop_size=8", "'crop_size' has no effect there; say transform_param.crop_size"),
        ("layer[data].convolution_param.hole_h=4", "'hole_h' is upgraded when the file is read; say dilation"),
        ("layer[data].transpose_param.dim=1", "'transpose_param' is upgraded when the file is read; say permute_param"),
        ("layer[data].top[2]=", "no top[2]; there are 2"),
        ("layer[data].include[1]=", "no include '1'; there are 1"),
        ("layer[data].data_param[0]={}", "'data_param' is not a list"),
    ],
)
def test_overrides_that_fail(override, expected):
    with pytest.raises(ConfigError) as caught:
        parse_net(NET, overrides=[override])
    assert str(caught.value).startswith(f"--set {override}:")
    assert expected in str(caught.value)


def test_entries_without_a_name_are_counted():
    layer = 'layer { name: "fc" type: "InnerProduct" param { lr_mult: 1 } param { lr_mult: 2 } }'
    with pytest.raises(ConfigError, match=r"no param '5'; there are 2$"):
        parse_net(layer, overrides=["layer[fc].param[5].lr_mult=0"])


def test_override_of_a_field_that_nobody_has():
    with pytest.raises(ConfigError, match="neither solvers nor nets have a field 'max_itr'; did you mean 'max_iter'"):
        parse_solver("", overrides=["max_itr=3"])


# ---- the nets of a solver


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes root/nets/tiny.prototxt and an empty root/solvers, and returns root; the current folder is another."""
    for name in ("root/nets", "root/solvers", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root/nets/tiny.prototxt").write_text(NET)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "root"


def solver_in(folder, text, overrides=()):
    (folder / "solvers/solver.prototxt").write_text(text)
    return read_solver(folder / "solvers/solver.prototxt", overrides)


def test_net_of_a_solver(folder):
    solver = solver_in(
        folder,
        "net: 'nets/tiny.prototxt' test_iter: [1, 2] train_state { stage: 'a' } test_state: [{ level: 1 }, {}]",
        ["layer[data@TEST].data_param.source=/t"],
    )
    train = net_of_solver(solver, proto.TRAIN)
    assert train.message.state.phase == proto.TRAIN and list(train.message.state.stage) == ["a"]
    assert os.path.samefile(train.path, folder / "nets/tiny.prototxt")
    tests = nets_of_solver(solver).tests
    assert [net.message.state.level for net in tests] == [1, 0]
    assert all(net.message.state.phase == proto.TEST for net in tests)
    assert [layer.data_param.source for layer in tests[0].message.layer][:2] == ["train_db", "/t"]
    assert net_of_solver(solver_in(folder, "net: 'nets/tiny.prototxt'"), proto.TEST).message.state.phase == proto.TEST


def test_nets_in_files_of_their_own(folder):
    (folder / "nets/test.prototxt").write_text(NET.replace('"inception_3a/1x1"', '"other"'))
    text = "train_net: 'nets/tiny.prototxt' test_net: 'nets/test.prototxt' test_iter: 3"
    nets = nets_of_solver(solver_in(folder, text, ["layer[other].top=z", "layer[data@TRAIN].data_param.source=/t"]))
    assert layers(nets.tests[0])["other"].top == ["z"]
    assert nets.train.message.layer[0].data_param.source == "/t"
    assert nets.tests[0].message.layer[0].data_param.source == "train_db"  # this file is read for tests only
    with pytest.raises(ConfigError, match="no layer 'othr'; did you mean 'other'"):
        nets_of_solver(solver_in(folder, text, ["layer[othr].top=z"]))


@pytest.mark.parametrize(
    "rules, phases",
    [
        ("", ["TRAIN", "TEST"]),
        ("include { phase: TEST }", ["TEST"]),
        ("include { stage: 'a' }", ["TRAIN", "TEST"]),
        ("include { phase: TRAIN } include { phase: TEST stage: 'a' }", ["TRAIN", "TEST"]),
        ("exclude { phase: TRAIN }", ["TEST"]),
        ("exclude { phase: TRAIN stage: 'a' }", ["TRAIN", "TEST"]),
        ("exclude { phase: TRAIN } exclude { stage: 'a' } exclude { phase: TEST stage: 'a' }", ["TEST"]),
    ],
)
def test_layers_that_a_phase_keeps_at_some_level_with_some_stages(rules, phases):
    (layer,) = parse_net(f"layer {{ {rules} }}").message.layer
    assert [name for name, phase in PHASES.items() if kept_in(layer, phase)] == phases


def test_overrides_for_tests_go_to_nets_that_are_tested(folder):
    (folder / "nets/test.prototxt").write_text(NET.replace('"data"', '"test_data"'))
    text = "net: 'nets/tiny.prototxt' test_net: 'nets/test.prototxt' test_interval: 10 "
    for tested in ("test_iter: 1", ""):
        with pytest.raises(ConfigError, match="no layer 'data@TEST'"):
            nets_of_solver(solver_in(folder, text + tested, ["layer[data@TEST].data_param.source=/t"]))
    both = solver_in(folder, f"{text} test_iter: [1, 1]", ["layer[data@TEST].data_param.source=/t"])
    assert nets_of_solver(both).tests[1].message.layer[1].data_param.source == "/t"


@pytest.mark.parametrize(
    "text, overrides, scale",
    [
        ("", [], False),
        ("engine: 'MKLDNN'", [], True),
        ("engine: 'MKLDNN'", ["engine=CAFFE"], False),
        ("engine: 'CAFFE'", ["layer[b].batch_norm_param.engine=MKLDNN"], True),
    ],
)
def test_the_engine_of_a_solver_is_that_of_its_nets(folder, text, overrides, scale):
    """As in Intel's Caffe, where this `engine` decides whether BatchNorms have a scale and a shift."""
    (folder / "nets/norm.prototxt").write_text("layer { name: 'b' type: 'BatchNorm' bottom: 'x' top: 'y' }")
    solver = solver_in(folder, f"net: 'nets/norm.prototxt' test_iter: 1 {text}", overrides)
    for phase in (proto.TRAIN, proto.TEST):
        assert net_of_solver(solver, phase).message.layer[0].batch_norm_param.scale_bias == scale


def test_net_within_the_solver(folder):
    solver = solver_in(folder, f"base_lr: 1\nnet_param {{\n{NET}\n}}\ntest_iter: 1")
    net = net_of_solver(solver, proto.TEST)
    assert net.where(2) == f"{solver.path}:14:1"
    v1 = solver_in(folder, "train_net_param { layers { name: 'a' type: RELU } }")
    assert net_of_solver(v1, proto.TRAIN).message.layer[0].type == "ReLU"


def test_a_net_within_the_solver_that_is_given_twice(folder):
    text = "net_param { layer { name: 'a' } }\nnet_param { layer { name: 'b' } }"
    net = net_of_solver(solver_in(folder, text), proto.TRAIN)
    assert [layer.name for layer in net.message.layer] == ["a", "b"]
    assert net.where(1) == f"{net.path}:2:13"


def test_a_net_within_the_solver_that_is_replaced(folder):
    """The layers come from an override, so errors name the file without a line."""
    text = "test_net_param { layer { name: 'a' } } train_net: 'nets/tiny.prototxt' test_iter: 1"
    two = "{ layer { name: 'b' } layer { name: 'c' } }"
    net = net_of_solver(solver_in(folder, text, [f"test_net_param[0]={two}"]), proto.TEST)
    assert [layer.name for layer in net.message.layer] == ["b", "c"] and net.where(1) == net.path


def test_net_of_each_rank(folder):
    (folder / "nets/tiny_3_of_8.prototxt").write_text(NET)
    config = solver_in(folder, "train_net: 'nets/tiny_%#_of_%*.prototxt'")
    config.rank, config.ranks = 3, 8
    net = net_of_solver(config, proto.TRAIN)
    assert os.path.samefile(net.path, folder / "nets/tiny_3_of_8.prototxt")


def test_the_discriminator_is_found_as_other_nets_are(folder):
    (folder / "solvers/critic_3_of_8.prototxt").write_text(NET)
    text = "net: 'nets/tiny.prototxt' adversarial {\n discriminator: 'models/critic_%#_of_%*.prototxt' }"
    config = solver_in(folder, text)
    config.rank, config.ranks = 3, 8
    net = nets_of_solver(config).discriminator
    assert os.path.samefile(net.path, folder / "solvers/critic_3_of_8.prototxt")
    told = "solver.prototxt:2:2: adversarial.discriminator 'models/critic_3_of_8.prototxt' is not there; taking "
    assert told in net.notes[0]


def test_weights_separated_by_commas():
    config = parse_solver('weights: "a.caffemodel, b.caffemodel" weights: "c.caffemodel"')
    assert list(config.message.weights) == ["a.caffemodel", "b.caffemodel", "c.caffemodel"]


def test_net_that_lies_beside_the_solver(folder):
    (folder / "solvers/near.prototxt").write_text(NET)
    net = net_of_solver(solver_in(folder, "net: 'models/of/caffe/near.prototxt'"), proto.TRAIN)
    assert os.path.samefile(net.path, folder / "solvers/near.prototxt")
    assert "solver.prototxt:1:1: net 'models/of/caffe/near.prototxt' is not there; taking " in net.notes[0]


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "base_lr: 1",
            "solver.prototxt: the solver names no net; set one of net, net_param, train_net, train_net_param",
        ),
        (
            "net: 'nets/gone.prototxt'",
            "solver.prototxt:1:1: net 'nets/gone.prototxt' is not in the current folder",
        ),
        (
            "net: 'a' train_net: 'b'",
            "solver.prototxt:1:10: only one of net, net_param, train_net, train_net_param can be given",
        ),
        ("train_net: 'nets/tiny.prototxt' test_iter: 1", "1:33: 1 test_iter for 0 test nets; expected one for each"),
        ("net: 'nets/tiny.prototxt' test_iter: 1 test_state {} test_state {}", "1:40: 2 test_state for 1 test net"),
        (
            "net: 'nets/tiny.prototxt' test_interval: 1 test_state {} test_state {}",
            "1:44: 2 test_state for 1 test net; expected one for each, or none",
        ),
        ("net: 'solver.prototxt'", "solver.prototxt: this is a solver; expected a net"),
        (
            "net: 'nets/tiny.prototxt' test_iter: 1 test_state { phase: TRAIN }",
            "tiny.prototxt: the solver uses this net in phase TEST, and state { phase: TRAIN } contradicts it: take",
        ),
        ("net_param { state { phase: TEST } }", "uses this net in phase TRAIN, and state { phase: TEST } contradicts"),
    ],
)
def test_solvers_whose_nets_cannot_be_had(folder, text, expected):
    with pytest.raises(ConfigError) as caught:
        nets_of_solver(solver_in(folder, text))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "layers { name: 'a' type: CONCAT concat_param { concat_dim: 4294967295 } }",
            "x.prototxt:1:1: layer 'a': 'axis', its name today, cannot hold 4294967295",
        ),
        (
            "layers { layer { name: 'p' type: 'padding' pad: 1 } top: 'p' }\n"
            "layers { layer { name: 'a' type: 'conv' } bottom: 'p' }",
            "x.prototxt:2:1: layer 'a': the padding layer before it, 'p', has no bottom",
        ),
    ],
)
def test_upgrades_that_do_not_fit(text, expected):
    assert errors_of(parse_net, text) == [expected]


@pytest.mark.parametrize("path", ["layer[\u00b2]", "layer[0].loss_weight[\u00b2]", f"layer[{'9' * 5000}]", "layer[-1]"])
def test_indices_of_overrides_that_are_none(path):
    with pytest.raises(ConfigError, match=r"no layer|no loss_weight"):
        parse_net(NET, overrides=[f"{path}=1"])


@pytest.mark.parametrize("value", ["\udcff", "a\0b"])
def test_overrides_that_are_no_text(value):
    with pytest.raises(ConfigError, match=r"--set name=.*: expected text in UTF-8, without NUL"):
        parse_net(NET, overrides=[f"name={value}"])
