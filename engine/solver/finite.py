"""Checks that losses and weights are finite; if not, names the layer and suggests a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import NumericalError

if TYPE_CHECKING:
    from engine.net import Net

ADVICE = "Lower base_lr or warm up, or set clip_gradients"


def check_loss(loss: float, iteration: int, net: Net, batch: str) -> None:
    """After a forward, when no update is under way. batch: a sentence about its samples. Raises NumericalError naming
    iteration and layer, which is found by another forward: not where all ranks would have to take part, or a user's
    layers would run once more, which may have the next picture by then, of another shape."""
    if np.isfinite(loss):
        return
    if net.runs_python or any(placed.parameter.parts > 1 for placed in net.parameters):
        raise NumericalError(f"iteration {iteration}: the loss is {loss}. {batch}{ADVICE}")
    culprit = net.program.first_nonfinite() or "the update"
    raise NumericalError(
        f"iteration {iteration}: the loss is {loss}; layer '{culprit}' is the first whose output is not finite. "
        f"{batch}{ADVICE}"
    )


def check_weights(weights: np.ndarray, iteration: int, net: Net) -> None:
    """The loss does not always tell: convolutions with a ReLU6 make 0 of NaN. weights: the arena, float32. Raises
    NumericalError naming a parameter."""
    if np.isfinite(weights).all():
        return
    bad = next(placed for placed in net.parameters if not np.isfinite(placed.tensor.get()).all())
    raise NumericalError(
        f"iteration {iteration}: the update has made weights of {bad.name} infinite or NaN; no snapshot is "
        f"written. {ADVICE}"
    )
