"""solvers/paper: the rate and the weight decay of each iteration, against formulas written from the tables that the
files name, and against the paper's own files if they are there."""

import re
import shlex
from math import prod
from pathlib import Path

import numpy as np
import pytest

from engine.comm.world import World
from engine.config import read_solver
from engine.solver import stages
from engine.solver.global_batch import batch_warnings
from engine.solver.resolve import resolve
from engine.solver.schedules import LearningRate, WeightDecay
from engine.solver.validate import check_schedules, validate
from engine.verbs.command_line import parse
from engine.verbs.runtime import asked_solvers
from tests.shared import SHARED, needs_shared
from tests.solver.harness import make_solver

FOLDER = Path(__file__).resolve().parent.parent / "solvers/paper"
PAGE = FOLDER.parents[1] / "docs/recipes.md"
FILES = sorted(FOLDER.glob("*.prototxt"))
IMAGES = 1281167
HALF, USUAL = 0.00005, 0.0001
# File, overrides, global batch, epochs, published iterations, peak of the rate, epochs of warm-up, weight decay.
LINES = [
    ("table1_linear", [], 7680, 90, None, 3.0, 5, USUAL),
    ("table2", [], 8192, 90, 14200, 3.2, 5, USUAL),
    ("table2", [], 12288, 90, 9400, 4.8, 5, USUAL),
    ("table2", [], 11520, 90, 10000, 4.5, 5, USUAL),
    ("table3", ["max_epoch=37"], 4096, 37, 11560, 1.6, 5, USUAL),
    ("table3", [], 8192, 50, 7800, 3.2, 5, USUAL),
    ("table3", ["max_epoch=54"], 12288, 54, 5600, 4.8, 5, USUAL),
    ("table4", [], 2048, 29, 18120, 0.8, 5, USUAL),
    ("table4", [], 8192, 29, 4530, 3.2, 5, USUAL),
    ("table4", ["max_epoch=37"], 8192, 37, 5780, 3.2, 5, USUAL),
    ("table7", [], 8192, 50, 7800, 3.2, 5, USUAL),
    ("table7", ["max_epoch=60"], 9600, 60, 8000, 3.75, 5, USUAL),
    ("table7", ["max_epoch=75"], 6400, 75, 15000, 2.5, 5, USUAL),
    ("table8_constant", [], 4096, 90, None, 1.6, 5, USUAL),
    ("table8_half", [], 4096, 90, None, 1.6, 5, HALF),
    # For this batch the paper no longer scales the rate.
    *((name, [], 32768, 90, None, 6.4, 5, USUAL) for name in ("table1_linear", "table2", "table8_constant")),
    *((name, ["max_epoch=90"], 32768, 90, None, 6.4, 5, USUAL) for name in ("table3", "table4")),
    ("table8_half", [], 32768, 90, None, 6.4, 5, HALF),
]
# File, global batch, epochs, published iterations, peak, epochs of warm-up, the collapse's share of the epochs.
COLLAPSED = [
    ("table8", 4096, 90, None, 1.6, 5, 1 / 18),
    ("table8", 32768, 90, None, 6.4, 5, 1 / 18),
    ("table9_10k", 10240, 91, 11400, 4.0, 5, 0.05),
    ("table9_16k", 16384, 92, 7200, 6.4, 5, 0.05),
    ("table9_32k", 32768, 100, 4000, 6.4, 7, 0.05),
    ("table9_48k", 49152, 100, 2600, 6.4, 10, 0.05),
]


def solver(name: str, batch: int, overrides=()):
    """Returns a recipe in iterations, and (rate, decay) of each iteration."""
    config = read_solver(FOLDER / f"{name}.prototxt", overrides)
    validate(config.message, config.place)
    param, _ = resolve(config.message, batch, IMAGES, config.place)
    check_schedules(param, config.place)
    rate, decay = LearningRate(param), WeightDecay(param)
    return param, [(rate(i), decay(i)) for i in range(param.max_iter)]


def line(peak: float, last: int, warmup: int, start: float = 0.1, begin: int = 0):
    """Returns a rate that rises in a line during the warm-up. Then it falls in a line that would be at the peak at
    `begin` and reaches 0 at `last`."""

    def rate(i: int) -> float:
        return start + (peak - start) * i / warmup if i < warmup else peak * (1 - (i - begin) / (last - begin))

    return rate


def same(found, rate, decay, tolerance=1e-5) -> None:
    """Checks (rate, decay) of each iteration against formulas."""
    wanted = [(rate(i), decay(i)) for i in range(len(found))]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize(("name", "changes", "batch", "epochs", "published", "peak", "warmup", "decay"), LINES)
def test_lines(name, changes, batch, epochs, published, peak, warmup, decay):
    param, found = solver(name, batch, changes)
    last = epochs * IMAGES // batch
    assert param.max_iter == last and (published is None or last == pytest.approx(published, rel=0.025))
    same(found, line(peak, last, warmup * IMAGES // batch), lambda i: decay)


@pytest.mark.parametrize(("batch", "peak"), [(7680, 3.0), (32768, 6.4)])
def test_three_steps(batch, peak):
    _, found = solver("table1_steps", batch)
    epoch = IMAGES / batch
    up = line(peak, 10**9, int(5 * epoch))
    steps = [int(30 * epoch), int(60 * epoch), int(80 * epoch)]
    same(found, lambda i: up(i) if i < int(5 * epoch) else peak * 0.1 ** sum(i >= s for s in steps), lambda i: USUAL)


@pytest.mark.parametrize(("name", "batch", "epochs", "published", "peak", "warmup", "share"), COLLAPSED)
def test_a_line_and_the_collapse_of_its_last_part(name, batch, epochs, published, peak, warmup, share):
    first, last = (f"{name}_line", "table8_collapse") if name == "table8" else (name, f"{name}_collapse")
    begun, found = solver(first, batch)
    whole = epochs * IMAGES // batch
    same(found, line(peak, whole, warmup * IMAGES // batch), lambda i: HALF)
    ended, rest = solver(last, batch)
    assert begun.max_iter + ended.max_iter == pytest.approx(whole, abs=2)
    assert published is None or whole == pytest.approx(published, rel=0.025)
    # The collapse begins where the line has left off, and goes to 0 with power 2.
    same(rest, lambda i: peak * share * (1 - i / ended.max_iter) ** 2, lambda i: USUAL)
    assert rest[0][0] == pytest.approx(found[-1][0], rel=0.02)
    assert list(ended.train_state.stage) == ["collapse"] and not begun.train_state.stage


def test_the_decay_of_the_64k_run_rises_in_steps_and_in_its_collapse():
    begun, found = solver("table9_64k", 65536)
    ended, rest = solver("table9_64k_collapse", 65536)
    epoch, whole = IMAGES / 65536, 107 * IMAGES // 65536
    assert begun.max_iter + ended.max_iter == pytest.approx(whole, abs=2) == pytest.approx(2100, rel=0.025)
    same(found, line(6.4, whole, int(10 * epoch)), lambda i: USUAL if i >= int(60 * epoch) else HALF)
    same(rest, lambda i: 6.4 * 0.05 * (1 - i / ended.max_iter) ** 2, lambda i: 2 * USUAL)
    assert rest[0][0] == pytest.approx(found[-1][0], rel=0.02)
    assert list(ended.train_state.stage) == ["collapse"] and not begun.train_state.stage


def test_the_line_of_24k_begins_where_the_warm_up_ends():
    param, found = solver("tensorflow_24k", 24576)
    assert param.max_iter == 90 * 52  # epochs have 1280000 / 24576 iterations, rounded as in that recipe
    same(found, line(4.8, 4680, 260, begin=260), lambda i: HALF)


@pytest.mark.parametrize(("nodes", "peak"), [(16, 0.2), (32, 0.08**0.5)])
def test_inception_resnet_s_rate_grows_with_the_root_of_the_batch(nodes, peak):
    """A node has 64 images. The rate falls with power 3."""
    batch = 64 * nodes
    _, found = solver("inception_resnet_v2", batch)
    last, warmup = 100 * IMAGES // batch, 5 * IMAGES // batch
    up = line(peak, last, warmup)
    same(found, lambda i: up(i) if i < warmup else peak * (1 - i / last) ** 3, lambda i: 0.0002)


PARABOLA = """
layer { name: "x" type: "DummyData" top: "x" top: "wanted" dummy_data_param { shape { dim: 1 dim: 1 }
  data_filler { value: 1 } data_filler { value: 3 } } }
layer { name: "y" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 1 bias_term: false weight_filler { type: "constant" value: 5 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "wanted" top: "loss" }
"""


@pytest.mark.parametrize(
    ("name", "nesterov"),
    [("tensorflow_24k", True), ("inception_resnet_v2", False), ("../inception_resnet_v2", False)],
)
def test_what_tensorflow_has_trained_has_its_momentum(name, nesterov):
    """TensorFlow computes a = m a + g and w -= rate a, or w -= rate (g + m a) by Nesterov: a rate that changes does not
    rescale the history a."""
    recipe = read_solver(FOLDER / f"{name}.prototxt").message
    taken = f'type: "{recipe.type}" momentum: 0.9 momentum_correction: {str(recipe.momentum_correction).lower()} '
    taken += 'base_lr: 0.3 lr_policy: "poly" power: 1 max_iter: 8 warmup_iter: 4 warmup_start_lr: 0.1'
    run = make_solver(taken, PARABOLA)
    rate, w, a = LearningRate(run.param), 5.0, 0.0
    assert run.solve()
    for i in range(8):
        g = w - 3
        a = 0.9 * a + g
        w -= rate(i) * (g + 0.9 * a if nesterov else a)
    run.optimizer.wait()
    assert run.optimizer.weights[0] == pytest.approx(w, rel=1e-5) and w != pytest.approx(3, abs=0.1)
    run.close()


def test_the_120_epochs():
    """Section VI: a line for 30 epochs, power 2 to 22% of the rate at 45, then five cycles, x 3 in 3 epochs and / 4 in
    12."""
    epoch = IMAGES / 4096
    names = ["line", "power2", *(f"cycle{k}" for k in range(1, 6))]
    found = [each for name in names for each in solver(f"120epochs_{name}", 4096)[1]]
    assert len(found) == pytest.approx(120 * epoch, abs=5)

    def rate(i: int) -> float:
        e = i / epoch
        if e < 30:
            return 0.1 + 1.5 * e / 5 if e < 5 else 1.6 * (1 - e / 120)
        if e < 45:
            return 1.2 * (1 - (e - 30) / 15 * (1 - (0.22 * 1.6 / 1.2) ** 0.5)) ** 2
        cycle, inside = divmod(e - 45, 15)
        begin = 0.22 * 1.6 * 0.75**cycle
        return begin + 2 * begin * inside / 3 if inside < 3 else 3 * begin * (1 - (inside - 3) / 24) ** 2

    # Stages have whole iterations, and numbers four digits. Where the slope jumps, that is a few thousandths.
    same(found, rate, lambda i: HALF, 0.006)


@pytest.mark.parametrize("cycle", range(1, 6))
def test_each_cycle_has_its_collapse(cycle):
    _, before = solver(f"120epochs_cycle{cycle}", 4096)
    param, found = solver(f"120epochs_collapse{cycle}", 4096)
    assert list(param.weights) == [f"120epochs_cycle{cycle}_iter_{len(before)}.caffemodel"]
    assert list(param.train_state.stage) == ["collapse"]
    assert found[0][0] == pytest.approx(before[-1][0], rel=0.005)
    same(found, lambda i: param.base_lr * (1 - i / len(found)) ** 2, lambda i: USUAL)


IN_ITERATIONS = {"448nodes": (896, 16), "72epochs": (128, 32), "120epochs": (128, 32), "tensorflow_24k": (512, 48)}


@pytest.mark.parametrize("path", [p for p in FILES if "\nmax_iter" in p.read_text()], ids=lambda path: path.stem)
def test_recipes_in_iterations_tell_their_global_batch(path):
    """With half of the ranks, and the 16 images of the net on each, a warning says what it would take."""
    ranks, size = next(each for name, each in IN_ITERATIONS.items() if path.stem.startswith(name))
    config = read_solver(path)
    assert list(batch_warnings(config, ranks * size, ranks)) == []
    (told,) = batch_warnings(config, ranks // 2 * 16, ranks // 2)
    setting = f"--set 'layer[data@TRAIN].data_param.batch_size={2 * size}'"
    assert f" = {ranks // 2} ranks x 16 x iter_size 1; {setting} or " in told


@pytest.mark.parametrize("name", IN_ITERATIONS)
def test_the_page_tells_the_epochs_of_recipes_in_iterations(name):
    """They are computed from the page's text: "120, and 5 x 5" is a run and its five collapses."""
    row = next(each for each in PAGE.read_text().splitlines() if f"| `{name}" in each)
    told = [prod(map(float, part.split(" x "))) for part in row.split("|")[4].split(", and ")]
    files = [read_solver(path).message for path in FILES if path.stem.startswith(name)]
    assert sum(told) == pytest.approx(sum(each.max_iter * each.global_batch for each in files) / IMAGES, abs=0.3)


def test_the_448_node_run_is_a_row_that_branches(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    configs = [read_solver(FOLDER / f"448nodes{part}.prototxt") for part in ("", "_collapse")]
    stages.check_stages(configs, World())
    (_, before), (_, after) = (solver(f"448nodes{part}", 14336) for part in ("", "_collapse"))
    branch = int(configs[1].message.weights[0].split("_")[-1].split(".")[0])
    assert branch % configs[0].message.snapshot == 0
    assert after[0][0] == pytest.approx(before[branch][0], rel=0.06)  # 0.254 by the file, 0.24 in fact


TWINS = {
    "448nodes": "resnet50_448nodes/solver",
    "448nodes_collapse": "resnet50_448nodes/solver_collapse",
    "72epochs_init": "resnet50_custom_lr/solver_init",
    "72epochs_cycle1": "resnet50_custom_lr/solver_cyc1",
    "72epochs_cycle2": "resnet50_custom_lr/solver_cyc2",
    "72epochs_cycle3": "resnet50_custom_lr/solver_cyc3",
    "72epochs_collapse": "resnet50_custom_lr/solver_collapse",
}


@needs_shared("zoo/surfsara/models/multinode")
@pytest.mark.parametrize("name", TWINS)
def test_the_public_files_say_the_same(name):
    theirs = read_solver(SHARED / f"zoo/surfsara/models/multinode/{TWINS[name]}.prototxt").message
    ours, found = solver(name, 4096)
    rate, decay = LearningRate(theirs), WeightDecay(theirs)
    assert ours.max_iter == theirs.max_iter and ours.momentum == theirs.momentum
    assert found == [(rate(i), decay(i)) for i in range(theirs.max_iter)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_names_its_source(path):
    head = "".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    assert any(word in head for word in ("arXiv", "Best Practice Guide", "Horovod", "Inception-Resnet-V2"))
    assert any(f"{number}" in head for number in ("Top-1", "top-1"))
    assert read_solver(path).message.snapshot_prefix == path.stem


COMMAND = re.compile(r"^# {5}((?:mpiexec .*)?engine train (?:.*\\\n# {9})*.*)$", re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_command_of_each_file_can_be_run(path, monkeypatch):
    monkeypatch.chdir(FOLDER.parents[1])
    for command in COMMAND.findall(path.read_text()):
        words = shlex.split(command.replace("\\\n# ", ""))
        options = parse(words[words.index("engine") + 1 :])
        assert path.stem in [Path(each).stem for each in options.solver.split(",")]
        assert asked_solvers(options)
