"""Changes a picture's bytes, between its crop and the floats that a net reads.

distort.py, noise.py and rand_augment.py draw lists of changes; C++ makes them, in place and without the GIL.
csrc/kernels/retouch.h says what each change does, and which numbers it takes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from engine.data.decode import as_array, as_pillow, check_pixels, decode_bytes
from engine.data.keyed_random import KeyedRandom

# Numbers of Change::Kind.
LINEAR, STEPS, BITS, SOLARIZE, CONTRAST, COLOUR, SHARPNESS, AUTOCONTRAST, EQUALIZE, EQUALIZE_LIGHT = range(10)
SATURATION, HUE, ORDER, BLUR, ERODE, AFFINE, DOTS, HSV = range(10, 18)
JPEG = -1  # Pillow compresses and decodes the picture; its number is the quality

_NUMBERS = 6

Change = tuple[float, ...]  # the kind of change, and its numbers
Draw = Callable[[KeyedRandom, int, int], Sequence[Change]]  # (random, height, width of the crop) -> changes


def retouch(pixels: np.ndarray, changes: Sequence[Change]) -> None:
    """Makes changes to a crop (h, w, 1 or 3) of bytes, C-contiguous, in place. Raises ImageError for floats and other
    numbers of channels."""
    from engine.host import _core

    check_pixels(pixels)
    for compressed, group in groupby(changes, lambda change: change[0] == JPEG):
        if compressed:
            for _, quality in group:
                pixels[:] = _compressed(pixels, int(quality))
        else:
            _core.retouch(pixels, [(*change, *[0.0] * (1 + _NUMBERS - len(change))) for change in group])


def _compressed(pixels: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    as_pillow(pixels).save(file, "JPEG", quality=quality)
    return as_array(decode_bytes(file.getvalue()))
