"""The base of loss layers: two bottoms, a scalar top, and the normalisation of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Attributes, Layer, Shape

if TYPE_CHECKING:
    from engine.layers.builder import Builder

LABELS_THAT_COUNT = 0.0  # as a normalizer: the number of labels that are not ignored, which only the op knows


class LossLayer(Layer):
    """The base of losses. Bottoms: predictions (N, ...), targets (N, ...); top: the loss (). The top is not multiplied
    by loss_weight, only the gradient is."""

    bottom_range = (2, 2)
    top_range = (0, 1)  # Caffe gives a loss without a top an automatic one
    constant_bottoms = frozenset({1})
    op_type = ""  # the op that computes the loss, if it is not of the type's own name

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def ignored_label(self) -> int | None:
        param = self.message.loss_param
        return param.ignore_label if param.HasField("ignore_label") else None

    def infer(self) -> list[Shape]:
        predictions, targets = self.shapes[:2]
        if not predictions or predictions[:1] != targets[:1]:
            raise self.error(f"expected bottoms with the same first axis, got {predictions} and {targets}")
        return [()]

    def refuse_loss_param(self) -> None:
        """Raises ConfigError for any field of loss_param, for a type that reads none of them."""
        for field, _ in self.message.loss_param.ListFields():
            name = "normalization (or normalize)" if field.name == "normalization" else field.name
            raise self.error(f"{name} has no effect here; take it out of loss_param")

    def attributes(self) -> Attributes:
        # If the gradient is set, to loss_weight, the op reads it there; as an attribute it would count twice.
        weight = 0.0 if self.tops[0].gradient_is_set else self.loss_weights[0]
        return {"loss_weight": float(weight)}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op(self.op_type or self.type, self, inputs, self.attributes())

    def normalizer(self, default: int, outer: int, inner: int) -> float:
        """Returns the number by which loss_param asks to divide the loss, or LABELS_THAT_COUNT.

        default: the mode if the text gives none. outer: the batch size. inner: labels for each sample.
        """
        param = self.message.loss_param
        mode = default
        if param.HasField("normalization"):
            mode = param.normalization
        elif param.HasField("normalize"):  # the older spelling
            mode = param.VALID if param.normalize else param.BATCH_SIZE
        if mode == param.PRE_FIXED and param.pre_fixed_normalizer <= 0:
            raise self.error(f"expected pre_fixed_normalizer above 0, got {param.pre_fixed_normalizer:g}")
        return {
            param.FULL: float(outer * inner),
            param.VALID: LABELS_THAT_COUNT,
            param.BATCH_SIZE: float(outer),
            param.PRE_FIXED: param.pre_fixed_normalizer,
            param.NONE: 1.0,
        }[mode]

    def normalization_attributes(self, default: int, outer: int, inner: int) -> Attributes:
        """Returns the attributes `normalizer`, as normalizer() returns it, and `ignore_label` if loss_param has it."""
        attributes: Attributes = {"normalizer": self.normalizer(default, outer, inner)}
        if self.ignored_label is not None:
            attributes["ignore_label"] = self.ignored_label
        return attributes


VALID = proto.LossParameter.VALID
BATCH_SIZE = proto.LossParameter.BATCH_SIZE
