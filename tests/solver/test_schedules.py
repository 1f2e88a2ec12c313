"""Learning-rate policies against their formulas, and the messages for wrong ones."""

import math

import pytest

from engine import proto
from engine.config import parse_solver
from engine.errors import ConfigError, NumericalError
from engine.solver import schedules
from engine.solver.policies import POLICIES, current_step
from engine.solver.schedules import (
    LearningRate,
    Momentum,
    WeightDecay,
    milestones,
    need_max_iter,
)
from engine.solver.state import PlateauState
from engine.solver.validate import notes, validate


def rate(text):
    return LearningRate(parse_solver(f'net: "x" {text}').message)


FORMULAS = {
    'lr_policy: "fixed" base_lr: 0.1': lambda i: 0.1,
    'lr_policy: "step" base_lr: 0.1 gamma: 0.5 stepsize: 7': lambda i: 0.1 * 0.5 ** (i // 7),
    'lr_policy: "exp" base_lr: 0.1 gamma: 0.9': lambda i: 0.1 * 0.9**i,
    'lr_policy: "inv" base_lr: 0.1 gamma: 0.01 power: 0.75': lambda i: 0.1 * (1 + 0.01 * i) ** -0.75,
    'lr_policy: "multistep" base_lr: 0.1 gamma: 0.5 stepvalue: 5 stepvalue: 9': lambda i: (
        0.1 * 0.5 ** ((i >= 5) + (i >= 9))
    ),
    'lr_policy: "poly" base_lr: 0.1 power: 2 max_iter: 100': lambda i: 0.1 * (1 - i / 100) ** 2,
    'lr_policy: "poly_cyc" base_lr: 0.1 power: 1 max_iter: 50 lr_iter: 100': lambda i: 0.1 * (1 - i / 100),
    'lr_policy: "sigmoid" base_lr: 0.1 gamma: 0.2 stepsize: 9': lambda i: 0.1 / (1 + math.exp(-0.2 * (i - 9))),
    'lr_policy: "multifixed" stagelr: 0.3 stagelr: 0.2 stageiter: 10 stageiter: 20': lambda i: 0.3 if i <= 10 else 0.2,
}


LONG = {
    'lr_policy: "cosine" base_lr: 0.5 max_iter: 200': lambda i: 0.25 * (1 + math.cos(math.pi * i / 200)),
    'lr_policy: "cosine" base_lr: 0.5 min_lr: 0.125 max_iter: 200': lambda i: (
        0.125 + 0.375 * (1 + math.cos(math.pi * i / 200)) / 2
    ),
    'lr_policy: "poly" base_lr: 0.5 min_lr: 0.125 power: 2 max_iter: 200': lambda i: 0.125 + 0.375 * (1 - i / 200) ** 2,
    'lr_policy: "step" base_lr: 1 gamma: 0.5 stepsize: 50 min_lr: 0.25': lambda i: max(0.25, 0.5 ** (i // 50)),
    'lr_policy: "sgdr" base_lr: 0.5 cycle_iter: 40': lambda i: 0.25 * (1 + math.cos(math.pi * (i % 40) / 40)),
    # Cycles of 20, 40, 80 and 160 iterations.
    'lr_policy: "sgdr" base_lr: 0.5 cycle_iter: 20 cycle_mult: 2': lambda i: next(
        0.25 * (1 + math.cos(math.pi * (i - 20 * (2**k - 1)) / (20 * 2**k)))
        for k in range(9)
        if i < 20 * (2 ** (k + 1) - 1)
    ),
    # Cycles of 50, 60, 72 and 86.4 iterations. (As a float32, 1.2 is rounded.)
    'lr_policy: "sgdr" base_lr: 0.5 cycle_iter: 50 cycle_mult: 1.2': lambda i: next(
        0.25 * (1 + math.cos(math.pi * (i - begin) / length))
        for begin, length in ((182, 86.4), (110, 72), (50, 60), (0, 50))
        if i >= begin
    ),
    # This is gradual_warmup_then_dec(0.1, 50, 4.8, step, 200) of Wang and Codreanu.
    'lr_policy: "poly" base_lr: 4.8 power: 1 max_iter: 200 warmup_iter: 50 warmup_start_lr: 0.1 '
    "policy_after_warmup: true": lambda i: 0.1 + 4.7 * i / 50 if i < 50 else 4.8 * (200 - i) / 150,
    'lr_policy: "fixed" base_lr: 3 warmup_iter: 50 warmup_start_lr: 0.5 warmup_policy: "constant"': lambda i: (
        0.5 if i < 50 else 3
    ),
    'lr_policy: "multistep" base_lr: 1 gamma: 0.5 stepvalue: 30 warmup_iter: 50 policy_after_warmup: true': lambda i: (
        i / 50 if i < 50 else 1 if i < 80 else 0.5
    ),
    'lr_policy: "cosine" base_lr: 1 max_iter: 150 warmup_iter: 50 policy_after_warmup: true': lambda i: (
        i / 50 if i < 50 else 0.5 * (1 + math.cos(math.pi * min(1, (i - 50) / 100)))
    ),
}


@pytest.mark.parametrize("text", LONG)
def test_formula_over_a_run(text):
    policy = rate(text)
    for iteration in range(200):
        assert policy(iteration) == pytest.approx(LONG[text](iteration), rel=3e-6, abs=1e-9), iteration


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", lambda i: 0.25),
        ('weight_decay_schedule { policy: "multistep" gamma: 2 stepvalue: 30 stepvalue: 60 }', lambda i: (
            0.25 * 2 ** ((i >= 30) + (i >= 60))
        )),
        ('weight_decay_schedule { policy: "poly" power: 2 }', lambda i: 0.25 * (1 - i / 100) ** 2),
        ('weight_decay_schedule { policy: "cosine" min_lr: 0.125 }', lambda i: (
            0.1875 + 0.0625 * math.cos(math.pi * i / 100)
        )),
        ('weight_decay_schedule { policy: "multifixed" stagelr: 1 stagelr: 2 stageiter: 49 stageiter: 99 }', lambda i: (
            1 if i < 50 else 2
        )),
    ],
)  # fmt: skip
def test_weight_decay(text, expected):
    """The schedule of the weight decay does not wait for the warm-up."""
    param = parse_solver(f"max_iter: 100 warmup_iter: 20 weight_decay: 0.25 {text}").message
    decay = WeightDecay(param)
    decay.check()
    assert [decay(i) for i in range(100)] == pytest.approx([expected(i) for i in range(100)])


@pytest.mark.parametrize(
    "text, words",
    [
        ("{ }", "weight_decay_schedule.policy is missing"),
        ('{ policy: "stepp" }', "weight_decay_schedule.policy 'stepp' is unknown; did you mean 'step'"),
        ('{ policy: "step" gamma: 2 }', "weight_decay_schedule.policy 'step' needs stepsize"),
        ('{ policy: "fixed" }', "weight_decay_schedule.policy 'fixed' needs weight_decay"),
        ('{ policy: "plateau" gamma: 2 }', "'plateau' follows the loss, as only lr_policy can"),
    ],
)
def test_wrong_weight_decays_say_what_is_missing(text, words):
    param = parse_solver(f"max_iter: 100 weight_decay_schedule {text}").message
    if "fixed" not in text:
        param.weight_decay = 0.1
    with pytest.raises(ConfigError, match=words):
        WeightDecay(param)


@pytest.mark.parametrize("text", FORMULAS)
def test_formula(text):
    policy = rate(text)
    for iteration in range(40):
        assert policy(iteration) == pytest.approx(FORMULAS[text](iteration), rel=3e-6)


def test_warm_up_does_not_shift_the_policy():
    """P's recipe: from 0.1 to 4.8 in 446 iterations, then a linear decay as if it had run from the start."""
    policy = rate('lr_policy: "poly" base_lr: 4.8 power: 1 max_iter: 8040 warmup_iter: 446 warmup_start_lr: 0.1')
    assert policy(0) == pytest.approx(0.1)
    assert policy(223) == pytest.approx(0.1 + 4.7 / 2, rel=1e-6)
    assert policy(446) == pytest.approx(4.8 * (1 - 446 / 8040), rel=1e-6)
    assert policy(8040) == 0


def test_plateau_lowers_after_a_window_without_a_new_minimum():
    policy = rate('lr_policy: "plateau" base_lr: 1 gamma: 0.1 plateau_winsize: 3 plateau_winsize: 2')
    state = PlateauState()
    seen = [policy(iteration, loss, state) for iteration, loss in enumerate([5, 4, 4, 4, 4, 3, 3, 3, 3])]
    assert seen == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_plateau_begins_to_look_when_the_rate_has_warmed_up():
    policy = rate('lr_policy: "plateau" base_lr: 1 gamma: 0.1 plateau_winsize: 2 warmup_iter: 4 warmup_start_lr: 0.2')
    state = PlateauState()
    seen = [policy(iteration, loss, state) for iteration, loss in enumerate([1, 5, 5, 5, 4, 4, 4, 4])]
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 0.1, 0.1])


@pytest.mark.parametrize(
    "text, words",
    [
        ('lr_policy: "stepp" base_lr: 1', "did you mean 'step'"),
        ("base_lr: 1", "lr_policy is missing"),
        ('lr_policy: "step" base_lr: 1 gamma: 0.1', "needs stepsize"),
        ('lr_policy: "multifixed" stagelr: 1 stageiter: 1 stageiter: 2', "1 stagelr for 2 stageiter"),
    ],
)
def test_wrong_policies_say_what_is_missing(text, words):
    with pytest.raises(ConfigError, match=words):
        rate(text)


def test_every_policy_of_the_reference_is_known():
    known = {"fixed", "step", "exp", "inv", "multistep", "poly", "poly_cyc", "sigmoid", "plateau", "multifixed"}
    known |= {"cosine", "sgdr"}  # engine's own
    assert known == set(POLICIES)
    assert proto.SolverParameter().lr_policy == ""


@pytest.mark.parametrize(
    "text, at",
    [
        ('lr_policy: "exp" base_lr: 1 gamma: 1e30', 2),
        ('lr_policy: "step" base_lr: 1 gamma: 0 stepsize: 1', None),
        ('lr_policy: "inv" base_lr: 1 gamma: 1 power: -1e30', 1),
        ('lr_policy: "poly" base_lr: 1 power: -1e30', 1),
        ('lr_policy: "poly_cyc" base_lr: 1 power: -1 lr_iter: 5', 5),
        ('lr_policy: "sigmoid" base_lr: 1 gamma: 1e30 stepsize: 3', None),
        ('lr_policy: "cosine" base_lr: 1 warmup_iter: 3 warmup_start_lr: 1e-3 min_lr: 0', None),
    ],
)
def test_formulas_without_a_value(text, at):
    """Such formulas are refused before the run, and during it if it goes on for longer than it was to."""
    param = parse_solver(f'net: "x" {text} max_iter: 20').message
    if at is None:
        validate(param, "s.prototxt")
        return
    with pytest.raises(ConfigError, match=rf"^s.prototxt: lr_policy '\w+' gives no learning rate at iteration {at}: "):
        validate(param, "s.prototxt")
    with pytest.raises(NumericalError, match=f"at iteration {at}: .* \\(base_lr 1, "):
        LearningRate(param, "s.prototxt")(at)


@pytest.mark.parametrize(
    "policy",
    [
        *("step stepsize: 100", "exp", "inv power: 1", "multistep stepvalue: 5", "sigmoid stepsize: 100"),
        "plateau plateau_winsize: 5",
    ],
)
def test_gamma_below_0_is_caffe_s_error(policy):
    name, _, fields = policy.partition(" ")
    text = f'net: "x" base_lr: 0.1 gamma: -1 {fields} max_iter: 900 lr_policy: "{name}"'
    with pytest.raises(ConfigError, match=rf"^s.prototxt: lr_policy '{name}': expected gamma of 0 or more, got -1$"):
        validate(parse_solver(text).message, "s.prototxt")
    validate(parse_solver(text.replace("-1", "0")).message)


def test_sigmoid_begins_with_nothing():
    """As in Caffe, whose exp() is infinite at iteration 0, the rate is 0."""
    policy = rate('lr_policy: "sigmoid" base_lr: 0.1 gamma: 1 stepsize: 1000')
    assert [policy(1000), policy(2000)] == pytest.approx([0.05, 0.1]) and policy(0) == 0


class Caffe:
    """Counts steps as Caffe's SGDSolver does: one at most in an iteration."""

    def __init__(self, text):
        self.param, self.iteration, self.step = parse_solver(f'net: "x" {text}').message, 0, 0

    def update(self):
        values = self.param.stepvalue
        if self.param.lr_policy == "step":
            self.step = self.iteration // self.param.stepsize
        elif self.step < len(values) and self.iteration >= values[self.step]:
            self.step += 1
        self.iteration += 1
        return self.param.base_lr * self.param.gamma**self.step


@pytest.mark.parametrize(
    "text",
    [
        'lr_policy: "step" stepsize: 4',
        'lr_policy: "multistep" stepvalue: 3 stepvalue: 7',
        'lr_policy: "multistep" stepvalue: 0 stepvalue: 5 stepvalue: 5 stepvalue: 5 stepvalue: 6',
    ],
)
def test_steps_are_counted_as_caffe_does(text):
    text = f"base_lr: 1 gamma: 0.5 {text}"
    caffe, mine = Caffe(text), rate(text)
    for iteration in range(20):
        assert current_step(caffe.param, iteration) == caffe.step
        assert mine(iteration) == caffe.update()


def test_steps_of_a_warm_up():
    """Intel's Caffe takes no steps in a warm-up. Then it catches up, with one step in each iteration."""
    text = 'base_lr: 1 gamma: 0.5 warmup_iter: 6 lr_policy: "multistep" stepvalue: 3 stepvalue: 4 stepvalue: 9'
    param, mine = parse_solver(f'net: "x" {text}').message, rate(text)
    assert [current_step(param, iteration) for iteration in range(12)] == [0] * 7 + [1, 2, 2, 3, 3]
    assert [mine(iteration) for iteration in range(6, 11)] == [0.5, 0.25, 0.25, 0.125, 0.125]
    steps = parse_solver('net: "x" base_lr: 1 gamma: 0.5 warmup_iter: 6 lr_policy: "step" stepsize: 4').message
    assert [current_step(steps, iteration) for iteration in range(11)] == [0] * 7 + [1, 1, 2, 2]
    param.policy_after_warmup = True  # then the steps come at iterations 9, 10 and 15
    assert [current_step(param, iteration) for iteration in (9, 10, 11, 15, 16)] == [0, 1, 2, 2, 3]


def test_runs_of_no_iterations():
    assert rate('lr_policy: "poly" base_lr: 0.1 power: 2 max_iter: 0')(0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "text, needed",
    [
        ('lr_policy: "fixed" weight_decay_schedule { policy: "step" }', False),
        ('lr_policy: "poly"', True),
        ('lr_policy: "cosine"', True),
        ('lr_policy: "fixed" weight_decay_schedule { policy: "poly" }', True),
        ('lr_policy: "fixed" weight_decay_policy: "poly"', True),
        ('lr_policy: "fixed" momentum_policy: "poly"', True),
    ],
)
def test_schedules_that_go_by_the_length_of_a_run(text, needed):
    assert need_max_iter(parse_solver(text).message) == needed


@pytest.mark.parametrize(
    "text, expected",
    [
        ("max_iter: 0", [0, 1]),
        ("max_iter: 1000", []),
        ("max_iter: 1000 stepvalue: 300 stageiter: 600 warmup_iter: 50", [49, 50, 299, 300, 600, 601]),
        ("max_iter: 1000 warmup_iter: 50 stepvalue: 300 policy_after_warmup: true", [49, 50, 349, 350]),
        ("max_iter: 1000 batch_growth { stepvalue: 700 }", [699, 700]),
        ("max_iter: 1000 weight_decay_schedule { stepvalue: 800 stepvalue: 1000 }", [799, 800]),
        ("max_iter: 1000 stepsize: 300 cycle_iter: 400", [299, 300, 399, 400, 599, 600, 799, 800, 899, 900]),
    ],
)
def test_iterations_at_which_schedules_may_jump(monkeypatch, text, expected):
    """They come besides the usual ones: the first two, the last two, and two in the middle."""
    monkeypatch.setattr(schedules, "POINTS", 2)
    usual = [] if "max_iter: 0" in text else [0, 1, 498, 499, 998, 999]
    assert milestones(parse_solver(text).message) == sorted([*usual, *expected])


# NVIDIA's policies


def test_quadratic_warm_up():
    rates = rate('base_lr: 2 rampup_interval: 10 rampup_lr: 1 lr_policy: "poly" power: 2 max_iter: 100 min_lr: 1.1')
    expected = [max(1.1, 1 + (i / 10) ** 2) for i in range(10)] + [
        0.9 * (1 - i / 100) ** 2 + 1.1 for i in range(10, 99)
    ]
    assert [rates(i) for i in range(99)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", lambda i: 0.5),
        ('momentum_policy: "poly" max_momentum: 0.9 momentum_power: 2', lambda i: 0.5 + 0.4 * (i / 100) ** 2),
        ('momentum_policy: "opt"', lambda i: (1 - 0.5 * math.sqrt(0.04)) ** 2),
        ('momentum_policy: "opt" max_momentum: 0.75', lambda i: 0.75),
    ],
)
def test_momentum(text, expected):
    momentum = Momentum(parse_solver(f"max_iter: 100 momentum: 0.5 {text}").message)
    assert [momentum(i, 0.04) for i in range(100)] == pytest.approx([expected(i) for i in range(100)])
    assert momentum(1000, 0.04) == pytest.approx(expected(100))  # a program may take more steps than max_iter


def test_weight_decay_policy():
    text = 'max_iter: 100 weight_decay: 0.25 weight_decay_policy: "poly" max_weight_decay: 0.5 weight_decay_power: 2'
    decay = WeightDecay(parse_solver(text).message)
    assert [decay(i) for i in range(100)] == pytest.approx([0.25 + 0.25 * (i / 100) ** 2 for i in range(100)])
    assert decay(1000) == 0.5


@pytest.mark.parametrize(
    "text, rates, note",
    [
        ('lr_policy: "step" stepsize: 2', (1, 1, 0, 0), "without gamma: the rate is 0 after its first step"),
        ('lr_policy: "exp"', (1, 0, 0, 0), "without gamma: the rate is 0 after its first step"),
        ('lr_policy: "multistep" stepvalue: 3', (1, 1, 1, 0), "without gamma: the rate is 0 after its first step"),
        ('lr_policy: "multistep" gamma: 0.1', (1, 1, 1, 1), "without stepvalue: the rate is base_lr throughout"),
        ('lr_policy: "inv"', (1, 1, 1, 1), "without gamma and power: the rate is base_lr throughout"),
        ('lr_policy: "poly"', (1, 1, 1, 1), "without power: the rate is base_lr throughout"),
        ('lr_policy: "sigmoid" stepsize: 2', (0.5,) * 4, "without gamma: the rate is half of base_lr throughout"),
        ('lr_policy: "multistep" gamma: 0.5 stepvalue: 2 stepvalue: 1', (1, 1, 0.5, 0.25), "stepvalue does not ascend"),
    ],
)
def test_fields_left_out_are_caffe_s_defaults_and_said(text, rates, note):
    param = parse_solver(f'net: "n" base_lr: 1 max_iter: 4 {text}').message
    validate(param)
    rate = LearningRate(param)
    assert [rate(iteration) for iteration in range(4)] == list(rates)
    assert any(note in each for each in notes(param)), list(notes(param))


def test_fields_in_epochs_are_not_left_out():
    text = 'net: "n" base_lr: 1 max_epoch: 4 lr_policy: "multistep" gamma: 0.1 stepvalue_epoch: 2'
    assert not [each for each in notes(parse_solver(text).message) if "without" in each]
