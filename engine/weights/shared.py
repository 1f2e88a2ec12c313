"""Finds the gaps in a layer's blobs in files that hold a blob once where several layers share it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import WeightsError


def with_gaps(
    layer: str, stored: Sequence[np.ndarray | None], shares: Sequence[bool], source: str
) -> list[np.ndarray | None]:
    """Returns a blob for each parameter of a layer, None where the file lacks one that another layer owns.

    Caffe leaves such blobs out of an HDF5 file; if they are the last ones, nothing in the file shows it. Raises
    WeightsError if the file has more blobs than the layer, or lacks one that the layer owns.

    Args:
        layer: its name, for errors.
        stored: the layer's blobs in the file.
        shares: for each parameter, whether another layer owns it.
        source: the file, for errors.
    """
    given = [*stored, *[None] * (len(shares) - len(stored))]
    if len(stored) > len(shares) or not all(shares[len(stored) :]):
        raise WeightsError(
            f"layer '{layer}': the file has {len(stored)} blobs, the net {len(shares)}; define the layer as the file's "
            "net does (bias_term: whether it has a bias)",
            source,
        )
    for index, (values, shared) in enumerate(zip(given, shares, strict=True)):
        if values is None and not shared:
            raise WeightsError(f"layer '{layer}', blob {index}: the file does not have it", source)
    return given
