"""The modes in which ranks do not wait for each other in every iteration (LOCAL, ASYNC): refuses what does not go with
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine import proto
from engine.errors import Complaint, ConfigError

if TYPE_CHECKING:
    from engine.config import SolverConfig
    from engine.net import Net

Mode = proto.CommParameter.Mode
# The fields of each mode, with their least values.
FIELDS = {"LOCAL": {"sync_every": 1, "sync_start": 0}, "ASYNC": {"max_staleness": 0, "staleness_lr": 0}}
# The fields that need all ranks, or all parameters, at once, and why mode ASYNC cannot give them that.
NOT_ASYNC = {
    "comm_param.algorithm": "gradients go to the rank that updates them",
    "comm_param.priority": "buckets are sent in the order of backward",
    "clip_gradients": "no rank has all gradients of an update",
    "local_lr_auto": "no rank has all gradients of an update",
    "larc": "no rank has all gradients of an update",
    "ema": "ranks see different weights",
    "batch_growth": "ranks are in different iterations",
}


def complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields what is wrong with the mode of comm_param, and what does not go with it."""
    comm = param.comm_param
    mode = Mode.Name(comm.mode)
    for owner, fields in FIELDS.items():
        for field, least in fields.items():
            value, name = getattr(comm, field), f"comm_param.{field}"
            if comm.HasField(field) and mode != owner:
                yield name, f"{name} is of mode: {owner}, and the mode is {mode}; give the mode, or take it out"
            elif value < least:
                yield name, f"{name}: expected {least} or more, got {value}"
    if mode == "SYNC":
        return
    if comm.shard_updates:
        yield (
            "comm_param.shard_updates",
            f"comm_param.shard_updates does not go together with mode: {mode}: take one of them out",
        )
    if comm.compression == proto.CommParameter.BF16:
        reason = "which exchanges weights, in float32"
        yield (
            "comm_param.compression",
            f"comm_param.compression: BF16 does not go together with mode: {mode}, {reason}: take one of them out",
        )
    if mode == "ASYNC":
        yield from _async_complaints(param)


def _async_complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields what does not go with mode ASYNC."""
    for field, reason in NOT_ASYNC.items():
        message = param.comm_param if field.startswith("comm_param.") else param
        name = field.rpartition(".")[2]
        value = getattr(message, name)
        if message.HasField(name) and (value > 0 if isinstance(value, (int, float)) else value):
            yield field, f"{field} does not go together with mode: ASYNC, where {reason}: take one of them out"
    if param.lr_policy == "plateau":
        yield (
            "lr_policy",
            "lr_policy 'plateau' does not go together with mode: ASYNC, where no rank knows the loss of all: take "
            "another policy",
        )
    if param.comm_param.HasField("servers") and param.comm_param.servers != 1:
        yield "comm_param.servers", f"comm_param.servers: mode: ASYNC has 1, got {param.comm_param.servers}"


def require_sync(config: SolverConfig, why: str) -> None:
    """Raises ConfigError for a solver of another mode than SYNC. why: the end of the message's sentence "MODE ..."."""
    if mode := config.message.comm_param.mode:
        raise ConfigError(
            f"comm_param.mode: {Mode.Name(mode)} {why}; --set comm_param.mode=SYNC", config.place("comm_param.mode")
        )


def refuse(net: Net, param: proto.SolverParameter, place: Callable[[str], str]) -> None:
    """Raises ConfigError if the ranks compute layers of the net together, and the mode lets them run apart."""
    mode = param.comm_param.mode
    if mode == proto.CommParameter.SYNC:
        return
    name, what = Mode.Name(mode), ""
    if net.synchronised:
        what = "synchronised BatchNorm (bn_sync, batch_norm_param { sync })"
    elif any(placed.parameter.parts > 1 for placed in net.parameters):
        what = "model_parallel"
    if what:
        raise ConfigError(
            f"comm_param.mode: {name} does not go together with {what}, for which ranks wait for each other in every "
            "iteration: take one of them out",
            place("comm_param.mode"),
        )
