"""Checks a solver file before a run begins, and raises all its errors together, each with its line in the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from engine import proto
from engine.comm.settings import comm_settings
from engine.config.suggestions import suggestion
from engine.errors import Complaint, ConfigError, EngineError, NumericalError, together
from engine.files import check_writable, reason
from engine.report.average_precision import AP_VERSIONS
from engine.solver import adversarial_param, elastic_param, goals, modes, tuner
from engine.solver.policies import WARMUPS, notes_of_policy
from engine.solver.resolve import SCHEDULES, in_epochs, is_given, resolve, twins
from engine.solver.schedules import (
    MOMENTUM_POLICIES,
    WEIGHT_DECAY_POLICIES,
    LearningRate,
    WeightDecay,
)
from engine.solver.update import constants_of_others, find_rule, has_local_rates, solver_types, unknown_type

REGULARIZATIONS = ("L1", "L2")
EVAL_TYPES = ("classification", "detection")  # both do the same: outputs are averaged, and those of detectors scored
LARC_POLICIES = ("scale", "clip")
LEAST_FLOAT = 2.0**-126  # the least number that is not zero, as denormals count as zero

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
    "epoch_size": (1, float("inf")),
    "global_batch": (1, float("inf")),
    "min_lr": (0, float("inf")),
    "cycle_iter": (1, float("inf")),
    "cycle_mult": (1, float("inf")),
    "memory_budget_mb": (0, float("inf")),
    "ema": (0, 1),
    "snapshot_keep": (0, float("inf")),
}

# Of the fields that count in epochs, those that may be 0.
MAY_BE_ZERO = ("max_epoch", "warmup_epoch", "test_epoch", "snapshot_epoch", "display_epoch")
# Fields that would change the result and are not supported: they are refused, not ignored.
UNSUPPORTED = ("disabled_update", "snapshot_diff")


def validate(param: proto.SolverParameter, where: str | Callable[[str], str] | None = None) -> None:
    """Checks a solver by itself, without its nets and folders.

    where: the file, or a function from a field's name to its "file:line:column". Raises ConfigErrors.
    """
    place = where if callable(where) else lambda field: where
    errors = [ConfigError(message, place(field)) for field, message in _complaints(param)]
    if not errors:  # else schedules might read a field that is wrong
        try:
            # The global batch and the size of the data set are not known yet. Schedules can be checked with any; with
            # these an epoch is one iteration, and no field can be too large in iterations.
            unsized = type(param)()
            unsized.CopyFrom(param)
            unsized.ClearField("epoch_size")
            in_iterations, _ = resolve(unsized, 256, 256, place)
            check_schedules(in_iterations, place, values=not in_epochs(param))
        except ConfigError as error:
            errors += error.errors
    elif not in_epochs(param):
        errors += _schedule_errors(param, place, values=False)
    comm = proto.CommParameter()
    comm.CopyFrom(param.comm_param)
    comm.ClearField("affinity")  # must fit the number of servers, which the job's environment may set
    try:
        comm_settings(comm, environ={})
    except ConfigError as error:
        errors.append(ConfigError(str(error), place("comm_param")))
    if errors:
        raise together(errors)
    if param.HasField("adversarial"):
        other = adversarial_param.of_discriminator(param)
        validate(other, lambda field: place(f"adversarial.discriminator_solver.{field}") or "")


def check_schedules(param: proto.SolverParameter, place: Callable[[str], str | None], values: bool = True) -> None:
    """Checks the rate and weight decay of a solver that counts in iterations. values: also checks that they are
    numbers, 0 or more, throughout the run. Raises ConfigErrors."""
    errors = _schedule_errors(param, place, values)
    if errors:
        raise together(errors)


def _schedule_errors(
    param: proto.SolverParameter, place: Callable[[str], str | None], values: bool
) -> list[ConfigError]:
    errors = []
    for make, field in ((LearningRate, "lr_policy"), (WeightDecay, "weight_decay_schedule")):
        try:
            schedule = make(param, place(field))
            if values:
                schedule.check()
        except ConfigError as error:
            errors.append(error)
        except NumericalError as error:
            errors.append(ConfigError(str(error)))
    return errors


def tests(param: proto.SolverParameter) -> bool:
    """Tells whether a run of this solver tests."""
    return bool(param.test_interval or param.test_epoch or param.test_iter)


# The fields that ask for tests, or that depend on them.
TEST_FIELDS = (
    *("test_iter", "test_interval", "test_epoch", "test_state", "test_net", "test_net_param"),
    *("snapshot_best", "snapshot_best_is", "early_stopping"),
)


def leave_tests_out(param: proto.SolverParameter) -> None:
    """Clears all fields of tests, for runs that are to train alone."""
    for field in TEST_FIELDS:
        param.ClearField(field)


def check_tests(param: proto.SolverParameter, reads: Sequence[bool], place: Callable[[str], str]) -> None:
    """Raises ConfigError for tests without an end. reads: for each test net, whether it reads a data set."""
    if tests(param) and not param.test_iter and not all(reads):
        field = "test_epoch" if param.test_epoch else "test_interval"
        raise ConfigError(
            f"{field} without test_iter tests the whole set, once; a test net reads no set: give test_iter",
            place(field),
        )


def require_loss(net: str, has_loss: bool, where: str) -> None:
    """Raises ConfigError for a train net without a loss. where: its file."""
    if not has_loss:
        raise ConfigError(
            f"net '{net}' has no loss in phase TRAIN, so that nothing is learned; end it with a layer such as "
            "SoftmaxWithLoss, or give a top a loss_weight",
            where,
        )


def saves(param: proto.SolverParameter) -> bool:
    """Tells whether a run of this solver takes snapshots by itself."""
    return saves_on_the_way(param) or param.snapshot_after_train


def saves_on_the_way(param: proto.SolverParameter) -> bool:
    """Tells whether it takes some before its end."""
    return param.snapshot > 0 or param.snapshot_epoch > 0 or bool(param.snapshot_best)


def check_snapshots(param: proto.SolverParameter, path: str, where: str | None = None) -> None:
    """Raises ConfigError if there is no folder for snapshots, or if it cannot be written to, before the first one
    fails.

    path: the solver's file; snapshots are written beside it if no prefix is given. where: the place of the prefix."""
    if not saves(param):
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
            f"snapshot_prefix '{prefix}': there is no folder {folder}; create it, or give another snapshot_prefix in "
            "the solver's file (engine train: --set snapshot_prefix=PATH)",
            where,
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"snapshot_prefix '{prefix}': folder {folder} cannot be written to", where)
    try:
        check_writable(f"{prefix}_iter_{param.max_iter}.solverstate.h5")
    except EngineError as error:
        raise ConfigError(f"snapshot_prefix: {error}", where) from None


CORRECTED = ("SGD", "Nesterov")  # solver types whose history holds the rate, so that momentum_correction applies
# Fields that are read only with another one: (its name, whether it is on).
READ_WITH: dict[tuple[str, ...], tuple[str, Callable[[proto.SolverParameter], bool]]] = {
    ("warmup_start_lr", "warmup_policy", "policy_after_warmup"): (
        "warmup_iter",
        lambda param: param.warmup_iter > 0 or param.warmup_epoch > 0,
    ),
    ("max_momentum",): ('momentum_policy: "opt" or "poly"', lambda param: param.momentum_policy != "fixed"),
    ("momentum_power",): ('momentum_policy: "poly"', lambda param: param.momentum_policy == "poly"),
    ("max_weight_decay", "weight_decay_power"): (
        'weight_decay_policy: "poly"',
        lambda param: param.weight_decay_policy == "poly",
    ),
    ("larc_eta",): ("larc: true", lambda param: param.larc),
    ("local_gw_ratio",): ("local_lr_auto: true", lambda param: param.local_lr_auto),
    ("local_lr_decayed_only",): ("local_lr_auto: true or larc: true", has_local_rates),
}


def notes(param: proto.SolverParameter) -> Iterator[str]:
    """Yields what the file asks for and a run ignores, and what may surprise those who come from other Caffes."""
    yield from _ignored_fields(param)
    comm = param.comm_param
    if comm.mode == comm.LOCAL and param.lr_policy == "plateau":
        yield "lr_policy 'plateau' reads the loss of all ranks, which wait for each other in every iteration for it"
    if comm.mode == comm.LOCAL and param.HasField("lr_scaling"):
        cap = param.lr_scaling.cap if param.lr_scaling.HasField("cap") else None
        advice = "; give it a cap, or leave lr_scaling out" if cap is None else f", up to its cap, {cap:g}"
        yield (
            "lr_scaling goes by the global batch, and with mode: LOCAL each rank steps by its own: the rate may be too "
            f"large{advice}"
        )
    if param.momentum_correction and param.type not in CORRECTED:
        yield f"momentum_correction is ignored: the history of solver type {param.type} does not hold the rate"
    warms_up = param.type == "SGD" and param.momentum > 0 and param.warmup_iter > 0
    if param.HasField("engine") and warms_up and not param.HasField("momentum_correction"):  # engine: Intel's Caffe
        yield (
            "momentum is not corrected during the warm-up, as it is in Intel's Caffe without its fused update; "
            "momentum_correction: true does it"
        )
    yield from notes_of_policy(param)


def _ignored_fields(param: proto.SolverParameter) -> Iterator[str]:
    """Yields fields that a run does not read, or that have no effect without another one."""
    if param.HasField("solver_mode") and param.solver_mode == param.GPU:
        yield "solver_mode: GPU is ignored, this engine computes on the processor"
    if param.HasField("engine"):
        yield "engine is ignored, but for BatchNorms without a Scale, which have scale and shift in Intel's Caffe"
    for field in ("device_id", "layer_wise_reduce", "debug_info", "test_compute_loss", "test_offset"):
        if param.HasField(field):
            yield f"{field} is ignored"
    for fields, (other, is_on) in READ_WITH.items():
        for field in fields if not is_on(param) else ():
            if param.HasField(field):
                yield f"{field} is ignored without {other}"
    if 0 in param.test_iter:
        yield "test_iter: 0 tests nothing"
    tested = param.test_iter or param.test_net or param.test_net_param
    for field in ("test_interval", "test_epoch"):
        if getattr(param, field) and not tested and (param.train_net or param.HasField("train_net_param")):
            yield f"{field} tests nothing: train_net is for training alone; give a test_net, or net"
    for field in constants_of_others(param):
        if field == "momentum":  # an error: see _rule()
            continue
        yield f"{field} is ignored: solver type {param.type} does not read it"
    comm = param.comm_param
    for field in ("priority", "affinity") if comm.HasField("servers") and comm.servers == 0 else ():
        if is_given(comm, field):
            yield f"comm_param.{field} is ignored without servers (servers: 0)"


def _complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    yield from _ranges(param, RANGES)
    if not param.HasField("max_iter") and not param.HasField("max_epoch"):
        yield "max_iter", "max_iter is missing; give it (or max_epoch) here or with --set max_iter=N"
    yield from _epochs(param)
    yield from _schedules(param)
    yield from _rule(param)
    yield from _policies(param)
    if param.regularization_type not in REGULARIZATIONS:
        known = suggestion(param.regularization_type, REGULARIZATIONS)
        yield "regularization_type", f"unknown regularization_type '{param.regularization_type}'{known}"
    yield from _local_rates(param)
    yield from _lists(param)
    yield from goals.complaints(param, tests(param))
    yield from modes.complaints(param)
    yield from elastic_param.complaints(param)
    yield from tuner.complaints(param)
    yield from adversarial_param.complaints(param)
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
            wanted = f"{least:g} or more"
            if least == LEAST_FLOAT:
                wanted = f"{least:.2g} or more (less counts as zero)" if 0 < value < least else "more than 0"
            if below < float("inf"):
                wanted += f" and less than {below:g}"
            yield field, f"{field}: expected {wanted}, got {value:g}"


def _epochs(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks the fields that count in epochs."""
    for message, prefix, epochs, iterations in twins(param):
        if not is_given(message, epochs):
            continue
        if is_given(message, iterations):
            field = f"{prefix}{epochs}"
            yield field, f"{field} and {prefix}{iterations} are both given, and say the same thing; take one out"
        value = getattr(message, epochs)
        values = list(value) if hasattr(value, "__len__") else [value]
        least = 0 if epochs in MAY_BE_ZERO else sys.float_info.min
        for each in values:
            if not least <= each < float("inf"):
                wanted = "0 or more" if least == 0 else "more than 0"
                yield f"{prefix}{epochs}", f"{prefix}{epochs}: expected {wanted}, got {each:g}"
        if len(values) > 1 and values != sorted(values):
            yield f"{prefix}{epochs}", f"{prefix}{epochs} must ascend, got {', '.join(f'{each:g}' for each in values)}"


def _schedules(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks the warm-up, lr_scaling and batch_growth."""
    if param.warmup_policy not in WARMUPS:
        known = suggestion(param.warmup_policy, WARMUPS)
        yield "warmup_policy", f"unknown warmup_policy '{param.warmup_policy}'{known}"
    elif param.warmup_policy == "constant" and not (param.HasField("warmup_start_lr") or param.HasField("lr_scaling")):
        yield "warmup_policy", "warmup_policy 'constant' needs warmup_start_lr"
    elif param.lr_policy == "multifixed" and not param.HasField("base_lr") and param.warmup_policy != "constant":
        for field in ("warmup_iter", "warmup_epoch"):
            if getattr(param, field) > 0:
                yield field, f"{field}: the warm-up rises to base_lr, which this solver does not give; give it"
    if param.HasField("lr_scaling"):
        scaling = param.lr_scaling
        if scaling.base_batch < 1:
            yield "lr_scaling.base_batch", f"lr_scaling.base_batch: expected 1 or more, got {scaling.base_batch}"
        if scaling.HasField("cap") and not 0 < scaling.cap < float("inf"):
            yield "lr_scaling.cap", f"lr_scaling.cap: expected more than 0, got {scaling.cap:g}"
        if not param.HasField("base_lr") or param.lr_policy == "multifixed":
            yield "lr_scaling", "lr_scaling scales base_lr, which this solver does not give or read"
    elif param.HasField("min_lr") and param.HasField("base_lr") and param.min_lr > param.base_lr:
        yield "min_lr", f"min_lr {param.min_lr:g} is more than base_lr {param.base_lr:g}"
    if param.HasField("batch_growth"):
        growth = param.batch_growth
        steps = len(growth.stepvalue) + len(growth.stepvalue_epoch)
        if not steps:
            yield "batch_growth", "batch_growth needs stepvalue or stepvalue_epoch: when the batch grows"
        if growth.factor < 2:
            yield "batch_growth.factor", f"batch_growth.factor: expected 2 or more, got {growth.factor}"
        elif steps > 30 or param.iter_size * growth.factor**steps > 2**31:
            yield "batch_growth", f"batch_growth: {steps} steps by {growth.factor} make an iter_size beyond 2^31"


def _rule(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks the update rule: its type, and the constants that it reads."""
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


def _policies(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks NVIDIA's policies of momentum and weight decay, and the bounds of weights."""
    for field, known in (("momentum", MOMENTUM_POLICIES), ("weight_decay", WEIGHT_DECAY_POLICIES)):
        name = getattr(param, f"{field}_policy")
        if name not in known:
            yield f"{field}_policy", f"unknown {field}_policy '{name}'{suggestion(name, known)}"
        elif name == "poly" and not (param.HasField("max_iter") or param.HasField("max_epoch")):
            yield f"{field}_policy", f"{field}_policy 'poly' needs max_iter"
    if param.momentum_policy != "fixed" and (rule := find_rule(param)) and "momentum" not in rule.constants:
        yield "momentum_policy", f"type {param.type} has no momentum; leave momentum_policy out"
    if param.momentum_policy != "fixed" and not 0 <= param.max_momentum < 1:
        yield "max_momentum", f"max_momentum: expected 0 or more and less than 1, got {param.max_momentum:g}"
    if param.weight_decay_policy == "poly" and param.HasField("weight_decay_schedule"):
        yield "weight_decay_policy", "weight_decay_policy and weight_decay_schedule are both given; keep one of them"
    if not param.clamp_weights_lower <= 0 <= param.clamp_weights_upper:
        low, high = param.clamp_weights_lower, param.clamp_weights_upper
        yield (
            "clamp_weights_lower",
            f"clamp_weights_lower and _upper: expected bounds around 0, got {low:g} to {high:g}",
        )
    for field in ("momentum_power", "weight_decay_power", "max_weight_decay"):
        if getattr(param, field) < 0:
            yield field, f"{field}: expected 0 or more, got {getattr(param, field):g}"


def _local_rates(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks layer-wise rates: LARS and LARC."""
    for on, ratio in (("local_lr_auto", "local_gw_ratio"), ("larc", "larc_eta")):
        if getattr(param, on) and getattr(param, ratio) <= 0:
            yield ratio, f"{ratio}: expected more than 0, got {getattr(param, ratio):g}"
    if param.larc and param.local_lr_auto:
        yield "larc", "larc and local_lr_auto are both given; keep one of them"
    if param.larc_policy not in LARC_POLICIES:
        known = suggestion(param.larc_policy, LARC_POLICIES)
        yield "larc_policy", f"unknown larc_policy '{param.larc_policy}'{known}"
    elif param.HasField("larc_policy") and not has_local_rates(param):
        yield "larc_policy", "larc_policy is given, but neither larc: true nor local_lr_auto: true"


def _lists(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Checks repeated fields: counts, signs, order."""
    if param.test_iter and not param.test_interval and not param.test_epoch:
        yield "test_iter", "test_iter is given, but no test_interval"
    for count in param.test_iter:
        if count < 0:
            yield "test_iter", f"test_iter: expected 0 or more, got {count}"
    for name in ("", *SCHEDULES):
        message = getattr(param, name) if name else param
        for field in ("stepvalue", "stageiter") if name else ("stageiter",):  # Caffe takes any order of its own field
            values = list(getattr(message, field, ()))
            if values != sorted(values):
                path = f"{name}.{field}" if name else field
                yield path, f"{path} must ascend, got {', '.join(map(str, values))}"
