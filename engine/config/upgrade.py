"""Upgrades older formats to the current one: V0 and V1 layers, net inputs, renamed fields, solver types.

Both upgrades may run again on their own result: nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from engine import proto
from engine.config.dialects import possessive, rows
from engine.config.idle_fields import DATA_PARAMS, MOVED_TO_TRANSFORM, without_idle_transform, without_steps_of_others
from engine.config.prototext import Node
from engine.config.suggestions import suggestion
from engine.errors import ConfigError
from engine.weights.intel import STATISTICS

SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}

# V1 name -> current type, where it is not the words in capitals (INNER_PRODUCT, InnerProduct).
_V1_TYPES = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BN": "BN",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "IM2COL": "Im2col",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "ROIPOOLING": "ROIPooling",
    "ROI_POOLING": "ROIPooling",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}

_V0_PADDING = "padding"
_V0_TYPES = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "im2col": "Im2col",
    "images": "ImageData",
    "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
    "window_data": "WindowData",
}

# V0 types -> the message of their options; then V0 field -> (the types that have it, its name there).
_V0_MESSAGES = {
    "conv": "convolution_param",
    "im2col": "convolution_param",
    "innerproduct": "inner_product_param",
    "pool": "pooling_param",
    "dropout": "dropout_param",
    "lrn": "lrn_param",
    "concat": "concat_param",
    "data": "data_param",
    "images": "image_data_param",
    "window_data": "window_data_param",
    "hdf5_data": "hdf5_data_param",
    "infogain_loss": "infogain_loss_param",
}
_V0_OPTIONS = {
    "num_output": ("conv innerproduct", "num_output"),
    "biasterm": ("conv innerproduct", "bias_term"),
    "weight_filler": ("conv innerproduct", "weight_filler"),
    "bias_filler": ("conv innerproduct", "bias_filler"),
    "pad": ("conv im2col pool", "pad"),
    "kernelsize": ("conv im2col pool", "kernel_size"),
    "stride": ("conv im2col pool", "stride"),
    "group": ("conv", "group"),
    "pool": ("pool", "pool"),
    "dropout_ratio": ("dropout", "dropout_ratio"),
    "local_size": ("lrn", "local_size"),
    "alpha": ("lrn", "alpha"),
    "beta": ("lrn", "beta"),
    "k": ("lrn", "k"),
    "concat_dim": ("concat", "concat_dim"),
    "source": ("data images window_data hdf5_data infogain_loss", "source"),
    "batchsize": ("data images window_data hdf5_data", "batch_size"),
    "rand_skip": ("data images", "rand_skip"),
    "shuffle_images": ("images", "shuffle"),
    "new_height": ("images", "new_height"),
    "new_width": ("images", "new_width"),
    "det_fg_threshold": ("window_data", "fg_threshold"),
    "det_bg_threshold": ("window_data", "bg_threshold"),
    "det_fg_fraction": ("window_data", "fg_fraction"),
    "det_context_pad": ("window_data", "context_pad"),
    "det_crop_mode": ("window_data", "crop_mode"),
}
# V0 field -> its place in a current layer of any type.
_V0_ANYWHERE = {
    "name": "name",
    "blobs": "blobs",
    "hdf5_output_param": "hdf5_output_param",
    "scale": "transform_param.scale",
    "meanfile": "transform_param.mean_file",
    "cropsize": "transform_param.crop_size",
    "mirror": "transform_param.mirror",
}


@dataclass(frozen=True)
class Renamed:
    """A field that has another name today, in the same message. implied: another field there, and its value, that the
    old name stands for, too. zero_is_off: a 0 says no more than a field that is not there."""

    old: str
    new: str
    implied: tuple[str, str | bool] | None = None
    zero_is_off: bool = False


# By the message of a layer, and of solvers.
RENAMED_OF_LAYERS = {
    "concat_param": (Renamed("concat_dim", "axis"),),
    "slice_param": (Renamed("slice_dim", "axis"),),
    "transform_param": (
        Renamed("var_sz_img_rand_resize_lower", "img_rand_resize_lower", zero_is_off=True),
        Renamed("var_sz_img_rand_resize_upper", "img_rand_resize_upper", zero_is_off=True),
        Renamed("var_sz_img_rand_crop", "crop_size", zero_is_off=True),
        Renamed("var_sz_img_center_crop", "crop_size", ("center_crop", True), zero_is_off=True),
    ),
}
RENAMED_OF_SOLVERS = (
    Renamed("rampup_interval", "warmup_iter", ("warmup_policy", "quadratic")),
    Renamed("rampup_lr", "warmup_start_lr", ("warmup_policy", "quadratic")),
)

# Fields of TransformationParameter that only layers of pairs of pictures read (PSPNet's and yjxiong's forks).
_SEGMENTATION = ("crop_width", "crop_height", "stride", "upper_size", "upper_height", "upper_width")
_SEGMENTATION_LAYERS = ("DenseImageData", "ImageLabelmapData", "ImageSegData", "SegData", "VideoData")


def upgrade_solver(message: proto.SolverParameter, nodes: Iterable[Node] = ()) -> list[str]:
    """solver_type (an enum) becomes type (a string), NVIDIA's rampup our warm-up; nodes: the fields of the text.
    Returns notes."""
    notes, places = [], {node.name: node for node in nodes}
    if message.HasField("rampup_interval") or message.HasField("rampup_lr"):
        for each in RENAMED_OF_SOLVERS:
            _rename(message, each, "", places.get(each.old))
        notes.append("upgraded from rampup_interval and rampup_lr to a warm-up")
    if not message.HasField("solver_type"):
        return notes
    if message.HasField("type"):
        raise ConfigError(
            "both 'type' and the older 'solver_type' are given; keep 'type'", _where(places.get("solver_type"))
        )
    message.type = SOLVER_TYPES[message.SolverType.Name(message.solver_type)]
    message.ClearField("solver_type")
    return [*notes, "upgraded from solver_type to type"]


def upgrade_net(
    message: proto.NetParameter, nodes: Mapping[str, Sequence[Node | None]] | None = None
) -> tuple[list[Node | None], list[str]]:
    """Brings a NetParameter to the current format, in place.

    nodes: where the file has its `layer`, `layers` and `input` fields, by that name. Returns the place of each
    message.layer (None if unknown), and a line for each older format that was met, and for fields without effect.
    Raises ConfigError for what has no counterpart today.
    """
    nodes = nodes or {}
    notes: list[str] = []
    origins = _places(nodes.get("layer"), len(message.layer))
    older = bool(message.layers)
    if older:
        old_origins = _places(nodes.get("layers"), len(message.layers))
        if message.layer:
            raise ConfigError("both 'layer' and the older 'layers' are given", _where(old_origins[0]))
        version = "V0" if any(layer.HasField("layer") for layer in message.layers) else "V1"
        notes.append(f"upgraded from the {version} format of layers")
        origins = _upgrade_layers(message, old_origins)
    if message.input:
        notes.append("upgraded its inputs to an Input layer")
        origins = _upgrade_inputs(message, (nodes.get("input") or [None])[0]) + origins
    for layer, origin in zip(message.layer, origins, strict=True):
        notes += without_idle_transform(layer, older)
        _upgrade_fields(layer, origin)
        notes += without_steps_of_others(layer)
    return origins, notes


def _places(nodes: Sequence[Node | None] | None, count: int) -> list[Node | None]:
    """Of so many layers; all unknown where the text has another number of them, as after --set net_param={ ... }."""
    return list(nodes) if nodes and len(nodes) == count else [None] * count


def _where(node: Node | None) -> str | None:
    return node.where if node else None


def _upgrade_layers(message: proto.NetParameter, origins: Sequence[Node | None]) -> list[Node | None]:
    """Turns all `layers` into `layer`; returns the places of the new ones (V0's padding layers vanish)."""
    padding = {}  # top -> the V0 padding layer that makes it
    kept = []
    for old, origin in zip(message.layers, origins, strict=True):
        if old.layer.type == _V0_PADDING:
            padding[old.top[0] if old.top else ""] = old
            continue
        kept.append(origin)
        layer = message.layer.add()
        if old.HasField("layer"):
            _from_v0(old, layer, padding, origin)
        else:
            _from_v1(old, layer, origin)
    message.ClearField("layers")
    return kept


def _copy(message: Message, path: str, value: object, label: str, origin: Node | None) -> None:
    """message.a.b = value for the path "a.b", whatever the kind of the field; what is repeated grows by the value.
    label: what comes first in error messages. Raises ConfigError if the field cannot hold the value."""
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    field = message.DESCRIPTOR.fields_by_name[name]
    try:
        if not field.has_presence:
            values = value if hasattr(value, "extend") else [value]
            getattr(message, name).extend(values)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError):
        raise ConfigError(f"{label}'{name}', its name today, cannot hold {value}", _where(origin)) from None


def _from_v1(old: proto.V1LayerParameter, layer: proto.LayerParameter, origin: Node | None) -> None:
    special = {"type", "param", "blobs_lr", "weight_decay", "blob_share_mode"}
    for field, value in old.ListFields():
        if field.name not in special:
            _copy(layer, field.name, value, f"layer '{old.name}': ", origin)  # the rest has kept its name
    name = old.LayerType.Name(old.type)
    layer.type = _V1_TYPES.get(name, name.title().replace("_", ""))
    _move_to_transform(layer, MOVED_TO_TRANSFORM, origin)
    _params(layer, name=old.param, share_mode=old.blob_share_mode, lr_mult=old.blobs_lr, decay_mult=old.weight_decay)


def _params(layer: proto.LayerParameter, **columns: Sequence[object]) -> None:
    """Lists with an entry for each parameter blob become one `param` for each blob."""
    for _ in range(max(map(len, columns.values()))):
        layer.param.add()
    for field, values in columns.items():
        for param, value in zip(layer.param, values, strict=False):
            setattr(param, field, value)


def _from_v0(
    old: proto.V1LayerParameter,
    layer: proto.LayerParameter,
    padding: Mapping[str, proto.V1LayerParameter],
    origin: Node | None,
) -> None:
    options = old.layer
    label = f"layer '{options.name}': "
    type_ = os.fsdecode(options.type)  # a string that is no UTF-8 comes as bytes
    if type_ not in _V0_TYPES:
        raise ConfigError(f"{label}unknown type '{type_}'{suggestion(type_, _V0_TYPES)}", _where(origin))
    layer.type = _V0_TYPES[type_]
    layer.top.extend(old.top)
    for bottom in old.bottom:
        padded = padding.get(bottom)
        if padded and options.type not in ("conv", "pool"):
            raise ConfigError(f"{label}a '{options.type}' cannot follow a padding layer", _where(origin))
        if padded and not padded.bottom:
            raise ConfigError(f"{label}the padding layer before it, '{bottom}', has no bottom", _where(origin))
        layer.bottom.append(padded.bottom[0] if padded else bottom)
        if padded:
            options.pad = padded.layer.pad
    for field, value in options.ListFields():
        if field.name in _V0_ANYWHERE:
            _copy(layer, _V0_ANYWHERE[field.name], value, label, origin)
        elif field.name in _V0_OPTIONS:
            types, name = _V0_OPTIONS[field.name]
            if options.type not in types.split():
                raise ConfigError(f"{label}'{field.name}' is not an option of '{options.type}'", _where(origin))
            _copy(layer, f"{_V0_MESSAGES[options.type]}.{name}", value, label, origin)
        elif field.name not in ("type", "blobs_lr", "weight_decay"):
            raise ConfigError(f"{label}'{field.name}' has no counterpart today", _where(origin))
    _params(layer, lr_mult=options.blobs_lr, decay_mult=options.weight_decay)


def _upgrade_inputs(message: proto.NetParameter, origin: Node | None) -> list[Node | None]:
    """`input` with its shapes becomes an Input layer before all others; returns the place of that layer, if any.

    Inputs without shapes are dropped where old weight files have them; in a text the layer will ask for them.
    """
    names, dims = list(message.input), list(message.input_dim)
    if not all(isinstance(name, str) for name in names):  # as protobuf gives them of a binary file
        raise ConfigError("the name of an input is not UTF-8", _where(origin))
    shapes = [list(shape.dim) for shape in message.input_shape] or [dims[i : i + 4] for i in range(0, len(dims), 4)]
    if shapes and (len(shapes) != len(names) or len(dims) % 4):
        given = f"{len(message.input_shape)} input_shape" if message.input_shape else f"{len(dims)} input_dim"
        raise ConfigError(
            f"{len(names)} input with {given}; expected an input_shape, or 4 input_dim, for each", _where(origin)
        )
    for field in ("input", "input_dim", "input_shape"):
        message.ClearField(field)
    if not shapes and origin is None:
        return []
    upgraded = type(message)()
    layer = upgraded.layer.add(name="input", type="Input", top=names)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    upgraded.layer.extend(message.layer)
    message.ClearField("layer")
    message.MergeFrom(upgraded)
    return [origin]


def _move_to_transform(layer: proto.LayerParameter, names: Iterable[str], origin: Node | None) -> None:
    """Moves fields of a data layer to its transform_param."""
    data_param = DATA_PARAMS.get(layer.type)
    data = getattr(layer, data_param) if data_param else None
    for name in names:
        if data is not None and data.HasField(name):
            _copy(layer.transform_param, name, getattr(data, name), f"layer '{layer.name}': ", origin)
            data.ClearField(name)


def _rename(message: Message, renamed: Renamed, label: str, origin: Node | None) -> None:
    """Gives a field the name that it has today. label: as _copy's. Raises ConfigError where both names are given."""
    old, new = renamed.old, renamed.new
    if not message.HasField(old):
        return
    value = getattr(message, old)
    message.ClearField(old)
    if renamed.zero_is_off and not value:
        return
    if message.HasField(new):
        fork = rows().get((message.DESCRIPTOR.name, old))
        whose = possessive(fork.forks) if fork else "the older"
        raise ConfigError(f"{label}both '{new}' and {whose} '{old}' are given; keep '{new}'", _where(origin))
    _copy(message, new, value, label, origin)
    if renamed.implied:
        _copy(message, *renamed.implied, label, origin)


def _upgrade_fields(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Fields that moved or changed their name within the current format of layers."""
    for param, renamed in RENAMED_OF_LAYERS.items():
        if layer.HasField(param):
            for each in renamed:
                _rename(getattr(layer, param), each, f"layer '{layer.name}': ", origin)
    for upgrade in _DIALECTS:
        upgrade(layer, origin)
    loss = layer.loss_param
    if loss.HasField("normalize"):
        if not loss.HasField("normalization"):
            loss.normalization = loss.VALID if loss.normalize else loss.BATCH_SIZE
        loss.ClearField("normalize")
    if layer.type == "BatchNorm":
        whole = len(layer.param) >= STATISTICS  # older nets give all three, with any lr_mult
        for param in layer.param[:STATISTICS]:  # moved by the layer itself, never by the solver
            if not whole and param.lr_mult:
                raise ConfigError(
                    f"layer '{layer.name}' (BatchNorm): no solver updates its statistics: expected param with "
                    f"lr_mult: 0, or none, got {param.lr_mult:g}",
                    _where(origin),
                )
            param.lr_mult = param.decay_mult = 0


def _upgrade_ceil_mode(layer: proto.LayerParameter, origin: Node | None) -> None:
    """soeaver's name of round_mode."""
    pooling = layer.pooling_param
    if not pooling.HasField("ceil_mode"):
        return
    mode = pooling.CEIL if pooling.ceil_mode else pooling.FLOOR
    if pooling.HasField("round_mode") and pooling.round_mode != mode:
        raise ConfigError(
            f"layer '{layer.name}': round_mode and soeaver's ceil_mode contradict each other; keep round_mode",
            _where(origin),
        )
    pooling.round_mode = mode
    pooling.ClearField("ceil_mode")


def _upgrade_transpose(layer: proto.LayerParameter, origin: Node | None) -> None:
    """CTPN's name of Permute."""
    if layer.type == "Transpose":
        layer.type = "Permute"
        _copy(layer, "permute_param.order", layer.transpose_param.dim, f"layer '{layer.name}': ", origin)
        layer.ClearField("transpose_param")


def _upgrade_short_side(layer: proto.LayerParameter, origin: Node | None) -> None:
    """NVIDIA's name of a random_resize_param of one size."""
    images = layer.image_data_param
    if not images.HasField("short_side"):
        return
    if images.short_side:
        resize = layer.transform_param.random_resize_param
        if resize.ListFields():
            raise ConfigError(
                f"layer '{layer.name}': both random_resize_param and NVIDIA's short_side are given; keep one",
                _where(origin),
            )
        resize.min_size = resize.max_size = images.short_side
    images.ClearField("short_side")


def _refuse_fields_of_others(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Fields of data layers that only some types have, whatever the message says."""
    if layer.image_data_param.face_transform and layer.type != "MultiLabelImageData":
        raise ConfigError(
            f"layer '{layer.name}': face_transform is for MultiLabelImageData, not for {layer.type}", _where(origin)
        )
    for field in _SEGMENTATION:
        if layer.transform_param.HasField(field) and layer.type not in _SEGMENTATION_LAYERS:
            raise ConfigError(
                f"layer '{layer.name}': transform_param.{field} is for {', '.join(_SEGMENTATION_LAYERS)}, not for "
                f"{layer.type}; instead: crop_h and crop_w, or random_resize_param",
                _where(origin),
            )


def _upgrade_dilation(layer: proto.LayerParameter, origin: Node | None) -> None:
    """yjxiong's two names of dilation."""
    convolution = layer.convolution_param
    if convolution.HasField("dilation_h") or convolution.HasField("dilation_w"):
        if convolution.dilation:
            raise ConfigError(
                f"layer '{layer.name}': both 'dilation' and yjxiong's dilation_h and dilation_w are given; keep "
                "'dilation', which can be given twice",
                _where(origin),
            )
        convolution.dilation.extend([convolution.dilation_h or 1, convolution.dilation_w or 1])
        convolution.ClearField("dilation_h")
        convolution.ClearField("dilation_w")


def _upgrade_holes(layer: proto.LayerParameter, origin: Node | None) -> None:
    """DeepLab's name of dilation."""
    convolution = layer.convolution_param
    given = [name for name in ("hole", "hole_h", "hole_w") if convolution.HasField(name)]
    if not given:
        return
    if convolution.dilation or (len(given) > 1 and "hole" in given):
        raise ConfigError(
            f"layer '{layer.name}': both {given[0]} and {'dilation' if convolution.dilation else given[1]} are given; "
            "keep 'dilation', which can be given twice",
            _where(origin),
        )
    both = convolution.hole if "hole" in given else 1
    convolution.dilation.extend([convolution.hole_h or both, convolution.hole_w or both])
    for name in given:
        convolution.ClearField(name)


def _upgrade_given_weights(layer: proto.LayerParameter, origin: Node | None) -> None:
    """happynear's InnerProduct with its weights as a second bottom."""
    if layer.type != "InnerProduct" or len(layer.bottom) != 2:
        return
    param = layer.inner_product_param
    wrong = [
        f"{name}: {str(wanted).lower()}"
        for name, wanted in (("bias_term", False), ("transpose", False), ("normalize", False), ("relu", False))
        if getattr(param, name) != wanted
    ]
    if wrong:
        raise ConfigError(
            f"layer '{layer.name}': an InnerProduct whose weights are a bottom needs {', '.join(wrong)}", _where(origin)
        )
    layer.inner_distance_param.Clear()
    layer.inner_distance_param.axis = param.axis
    layer.inner_distance_param.distance_type = "product"
    layer.type = "InnerDistance"
    layer.ClearField("inner_product_param")


# What forks say otherwise, of a layer; in dialects.tsv such fields are "same".
_DIALECTS = (
    _upgrade_ceil_mode,
    _upgrade_transpose,
    _upgrade_short_side,
    _refuse_fields_of_others,
    _upgrade_given_weights,
    _upgrade_holes,
    _upgrade_dilation,
)
