"""Makes a Caffe net, with its weights, layer by layer: importers add the layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import proto
from engine.config.upgrade_files import write_text
from engine.errors import EngineError, WeightsError, shape_text
from engine.files import check_writable
from engine.layers.base import Blob, Shape
from engine.layers.registry import layer_type
from engine.weights import write_caffemodel


@dataclass(eq=False)
class Padded:
    """A blob and the padding that a Pad of ONNX puts around it: zeros at both ends of each spatial axis.

    It is not a layer yet, since the layer that reads it can pad in most cases.
    """

    blob: Blob
    begins: list[int]  # zeros before the first value, by spatial axis
    ends: list[int]  # zeros behind the last

    @property
    def shape(self) -> Shape:
        added = [0, 0, *(begin + end for begin, end in zip(self.begins, self.ends, strict=True))]
        return tuple(size + more for size, more in zip(self.blob.shape, added, strict=True))


class NetMaker:
    """A net under construction.

    The shapes of a layer are inferred as it is added, so that what does not fit is found at once.

    Attributes:
        message: the net.
        weights: float32 arrays by layer name.
        source: the file that is imported, which errors name.
    """

    def __init__(self, name: str, source: str | os.PathLike):
        self.message = proto.NetParameter(name=name)
        self.weights: dict[str, list[np.ndarray]] = {}
        self.source = str(source)
        self._layers: dict[str, int] = {}  # names that are taken: see unique()
        self._blobs: dict[str, int] = {}
        self._users: dict[str, list[proto.LayerParameter]] = {}  # name of a blob -> layers that read or make it

    def input(self, name: str, shape: Sequence[int]) -> Blob:
        """Adds an Input layer; returns its top."""
        return self.layer(name, "Input", [], input_param={"shape": [{"dim": list(shape)}]})

    def layer(
        self,
        name: str,
        type: str,
        bottoms: Sequence[Blob],
        arrays: Sequence[np.ndarray] = (),
        top: str = "",
        in_place: bool = False,
        **fields: Any,
    ) -> Blob:
        """Adds a layer of one top; returns the top. Raises EngineError if its bottoms or parameters do not fit.

        Args:
            name: of the layer; numbered if another layer has it.
            arrays: its parameters, in Caffe's shapes.
            top: the top's name, by default that of the layer; numbered if another blob has it.
            in_place: the top has the bottom's name. No other layer may read that bottom.
            fields: of LayerParameter, messages as dicts.
        """
        name = unique(name, self._layers)
        top = bottoms[0].name if in_place else unique(top or name, self._blobs)
        return self._add(name, type, bottoms, arrays, [top], fields)[0]

    def layers(self, name: str, type: str, bottoms: Sequence[Blob], count: int, **fields: Any) -> list[Blob]:
        """Adds a layer of `count` tops without parameters; returns the tops. The arguments are those of layer()."""
        name = unique(name, self._layers)
        tops = [unique(f"{name}_{i}" if i else name, self._blobs) for i in range(count)]
        return self._add(name, type, bottoms, (), tops, fields)

    def _add(
        self,
        name: str,
        type: str,
        bottoms: Sequence[Blob],
        arrays: Sequence[np.ndarray],
        tops: list[str],
        fields: dict[str, Any],
    ) -> list[Blob]:
        """Adds a layer whose name, and whose tops' names, are not taken. Raises EngineError if it does not fit."""
        names = [blob.name for blob in bottoms]
        message = self.message.layer.add(name=name, type=type, bottom=names, top=tops, **fields)
        layer = layer_type(type, name, self.source)(message, self.source, proto.TEST, net=self.message)
        layer.bottoms = list(bottoms)
        shapes = layer.infer()
        for top, shape in zip(tops, shapes, strict=False):
            layer.check_blob(f"top '{top}'", shape)
        layer.tops = [Blob(top, tuple(shape)) for top, shape in zip(tops, shapes, strict=False)]
        for each in {*names, *tops}:
            self._users.setdefault(each, []).append(message)
        wanted = [parameter.shape for parameter in layer.make_params()]
        given = [np.array(array, np.float32, order="C") for array in arrays]
        if [each.shape for each in given] != wanted:
            found = ", ".join(shape_text(each.shape) for each in given) or "none"
            expected = ", ".join(map(shape_text, wanted)) or "none"
            raise WeightsError(f"layer '{name}' ({type}): expected parameters {expected}, got {found}", self.source)
        if given:
            self.weights[name] = given
        return layer.tops

    def rename(self, blob: Blob, name: str) -> None:
        """Gives a blob another name, unless a blob has that already."""
        if name == blob.name or name in self._blobs:
            return
        self._users[name] = self._users.pop(blob.name, [])
        for layer in self._users[name]:
            for names in (layer.bottom, layer.top):
                for i, each in enumerate(names):
                    if each == blob.name:
                        names[i] = name
        self._blobs[name] = 1
        blob.name = name

    def rename_layer(self, index: int, name: str) -> None:
        """Gives the layer at `index` another name, unless a layer has that already."""
        old = self.message.layer[index].name
        if name and name not in self._layers:
            self._layers[name] = 1
            self.message.layer[index].name = name
            if old in self.weights:
                self.weights[name] = self.weights.pop(old)

    def write(self, net: str | os.PathLike, weights: str | os.PathLike) -> None:
        """Writes the net as prototxt and its weights as caffemodel. Raises EngineError if a file cannot be written, or
        if `net` exists."""
        check_outputs(net, weights)
        write_caffemodel(weights, self.message, self.weights)
        write_text(net, self.message)


def check_outputs(net: str | os.PathLike, weights: str | os.PathLike, onto: bool = False) -> None:
    """Raises EngineError if an import could not write its files, or would write over a net. Call it before long work.

    Args:
        onto: the net exists, and only the weights are written.
    """
    check_writable(weights)
    if os.path.abspath(net) == os.path.abspath(weights):
        raise EngineError("expected two names, one for the net and one for its weights", str(net))
    if onto:
        return
    check_writable(net)
    if os.path.lexists(net):
        raise EngineError("exists already; remove it, choose another name, or give --onto to write weights for it",
                          str(net))  # fmt: skip


def unique(wanted: str, taken: dict[str, int]) -> str:
    """Returns the wanted name, or if it is taken that name with a number, and adds it to those taken.

    Args:
        taken: names, each with the number to try next for it.
    """
    name = wanted
    while name in taken:
        name = f"{wanted}_{taken[wanted]}"
        taken[wanted] += 1
    taken[name] = 1
    return name
