"""Exchanges between ranks that hold the parts of a layer, in the middle of forward and backward."""

import time
from types import ModuleType

import numpy as np

from engine.comm.mpi_channel import wait
from engine.comm.mpi_faults import checked
from engine.watchdog.board import Board


class MpiGroup:
    """The ranks of `comm`, for the solver's thread alone. It waits asleep, as channels do, and the board shows it."""

    def __init__(self, mpi: ModuleType, comm, board: Board):
        self._mpi, self._comm, self._board = mpi, comm, board
        self.waited_ns = 0  # nanoseconds that exchanges have taken so far

    @checked
    def allgather(self, mine: np.ndarray, all: np.ndarray) -> None:
        self._wait(self._comm.Iallgather(mine, all))

    @checked
    def alltoall(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        self._wait(self._comm.Ialltoall(mine, theirs))

    @checked
    def reduce_scatter(self, mine: np.ndarray, sums: np.ndarray) -> None:
        self._wait(self._comm.Ireduce_scatter_block(mine, sums, self._mpi.SUM))

    def _wait(self, request) -> None:
        begin = time.monotonic_ns()
        try:
            with self._board.waiting():
                wait(request)
        finally:
            self.waited_ns += time.monotonic_ns() - begin
