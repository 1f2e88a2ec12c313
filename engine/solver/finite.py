"""Where a loss or a weight is not finite: names the layer and suggests a remedy."""

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
    """After a forward whose loss is not finite, when no update is under way. describe: Feeder.describe_batch(). Raises
    NumericalError naming iteration and layer: that of the data, where these are not finite. Another one is found by
    another forward: not where all ranks would have to take part, or a user's layers would run once more, which may have
    the next picture by then, of another shape."""
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
    """Raises NumericalError where what the net was fed is not finite, for a layer that cannot compute with it."""
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
    """The loss does not always tell: convolutions with a ReLU6 make 0 of NaN. weights: the arena, float32. Raises
    NumericalError naming a parameter."""
    if np.isfinite(weights).all():
        return
    bad = next(placed for placed in net.parameters if not np.isfinite(placed.tensor.get()).all())
    raise NumericalError(
        f"iteration {iteration}: the update has made weights of {bad.name} infinite or NaN; no snapshot is "
        f"written. {ADVICE}"
    )
