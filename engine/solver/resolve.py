"""Resolves what a solver leaves open until the run: numbers in epochs, and a rate for a base batch (lr_scaling).

Once the global batch and the size of the data set are known, epochs become iterations and the rate that of the batch.
So one file is right for any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.errors import ConfigError, WeightsError
from engine.solver.calendar import Calendar

if TYPE_CHECKING:
    from engine import proto

    Message = proto.SolverParameter | proto.ScheduleParameter | proto.BatchGrowthParameter | proto.CommParameter

# Fields that count in epochs -> the fields that count the same thing in iterations.
LENGTHS = {
    "max_epoch": "max_iter",
    "warmup_epoch": "warmup_iter",
    "lr_epoch": "lr_iter",
    "stepsize_epoch": "stepsize",
    "stepvalue_epoch": "stepvalue",
    "stage_epoch": "stageiter",
    "plateau_epoch": "plateau_winsize",
    "cycle_epoch": "cycle_iter",
}
# The same for what is due again and again. These stay in epochs: see Calendar.is_due().
INTERVALS = {"test_epoch": "test_interval", "snapshot_epoch": "snapshot", "display_epoch": "display"}
# Messages in a solver that have some of these fields.
SCHEDULES = ("weight_decay_schedule", "batch_growth")
LARGEST = 2**31 - 1  # iterations


def twins(param: proto.SolverParameter) -> Iterator[tuple[Message, str, str, str]]:
    """Yields (message, prefix of its fields, field in epochs, field in iterations) for all such pairs of fields."""
    for name in ("", *SCHEDULES):
        message = getattr(param, name) if name else param
        for epochs, iterations in {**LENGTHS, **INTERVALS}.items():
            if epochs in message.DESCRIPTOR.fields_by_name:
                yield message, f"{name}." if name else "", epochs, iterations


def in_epochs(param: proto.SolverParameter) -> list[str]:
    """Returns the fields of a solver that are given in epochs, as dotted paths."""
    return [prefix + epochs for message, prefix, epochs, _ in twins(param) if is_given(message, epochs)]


def is_given(message: Message, field: str) -> bool:
    """Tells whether a text gives a field, or entries of a repeated one."""
    value = getattr(message, field)
    return len(value) > 0 if hasattr(value, "__len__") else message.HasField(field)


def resolve(
    param: proto.SolverParameter,
    batch: int,
    size: int,
    place: Callable[[str], str | None],
    rows: int = 0,
) -> tuple[proto.SolverParameter, Calendar]:
    """Returns the solver in iterations, with the rate of its global batch, and the calendar of the run. The solver is
    `param` itself if there is nothing to resolve.

    Args:
        batch: samples in the first iteration, over all ranks.
        size: rows of the data set, 0 if it is not known.
        place: returns a field's place in the file.
        rows: rows of a rank's batch in a net without a data layer, where a batch counts as one sample; 0 with one.

    Raises ConfigError if a field needs the size of the data set, or a data layer, and there is none.
    """
    size = param.epoch_size or size
    counted = in_epochs(param)
    if counted and not size:
        raise ConfigError(
            f"{counted[0]} needs the size of the data set, which the train net's data does not tell; give epoch_size "
            "(samples), or count in iterations",
            place(counted[0]),
        )
    growth = param.batch_growth
    calendar = Calendar(batch, size, rows=rows or 1)
    if not (counted or param.HasField("lr_scaling") or param.HasField("batch_growth")):
        return param, calendar
    result = type(param)()
    result.CopyFrom(param)
    if param.HasField("batch_growth"):
        steps = list(growth.stepvalue)
        for epochs in sorted(growth.stepvalue_epoch):
            calendar = replace(calendar, steps=tuple(steps), factor=growth.factor)
            steps.append(_iterations(calendar, "batch_growth.stepvalue_epoch", place, epochs))
        calendar = replace(calendar, steps=tuple(steps), factor=growth.factor)
        result.batch_growth.ClearField("stepvalue_epoch")
        result.batch_growth.stepvalue[:] = steps
    for message, prefix, epochs, iterations in twins(result):
        if epochs in LENGTHS and is_given(message, epochs):
            _count(message, epochs, iterations, partial(_iterations, calendar, prefix + epochs, place))
    if param.HasField("lr_scaling"):
        if rows:
            raise ConfigError("lr_scaling needs the batch_size of a data layer; the net has none", place("lr_scaling"))
        result.base_lr = scaled(param, batch)
        if not result.HasField("warmup_start_lr"):
            # Goyal et al. 2017, section 2.2: the warm-up starts at the rate of the base batch. With a smaller batch it
            # starts at that batch's own rate, so that it does not fall.
            result.warmup_start_lr = min(param.base_lr, result.base_lr)
    return result, calendar


def refuse_other_epochs(param: proto.SolverParameter, calendar: Calendar, before: int | None, path: str) -> None:
    """Raises WeightsError if the solver counts in epochs, and these were another number of iterations in the run of the
    snapshot `path`, because its global batch was another one, `before`."""
    if before not in (None, calendar.batch) and (counted := in_epochs(param)):
        raise WeightsError(
            f"{path}: was trained in global batches of {before * calendar.rows}, and this run's are of "
            f"{calendar.batch * calendar.rows}: {counted[0]} would be another number of iterations; --resume auto "
            "holds the batch"
        )


def scaled(param: proto.SolverParameter, batch: int, capped: bool = True) -> float:
    """Returns base_lr for a global batch by lr_scaling. capped: at most its cap (Codreanu et al. 2017, arXiv
    1711.04291, section V.C)."""
    scaling = param.lr_scaling
    rate = param.base_lr * scale_of(scaling, batch)
    return min(rate, scaling.cap) if capped and scaling.HasField("cap") else rate


def scale_of(scaling: proto.LrScalingParameter, batch: int) -> float:
    """Returns the factor by which the rule multiplies base_lr for a global batch.

    LINEAR: Goyal et al. 2017 (arXiv 1706.02677), section 2.1. SQRT: Krizhevsky 2014 (arXiv 1404.5997).
    """
    factor = batch / scaling.base_batch
    return math.sqrt(factor) if scaling.rule == scaling.SQRT else factor


def rate_share(param: proto.SolverParameter, batch: int, full: int) -> float:
    """Returns the fraction of a rate, meant for a global batch of `full`, that a smaller batch takes: by lr_scaling, or
    else linearly. param: the solver as its file has it."""
    rate = scaled(param, full) if param.HasField("lr_scaling") else 0
    return scaled(param, batch) / rate if rate else batch / full


def shorten(param: proto.SolverParameter, divisor: int) -> None:
    """Divides by `divisor` the length of a run and every other field that counts iterations or epochs, to try a recipe.
    Iterations are rounded; what was not 0 stays at least 1."""
    counted: list[tuple[Message, str]] = [(param.comm_param, "sync_start")]
    for each in (param, param.adversarial.discriminator_solver):
        for message, _, epochs, iterations in twins(each):
            counted += [(message, epochs), (message, iterations)]
    for message, field in counted:
        if not is_given(message, field):
            continue
        value = getattr(message, field)
        if hasattr(value, "__len__"):
            value[:] = [divided(each, divisor) for each in value]
        else:
            setattr(message, field, divided(value, divisor))


def divided(value: float, divisor: int) -> float:
    """Returns value / divisor. An integer is rounded; if it was not 0 it stays at least 1."""
    if isinstance(value, int):
        return max(1, int(value / divisor + 0.5)) if value > 0 else value
    return value / divisor


def _count(message: Message, epochs: str, iterations: str, count: Callable[[float], int]) -> None:
    """Sets the field in iterations from the field in epochs, and clears that."""
    value = getattr(message, epochs)
    if hasattr(value, "__len__"):
        getattr(message, iterations)[:] = [count(each) for each in value]
    else:
        setattr(message, iterations, count(value))
    message.ClearField(epochs)


def _iterations(calendar: Calendar, field: str, place: Callable[[str], str | None], epochs: float) -> int:
    count = calendar.iterations(epochs)
    if count > LARGEST:
        raise ConfigError(f"{field}: {epochs:g} epochs are {count} iterations; at most {LARGEST} can be", place(field))
    return count
