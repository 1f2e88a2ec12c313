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


# (module, class) -> what turns the layer into a built-in one.
STAND_INS: dict[tuple[str, str], Callable[[proto.LayerParameter], None]] = {
    ("rpn.proposal_layer", "ProposalLayer"): _proposal
}


def stand_in(net: proto.NetParameter, folder: str) -> list[str]:
    """Replaces such layers of a net whose module is neither in PYTHONPATH nor in `folder`. Returns notes."""
    notes = []
    for layer in net.layer:
        param = layer.python_param
        replace = STAND_INS.get((param.module, param.layer)) if layer.type == "Python" else None
        if replace is None or _is_there(param.module.split(".")[0], folder):
            continue
        replace(layer)
        notes.append(f"layer '{layer.name}': module {param.module} not found, replaced by a {layer.type} layer")
        layer.ClearField("python_param")
    return notes


def _is_there(package: str, folder: str) -> bool:
    beside = (os.path.join(folder, package + suffix) for suffix in ("", ".py"))
    return importlib.util.find_spec(package) is not None or any(map(os.path.exists, beside))
