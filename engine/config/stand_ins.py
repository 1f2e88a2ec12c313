"""Built-in replacements for the Python layers of well-known nets, for when their modules are missing."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable

from engine import proto


def _proposal(layer: proto.LayerParameter) -> None:
    """py-faster-rcnn's: param_str is YAML with feat_stride and scales."""
    text = layer.python_param.param_str
    stride = re.search(r"feat_stride\W+(\d+)", text)
    scales = re.search(r"scales[^\[(]*[\[(]([\d., ]+)", text)
    layer.type = "Proposal"
    layer.proposal_param.feat_stride = int(stride[1]) if stride else 16
    if scales:
        layer.proposal_param.scale.extend(float(scale) for scale in scales[1].split(","))


def _spatial_dropout(layer: proto.LayerParameter) -> None:
    """ENet's: param_str is a dictionary with p, the ratio."""
    ratio = re.search(r"\bp\b\W+([\d.]+)", layer.python_param.param_str)
    layer.type = "SpatialDropout"
    layer.spatial_dropout_param.dropout_ratio = float(ratio[1]) if ratio else 0.5


# (module, class) -> what turns the layer into a built-in one.
STAND_INS: dict[tuple[str, str], Callable[[proto.LayerParameter], None]] = {
    ("rpn.proposal_layer", "ProposalLayer"): _proposal,
    ("spatial_dropout", "SpatialDropoutLayer"): _spatial_dropout,
}


def stand_in(net: proto.NetParameter, folder: str) -> list[str]:
    """Replaces such layers of a net whose module is neither in PYTHONPATH nor in `folder`. Returns notes."""
    notes = []
    for layer in net.layer:
        param = layer.python_param
        replace = STAND_INS.get((param.module, param.layer)) if layer.type == "Python" else None
        if replace is None or is_module_there(param.module, folder):
            continue
        replace(layer)
        notes.append(f"layer '{layer.name}': module {param.module} not found, replaced by a {layer.type} layer")
        layer.ClearField("python_param")
    return notes


def is_module_there(module: str, folder: str) -> bool:
    """Whether a module, or the package that it is in, is in PYTHONPATH or in `folder`; it is not imported."""
    package = module.split(".")[0]
    beside = (os.path.join(folder, package + suffix) for suffix in ("", ".py"))
    try:
        return importlib.util.find_spec(package) is not None or any(map(os.path.exists, beside))
    except ValueError:  # no name that a module can have
        return False
