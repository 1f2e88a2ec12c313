"""snapshot_keep, snapshot_best and early_stopping: which files stay, which weights are best, when a run ends. A run
that is interrupted comes to the same result."""

import json
import shutil

import numpy as np
import pytest

from engine import weights
from engine.cli import main
from engine.comm.world import World
from engine.config import parse_net, parse_solver
from engine.errors import ConfigError, EngineError, WeightsError
from engine.inference.evaluator import Evaluator
from engine.inference.trained import load
from engine.report.observer import Observer
from engine.report.summary import Summary
from engine.solver.goals import check_goals
from engine.solver.solver import Solver
from engine.solver.stages import check_stages
from engine.solver.state import GoalsState
from engine.watchdog import board
from engine.weights import SolverState, read_caffemodel, read_solverstate, write_solverstate
from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, make_solver, solve

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0625 }
  data_param { source: "%(digits)s/digits_train_lmdb" backend: LMDB batch_size: %(batch)d } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0625 }
  data_param { source: "%(digits)s/digits_test_lmdb" backend: LMDB batch_size: 180 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


def digits_net(batch: int = 16) -> str:
    return NET % {"digits": DIGITS, "batch": batch}


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Saves the second that drawing a run's curves takes."""
    monkeypatch.setattr("engine.report.plot.write_curve", lambda points, prefix: None)


TESTS = "test_interval: 5 momentum: 0.9 random_seed: 3 "
RUN = TESTS + 'max_iter: 40 snapshot: 10 snapshot_keep: 2 snapshot_best: "accuracy" base_lr: 0.2 '


class Seen(Observer):
    """Collects the values of an output by iteration, and the paths of snapshots that are there."""

    def __init__(self, output="accuracy"):
        self.output, self.values, self.there = output, {}, set()

    def test(self, record):
        self.values.setdefault(record.iteration, float(record.outputs[self.output][0]))

    def saved(self, iteration, path):
        self.there.add(path)

    def removed(self, path):
        self.there.discard(path)


def watched(text, folder, restore="", net=None, **options):
    """Runs a solver to its end, from the start or from a solverstate; returns it and what it has told a Seen."""
    solver = make_solver(text, net or digits_net(), folder, **options)
    seen = Seen("loss" if '"loss"' in text else "accuracy")
    solver.observers.append(seen)
    if restore:
        solver.restore(str(restore))
    assert solver.solve()
    solver.close()
    return solver, seen


def names(folder):
    """Returns the names of the files of snapshots."""
    return {path.name for path in folder.iterdir() if "_iter_" in path.name}


def snapshot(iteration):
    """Returns the names of both files of a snapshot."""
    return {f"net_iter_{iteration}.caffemodel", f"net_iter_{iteration}.solverstate"}


def content(folder, iteration, kind="", prefix="net"):
    """Returns the bytes of each blob in a caffemodel."""
    model = read_caffemodel(folder / f"{prefix}_iter_{iteration}{kind}.caffemodel")
    return {
        (layer, index): np.asarray(blob).tobytes() for layer, blobs in model.items() for index, blob in enumerate(blobs)
    }


def test_as_many_snapshots_stay_as_are_asked_for(tmp_path):
    """Snapshots of other runs stay, whether they have this prefix or one that begins with the same letters."""
    others = {"net_iter_7.caffemodel", "net_iter_7.solverstate", "net_b_iter_10.caffemodel", "net_iter_10x.caffemodel"}
    for name in others:
        (tmp_path / name).write_bytes(b"another run's")
    needed = [str(tmp_path / "net_iter_10.caffemodel")]
    _, seen = watched("max_iter: 50 snapshot: 10 snapshot_keep: 2 " + TESTS, tmp_path, needed=needed)
    assert names(tmp_path) == others | snapshot(40) | snapshot(50) | snapshot(10)
    assert seen.there == {str(tmp_path / f"net_iter_{at}.caffemodel") for at in (10, 40, 50)}
    assert (tmp_path / "net_iter_7.caffemodel").read_bytes() == b"another run's"


def test_all_stay_without_the_field(tmp_path):
    solve("max_iter: 30 snapshot: 10", digits_net(), tmp_path)
    assert names(tmp_path) == snapshot(10) | snapshot(20) | snapshot(30)


def test_the_average_goes_with_its_snapshot(tmp_path):
    solve("max_iter: 20 snapshot: 10 snapshot_keep: 1 ema: 0.5", digits_net(), tmp_path)
    assert names(tmp_path) == {*snapshot(20), "net_iter_20_ema.caffemodel"}


@pytest.mark.parametrize("output, ema", [("accuracy", ""), ("loss", ""), ("accuracy", "ema: 0.9")])
def test_the_best_weights_are_those_of_the_best_test(tmp_path, output, ema):
    _, seen = watched(RUN.replace("accuracy", output) + ema, tmp_path)
    best = (max if output == "accuracy" else min)(seen.values.values())
    at = next(iteration for iteration, value in seen.values.items() if value == best)
    assert at > 0 and len(set(seen.values.values())) > 3  # otherwise a wrong rule could find the same test
    path = tmp_path / f"net_iter_{at}_best.caffemodel"
    assert (tmp_path / "net_best.caffemodel").resolve() == path.resolve() and str(path) in seen.there
    scored = Evaluator(parse_net(digits_net(), "net"), World())
    load(scored.net, [str(tmp_path / "net_best.caffemodel")])
    assert scored.run()[output][0] == pytest.approx(best, abs=1e-6)
    state = read_solverstate(tmp_path / "net_iter_40.solverstate")
    assert state.kept_snapshots == [20, 30]
    if at < 40:  # at 40, the test comes after the snapshot
        assert (state.best_value, state.best_iteration) == (best, at)


def test_a_field_says_what_is_best(tmp_path):
    _, seen = watched(RUN + "snapshot_best_is: LOWEST", tmp_path)
    assert (tmp_path / "net_best.caffemodel").resolve().name == "net_iter_0_best.caffemodel"
    assert min(seen.values, key=seen.values.__getitem__) == 0


def test_the_end_names_the_best(tmp_path, caplog):
    caplog.set_level("INFO", "engine")
    solver = make_solver(RUN.replace("accuracy", "loss"), digits_net(), tmp_path)
    solver.observers.append(Summary())
    assert solver.solve()
    solver.close()
    at = (tmp_path / "net_best.caffemodel").resolve().name
    assert "Best test: loss = " in caplog.text and f"(saved in {tmp_path}/{at})" in caplog.text


@pytest.mark.parametrize("stop", [10, 20, 30])
@pytest.mark.parametrize("early", ["", "early_stopping { patience: 3 min_delta: 0.05 }"])
def test_a_run_that_goes_on_comes_to_the_same(tmp_path, stop, early):
    """From any snapshot it comes to the same best weights, the same end, the same files and the same state."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, _ = watched(RUN + early, tmp_path / "whole")
    if whole.iteration <= stop:
        pytest.skip("the run ends before")
    watched(f"{RUN.replace('max_iter: 40', f'max_iter: {stop}')} {early}", tmp_path / "parts")
    restore = tmp_path / f"parts/net_iter_{stop}.solverstate"
    parts, _ = watched(RUN + early, tmp_path / "parts", restore=restore)
    assert parts.iteration == whole.iteration and (not early or whole.iteration < 40)
    assert names(tmp_path / "parts") == names(tmp_path / "whole")
    states = [
        read_solverstate(tmp_path / f"{part}/net_iter_{whole.iteration}.solverstate") for part in ("whole", "parts")
    ]
    for field in ("best_value", "best_iteration", "stopping_value", "tests_without_gain", "last_judged"):
        assert getattr(states[0], field) == getattr(states[1], field), field
    assert states[0].kept_snapshots == states[1].kept_snapshots
    best = states[0].best_iteration
    assert content(tmp_path / "whole", best, "_best") == content(tmp_path / "parts", best, "_best")


def test_a_run_without_a_gain_ends(tmp_path, caplog):
    """At a rate of 0, the first test stays the best, and the run ends after three more."""
    caplog.set_level("INFO", "engine")
    text = TESTS + 'max_iter: 40 base_lr: 0 early_stopping { output: "accuracy" patience: 3 }'
    solver, seen = watched(text, tmp_path)
    assert solver.iteration == 15 and list(seen.values) == [0, 5, 10, 15]
    assert f"Early stopping: 3 tests without a gain; the best accuracy is {seen.values[0]:.6g}" in caplog.text
    assert names(tmp_path) == snapshot(15)
    again, seen = watched(text, tmp_path, restore=tmp_path / "net_iter_15.solverstate")
    assert again.iteration == 15 and not seen.values  # the state says that the run is over
    longer, _ = watched(
        text.replace("patience: 3", "patience: 5"), tmp_path, restore=tmp_path / "net_iter_15.solverstate"
    )
    assert longer.iteration == 25


def test_going_on_from_an_early_end_repeats_its_test_on_the_same_samples(tmp_path):
    """Only then do all later tests see the samples of an uninterrupted run."""
    net, text = (
        digits_net().replace("batch_size: 180", "batch_size: 47"),
        TESTS + "test_iter: 1 max_iter: 40 base_lr: 0 ",
    )
    _, whole = watched(text, tmp_path, net=net)
    stopping = text + 'early_stopping { output: "accuracy" patience: %d }'
    short, _ = watched(stopping % 2, tmp_path, net=net)
    assert 0 < short.iteration < 40
    state = tmp_path / f"net_iter_{short.iteration}.solverstate"
    watched(stopping % 2, tmp_path, restore=state, net=net)  # the run is over, and writes its snapshot again
    longer, rest = watched(stopping % 100, tmp_path, restore=state, net=net)
    assert longer.iteration == 40 and min(rest.values) == short.iteration
    assert rest.values == {at: value for at, value in whole.values.items() if at >= short.iteration}


def test_small_gains_are_none(tmp_path, caplog):
    caplog.set_level("INFO", "engine")
    text = TESTS + 'max_iter: 40 early_stopping { output: "loss" patience: 2 min_delta: %s }'
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert watched(text % "100", tmp_path / "a")[0].iteration == 10
    assert "Early stopping: 2 tests without a gain by more than 100; the best loss is" in caplog.text
    assert watched(text % "0", tmp_path / "b")[0].iteration == 40


def test_stopping_takes_the_output_of_the_best(tmp_path):
    """early_stopping without an output goes by that of snapshot_best, here the loss, of which less is better."""
    text = RUN.replace("base_lr: 0.2", "base_lr: 0").replace("accuracy", "loss")
    solver, _ = watched(text + "early_stopping { patience: 2 }", tmp_path)
    assert solver.iteration == 10 and solver.test_nets.goals.stopping
    assert solver.test_nets.goals.stopping.sign == -1


def test_steps_of_a_program_do_not_end_early(tmp_path):
    """run() takes as many iterations as a program asks for."""
    solver = make_solver(TESTS + 'base_lr: 0 early_stopping { output: "accuracy" patience: 1 }', digits_net(), tmp_path)
    solver.feeder.start()
    assert solver.run(20) and solver.iteration == 20
    solver.feeder.close()
    solver.close()


def test_best_weights_that_are_gone_are_sought_anew(tmp_path, caplog):
    caplog.set_level("INFO", "engine")
    watched(RUN.replace("max_iter: 40", "max_iter: 20"), tmp_path)
    for path in tmp_path.glob("*_best.caffemodel"):
        path.unlink()
    _, seen = watched(RUN + "test_initialization: false", tmp_path, restore=tmp_path / "net_iter_20.solverstate")
    assert "are not there: the next test counts as best" in caplog.text
    assert len(list(tmp_path.glob("*iter_*_best.caffemodel"))) in (1, 2)
    state = read_solverstate(tmp_path / "net_iter_40.solverstate")
    assert state.best_value == max(value for at, value in seen.values.items() if at < 40)


def test_a_run_that_goes_on_by_another_output_seeks_the_best_anew(tmp_path, caplog):
    """With the same output, or from an old state that does not name its output, it goes on with the best that the state
    holds."""
    caplog.set_level("INFO", "engine")
    text = TESTS + 'max_iter: %d base_lr: 0 snapshot_best: "%s" early_stopping { patience: 3 }'
    solver, _ = watched(text % (40, "loss"), tmp_path)
    restore = tmp_path / "net_iter_15.solverstate"
    state = read_solverstate(restore)
    assert solver.iteration == state.iteration == 15
    assert state.best_goal == state.stopping_goal == "lowest loss of test net #0"
    assert watched(text % (40, "loss"), tmp_path, restore=restore)[0].iteration == 15
    assert "sought anew" not in caplog.text
    later, seen = watched(text % (40, "accuracy"), tmp_path, restore=restore)
    for field in ("snapshot_best", "early_stopping"):
        told = "goes by the highest accuracy of test net #0, and the snapshot by the lowest loss of test net #0"
        assert f"{field} {told}" in caplog.text
    assert later.iteration == 30 and list(seen.values) == [15, 20, 25, 30]
    assert (tmp_path / "net_best.caffemodel").resolve().name == "net_iter_15_best.caffemodel"
    assert later.state.goals.best_value == seen.values[15] < 0.5
    state.best_goal = state.stopping_goal = None
    write_solverstate(restore, state)
    assert watched(text % (40, "accuracy"), tmp_path, restore=restore)[0].iteration == 15


@pytest.mark.parametrize(
    "best, stopping, known", [("loss", "loss", 5), ("accuracy", "loss", 5), ("loss", "accuracy", None)]
)
def test_each_goal_is_taken_up_by_itself(tmp_path, best, stopping, known):
    """The state goes by the loss. A test that is repeated counts once for early_stopping if its output is still the
    loss, even if snapshot_best has another."""
    text = TESTS + 'snapshot_best: "%s" early_stopping { output: "%s" }'
    goals = make_solver(text % (best, stopping), digits_net(), tmp_path).test_nets.goals
    loss = "lowest loss of test net #0"
    state = GoalsState(0.5, 5, 0.5, 2, last_judged=5, best_goal=loss, stopping_goal=loss)
    goals.take_up(state)
    assert (state.best_value, state.best_iteration) == ((0.5, 5) if best == "loss" else (None, None))
    assert (state.stopping_value, state.tests_without_gain) == ((0.5, 2) if stopping == "loss" else (None, None))
    assert state.last_judged == known


def test_snapshots_under_another_prefix_are_another_runs(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    solve("max_iter: 20 snapshot: 10 snapshot_keep: 1", digits_net(), tmp_path / "a")
    restore = tmp_path / "a/net_iter_20.solverstate"
    solve("max_iter: 40 snapshot: 10 snapshot_keep: 1", digits_net(), tmp_path / "b", restore=restore)
    assert names(tmp_path / "a") == snapshot(20) and names(tmp_path / "b") == snapshot(40)


def test_a_file_named_like_the_link_stays(tmp_path, caplog):
    """The link to the best weights must not take the place of somebody's file."""
    (tmp_path / "net_best.caffemodel").write_bytes(b"mine")
    watched(RUN, tmp_path)
    assert (
        tmp_path / "net_best.caffemodel"
    ).read_bytes() == b"mine" and "is a file and not a link, so it stays" in caplog.text


def files(folder, *texts):
    """Writes solvers a, b and so on of the digits; returns the value of --solver for them."""
    (folder / "net.prototxt").write_text(digits_net())
    paths = []
    for name, text in zip("abc", texts):
        path = folder / f"{name}.prototxt"
        common = f'net: "{folder}/net.prototxt" lr_policy: "fixed" snapshot_prefix: "{folder}/{name}" '
        path.write_text(common + text.replace("{folder}", str(folder)))
        paths.append(str(path))
    return ",".join(paths)


FIRST = TESTS + 'max_iter: 40 base_lr: 0 snapshot_best: "accuracy" early_stopping { patience: 2 } snapshot_keep: 1'
SECOND = 'max_iter: 4 base_lr: 0.01 snapshot: 2 weights: "{folder}/a_best.caffemodel"'


def test_a_stage_that_ends_early_is_over(tmp_path, capfd):
    solvers = files(tmp_path, FIRST, SECOND)
    assert main(["train", "--solver", solvers]) == 0
    whole = {path.name: path.read_bytes() for path in tmp_path.glob("b_iter_4.*")}
    assert "a_iter_10.solverstate" in names(tmp_path) and len(whole) == 2
    for path in tmp_path.glob("b_iter_*"):
        path.unlink()
    capfd.readouterr()
    assert main(["train", "--solver", solvers, "--resume", "auto"]) == 0
    assert f"Stage 1 of 2 is done: {tmp_path}/a_iter_10.solverstate" in capfd.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("b_iter_4.*")} == whole


@pytest.mark.parametrize("initial", ["", "test_initialization: false test_interval: 10"])
def test_a_stage_that_is_killed_in_its_last_test_makes_it(tmp_path, monkeypatch, initial):
    """The last test finds the best weights, with which the next stage begins. If no test came before it, there are no
    best weights yet."""
    first = f'max_iter: 10 base_lr: 0.01 random_seed: 3 snapshot_best: "loss" {initial or "test_interval: 5"}'
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    assert main(["train", "--solver", files(folders[0], first, SECOND)]) == 0
    assert (folders[0] / "a_best.caffemodel").resolve().name == "a_iter_10_best.caffemodel"
    solvers, test = files(folders[1], first, SECOND), Solver.test

    def killed(solver):
        if solver.iteration == 10:
            raise EngineError("killed")
        return test(solver)

    with monkeypatch.context() as patched:
        patched.setattr(Solver, "test", killed)
        assert main(["train", "--solver", solvers]) == 1
    assert "a_iter_10.solverstate" in names(folders[1])
    for _ in range(2):  # the second time, the second stage has begun
        assert main(["train", "--solver", solvers, "--resume", "auto"]) == 0
    assert content(folders[0], 4, prefix="b") == content(folders[1], 4, prefix="b")


def test_what_a_later_stage_begins_with_stays(tmp_path):
    """snapshot_keep removes other snapshots, but not the weights that a later stage reads."""
    first = TESTS + "max_iter: 20 base_lr: 0.01 snapshot: 5 snapshot_keep: 1"
    second = 'max_iter: 2 base_lr: 0.01 weights: "{folder}/a_iter_10.caffemodel"'
    assert main(["train", "--solver", files(tmp_path, first, second)]) == 0
    assert {"a_iter_10.caffemodel", "a_iter_20.caffemodel", "b_iter_2.caffemodel"} <= names(tmp_path)
    assert not {"a_iter_5.caffemodel", "a_iter_15.caffemodel"} & names(tmp_path)


def test_an_output_that_a_test_net_has_in_its_state():
    """Only a test net of stage "a" and level 2 has the output."""
    net = (
        digits_net()
        + """layer { name: "more" type: "InnerProduct" bottom: "data" top: "more"
        inner_product_param { num_output: 1 } include { phase: TEST stage: "a" min_level: 2 } }"""
    )
    text = f'max_iter: 9 base_lr: 0.1 {TESTS} snapshot_best: "more" snapshot_best_is: LOWEST net_param {{ {net} }}'
    check_goals(parse_solver(text + 'test_state { stage: "a" level: 2 }'))
    for state in ("", 'test_state { stage: "a" }', "test_state { level: 2 }"):
        with pytest.raises(ConfigError, match="no test net has an output 'more'"):
            check_goals(parse_solver(text + state))


def test_a_later_stages_output_is_checked_before_the_first_begins(tmp_path):
    second = TESTS + 'max_iter: 4 base_lr: 0.01 snapshot_best: "acuracy"'
    configs = [parse_solver(open(path).read(), path) for path in files(tmp_path, FIRST, second).split(",")]
    with pytest.raises(ConfigError, match=r"b.prototxt:\d+:\d+: snapshot_best: no test net has an output 'acuracy'"):
        check_stages(configs, World())


WRONG = {
    "snapshot_keep: -1": "snapshot_keep: expected 0 or more, got -1",
    'test_interval: 5 snapshot_best: "acc"': "snapshot_best: no test net has an output 'acc'",
    'test_interval: 5 early_stopping { output: "ip" }': "early_stopping: no test net has an output 'ip'",
    'snapshot_best: "accuracy"': "snapshot_best goes by tests, and this solver has none",
    'early_stopping { output: "accuracy" }': "early_stopping goes by tests, and this solver has none",
    "test_interval: 5 early_stopping { }": "early_stopping needs the name of a test output",
    'test_interval: 5 early_stopping { output: "loss" patience: 0 }': "patience: expected 1 or more tests, got 0",
    'test_interval: 5 early_stopping { output: "loss" min_delta: -1 }': "min_delta: expected 0 or more, got -1",
    "snapshot_best_is: LOWEST": "snapshot_best_is is given, but no snapshot_best",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_contradicts_itself_is_refused(tmp_path, text, capsys):
    path = files(tmp_path, f"max_iter: 5 base_lr: 0.1 {text}")
    assert main(["check", path]) == 1
    told = capsys.readouterr().err
    assert WRONG[text] in told and f"engine: {path}:1:" in told and len(told.splitlines()) == 1
    with pytest.raises(ConfigError) as error:
        make_solver(text, digits_net(), tmp_path)
    assert WRONG[text] in str(error.value)


def test_an_output_of_several_values_is_no_goal(tmp_path):
    net = digits_net().replace('top: "accuracy" include', 'top: "accuracy" top: "by_class" include')
    with pytest.raises(ConfigError, match="snapshot_best: output 'by_class' has 10 values, a goal is one number"):
        make_solver(TESTS + 'snapshot_best: "by_class"', net, tmp_path)
    more = (
        'layer { name: "more" type: "InnerProduct" bottom: "data" top: "more" inner_product_param { num_output: 3 } }'
    )
    with pytest.raises(ConfigError, match="snapshot_best: output 'more' has 3 values, a goal is one number"):
        make_solver(TESTS + 'snapshot_best: "more"', digits_net() + more, tmp_path)
    # With batches of 10, its 10 values could be one for each sample.
    net = net.replace("batch_size: 180", "batch_size: 10")
    solver = make_solver(TESTS + 'snapshot_best: "by_class" test_iter: 1', net, tmp_path)
    with pytest.raises(ConfigError, match="snapshot_best: output 'by_class' has 10 values, a goal is one number"):
        solver.test()
    solver.close()


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_the_state_is_written_and_read(tmp_path, suffix):
    if suffix:
        pytest.importorskip("h5py")
    path = tmp_path / f"a.solverstate{suffix}"
    state = SolverState(
        5,
        minimum_loss=0.5,
        best_value=0.1,
        best_iteration=3,
        stopping_value=-2.5,
        tests_without_gain=2,
        last_judged=4,
        best_goal="lowest loss of test net #0",
        stopping_goal="highest accuracy of test net #1",
        kept_snapshots=[1, 3],
    )
    write_solverstate(path, state)
    assert read_solverstate(path) == state
    state.kept_snapshots = [-1]
    write_solverstate(path, state)
    with pytest.raises(WeightsError, match=r"kept_snapshots \[-1"):
        read_solverstate(path)
    state.kept_snapshots, state.tests_without_gain = [], -1
    write_solverstate(path, state)
    with pytest.raises(WeightsError, match="tests_without_gain -1, expected 0"):
        read_solverstate(path)


@pytest.mark.mpi
def test_ranks_decide_alike(tmp_path):
    """Two ranks agree on decisions and files, and one rank with the global batch of both comes to the same."""
    program = """
import json, sys
from engine.comm.world import world
from tests.solver.test_goals import RUN, digits_net, watched
text = RUN + "early_stopping { patience: 3 min_delta: 0.05 }"
solver, seen = watched(text, sys.argv[1], world=world(), net=digits_net(8))
goals = vars(solver.state.goals)
found = world().gather([goals, solver.iteration, sorted(seen.there)])
if found:
    print(json.dumps(found), flush=True)
world().close()
"""
    script = tmp_path / "train.py"
    script.write_text(program)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    done = run_ranks(2, [str(script), str(tmp_path / "two")], timeout=100)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout)
    assert ours == theirs
    alone, _ = watched(RUN + "early_stopping { patience: 3 min_delta: 0.05 }", tmp_path / "one")
    assert alone.iteration == ours[1] and names(tmp_path / "one") == names(tmp_path / "two")
    assert vars(alone.state.goals) == pytest.approx(ours[0])
    np.testing.assert_equal(alone.state.goals.best_iteration, ours[0]["best_iteration"])
    shutil.rmtree(tmp_path / "two")


def test_files_are_written_where_the_watchdog_is_patient(tmp_path, monkeypatch):
    """The watchdog allows a snapshot ten times as long as an iteration. It must know that the best weights are written,
    too."""
    places = []

    def written(write):
        def noting(*arguments):
            places.append(solver.world.board.numbers[board.PLACE])
            return write(*arguments)

        return noting

    for name in ("write_caffemodel", "write_solverstate"):
        monkeypatch.setattr(weights, name, written(getattr(weights, name)))
    solver = make_solver(RUN.replace("40", "10") + "ema: 0.9", digits_net(), tmp_path)
    assert solver.solve()
    solver.close()
    assert len(places) > 4 and set(places) == {board.SNAPSHOT}


@pytest.mark.parametrize("field", ['snapshot_best: "accuracy"', 'early_stopping { output: "accuracy" patience: 3 }'])
def test_a_net_that_is_not_tested_is_no_goal(field, tmp_path):
    with pytest.raises(ConfigError, match="output 'accuracy' is of test net #0, whose test_iter is 0"):
        make_solver(f"test_iter: 0 test_interval: 5 {field}", digits_net(), tmp_path)


def test_the_goal_is_that_of_the_net_that_is_tested(tmp_path):
    """Of two test nets with the same outputs, the first has test_iter 0, so the goal is the second's."""
    (tmp_path / "net.prototxt").write_text(digits_net())
    names = f'test_net: "{tmp_path}/net.prototxt" ' * 2
    text = f'{TESTS} {names} test_iter: 0 test_iter: 2 max_iter: 5 snapshot_best: "accuracy"'
    solver, seen = watched(text, tmp_path)
    assert solver.test_nets.goals.best.index == 1 and solver.state.goals.best_value == max(seen.values.values())
