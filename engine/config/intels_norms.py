"""Upgrades BatchNorms of nets for Intel's Caffe, whose own kernels keep scale and shift in the BatchNorm."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine import proto
from engine.config.phases import PHASES, kept_in
from engine.config.prototext import Node, where_of
from engine.errors import ConfigError
from engine.weights.intel import STATISTICS, keeps_scale, scale_behind


def upgrade_intels_norms(message: proto.NetParameter, origins: Sequence[Node | None]) -> list[str]:
    """Gives scale and shift to the BatchNorms that have them in Intel's Caffe, and changes nothing on a second run.

    Those are the BatchNorms of Intel's own kernels, but for those that say use_weight_bias: false, and those with a
    Scale behind them, which Intel's Caffe takes into the BatchNorm.

    origins: the place of each message.layer, None if unknown. Returns one note, or none if there are no such
    BatchNorms. Raises ConfigError for a BatchNorm with scale and without shift.
    """
    found, scaled = [], _with_scale_behind(message)
    for index, layer in enumerate(message.layer):
        param = layer.batch_norm_param
        if layer.type != "BatchNorm" or keeps_scale(param) or not param.use_weight_bias:
            continue
        kernels = _kernels(message, layer)
        own = kernels in ("MKL2017", "MKLDNN") or param.HasField("filler") or param.HasField("use_weight_bias")
        of_bvlc = kernels == "CAFFE" or len(layer.param) == STATISTICS
        if not own or of_bvlc or layer.name in scaled:
            continue
        if not param.bias_term:
            raise ConfigError(
                f"layer '{layer.name}': bias_term: false: expected scale and shift, or use_weight_bias: false",
                where_of(origins[index]),
            )
        param.scale_bias = True
        if param.HasField("filler"):
            param.scale_filler.CopyFrom(param.filler)
        found.append(layer.name)
    if not found:
        return []
    others = f" and {len(found) - 1} more" if found[1:] else ""
    return [f"scale and shift are BatchNorm's own, as in Intel's Caffe: {found[0]}{others}"]


def _with_scale_behind(message: proto.NetParameter) -> set[str]:
    """Returns the names of the BatchNorms that have a Scale behind them in any phase. Names, because the BatchNorm of
    the same name in the other phase has the same blobs."""
    found = set()
    for phase in PHASES.values():
        layers = [layer for layer in message.layer if kept_in(layer, phase)]
        norms = [(index, layer.name) for index, layer in enumerate(layers) if layer.type == "BatchNorm"]
        found.update(name for index, name in norms if scale_behind(layers, index))
    return found


def _kernels(message: proto.NetParameter, layer: proto.LayerParameter) -> str:
    """Returns the kernels by which Intel's Caffe computes a BatchNorm: the engine of the layer or the net, in capitals
    and without the sub-engines after a colon."""
    param = layer.batch_norm_param
    if param.engine != param.DEFAULT:
        return param.Engine.Name(param.engine)
    engine = os.fsdecode(layer.engine or message.engine)  # a string that is no UTF-8 comes as bytes
    return engine.partition(":")[0].upper()
