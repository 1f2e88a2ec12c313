"""Checks a solver file before a run begins: all errors in one go, each with its line in the file."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.comm.settings import comm_settings
from engine.config.suggestions import suggestion
from engine.errors import ConfigError, ConfigErrors, EngineError, NumericalError
from engine.files import check_writable, reason
from engine.report.average_precision import AP_VERSIONS
from engine.solver.schedules import LearningRate
from engine.solver.update import constants_of_others, find_rule, solver_types, unknown_type

if TYPE_CHECKING:
    from engine import proto

REGULARIZATIONS = ("L1", "L2")
EVAL_TYPES = ("classification", "detection")  # outputs are averaged, those of detectors judged in either case
LARC_POLICIES = ("scale", "clip")
Complaint = tuple[str, str]  # field, what is wrong with it

# Fields that must lie in [least, below). The constants of an update rule are declared with it.
RANGES: dict[str, tuple[float, float]] = {
    "max_iter": (0, float("inf")),
    "iter_size": (1, float("inf")),
    "average_loss": (1, float("inf")),
    "display": (0, float("inf")),
    "snapshot": (0, float("inf")),
    "test_interval": (0, float("inf")),
    "warmup_iter": (0, float("inf")),
    "warmup_start_lr": (0, float("inf")),
    "base_lr": (0, float("inf")),
    "stepsize": (1, float("inf")),
    "lr_iter": (1, float("inf")),
    "weight_decay": (0, float("inf")),
    "memory_budget_mb": (0, float("inf")),
    "ema": (0, 1),
}

# What would change the result and is not built: better refused than ignored.
UNSUPPORTED = ("disabled_update", "snapshot_diff")


def validate(param: proto.SolverParameter, where: str | Callable[[str], str] | None = None) -> None:
    """Checks a solver by itself, without its nets and folders.

    where: the file, or a function from a field's name to its "file:line:column". Raises ConfigErrors.
    """
    place = where if callable(where) else lambda field: where
    errors = [ConfigError(message, place(field)) for field, message in _complaints(param)]
    try:
        rate = LearningRate(param, place("lr_policy"))
        if not errors:  # of the fields that it reads
            rate.check()
    except ConfigError as error:
        errors.append(error)
    except NumericalError as error:
        errors.append(ConfigError(str(error)))
    try:
        comm_settings(param.comm_param, environ={})
    except ConfigError as error:
        errors.append(ConfigError(str(error), place("comm_param")))
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


def check_snapshots(param: proto.SolverParameter, path: str, where: str | None = None) -> None:
    """Raises ConfigError now, not at the first snapshot, if there is no folder for it, or none that can be written to,
    or if it is to be HDF5 and h5py is not there.
    `path` is the solver's file, beside which snapshots go if no prefix is given."""
    if not (param.snapshot or param.snapshot_after_train):
        return
    prefix = param.snapshot_prefix or path
    try:
        folder = Path(prefix) if prefix.endswith("/") or Path(prefix).is_dir() else Path(prefix).parent
        found = folder.is_dir()
    except (OSError, ValueError) as error:  # too long a name
        raise ConfigError(f"snapshot_prefix '{prefix}': {reason(error)}", where) from None
    if "%" in str(folder):  # %# and %* are filled in by each rank
        return
    if not found:
        raise ConfigError(
            f"snapshot_prefix '{prefix}': there is no folder {folder}; create it, or --set snapshot_prefix=PATH", where
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"snapshot_prefix '{prefix}': folder {folder} cannot be written to", where)
    if param.snapshot_format == param.HDF5 and importlib.util.find_spec("h5py") is None:
        raise ConfigError(
            "snapshot_format HDF5 needs h5py: pip install engine[hdf5], or --set snapshot_format=BINARYPROTO", where
        )
    try:
        check_writable(f"{prefix}_iter_{param.max_iter}.solverstate.h5")
    except EngineError as error:
        raise ConfigError(f"snapshot_prefix: {error}", where) from None


def notes(param: proto.SolverParameter) -> Iterator[str]:
    """What the file asks for and a run passes over, without a change of the result."""
    if param.HasField("solver_mode") and param.solver_mode == param.GPU:
        yield "solver_mode: GPU is ignored, this engine computes on the processor"
    for field in ("engine", "device_id", "layer_wise_reduce", "debug_info"):
        if param.HasField(field):
            yield f"{field} is ignored"
    for field in constants_of_others(param):
        yield f"{field} is ignored: solver type {param.type} does not read it"
    if param.warmup_iter > param.max_iter > 0:
        yield f"warmup_iter {param.warmup_iter} is longer than the run, max_iter {param.max_iter}"


def _complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    yield from _ranges(param, RANGES)
    if not param.HasField("max_iter"):
        yield "max_iter", "max_iter is missing; give it here or with --set max_iter=N"
    yield from _rule(param)
    if param.regularization_type not in REGULARIZATIONS:
        known = suggestion(param.regularization_type, REGULARIZATIONS)
        yield "regularization_type", f"unknown regularization_type '{param.regularization_type}'{known}"
    yield from _local_rates(param)
    yield from _lists(param)
    for field in UNSUPPORTED:
        if getattr(param, field):
            yield field, f"{field} is not supported yet; take it out"
    if param.eval_type not in EVAL_TYPES:
        yield "eval_type", f"unknown eval_type '{param.eval_type}'{suggestion(param.eval_type, EVAL_TYPES)}"
    if param.ap_version not in AP_VERSIONS:
        yield "ap_version", f"unknown ap_version '{param.ap_version}'{suggestion(param.ap_version, AP_VERSIONS)}"


def _ranges(param: proto.SolverParameter, ranges: Mapping[str, tuple[float, float]]) -> Iterator[Complaint]:
    for field, (least, below) in ranges.items():
        value = getattr(param, field)
        if param.HasField(field) and not least <= value < below:
            wanted = f"{least:g} or more" if below == float("inf") else f"{least:g} or more and less than {below:g}"
            yield field, f"{field}: expected {wanted}, got {value:g}"


def _rule(param: proto.SolverParameter) -> Iterator[Complaint]:
    """The update rule: its type, and the constants that it reads."""
    if wrong := unknown_type(param.type):
        yield "type", wrong
        return
    rule = find_rule(param)
    if param.decoupled_weight_decay and (rule is None or param.regularization_type != "L2"):
        types = " or ".join(f'"{name}"' for name in solver_types(decoupled_weight_decay=True))
        got = f'type "{param.type}", regularization_type "{param.regularization_type}"'
        yield "decoupled_weight_decay", f"decoupled_weight_decay (AdamW) goes with type {types} and L2, got {got}"
    if rule is None:
        return
    yield from _ranges(param, rule.constants)
    if param.momentum and "momentum" not in rule.constants:  # Caffe refuses it, too
        yield "momentum", f"type {param.type} has no momentum; leave it out"


def _local_rates(param: proto.SolverParameter) -> Iterator[Complaint]:
    """LARS."""
    if param.local_lr_auto and param.local_gw_ratio <= 0:
        yield "local_gw_ratio", f"local_gw_ratio: expected more than 0, got {param.local_gw_ratio:g}"
    if param.larc_policy not in LARC_POLICIES:
        known = suggestion(param.larc_policy, LARC_POLICIES)
        yield "larc_policy", f"unknown larc_policy '{param.larc_policy}'{known}"
    elif param.HasField("larc_policy") and not param.local_lr_auto:
        yield "larc_policy", "larc_policy is given, but not local_lr_auto: true"


def _lists(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Repeated fields: counts, signs, order."""
    if param.test_iter and not param.test_interval:
        yield "test_iter", "test_iter is given, but no test_interval"
    for count in param.test_iter:
        if count <= 0:
            yield "test_iter", f"test_iter: expected 1 or more, got {count}"
    for field in ("stepvalue", "stageiter"):
        values = list(getattr(param, field))
        if values != sorted(values):
            yield field, f"{field} must ascend, got {', '.join(map(str, values))}"
