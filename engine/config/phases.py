"""Which layers of a net a phase, a level and stages keep: by the include and exclude rules of the layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine import proto
from engine.config.suggestions import suggestion
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.config.config import NetConfig

PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}
PHASE_NAMES = {number: name for name, number in PHASES.items()}


def kept(message: proto.LayerParameter, phase: int, level: int, stages: set[str], where: str) -> bool:
    """Whether a layer's include and exclude rules keep it. Raises ConfigError for a layer that has both."""
    if message.include and message.exclude:
        raise ConfigError(f"layer '{message.name}': has both include and exclude rules; use one of them", where)

    def matches(rule: proto.NetStateRule) -> bool:
        return not (
            (rule.HasField("phase") and rule.phase != phase)
            or (rule.HasField("min_level") and level < rule.min_level)
            or (rule.HasField("max_level") and level > rule.max_level)
            or not set(rule.stage) <= stages
            or set(rule.not_stage) & stages
        )

    if message.include:
        return any(matches(rule) for rule in message.include)
    return not any(matches(rule) for rule in message.exclude)


def kept_layers(config: NetConfig, phase: int | None = None) -> list[int]:
    """The indices of the layers that the state keeps which the net itself names, or another phase with its level and
    stages. Raises ConfigError."""
    state, layers = config.message.state, config.message.layer
    phase, stages = state.phase if phase is None else phase, set(state.stage)
    return [i for i in range(len(layers)) if kept(layers[i], phase, state.level, stages, config.where(i))]


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
