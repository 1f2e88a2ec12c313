"""A net's weights by layer name, as files have them: copies of them, and values for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import WeightsError, shape_text
from engine.layers.base import Parameter
from engine.weights import intel as weights_intel

if TYPE_CHECKING:
    from engine.net.net import Net


def copies_by_layer(net: Net, wholes: Mapping[Parameter, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """See Net.weights_by_layer()."""
    result: dict[str, list[np.ndarray]] = {}
    for parameter in net.all_params():
        values = wholes.get(parameter)
        if values is None:
            values = net.tensor_of[parameter.owner or parameter].get().reshape(parameter.shape)
        result.setdefault(parameter.layer, []).append(values)
    return result


def load_by_layer(net: Net, blobs: dict[str, list[np.ndarray]], source: str) -> list[str]:
    """See Net.load_weights()."""
    blobs = weights_intel.separated(net.message, blobs, source)
    mine: dict[str, list[Parameter]] = {}
    for parameter in net.all_params():
        mine.setdefault(parameter.layer, []).append(parameter)
    fitted = []
    for layer, params in mine.items():
        if layer in blobs and len(blobs[layer]) != len(params):
            raise WeightsError(
                f"layer '{layer}': the file has {len(blobs[layer])} blobs, the net {len(params)}", source
            )
        for parameter, values in zip(params, blobs.get(layer, []), strict=False):
            if values is None:
                continue
            if not _fits(values.shape, parameter.whole_shape):
                raise WeightsError(
                    f"layer '{layer}', blob {parameter.index}: the file has {shape_text(values.shape)}, the net "
                    f"{shape_text(parameter.whole_shape)}; give the layer another name to start it afresh",
                    source,
                )
            fitted.append((parameter, values))
    for parameter, values in fitted:  # only once everything fits
        values = parameter.part_of(values.reshape(parameter.whole_shape))
        net.tensor_of[parameter.owner or parameter].set(np.ascontiguousarray(values, np.float32).ravel())
    return [layer for layer in mine if layer not in blobs]


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Files from before 2015 hold four axes for everything: leading ones do not count there. A vector is one however
    many ones stand around it."""

    def squeezed(shape):
        shape = tuple(shape)
        while shape and shape[0] == 1:
            shape = shape[1:]
        return shape

    def vector(shape):
        return [size for size in shape if size != 1]

    if tuple(given) == tuple(wanted) or (len(given) == 4 and squeezed(given) == squeezed(wanted)):
        return True
    return len(vector(wanted)) <= 1 and vector(given) == vector(wanted)
