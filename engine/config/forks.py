"""Upgrades layers of other forks of Caffe that say in other fields what ours say; renamed.py has mere other names."""

from __future__ import annotations

from google.protobuf.message import Message

from engine import proto
from engine.config.idle_fields import MOVED_TO_TRANSFORM
from engine.config.prototext import Node, where_of
from engine.config.renamed import copy_field
from engine.errors import ConfigError

# Fields of TransformationParameter that only layers of pairs of pictures read (PSPNet's and yjxiong's forks).
_SEGMENTATION = ("crop_width", "crop_height", "stride", "upper_size", "upper_height", "upper_width")
_SEGMENTATION_LAYERS = ("DenseImageData", "ImageLabelmapData", "ImageSegData", "SegData", "VideoData")
# Fields of image_data_param that only C3D's data of clips reads.
_OF_CLIPS = ("new_length", "use_image", "sampling_rate", "use_temporal_jitter", "mean_value")


def upgrade_forks(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Moves what a layer says in fields of other forks to our fields. Raises ConfigError if the layer has both, or has
    fields that its type does not read."""
    for upgrade in _UPGRADES:
        upgrade(layer, origin)


def _upgrade_ceil_mode(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades ceil_mode, soeaver's name for round_mode."""
    pooling = layer.pooling_param
    if not pooling.HasField("ceil_mode"):
        return
    mode = pooling.CEIL if pooling.ceil_mode else pooling.FLOOR
    if pooling.HasField("round_mode") and pooling.round_mode != mode:
        raise ConfigError(
            f"layer '{layer.name}': round_mode and soeaver's ceil_mode contradict each other; keep round_mode",
            where_of(origin),
        )
    pooling.round_mode = mode
    pooling.ClearField("ceil_mode")


def _upgrade_transpose(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades Transpose, CTPN's name for Permute."""
    if layer.type == "Transpose":
        layer.type = "Permute"
        copy_field(layer, "permute_param.order", layer.transpose_param.dim, f"layer '{layer.name}': ", origin)
        layer.ClearField("transpose_param")


def _upgrade_short_side(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades short_side, NVIDIA's name for a random_resize_param of one size."""
    images = layer.image_data_param
    if not images.HasField("short_side"):
        return
    if images.short_side:
        resize = layer.transform_param.random_resize_param
        if resize.ListFields():
            raise ConfigError(
                f"layer '{layer.name}': both random_resize_param and NVIDIA's short_side are given; keep one",
                where_of(origin),
            )
        resize.min_size = resize.max_size = images.short_side
    images.ClearField("short_side")


def _refuse_fields_of_other_types(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Raises ConfigError for fields of a shared message that layers of this type do not read."""
    if layer.image_data_param.face_transform and layer.type != "MultiLabelImageData":
        raise ConfigError(
            f"layer '{layer.name}': face_transform is for MultiLabelImageData, not for {layer.type}", where_of(origin)
        )
    if layer.convolution_param.HasField("deformable_group"):
        raise ConfigError(
            f"layer '{layer.name}': expected deformable_group in deformable_convolution_param of a "
            "DeformableConvolution, got it in convolution_param",
            where_of(origin),
        )
    for field, _ in layer.image_data_param.ListFields():
        if field.name in _OF_CLIPS and layer.type != "VideoData":
            instead = "; instead: transform_param.mean_value" if field.name == "mean_value" else ""
            raise ConfigError(
                f"layer '{layer.name}': image_data_param.{field.name} is for VideoData, not for {layer.type}{instead}",
                where_of(origin),
            )
    for field in _SEGMENTATION:
        if layer.transform_param.HasField(field) and layer.type not in _SEGMENTATION_LAYERS:
            raise ConfigError(
                f"layer '{layer.name}': transform_param.{field} is for {', '.join(_SEGMENTATION_LAYERS)}, not for "
                f"{layer.type}; instead: crop_h and crop_w, or random_resize_param",
                where_of(origin),
            )


def _convolution_of(layer: proto.LayerParameter) -> str:
    """Returns the name of the parameter that has the window of this layer if the layer is a convolution."""
    return "deformable_convolution_param" if layer.type == "DeformableConvolution" else "convolution_param"


def _upgrade_dilation(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades dilation_h and dilation_w, yjxiong's names for dilation."""
    convolution = getattr(layer, _convolution_of(layer))
    if convolution.HasField("dilation_h") or convolution.HasField("dilation_w"):
        if convolution.dilation:
            raise ConfigError(
                f"layer '{layer.name}': both 'dilation' and yjxiong's dilation_h and dilation_w are given; keep "
                "'dilation', which can be given twice",
                where_of(origin),
            )
        convolution.dilation.extend([convolution.dilation_h or 1, convolution.dilation_w or 1])
        convolution.ClearField("dilation_h")
        convolution.ClearField("dilation_w")


def _upgrade_holes(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades hole, hole_h and hole_w, DeepLab's names for dilation."""
    convolution = getattr(layer, _convolution_of(layer))
    given = [name for name in ("hole", "hole_h", "hole_w") if convolution.HasField(name)]
    if not given:
        return
    if convolution.dilation or (len(given) > 1 and "hole" in given):
        raise ConfigError(
            f"layer '{layer.name}': both {given[0]} and {'dilation' if convolution.dilation else given[1]} are given; "
            "keep 'dilation', which can be given twice",
            where_of(origin),
        )
    both = convolution.hole if "hole" in given else 1
    convolution.dilation.extend([convolution.hole_h or both, convolution.hole_w or both])
    for name in given:
        convolution.ClearField(name)


def _upgrade_shapes(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades video-caffe's layers of any number of axes, which have kernel_shape, stride_shape and pad_shape."""
    if layer.type in ("NdConvolution", "NdPooling"):
        layer.type = layer.type.removeprefix("Nd")
    if layer.pooling_param.global_pooling:
        layer.pooling_param.ClearField("kernel_shape")  # such a layer has to have one, and does not read it
    for param in (_convolution_of(layer), "pooling_param"):
        if layer.HasField(param):
            for field in ("kernel_size", "stride", "pad"):
                _upgrade_shape(layer, param, field, origin)


def _upgrade_shape(layer: proto.LayerParameter, param: str, field: str, origin: Node | None) -> None:
    """Moves the dims of one shape to `field`, or to its fields of single sides where there are some."""
    message, short, label = getattr(layer, param), field.removesuffix("_size"), f"layer '{layer.name}': "
    old = f"{short}_shape"
    if not message.HasField(old):
        return
    dims = list(getattr(message, old).dim)
    set_fields = [each.name for each, _ in message.ListFields()]
    for given in (field, f"{short}_h", f"{short}_w", f"{field}_3d"):
        if given in set_fields:
            raise ConfigError(
                f"{label}both '{given}' and video-caffe's '{old}' are given; keep '{given}'", where_of(origin)
            )
    message.ClearField(old)
    if param != "pooling_param":
        copy_field(message, field, dims, label, origin)
    elif len(dims) == 3:
        copy_field(message, f"{field}_3d", dims, label, origin)
    elif len(dims) in (1, 2):
        names = [field] if len(dims) == 1 else [f"{short}_h", f"{short}_w"]
        for name, dim in zip(names, dims, strict=True):
            copy_field(message, name, dim, label, origin)
    else:
        raise ConfigError(f"{label}expected 1 to 3 dims in {old}, got {len(dims)}", where_of(origin))


# C3D's layers, and the fields of their windows as (of both sides of a frame, of time, default of both).
_OVER_TIME = ("Convolution3D", "Deconvolution3D", "Pooling3D")
_WINDOW = (("kernel_size", "kernel_depth", 0), ("stride", "temporal_stride", 1), ("pad", "temporal_pad", 0))


def _upgrade_params_of_c3d(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades the parameters of C3D's layers of clips. This comes first: other forks' fields may be in them."""
    for old, new in (("convolution3d_param", "convolution_param"), ("pooling3d_param", "pooling_param")):
        if layer.HasField(old):
            if layer.HasField(new):
                raise ConfigError(
                    f"layer '{layer.name}': both '{new}' and C3D's '{old}' are given; keep '{old}'", where_of(origin)
                )
            getattr(layer, new).CopyFrom(getattr(layer, old))
            layer.ClearField(old)


def _upgrade_c3d(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades C3D's layers of clips, whose windows have one number for time and one for both sides of a frame."""
    if layer.type in _OVER_TIME:
        message = layer.pooling_param if layer.type == "Pooling3D" else layer.convolution_param
        _upgrade_window(layer, message, where_of(origin))
        return
    for param in (_convolution_of(layer), "pooling_param"):
        for field, _ in getattr(layer, param).ListFields():
            if field.name in ("kernel_depth", "temporal_stride", "temporal_pad"):
                raise ConfigError(
                    f"layer '{layer.name}': C3D's {field.name} is for {', '.join(_OVER_TIME)}, not for {layer.type}",
                    where_of(origin),
                )


def _upgrade_window(
    layer: proto.LayerParameter, message: proto.ConvolutionParameter | proto.PoolingParameter, where: str | None
) -> None:
    """Gives one of C3D's layers the type that it has here, and its window a number for each axis. Raises ConfigError,
    with the place `where`, if this engine computes something else for it."""
    sides = {field: (_one(message, time, default), _one(message, field, default)) for field, time, default in _WINDOW}
    wrong = ""
    if not all(sides["kernel_size"]) or any(None in each for each in sides.values()):
        wrong = f"{layer.type} needs a kernel_size and a kernel_depth above 0, and takes one stride and one pad"
    elif isinstance(message, proto.PoolingParameter):
        wrong = _wrong_pooling_of_c3d(message)
    elif message.group != 1:
        wrong = f"C3D's {layer.type} reads no group; expected none, or {layer.type.removesuffix('3D')}"
    if wrong:
        raise ConfigError(f"layer '{layer.name}': {wrong}", where)
    names, suffix = set(message.DESCRIPTOR.fields_by_name), "_3d" if layer.type == "Pooling3D" else ""
    for field, time, _ in _WINDOW:
        over_time, size = sides[field]
        for each in {field, time, "filter_group"} & names:
            message.ClearField(each)
        getattr(message, f"{field}{suffix}").extend([over_time, size, size])
    layer.type = layer.type.removesuffix("3D")


def _one(message: Message, field: str, default: int) -> int | None:
    """Returns the value of a field that C3D takes once: `default` if it is not given, None if it is given twice or
    more."""
    value = next((value for each, value in message.ListFields() if each.name == field), default)
    return value if isinstance(value, int) else value[0] if len(value) == 1 else None


def _wrong_pooling_of_c3d(param: proto.PoolingParameter) -> str:
    """Returns why our Pooling computes something else than C3D's Pooling3D, which pads only averages and keeps windows
    that begin beyond the bottom; "" if they are the same."""
    if param.pad and param.pool != param.AVE:
        return f"C3D's Pooling3D pads averages alone; expected pad 0, got {param.pad}"
    if param.pad and param.stride + param.pad > param.kernel_size:
        return (
            f"C3D's Pooling3D keeps windows that lie in the padding; expected stride and pad of together at most "
            f"kernel_size {param.kernel_size}, got {param.stride} and {param.pad}"
        )
    return ""


def _upgrade_clips(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades C3D's data of clips: VIDEO_DATA, which has the fields of C3D's ImageData, and the later VideoData."""
    if layer.type != "VideoData":
        return
    images, param, label = layer.image_data_param, layer.video_data_param, f"layer '{layer.name}': "
    if layer.HasField("image_data_param"):
        if layer.HasField("video_data_param"):
            raise ConfigError(
                f"{label}both 'video_data_param' and 'image_data_param' are given; keep 'video_data_param'",
                where_of(origin),
            )
        if images.mean_file:
            images.ClearField("mean_value")  # C3D reads it only if there is no file
        for field, value in images.ListFields():
            to = "transform_param" if field.name in (*MOVED_TO_TRANSFORM, "mean_value") else "video_data_param"
            if field.name not in getattr(layer, to).DESCRIPTOR.fields_by_name:
                raise ConfigError(f"{label}C3D's VIDEO_DATA reads no image_data_param.{field.name}", where_of(origin))
            if field.name != "show_data":
                copy_field(layer, f"{to}.{field.name}", value, label, origin)
        param.use_image = images.use_image
        layer.ClearField("image_data_param")
    if any(param.HasField(field) for field in ("use_image", "root_folder", "sampling_rate", "use_temporal_jitter")):
        param.use_image = param.use_image  # set even to its default: it marks clips of C3D
        param.modality = param.modality if param.HasField("modality") else param.RGB
        param.name_pattern = param.name_pattern or "%06d.jpg"


def _upgrade_unpooling(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades Unpooling, DeconvNet's name for an Upsample with a mask."""
    if layer.type != "Unpooling":
        return
    param, wrong = layer.unpooling_param, ""
    size = param.unpool_h or param.unpool_size, param.unpool_w or param.unpool_size
    if param.unpool != param.MAX:
        method = param.UnpoolMethod.Name(param.unpool)
        wrong = f"unpool {method} is not supported; instead: Upsample, which repeats pixels, or a Deconvolution"
    elif len(layer.bottom) != 2:
        wrong = "Unpooling without a mask is not supported; instead: the second top of the Pooling as a second bottom"
    elif not all(size):
        wrong = "Unpooling needs unpool_size, or unpool_h and unpool_w: forks compute other sizes"
    elif param.pad or param.pad_h or param.pad_w:
        wrong = "expected pad 0 of Unpooling, whose mask says where values go"
    elif layer.HasField("upsample_param"):
        wrong = "both 'unpooling_param' and 'upsample_param' are given; keep 'unpooling_param'"
    if wrong:
        raise ConfigError(f"layer '{layer.name}': {wrong}", where_of(origin))
    layer.type = "Upsample"
    layer.upsample_param.upsample_h, layer.upsample_param.upsample_w = size
    layer.ClearField("unpooling_param")


def _upgrade_given_weights(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades happynear's InnerProduct whose weights are its second bottom."""
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
            f"layer '{layer.name}': an InnerProduct whose weights are a bottom needs {', '.join(wrong)}",
            where_of(origin),
        )
    layer.inner_distance_param.Clear()
    layer.inner_distance_param.axis = param.axis
    layer.inner_distance_param.distance_type = "product"
    layer.type = "InnerDistance"
    layer.ClearField("inner_product_param")


# The fields that these upgrade have the disposition "same" in dialects.tsv.
_UPGRADES = (
    _upgrade_params_of_c3d,
    _refuse_fields_of_other_types,
    _upgrade_ceil_mode,
    _upgrade_transpose,
    _upgrade_short_side,
    _upgrade_given_weights,
    _upgrade_holes,
    _upgrade_dilation,
    _upgrade_shapes,
    _upgrade_c3d,
    _upgrade_clips,
    _upgrade_unpooling,
)
