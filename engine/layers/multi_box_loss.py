"""Computes the loss of a detector with prior boxes (SSD)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import VALID, LossLayer
from engine.layers.prior_predictions import PriorPredictions
from engine.layers.registry import register


@register("MultiBoxLoss")
class MultiBoxLoss(LossLayer, PriorPredictions):
    """SSD's loss of locations and classes. Bottoms: locations, confidences and priors (see PriorPredictions), and
    ground truth (1, 1, M, 8) of image, label, instance, x1, y1, x2, y2, difficult, where rows of image -1 are unused;
    top: the loss ().

    The loss has two terms, each divided by the number of priors that match a true box (with normalization VALID). One
    is `loc_weight` times the loss of the offsets of these priors. The other is the loss of their classes and, with
    mining_type MAX_NEGATIVE, of the classes of other priors: in each image, of those whose loss is largest,
    neg_pos_ratio times as many as match. As in SSD, locations or confidences with `propagate_down: false` add nothing
    to the loss.
    """

    bottom_range = (4, 4)
    constant_bottoms = frozenset({2, 3})

    @property
    def param(self):
        return self.message.multibox_loss_param

    def infer(self) -> list[Shape]:
        self.check_predictions()
        param, truth = self.param, self.shapes[3]
        # As in SSD, the height is the number of rows, whatever the other axes are: a blob of DummyData will do.
        if len(truth) != 4 or math.prod(truth) < 8 * truth[2]:
            raise self.error(f"expected ground truth (1, 1, M, 8), got {truth}")
        if param.mining_type == param.HARD_EXAMPLE or param.HasField("nms_param"):
            raise self.error("expected mining_type MAX_NEGATIVE or NONE, without nms_param")
        if not param.use_prior_for_matching:
            raise self.error("expected use_prior_for_matching, the only way of matching that is supported")
        if param.background_label_id >= param.num_classes:
            raise self.error(f"expected background_label_id below num_classes, {param.num_classes}")
        if param.map_object_to_agnostic and param.num_classes != 2:
            raise self.error(f"expected num_classes 2 with map_object_to_agnostic, got {param.num_classes}")
        if param.map_object_to_agnostic and param.background_label_id != 0:
            raise self.error(
                f"expected background_label_id 0 with map_object_to_agnostic, got {param.background_label_id}"
            )
        if self.mining and not param.share_location:
            raise self.error("expected share_location with mining_type MAX_NEGATIVE")
        if self.mining and param.neg_pos_ratio <= 0:
            raise self.error(f"expected neg_pos_ratio above 0, got {param.neg_pos_ratio:g}")
        return [()]

    @property
    def mining(self) -> bool:
        """Whether mining_type is MAX_NEGATIVE."""
        if self.param.HasField("do_neg_mining") and not self.param.HasField("mining_type"):
            return self.param.do_neg_mining  # the older spelling
        return self.param.mining_type == self.param.MAX_NEGATIVE

    def attributes(self) -> Attributes:
        param = self.param
        with_locations, with_classes = [*self.message.propagate_down, True, True][:2]
        return {
            **super().attributes(),
            **self.prediction_attributes(),
            **self.normalization_attributes(VALID, self.shapes[0][0], self.priors),
            "variance_in_target": param.encode_variance_in_target,
            "per_prediction": param.match_type == param.PER_PREDICTION,
            "overlap_threshold": param.overlap_threshold,
            "ignore_cross_boundary": param.ignore_cross_boundary_bbox,
            "use_difficult": param.use_difficult_gt,
            "agnostic": param.map_object_to_agnostic,
            "mining": self.mining,
            "neg_pos_ratio": param.neg_pos_ratio,
            "neg_overlap": param.neg_overlap,
            "inside_only": param.bp_inside,
            "with_locations": with_locations,
            "with_classes": with_classes,
            "loc_weight": param.loc_weight,
            "l2": param.loc_loss_type == param.L2,
            "logistic": param.conf_loss_type == param.LOGISTIC,
        }

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[1])
