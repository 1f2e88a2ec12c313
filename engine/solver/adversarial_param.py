"""The fields of `adversarial`: checks them, and makes the discriminator's solver of them."""

from __future__ import annotations

from collections.abc import Iterator

from engine import proto
from engine.errors import Complaint
from engine.solver.resolve import LENGTHS, in_epochs, is_given
from engine.solver.update import find_rule

# The fields that discriminator_solver may have: those of an update.
UPDATE_FIELDS = frozenset(
    "type base_lr lr_policy gamma power stepsize stepvalue momentum momentum2 rms_decay delta weight_decay "
    "regularization_type decoupled_weight_decay clip_gradients clamp_weights_lower clamp_weights_upper "
    "warmup_iter warmup_start_lr warmup_policy policy_after_warmup min_lr max_iter".split()
)
# Fields that only a solver of one net may have: what they ask for is not counted or saved for two nets.
ONE_NET_ONLY = ("batch_growth", "ema", "memory_budget_mb")


def complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields what is wrong with a solver's `adversarial`, as far as the solver alone can tell."""
    if not param.HasField("adversarial"):
        return
    adversarial = param.adversarial
    for field, what in (("discriminator", "the file of its net"), ("score", "the blob of its scores")):
        if not getattr(adversarial, field):
            yield f"adversarial.{field}", f"adversarial.{field} is missing; give {what}"
    if not adversarial.meet:
        yield "adversarial.meet", "adversarial has no meet; give meet { input: ... real: ... made: ... }"
    for meet in adversarial.meet:
        missing = [name for name in ("input", "real", "made") if not getattr(meet, name)]
        if missing:
            yield (
                "adversarial.meet",
                f"adversarial.meet has no {missing[0]}; it needs input, real and made",
            )
    if adversarial.meet and all(meet.real == meet.made for meet in adversarial.meet):
        yield "adversarial.meet", "adversarial.meet: real and made are the same blob, so that there is nothing to tell"
    if adversarial.gradient_penalty:
        yield (
            "adversarial.gradient_penalty",
            "the gradient penalty needs second derivatives, which no layer has here; bound the weights instead: "
            "discriminator_solver { clamp_weights_lower: -0.01 clamp_weights_upper: 0.01 }",
        )
    steps = adversarial.discriminator_steps, adversarial.generator_steps
    for field, number in zip(("discriminator_steps", "generator_steps"), steps, strict=True):
        if number < 1:
            yield f"adversarial.{field}", f"adversarial.{field}: expected 1 or more, got {number}"
    if min(steps) > 1:
        yield (
            "adversarial.generator_steps",
            f"adversarial: {steps[0]} discriminator_steps and {steps[1]} generator_steps; one of them must be 1",
        )
    if adversarial.loss_weight <= 0:
        yield (
            "adversarial.loss_weight",
            f"adversarial.loss_weight: expected more than 0, got {adversarial.loss_weight:g}",
        )
    yield from _discriminator_complaints(param)
    yield from _one_net_complaints(param)


def _discriminator_complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks discriminator_solver, and that it bounds the weights for WASSERSTEIN, whose loss has no minimum without
    bounds."""
    field, adversarial = "adversarial.discriminator_solver", param.adversarial
    given = {each.name for each, _ in adversarial.discriminator_solver.ListFields()}
    for name in sorted(given - UPDATE_FIELDS):
        yield f"{field}.{name}", f"discriminator_solver has {name}; expected fields of its updates, such as base_lr"
    if adversarial.loss == proto.AdversarialLossParameter.WASSERSTEIN:
        merged = of_discriminator(param)
        if not (merged.HasField("clamp_weights_lower") and merged.HasField("clamp_weights_upper")):
            yield (
                field,
                "loss WASSERSTEIN needs a discriminator with bounded weights: discriminator_solver { "
                "clamp_weights_lower: -0.01 clamp_weights_upper: 0.01 }",
            )


def _one_net_complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields the fields that do not go with a second net."""
    for name in ONE_NET_ONLY:
        if param.HasField(name) and getattr(param, name):
            yield name, f"{name} does not go with adversarial; take it out"
    if param.iter_size > 1:
        yield "iter_size", f"adversarial trains on one batch at a time: expected iter_size 1, got {param.iter_size}"
    if param.comm_param.shard_updates:
        yield "comm_param.shard_updates", "shard_updates does not go with adversarial; take it out"
    if param.comm_param.mode != proto.CommParameter.SYNC:
        mode = proto.CommParameter.Mode.Name(param.comm_param.mode)
        yield "comm_param.mode", f"comm_param.mode: {mode} does not go with adversarial; take it out"
    if param.HasField("lr_scaling") and param.adversarial.discriminator_solver.HasField("base_lr"):
        yield (
            "lr_scaling",
            "lr_scaling is for the base_lr of both nets, and discriminator_solver has one of its own; take one out",
        )
    if "plateau" in (param.lr_policy, param.adversarial.discriminator_solver.lr_policy):
        yield "lr_policy", "lr_policy plateau follows one loss, and adversarial has two that pull; choose another"
    if param.adversarial.discriminator_steps > 1 and in_epochs(param):
        field = in_epochs(param)[0]
        yield field, f"{field}: with more than one of discriminator_steps, count in iterations"


def describe(param: proto.SolverParameter) -> str:
    """Returns what a solver with two nets does, in one line."""
    adversarial, other = param.adversarial, of_discriminator(param)
    learns, makes = adversarial.discriminator_steps, adversarial.generator_steps
    return (
        f"adversarial, loss {proto.AdversarialLossParameter.Loss.Name(adversarial.loss)}: "
        f"{learns} update{'s' * (learns > 1)} of the discriminator ({other.type}, base_lr {other.base_lr:g}), then "
        f"{makes} of the generator ({param.type}, base_lr {param.base_lr:g})"
    )


def of_discriminator(param: proto.SolverParameter) -> proto.SolverParameter:
    """Returns the solver of the discriminator's updates: the fields of `param`, overridden by discriminator_solver.

    It counts the discriminator's updates, so max_iter is a number of these. An update is the mean of two passes
    (iter_size 2), and clip_gradients limits their sum, so its limit is twice that of the text."""
    result, other = type(param)(), param.adversarial.discriminator_solver
    result.CopyFrom(param)
    for field, _ in other.ListFields():  # or MergeFrom() would append lists to the solver's own
        result.ClearField(field.name)
    for epochs, iterations in LENGTHS.items():  # two fields for one thing: iterations replace the solver's epochs
        if is_given(other, iterations):
            result.ClearField(epochs)
    if param.HasField("max_iter") and not other.HasField("max_iter"):
        result.max_iter = updates_of_discriminator(param, param.max_iter)
    result.MergeFrom(other)
    rule = find_rule(result)
    if rule and "momentum" not in rule.constants:  # the solver's momentum is meant for its own type
        result.ClearField("momentum_policy")
        if not other.HasField("momentum"):
            result.ClearField("momentum")
    result.iter_size = 2
    if result.clip_gradients > 0:
        result.clip_gradients *= 2
    result.ClearField("adversarial")
    return result


def updates_of_discriminator(param: proto.SolverParameter, iteration: int) -> int:
    """Returns how many updates of the discriminator belong to the first `iteration` iterations of the generator.

    The discriminator's turn comes before the generator's, so a begun round counts as a whole one."""
    steps = param.adversarial
    return -(-iteration // max(1, steps.generator_steps)) * steps.discriminator_steps
