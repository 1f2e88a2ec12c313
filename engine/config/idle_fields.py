"""Fields that a layer has and that no Caffe reads there: they are taken out, with a note for the user."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from engine import proto

DATA_PARAMS = {
    "Data": "data_param",
    "AnnotatedData": "data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
}
# Parameters -> the layer types that read them.
_READ_BY = {
    "data_param": ("Data", "AnnotatedData", "VideoData"),
    "image_data_param": ("ImageData", "ImageSegData", "ImageLabelmapData", "MultiLabelImageData"),
    "hdf5_data_param": ("HDF5Data",),
    "window_data_param": ("WindowData",),
    "memory_data_param": ("MemoryData",),
    "convolution_param": (
        "Convolution",
        "Deconvolution",
        "ConvolutionDepthwise",
        "ConvolutionDepthWise",
        "DepthwiseConvolution",
        "Im2col",
    ),
    "pooling_param": ("Pooling",),
    "inner_product_param": ("InnerProduct",),
    "lrn_param": ("LRN",),
    "video_data_param": ("VideoData",),
    "deformable_convolution_param": ("DeformableConvolution",),
    "psroi_align_param": ("PSROIAlign",),
    "deformable_psroi_pooling_param": ("DeformablePSROIPooling",),
    "gradient_scaler_param": ("GradientScaler",),
    "reduction_param": ("Reduction",),  # BatchReduction has its own, within batch_reduction_param
    "batch_reduction_param": ("BatchReduction",),
    "imresize_param": ("ImResize",),
    "nms_param": ("Nms",),
    "multi_stage_meanfield_param": ("MultiStageMeanfield",),
    "lifted_struct_sim_softmax_loss_param": ("LiftedStructSimilaritySoftmaxLoss",),
    "yolo_detection_output_param": ("YoloDetectionOutput",),
    "yolov3_detection_output_param": ("Yolov3DetectionOutput",),
    "yolov3_param": ("Yolov3",),
    "noise_param": ("Noise",),
}
MOVED_TO_TRANSFORM = ("scale", "mean_file", "crop_size", "mirror")

STRETCHES = (  # the fields of NVIDIA's that ask for a random size
    "img_rand_resize_lower",
    "img_rand_resize_upper",
    "rand_resize_ratio_lower",
    "rand_resize_ratio_upper",
    "vertical_stretch_lower",
    "vertical_stretch_upper",
    "horizontal_stretch_lower",
    "horizontal_stretch_upper",
)
# Fields of transform_param that WindowData does not read.
_NOT_READ_BY_WINDOWS = (
    "resize_param",
    "random_resize_param",
    "random_aspect_ratio_param",
    "expand_param",
    "noise_param",
    "distort_param",
    "rand_augment_param",
    "lighting_param",
    "pad",
    "crop_h",
    "crop_w",
    "center_crop",
    "fix_crop",
    "multi_scale",
    "erase_ratio",
    "force_gray",
    *STRETCHES,
)


def without_idle_transform(layer: proto.LayerParameter, older: bool) -> list[str]:
    """Takes out fields of a data layer, and of its transform_param, that no Caffe reads. Returns a note on each.

    They are, in a layer of the current format, the fields that V1 layers had before there was transform_param; the
    scale in the transform_param of WindowData, which reads the one in window_data_param; and random_aspect_ratio_param
    beside Intel's random_resize_param.

    older: whether the layer was upgraded from V0 or V1. Caffe itself then moves the scale of WindowData to the
    transform_param, where it has no effect."""
    notes, transform = [], layer.transform_param
    if layer.type == "WindowData" and transform.HasField("scale"):
        transform.ClearField("scale")
        if older:
            notes.append(
                "scale has no effect on WindowData in the older format, as Caffe keeps it in transform_param, where "
                "nothing reads it; if it shall have one, write the net in the current format, in window_data_param"
            )
        else:
            notes.append("transform_param { scale } has no effect on WindowData; expected in window_data_param")
    if transform.HasField("random_resize_param") and transform.HasField("random_aspect_ratio_param"):
        transform.ClearField("random_aspect_ratio_param")
        notes.append("random_aspect_ratio_param has no effect beside random_resize_param")
    if data_param := DATA_PARAMS.get(layer.type):
        data = getattr(layer, data_param)
        read = ("scale",) if layer.type == "WindowData" else ()
        given = [name for name in MOVED_TO_TRANSFORM if data.HasField(name) and name not in read]
        for name in given:
            data.ClearField(name)
        if given:
            notes.append(f"{data_param} {{ {', '.join(given)} }} has no effect; expected in transform_param")
    return [f"layer '{layer.name}': {note}" for note in notes]


def params_of_other_types(layer: proto.LayerParameter) -> list[str]:
    """Returns the names of a layer's parameters that only other types read, as far as _READ_BY tells."""
    if layer.type == "Python":  # its code may read anything
        return []
    return [name for name, types in _READ_BY.items() if layer.HasField(name) and layer.type not in types]


def without_idle_augmentation(layer: proto.LayerParameter) -> list[str]:
    """Takes the random changes out of a DataAugmentation that does not crop: FlowNet 2 changes no picture then.
    Returns a note if there were any."""
    param = layer.augmentation_param
    if layer.type != "DataAugmentation" or param.HasField("crop_width"):
        return []
    idle = [field.name for field, _ in param.ListFields() if _is_random(field)]
    for name in idle:
        param.ClearField(name)
    fields = f"augmentation_param {{ {', '.join(idle)} }}"
    return [f"layer '{layer.name}': {fields} has no effect without crop_width, as in FlowNet 2"] if idle else []


def _is_random(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.name == "RandomGeneratorParameter"


def without_idle_steps(layer: proto.LayerParameter) -> list[str]:
    """Takes out of WindowData the steps of transform_param that it does not do, as in Caffe. Returns a note if there
    were any."""
    transform = layer.transform_param
    found = [field.name for field, value in transform.ListFields() if value != field.default_value]
    idle = [name for name in _NOT_READ_BY_WINDOWS if name in found] if layer.type == "WindowData" else []
    for name in idle:
        transform.ClearField(name)
    fields = ", ".join(idle)
    return [f"layer '{layer.name}': transform_param {{ {fields} }} has no effect on WindowData"] if idle else []
