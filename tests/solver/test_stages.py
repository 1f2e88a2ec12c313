"""A row of solvers, one stage after the other: weights, samples, resuming after a kill, and stages that do not fit."""

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from engine.cli import main
from engine.comm.world import World, world
from engine.config import SolverConfig, parse_solver
from engine.data.feeder import Feeder
from engine.errors import EngineError
from engine.net import Net
from engine.solver import stages
from engine.solver.stages import check_stages, digest_of
from engine.verbs.runtime import asked_solvers
from engine.weights import read_caffemodel, read_solverstate
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import ENVIRON, REPO, mpiexec
from tests.shared import SHARED, needs_shared
from tests.solver.harness import different, digits_net, learned, make_solver

STAGES = {  # as in the 72-epoch run: a first part, a cycle, a branch from before it, an end without a snapshot between
    "one": 'max_iter: 6 base_lr: 0.05 lr_policy: "poly" power: 1 snapshot: 2',
    "two": 'max_iter: 5 base_lr: 0.03 lr_policy: "poly_cyc" power: 2 lr_iter: 8 snapshot: 2 type: "Nesterov"',
    "three": 'max_iter: 4 base_lr: 0.02 lr_policy: "fixed" snapshot: 2 weights: "{folder}/one_iter_4.caffemodel"',
    "four": 'max_epoch: 0.03 base_lr: 0.01 lr_policy: "fixed" snapshot: 2',
}


def files(folder: Path, **changes: str) -> str:
    """Writes the stages' files; returns the value of --solver.

    Args:
        changes: the text of a stage by name, in place of that in STAGES; "" leaves the stage out.
    """
    (folder / "net.prototxt").write_text(digits_net())
    texts = {**STAGES, **changes}
    for name, text in texts.items():
        common = f'net: "{folder}/net.prototxt" momentum: 0.9 random_seed: 7 snapshot_prefix: "{folder}/{name}"\n'
        (folder / f"{name}.prototxt").write_text(common + text.replace("{folder}", str(folder)))
    return ",".join(str(folder / f"{name}.prototxt") for name, text in texts.items() if text)


def train(*arguments: str) -> int:
    return main(["train", *arguments])


def asked(solvers: str, *sets: str, shorten: int | None = None) -> list[SolverConfig]:
    """Returns the solvers as `engine train` reads them."""
    options = Namespace(solver=solvers, set=list(sets), shorten=shorten, precision=None, level=None, stage=[])
    return asked_solvers(options)


def content(folder: Path) -> dict[str, bytes]:
    """Returns the content of every snapshot by file name, without the names of folders in it."""
    found = {}
    for path in sorted(folder.glob("*_iter_*")):
        if path.suffix == ".caffemodel":
            found[path.name] = {f"{n}{i}": b for n, each in read_caffemodel(path).items() for i, b in enumerate(each)}
        else:
            state = read_solverstate(path)
            found[path.name] = {f"{i}": blob for i, blob in enumerate(state.history)}
            found[f"{path.name} place"] = (state.iteration, state.samples_seen, state.recent_loss, state.max_iter)
    return found


def same(a: Path, b: Path) -> None:
    """Checks that two folders have the same snapshots."""
    ours, theirs = content(a), content(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, dict):
            assert not different(value, theirs[name]), name
        else:
            assert value == theirs[name], name


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Trains a row that nothing interrupts; returns its folder."""
    folder = tmp_path_factory.mktemp("whole")
    assert train("--solver", files(folder)) == 0
    return folder


def test_each_stage_begins_where_and_with_what_the_one_before_has_left(whole):
    # Stage four has 0.03 epochs of 1437 samples, which are two batches of 16.
    ends = {"one": 6, "two": 5, "three": 4, "four": 2}
    sample, before = 0, None
    for name, end in ends.items():
        state = read_solverstate(whole / f"{name}_iter_{end}.solverstate")
        sample += 16 * end
        assert (state.samples_seen, state.max_iter) == (sample, end)
        if before:
            branch = whole / "one_iter_4.caffemodel" if name == "three" else before
            assert state.begun_from == digest_of([str(branch)])
        before = whole / f"{name}_iter_{end}.caffemodel"


def test_the_log_says_where_a_run_begins(tmp_path, capfd):
    assert train("--solver", files(tmp_path, three="", four="")) == 0  # on 1437 samples
    told = capfd.readouterr().err
    assert f"Stage 2 of 2: {tmp_path}/two.prototxt" in told
    assert "Iteration 0 begins with sample 0 (epoch 0) of the order of seed 7" in told
    assert "Iteration 0 begins with sample 96 (epoch 0.0668058) of the order of seed 7" in told
    assert train("--solver", str(tmp_path / "two.prototxt"), "--weights", f"{tmp_path}/one_iter_6.caffemodel") == 0
    assert "Iteration 0 begins with sample 0 (epoch 0) of the order of seed 7" in capfd.readouterr().err


def test_the_set_up_of_a_later_stage_may_take_as_long_as_that_of_the_first(tmp_path, monkeypatch):
    """The watchdog has to know. The stage before leaves its board at the wait for the last updates, which may take
    less."""
    found, next_position = [], stages.next_position

    def asked(*args):
        found.append(world().board.text() == "set-up")
        return next_position(*args)

    monkeypatch.setattr(stages, "next_position", asked)
    assert train("--solver", files(tmp_path, three="", four="")) == 0
    assert found == [True]


def test_no_sample_of_an_epoch_comes_twice(tmp_path, monkeypatch):
    """Epoch and index decide the augmentation, so a sample that came twice would be augmented alike. The stages go over
    the end of an epoch."""
    read: Counter[tuple[int, str]] = Counter()
    following = Feeder.next

    def noted(self: Feeder, net: Net) -> int:
        first = following(self, net)
        read.update(((first + number) // self.size, key) for number, key in enumerate(self.keys))
        return first

    monkeypatch.setattr(Feeder, "next", noted)
    lengths = {"one": "max_iter: 80", "two": "max_iter: 40"}
    solvers = files(
        tmp_path,
        **{name: f'{text} base_lr: 0.01 lr_policy: "fixed"' for name, text in lengths.items()},
        three="",
        four="",
    )
    assert train("--solver", solvers) == 0
    assert set(read.values()) == {1} and len(read) == 120 * 16


@pytest.mark.parametrize("kill", ["one_iter_2", "one_iter_6", "two_iter_2", "three_iter_2", "four_iter_2"])
def test_resume_auto_goes_on_in_the_right_stage(whole, tmp_path, kill):
    """The folder is that of a run which was killed just after this snapshot, so there are none of later stages."""
    solvers = files(tmp_path)
    stage, _, last = kill.partition("_iter_")
    for path in whole.glob("*_iter_*"):
        name, _, iteration = path.stem.partition("_iter_")
        earlier = list(STAGES).index(name) < list(STAGES).index(stage)
        if earlier or (name == stage and int(iteration) <= int(last)):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert train("--solver", solvers, "--resume", "auto") == 0
    same(whole, tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of each file of a snapshot."""
    return {path.name: path.read_bytes() for path in folder.glob("*_iter_*")}


def test_snapshots_of_another_run_are_not_written_over(whole, tmp_path, capfd):
    """These are snapshots of a later stage that began with other weights, or whose stage before is not over."""
    solvers = files(tmp_path)
    slower = ["--solver", solvers, "--resume", "auto", "--set", "1:base_lr=0.04"]
    for path in [*whole.glob("two_iter_*"), *whole.glob("one_iter_2.*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = contents(tmp_path)
    assert train(*slower) == 1 and contents(tmp_path) == before
    told = capfd.readouterr().err
    assert "two_iter_5.solverstate: a snapshot of stage 2, and stage 1 has not come to its end; move the snap" in told
    for path in tmp_path.glob("two_iter_*"):
        path.unlink()
    assert train(*slower) == 0
    for path in [*tmp_path.glob("three_iter_*"), *tmp_path.glob("four_iter_*")]:
        path.unlink()
    for path in whole.glob("two_iter_*"):  # the first stage of these had a rate of 0.05, here it was 0.04
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = contents(tmp_path)
    capfd.readouterr()
    assert train(*slower) == 1 and contents(tmp_path) == before
    told = capfd.readouterr().err
    assert "two_iter_5.solverstate: its run began with other weights than this one does; move the snapshots" in told


def test_a_stage_of_a_shorter_run_is_not_over(tmp_path, capfd):
    """Its length is given in epochs, as after a trial with --shorten. Only the snapshot knows how many iterations they
    were."""
    solvers = files(tmp_path, one='max_epoch: 0.03 base_lr: 0.05 lr_policy: "fixed"', three="", four="")
    assert train("--solver", solvers) == 0
    assert train("--solver", solvers, "--resume", "auto", "--set", "1:max_epoch=0.06") == 1
    told = capfd.readouterr().err
    assert "one_iter_2.solverstate is of a run that was to end there, after 0.03 epochs, and this one goes on" in told
    assert "two_iter_5.solverstate: a snapshot of stage 2, and stage 1 has not come to its end; move the snap" in told
    for path in tmp_path.glob("two_iter_*"):
        path.unlink()
    assert train("--solver", solvers, "--resume", "auto", "--set", "1:max_epoch=0.06") == 0
    capfd.readouterr()
    # 1437 samples in batches of 16.
    assert read_solverstate(tmp_path / "one_iter_5.solverstate").max_epoch == pytest.approx(0.06)
    assert train("--solver", solvers, "--resume", "auto", "--set", "1:max_epoch=0.06") == 0
    assert f"Stage 1 of 2 is done: {tmp_path}/one_iter_5.solverstate" in capfd.readouterr().err


def test_a_run_that_began_with_other_weights_does_not_go_on(whole, tmp_path, capfd):
    solver = files(tmp_path, one="", two="", four="", three=STAGES["three"].partition(" weights")[0])
    two, four = ["--weights", f"{whole}/one_iter_2.caffemodel"], ["--weights", f"{whole}/one_iter_4.caffemodel"]
    assert train("--solver", solver, *four) == 0
    assert train("--solver", solver, "--resume", "auto", *four) == 0
    assert train("--solver", solver, "--resume", "auto") == 0  # without --weights, any beginning is accepted
    assert "Going on after iteration 4 of 4" in capfd.readouterr().err
    state = tmp_path / "three_iter_4.solverstate"
    assert read_solverstate(state).begun_from == digest_of(four[1:])
    before = contents(tmp_path)
    assert train("--solver", solver, "--resume", "auto", *two) == 1 and contents(tmp_path) == before
    told = capfd.readouterr().err
    assert f"engine: {state}: its run began with other weights than this one does; move the snapshots of that" in told


@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]], ids=["", "resume"])
def test_weights_that_a_stage_alone_lacks_are_told_with_what_leaves_them(resume, tmp_path, capfd):
    files(tmp_path)
    assert train("--solver", str(tmp_path / "three.prototxt"), *resume) == 1
    told = capfd.readouterr().err
    assert re.search(r"three.prototxt:\d+:\d+: weights '.*/one_iter_4.caffemodel': no such file; if another sol", told)
    assert train("--solver", str(tmp_path / "three.prototxt"), "--weights", "nowhere.caffemodel", *resume) == 1
    assert "engine: nowhere.caffemodel: cannot be read: No such file or directory" in capfd.readouterr().err


def test_a_run_goes_on_without_the_weights_that_it_began_with(whole, tmp_path, capfd):
    solver = files(tmp_path, one="", two="", four="", three=STAGES["three"].partition(" weights")[0])
    weights = tmp_path / "begin.caffemodel"
    weights.write_bytes((whole / "one_iter_4.caffemodel").read_bytes())
    options = ["--solver", solver, "--weights", str(weights), "--set"]
    assert train(*options, "max_iter=2") == 0
    weights.unlink()
    assert train(*options, "max_iter=4", "--resume", "auto") == 0
    assert "Going on after iteration 2 of 4" in capfd.readouterr().err


def test_a_stage_that_goes_on_alone_stays_one_of_its_row(whole, tmp_path, capfd):
    """The row takes the stage's snapshots for its own, and does not train the stage again."""
    solvers = files(tmp_path)
    for path in [*whole.glob("one_iter_*"), *whole.glob("two_iter_2.*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    state = str(tmp_path / "two_iter_2.solverstate")
    assert train("--solver", str(tmp_path / "two.prototxt"), "--snapshot", state) == 0
    assert train("--solver", solvers, "--resume", "auto") == 0
    assert f"Stage 2 of 4 is done: {tmp_path}/two_iter_5.solverstate" in capfd.readouterr().err
    same(whole, tmp_path)


def test_a_stage_that_goes_on_alone_has_the_noise_that_it_has_in_its_row(tmp_path):
    net = """layer { name: "noise" type: "DummyData" top: "noise"
      dummy_data_param { shape { dim: 4 dim: 5 } data_filler { type: "gaussian" } } }
    layer { name: "ip" type: "InnerProduct" bottom: "noise" top: "ip"
      inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }"""
    found = []
    for restore in (False, True):
        solver = make_solver("max_iter: 4 snapshot: 2", net, tmp_path)
        if restore:
            solver.restore(str(tmp_path / "net_iter_2.solverstate"))
        else:
            solver.begin_after(12, "digest")
        assert solver.solve() and solver.state.samples_seen == 16
        solver.close()
        assert solver.begun_from == "digest"
        found.append(learned(solver))
    assert different(*found) == []


def test_overrides_are_for_all_stages_or_for_one(tmp_path, capfd):
    solvers = files(tmp_path, three="", four="")
    sets = ["--set", "max_iter=4", "--set", "2:max_iter=3", "--set", "snapshot_prefix=" + str(tmp_path) + "/"]
    assert train("--solver", solvers, *sets) == 0
    assert (tmp_path / "one_iter_4.caffemodel").exists() and (tmp_path / "two_iter_3.caffemodel").exists()
    assert not (tmp_path / "two_iter_4.caffemodel").exists()
    assert train("--solver", solvers, "--set", "3:max_iter=4") == 1
    assert "--set 3:max_iter=4: expected a stage from 1 to 2" in capfd.readouterr().err


def test_shorten_divides_all_that_is_counted(tmp_path):
    text = "max_iter: 1000 lr_iter: 16 snapshot: 3 stepvalue: 100 stepvalue: 250 warmup_epoch: 5 base_lr: 1 display: 40"
    text += " adversarial { discriminator_solver { max_iter: 2000 warmup_iter: 9 stepvalue: 600 } }"
    text += " comm_param { sync_start: 200 }"
    solvers = files(tmp_path, one=text + ' lr_policy: "fixed"', two="", three="", four="")
    (config,) = asked(solvers, shorten=10)
    param = config.message
    assert (param.max_iter, param.lr_iter, param.snapshot, list(param.stepvalue)) == (100, 2, 1, [10, 25])
    assert param.warmup_epoch == 0.5 and param.display == 4
    assert param.comm_param.sync_start == 20
    other = param.adversarial.discriminator_solver
    assert (other.max_iter, other.warmup_iter, list(other.stepvalue)) == (200, 1, [60])


@pytest.mark.parametrize("prefix", ["one", "first"])
def test_a_branch_follows_a_stage_whose_prefix_is_overridden(tmp_path, monkeypatch, capfd, prefix):
    """An earlier run has left a file of the name that the branch's file gives."""
    monkeypatch.chdir(tmp_path)
    branch = STAGES["three"].replace("{folder}/one", prefix)
    solvers = files(tmp_path, two="", three=branch, four="")
    own = tmp_path / "one.prototxt"
    own.write_text(own.read_text().replace(f"{tmp_path}/one", prefix))
    (tmp_path / f"{prefix}_iter_4.caffemodel").write_bytes(b"of another run")
    (tmp_path / "out").mkdir()
    assert train("--solver", solvers, "--set", f"snapshot_prefix={tmp_path}/out/") == 0
    note = (
        f"weights '{prefix}_iter_4.caffemodel' are what stage 1 leaves, and its snapshot_prefix is {tmp_path}/out/one"
    )
    assert f"{note} here: taking those that it leaves there" in capfd.readouterr().err
    state = read_solverstate(tmp_path / "out/three_iter_4.solverstate")
    assert state.begun_from == digest_of([str(tmp_path / "out/one_iter_4.caffemodel")])


def test_a_branch_from_another_prefix_is_shortened_too(tmp_path):
    solvers = files(tmp_path, two="", four="")
    configs = asked(solvers, f"snapshot_prefix={tmp_path}/out/", shorten=2)
    assert list(configs[1].message.weights) == [f"{tmp_path}/out/one_iter_2.caffemodel"]


def test_weights_that_no_stage_leaves_by_its_own_prefix_stay(tmp_path):
    """They have the name that a stage leaves, but lie in the folder of an older run."""
    branch = STAGES["three"].replace("{folder}", "{folder}/old")
    configs = asked(files(tmp_path, two="", three=branch, four=""), f"snapshot_prefix={tmp_path}/out/")
    assert list(configs[1].message.weights) == [f"{tmp_path}/old/one_iter_4.caffemodel"]


def test_weights_that_the_user_names_stay(tmp_path):
    """They are those of an earlier run, which has left them by the prefix in the first stage's file."""
    mine = f"{tmp_path}/one_iter_6.caffemodel"
    solvers = files(tmp_path, two="", four="")
    configs = asked(solvers, f"snapshot_prefix={tmp_path}/out/", f"2:weights={mine}")
    assert list(configs[1].message.weights) == [mine] and configs[1].notes == []


def test_of_stages_whose_files_have_one_prefix_the_last_is_followed(tmp_path):
    """--set gives each of the stages a prefix of its own."""
    branch = STAGES["three"].replace("{folder}/one", "{folder}/same")
    solvers = files(tmp_path, three=branch, four="")
    for name in ("one", "two"):
        path = tmp_path / f"{name}.prototxt"
        path.write_text(path.read_text().replace(f"{tmp_path}/{name}", f"{tmp_path}/same"))
    configs = asked(solvers, f"snapshot_prefix={tmp_path}/out/")
    assert list(configs[2].message.weights) == [f"{tmp_path}/out/two_iter_4.caffemodel"]


@pytest.mark.parametrize(
    ("prefix", "begins"), [("out_iter_1", "out_iter_1_iter_2"), ("x_iter_5/a", "x_iter_5/a_iter_2")]
)
def test_a_shortened_branch_reads_the_iteration_behind_the_prefix(tmp_path, prefix, begins):
    branch = STAGES["three"].replace("one_iter_4", f"{prefix}_iter_4")
    solvers = files(tmp_path, two="", three=branch, four="")
    configs = asked(solvers, f"1:snapshot_prefix={tmp_path}/{prefix}", shorten=2)
    assert list(configs[1].message.weights) == [f"{tmp_path}/{begins}.caffemodel"]


@pytest.mark.parametrize(("divisor", "begins"), [(1000, 8), (100, 76), (10, 760), (7, 1083)])
def test_a_shortened_branch_begins_where_the_shortened_stage_has_a_snapshot(tmp_path, divisor, begins):
    """The numbers are those of the 448-node run, whose collapse branches off at the 19th snapshot."""
    line = 'max_iter: 8040 snapshot: 402 base_lr: 1 lr_policy: "fixed"'
    branch = 'max_iter: 402 base_lr: 1 lr_policy: "fixed" weights: "{folder}/one_iter_7638.caffemodel"'
    solvers = files(tmp_path, one=line, two=branch, three="", four="")
    configs = asked(solvers, shorten=divisor)
    assert list(configs[1].message.weights) == [f"{tmp_path}/one_iter_{begins}.caffemodel"]
    check_stages(configs, World())


@pytest.mark.parametrize(
    ("one", "begins", "shortened"),
    [
        ("max_epoch: 1.4", 125, 12),  # the branch begins at the end of the stage
        ("max_epoch: 2.5 snapshot_epoch: 1.4", 125, 12),
        ("max_iter: 200 snapshot_epoch: 1.4", 125, 12),
        ("max_epoch: 2.5 snapshot: 70", 140, 14),
    ],
)
def test_a_shortened_branch_begins_where_epochs_end(tmp_path, one, begins, shortened):
    branch = f'max_iter: 10 base_lr: 0.01 lr_policy: "fixed" weights: "{{folder}}/one_iter_{begins}.caffemodel"'
    solvers = files(tmp_path, one=f'base_lr: 0.01 lr_policy: "fixed" {one}', two=branch, three="", four="")
    assert train("--solver", solvers, "--shorten", "10") == 0
    assert (tmp_path / f"one_iter_{shortened}.caffemodel").exists() and (tmp_path / "two_iter_1.caffemodel").exists()


BAD = {
    "no snapshot": (
        {"three": STAGES["three"].replace("one_iter_4", "one_iter_3")},
        "stage 1 takes snapshots every 2 iterations and at its end, 6",
    ),
    "no best": (
        {"three": STAGES["three"].replace("one_iter_4", "one_best")},
        "of stage 3: stage 1 has no snapshot_best",
    ),
    "no average": (
        {"three": STAGES["three"].replace("one_iter_4", "one_iter_4_ema")},
        "of stage 3: stage 1 has no ema",
    ),
    "format": (
        {"three": STAGES["three"].replace(".caffemodel", ".caffemodel.h5")},
        "stage 1 leaves no file of that format; give it snapshot_format: HDF5",
    ),
    "no weights": (
        {"three": STAGES["three"].replace(".caffemodel", ".solverstate")},
        "stage 1 leaves no file of such a name",
    ),
    "an early end": (
        {
            "one": STAGES["one"] + ' test_interval: 2 early_stopping { output: "accuracy" }',
            "three": STAGES["three"].replace("one_iter_4", "one_iter_6"),
        },
        "stage 1 may end before, by early_stopping; without weights",
    ),
    "prefixes": ({}, "stages 1 and 2 have the same snapshot_prefix"),
    "no end": ({"one": STAGES["one"] + " snapshot_after_train: false"}, "stage 2 begins with what stage 1 leaves, and"),
    "weights": ({"three": STAGES["three"].replace("one_iter_4", "on_iter_4")}, "of stage 3 are not there; earlier st"),
    "fields": ({"four": "max_epoch: 1 max_iter: 3 base_lr: 1"}, "max_epoch and max_iter are both given"),
    "rates": ({"two": 'max_iter: 9 base_lr: 1 lr_policy: "exp" gamma: 1e30'}, "gives no learning rate at"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_row_that_cannot_end_does_not_begin(tmp_path, capfd, kind):
    changes, message = BAD[kind]
    same_prefix = ["--set", f"2:snapshot_prefix={tmp_path}/one"] if kind == "prefixes" else []
    assert train("--solver", files(tmp_path, **changes), *same_prefix) == 1
    told = capfd.readouterr().err
    assert message in told and "Traceback" not in told
    assert not list(tmp_path.glob("*_iter_*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("num_output: 32", "num_output: 31"),
            r"layer 'ip1' of stage 2 has parameters of 31 x 128 and 31, and it begins",
        ),
        (('name: "', 'name: "other_'), "the net of stage 2 has no layer in common with that of stage 1"),
    ],
)
def test_nets_that_do_not_fit_are_refused_before_the_first_begins(tmp_path, change, message):
    configs = []
    for number, net in enumerate((digits_net(), digits_net().replace(*change)), start=1):
        text = f'max_iter: 1 base_lr: 1 lr_policy: "fixed" snapshot_prefix: "{tmp_path}/{number}" net_param {{ {net} }}'
        configs.append(parse_solver(text, str(tmp_path / f"{number}.prototxt")))
    with pytest.raises(EngineError, match=message):
        check_stages(configs, World())


@pytest.mark.parametrize("skip", [False, True])
def test_a_first_picture_that_cannot_be_decoded(tmp_path, monkeypatch, capfd, skip):
    monkeypatch.chdir(tmp_path)
    for name, content in {"a": b"no picture", "b": image_bytes(random_pixels(1))}.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "0.png").write_bytes(content)
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "pictures" batch_size: 2 } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
    )
    for name in ("one", "two"):
        (tmp_path / name).write_text(
            f'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "{name}"'
        )
    assert train("--solver", "one,two", *(["--skip_bad_images"] if skip else [])) == (not skip)
    assert ("Skipped 1 undecodable images" if skip else "'a/0.png': cannot decode") in capfd.readouterr().err
    assert len(list(tmp_path.glob("*.caffemodel"))) == (2 if skip else 0)


def test_one_snapshot_is_not_for_several_solvers(tmp_path, capfd):
    assert train("--solver", files(tmp_path), "--snapshot", "x.solverstate") == 1
    assert "--snapshot continues one solver; --resume auto finds the stage" in capfd.readouterr().err


def start(folder: Path, ranks: int, *arguments: str) -> subprocess.Popen:
    """Starts `engine train` in a folder, as a group of processes of its own."""
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-m", "engine", "train", *arguments]
    command = [mpiexec(), "-n", str(ranks), *command] if ranks > 1 else command
    return subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)


def kill_when(process: subprocess.Popen, path: Path) -> None:
    """Kills the launcher and its ranks by SIGKILL as soon as a file is there."""
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.mpi
def test_two_ranks_that_are_killed_come_to_the_same_bits(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    process = start(folders[0], 2, "--solver", files(folders[0]))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    words = ["--solver", files(folders[1]), "--resume", "auto"]
    for last in ("one_iter_2", "three_iter_2"):
        kill_when(start(folders[1], 2, *words), folders[1] / f"{last}.solverstate")
    process = start(folders[1], 2, *words)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    same(*folders)


ZOO = SHARED / "zoo/surfsara/models/multinode/resnet50_custom_lr"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.mpi
@needs_shared("zoo/surfsara/models/multinode/resnet50_custom_lr")
@needs_shared("data/imagenet-sample.zip")
def test_the_five_files_of_the_72_epoch_run_are_one_command(tmp_path):
    """They are unchanged but for paths, batch and length, and the run is killed in stages 1, 3 and 5."""
    with zipfile.ZipFile(SHARED / "data/imagenet-sample.zip") as archive:
        archive.extractall(tmp_path)
    (labels,) = tmp_path.rglob("labels.txt")
    size = ["--resize_height", "256", "--resize_width", "256"]  # as train_val_noaug expects them
    assert main(["convert_imageset", str(labels.parent), str(labels), str(tmp_path / "lmdb"), *size]) == 0
    names = ("init", "cyc1", "cyc2", "cyc3", "collapse")
    words = ["--solver", ",".join(str(ZOO / f"solver_{name}.prototxt") for name in names), "--shorten", "3000"]
    for setting in (f"source={tmp_path}/lmdb", "batch_size=2"):
        words += ["--set", f"layer[data@TRAIN].data_param.{setting}"]
    words += ["--set", "snapshot=1", "--set", "5:max_iter=6000"]  # which leaves two iterations of the last stage
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder, kills in zip(folders, ([], ["init_iter_1", "cyc2_iter_1", "collapse_iter_1"])):
        folder.mkdir()
        mine = [*words, "--set", f"snapshot_prefix={folder}/", "--resume", "auto"]
        for kill in kills:
            kill_when(start(folder, 2, *mine), folder / f"solver_{kill}.solverstate")
        process = start(folder, 2, *mine)
        _, errors = process.communicate(timeout=3600)
        assert process.returncode == 0, errors
    same(*folders)


def test_a_stage_of_no_iterations_leaves_what_it_began_with(tmp_path):
    solvers = files(tmp_path, three="", four="")
    assert train("--solver", solvers, "--set", "1:max_iter=0", "--set", "1:snapshot=100") == 0
    assert (tmp_path / "one_iter_0.caffemodel").exists() and (tmp_path / "two_iter_5.caffemodel").exists()


def test_stages_of_the_same_name_have_folders_of_their_own(tmp_path):
    pytest.importorskip("tensorboardX")
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(
            files(tmp_path / name, one="max_iter: 2 base_lr: 0.1 lr_policy: 'fixed'", two="", three="", four="")
        )
    assert train("--solver", ",".join(paths), "--tensorboard", str(tmp_path / "events")) == 0
    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == ["1_one", "2_one"]
