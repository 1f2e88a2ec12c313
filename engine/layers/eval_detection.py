"""Marks each box of a YOLO detector as right or wrong, for the mean average precision of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.anchor_grid import AnchorGrid
from engine.layers.base import Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("EvalDetection")
class EvalDetection(AnchorGrid):
    """Compares the boxes of a YOLO detector with the true ones, as the forks for YOLO do.

    Bottoms: predictions, ground truth, as AnchorGrid has them; a third, the images, is not read. Top:
    (N, num_class + side^2 num_object 4): how many boxes of each class the image has; then label (from 0), score, right,
    wrong of every detection; then zeros.

    Of boxes that overlap by `nms` only the one with the best score stays, whatever their classes. A detection is right
    if it overlaps a box of its class by `threshold` and no better one has claimed that box.

    A detection has the label of its most probable class. Its score is the probability of an object (`score_type: OBJ`),
    of that class (PROB) or their product (MULTIPLY, the default); detections that score less than 0.005 are left out.
    With a negative `nms`, the default, all boxes stay.
    """

    bottom_range = (2, 3)
    differentiable = False
    is_measure = True
    constant_bottoms = frozenset({0, 1, 2})

    @property
    def param(self):
        return self.message.eval_detection_param

    @property
    def anchors(self) -> int:
        return self.param.num_object

    @property
    def plane(self) -> Shape:
        return self.param.side, self.param.side

    def infer(self) -> list[Shape]:
        self.check_grid()
        return [(self.shapes[0][0], self.param.num_class + self.param.side**2 * self.anchors * 4)]

    def lower(self, builder: Builder) -> None:
        param = self.param
        inputs = [builder.plain(self, builder.tensor(blob)) for blob in self.bottoms[:2]]
        score = param.ScoreType.Name(param.score_type)
        attributes = {**self.grid_attributes(), "threshold": param.threshold, "nms": param.nms, "score": score}
        builder.op("EvalDetection", self, inputs, attributes)
