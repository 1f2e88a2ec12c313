"""Finds the update rule that a solver asks for, and makes the updater and the buckets in which gradients are reduced.

The rules themselves are in csrc/update_rules/: each says there which fields of a SolverParameter ask for it, what its
histories hold and which constants it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import proto
from engine.comm.buckets import Bucket, make_buckets, parameter_ranges
from engine.comm.settings import CommSettings
from engine.config.suggestions import suggestion
from engine.errors import ConfigError
from engine.net import Net

if TYPE_CHECKING:
    import numpy as np

    from engine.comm.shares import ShardedWeights
    from engine.host import _core


def buckets_for(net: Net, settings: CommSettings) -> list[Bucket]:
    """Returns the buckets of a net: ranges of its arenas that are reduced together."""
    parameters = [(placed.name, placed.offset, placed.count) for placed in net.parameters]
    parts = {placed.name: placed.parameter.parts for placed in net.parameters}
    return make_buckets(parameters, settings.bucket_bytes, parts)


def solver_types(decoupled_weight_decay: bool | None = None) -> list[str]:
    """Returns the known values of SolverParameter.type, or, if decoupled_weight_decay is given, those that have rules
    with this kind of weight decay."""
    from engine.host import _core

    wanted = (True, False) if decoupled_weight_decay is None else (decoupled_weight_decay,)
    return sorted({rule.type for rule in _core.update_rules().values() if rule.decoupled_weight_decay in wanted})


def unknown_type(type_: str) -> str:
    """Returns what is wrong with a value of SolverParameter.type; "" for a known one."""
    known = solver_types()
    return "" if type_ in known else f"unknown solver type '{type_}'{suggestion(type_, known)}"


def remembered(param: proto.SolverParameter, ranks: int) -> float:
    """Returns how many numbers a rank's optimizer keeps for each that is learned, those of the average (`ema`) too."""
    rule, comm = find_rule(param), param.comm_param
    sets, average = len(rule.histories if rule else ()), int(param.ema > 0)
    if ranks > 1 and comm.mode == comm.ASYNC:  # also masters and sums of its shares, and what other ranks send
        return (sets + 1) / ranks + 1
    if ranks == 1 or not comm.shard_updates:
        return sets + average
    masters = comm.compression == proto.CommParameter.BF16  # float32, beside the net's weights, which are rounded
    return (sets + masters) / ranks + average


def find_rule(param: proto.SolverParameter) -> _core.UpdateRule | None:
    """Returns the rule that a SolverParameter asks for, None if there is no such rule."""
    from engine.host import _core

    wanted = param.type, param.decoupled_weight_decay
    for rule in _core.update_rules().values():
        if (rule.type, rule.decoupled_weight_decay) == wanted:
            return rule
    return None


def rule_of(param: proto.SolverParameter) -> _core.UpdateRule:
    """Returns the rule that a SolverParameter asks for. Raises ConfigError if there is no such rule."""
    rule = find_rule(param)
    if rule is None:
        raise ConfigError(unknown_type(param.type) or f'type "{param.type}" has no decoupled_weight_decay')
    return rule


def constants_of_others(param: proto.SolverParameter) -> list[str]:
    """Returns the constants that a SolverParameter sets, and that other update rules read, but not its own."""
    from engine.host import _core

    rule = find_rule(param)
    if rule is None:
        return []
    others = {field for other in _core.update_rules().values() for field in other.constants} - set(rule.constants)
    return sorted(field for field in others if param.HasField(field) and getattr(param, field))


def make_updater(
    param: proto.SolverParameter,
    net: Net,
    buckets: list[Bucket],
    weights: np.ndarray,
    gradients: np.ndarray,
    histories: list[np.ndarray],
    weight_decay: float,
    momentum: float,
    sharded: ShardedWeights | None,
) -> _core.Updater:
    """Makes what updates the parameters of a net by the rule of a SolverParameter.

    weights, gradients, histories: float32, in the order of the net's arenas; read and updated in place. weight_decay,
    momentum: of the first step. sharded: if given, histories hold shares alone, and so do weights if it has masters.
    Raises ConfigError if there is no such rule.
    """
    from engine.host import _core

    rule = rule_of(param)
    multipliers = {placed.name: (placed.parameter.lr_mult, placed.parameter.decay_mult) for placed in net.parameters}
    every = param.clamp_weights_lower, param.clamp_weights_upper  # of happynear's Caffe
    clamps = param.HasField("clamp_weights_lower") or param.HasField("clamp_weights_upper")
    bounds = {placed.name: every if clamps else placed.parameter.bounds for placed in net.parameters}
    return _core.Updater(
        rule.name,
        weights,
        gradients,
        histories,
        parameter_ranges(buckets, multipliers, bounds, sharded),
        {field: momentum if field == "momentum" else getattr(param, field) for field in rule.constants},
        weight_decay=weight_decay,
        l1=param.regularization_type == "L1",
        local_ratio=local_ratio(param, momentum),
        local_clip=param.larc_policy == "clip",
        local_decays=not param.larc,
        local_decayed_only=param.local_lr_decayed_only,
    )


def has_local_rates(param: proto.SolverParameter) -> bool:
    """Tells whether each parameter has a rate of its own, by LARS or LARC."""
    return param.local_lr_auto or param.larc


def local_ratio(param: proto.SolverParameter, momentum: float) -> float:
    """Returns the factor of layer-wise rates; 0 if there are none. NVIDIA's larc makes up for the momentum."""
    if param.larc:
        return param.larc_eta * (1 - momentum)
    return param.local_gw_ratio if param.local_lr_auto else 0.0
