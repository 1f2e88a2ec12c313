"""Computes the loss of sequences of labels whose places are not known (CTC, Graves et al. 2006), from several forks."""

from __future__ import annotations

import math
from typing import ClassVar

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("CTCLoss")
class CTCLoss(LossLayer):
    """Computes the mean over the sequences of -log(probability that they spell their labels), as several forks do. The
    gradient is that of the sum.

    Bottoms: scores (T, N, C), before the softmax; indicators (T, N); labels (L, N), which a negative one ends. A
    sequence ends before the first indicator of 0 behind the first step. Top: the loss ().
    """

    op_type = "CTCLoss"
    bottom_range = (3, 3)
    constant_bottoms = frozenset({1, 2, 3})
    sums_batch = True
    # The fields of ctc_loss_param that this type reads.
    fields: ClassVar[tuple[str, ...]] = ("blank_index",)

    @property
    def blank(self) -> int:
        """The class that stands for no label: by default the last."""
        given = self.message.ctc_loss_param.blank_index
        return given if given >= 0 else self.shapes[0][2] - 1

    @property
    def shift(self) -> int:
        """What is added to a label to get its class: 1 if the blank is class 0 and labels begin at 0 all the same."""
        return 0

    @property
    def time(self) -> int:
        """The length of all sequences, for forms in which no bottom tells it."""
        return self.shapes[0][0]

    def infer(self) -> list[Shape]:
        self._check_fields()
        scores = self.shapes[0]
        if len(scores) < 3 or math.prod(scores[3:]) != 1:
            raise self.error(f"expected scores (T, N, C), of steps of time, sequences and classes, got {scores}")
        steps, count, classes = scores[:3]
        if not 0 <= self.blank < classes:
            raise self.error(f"expected a blank in [0, {classes}), the classes of the scores, got {self.blank}")
        expected = {
            2: [("labels", (count, ...))],
            3: [("indicators", (steps, count)), ("labels", (..., count))],
            4: [("lengths", (count,)), ("numbers of labels", (count,)), ("labels", (..., count))],
        }[len(self.bottoms)]
        for (what, wanted), shape in zip(expected, self.shapes[1:]):
            if not _fits(wanted, shape):
                axes = ", ".join("L" if size is ... else str(size) for size in wanted)
                raise self.error(f"expected {what} ({axes}{',' if len(wanted) == 1 else ''}), got {shape}")
        return [()]

    def _check_fields(self) -> None:
        """Raises ConfigError for a field that only other types read, and for any of loss_param."""
        for name in ("blank_index", "blank_label", "alphabet_size", "time_step"):
            if name not in self.fields and self.message.ctc_loss_param.HasField(name):
                raise self.error(f"{name} is of another type; expected {', '.join(self.fields)}")
        self.refuse_loss_param()

    def attributes(self) -> Attributes:
        return super().attributes() | {"blank": self.blank, "shift": self.shift, "time": self.time}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])


def _fits(wanted: tuple, shape: Shape) -> bool:
    """Tells whether a shape is the wanted one, in which ... stands for any size. Axes of 1 may follow."""
    if len(wanted) == 1:
        return math.prod(shape) == wanted[0]
    return len(shape) >= 2 and math.prod(shape[2:]) == 1 and all(w in (..., s) for w, s in zip(wanted, shape))


@register("WarpCTCLoss")
class WarpCTCLoss(CTCLoss):
    """Computes a CTCLoss whose blank is class 0 by default; beside indicators, labels then begin at 0 for class 1.

    Bottoms: those of CTCLoss; or scores and labels (N, L), among which blanks are no labels; or scores, lengths (N),
    numbers of labels (N) and labels (L, N).
    """

    bottom_range = (2, 4)

    @property
    def blank(self) -> int:
        return max(self.message.ctc_loss_param.blank_index, 0)

    @property
    def shift(self) -> int:
        return int(len(self.bottoms) == 3 and self.message.ctc_loss_param.blank_index < 0)


@register("CtcLoss")
class CtcLoss(CTCLoss):
    """Computes the loss of CTCLoss for sequences of one length, `time_step` (T), as CRNN's forks do.

    Bottoms: scores (T, N, C), before the softmax; labels (N, L), among which `blank_label` (0) is no label. Top: the
    loss ().
    """

    bottom_range = (2, 2)
    fields = ("blank_label", "alphabet_size", "time_step")

    @property
    def blank(self) -> int:
        return self.message.ctc_loss_param.blank_label

    @property
    def time(self) -> int:
        param = self.message.ctc_loss_param
        return param.time_step if param.HasField("time_step") else self.shapes[0][0]

    def infer(self) -> list[Shape]:
        tops, param = super().infer(), self.message.ctc_loss_param
        steps, _, classes = self.shapes[0][:3]
        if param.HasField("alphabet_size") and param.alphabet_size != classes:
            raise self.error(f"expected alphabet_size {classes}, the classes of the scores, got {param.alphabet_size}")
        if not 1 <= self.time <= steps:
            raise self.error(f"expected a time_step from 1 to {steps}, the steps of the scores, got {self.time}")
        return tops
