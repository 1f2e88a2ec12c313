"""The parameters and blobs of a net as the solver and programs see them."""

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
    """A learnable parameter and its place in the net's arenas. offset, count: in floats, with the kernel's padding."""

    parameter: Parameter
    tensor: Tensor
    offset: int
    count: int

    @property
    def name(self) -> str:
        return self.parameter.name


class BlobView:
    """A blob as Python sees it: row-major float32 copies of the program's values."""

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
        """A copy of the values, in the shape of Caffe's blob. It means something only if the memory plan keeps the
        blob: with `keep_all`, and for outputs."""
        return self.tensor.get().reshape(self.shape)

    @property
    def diff(self) -> np.ndarray | None:
        """A copy of the gradient, as of the values; None if the blob has none."""
        return None if self.tensor.diff is None else self.tensor.diff.get().reshape(self.shape)

    def set(self, values: np.ndarray) -> None:
        """Feeds values to the next forward. For input blobs."""
        self._net.feed(self._blob, values)
