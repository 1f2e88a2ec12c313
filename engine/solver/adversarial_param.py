"""The fields of `adversarial`: what is wrong with them, and what solver they make for the discriminator."""

from __future__ import annotations

from collections.abc import Iterator

from engine import proto
from engine.errors import Complaint
from engine.solver.resolve import LENGTHS, in_epochs, is_given
from engine.solver.update import find_rule

# What discriminator_solver may have: the fields of an update.
OF_UPDATES = frozenset(
    "type base_lr lr_policy gamma power stepsize stepvalue momentum momentum2 rms_decay delta weight_decay "
    "regularization_type decoupled_weight_decay clip_gradients clamp_weights_lower clamp_weights_upper "
    "warmup_iter warmup_start_lr warmup_policy policy_after_warmup min_lr max_iter".split()
)
# What a solver of one net may have, and these do not: none of it is counted or saved for two.
OF_ONE_NET = ("batch_growth", "ema", "memory_budget_mb")


def complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """What is wrong with a solver's `adversarial` by itself."""
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
    yield from _of_the_other(param)
    yield from _of_one_net(param)


def _of_the_other(param: proto.SolverParameter) -> Iterator[Complaint]:
    """discriminator_solver, and the bounds without which WASSERSTEIN has no least loss."""
    field, adversarial = "adversarial.discriminator_solver", param.adversarial
    given = {each.name for each, _ in adversarial.discriminator_solver.ListFields()}
    for name in sorted(given - OF_UPDATES):
        yield f"{field}.{name}", f"discriminator_solver has {name}; expected fields of its updates, such as base_lr"
    if adversarial.loss == proto.AdversarialLossParameter.WASSERSTEIN:
        merged = of_discriminator(param)
        if not (merged.HasField("clamp_weights_lower") and merged.HasField("clamp_weights_upper")):
            yield (
                field,
                "loss WASSERSTEIN needs a discriminator with bounded weights: discriminator_solver { "
                "clamp_weights_lower: -0.01 clamp_weights_upper: 0.01 }",
            )


def _of_one_net(param: proto.SolverParameter) -> Iterator[Complaint]:
    for name in OF_ONE_NET:
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
    """The solver of the discriminator's updates: the solver's own fields, and what discriminator_solver has instead.
    It counts its own updates, so max_iter is theirs; each is the mean of two passes, whose sum has twice the limit of
    clip_gradients."""
    result, other = type(param)(), param.adversarial.discriminator_solver
    result.CopyFrom(param)
    for field, _ in other.ListFields():  # a list takes the place of the other's
        result.ClearField(field.name)
    for epochs, iterations in LENGTHS.items():  # which say the same thing
        if is_given(other, iterations):
            result.ClearField(epochs)
    if param.HasField("max_iter") and not other.HasField("max_iter"):
        result.max_iter = updates_of_discriminator(param, param.max_iter)
    result.MergeFrom(other)
    rule = find_rule(result)
    if rule and "momentum" not in rule.constants:  # the solver's own is for a type that has one
        result.ClearField("momentum_policy")
        if not other.HasField("momentum"):
            result.ClearField("momentum")
    result.iter_size = 2
    if result.clip_gradients > 0:
        result.clip_gradients *= 2
    result.ClearField("adversarial")
    return result


def updates_of_discriminator(param: proto.SolverParameter, iteration: int) -> int:
    """In so many iterations of the generator: the discriminator's turn comes first."""
    steps = param.adversarial
    return -(-iteration // max(1, steps.generator_steps)) * steps.discriminator_steps
