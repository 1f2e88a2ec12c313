"""Blobs that several layers share, in files that hold each once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import WeightsError


def with_gaps(
    layer: str, stored: Sequence[np.ndarray | None], shares: Sequence[bool], source: str
) -> list[np.ndarray | None]:
    """A layer's blobs as a file has them, one for each of its parameters: None for a blob that is another layer's, too.

    Caffe leaves such blobs out of an HDF5 file, and of the last ones nothing in it tells. shares: of each parameter,
    whether another layer owns it. Raises WeightsError where the file has more blobs, or lacks one that the layer owns.
    """
    given = [*stored, *[None] * (len(shares) - len(stored))]
    if len(stored) > len(shares) or not all(shares[len(stored) :]):
        raise WeightsError(f"layer '{layer}': the file has {len(stored)} blobs, the net {len(shares)}", source)
    for index, (values, shared) in enumerate(zip(given, shares, strict=True)):
        if values is None and not shared:
            raise WeightsError(f"layer '{layer}', blob {index}: the file does not have it", source)
    return given
