"""What layers share that read the predictions of a YOLO detector."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Layer


class AnchorGrid(Layer):
    """Bottoms begin with: predictions (N, anchors * (5 + num_class), side, side), for every anchor x, y, w, h, object
    and scores of classes; ground truth (1, 1, M, 8) of image, label (from 1), instance, x1, y1, x2, y2, difficult,
    padded with rows of image -1. `biases` are the anchors' widths and heights, in pixels of the plane."""

    constant_bottoms = frozenset({1})

    @property
    def param(self):
        raise NotImplementedError

    @property
    def anchors(self) -> int:
        raise NotImplementedError

    def check_grid(self) -> None:
        predictions, truth = self.shapes[:2]
        param, numbers = self.param, self.anchors * (5 + self.param.num_class)
        if param.num_class < 1 or self.anchors < 1:
            raise self.error(f"expected classes and anchors of at least 1, got {param.num_class} and {self.anchors}")
        if len(predictions) != 4 or predictions[1:] != (numbers, param.side, param.side):
            raise self.error(f"expected predictions {('N', numbers, param.side, param.side)}, got {predictions}")
        if len(truth) != 4 or truth[3] != 8:
            raise self.error(f"expected ground truth (1, 1, M, 8), got {truth}")
        if len(param.biases) != 2 * self.anchors or min(param.biases) <= 0:
            raise self.error(
                f"expected {2 * self.anchors} biases above 0, width and height of each anchor, got {list(param.biases)}"
            )

    def grid_attributes(self) -> Attributes:
        return {"classes": self.param.num_class, "anchors": list(self.param.biases)}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])
