"""Computes the mean image of a source, for transform_param's mean_file."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from engine.data.decode import ImageError, as_array, decode, parse_datum
from engine.data.mean import write_mean
from engine.data.ordered_map import ordered_map
from engine.data.prefetch import data_threads
from engine.data.registry import open_source
from engine.errors import DataError, shape_text
from engine.files import check_apart, check_writable


def compute_image_mean(
    db: str,
    out: str | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Computes the mean over all images of db, which must be of one size, in double precision. Returns it as (c, h, w)
    float32, and writes it to out as a BlobProto of 1 x c x h x w, if out is given. mean.mean(axis=(1, 2)) are the
    values for mean_value.

    progress: called with (images done, all images).
    Raises DataError, which names the key, for images that differ in size or are damaged. Raises EngineError, before it
    reads any image, if out cannot be written or is one of db's files.
    """
    if out is not None:
        check_writable(out)
    source = open_source(db)
    if out is not None and os.path.lexists(out):  # a new file cannot be one of db's, of which there may be millions
        check_apart(out, *source.files_of(db))

    def pixels(index: int) -> tuple[str, np.ndarray]:
        key, value = source.item(index)
        try:
            return key, as_array(decode(parse_datum(value) if isinstance(value, bytes) else value))
        except ImageError as error:
            raise DataError(f"{db}: key '{key}': {error}") from None

    total: np.ndarray | None = None  # (h, w, c)
    for done, (key, image) in enumerate(ordered_map(pixels, range(len(source)), data_threads()), 1):
        if total is None:
            total = np.zeros(image.shape, np.float64)
        if image.shape != total.shape:
            raise DataError(
                f"{db}: key '{key}': image of {shape_text(image.shape)} (h x w x c), the others are of "
                f"{shape_text(total.shape)}; convert_imageset can resize them"
            )
        total += image
        if progress and (done % 1000 == 0 or done == len(source)):
            progress(done, len(source))
    if total is None:
        raise DataError(f"{db} is empty")
    mean = np.ascontiguousarray((total / len(source)).transpose(2, 0, 1), np.float32)
    if out is not None:
        write_mean(out, mean)
    return mean
