"""What this room asks of the ranks: engine.comm.world.World has it, without this room knowing that one."""

from __future__ import annotations

from typing import Protocol, TypeVar, cast

T = TypeVar("T")


class Ranks(Protocol):
    """Collective operations on Python objects; every rank calls them in the same order."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T] | None:
        """Returns the values of all ranks in order on rank 0, None on the others."""
        ...

    def broadcast_object(self, value: T, root: int = 0) -> T:
        """Returns the value of rank `root` on every rank."""
        ...


def gather_everywhere(ranks: Ranks, value: T) -> list[T]:
    """Collective. Returns the values of all ranks in order, on every rank."""
    return cast("list[T]", ranks.broadcast_object(ranks.gather(value)))
