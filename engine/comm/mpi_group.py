"""What ranks exchange in the middle of forward and backward, when they hold the parts of a layer together."""

import numpy as np

from engine.comm.mpi_channel import checked, wait


class MpiGroup:
    """The ranks of `comm`; used by the solver's thread alone. Waits asleep, as channels do."""

    def __init__(self, mpi, comm):
        self._mpi, self._comm = mpi, comm

    @checked
    def allgather(self, mine: np.ndarray, all: np.ndarray) -> None:
        wait(self._comm.Iallgather(mine, all))

    @checked
    def alltoall(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        wait(self._comm.Ialltoall(mine, theirs))

    @checked
    def reduce_scatter(self, mine: np.ndarray, sums: np.ndarray) -> None:
        wait(self._comm.Ireduce_scatter_block(mine, sums, self._mpi.SUM))

    def close(self) -> None:
        self._comm.Free()
