"""The update rule that a solver asks for, and the buckets in which gradients are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.comm.buckets import Bucket, make_buckets, segments_of
from engine.comm.settings import CommSettings
from engine.net import Net

if TYPE_CHECKING:
    import numpy as np

# SolverParameter.type -> update rule of the extension.
RULES = {
    "SGD": "sgd",
    "Nesterov": "nesterov",
    "AdaGrad": "adagrad",
    "RMSProp": "rmsprop",
    "AdaDelta": "adadelta",
    "Adam": "adam",
}
# Update rule -> what its histories hold, in their order.
HISTORIES = {
    "sgd": ("SGD's momentum",),
    "nesterov": ("Nesterov's momentum",),
    "adagrad": ("AdaGrad's sum of squared gradients",),
    "rmsprop": ("RMSProp's mean of squared gradients",),
    "adadelta": ("AdaDelta's mean of squared gradients", "AdaDelta's mean of squared updates"),
    "adam": ("Adam's first moment", "Adam's second moment"),
    "adamw": ("AdamW's first moment", "AdamW's second moment"),
}


def buckets_for(net: Net, settings: CommSettings) -> list[Bucket]:
    """Ranges of the arenas that travel together."""
    parameters = [(placed.name, placed.offset, placed.count) for placed in net.parameters]
    parts = {placed.name: placed.parameter.parts for placed in net.parameters}
    return make_buckets(parameters, settings.bucket_bytes, parts)


def rule_of(param: Any) -> str:
    """Of a SolverParameter."""
    return "adamw" if param.decoupled_weight_decay else RULES[param.type]


def make_updater(
    param: Any,
    net: Net,
    buckets: list[Bucket],
    weights: np.ndarray,
    gradients: np.ndarray,
    histories: list[np.ndarray],
) -> Any:
    """The arrays, float32 in the order of the net's arenas, are updated and read in place."""
    from engine.host import _core

    multipliers = {placed.name: (placed.parameter.lr_mult, placed.parameter.decay_mult) for placed in net.parameters}
    segments = [[_core.Segment(*piece) for piece in pieces] for pieces in segments_of(buckets, multipliers)]
    hyper = _core.Hyper(
        momentum=param.momentum,
        momentum2=param.momentum2,
        delta=param.delta,
        rms_decay=param.rms_decay,
        weight_decay=param.weight_decay,
        l1=param.regularization_type == "L1",
        local_ratio=param.local_gw_ratio if param.local_lr_auto else 0.0,
        local_clip=param.larc_policy == "clip",
    )
    return _core.Updater(rule_of(param), weights, gradients, histories, segments, hyper)
