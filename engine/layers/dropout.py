"""Sets random values to zero in training, and does nothing in testing."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Dropout")
class Dropout(Activation):
    """Sets each element to 0 with probability `dropout_ratio` in TRAIN, and multiplies the others by
    1 / (1 - dropout_ratio) (Caffe's layer). In TEST the top is the bottom.

    Bottom and top: any shape, the same. The first axis counts samples, so that the mask of a blob (T, N, ...) depends
    on the number of ranks.

    With R-FCN's `scale_train: false` the others stay as they are, and in TEST all are multiplied by 1 - dropout_ratio.
    With SegNet's `sample_weights_test` elements are dropped in TEST, too (Gal and Ghahramani 2016, arXiv 1506.02142).
    """

    bf16 = True

    def infer(self) -> list[Shape]:
        ratio = self.message.dropout_param.dropout_ratio
        if not (0 <= ratio < 1 or (ratio == 1 and not self.drops)):
            raise self.error(f"expected dropout_ratio in [0, 1), got {ratio:g}")
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        return super().infer()

    @property
    def drops(self) -> bool:
        """Whether elements are dropped in this phase."""
        return self.training or self.message.dropout_param.sample_weights_test

    def attributes(self) -> Attributes:
        ratio, at_train = self.message.dropout_param.dropout_ratio, self.message.dropout_param.scale_train
        if self.drops:
            return {"ratio": ratio, "scale": 1 / (1 - ratio) if at_train else 1.0}
        return {"ratio": 0.0, "scale": 1.0 if at_train else 1 - ratio}

    def flops(self) -> int:
        return super().flops() if self.drops else 0
