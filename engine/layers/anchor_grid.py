"""The base of layers that read the predictions of a YOLO detector."""

from __future__ import annotations

import math

from engine.errors import numbers_text
from engine.layers.base import Attributes, Layer, Shape
from engine.layers.loss import LossLayer


class AnchorGrid(Layer):
    """Bottoms begin with: predictions (N, anchors * (5 + num_class), H, W), ground truth (1, 1, M, 8).

    For every anchor there are predictions of x, y, w, h, of an object, and of each class. A row of ground truth has
    image, label (from 1), instance, x1, y1, x2, y2, difficult; rows of image -1 are padding. `biases` are the anchors'
    widths and heights, in pixels of the plane.
    """

    constant_bottoms = frozenset({1})

    @property
    def param(self):
        raise NotImplementedError

    @property
    def anchors(self) -> int:
        """How many anchors a pixel of the plane has."""
        raise NotImplementedError

    @property
    def plane(self) -> Shape:
        """The (H, W) that predictions must have."""
        return self.shapes[0][2:]

    @property
    def truths(self) -> str:
        """The shapes of ground truth that fits_truth() takes, for messages."""
        return "(1, 1, M, 8)"

    def fits_truth(self, truth: Shape) -> bool:
        """Tells whether a shape of four axes can be that of ground truth."""
        return truth[3] == 8

    def check_grid(self) -> None:
        """Raises ConfigError if predictions, ground truth or biases do not fit."""
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
        """Raises ConfigError unless there are a width and a height above 0 for each anchor."""
        biases = self.param.biases
        if len(biases) != 2 * self.anchors or min(biases) <= 0:
            raise self.error(
                f"expected {2 * self.anchors} biases above 0, width and height of each anchor, got "
                f"{numbers_text(biases)}"
            )

    def grid_attributes(self) -> Attributes:
        """Returns the attributes that the ops of all these layers read."""
        return {"classes": self.param.num_class, "anchors": list(self.param.biases)}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])


class GridLoss(LossLayer, AnchorGrid):
    """The base of losses of such predictions. Top: the loss ().

    Ground truth may be (N, 1, M, 5), too, as in MobileNet-YOLO's fork: label (from 0), x and y of the center, width,
    height; rows of 0 are padding.
    """

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
