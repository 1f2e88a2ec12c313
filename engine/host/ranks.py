"""The collective operations that engine.host needs. engine.comm.world.World has them; this package does not import
it."""

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
    """Surrounds what each rank does by itself, such as reading a file. Collective at the end of the block: if it raised
    an EngineError on one rank, all ranks raise that error, so that nobody waits for a rank that has left."""
    failure = None
    try:
        yield
    except EngineError as error:
        failure = error
    for failed in gather_everywhere(ranks, failure):
        if failed is not None:
            raise failed
