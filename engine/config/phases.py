"""Tells by their include and exclude rules which layers of a net a state (phase, level and stages) keeps."""

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


def kept(message: proto.LayerParameter, state: proto.NetState, where: str) -> bool:
    """Returns whether a layer's include and exclude rules keep it in a state.

    where: the place of the layer. Raises ConfigError for a layer that has both kinds of rules."""
    stages = set(state.stage)
    if message.include and message.exclude:
        raise ConfigError(f"layer '{message.name}': has both include and exclude rules; use one of them", where)

    def matches(rule: proto.NetStateRule) -> bool:
        return not (
            (rule.HasField("phase") and rule.phase != state.phase)
            or (rule.HasField("min_level") and state.level < rule.min_level)
            or (rule.HasField("max_level") and state.level > rule.max_level)
            or not set(rule.stage) <= stages
            or set(rule.not_stage) & stages
        )

    if message.include:
        return any(matches(rule) for rule in message.include)
    return not any(matches(rule) for rule in message.exclude)


def kept_layers(config: NetConfig, phase: int | None = None) -> list[int]:
    """Returns the indices of the layers that a net keeps in its own state, or in `phase` with its own level and stages.

    Raises ConfigError for a layer that has both kinds of rules."""
    state, layers = state_in(config, phase), config.message.layer
    return [i for i in range(len(layers)) if kept(layers[i], state, config.where(i))]


def state_in(config: NetConfig, phase: int | None = None, stages: Iterable[str] | None = None) -> proto.NetState:
    """Returns the state that a net names, with another phase or other stages if these are given."""
    own = config.message.state
    return proto.NetState(
        phase=own.phase if phase is None else phase, level=own.level, stage=own.stage if stages is None else stages
    )


def kept_in(layer: proto.LayerParameter, phase: int) -> bool:
    """Returns whether there are a level and stages with which a layer's rules keep it in the phase."""
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
