"""`comm_param { elastic { } }`: which fields do not go with it, and how the ranks that are left share the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine import proto
from engine.errors import Complaint, ConfigError
from engine.solver.modes import Mode

Batch = proto.ElasticParameter.Batch


def complaints(param: proto.SolverParameter) -> Iterator[Complaint]:
    """Yields what is wrong with comm_param.elastic, and what does not go with it."""
    comm, elastic = param.comm_param, param.comm_param.elastic
    if not comm.HasField("elastic"):
        return
    for field in ("keep_every", "min_ranks"):
        if getattr(elastic, field) < 1:
            yield (
                f"comm_param.elastic.{field}",
                f"comm_param.elastic.{field}: expected 1 or more, got {getattr(elastic, field)}",
            )
    others = {
        f"mode: {Mode.Name(comm.mode)}": comm.mode != comm.SYNC,
        "shard_updates, of which each rank has a share that nobody else has": comm.shard_updates,
        "autotune": comm.autotune,
        "adversarial, which has two nets": param.HasField("adversarial"),
        "batch_growth": param.HasField("batch_growth"),
    }
    for other, is_there in others.items():
        if is_there:
            yield "comm_param.elastic", f"comm_param.elastic does not go together with {other}: take one of them out"


def require_ranks(param: proto.SolverParameter, started: int, place: Callable[[str], str | None]) -> None:
    """Raises ConfigError, with the field's place, if min_ranks is more than the number of ranks that were started."""
    elastic, field = param.comm_param.elastic, "comm_param.elastic.min_ranks"
    if param.comm_param.HasField("elastic") and elastic.min_ranks > started:
        raise ConfigError(
            f"{field}: expected as many ranks as are started, {started}, at most, got {elastic.min_ranks}", place(field)
        )


@dataclass(frozen=True)
class Division:
    """How a global batch is divided. iter_size: of each rank. share: the fraction of the full global batch that all
    ranks take together."""

    iter_size: int
    share: float


def divide_micro_batches(micro_batches: int, ranks: int, batch: int, iter_size: int) -> Division:
    """Returns the Division among `ranks` ranks.

    micro_batches: in the full global batch. batch: a value of Batch. With HOLD each rank gets its share of these
    micro-batches, rounded down, and at least one; with SHRINK it keeps `iter_size`."""
    if batch == Batch.HOLD:
        iter_size = max(1, micro_batches // ranks)
    return Division(iter_size, iter_size * ranks / micro_batches)
