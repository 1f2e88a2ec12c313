"""mix_param: blends pairs of training samples and their labels (mixup, Zhang et al. 2017, arXiv 1710.09412), or lets
them take rectangles of each other (CutMix, Yun et al. 2019, arXiv 1905.04899).

Samples 2k and 2k + 1 of a rank's batch are a pair. The batch has an even size, so that they are the same two samples on
any number of ranks. How much a sample takes from its partner is drawn by its own key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.data.decode import ImageError
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_within
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.proto import MixParameter

_MOST_ALPHA, _MOST_CLASSES = 100.0, 1 << 20
_STREAM = 0x6D6978  # keeps these draws apart from those of the transforms of the same sample

Portion = tuple[float, int, int, int, int]  # weight of the partner's pixels; top, left, height, width
Key = tuple[int, int]  # epoch, index


class Mix:
    """Does what a mix_param says: label_shape() and one_hot() tell what a label becomes, mix() mixes two samples."""

    def __init__(self, param: MixParameter, batch_size: int, seed: int, where: str | None):
        """Raises ConfigError."""
        from engine.host import _core

        check_within(0, param.prob, 1, "mix_param.prob", where)
        check_within(0, param.cutmix_prob, 1, "mix_param.cutmix_prob", where)
        for name in ("mixup_alpha", "cutmix_alpha"):
            check_within(0, getattr(param, name), _MOST_ALPHA, f"mix_param.{name}", where)
        check_within(0, param.num_classes, _MOST_CLASSES, "mix_param.num_classes", where)
        if not (param.mixup_alpha or param.cutmix_alpha):
            raise ConfigError("mix_param needs mixup_alpha, cutmix_alpha, or both", where)
        if batch_size % 2:
            raise ConfigError(f"mix_param needs an even batch_size, for pairs of samples; got {batch_size}", where)
        self._param, self._seed, self._where = param, seed, where
        self._mix: Callable[..., None] = _core.mix

    def label_shape(self, labels: int) -> tuple[int]:
        """Returns the shape of what `labels` labels of one sample become. Raises ConfigError."""
        if labels > 1:
            return (labels,)
        if self._param.num_classes < 2:
            raise ConfigError(
                "mix_param makes a distribution of each label: set num_classes to the number of classes", self._where
            )
        return (self._param.num_classes,)

    def one_hot(self, label: float, out: np.ndarray) -> None:
        """Writes the distribution of a label to `out` (classes,). Raises ImageError for a label that is no class."""
        if not (0 <= label < len(out) and label == int(label)):
            raise ImageError(f"its label {label:g} is not one of mix_param's {len(out)} classes, 0 to {len(out) - 1}")
        out[:] = 0
        out[int(label)] = 1

    def mix(self, keys: Sequence[Key], pictures: np.ndarray, labels: Sequence[np.ndarray]) -> None:
        """Mixes two samples in place: their keys, pictures (2, c, h, w), and arrays (2, n) of their labels."""
        height, width = pictures.shape[2:]
        portions = [self._draw(KeyedRandom(self._seed ^ _STREAM, *key), height, width) for key in keys]
        self._mix(pictures[0], pictures[1], *portions)
        taken = np.array([weight * h * w / (height * width) for weight, _, _, h, w in portions], np.float32)
        for values in labels:
            before = values.copy()
            values[:] = before * (1 - taken[:, None]) + before[::-1] * taken[:, None]

    def _draw(self, random: KeyedRandom, height: int, width: int) -> Portion:
        """Draws what a sample takes from its partner."""
        param = self._param
        if random.uniform(0, 1) >= param.prob:
            return 0.0, 0, 0, 0, 0
        both = param.mixup_alpha and param.cutmix_alpha
        cut = random.uniform(0, 1) < param.cutmix_prob if both else bool(param.cutmix_alpha)
        taken = random.beta(param.cutmix_alpha if cut else param.mixup_alpha)
        if not cut:
            return taken, 0, 0, height, width
        h, w = (int(side * math.sqrt(taken)) for side in (height, width))
        middle_y, middle_x = random.integer(0, height - 1), random.integer(0, width - 1)
        top, left = max(0, middle_y - h // 2), max(0, middle_x - w // 2)
        bottom, right = min(height, middle_y - h // 2 + h), min(width, middle_x - w // 2 + w)
        return 1.0, top, left, bottom - top, right - left
