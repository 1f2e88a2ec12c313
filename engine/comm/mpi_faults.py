"""Turns MPI's errors into CommErrors, and notes those by the death of another rank, which a run may outlive."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from engine.errors import CommError

MethodT = TypeVar("MethodT", bound=Callable)

# How long a rank whose MPI call has failed waits before it says so. Mostly another rank has died, and the sentinels
# hear of that only when the system has freed its memory: they name it then, and end this rank while it waits.
PATIENCE_SECONDS = 3.0


@dataclass
class Losses:
    """The losses of ranks, one object for this process as it has one MPI.

    outlived: whether the ranks that are left go on after a death: see World.outlive(). happened: whether a rank was
    lost since the last World.shrink()."""

    outlived: bool = False
    happened: bool = False


LOSSES = Losses()


def checked(method: MethodT) -> MethodT:
    """Decorates methods that call MPI: they raise CommError if it fails."""

    @functools.wraps(method)
    def call(self, *args, **options):
        try:
            return method(self, *args, **options)
        except self._mpi.Exception as error:
            mpi = self._mpi
            gone = (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED)
            if LOSSES.outlived and error.Get_error_class() in gone:
                LOSSES.happened = True
                raise CommError("a rank has died") from error
            time.sleep(PATIENCE_SECONDS)
            raise CommError(f"MPI has failed: {str(error).splitlines()[0]}") from error

    return cast(MethodT, call)
