"""Makes blobs of values from fillers, for measuring speed and for tests."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.layers.base import Blob, Layer, Shape
from engine.layers.fillers import fill, keyed_generator
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

_ZEROS = proto.FillerParameter()
MOST_SAMPLES = 1 << 16  # in a batch with per_sample: to make the generator of each takes 10 us and more


@register("DummyData")
class DummyData(Layer):
    """Fills its tops (Caffe's layer). Tops: `shape` (or, older, num, channels, height and width) and `data_filler` are
    given once for all tops or once for each.

    Constant blobs are made once, others at every step, as in Caffe. With `per_sample` the values of a sample
    (along the first axis) depend on its number in the whole training: each rank has samples of its own, and together
    the ranks have those that a single rank would have.
    """

    bottom_range = (0, 0)
    top_range = (1, None)

    def infer(self) -> list[Shape]:
        param, count = self.message.dummy_data_param, len(self.message.top)
        if param.shape:
            shapes = [tuple(shape.dim) for shape in self._for_each_top("shape", param.shape)]
        else:
            names = ("num", "channels", "height", "width")
            columns = [self._for_each_top(name, getattr(param, name)) for name in names]
            shapes = list(zip(*columns, strict=True))
        if len(param.data_filler) > 1:
            self._for_each_top("data_filler", param.data_filler)
        for shape in shapes:
            if any(dim <= 0 for dim in shape):
                raise self.error(f"expected dims above 0, got {shape}")
            if param.per_sample and not shape:
                raise self.error("per_sample: expected a first axis, of samples, got a shape without axes")
            if param.per_sample and shape[0] > MOST_SAMPLES:
                raise self.error(f"per_sample: expected at most {MOST_SAMPLES} samples, got {shape[0]}")
        return shapes[:count]

    def _for_each_top(self, name: str, values) -> list:
        """Returns a value of a field for each top. Raises ConfigError for another number of values."""
        count = len(self.message.top)
        if len(values) not in (1, count):
            wanted = "1" if count == 1 else f"1 or {count}"
            raise self.error(f"expected {wanted} of dummy_data_param.{name} for {count} tops, got {len(values)}")
        return list(values) if len(values) == count else list(values) * count

    def feed(self, step: int, seed: int, first_sample: int | None = None) -> dict[Blob, np.ndarray]:
        """Returns float32 values of the tops, which depend only on the step (or the samples' numbers), the seed and the
        layer's name."""
        fillers = self._for_each_top("data_filler", self.message.dummy_data_param.data_filler or [_ZEROS])
        for index, (top, filler) in enumerate(zip(self.tops, fillers, strict=True)):
            if top not in self._values or filler.type != "constant":
                self._values[top] = self._fill(top.shape, filler, (seed, self.name, index), step, first_sample)
        return self._values

    def _fill(
        self, shape: Shape, filler: proto.FillerParameter, key: tuple[int, str, int], step: int, first: int | None
    ) -> np.ndarray:
        """Returns the values of a top. key: the seed, the layer's name, the index of the top. first: the number of the
        batch's first sample; None: steps are counted instead."""
        if not self.message.dummy_data_param.per_sample:
            return fill(shape, filler, keyed_generator(*key, step), self.where)
        first = step * shape[0] if first is None else first
        samples = range(first, first + shape[0])
        return np.stack([fill(shape[1:], filler, keyed_generator(*key, each), self.where) for each in samples])

    @cached_property
    def _values(self) -> dict[Blob, np.ndarray]:
        """The values of each top, kept from step to step."""
        return {}

    def lower(self, builder: Builder) -> None:
        for top in self.tops:
            builder.input(top)

    def flops(self) -> int:
        return 0
