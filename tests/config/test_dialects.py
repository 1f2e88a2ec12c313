"""Fields of other forks. Each row of the table is tried on a text made for it here."""

import re

import pytest

from engine import proto
from engine.config import parse_net, parse_solver
from engine.config.dialects import DISPOSITIONS, Row, possessive, rows
from engine.errors import ConfigError
from engine.layers.registry import layer_types
from tests.config.test_proto import DIALECTS, dialects
from tests.shared import needs_shared

TYPES = {name: value for name, value in vars(proto).items() if hasattr(value, "DESCRIPTOR")}


def fields():
    return [row for row in rows().values() if row.message in TYPES and row.field in fields_of(row.message)]


def fields_of(message):
    return TYPES[message].DESCRIPTOR.fields_by_name


def paths():
    """Returns the place of each message in a net or a solver, as field names from the top: ["layer",
    "dropout_param"]."""
    found = {"NetParameter": [], "SolverParameter": [], "LayerParameter": ["layer"]}
    todo = list(found)
    while todo:
        name = todo.pop(0)
        for field in fields_of(name).values():
            kind = field.message_type.name if field.message_type is not None else None
            if kind in TYPES and kind not in found and name != "SolverParameter" and field.name != "layers":
                found[kind] = [*found[name], field.name]
                todo.append(kind)
    return found


PATHS = paths()


def value_of(field):
    """Returns a value of the field as text, other than its default."""
    if field.message_type is not None:
        needed = " ".join(f'{each}: "x"' for each in proto.REQUIRED.get(field.message_type.name, ()))
        return f"{{ {needed} }}"
    if field.enum_type is not None:
        return next(v.name for v in reversed(field.enum_type.values) if v.number != field.default_value)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return "false" if field.has_presence and field.default_value else "true"
    if field.cpp_type == field.CPPTYPE_STRING:
        return '"x"'
    return "0.7" if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE) else "7"


def read(row, value, times=1):
    """Returns the net whose text has the row's field with this value; in so many layers, if it is a field of layers."""
    path = PATHS[row.message]
    inner = f"{row.field}: {value}"
    for name in proto.REQUIRED.get(row.message, ()):
        if name != row.field:
            inner += f" {name}: {value_of(fields_of(row.message)[name])}"
    for name in reversed(path[1:]):
        inner = f"{name} {{ {inner} }}"
    if row.message == "SolverParameter":
        return parse_solver(inner, "s.prototxt")
    if not path:
        return parse_net(inner, "n.prototxt")
    if path[0] != "layer":
        return parse_net(f"{path[0]} {{ {inner} }}", "n.prototxt")
    kind = "Softmax" if path[1:2] == ["softmax_param"] else "ReLU"
    return parse_net("\n".join(f'layer {{ name: "l{i}" type: "{kind}" {inner} }}' for i in range(times)), "n.prototxt")


def parents(message):
    """Returns the rows of the fields that are of this message type."""
    found, current = [], "NetParameter" if message != "SolverParameter" else message
    for name in PATHS[message]:
        found.append(rows().get((current, name)))
        current = fields_of(current)[name].message_type.name
    return found


def those(disposition):
    """Returns the rows of a disposition, but for those in messages whose own rows have one."""
    chosen = [row for row in fields() if row.disposition == disposition and row.message in PATHS]
    free = [row for row in chosen if not any(row and row.disposition == disposition for row in parents(row.message))]
    return [pytest.param(row, id=f"{row.message}.{row.field}") for row in free]


@needs_shared(DIALECTS)
def test_every_field_of_the_forks_has_a_row():
    given = {(row["message"], row["field"]) for row in dialects()[0]}
    assert given <= set(rows())
    for row in dialects()[0]:
        assert rows()[row["message"], row["field"]].forks.count(",") >= row["forks"].count(",")


def test_rows_are_of_the_schema_and_complete():
    for (message, field), row in rows().items():
        assert row.disposition in DISPOSITIONS and row.forks and row.meaning, row
        if row.disposition != "elsewhere" and message in TYPES:
            assert field in fields_of(message), row


def test_layers_that_are_refused_are_not_here():
    refused = {row.field for row in rows().values() if row.message == "layer"}
    assert not refused & set(layer_types())


@pytest.mark.parametrize("row", those("hint"))
def test_hints_are_read_with_one_note(row):
    config = read(row, value_of(fields_of(row.message)[row.field]), times=3)
    ours = [note for note in config.notes if row.field in note and "is ignored" in note]
    assert len(ours) == 1 and possessive(row.forks) in ours[0] and row.meaning in ours[0]


@pytest.mark.parametrize("row", those("refused"))
def test_what_is_refused_says_which_fork_has_it_and_what_would_do(row):
    field = fields_of(row.message)[row.field]
    with pytest.raises(ConfigError, match="and is not supported; instead: ") as caught:
        read(row, value_of(field))
    assert any(fork in str(caught.value) for fork in row.forks.split(", "))


@pytest.mark.parametrize("row", those("refused"))
def test_a_default_is_never_refused(row):
    field = fields_of(row.message)[row.field]
    if field.message_type is not None or not (field.has_presence and field.has_default_value):
        return
    default = field.default_value
    if field.enum_type is not None:
        default = field.enum_type.values_by_number[default].name
    if field.cpp_type == field.CPPTYPE_STRING:
        default = f'"{default}"'
    read(row, str(default).lower() if field.cpp_type == field.CPPTYPE_BOOL else default)


def net(layer):
    shape = "shape { dim: 2 dim: 3 dim: 15 dim: 16 }"
    return parse_net(
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {shape} }} }} layer {{ name: "l" {layer} }}', "n"
    ).message.layer[1]


def test_ceil_mode_is_round_mode():
    pooling = 'type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 3 stride: 2 %s }'
    assert net(pooling % "ceil_mode: false").pooling_param == net(pooling % "round_mode: FLOOR").pooling_param
    assert net(pooling % "ceil_mode: true").pooling_param == net(pooling % "round_mode: CEIL").pooling_param
    with pytest.raises(ConfigError, match="layer 'l': round_mode and soeaver's ceil_mode contradict"):
        net(pooling % "ceil_mode: false round_mode: CEIL")


def test_dilation_of_each_axis():
    layer = net('type: "Convolution" convolution_param { dilation_w: 3 }')
    assert list(layer.convolution_param.dilation) == [1, 3] and not layer.convolution_param.HasField("dilation_w")
    with pytest.raises(ConfigError, match="both 'dilation' and yjxiong's"):
        net('type: "Convolution" convolution_param { dilation: 2 dilation_h: 2 }')


def test_a_transposition_is_a_permutation():
    layer = net('type: "Transpose" transpose_param { dim: 2 dim: 0 dim: 1 }')
    assert (layer.type, list(layer.permute_param.order)) == ("Permute", [2, 0, 1])
    assert not layer.HasField("transpose_param")
    with pytest.raises(ConfigError, match="cannot hold"):
        net('type: "Transpose" transpose_param { dim: -1 dim: 0 }')


def test_faces_are_turned_by_one_type_of_layer():
    assert net('type: "MultiLabelImageData" image_data_param { face_transform: true }').type == "MultiLabelImageData"
    with pytest.raises(ConfigError, match="face_transform is for MultiLabelImageData, not for ImageData"):
        net('type: "ImageData" image_data_param { face_transform: true }')


def refused_lines(text):
    with pytest.raises(ConfigError) as error:
        parse_net(text, "n")
    return str(error.value).splitlines()


def test_an_unknown_type_comes_before_its_own_fields():
    """The unknown type is told first, and the layer's own fields are not: they cannot be known either."""
    own = 'layer { name: "l" type: "Xyzzy" xyzzy_param { x: 1 } pooling_param { strange: 2 } }'
    assert refused_lines(own) == ["n:1:19: layer 'l': unknown layer type 'Xyzzy'"]
    wrong = 'layer { name: "w" type: "ReLU" relo_param { } }'
    plain = 'layer { name: "v" type: "Quuxes" bottom: "x" }'
    assert refused_lines("\n".join([wrong, own, plain])) == [
        "n:2:19: layer 'l': unknown layer type 'Xyzzy'",
        "n:3:19: layer 'v': unknown layer type 'Quuxes'",
        "n:1:32: layer 'w': unknown field 'relo_param' in LayerParameter; did you mean 'relu_param'?",
    ]
    assert parse_net(plain, "n").message.layer[0].type == "Quuxes"  # the type is refused when the net is built


@pytest.mark.parametrize(
    ("layer", "hint"),
    [
        ('type: "YoloSeg" yolo_seg_param { num_class: 1 }', "MobileNet-YOLO's and is not supported; instead: SigmoidC"),
        ('type: "CPMData" cpmdata_param { factor: 2 }', "OpenPose's and is not supported; instead: HDF5Data"),
        ('type: "DenseBlock" denseblock_param { numTransition: 6 }', "DenseNet's and is not supported; instead: its"),
        ('type: "OrdinalRegressionLoss" ordinal_regression_loss_param { k: 3 }', "happynear's and is not supported"),
    ],
)
def test_an_unknown_type_of_a_known_fork(layer, hint):
    (line,) = refused_lines(f'layer {{ name: "l" {layer} }}')
    kind = layer.split('"')[1]
    assert line.startswith(f"n:1:19: layer 'l': unknown layer type '{kind}': it is {hint}")


@pytest.mark.parametrize("kind", ["Transpose", "MatWrite", "IPlugin"])
def test_types_that_others_become_are_not_unknown(kind):
    (line,) = refused_lines(f'layer {{ name: "l" type: "{kind}" strange: 3 }}')
    assert "unknown field 'strange'" in line


def test_holes_are_dilation():
    def dilation(text):
        param = net(f'type: "Convolution" convolution_param {{ {text} }}').convolution_param
        assert not any(param.HasField(name) for name in ("hole", "hole_h", "hole_w"))
        return list(param.dilation)

    assert (dilation("hole: 2"), dilation("hole_h: 3"), dilation("hole: 1")) == ([2, 2], [3, 1], [1, 1])
    for text, words in (("hole: 2 dilation: 2", "hole and dilation"), ("hole: 2 hole_w: 3", "hole and hole_w")):
        with pytest.raises(ConfigError, match=f"layer 'l': both {words} are given; keep 'dilation'"):
            dilation(text)


def test_sizes_by_their_older_names():
    def transform(text):
        return net(f'type: "Data" transform_param {{ {text} }}').transform_param

    resize = "img_rand_resize_lower: 25 img_rand_resize_upper: 26 mirror: true"
    older = "var_sz_img_rand_resize_lower: 25 var_sz_img_rand_resize_upper: 26 mirror: true"
    assert transform(older + " var_sz_img_rand_crop: 22") == transform(resize + " crop_size: 22")
    assert transform("var_sz_img_center_crop: 22") == transform("crop_size: 22 center_crop: true")
    assert transform("var_sz_img_rand_crop: 0 crop_size: 7") == transform("crop_size: 7")
    with pytest.raises(ConfigError, match="layer 'l': both 'crop_size' and NVIDIA's 'var_sz_img_rand_crop' are"):
        transform("var_sz_img_rand_crop: 22 crop_size: 22")
    with pytest.raises(ConfigError, match="both 'crop_size' and NVIDIA's 'var_sz_img_center_crop'"):
        transform("var_sz_img_rand_crop: 22 var_sz_img_center_crop: 22")


def test_inner_products_with_given_weights():
    """In happynear's fork, the weights of such a layer are its second bottom."""
    text = 'type: "InnerProduct" bottom: "x" bottom: "w" top: "y" inner_product_param {{ bias_term: {} axis: 2 }}'
    layer = net(text.format("false"))
    assert (layer.type, layer.inner_distance_param.distance_type, layer.inner_distance_param.axis) == (
        "InnerDistance",
        "product",
        2,
    )
    assert not layer.HasField("inner_product_param")
    with pytest.raises(ConfigError, match="layer 'l': an InnerProduct whose weights are a bottom needs bias_term: fal"):
        net(text.format("true"))


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ("pooling_param { pool: 3 }", "pool: DEF is happynear's"),
        ("eltwise_param { operation: 1300 }", "operation: STOCHASTIC_SUM is yjxiong's"),
    ],
)
def test_values_that_are_refused_by_their_numbers(fields, refused):
    with pytest.raises(ConfigError, match=refused):
        net(fields)
    path, value = fields.replace(" { ", ".").removesuffix(" }").split(": ")
    with pytest.raises(ConfigError, match=f"--set .*{refused}"):
        parse_net('layer { name: "l" type: "ReLU" }', "n", [f"layer[l].{path}={value}"])


def test_a_solver_type_that_is_refused_by_its_number():
    with pytest.raises(ConfigError, match="solver_type: SAG is NVIDIA's"):
        parse_solver("solver_type: 6")


def test_layers_that_write_files_are_left_out():
    text = """layer { name: "x" type: "Input" top: "x" }
      layer { name: "w" type: "MatWrite" bottom: "x" mat_write_param { prefix: "/a" source: "b" strip: 2 } }
      layer { name: "y" type: "ReLU" bottom: "x" top: "y" }"""
    config = parse_net(text, "n")
    assert [layer.name for layer in config.message.layer] == ["x", "y"]
    assert config.where(1) == "n:3:7"  # places stay with their layers
    assert "n: layer 'w' (MatWrite) writes no file and is left out; it reads x" in config.notes
    v1 = parse_net('layers { name: "w" type: MAT_WRITE bottom: "x" mat_write_param { prefix: "a" } }')
    assert not v1.message.layer


def test_the_shorter_side_of_pictures():
    param = net('type: "ImageData" image_data_param { short_side: 40 }').transform_param.random_resize_param
    assert (param.min_size, param.max_size) == (40, 40)
    with pytest.raises(ConfigError, match="both random_resize_param and NVIDIA's short_side"):
        net("image_data_param { short_side: 4 } transform_param { random_resize_param { min_size: 3 } }")


def test_a_ramp_is_a_quadratic_warm_up():
    config = parse_solver("rampup_interval: 20 rampup_lr: 0.5", "s.prototxt")
    param = config.message
    assert (param.warmup_iter, param.warmup_start_lr, param.warmup_policy) == (20, 0.5, "quadratic")
    assert config.notes == ["s.prototxt: upgraded from rampup_interval and rampup_lr to a warm-up"]
    begins_at_0 = parse_solver("rampup_interval: 20 rampup_lr: 0", "s").message
    assert begins_at_0.HasField("warmup_start_lr") and begins_at_0.warmup_start_lr == 0
    with pytest.raises(ConfigError, match="s:2:1: both 'warmup_iter' and NVIDIA's 'rampup_interval'"):
        parse_solver("warmup_iter: 3\nrampup_interval: 20", "s")
    with pytest.raises(
        ConfigError, match=r"--set rampup_interval=9: .*; say warmup_iter, with warmup_policy=quadratic"
    ):
        parse_solver("rampup_interval: 20", overrides=["rampup_interval=9"])


@pytest.mark.parametrize("field", ["crop_width: 3", "stride: 2", "upper_size: 9"])
def test_fields_for_pairs_of_pictures(field):
    net(f'type: "ImageSegData" transform_param {{ {field} }}')
    with pytest.raises(ConfigError, match=r"layer 'l': transform_param.* not for Data"):
        net(f'type: "Data" transform_param {{ {field} }}')


@pytest.mark.parametrize(
    "v1, ours",
    [
        ("BN", "BN"),
        ("CROP", "Crop"),
        ("ROIPOOLING", "ROIPooling"),
        ("NORMALIZE", "Normalize"),
        ("LOCAL", "Local"),
        ("ROI_POOLING", "ROIPooling"),
        ("SMOOTH_L1_LOSS", "SmoothL1Loss"),
        ("IMAGE_SEG_DATA", "ImageSegData"),
        ("INTERP", "Interp"),
        ("SEG_ACCURACY", "SegAccuracy"),
        ("MULTI_STAGE_MEANFIELD", "MultiStageMeanfield"),
    ],
)
def test_types_of_older_formats(v1, ours):
    assert parse_net(f'layers {{ name: "a" type: {v1} }}').message.layer[0].type == ours


@pytest.mark.parametrize(
    "fields, words",
    [
        ("eltwise_param { operation: SORT }", "operation: SORT is happynear's and is not supported; instead: "),
        ("pooling_param { pool: DEF_ALL2 }", "pool: DEF_ALL2 is happynear's"),
    ],
)
def test_values_of_enumerations(fields, words):
    with pytest.raises(ConfigError, match=f"n:1:[0-9]+: layer 'a': {words}"):
        parse_net(f'layer {{ name: "a" {fields} }}', "n")


def test_options_that_a_layer_does_not_read():
    text = 'layer {{ name: "a" type: "{}" softmax_param {{ normalize_type: "L2" }} }}'
    assert parse_net(text.format("Normalize")).message.layer[0].type == "Normalize"
    for kind in ("SoftmaxWithLoss", "Softmax", "FocalLoss"):
        with pytest.raises(ConfigError, match="normalize_type is happynear's and is not supported"):
            parse_net(text.format(kind))


def test_layer_types_that_are_not_here():
    from engine.net import Net

    config = parse_net('layer { name: "a" type: "DenseCRF" top: "y" }')
    with pytest.raises(
        ConfigError, match="unknown layer type 'DenseCRF': it is PSPNet's and is not supported; instead"
    ):
        Net(config, 1)


def test_overrides_are_held_to_the_same():
    text = 'layer { name: "a" type: "Pooling" }'
    with pytest.raises(ConfigError, match=r"^--set .*torch_pooling is NVIDIA's"):
        parse_net(text, overrides=["layer[a].pooling_param.torch_pooling=true"])
    with pytest.raises(ConfigError, match=r"^--set .*torch_pooling is NVIDIA's"):
        parse_net(text, overrides=["layer[a].pooling_param={ kernel_size: 2 torch_pooling: true }"])
    parse_net(text, overrides=["layer[a].pooling_param.torch_pooling=false"])


def test_a_field_given_twice_has_its_last_value():
    text = """layer { name: "a"
      name: "b" convolution_param { num_output: 3 pad: 1 }
      convolution_param { num_output: 4 kernel_size: 2 } }"""
    config = parse_net(text, "n")
    (layer,) = config.message.layer
    param = layer.convolution_param
    assert (layer.name, param.num_output, list(param.pad), list(param.kernel_size)) == ("b", 4, [1], [2])
    assert config.notes == [
        "n:2:7: layer 'a': 'name' is given twice; first in line 1; the last one counts",
        "n:3:7: layer 'a': 'convolution_param' is given twice; first in line 2; the fields of both count",
    ]


def pooling(text):
    """Returns its pooling_param and the notes."""
    config = parse_net(f'layer {{ name: "a" type: "Pooling" pooling_param {{\n{text} }} }}', "n")
    return config.message.layer[0].pooling_param, config.notes


def test_a_pooling_with_a_number_for_each_side():
    """In BVLC's opencl branch kernel_size, stride and pad are repeated fields."""
    param, notes = pooling("kernel_size: 3 kernel_size: 2 stride: 2 stride: 2 pad: 1 pad: 0")
    assert (param.kernel_h, param.kernel_w, param.stride, param.pad_h, param.pad_w) == (3, 2, 2, 1, 0)
    assert not any(map(param.HasField, ("kernel_size", "stride_h", "pad")))
    assert notes == [
        f"n:2:{column}: {field} is given 2 times, once for each side, as in BVLC's opencl branch"
        for column, field in ((1, "kernel_size"), (51, "pad"))
    ]
    param, notes = pooling("kernel_size: 1 kernel_size: 2 kernel_size: 2 stride: [1, 2, 2] pad: 0 pad: 0 pad: 0")
    assert (list(param.kernel_size_3d), list(param.stride_3d), param.pad) == ([1, 2, 2], [1, 2, 2], 0)
    assert [note.split(": ")[1].split()[0] for note in notes] == ["kernel_size", "stride"]
    old = "layers { name: 'a' type: POOLING pooling_param { kernel_size: 1 kernel_size: 2 kernel_size: 2 } }"
    assert list(parse_net(old, "n").message.layer[0].pooling_param.kernel_size_3d) == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("kernel_size: 2 kernel_size: 3 kernel_h: 5 kernel_w: 6", "'kernel_size' and 'kernel_h'"),
        ("kernel_size: 2 stride: 1 stride: 2 stride_w: 6", "'stride' and 'stride_w'"),
        ("kernel_size: 1 kernel_size: 2 kernel_size: 2 kernel_size_3d: 3", "'kernel_size' and 'kernel_size_3d'"),
    ],
)
def test_sides_that_are_given_once_more(text, both):
    with pytest.raises(ConfigError, match=f"n:2:.*: both {both} are given; keep one of them"):
        pooling(text)


def test_a_volume_pooled_by_sides():
    from engine.net import Net

    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 1, 12, 12, 12] } } }
      layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param {
        kernel_size: 1 kernel_size: 2 kernel_size: 2 stride: 1 stride: 2 stride: 2 } }"""
    assert Net(parse_net(text, "n"), 1).blobs["p"].shape == (1, 1, 12, 6, 6)


def test_windows_that_are_shapes():
    """video-caffe has layers for any number of axes."""
    conv = net(
        'type: "NdConvolution" convolution_param { num_output: 4 kernel_shape { dim: [1, 3, 3] } '
        "stride_shape { dim: [1, 2, 2] } pad_shape { dim: [0, 1, 1] } }"
    )
    param = conv.convolution_param
    assert (conv.type, list(param.kernel_size), list(param.stride), list(param.pad)) == (
        *("Convolution", [1, 3, 3]),
        *([1, 2, 2], [0, 1, 1]),
    )
    assert not param.HasField("kernel_shape")
    pool = net('type: "NdPooling" pooling_param { kernel_shape { dim: [1, 2, 2] } stride_shape { dim: [1, 2, 2] } }')
    assert (pool.type, list(pool.pooling_param.kernel_size_3d)) == ("Pooling", [1, 2, 2])
    assert list(pool.pooling_param.stride_3d) == [1, 2, 2] and not pool.pooling_param.pad_3d
    pool = net('type: "NdPooling" pooling_param { kernel_shape { dim: [3, 2] } pad_shape { dim: [1, 0] } }')
    param = pool.pooling_param
    assert (param.kernel_h, param.kernel_w, param.pad_h, param.pad_w) == (3, 2, 1, 0)
    pool = net('type: "NdPooling" pooling_param { kernel_shape { dim: 1 } global_pooling: true }')
    assert pool.pooling_param.global_pooling and not pool.pooling_param.HasField("kernel_size")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            'type: "NdConvolution" convolution_param { kernel_size: 3 kernel_shape { dim: 3 } }',
            "layer 'l': both 'kernel_size' and video-caffe's 'kernel_shape' are given; keep 'kernel_size'",
        ),
        (
            'type: "NdPooling" pooling_param { kernel_h: 7 kernel_w: 7 kernel_shape { dim: [2, 2] } }',
            "layer 'l': both 'kernel_h' and video-caffe's 'kernel_shape' are given; keep 'kernel_h'",
        ),
        (
            'type: "NdPooling" pooling_param { kernel_size: 2 stride_3d: [1, 2, 2] stride_shape { dim: [1, 2, 2] } }',
            "layer 'l': both 'stride_3d' and video-caffe's 'stride_shape' are given; keep 'stride_3d'",
        ),
        (
            'type: "NdPooling" pooling_param { kernel_shape { dim: [1, 2, 2, 2] } }',
            "layer 'l': expected 1 to 3 dims in kernel_shape, got 4",
        ),
        (
            'type: "NdPooling" pooling_param { kernel_shape { dim: -1 } }',
            "layer 'l': 'kernel_size', its name today, cannot hold -1",
        ),
    ],
)
def test_shapes_that_are_no_windows(layer, message):
    with pytest.raises(ConfigError, match=message):
        net(layer)


C3D = """
    input: "x" input_dim: 2 input_dim: 3 input_dim: 4 input_dim: 8 input_dim: 10
    layers { name: "c" type: CONVOLUTION3D bottom: "x" top: "c" blobs_lr: 1 blobs_lr: 2 convolution_param {
        num_output: 5 kernel_size: 3 kernel_depth: 2 pad: 1 stride: 2 filter_group: 5 bias_filler { value: 1 } } }
    layers { name: "p" type: POOLING3D bottom: "c" top: "p" pooling_param {
        kernel_size: 2 kernel_depth: 1 temporal_stride: 2 } }
    layers { name: "d" type: DECONVOLUTION3D bottom: "p" top: "d" convolution_param {
        num_output: 2 kernel_size: 4 kernel_depth: 3 pad: 2 stride: 2 temporal_pad: 1 temporal_stride: 3 } }"""
C3D_TODAY = """
    layer { name: "input" type: "Input" top: "x" input_param { shape { dim: [2, 3, 4, 8, 10] } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 1 } param { lr_mult: 2 }
        convolution_param { num_output: 5 kernel_size: [2, 3, 3] pad: [0, 1, 1] stride: [1, 2, 2]
        bias_filler { value: 1 } } }
    layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param {
        kernel_size_3d: [1, 2, 2] stride_3d: [2, 1, 1] pad_3d: [0, 0, 0] } }
    layer { name: "d" type: "Deconvolution" bottom: "p" top: "d" convolution_param {
        num_output: 2 kernel_size: [3, 4, 4] pad: [1, 2, 2] stride: [3, 2, 2] } }"""


def test_layers_of_c3d():
    """Layers of C3D's first version, in the older format and with inputs of five axes, and of its second version,
    become the same layers."""
    old, today = parse_net(C3D, "n"), parse_net(C3D_TODAY, "n")
    assert old.message == today.message
    assert [note for note in old.notes if "filter_group is ignored (C3D's): how many filters" in note]
    second = """
    layer { name: "c" type: "Convolution3D" bottom: "x" top: "c" param { lr_mult: 1 } param { lr_mult: 2 }
        convolution3d_param { num_output: 5 kernel_size: 3 kernel_depth: 2 pad: 1 stride: 2 bias_filler { value: 1 } } }
    layer { name: "p" type: "Pooling3D" bottom: "c" top: "p"
        pooling3d_param { kernel_size: 2 kernel_depth: 1 temporal_stride: 2 } }
    layer { name: "d" type: "Deconvolution3D" bottom: "p" top: "d" convolution3d_param {
        num_output: 2 kernel_size: 4 kernel_depth: 3 pad: 2 stride: 2 temporal_pad: 1 temporal_stride: 3 } }"""
    assert list(parse_net(second, "n").message.layer) == list(today.message.layer)[1:]
    param = net(
        'type: "Pooling3D" pooling_param { pool: AVE kernel_size: 3 kernel_depth: 2 stride: 2 pad: 1 }'
    ).pooling_param
    assert (list(param.kernel_size_3d), list(param.stride_3d), list(param.pad_3d)) == ([2, 3, 3], [1, 2, 2], [0, 1, 1])


@pytest.mark.parametrize(
    ("type_", "old", "new", "text"),
    [
        ("Convolution3D", "convolution3d_param", "convolution_param", "kernel_depth: 3 hole: 2"),
        ("Convolution3D", "convolution3d_param", "convolution_param", "kernel_depth: 3 stride_shape { dim: 2 }"),
        ("Pooling3D", "pooling3d_param", "pooling_param", "kernel_depth: 3 ceil_mode: false"),
    ],
)
def test_fields_of_other_forks_in_the_parameters_of_c3d(type_, old, new, text):
    read = net(f'type: "{type_}" {old} {{ kernel_size: 3 {text} }}')
    assert read == net(f'type: "{type_}" {new} {{ kernel_size: 3 {text} }}')
    assert not any(word in str(read) for word in ("hole", "ceil_mode", "stride_shape"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kernel_size: 3 hole: 2", "kernel_size: 3 dilation: 2 dilation: 2"),
        ("kernel_size: 3 dilation_h: 2", "kernel_size: 3 dilation: 2 dilation: 1"),
        ("kernel_shape { dim: 3 dim: 5 } pad_shape { dim: 1 }", "kernel_size: 3 kernel_size: 5 pad: 1"),
    ],
)
def test_fields_of_other_forks_in_a_deformable_convolution(old, new):
    layer = 'type: "DeformableConvolution" deformable_convolution_param { num_output: 4 %s }'
    assert net(layer % old) == net(layer % new)


CONV3D = 'type: "Convolution3D" convolution_param { num_output: 4 %s }'
POOL3D = 'type: "Pooling3D" pooling_param { kernel_size: 2 kernel_depth: 2 %s }'


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            POOL3D % "" + " pooling3d_param { pool: AVE }",
            "both 'pooling_param' and C3D's 'pooling3d_param' are given; keep 'pooling3d_param'",
        ),
        (CONV3D % "kernel_size: 3", "Convolution3D needs a kernel_size and a kernel_depth above 0"),
        (CONV3D % "kernel_depth: 3", "Convolution3D needs a kernel_size and a kernel_depth above 0"),
        (CONV3D % "kernel_size: [3, 4] kernel_depth: 3", "Convolution3D needs a kernel_size and a kernel_depth"),
        (CONV3D % "kernel_size: 3 kernel_depth: 3 pad: [0, 1, 1]", "above 0, and takes one stride and one pad"),
        (CONV3D % "kernel_size: 3 kernel_depth: 3 group: 2", "C3D's Convolution3D reads no group; expected none, or"),
        ('type: "Pooling3D" pooling_param { kernel_size: 2 }', "Pooling3D needs a kernel_size and a kernel_depth"),
        (POOL3D % "pad: 1", "C3D's Pooling3D pads averages alone; expected pad 0, got 1"),
        (
            POOL3D % "pool: AVE pad: 1 stride: 2",
            "expected stride and pad of together at most kernel_size 2, got 2 and 1",
        ),
        (
            'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 temporal_pad: 1 }',
            "C3D's temporal_pad is for Convolution3D, Deconvolution3D, Pooling3D, not for Convolution",
        ),
        (
            'type: "DeformableConvolution" deformable_convolution_param { kernel_size: 3 temporal_stride: 1 }',
            "C3D's temporal_stride is for Convolution3D, Deconvolution3D, Pooling3D, not for DeformableConvolution",
        ),
        (
            'type: "Convolution3D" convolution3d_param { kernel_size: 3 kernel_depth: 3 pad_shape { dim: [1, 1, 1] } }',
            "above 0, and takes one stride and one pad",
        ),
        (
            'type: "Pooling" pooling_param { kernel_size: 3 kernel_depth: 1 }',
            "C3D's kernel_depth is for Convolution3D, Deconvolution3D, Pooling3D, not for Pooling",
        ),
        (
            'type: "VideoData" image_data_param { source: "x" } video_data_param { use_image: true }',
            "both 'video_data_param' and 'image_data_param' are given; keep 'video_data_param'",
        ),
        (
            'type: "VideoData" image_data_param { min_height: 3 }',
            "C3D's VIDEO_DATA reads no image_data_param.min_height",
        ),
        (
            'type: "ImageData" image_data_param { source: "x" mean_value: 104 }',
            "image_data_param.mean_value is for VideoData, not for ImageData; instead: transform_param.mean_value",
        ),
        (
            'type: "ImageSegData" image_data_param { source: "x" new_length: 8 }',
            "image_data_param.new_length is for VideoData, not for ImageSegData",
        ),
    ],
)
def test_layers_of_c3d_that_cannot_be(layer, message):
    with pytest.raises(ConfigError, match=f"layer 'l': .*{re.escape(message)}"):
        net(layer)


@pytest.mark.parametrize(
    ("type_", "param"),
    [
        ("Convolution", "convolution_param"),
        ("DeformableConvolution", "convolution_param"),
        ("Convolution3D", "convolution3d_param"),
    ],
)
def test_groups_of_offsets_have_a_parameter_of_their_own(type_, param):
    with pytest.raises(ConfigError, match="layer 'l': expected deformable_group in deformable_convolution_param of a"):
        net(f'type: "{type_}" {param} {{ num_output: 4 kernel_size: 3 deformable_group: 2 }}')
    with pytest.raises(ConfigError, match="unknown field 'deformable_group' in PoolingParameter"):
        net('type: "Pooling" pooling_param { kernel_size: 3 deformable_group: 2 }')


@pytest.mark.parametrize(("type_", "instead"), [("VOXEL_SOFTMAX", "SOFTMAX"), ("VOLUME_DATA", "HDF5Data")])
def test_types_of_c3d_that_are_not_here(type_, instead):
    with pytest.raises(ConfigError, match=f"type: {type_} is C3D's and is not supported; instead: {instead}"):
        parse_net(f'layers {{ name: "l" type: {type_} }}', "n")


def test_clips_of_c3d():
    """VIDEO_DATA of the first version and VideoData of the second are read. VideoData of temporal segment networks
    differs."""
    old = parse_net(
        """layers { name: "d" type: VIDEO_DATA top: "d" image_data_param { source: "l" use_image: true batch_size: 3
        mean_file: "m" mean_value: 7 crop_size: 5 mirror: true scale: 2 new_height: 8 new_width: 9 new_length: 4
        show_data: 1 sampling_rate: 2 use_temporal_jitter: true shuffle: true } }""",
        "n",
    )
    assert any("show_data is ignored (C3D's)" in note for note in old.notes)
    today = """layer { name: "d" type: "VideoData" top: "d" transform_param { mean_file: "m" crop_size: 5 mirror: true
        scale: 2 } video_data_param { source: "l" use_image: true batch_size: 3 new_height: 8 new_width: 9 new_length: 4
        sampling_rate: 2 use_temporal_jitter: true shuffle: true } }"""
    assert old.message == parse_net(today, "n").message
    param = old.message.layer[0].video_data_param
    assert (param.Modality.Name(param.modality), param.name_pattern) == ("RGB", "%06d.jpg")
    files = net('type: "VideoData" image_data_param { source: "l" mean_value: 7 }')
    assert files.video_data_param.HasField("use_image") and list(files.transform_param.mean_value) == [7]
    assert net('type: "VideoData" video_data_param { root_folder: "r" }').video_data_param.HasField("use_image")
    assert not net('type: "VideoData" video_data_param { source: "l" }').video_data_param.HasField("use_image")


def test_regions_that_are_not_enlarged():
    pooling = 'type: "ROIPooling" roi_pooling_param { pooled_h: 6 pooled_w: 6 pad_ratio: %s }'
    assert net(pooling % 0).roi_pooling_param.pooled_h == 6
    with pytest.raises(ConfigError, match="pad_ratio is MSCNN's and is not supported; instead: regions that"):
        net(pooling % 0.25)


UNPOOLING = 'type: "Unpooling" bottom: "x" bottom: "mask" top: "y" unpooling_param { %s }'


def test_unpooling_with_a_mask_is_upsample():
    """DeconvNet's nets state the size of the top."""
    layer = net(UNPOOLING % "unpool: MAX kernel_size: 2 stride: 2 unpool_size: 224")
    assert (layer.type, layer.upsample_param.upsample_h, layer.upsample_param.upsample_w) == ("Upsample", 224, 224)
    assert not layer.HasField("unpooling_param")
    layer = net(UNPOOLING % "kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 3 pad: 0 unpool_h: 30 unpool_w: 48")
    assert (layer.type, layer.upsample_param.upsample_h, layer.upsample_param.upsample_w) == ("Upsample", 30, 48)
    old = UNPOOLING.replace('"Unpooling"', "UNPOOLING") % "unpool_size: 8"
    layer = parse_net(f'layers {{ name: "l" {old} }}', "n").message.layer[0]
    assert (layer.type, layer.upsample_param.upsample_h) == ("Upsample", 8)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (UNPOOLING % "kernel_size: 2 stride: 2", "layer 'l': Unpooling needs unpool_size, or unpool_h and unpool_w"),
        (UNPOOLING % "unpool_h: 8", "layer 'l': Unpooling needs unpool_size, or unpool_h and unpool_w"),
        (UNPOOLING % "unpool: TILE unpool_size: 8", "layer 'l': unpool TILE is not supported; instead: Upsample"),
        (UNPOOLING % "unpool: AVE unpool_size: 8", "layer 'l': unpool AVE is not supported; instead: Upsample"),
        (
            UNPOOLING % "unpool_size: 8" + " upsample_param { scale: 2 }",
            "layer 'l': both 'unpooling_param' and 'upsample_param' are given; keep 'unpooling_param'",
        ),
        (UNPOOLING % "unpool_size: 8 pad: 1", "layer 'l': expected pad 0 of Unpooling"),
        (
            UNPOOLING.replace('bottom: "mask"', "") % "unpool_size: 8",
            "layer 'l': Unpooling without a mask is not supported; instead: the second top of the Pooling",
        ),
    ],
)
def test_other_unpooling_says_what_would_do(layer, message):
    with pytest.raises(ConfigError, match=message):
        net(layer)


def test_four_numbers_are_one_given_too_often():
    param, notes = pooling("kernel_size: [1, 2, 3, 4]")
    assert param.kernel_size == 4 and "'kernel_size' is given twice" in notes[0]


def test_twice_on_the_command_line_is_an_error():
    with pytest.raises(ConfigError, match="'kernel_size' is given twice"):
        parse_net('layer { name: "a" }', overrides=["layer[a].pooling_param={ kernel_size: 2 kernel_size: 3 }"])


def test_possessive():
    assert possessive("NVIDIA, SSD") == "NVIDIA's, SSD's"
    assert Row("a", "b", "c", "d", "e").field == "b"


def test_layers_that_are_here_are_registered():
    named = {row.meaning for row in rows().values() if row.disposition == "layer"}
    assert named <= set(layer_types())
