"""What this room asks of the ranks: engine.comm.world.World has it, without this room knowing that one."""

from __future__ import annotations

from typing import Any, Protocol


class Ranks(Protocol):
    """Collective operations on Python objects; every rank calls them in the same order."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any] | None:
        """Returns the values of all ranks in order on rank 0, None on the others."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Returns the value of rank `root` on every rank."""
