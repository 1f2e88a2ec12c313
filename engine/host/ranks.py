"""What this room asks of the ranks: engine.comm.world.World has it, without this room knowing that one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, cast

from engine.errors import EngineError

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


@contextmanager
def failing_alike(ranks: Ranks) -> Iterator[None]:
    """Collective at its end, around what a rank does by itself, such as reading a file: where it raises an EngineError
    on one, all raise that, and nobody waits for a rank that has left."""
    failure = None
    try:
        yield
    except EngineError as error:
        failure = error
    for failed in gather_everywhere(ranks, failure):
        if failed is not None:
            raise failed
