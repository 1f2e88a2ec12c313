"""Maps the coordinates of one blob of a NetSpec to those of another, and makes the Crop that aligns the two.

A map from one blob to another is (axis, a, b): from `axis` on, what is at x in the first is at a * x + b in the second;
axis is None where coordinates stay as they are. a and b are numbers, or arrays with a number for each spatial axis.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np

from engine.caffe.net_spec import Function, Top, layers
from engine.errors import EngineError

Number: TypeAlias = "float | np.ndarray"
Map: TypeAlias = "tuple[int | None, Number, Number]"
IDENTITY: Map = (None, 1, 0)
PASS_THROUGH = frozenset(
    """AbsVal BatchNorm Bias BNLL Clip Dropout Eltwise ELU Exp Log LRN MVN Power PReLU ReLU Scale Sigmoid Softmax Split
    Swish TanH Threshold""".split()
)


class UndefinedMapException(EngineError):
    """Raised for a layer whose output has no place in its input."""


class AxisMismatchException(EngineError):
    """Raised for two maps of different axes."""


class UnconnectedError(EngineError):
    """Raised for two blobs between which there is no map."""


class CropError(EngineError, AssertionError):
    """Raised for a Crop that would not align the blobs. It is an AssertionError, too, as Caffe's is."""


def _window(fn: Function, default_axis: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (axis, stride, size, pad) of a layer with a kernel; size is that of the dilated kernel."""
    given = fn.params.get("convolution_param", fn.params.get("pooling_param", fn.params))

    def of(name: str, short: str, default: int) -> np.ndarray:
        if f"{short}_h" in given:
            return np.array([given[f"{short}_h"], given[f"{short}_w"]])
        return np.array(given.get(name, default))

    if "kernel_size" not in given and "kernel_h" not in given:
        raise UndefinedMapException(f"{fn.type_name}: has no kernel_size")
    size = (of("kernel_size", "kernel", 1) - 1) * np.array(given.get("dilation", 1)) + 1
    return given.get("axis", default_axis), of("stride", "stride", 1), size, of("pad", "pad", 0)


def coord_map(fn: Function) -> Map:
    """Returns the map from the (first) input of a layer to its output. Raises UndefinedMapException for layers without
    one."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, size, pad = _window(fn, 1)
        return axis, 1 / stride, (pad - (size - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, size, pad = _window(fn, 1)
        return axis, stride, (size - 1) / 2 - pad
    if fn.type_name == "Crop":
        given = fn.params.get("crop_param", fn.params)
        return given.get("axis", 2) - 1, 1, -np.array(given.get("offset", 0))
    if fn.type_name in PASS_THROUGH:
        return IDENTITY
    raise UndefinedMapException(f"{fn.type_name}: its output has no place in its input")


def compose(base_map: Map, next_map: Map) -> Map:
    """Returns the map that does next_map first and then base_map. Raises AxisMismatchException."""
    (first, a1, b1), (second, a2, b2) = base_map, next_map
    if first is not None and second is not None and first != second:
        raise AxisMismatchException(f"one layer maps the axes from {first} on, another those from {second} on")
    return second if first is None else first, a1 * a2, a1 * b2 + b1


def inverse(coord_map: Map) -> Map:
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def _maps_below(top: Top):
    """Yields (blob, map from it to `top`) for `top` and everything that it is computed from.

    All paths to a blob give the same map, so each blob is visited once; a second time only if the first path, such as a
    shortcut without kernels, did not tell the axis, and a later one does.
    """
    found: dict[Top, Map] = {top: IDENTITY}
    frontier = [top]
    while frontier:
        above = frontier.pop()
        yield above, found[above]
        inputs = above.fn.inputs[:1] if above.fn.type_name == "Crop" else above.fn.inputs
        for below in inputs:
            try:
                below_map = compose(found[above], coord_map(above.fn))
            except UndefinedMapException:
                continue
            if below not in found or (found[below][0] is None and below_map[0] is not None):
                found[below] = below_map
                frontier.append(below)


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Returns the map from one blob to another, through a blob from which both are computed. Raises UnconnectedError if
    there is no such blob."""
    from_maps = dict(_maps_below(top_from))
    for top, to_map in _maps_below(top_to):
        if top in from_maps:
            return compose(to_map, inverse(from_maps[top]))
    raise UnconnectedError("the two blobs have no common blob below them that their coordinates reach")


def crop(top_from: Top, top_to: Top) -> Top:
    """Returns a Crop of `top_from` that lies over `top_to`. Raises CropError if the two differ in scale, or if the Crop
    would begin outside of `top_from` or at a fraction of a pixel."""
    axis, a, b = coord_map_from_to(top_from, top_to)
    if axis is None:
        raise CropError("crop: no layer between the two blobs says which axes are spatial")
    if not np.all(a == 1):
        raise CropError(f"crop: the two blobs differ in scale by {a}")
    offset = -np.asarray(b)
    if not np.all(offset >= 0):
        raise CropError(f"crop: would begin outside, at {offset}")
    if not np.all(np.round(offset) == offset):
        raise CropError(f"crop: would begin at a fraction of a pixel, {offset}")
    param = {"axis": axis + 1, "offset": offset.astype(int).ravel().tolist()}
    return cast(Top, layers.Crop(top_from, top_to, crop_param=param))
