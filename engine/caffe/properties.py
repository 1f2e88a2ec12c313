"""The properties of caffe.Net that describe the net: inputs, outputs, layer_dict, bottom_names, top_names, ..."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from engine.layers.base import Layer

if TYPE_CHECKING:
    from engine.caffe.blobs import NetBlob, ParamBlob
    from engine.caffe.live import LiveNet


class LayerView:
    """An element of net.layers: `type`, `name`, and its parameters as `blobs`."""

    def __init__(self, layer: Layer, blobs: list[ParamBlob]):
        self.type, self.name, self.blobs = layer.type, layer.name, blobs


class Properties:
    """Mixin for caffe.Net, which has a running net (`_live`), `blobs`, `params`, `layers` and their names."""

    _live: LiveNet
    _layer_names: list[str]
    _blob_names: list[str]
    blobs: OrderedDict[str, NetBlob]
    params: OrderedDict[str, list[ParamBlob]]
    layers: list[Any]

    def _layer_view(self, layer: Layer) -> Any:
        return layer.user if layer.type == "Python" else LayerView(layer, self.params.get(layer.name, []))

    @property
    def name(self) -> str:
        return self._live.net.name

    @property
    def inputs(self) -> list[str]:
        """Names of the blobs of Input layers."""
        return [top.name for layer in self._live.layers if layer.type == "Input" for top in layer.tops]

    @property
    def outputs(self) -> list[str]:
        """Names of the blobs that no layer reads, sorted as Caffe does."""
        return sorted(blob.name for blob in self._live.net.graph.outputs if blob.name in self.blobs)

    @property
    def layer_dict(self) -> OrderedDict[str, Any]:
        return OrderedDict(zip(self._layer_names, self.layers))

    @property
    def bottom_names(self) -> OrderedDict[str, list[str]]:
        return OrderedDict((layer.name, list(layer.message.bottom)) for layer in self._live.layers)

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        return OrderedDict((layer.name, list(layer.message.top)) for layer in self._live.layers)

    def _bottom_ids(self, layer: int) -> list[int]:
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self._live.layers[layer].message.bottom]

    def _top_ids(self, layer: int) -> list[int]:
        """Places in _blob_names."""
        return [self._blob_names.index(name) for name in self._live.layers[layer].message.top]

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        weights = {top: weight for _, top, weight in self._live.net.losses()}
        return OrderedDict((name, weights.get(name, 0.0)) for name in self.blobs)
