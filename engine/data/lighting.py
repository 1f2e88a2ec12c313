"""lighting_param: moves colours along the principal components of a data set's (Krizhevsky et al. 2012, 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_within
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.proto import LightingParameter

# Of ImageNet's pixels from 0 to 255: standard deviations along the components; the components as (red, green, blue).
_VALUES = (55.46, 4.794, 1.148)
_VECTORS = (-0.5675, -0.5808, -0.5836, 0.7192, -0.0045, -0.6948, 0.4009, -0.8140, 0.4203)


def make_lighting(param: LightingParameter, where: str | None) -> Callable[[KeyedRandom], np.ndarray]:
    """Returns a function that draws what is added to blue, green and red of all pixels of a picture, (3,) float32.
    Raises ConfigError."""
    check_within(0, param.deviation, 100, "lighting_param.deviation", where)
    values, vectors = list(param.eigenvalue) or _VALUES, list(param.eigenvector) or _VECTORS
    if len(values) != 3 or len(vectors) != 9:
        raise ConfigError(
            f"lighting_param needs 3 eigenvalue and 9 eigenvector fields, or none; got {len(values)} and "
            f"{len(vectors)}",
            where,
        )
    for value in (*values, *vectors):
        check_within(-1e4, value, 1e4, "lighting_param.eigenvalue and eigenvector", where)
    components = np.array(vectors).reshape(3, 3)[:, ::-1] * np.array(values)[:, None]

    def draw(random: KeyedRandom) -> np.ndarray:
        moved = sum(random.normal() * param.deviation * component for component in components)
        return np.asarray(moved, np.float32)

    return draw
