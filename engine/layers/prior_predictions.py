"""The base of layers that read a detector's predictions for prior boxes (SSD)."""

from __future__ import annotations

import math

from engine import proto
from engine.layers.base import Attributes, Layer

CODES = proto.PriorBoxParameter.CodeType


class PriorPredictions(Layer):
    """The first three bottoms are locations (N, P * 4), or (N, P * classes * 4) without `share_location`, confidences
    (N, P * classes), and priors (1, 2, P * 4), which are boxes and variances."""

    @property
    def param(self):
        raise NotImplementedError

    @property
    def priors(self) -> int:
        """P, the number of prior boxes."""
        return math.prod(self.shapes[2]) // 8

    def check_predictions(self) -> None:
        """Raises ConfigError unless the first three bottoms fit each other."""
        locations, confidences, priors = self.shapes[:3]
        classes = self.param.num_classes
        if classes < 1:
            raise self.error("num_classes is missing")
        if len(priors) < 3 or priors[1] != 2 or math.prod(priors) % 8:
            raise self.error(f"expected priors (1, 2, boxes * 4), got {priors}")
        location_classes = 1 if self.param.share_location else classes
        for what, shape, each in (
            ("locations", locations, 4 * location_classes),
            ("confidences", confidences, classes),
        ):
            if not shape or shape[0] != locations[0] or math.prod(shape[1:]) != self.priors * each:
                raise self.error(
                    f"expected {what} ({locations[0] if locations else 'N'}, {self.priors * each}), {each} for each of "
                    f"{self.priors} priors, got {shape}"
                )

    def prediction_attributes(self) -> Attributes:
        return {
            "classes": self.param.num_classes,
            "background": self.param.background_label_id,
            "share_location": self.param.share_location,
            "code": CODES.Name(self.param.code_type),
        }
