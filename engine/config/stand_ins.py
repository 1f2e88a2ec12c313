"""Replaces or leaves out layers that this engine cannot run: Python layers of well-known nets whose modules are missing
become built-in layers, and layers that write files are left out.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Container
from typing import NamedTuple

from engine import proto
from engine.errors import ConfigError

# Layers of DeepLab's and FlowNet 2's forks that write files.
WRITERS = ("MatWrite", "ImgWriter", "FLOWriter", "FloatWriter", "PFMWriter")

_NUMBER = r"-?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:[eE]-[0-9]{1,2})?(?![\w.])"
_TAG = r"(?:!!?[\w/.:]{1,99}\s+)?"  # of YAML, before a value: !!python/tuple
_BETWEEN = r"[\s,]+(?:-\s+)?"  # two items of a list; YAML may have a line for each, after a dash


def _numbers(text: str, name: str) -> list[float]:
    """Returns the number, or the list of numbers, that a param_str (YAML or a Python dictionary) gives to a name; []
    if it gives none or something else."""
    begin = rf"(?<!\w){name}['\"]?\s*[:=]\s*{_TAG}(?:[\[(]\s*|-\s+|['\"])?"
    found = re.search(rf"{begin}({_NUMBER}(?:{_BETWEEN}{_NUMBER})*)", text)
    return [float(number) for number in re.split(_BETWEEN, found[1])] if found else []


def _proposal(layer: proto.LayerParameter) -> None:
    """Replaces py-faster-rcnn's ProposalLayer, whose param_str is YAML with feat_stride and scales."""
    text = layer.python_param.param_str
    layer.type = "Proposal"
    layer.proposal_param.feat_stride = int(next(iter(_numbers(text, "feat_stride")), 16))
    layer.proposal_param.scale.extend(_numbers(text, "scales"))


def _spatial_dropout(layer: proto.LayerParameter) -> None:
    """Replaces ENet's SpatialDropoutLayer, whose param_str is a dictionary with the ratio p."""
    layer.type = "SpatialDropout"
    layer.spatial_dropout_param.dropout_ratio = next(iter(_numbers(layer.python_param.param_str, "p")), 0.5)


def _anchor_target(layer: proto.LayerParameter) -> None:
    """Replaces py-faster-rcnn's AnchorTargetLayer, whose param_str has feat_stride, scales and, in forks, ratios and
    allowed_border."""
    text, param = layer.python_param.param_str, layer.anchor_target_param
    layer.type = "AnchorTarget"
    param.feat_stride = int(next(iter(_numbers(text, "feat_stride")), 16))
    param.scale.extend(_numbers(text, "scales"))
    param.ratio.extend(_numbers(text, "ratios"))
    param.allowed_border = int(next(iter(_numbers(text, "allowed_border")), 0))


def _proposal_target(layer: proto.LayerParameter) -> None:
    """Replaces py-faster-rcnn's ProposalTargetLayer, whose param_str has num_classes; all else is as in its end-to-end
    training."""
    param = layer.proposal_target_param
    layer.type = "ProposalTarget"
    param.num_classes = int(next(iter(_numbers(layer.python_param.param_str, "num_classes")), 21))
    param.bg_thresh_lo = 0


def _roi_data(layer: proto.LayerParameter) -> None:
    """Replaces py-faster-rcnn's RoIDataLayer by an Input, whose blobs the user fills: an image, its size and its true
    boxes; for Fast R-CNN images, regions, labels, and targets and weights of the boxes."""
    classes = int(next(iter(_numbers(layer.python_param.param_str, "num_classes")), 21))
    boxes, offsets = [128, 5], [128, 4 * classes]
    shapes = [[1, 3, 600, 1000], [1, 3], [100, 5]]
    if len(layer.top) != 3 or "rois" in layer.top:
        shapes = [[2, 3, 600, 1000], boxes, [128], offsets, offsets, offsets]
    layer.type = "Input"
    for _, shape in zip(layer.top, shapes):
        layer.input_param.shape.add().dim.extend(shape)


class StandIn(NamedTuple):
    """A function that turns a Python layer into a built-in one, and the numbers of bottoms and tops that the layer may
    have: with other numbers it is another layer of the same name."""

    replace: Callable[[proto.LayerParameter], None]
    bottoms: Container[int]
    tops: Container[int]


# By (module, class).
STAND_INS = {
    ("rpn.proposal_layer", "ProposalLayer"): StandIn(_proposal, (3,), (1, 2)),
    ("spatial_dropout", "SpatialDropoutLayer"): StandIn(_spatial_dropout, (1,), (1,)),
    ("rpn.anchor_target_layer", "AnchorTargetLayer"): StandIn(_anchor_target, (3, 4), (4,)),
    ("rpn.proposal_target_layer", "ProposalTargetLayer"): StandIn(_proposal_target, (2,), (5,)),
    ("roi_data_layer.layer", "RoIDataLayer"): StandIn(_roi_data, (0,), range(3, 7)),
}


def stand_in(net: proto.NetParameter, path: str) -> list[str]:
    """Replaces the layers of STAND_INS whose module is neither in PYTHONPATH nor beside the net, which is in `path`.

    Returns a note on each. Raises ConfigError for a param_str with numbers that the built-in layer cannot have."""
    notes, folder = [], os.path.dirname(os.path.abspath(path))
    for layer in net.layer:
        param = layer.python_param
        known = STAND_INS.get((param.module, param.layer)) if layer.type == "Python" else None
        if known is None or len(layer.bottom) not in known.bottoms or len(layer.top) not in known.tops:
            continue
        if is_module_there(param.module, folder):
            continue
        try:
            known.replace(layer)
        except ValueError as error:
            raise ConfigError(
                f"layer '{layer.name}': param_str {param.param_str!r} has a number that {layer.type} cannot have: "
                f"{error}",
                path,
            ) from None
        notes.append(f"layer '{layer.name}': module {param.module} not found, replaced by a {layer.type} layer")
        layer.ClearField("python_param")
    return notes


def leave_out_writers(net: proto.NetParameter) -> tuple[list[int], list[str]]:
    """Leaves out layers of forks that write their bottoms to files; these bottoms become outputs of the net.

    Returns the indices of the layers that stay, and a note on each that does not."""
    kept, notes = [], []
    for index, layer in enumerate(net.layer):
        if layer.type in WRITERS:
            read = ", ".join(layer.bottom)
            notes.append(f"layer '{layer.name}' ({layer.type}) writes no file and is left out; it reads {read}")
        else:
            kept.append(index)
    if notes:
        layers = [net.layer[index] for index in kept]
        net.ClearField("layer")
        net.layer.extend(layers)
    return kept, notes


def is_module_there(module: str, folder: str) -> bool:
    """Returns whether a module, or the package that it is in, can be found in PYTHONPATH or in `folder`. Imports
    nothing."""
    package = module.split(".")[0]
    beside = (os.path.join(folder, package + suffix) for suffix in ("", ".py"))
    try:
        return importlib.util.find_spec(package) is not None or any(map(os.path.exists, beside))
    except ValueError:  # a module cannot have this name
        return False
