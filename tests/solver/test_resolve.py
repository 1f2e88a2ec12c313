"""Solvers in epochs, with rates for a base batch, against published recipes; and fields that contradict each other."""

import math

import pytest

from engine.config import parse_solver
from engine.errors import ConfigError, ConfigErrors
from engine.solver.calendar import Calendar
from engine.solver.resolve import rate_share, resolve
from engine.solver.schedules import LearningRate
from engine.solver.validate import check_schedules, validate

IMAGENET = 1281167
RECIPE = """
base_lr: 0.1 lr_policy: "poly" power: 1 max_epoch: 90 warmup_epoch: 5
lr_scaling { rule: LINEAR base_batch: 256 cap: 6.4 }
"""


def place(field: str) -> str:
    return f"s.prototxt: {field}"


def resolved(text: str, batch: int, size: int = IMAGENET):
    return resolve(parse_solver(text).message, batch, size, place)


@pytest.mark.parametrize(
    "ranks, local, peak, warmup",
    [
        (256, 16, 1.6, 1563),
        (896, 16, 5.6, 446),  # G 6.2: "446 iterations"
        (1024, 16, 6.4, 390),
        (1536, 32, 6.4, 130),  # P V.C: 6.4 from 16K on
    ],
)
def test_one_file_for_any_number_of_ranks(ranks, local, peak, warmup):
    batch = ranks * local
    param, calendar = resolved(RECIPE, batch)
    assert (param.warmup_iter, param.max_iter) == (warmup, math.floor(90 * IMAGENET / batch))
    assert param.base_lr == pytest.approx(peak) and calendar.batch == batch
    rate = LearningRate(param)
    assert rate(0) == pytest.approx(0.1)  # the rate of the base batch
    assert rate(warmup) == pytest.approx(peak * (1 - warmup / param.max_iter), rel=1e-5)
    assert not param.HasField("max_epoch") and param.max_iter


def test_below_the_base_batch_no_warm_up_comes_down():
    """The rate would begin at that of the base batch, which is higher; it is the batch's own from the start."""
    param, _ = resolved(RECIPE, 16)
    rate = LearningRate(param)
    assert param.base_lr == pytest.approx(0.1 * 16 / 256)
    for iteration in (0, param.warmup_iter // 2, param.warmup_iter - 1):
        assert rate(iteration) == pytest.approx(param.base_lr)


def test_the_tensorflow_recipe():
    """T: a batch of 24576 images, the rate of 9.6 halved to 4.8, 260 iterations of warm-up, then linear to 0 over the
    other 4420 of 4680."""
    text = RECIPE.replace("6.4", "4.8") + "policy_after_warmup: true"
    param, _ = resolved(text, 24576, 1280000)
    assert (param.warmup_iter, param.max_iter) == (260, 4687)
    param.max_iter = 4680
    rate = LearningRate(param)
    for i in range(0, 4681, 13):
        expected = 0.1 + 4.7 * i / 260 if i < 260 else 4.8 * (4680 - i) / 4420
        assert rate(i) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_the_square_root():
    """I: the recipe of Inception-ResNet-v2."""
    text = 'base_lr: 0.045 lr_policy: "fixed" max_iter: 9 lr_scaling { rule: SQRT base_batch: 32 }'
    assert resolved(text, 2048)[0].base_lr == pytest.approx(0.045 * 8)
    assert resolved(text, 32)[0].base_lr == pytest.approx(0.045)


@pytest.mark.parametrize(
    ("scaling", "share"),
    [
        ("", 0.5),
        ("lr_scaling { }", 0.5),
        ("lr_scaling { rule: SQRT }", math.sqrt(0.5)),
        ("lr_scaling { cap: 6.4 }", 1),  # by the rule alone they would be 19.2 and 9.6
        ("lr_scaling { cap: 12.8 }", 0.75),
    ],
)
def test_the_share_of_the_rate_that_a_smaller_batch_has(scaling, share):
    given = parse_solver(f"base_lr: 0.1 {scaling}").message
    assert rate_share(given, 24576, 49152) == pytest.approx(share)


def test_every_field_in_epochs():
    text = """
    max_epoch: 10 warmup_epoch: 1 lr_epoch: 20 stepsize_epoch: 2.5 stepvalue_epoch: 3 stepvalue_epoch: 6.5
    stage_epoch: 4 plateau_epoch: 0.5 cycle_epoch: 2 test_epoch: 1 snapshot_epoch: 2 display_epoch: 0.1
    weight_decay_schedule { policy: "step" stepsize_epoch: 2 stepvalue_epoch: 7 }
    batch_growth { factor: 2 stepvalue_epoch: 5 stepvalue_epoch: 6 }
    """
    param, calendar = resolved(text, 10, 100)
    assert calendar == Calendar(10, 100, (50, 55), 2)
    assert (param.max_iter, param.warmup_iter, param.lr_iter, param.stepsize) == (65, 10, 90, 25)
    assert list(param.stepvalue) == [30, 56] and list(param.stageiter) == [40] and list(param.plateau_winsize) == [5]
    assert param.cycle_iter == 20
    assert (param.weight_decay_schedule.stepsize, list(param.weight_decay_schedule.stepvalue)) == (20, [57])
    assert (param.test_interval, param.test_epoch, param.snapshot_epoch) == (0, 1, 2)  # see Calendar.is_due()
    plain = parse_solver('base_lr: 1 lr_policy: "fixed" max_iter: 5').message
    assert resolve(plain, 10, 0, place)[0] is plain


@pytest.mark.parametrize(
    "text, words",
    [
        ("max_epoch: 1 max_iter: 5", "max_epoch and max_iter are both given"),
        ("max_iter: 5 test_interval: 2 test_epoch: 1", "test_epoch and test_interval are both given"),
        ("max_iter: 5 batch_growth { stepvalue: 1 stepvalue_epoch: 2 }", "batch_growth.stepvalue_epoch and"),
        ("max_epoch: -1", "max_epoch: expected 0 or more, got -1"),
        ("max_epoch: 1 stepvalue_epoch: 0", "stepvalue_epoch: expected more than 0, got 0"),
        ("max_epoch: 1 stepvalue_epoch: 2 stepvalue_epoch: 1", "stepvalue_epoch must ascend, got 2, 1"),
        ("max_epoch: 1 epoch_size: 0", "epoch_size: expected 1 or more, got 0"),
        ("max_iter: 5 lr_scaling { base_batch: 0 }", "lr_scaling.base_batch: expected 1 or more, got 0"),
        ("max_iter: 5 lr_scaling { cap: 0 }", "lr_scaling.cap: expected more than 0, got 0"),
        ("max_iter: 5 batch_growth { }", "batch_growth needs stepvalue"),
        ("max_iter: 5 batch_growth { factor: 1 stepvalue: 3 }", "batch_growth.factor: expected 2 or more, got 1"),
        ("max_iter: 5 batch_growth { factor: 70000 stepvalue: 3 stepvalue: 4 }", "beyond 2"),
        ('max_iter: 5 warmup_policy: "linaer"', "unknown warmup_policy 'linaer'; did you mean 'linear'"),
        ('max_iter: 5 warmup_policy: "constant"', "'constant' needs warmup_start_lr"),
        ("max_iter: 5 min_lr: 0.5", "min_lr 0.5 is more than base_lr 0.1"),
        (
            "max_iter: 5 weight_decay_schedule { policy: 'step' gamma: 1e38 stepsize: 1 } weight_decay: 1",
            "at iteration 2",
        ),
        (
            "max_iter: 5 weight_decay_schedule { policy: 'inv' gamma: -1 power: 1 } weight_decay: 1",
            "weight_decay_schedule.policy 'inv': expected gamma of 0 or more",
        ),
        ("", "max_iter is missing; give it \\(or max_epoch\\)"),
    ],
)
def test_contradictions(text, words):
    config = parse_solver(f'net: "n" base_lr: 0.1 lr_policy: "fixed" {text}', "s.prototxt")
    with pytest.raises(ConfigError, match=rf"^s\.prototxt:(1:\d+:)?.* {words}") as caught:
        validate(config.message, lambda field: config.where(path=field))
    assert not isinstance(caught.value, ConfigErrors), "one line"


def test_a_solver_in_epochs_is_checked_before_they_are_known():
    with pytest.raises(ConfigError, match="lr_policy 'step' needs stepsize"):
        validate(parse_solver('base_lr: 1 lr_policy: "step" gamma: 0.1 max_epoch: 9').message)
    validate(parse_solver('base_lr: 1 lr_policy: "step" gamma: 0.1 max_epoch: 9 stepsize_epoch: 3').message)
    validate(
        parse_solver('base_lr: 1 lr_policy: "exp" gamma: 1.001 max_epoch: 9').message
    )  # the epochs may be few iterations


def test_too_large_a_rate():
    param, _ = resolved(
        'base_lr: 1e30 lr_policy: "fixed" max_iter: 9 warmup_iter: 3 lr_scaling { base_batch: 1 }', 2**31
    )
    with pytest.raises(ConfigError, match=r"s\.prototxt: lr_policy: lr_policy 'fixed' gives no learning rate"):
        check_schedules(param, place)


def test_cycles_without_number():
    """The number of cycles that a file asks for does not cost time."""
    for mult in (1.0000001, 1.5, 1e30):
        param = parse_solver(f'base_lr: 1 lr_policy: "sgdr" cycle_iter: 1 cycle_mult: {mult}').message
        assert 0 <= LearningRate(param)(2**31 - 1) <= 1


def test_too_long_a_run():
    with pytest.raises(ConfigError, match=r"s\.prototxt: max_epoch: max_epoch: 1e\+30 epochs are \d+ iterations"):
        resolved('base_lr: 1 lr_policy: "fixed" max_epoch: 1e30', 10)
