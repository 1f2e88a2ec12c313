"""Messages between two ranks at a time, for the one thread of a rank that owns the mailbox."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from engine.comm.mpi_faults import checked


class MpiMailbox:
    """Sends arrays to ranks and receives arrays from them. Messages have numbers: a receive takes the message with its
    number. Callbacks run in poll()."""

    def __init__(self, mpi: ModuleType, comm):
        """Collective."""
        self._mpi, self._comm = mpi, comm.Dup()
        self._requests: list = []
        self._then: list[Callable[[], None]] = []
        self._comes: list[bool] = []  # whether a request receives; else it sends

    @checked
    def send(self, rank: int, number: int, values: np.ndarray, then: Callable[[], None]) -> None:
        """Sends `values` to `rank`. then: called when `values` may be overwritten."""
        self._add(self._comm.Isend(values, rank, number), then, comes=False)

    @checked
    def receive(self, rank: int, number: int, values: np.ndarray, then: Callable[[], None]) -> None:
        """Receives a message from `rank` into `values`. then: called when they are there."""
        self._add(self._comm.Irecv(values, rank, number), then, comes=True)

    def _add(self, request, then: Callable[[], None], comes: bool) -> None:
        self._requests.append(request)
        self._then.append(then)
        self._comes.append(comes)

    @checked
    def poll(self) -> bool:
        """Calls the callbacks of the messages that are complete. Returns whether there were any."""
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
        """Collective, when nothing more is sent. Cancels the receives that are open."""
        for request, comes in zip(self._requests, self._comes, strict=True):
            if comes:
                request.Cancel()
            request.Wait()
        self._requests, self._then, self._comes = [], [], []
        self._comm.Free()
