"""What a net has, as the solver and programs see it: parameters in the arenas, blobs by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Blob, Parameter

if TYPE_CHECKING:
    from engine.host._core import Tensor
    from engine.net.net import Net


@dataclass
class Placed:
    """A learnable parameter in the arenas: `offset` and `count` in floats, the kernel's padding included."""

    parameter: Parameter
    tensor: Tensor
    offset: int
    count: int

    @property
    def name(self) -> str:
        return self.parameter.name


class BlobView:
    """A blob as Python sees it: row-major float32 copies of what the executor holds."""

    def __init__(self, net: Net, blob: Blob):
        self._net, self._blob = net, blob

    @property
    def shape(self) -> tuple[int, ...]:
        return self._blob.shape

    @property
    def tensor(self) -> Tensor:
        return self._net.tensors[self._blob]

    @property
    def data(self) -> np.ndarray:
        """A copy, shaped as Caffe's blob. Only meaningful while the memory plan keeps the blob (`keep_all`,
        outputs)."""
        return self.tensor.get().reshape(self.shape)

    @property
    def diff(self) -> np.ndarray | None:
        return None if self.tensor.diff is None else self.tensor.diff.get().reshape(self.shape)

    def set(self, values: np.ndarray) -> None:
        """Values of an input blob for the next forward."""
        self._net.feed(self._blob, values)
