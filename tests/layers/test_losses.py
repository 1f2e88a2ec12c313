"""What holds for all losses."""

import numpy as np
import pytest

from tests.layers.harness import run

LABELS = {"l": np.array([0, 1], np.float32)}
TARGETS = {"l": np.ones((2, 3), np.float32)}
ALIKE = {"l": np.ones((2, 3), np.float32), "s": np.array([0, 1], np.float32)}


@pytest.mark.parametrize(
    "kind, others",
    [
        ("ContrastiveLoss", ALIKE),
        ("DiceLoss", TARGETS),
        ("EuclideanLoss", TARGETS),
        ("HingeLoss", LABELS),
        ("InfogainLoss", {**LABELS, "h": np.ones((3, 3), np.float32)}),
        ("L1Loss", TARGETS),
        ("MultinomialLogisticLoss", LABELS),
        ("SigmoidCrossEntropyLoss", TARGETS),
        ("SmoothL1Loss", TARGETS),
        ("SoftmaxWithLoss", LABELS),
        ("SoftmaxWithLossOHEM", LABELS),
        ("SmoothL1LossOHEM", TARGETS),
    ],
)
def test_not_a_number_shows(kind, others):
    """The loss of a net that has diverged must be NaN, not a number that looks good."""
    bottoms = {"x": np.array([[np.nan, 1, 2], [1, np.nan, 3]], np.float32), **others}
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    text = f'layer {{ name: "layer" type: "{kind}" {names} top: "y" }}'
    assert np.isnan(run(text, **bottoms).blobs["y"].data)
