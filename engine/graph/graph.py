"""A net as nodes and edges: its layers, the blobs between them and their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from engine import proto
from engine.layers.base import Blob, Layer, Parameter
from engine.layers.data import Data


@dataclass(eq=False)
class Graph:
    """A net as a graph.

    Attributes:
        layers: in execution order.
        outputs: the named blobs that no layer reads, sorted by name.
        all_params: the parameters of every layer in the order of the file, which is that of snapshots; passes that
            rewrite `layers` do not change it.
        fused: layer -> the layers that its op computes, too.
        unshaped: in a graph that is only shown, the layers whose shapes are not known: their tops have none.
    """

    name: str
    phase: int
    layers: list[Layer] = field(default_factory=list)
    outputs: list[Blob] = field(default_factory=list)
    all_params: list[Parameter] = field(default_factory=list)
    force_backward: bool = False
    fused: dict[Layer, list[Layer]] = field(default_factory=dict)
    unshaped: list[Layer] = field(default_factory=list)

    @property
    def params(self) -> list[Parameter]:
        """The parameters without those that share another one's values."""
        return [parameter for parameter in self.all_params if parameter.owner is None]

    def readers(self) -> dict[Blob, list[Layer]]:
        return readers_among(self.layers)

    @property
    def batch_size(self) -> int:
        """Samples in a pass: the rows of the first data layer, or of the first other source if there is no data layer;
        0 if there is no source."""
        sources = [layer for layer in self.layers if layer.tops and not (layer.bottoms or layer.params)]
        sources = [layer for layer in sources if not layer.rows_are_steps]
        sources.sort(key=lambda layer: not isinstance(layer, Data))
        return next((layer.tops[0].shape[0] for layer in sources if layer.tops[0].shape), 0)

    @property
    def recurrent(self) -> list[Layer]:
        """The layers that learn, and carry states from batch to batch."""
        return [layer for layer in self.layers if layer.goes_on and layer.params]

    @property
    def trains(self) -> bool:
        """Whether a net of this graph has a backward by default."""
        return self.phase == proto.TRAIN or self.force_backward

    def freeze(self, layers: Collection[str]) -> None:
        """Makes the parameters of these layers, given by name, not learn."""
        for parameter in self.all_params:
            parameter.frozen |= parameter.layer in layers

    def blobs(self) -> dict[str, Blob]:
        """Returns the last version of every named blob, by name."""
        return {top.name: top for layer in self.layers for top in layer.tops}


def readers_among(layers: Iterable[Layer]) -> dict[Blob, list[Layer]]:
    """Returns the layers that read each blob, in their order. A layer is listed once for each bottom that is the
    blob."""
    found: dict[Blob, list[Layer]] = {}
    for layer in layers:
        for blob in layer.bottoms:
            found.setdefault(blob, []).append(layer)
    return found
