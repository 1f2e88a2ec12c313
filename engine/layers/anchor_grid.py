"""What layers share that read the predictions of a YOLO detector."""

from __future__ import annotations

import math

from engine.errors import numbers_text
from engine.layers.base import Attributes, Layer, Shape
from engine.layers.loss import LossLayer


class AnchorGrid(Layer):
    """Bottoms begin with: predictions (N, anchors * (5 + num_class), H, W), for every anchor x, y, w, h, object and
    scores of classes; ground truth (1, 1, M, 8) of image, label (from 1), instance, x1, y1, x2, y2, difficult, padded
    with rows of image -1. `biases` are the anchors' widths and heights, in pixels of the plane."""

    constant_bottoms = frozenset({1})

    @property
    def param(self):
        raise NotImplementedError

    @property
    def anchors(self) -> int:
        raise NotImplementedError

    @property
    def plane(self) -> Shape:
        """(H, W) that predictions must have."""
        return self.shapes[0][2:]

    @property
    def truths(self) -> str:
        """The shapes of ground truth that fits_truth() takes."""
        return "(1, 1, M, 8)"

    def fits_truth(self, truth: Shape) -> bool:
        return truth[3] == 8

    def check_grid(self) -> None:
        predictions, truth = self.shapes[:2]
        param, channels = self.param, self.anchors * (5 + self.param.num_class)
        if param.num_class < 1 or self.anchors < 1:
            raise self.error(f"expected classes and anchors of at least 1, got {param.num_class} and {self.anchors}")
        if len(predictions) != 4 or predictions[1:] != (channels, *self.plane):
            sides = self.plane if len(self.plane) == 2 else ("H", "W")
            raise self.error(f"expected predictions {('N', channels, *sides)}, got {predictions}")
        if len(truth) != 4 or not self.fits_truth(truth):
            raise self.error(f"expected ground truth {self.truths}, got {truth}")
        self.check_biases()

    def check_biases(self) -> None:
        biases = self.param.biases
        if len(biases) != 2 * self.anchors or min(biases) <= 0:
            raise self.error(
                f"expected {2 * self.anchors} biases above 0, width and height of each anchor, got "
                f"{numbers_text(biases)}"
            )

    def grid_attributes(self) -> Attributes:
        return {"classes": self.param.num_class, "anchors": list(self.param.biases)}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])


class GridLoss(LossLayer, AnchorGrid):
    """Ground truth may be (N, 1, M, 5), too: label (from 0), x and y of the center, width, height, padded with rows of
    0, as MobileNet-YOLO's fork has it. Top: the loss ()."""

    @property
    def truths(self) -> str:
        return f"{super().truths} or ({self.shapes[0][0]}, 1, M, 5)"

    def fits_truth(self, truth: Shape) -> bool:
        return super().fits_truth(truth) or (truth[3] == 5 and truth[:2] == (self.shapes[0][0], 1))

    def attributes(self) -> Attributes:
        param = self.param
        return {
            **super().attributes(),
            **self.grid_attributes(),
            "object_scale": param.object_scale,
            "class_scale": param.class_scale,
            "coord_scale": param.coord_scale,
            "threshold": param.thresh,
        }
