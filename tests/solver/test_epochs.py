"""Epochs, rates by the global batch, batches and weight decays that change: one file for any number of ranks."""

import math
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.comm.world import World
from engine.config import parse_solver
from engine.errors import ConfigError, ConfigErrors, WeightsError
from engine.inference.evaluator import Evaluator
from engine.report.observer import Observer
from engine.solver.calendar import Calendar
from engine.solver.outline import Outline
from engine.solver.resolve import resolve
from engine.solver.schedules import LearningRate
from engine.solver.validate import check_schedules, validate
from tests.mpi import run_ranks
from tests.solver.harness import different, digits_net, distance, in_files, learned, make_solver, solve

IMAGENET = 1281167
RECIPE = """
base_lr: 0.1 lr_policy: "poly" power: 1 max_epoch: 90 warmup_epoch: 5
lr_scaling { rule: LINEAR base_batch: 256 cap: 6.4 }
"""


def place(field: str) -> str:
    return f"s.prototxt: {field}"


def resolved(text: str, batch: int, size: int = IMAGENET):
    return resolve(parse_solver(text).message, batch, size, place)


def iterations_of(calendar: Calendar, epochs: Fraction) -> int:
    """By counting: the whole iterations that fit."""
    count = 0
    while calendar.samples(count + 1) <= epochs * calendar.size:
        count += 1
    return max(1, count)


@pytest.mark.parametrize("steps", [(), (25, 35)])
@pytest.mark.parametrize("epochs", ["0.05", "0.1", "0.33", "0.7", "1", "2.9"])
def test_a_calendar(epochs, steps):
    """Marks of an interval lie where runs of so many epochs end."""
    calendar = Calendar(10, 100, steps, 4)
    assert [calendar.samples(i) for i in (0, 10, 25)] == [0, 100, 250]
    if steps:
        assert [calendar.samples(i) for i in (26, 35, 36)] == [290, 650, 810]
    interval, among = Fraction(epochs), range(1, 50)
    assert calendar.iterations(float(epochs)) == iterations_of(calendar, interval)
    due = {iterations_of(calendar, k * interval) for k in range(1, int(32 / interval))}
    assert [i for i in among if calendar.is_due(i, 0, float(epochs))] == sorted(due & set(among))
    assert calendar.is_due(0, 0, float(epochs)) and not calendar.is_due(7, 0, 0)
    assert [i for i in range(9) if calendar.is_due(i, 4, 0)] == [0, 4, 8]


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
    assert rate(0) == pytest.approx(0.1)  # of the base batch
    assert rate(warmup) == pytest.approx(peak * (1 - warmup / param.max_iter), rel=1e-5)
    assert not param.HasField("max_epoch") and param.max_iter


def test_the_tensorflow_recipe():
    """T: 24576 images, 9.6 halved to 4.8, 260 iterations of warm-up, linear to 0 over the other 4420 of 4680."""
    text = RECIPE.replace("6.4", "4.8") + "policy_after_warmup: true"
    param, _ = resolved(text, 24576, 1280000)
    assert (param.warmup_iter, param.max_iter) == (260, 4687)
    param.max_iter = 4680
    rate = LearningRate(param)
    for i in range(0, 4681, 13):
        expected = 0.1 + 4.7 * i / 260 if i < 260 else 4.8 * (4680 - i) / 4420
        assert rate(i) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_the_square_root():
    """I: Inception-ResNet-v2."""
    text = 'base_lr: 0.045 lr_policy: "fixed" max_iter: 9 lr_scaling { rule: SQRT base_batch: 32 }'
    assert resolved(text, 2048)[0].base_lr == pytest.approx(0.045 * 8)
    assert resolved(text, 32)[0].base_lr == pytest.approx(0.045)


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
            "max_iter: 5 weight_decay_schedule { policy: 'step' gamma: -1 stepsize: 2 } weight_decay: 1",
            "at iteration 2",
        ),
        ("max_iter: 5 weight_decay_schedule { policy: 'inv' gamma: -1 power: 1 } weight_decay: 1", "at iteration 1"),
        ("", "max_iter is missing; give it \\(or max_epoch\\)"),
    ],
)
def test_contradictions(text, words):
    config = parse_solver(f'net: "n" base_lr: 0.1 lr_policy: "fixed" {text}', "s.prototxt")
    with pytest.raises(ConfigError, match=rf"^s\.prototxt:(1:\d+:)?.* {words}") as caught:
        validate(config.message, lambda field: config.where(path=field))
    assert not isinstance(caught.value, ConfigErrors), "one line"


def test_a_solver_in_epochs_is_checked_before_they_are_known():
    with pytest.raises(ConfigError, match="lr_policy 'step' needs gamma"):
        validate(parse_solver('base_lr: 1 lr_policy: "step" max_epoch: 9 stepsize_epoch: 3').message)
    validate(parse_solver('base_lr: 1 lr_policy: "step" gamma: 0.1 max_epoch: 9 stepsize_epoch: 3').message)
    validate(
        parse_solver('base_lr: 1 lr_policy: "exp" gamma: 1.001 max_epoch: 9').message
    )  # of few iterations, perhaps


def test_too_large_a_rate():
    param, _ = resolved(
        'base_lr: 1e30 lr_policy: "fixed" max_iter: 9 warmup_iter: 3 lr_scaling { base_batch: 1 }', 2**31
    )
    with pytest.raises(ConfigError, match=r"s\.prototxt: lr_policy: lr_policy 'fixed' gives no learning rate"):
        check_schedules(param, place)


def test_cycles_without_number():
    """What a file may say costs no time."""
    for mult in (1.0000001, 1.5, 1e30):
        param = parse_solver(f'base_lr: 1 lr_policy: "sgdr" cycle_iter: 1 cycle_mult: {mult}').message
        assert 0 <= LearningRate(param)(2**31 - 1) <= 1


def test_too_long_a_run():
    with pytest.raises(ConfigError, match=r"s\.prototxt: max_epoch: max_epoch: 1e\+30 epochs are \d+ iterations"):
        resolved('base_lr: 1 lr_policy: "fixed" max_epoch: 1e30', 10)


# Training

SAME = 'base_lr: 0.05 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.001 random_seed: 3 '
IN_EPOCHS = SAME + "max_epoch: 0.5 warmup_epoch: 0.1 warmup_start_lr: 0.01 snapshot_epoch: 0.25 display_epoch: 0.1 "
IN_ITERATIONS = SAME + "max_iter: 44 warmup_iter: 8 warmup_start_lr: 0.01 snapshot: 22 "  # 1437 samples by 16


def test_epochs_train_as_iterations_do(tmp_path):
    epochs, iterations = (tmp_path / name for name in ("epochs", "iterations"))
    for folder, text in ((epochs, IN_EPOCHS), (iterations, IN_ITERATIONS)):
        folder.mkdir()
        solve(text, digits_net(), folder)
    assert {path.name for path in epochs.glob("*_iter_*")} == {path.name for path in iterations.glob("*_iter_*")}
    for iteration in (22, 44):
        assert different(in_files(epochs, iteration), in_files(iterations, iteration)) == []


RANKS = """
from engine.comm.world import world
from tests.solver.harness import *
from tests.solver.test_epochs import CHANGING
world = world()
solve(CHANGING, digits_net(16 // world.size), {folder!r}, world=world)
world.close()
"""
# Rate, decay and batch change; 16 samples, then 32.
CHANGING = """
base_lr: 0.02 lr_policy: "cosine" max_epoch: 0.3 warmup_epoch: 0.05 policy_after_warmup: true momentum: 0.9
lr_scaling { base_batch: 8 } momentum_correction: true random_seed: 3 snapshot_epoch: 0.2 clip_gradients: 0.5
weight_decay: 0.001 weight_decay_schedule { policy: "multistep" gamma: 3 stepvalue_epoch: 0.1 stepvalue_epoch: 0.25 }
batch_growth { factor: 2 stepvalue_epoch: 0.15 }
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("changing")
    solver = solve(CHANGING, digits_net(), folder)
    assert solver.calendar == Calendar(16, 1437, (13,), 2)
    assert solver.state.samples_seen == 13 * 16 + (solver.param.max_iter - 13) * 32
    assert sorted(int(path.stem.split("_")[-1]) for path in folder.glob("*.solverstate")) == [15, solver.iteration]
    return folder


def last(folder: Path) -> int:
    return max(int(path.stem.split("_")[-1]) for path in folder.glob("*.solverstate"))


def test_what_changes_goes_on_bit_exactly(changing, tmp_path):
    """From the snapshot after the growth of the batch and between two decays."""
    solve(CHANGING, digits_net(), tmp_path, restore=changing / "net_iter_15.solverstate")
    assert different(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) == []


@pytest.mark.mpi
def test_two_ranks_do_what_one_does(changing, tmp_path):
    done = run_ranks(2, RANKS.format(folder=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert last(tmp_path) == last(changing)
    assert distance(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) < 1e-5


RESUMED = """
from engine.comm.world import world
from engine.config import parse_solver
from engine.solver.resume import resume
from engine.solver.solver import Solver
from tests.solver.harness import *
from tests.solver.test_epochs import CHANGING
world = world()
text = f'{{CHANGING}} snapshot_prefix: "{folder}/net" net_param {{{{ {{digits_net()}} }}}}'
config = parse_solver(text, "{folder}/net.prototxt")
path = resume(config, world)
assert path.endswith("net_iter_15.solverstate")
solver = Solver(config, world)
solver.restore(path)
assert solver.solve()
assert solver.calendar.batch == 16
solver.close()
world.close()
"""


@pytest.mark.mpi
def test_what_changes_goes_on_on_other_ranks(changing, tmp_path):
    """--resume auto holds the batch that the run began with, and it grows as before."""
    for kind in ("caffemodel", "solverstate"):
        shutil.copy(changing / f"net_iter_15.{kind}", tmp_path)
    done = run_ranks(2, RESUMED.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr
    assert distance(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) < 1e-5


def test_the_decay_changes_at_its_step(tmp_path):
    """As if the run went on from a snapshot with another weight_decay."""
    plain = "momentum: 0.9 random_seed: 3 max_iter: 12 "
    whole = solve(
        plain + 'weight_decay: 0.25 weight_decay_schedule { policy: "multistep" gamma: 2 stepvalue: 6 }', digits_net()
    )
    solve(plain + "weight_decay: 0.25 snapshot: 6", digits_net(), tmp_path)
    rest = solve(plain + "weight_decay: 0.5", digits_net(), restore=tmp_path / "net_iter_6.solverstate")
    assert different(learned(whole), learned(rest)) == []


def test_the_batch_grows_at_its_step(tmp_path):
    """As if the run went on from a snapshot with another iter_size."""
    plain = "momentum: 0.9 random_seed: 3 max_iter: 12 "
    whole = solve(plain + "batch_growth { factor: 3 stepvalue: 6 }", digits_net(8))
    solve(plain + "snapshot: 6", digits_net(8), tmp_path)
    rest = solve(plain + "iter_size: 3", digits_net(8), restore=tmp_path / "net_iter_6.solverstate")
    assert whole.state.samples_seen == rest.state.samples_seen == 6 * 8 + 6 * 24
    assert different(learned(whole), learned(rest)) == []


def test_another_batch_is_refused_where_epochs_count(changing):
    solver = make_solver(CHANGING, digits_net(8))
    words = "trained in global batches of 16, and this run's are of 8: max_epoch .* --resume auto holds the batch"
    with pytest.raises(WeightsError, match=words):
        solver.restore(str(changing / "net_iter_15.solverstate"))
    solver.close()


DUMMY = """
layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 4 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "l" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "l" loss_weight: 1 }
"""


def test_data_without_a_size():
    with pytest.raises(ConfigError, match=r"net\.prototxt:1:1: max_epoch needs the size of the data set.*epoch_size"):
        make_solver("max_epoch: 2", DUMMY)
    solver = make_solver("max_epoch: 2 epoch_size: 10", DUMMY)
    assert solver.param.max_iter == 20 and solver.given.max_epoch == 2
    solver.close()
    with pytest.raises(ConfigError, match="lr_scaling needs the batch_size of a data layer"):
        make_solver("lr_scaling { }", DUMMY)


OWN_ITEMS = (
    """
from engine.comm.world import world
from tests.solver.harness import *
net = """
    + repr(
        """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "FOLDER/list_%#.txt" root_folder: "FOLDER/" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
    )
    + """
world = world()
solver = make_solver("max_epoch: 2", net.replace("FOLDER", {folder!r}), world=world)
assert (solver.calendar.size, solver.param.max_iter) == (8, 8), solver.calendar
world.close()
"""
)


@pytest.mark.mpi
def test_an_epoch_of_sources_that_are_a_rank_s_own(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    for rank, count in enumerate((3, 5)):
        (tmp_path / f"list_{rank}.txt").write_text("a.png 0\n" * count)
    done = run_ranks(2, OWN_ITEMS.replace("{folder!r}", repr(str(tmp_path))))
    assert done.returncode == 0, done.stderr


class Seen(Observer):
    def __init__(self):
        self.records = []

    def test(self, record):
        self.records.append(record)


@pytest.mark.parametrize("text", ["test_interval: 5 max_iter: 10", "test_epoch: 0.1 max_epoch: 0.2"])
def test_without_test_iter_the_whole_set_is_tested(text):
    tests = Seen()
    solver = make_solver(text, digits_net(), observers=[tests])
    solver.solve()
    assert len(tests.records) == 3 and tests.records[0].iteration == 0
    config = solver.evaluators[0]._config
    whole = Evaluator(config, World(), share=solver.net)
    for name, value in whole.run().items():
        assert np.array_equal(tests.records[-1].outputs[name], value)
    solver.close()


def test_without_test_iter_a_set_must_end():
    with pytest.raises(ConfigError, match=r"test_interval without test_iter tests the whole set.*give test_iter"):
        make_solver("test_interval: 5", DUMMY)


# What the numbers come to


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


@pytest.mark.parametrize(
    "text, words",
    [
        (RECIPE.replace("0.1", "4.8") + "warmup_start_lr: 0.1", "base_lr 4.8 seems to be scaled already: it is 48"),
        (RECIPE.replace("6.4", "0.05") + "warmup_start_lr: 0", "lr_scaling.cap 0.05 is below base_lr 0.1"),
        (RECIPE.replace("warmup_epoch: 5", ""), "begins at 56 times base_lr, without a warm-up"),
        (RECIPE + "warmup_start_lr: 7", "the warm-up begins at 7, above the rate 5.6"),
        (RECIPE + "epoch_size: 1000000", "epoch_size is 1000000, but the source has 1281167 samples"),
        (RECIPE.replace("warmup_epoch: 5", "warmup_epoch: 95"), "warmup_iter 8489 is longer than the run"),
        ('base_lr: 1 lr_policy: "fixed" max_iter: 9 stepvalue: 12', "stepvalue 12 is never reached"),
        ('base_lr: 1 lr_policy: "poly_cyc" power: 1 max_iter: 90 lr_iter: 50', "rate is 0 at iteration 50 of 90"),
        ('base_lr: 1 lr_policy: "sgdr" cycle_iter: 20 max_iter: 50', "ends when 50% of cycle 3 are over"),
    ],
)  # fmt: skip
def test_doubts(text, words):
    found = list(outline(text).doubts())
    assert len(found) == 1 and words in found[0]
