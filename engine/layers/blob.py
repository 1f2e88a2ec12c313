"""The data of a layer: blobs (the edges of the graph) and parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]


@dataclass(eq=False)
class Blob:
    """An edge of the graph: one version of a named blob (a layer that works in place makes a new version)."""

    name: str
    shape: Shape = ()
    needs_gradient: bool = False


@dataclass(eq=False)
class Parameter:
    """A learnable or statistical blob of a layer. `shape` is Caffe's, as in files."""

    shape: Shape
    filler: Any = None  # FillerParameter message; None: zeros
    values: np.ndarray | None = None  # initial ones, of a layer that has them itself
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    shared_name: str = ""
    statistics: bool = False  # BatchNorm's running sums: averaged over ranks, never updated by the solver
    frozen: bool = False  # never updated, whatever its lr_mult
    layer: str = ""
    index: int = 0
    permissive: bool = False  # share_mode PERMISSIVE: only counts must match
    owner: Parameter | None = None  # the parameter that this one shares, if any
    part: int = 0  # which part of the whole, along the first axis, this rank holds
    parts: int = 1

    @property
    def name(self) -> str:
        return f"{self.layer}[{self.index}]"

    @property
    def learnable(self) -> bool:
        return self.lr_mult != 0 and not (self.statistics or self.frozen)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def whole_shape(self) -> Shape:
        """Caffe's, of all parts together: as in files."""
        return (self.parts * self.shape[0], *self.shape[1:]) if self.parts > 1 else self.shape

    def part_of(self, whole: np.ndarray) -> np.ndarray:
        """What this rank holds of an array of whole_shape."""
        return whole[self.part * self.shape[0] :][: self.shape[0]] if self.parts > 1 else whole
