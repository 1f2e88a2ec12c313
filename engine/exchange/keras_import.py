"""`engine import` of Keras' files, .h5, .weights.h5 and .keras: gives an existing net the weights of layers by name.

A layer of the net takes the arrays in the file's group of its name: kernel, bias, gamma, beta, moving_mean and
moving_variance. In files of Keras 3 the arrays are vars/0, vars/1 and so on, in that order; their group is named after
the layer's class, and the layer's name is an attribute of `vars`. A .keras file is a zip archive of such an HDF5 file;
the model's description in it is not read.

Keras keeps channels last, so the axes of kernels are permuted here, and where an inner product or a normalisation
follows a Flatten, the weights of its elements are put in Caffe's order.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.config import read_net
from engine.errors import EngineError, WeightsError, shape_text
from engine.exchange.deploy_graph import DeployGraph, deploy_graph
from engine.exchange.keras_order import UNKNOWN, channels_of, fits, in_caffes_order, is_flat
from engine.exchange.kinds import KERAS_WEIGHTS
from engine.exchange.net_maker import check_outputs
from engine.files import is_regular, reason
from engine.layers.affine import Affine
from engine.layers.base import Layer
from engine.layers.batch_norm import BatchNorm
from engine.layers.convolution import Convolution
from engine.layers.deconvolution import Deconvolution
from engine.layers.inner_product import InnerProduct
from engine.layers.prelu import PReLU
from engine.layers.scale import Scale
from engine.weights import write_caffemodel
from engine.weights.h5_file import H5File, import_h5py, most_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Keras' names of a layer's arrays, in the order of `vars`. _KERNEL is for the types that _NAMES does not have.
_KERNEL = ("kernel", "bias")
_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
_NAMES = {
    "BatchNorm": _NORM,
    "Embed": ("embeddings",),
    "PReLU": ("alpha",),
}


def import_keras(
    source: str | os.PathLike, net: str | os.PathLike, weights: str | os.PathLike, *, onto: bool = False
) -> list[str]:
    """Writes the caffemodel `weights` for the prototxt `net`, with the weights of a Keras file; returns notes.

    Args:
        onto: must be True: a Keras file is read for a net that exists.
    Raises:
        EngineError: `onto` is False, `net` cannot be read, or `weights` cannot be written: see check_outputs().
        WeightsError: the file cannot be read, or lacks parameters of the net or has them in other shapes.
    """
    if not onto:
        raise EngineError("Keras files have weights for a net that is there: write it, and give --onto", str(source))
    check_outputs(net, weights, onto=True)
    config = read_net(net)
    graph = deploy_graph(config)
    h5py = import_h5py("Keras files need", WeightsError, str(source))

    def fail(why: str) -> WeightsError:
        return WeightsError(f"truncated or no HDF5 file ({why})", str(source))

    with _unpacked(source) as path, H5File(h5py, path, fail) as file:
        stored = _arrays(file, {layer.name for layer in graph.layers})
    blobs: dict[str, list[np.ndarray]] = {}
    channels = channels_of(graph)
    for layer in graph.layers:
        if layer.params and not (isinstance(layer, Scale) and layer.name in blobs):
            blobs.update(_parameters(layer, graph, channels[layer.bottoms[0]], stored, str(source)))
    write_caffemodel(weights, config.message, blobs)
    norms = [layer.name for layer in graph.layers if layer.type == "BatchNorm"]
    return [f"{norms[0]}: Keras' eps is 0.001 by default, Caffe's 0.00001; the net must say Keras's"] if norms else []


@contextlib.contextmanager
def _unpacked(source: str | os.PathLike) -> Iterator[str | os.PathLike]:
    """Unpacks the HDF5 file of a .keras archive for the block, and yields its path; the path of any other file as it
    is. Raises WeightsError for a damaged archive."""
    if not is_regular(source) or not zipfile.is_zipfile(source):
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, KERAS_WEIGHTS)
        try:
            _unpack(source, target)
        except KeyError:
            raise WeightsError(f"the archive has no {KERAS_WEIGHTS}", str(source)) from None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
            raise WeightsError(f"truncated or no .keras archive ({reason(error)})", str(source)) from None
        yield target


def _unpack(source: str | os.PathLike, target: Path) -> None:
    """Raises KeyError if the archive has no HDF5 file, WeightsError if that is too large or encrypted."""
    with zipfile.ZipFile(source) as archive:
        member = archive.getinfo(KERAS_WEIGHTS)
        if member.file_size > most_bytes(source):
            raise WeightsError(f"{KERAS_WEIGHTS} in it is far larger than the archive", str(source))
        if member.flag_bits & 1:
            raise WeightsError(f"{KERAS_WEIGHTS} in it is encrypted", str(source))
        with archive.open(member) as packed, open(target, "wb") as file:
            shutil.copyfileobj(packed, file)


def _arrays(file: H5File, layers: set[str]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the arrays of each of the `layers` by their names, without ":0" and "depthwise_".

    A dataset belongs to the layer that an attribute of its group names; without that, to the last group on its path
    that has the name of a layer.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for group, names in file.walk(""):
        path = [each for each in group.split("/") if each]
        name = file.attribute(group, "name") if path[-1:] == ["vars"] else None
        # Keras 3 names a group by class and number, such as "dense_1". Another layer may have that as its name.
        owner = next((each for each in reversed(path) if each in layers), None) if name is None else name
        if owner not in layers or "optimizer_weights" in path or "optimizer" in path:
            continue
        for name in names:
            found.setdefault(owner, {})[name.partition(":")[0].removeprefix("depthwise_")] = file.numbers(
                f"{group}/{name}"
            )
    return found


def _parameters(
    layer: Layer, graph: DeployGraph, channels: int, stored: Mapping[str, Mapping[str, np.ndarray]], source: str
) -> dict[str, list[np.ndarray]]:
    """Returns the parameter blobs of a layer, by its name; for a BatchNorm also those of the Scale that follows it.

    Args:
        channels: of the layer's bottom, from channels_of().
        stored: the arrays of the file, from _arrays().
    Raises:
        WeightsError: the file has no arrays for the layer, or arrays that do not fit.
    """
    if layer.name not in stored:
        raise WeightsError(f"layer '{layer.name}' ({layer.type}): the file has no group of that name", source)
    names = _NAMES.get(layer.type, _KERNEL)
    named = _named(stored[layer.name], names)
    given = {name: _in_order(layer, name, values, channels, source) for name, values in named.items()}
    if layer.type == "BatchNorm":
        return _norm(layer, graph, given, source)
    arrays = [_permuted(layer, given[name], name) for name in names if name in given]
    return {layer.name: _fitted(layer, arrays, source)}


def _named(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns a layer's arrays by Keras' names: those of Keras 3, which have numbers, get theirs of `names`."""
    numbered = sorted((int(name), values) for name, values in arrays.items() if name.isdigit())
    if names is _NORM and len(numbered) == 2:  # a BatchNorm with neither gamma nor beta
        names = _NORM[2:]
    return {**arrays, **{names[i]: values for i, values in numbered if i < len(names)}}


def _norm(
    layer: Layer, graph: DeployGraph, given: Mapping[str, np.ndarray], source: str
) -> dict[str, list[np.ndarray]]:
    """Returns the blobs of a BatchNorm and of the Scale that follows it; given: its arrays by Keras' names."""
    if "moving_mean" in given and "moving_variance" not in given and "2" in given:
        raise WeightsError(
            f"layer '{layer.name}' (BatchNorm): the file has three arrays of it, and does not say whether the first is "
            "its gamma or its beta; expected scale and center both, or a .h5 file, which has names",
            source,
        )
    for name in ("moving_mean", "moving_variance"):
        if name not in given:
            raise WeightsError(f"layer '{layer.name}' (BatchNorm): the file has no {name} of it", source)
    statistics = [given["moving_mean"], given["moving_variance"], np.ones(1, np.float32)]
    found = {layer.name: _fitted(layer, statistics, source)}
    readers = graph.readers().get(layer.tops[0], [])
    scale = readers[0] if len(readers) == 1 else None
    if isinstance(scale, Scale) and scale.is_per_channel:
        count = len(statistics[0])
        arrays = [given.get("gamma", np.ones(count)), given.get("beta", np.zeros(count))]
        if len(scale.params) == 1 and arrays[1].any():
            raise WeightsError(
                f"layer '{layer.name}' (BatchNorm): the file has a beta of it; expected bias_term: true in layer "
                f"'{scale.name}' (Scale)",
                source,
            )
        found[scale.name] = _fitted(scale, arrays[: len(scale.params)], source)
    elif "gamma" in given or "beta" in given:
        raise WeightsError(f"layer '{layer.name}' (BatchNorm): the file scales it; expected a Scale after it", source)
    return found


def _in_order(layer: Layer, name: str, values: np.ndarray, channels: int, source: str) -> np.ndarray:
    """Returns an array with its values for the elements of a flattened bottom put in Caffe's order; others as they are.

    Args:
        name: Keras' name of the array.
        channels: of the bottom, from channels_of().
    Raises:
        WeightsError: the order of the bottom's elements is unknown.
    """
    bottom = layer.bottoms[0].shape
    by_element = is_flat(bottom) and isinstance(layer, (Affine, BatchNorm, PReLU))
    if by_element or isinstance(layer, InnerProduct):
        if values.shape[:1] != (math.prod(bottom[1:]),) or (name == "bias" and not by_element):
            return values
        if channels != UNKNOWN:
            return in_caffes_order(values, channels)
    elif channels == UNKNOWN or fits(channels, bottom):
        return values
    raise WeightsError(
        f"layer '{layer.name}' ({layer.type}): the order in which Keras, channels last, has the elements of "
        f"'{layer.bottoms[0].name}' is unknown; expected between a Flatten and a layer with weights only layers that "
        "leave each element in its place",
        source,
    )


def _permuted(layer: Layer, values: np.ndarray, name: str) -> np.ndarray:
    """Returns an array with its axes in Caffe's order."""
    if name == "kernel" and isinstance(layer, InnerProduct) and values.ndim == 2:
        return values if layer.param.transpose else values.T
    depthwise = isinstance(layer, Convolution) and layer.params[0].shape[1] == 1
    if depthwise and name == "kernel" and values.ndim == 4:  # (h, w, channels, multiplier)
        return values.transpose(2, 3, 0, 1).reshape(-1, 1, *values.shape[:2])
    if name == "kernel" and values.ndim > 2:  # (spatial..., in, out); of a Deconvolution (spatial..., out, in)
        axes = values.ndim
        order = (axes - 1, axes - 2, *range(axes - 2))
        return values.transpose(order)
    return values.reshape(-1) if name == "alpha" and values.size == values.shape[-1] else values


def _fitted(layer: Layer, arrays: Sequence[np.ndarray], source: str) -> list[np.ndarray]:
    """Returns arrays as blobs. Raises WeightsError if they do not have the shapes of the layer's parameters."""
    wanted = [parameter.shape for parameter in layer.params]
    if [array.shape for array in arrays] != wanted:
        found = ", ".join(shape_text(array.shape) for array in arrays) or "nothing"
        expected = ", ".join(map(shape_text, wanted))
        kind = "transposed, " if isinstance(layer, Deconvolution) else ""
        raise WeightsError(
            f"layer '{layer.name}' ({layer.type}): {kind}the file has {found}, the net {expected}", source
        )
    return [np.array(array, np.float32, order="C") for array in arrays]
