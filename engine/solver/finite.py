"""Names the layer to blame for a loss or a weight that is not finite, and suggests a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from engine.errors import NumericalError

if TYPE_CHECKING:
    from engine.layers.base import Blob
    from engine.net import Net

FIRST = "No update has been made, so that base_lr is not the cause: look at the data, fillers and initial weights"
ADVICE = "Lower base_lr or warm up, or set clip_gradients"


def blame_loss(loss: float, iteration: int, net: Net, describe: Callable[[tuple[str, int] | None], str]) -> NoReturn:
    """Raises NumericalError that names the iteration, and the first layer whose output is not finite.

    Called after a forward whose loss is not finite, when no update is under way. describe: Feeder.describe_batch(). If
    the data are finite, the layer is found by another forward. That would not do with model parallelism, for which all
    ranks would have to take part, nor with a user's Python layers, which may have read the next picture, of another
    shape: there the error names no layer."""
    _check_data(loss, iteration, net, describe)
    batch, advice = describe(None), ADVICE if iteration else FIRST
    if net.runs_python or any(placed.parameter.parts > 1 for placed in net.parameters):
        raise NumericalError(f"iteration {iteration}: the loss is {loss}. {batch}{advice}")
    culprit = net.program.first_nonfinite() or "the update"
    raise NumericalError(
        f"iteration {iteration}: the loss is {loss}; layer '{culprit}' is the first whose output is not finite. "
        f"{batch}{advice}"
    )


def _check_data(loss: float, iteration: int, net: Net, describe: Callable[[tuple[str, int] | None], str]) -> None:
    """Raises NumericalError if the net was fed numbers that are not finite, and a layer reads them that does not take
    NaN."""
    makers, readers = {top: layer for layer in net.graph.layers for top in layer.tops}, net.graph.readers()

    def may_be_nan(blob: Blob) -> bool:
        return all(
            layer.takes_nan or (layer.type == "Split" and all(map(may_be_nan, layer.tops)))
            for layer in readers.get(blob, ())
        )

    for blob, values in net.fed.items():
        finite = np.isfinite(values)
        if blob not in makers or finite.all() or may_be_nan(blob):
            continue
        layer, at = makers[blob], tuple(np.argwhere(~finite)[0])
        key = describe((layer.name, int(at[0]))) if at else ""
        raise NumericalError(
            f"iteration {iteration}: the loss is {loss}; layer '{layer.name}' ({layer.where}) is the first whose "
            f"output is not finite: top '{blob.name}' holds {values[at]} in sample {at[0] if at else 0} of the batch. "
            f"{key}Mend the data"
        )


def check_weights(weights: np.ndarray, iteration: int, net: Net) -> None:
    """Raises NumericalError that names a parameter which is not finite. weights: the arena, float32.

    The loss does not always show it: convolutions with a ReLU6 turn NaN into 0."""
    if np.isfinite(weights).all():
        return
    bad = next(placed for placed in net.parameters if not np.isfinite(placed.tensor.get()).all())
    raise NumericalError(
        f"iteration {iteration}: the update has made weights of {bad.name} infinite or NaN; no snapshot is "
        f"written. {ADVICE}"
    )
