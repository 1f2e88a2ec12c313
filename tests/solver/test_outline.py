"""The outline of a run: the lines that the log begins with, and the doubts about what contradicts itself."""

import pytest

from engine.config import parse_solver
from engine.solver.outline import Outline
from engine.solver.resolve import resolve
from tests.solver.test_resolve import IMAGENET, RECIPE, place


def outline(text: str, batch: int = 14336, size: int = IMAGENET) -> Outline:
    given = parse_solver(text).message
    return Outline(given, *resolve(given, batch, size, place), size)


def test_what_the_log_begins_with():
    text = RECIPE + 'momentum: 0.9 momentum_correction: true weight_decay: 5e-5 weight_decay_schedule { policy: "step"'
    told = outline(text + " gamma: 2 stepsize_epoch: 80 }")
    assert list(told.lines()) == [
        "8043 iterations (90 epochs), warm-up of 446 iterations (4.991 epochs) from 0.1, "
        "peak rate 5.58767 at iteration 445",
        "base_lr 0.1 x 14336 / 256 = 5.6",
        "Weight decay 5e-05, 0.0001 from iteration 7149 on",
    ]
    assert told.to_json() | {"peak_rate": 0} == {
        "global_batch": 14336,
        "epoch_size": IMAGENET,
        "iterations": 8043,
        "warmup_iterations": 446,
        "peak_rate": 0,
        "peak_iteration": 445,
    }
    by_iteration = {point.iteration: point for point in told.points}
    assert by_iteration[1].momentum == pytest.approx(0.9 * (0.1 + 5.5 / 446) / 0.1, rel=1e-5)
    assert by_iteration[0].momentum == pytest.approx(0.9)
    assert [panel.title for panel in told.panels()] == ["learning rate", "weight decay", "momentum"]
    capped = list(outline(RECIPE, 65536).lines())
    assert capped[1] == "base_lr 0.1 x 65536 / 256 = 25.6, capped at 6.4"
    growing = outline(RECIPE + "batch_growth { factor: 2 stepvalue_epoch: 80 }")
    assert list(growing.lines())[-1] == "Global batch 14336, 28672 from iteration 7149 on"
    assert growing.panels("a")[-1].title == "global batch" and growing.panels("a")[0].series[0].name == "a"


def test_nothing_to_doubt():
    assert list(outline(RECIPE).doubts()) == []
    assert list(outline('base_lr: 1 lr_policy: "poly" power: 2 max_iter: 1').doubts()) == []
    assert list(outline(RECIPE.replace("cap: 6.4", ""), 16384).doubts()) == []
    layer_wise = RECIPE.replace("256 cap: 6.4", "128")
    assert list(outline(layer_wise + "larc: true").doubts()) == []
    assert list(outline(layer_wise + "local_lr_auto: true").doubts()) == []
    assert list(outline(RECIPE.replace("LINEAR", "SQRT").replace("cap: 6.4", ""), 65536).doubts()) == []


@pytest.mark.parametrize(
    "text, words",
    [
        (RECIPE.replace("0.1", "4.8") + "warmup_start_lr: 0.1", "base_lr 4.8 seems to be scaled already: it is 48"),
        (RECIPE.replace("6.4", "0.05") + "warmup_start_lr: 0", "lr_scaling.cap 0.05 is below base_lr 0.1"),
        (RECIPE.replace("256 cap: 6.4", "128"), "the linear rule gives 112 times base_lr; published runs stop at 64"),
        (RECIPE.replace("warmup_epoch: 5", ""), "begins at 56 times base_lr, without a warm-up"),
        (RECIPE + "warmup_start_lr: 7", "the warm-up begins at 7, above the rate 5.6"),
        (RECIPE + "epoch_size: 1000000", "epoch_size is 1000000, but the source has 1281167 samples"),
        (RECIPE.replace("warmup_epoch: 5", "warmup_epoch: 95"), "warmup_iter 8489 is longer than the run"),
        ('base_lr: 1 lr_policy: "fixed" max_iter: 9 stepvalue: 12', "stepvalue 12 is never reached"),
        ('base_lr: 1 lr_policy: "poly_cyc" power: 1 max_iter: 90 lr_iter: 50', "rate is 0 at iteration 50 of 90"),
        ('base_lr: 0 lr_policy: "fixed" max_iter: 9', "the learning rate is 0 throughout: nothing is learned"),
        ('base_lr: 0 lr_policy: "step" gamma: 0.1 stepsize: 3 max_iter: 9', "the learning rate is 0 throughout"),
        ('base_lr: 1 lr_policy: "sgdr" cycle_iter: 20 max_iter: 50', "ends when 50% of cycle 3 are over"),
    ],
)  # fmt: skip
def test_doubts(text, words):
    found = list(outline(text).doubts())
    assert len(found) == 1 and words in found[0]
