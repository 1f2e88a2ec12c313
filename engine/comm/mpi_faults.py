"""What becomes of MPI's errors: of most, the end of the run; of the death of other ranks, not where it is outlived."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from engine.errors import CommError

MethodT = TypeVar("MethodT", bound=Callable)

# How long a rank whose MPI call has failed waits before it says so: mostly because another rank has died, of which the
# sentinels hear only when the system has cleared its memory away. They name it, and end this one meanwhile.
PATIENCE_SECONDS = 3.0


@dataclass
class Losses:
    """Of this process, whose MPI is one. outlived: the ranks that are left go on, see World.outlive(). happened: a rank
    was lost, and World.shrink() has not been called since."""

    outlived: bool = False
    happened: bool = False


LOSSES = Losses()


def checked(method: MethodT) -> MethodT:
    """For methods that call MPI: raises CommError where it fails."""

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
