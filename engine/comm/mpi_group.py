"""What ranks exchange in the middle of forward and backward, when they hold the parts of a layer together."""

import time
from types import ModuleType

import numpy as np

from engine.comm.mpi_channel import wait
from engine.comm.mpi_faults import checked
from engine.watchdog.board import Board


class MpiGroup:
    """The ranks of `comm`; used by the solver's thread alone. Waits asleep, as channels do, and says so on the
    board."""

    def __init__(self, mpi: ModuleType, comm, board: Board):
        self._mpi, self._comm, self._board = mpi, comm, board
        self.waited_ns = 0  # in exchanges so far

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
