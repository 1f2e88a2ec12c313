"""Upgrades layers of the formats V0 and V1, the `layers` of a net, to `layer`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from engine import proto
from engine.config.idle_fields import DATA_PARAMS, MOVED_TO_TRANSFORM
from engine.config.prototext import Node, where_of
from engine.config.renamed import copy_field
from engine.config.suggestions import suggestion
from engine.errors import ConfigError

# V1 name -> current type, where this is more than another way to write the words (INNER_PRODUCT, InnerProduct).
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

# V0 type -> the parameter that holds its options today.
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
# V0 option -> (the V0 types that have it, its name in that parameter).
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
# V0 field of any type -> its place in a current layer.
_V0_ANYWHERE = {
    "name": "name",
    "blobs": "blobs",
    "hdf5_output_param": "hdf5_output_param",
    "scale": "transform_param.scale",
    "meanfile": "transform_param.mean_file",
    "cropsize": "transform_param.crop_size",
    "mirror": "transform_param.mirror",
}


def upgrade_layers(message: proto.NetParameter, origins: Sequence[Node | None]) -> list[Node | None]:
    """Turns all `layers` into `layer`. Returns the places of the new ones, which may be fewer: a padding layer of V0
    becomes the pad of the layer behind it.

    origins: the place of each message.layers, None if unknown. Raises ConfigError for what has no counterpart today."""
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


def _from_v1(old: proto.V1LayerParameter, layer: proto.LayerParameter, origin: Node | None) -> None:
    special = {"type", "param", "blobs_lr", "weight_decay", "blob_share_mode"}
    for field, value in old.ListFields():
        if field.name not in special:
            copy_field(layer, field.name, value, f"layer '{old.name}': ", origin)  # the rest has kept its name
    name = old.LayerType.Name(old.type)
    layer.type = _V1_TYPES.get(name, name.title().replace("_", ""))
    _move_to_transform(layer, MOVED_TO_TRANSFORM, origin)
    _params(layer, name=old.param, share_mode=old.blob_share_mode, lr_mult=old.blobs_lr, decay_mult=old.weight_decay)


def _params(layer: proto.LayerParameter, **columns: Sequence[object]) -> None:
    """Turns lists that have an entry for each parameter blob into one `param` for each blob. columns: such a list by
    the field of `param` that it fills."""
    for _ in range(max(map(len, columns.values()))):
        layer.param.add()
    for field, values in columns.items():
        for param, value in zip(layer.param, values, strict=False):
            setattr(param, field, value)


def _move_to_transform(layer: proto.LayerParameter, names: Iterable[str], origin: Node | None) -> None:
    """Moves fields of a data layer to its transform_param."""
    data_param = DATA_PARAMS.get(layer.type)
    data = getattr(layer, data_param) if data_param else None
    for name in names:
        if data is not None and data.HasField(name):
            copy_field(layer.transform_param, name, getattr(data, name), f"layer '{layer.name}': ", origin)
            data.ClearField(name)


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
        raise ConfigError(f"{label}unknown type '{type_}'{suggestion(type_, _V0_TYPES)}", where_of(origin))
    layer.type = _V0_TYPES[type_]
    layer.top.extend(old.top)
    for bottom in old.bottom:
        padded = padding.get(bottom)
        if padded and options.type not in ("conv", "pool"):
            raise ConfigError(f"{label}a '{options.type}' cannot follow a padding layer", where_of(origin))
        if padded and not padded.bottom:
            raise ConfigError(f"{label}the padding layer before it, '{bottom}', has no bottom", where_of(origin))
        layer.bottom.append(padded.bottom[0] if padded else bottom)
        if padded:
            options.pad = padded.layer.pad
    for field, value in options.ListFields():
        if field.name in _V0_ANYWHERE:
            copy_field(layer, _V0_ANYWHERE[field.name], value, label, origin)
        elif field.name in _V0_OPTIONS:
            types, name = _V0_OPTIONS[field.name]
            if options.type not in types.split():
                raise ConfigError(f"{label}'{field.name}' is not an option of '{options.type}'", where_of(origin))
            copy_field(layer, f"{_V0_MESSAGES[options.type]}.{name}", value, label, origin)
        elif field.name not in ("type", "blobs_lr", "weight_decay"):
            raise ConfigError(f"{label}'{field.name}' has no counterpart today", where_of(origin))
    _params(layer, lr_mult=options.blobs_lr, decay_mult=options.weight_decay)
