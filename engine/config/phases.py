"""Which layers of a net its phases keep, as far as that is known before a net is built."""

from __future__ import annotations

from engine import proto

PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}


def kept_in(layer: proto.LayerParameter, phase: int) -> bool:
    """Whether a layer's rules keep it in the phase, at some level and with some stages."""
    if layer.include:
        return any(not rule.HasField("phase") or rule.phase == phase for rule in layer.include)
    return not any(
        rule.phase == phase and len(rule.ListFields()) == 1 for rule in layer.exclude if rule.HasField("phase")
    )
