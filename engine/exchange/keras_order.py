"""Tells in which order Keras, which keeps channels last, has the elements of each blob of a net."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from engine.exchange.deploy_graph import DeployGraph
from engine.layers.activation import Activation
from engine.layers.affine import Affine
from engine.layers.base import Blob, Layer, Shape
from engine.layers.batch_norm import BatchNorm
from engine.layers.cast import Cast
from engine.layers.convolution import Convolution
from engine.layers.deconvolution import Deconvolution
from engine.layers.eltwise import Eltwise
from engine.layers.flatten import Flatten
from engine.layers.inner_product import InnerProduct
from engine.layers.permute import Permute
from engine.layers.reshape import Reshape
from engine.layers.softmax import Softmax
from engine.layers.split import Split

# Layers that keep the elements of a sample in their order. A Reshape does so if it keeps the batch.
_KEEP_ORDER = (Activation, Affine, BatchNorm, Cast, Flatten, Reshape, Softmax, Split)

# The order of a blob is a number of channels: Keras has the elements of a sample as (..., channels), Caffe as
# (channels, ...). Two numbers are special.
SAME = 1  # Keras has the elements in Caffe's order
UNKNOWN = 0


def channels_of(graph: DeployGraph) -> Mapping[Blob, int]:
    """Returns the order of each blob. The top of a Flatten has that of its bottom, though it has no axis of
    channels."""
    found: dict[Blob, int] = {blob: usual(blob.shape) for blob in graph.inputs}
    for layer in graph.layers:
        for top in layer.tops:
            found[top] = _of_top(layer, top, [found.get(blob, usual(blob.shape)) for blob in layer.bottoms])
    return found


def usual(shape: Shape) -> int:
    """Returns the order of a blob that has not been flattened: channels last for pictures and volumes, SAME for what
    has fewer axes, such as sequences."""
    return _channels(shape) if len(shape) > 3 else SAME


def fits(channels: int, shape: Shape) -> bool:
    """Returns whether the order is one that a blob of this shape has without having been flattened: then axis 1 is
    Keras' last one, or the order is the same."""
    return channels == usual(shape) or (len(shape) == 3 and channels == _channels(shape))


def is_flat(shape: Shape) -> bool:
    """Returns whether a sample has one axis, axis 1, and perhaps others of length 1."""
    return len(shape) > 1 and shape[1] == math.prod(shape[1:])


def in_caffes_order(values: np.ndarray, channels: int) -> np.ndarray:
    """Puts an array whose axis 0 goes through Keras' elements of a flattened sample in Caffe's order."""
    if channels == SAME:
        return values
    rest = values.shape[1:]
    return values.reshape(-1, channels, *rest).swapaxes(0, 1).reshape(len(values), *rest)


def _channels(shape: Shape) -> int:
    """Returns the length of axis 1; SAME if a sample has no other axis."""
    return SAME if is_flat(shape) else shape[1]


def _of_top(layer: Layer, top: Blob, given: list[int]) -> int:
    """Returns the order of a layer's top; given: the orders of its bottoms."""
    if isinstance(layer, InnerProduct):
        return SAME
    if isinstance(layer, (Convolution, Deconvolution)):
        return _channels(top.shape)
    shapes = [blob.shape for blob in layer.bottoms]
    if isinstance(layer, _KEEP_ORDER) and len(given) == 1:
        return given[0] if given[0] == SAME or shapes[0][:1] == top.shape[:1] else UNKNOWN
    if isinstance(layer, Permute) and fits(given[0], shapes[0]) and layer.order == [0, *range(2, len(shapes[0])), 1]:
        return SAME
    if isinstance(layer, Eltwise) and len(set(given)) == 1:
        return given[0]
    if not all(map(fits, given, shapes)):
        return UNKNOWN
    sequence = bool(given) and len(shapes[0]) == len(top.shape) == 3 and given[0] != SAME
    return _channels(top.shape) if sequence else usual(top.shape)
