"""Checks that losses and weights are finite; if not, names the layer and suggests a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import NumericalError

if TYPE_CHECKING:
    from engine.solver.solver import Solver

ADVICE = "Lower base_lr or warm up, or set clip_gradients"


def check_loss(solver: Solver, loss: float) -> None:
    """After a forward. Raises NumericalError naming iteration and layer."""
    if np.isfinite(loss):
        return
    solver.strategy.wait_all()
    culprit = solver.net.program.first_nonfinite() or "the update"
    raise NumericalError(
        f"iteration {solver.iteration}: the loss is {loss}; layer '{culprit}' is the first whose output is not finite. "
        f"{solver.feeder.describe_batch()}{ADVICE}"
    )


def check_weights(solver: Solver) -> None:
    """The loss does not always tell: kernels with a ReLU make 0 of NaN. Raises NumericalError naming a parameter."""
    if np.isfinite(solver.weights).all():
        return
    bad = next(placed for placed in solver.net.parameters if not np.isfinite(placed.tensor.get()).all())
    raise NumericalError(
        f"iteration {solver.iteration}: the update has made weights of {bad.name} infinite or NaN; no snapshot is "
        f"written. {ADVICE}"
    )
