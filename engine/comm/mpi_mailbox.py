"""Messages between two ranks at a time, for the one thread of a rank that owns the mailbox."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from engine.comm.mpi_faults import checked


class MpiMailbox:
    """Arrays to and from ranks by number; what has come or gone is told by poll(), in which callbacks run."""

    def __init__(self, mpi: ModuleType, comm):
        """Collective."""
        self._mpi, self._comm = mpi, comm.Dup()
        self._requests: list = []
        self._then: list[Callable[[], None]] = []
        self._comes: list[bool] = []  # or goes

    @checked
    def send(self, rank: int, number: int, values: np.ndarray, then: Callable[[], None]) -> None:
        """`then` runs when `values` may be overwritten."""
        self._add(self._comm.Isend(values, rank, number), then, comes=False)

    @checked
    def receive(self, rank: int, number: int, values: np.ndarray, then: Callable[[], None]) -> None:
        """`then` runs when the values are there."""
        self._add(self._comm.Irecv(values, rank, number), then, comes=True)

    def _add(self, request, then: Callable[[], None], comes: bool) -> None:
        self._requests.append(request)
        self._then.append(then)
        self._comes.append(comes)

    @checked
    def poll(self) -> bool:
        """Does what has become due; whether something has."""
        done = self._mpi.Request.Testsome(self._requests)
        if not done:
            return False
        due, chosen = [self._then[index] for index in done], set(done)
        left = [index for index in range(len(self._requests)) if index not in chosen]
        self._requests = [self._requests[index] for index in left]
        self._then = [self._then[index] for index in left]
        self._comes = [self._comes[index] for index in left]
        for then in due:
            then()
        return True

    def close(self) -> None:
        """Collective, when nothing more is sent; what was waited for is given up."""
        for request, comes in zip(self._requests, self._comes, strict=True):
            if comes:
                request.Cancel()
            request.Wait()
        self._requests, self._then, self._comes = [], [], []
        self._comm.Free()
