"""A net as nodes and edges: its layers, the blobs between them and their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from engine import proto
from engine.layers.base import Blob, Layer, Parameter
from engine.layers.data import Data


@dataclass(eq=False)
class Graph:
    """Layers in execution order. `outputs` are the named blobs that nobody reads, sorted. `all_params` are the
    parameters of every layer in the order of the file, which is that of snapshots: rewrites of `layers` leave it alone.
    `fused` are the layers that others compute within their own op. `unshaped` are the layers, in a graph to look at,
    whose shapes are not known: their tops, and what follows, have none."""

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
        """Those that belong to their layer, or to several of which it is the first."""
        return [parameter for parameter in self.all_params if parameter.owner is None]

    def readers(self) -> dict[Blob, list[Layer]]:
        return readers_among(self.layers)

    @property
    def batch_size(self) -> int:
        """Samples in a pass, of which the first data layer gives rows, else the first other source; 0 without one."""
        sources = [layer for layer in self.layers if layer.tops and not (layer.bottoms or layer.params)]
        sources = [layer for layer in sources if not layer.rows_are_steps]
        sources.sort(key=lambda layer: not isinstance(layer, Data))
        return next((layer.tops[0].shape[0] for layer in sources if layer.tops[0].shape), 0)

    @property
    def recurrent(self) -> list[Layer]:
        """The layers that learn from sequences which go on from batch to batch."""
        return [layer for layer in self.layers if layer.goes_on and layer.params]

    @property
    def trains(self) -> bool:
        """Whether there is a backward where nobody says otherwise."""
        return self.phase == proto.TRAIN or self.force_backward

    def freeze(self, layers: Collection[str]) -> None:
        """The parameters of these layers do not learn."""
        for parameter in self.all_params:
            parameter.frozen |= parameter.layer in layers

    def blobs(self) -> dict[str, Blob]:
        """The last version of every named blob."""
        return {top.name: top for layer in self.layers for top in layer.tops}


def readers_among(layers: Iterable[Layer]) -> dict[Blob, list[Layer]]:
    """The layers that read each blob, in their order; twice where two bottoms are that blob."""
    found: dict[Blob, list[Layer]] = {}
    for layer in layers:
        for blob in layer.bottoms:
            found.setdefault(blob, []).append(layer)
    return found
