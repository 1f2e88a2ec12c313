"""NetOptions: what a user chooses about a net before it is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.graph.build import ShapesOf
from engine.graph.prepare import PASSES
from engine.layers.kernels import Choices
from engine.layers.model_parallel import Part


@dataclass(frozen=True)
class NetOptions:
    """How a net is built. The defaults give a net that runs as fast as it can; watched() and plain() return variants.

    Attributes:
        seed: of fillers and dropout.
        shapes_of: shapes_of(layer, where) returns the shapes with which a data layer is fed.
        passes: those that may rewrite the graph.
        keep_all: every blob and gradient stays readable after a run.
        accumulate: gradients of parameters add up over several backward passes (iter_size).
        plain_parameters: parameters are row-major.
        precision: "bf16" computes activations and their gradients in bfloat16 in the layers that support it; parameters
            stay float32.
        frozen: names of layers whose parameters do not learn.
        watched_layers: names of layers whose bottoms are read from outside, between layers.
        gradients: whether there is a backward; None: in phase TRAIN, and with force_backward.
        memory_budget: the limit in bytes for blobs, gradients and masks.
        parts: the layers of which this rank holds a part, by name.
        kernels: those chosen for convolutions and inner products; all others follow rules of thumb.
        besides: besides(bytes that learn) returns how many bytes whoever runs the net will take beside it, by the name
            of the layer that they are for ("": no layer). A net for which there is too little memory, with these, is
            refused before any is taken.
    """

    seed: int = 1
    shapes_of: ShapesOf | None = None
    passes: frozenset[str] = PASSES
    keep_all: bool = False
    accumulate: bool = False
    plain_parameters: bool = False
    precision: str = "fp32"
    frozen: frozenset[str] = frozenset()
    watched_layers: frozenset[str] = frozenset()
    gradients: bool | None = None
    memory_budget: int | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    kernels: Choices = field(default_factory=dict)
    besides: Callable[[int], Mapping[str, int]] = lambda learned: {}

    def replace(self, **changes: Any) -> NetOptions:
        """Returns these options with some of them changed."""
        return dataclasses.replace(self, **changes)

    def watched(self) -> NetOptions:
        """Returns the options of a net that a program looks into: nothing is fused, every blob and gradient is kept."""
        return self.replace(passes=frozenset(), keep_all=True, memory_budget=None)

    def plain(self) -> NetOptions:
        """Returns the options with row-major parameters, for ranks whose processors would lay them out differently."""
        return self.replace(plain_parameters=True)


DEFAULT = NetOptions()
