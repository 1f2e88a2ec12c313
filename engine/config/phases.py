"""Which layers of a net its phases keep, as far as that is known before a net is built."""

from __future__ import annotations

from collections.abc import Iterable

from engine import proto
from engine.config.suggestions import suggestion

PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}


def kept_in(layer: proto.LayerParameter, phase: int) -> bool:
    """Whether a layer's rules keep it in the phase, at some level and with some stages."""
    if layer.include:
        return any(not rule.HasField("phase") or rule.phase == phase for rule in layer.include)
    return not any(
        rule.phase == phase and len(rule.ListFields()) == 1 for rule in layer.exclude if rule.HasField("phase")
    )


def unknown_stages(net: proto.NetParameter, stages: Iterable[str]) -> list[str]:
    """Returns a line on each stage that no rule of the net names; it is misspelt, or of another net."""
    rules = [rule for layer in net.layer for rule in (*layer.include, *layer.exclude)]
    known = {stage for rule in rules for stage in (*rule.stage, *rule.not_stage)}
    return [
        f"no rule of the net names stage '{stage}'{suggestion(stage, known)}"
        for stage in dict.fromkeys(stages)
        if stage not in known
    ]
