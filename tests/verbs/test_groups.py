"""`engine groups` runs several verbs at the same time, each on ranks of its own."""

import json
import os
import re
import subprocess
import sys

import pytest

from engine.errors import ConfigError
from engine.verbs.groups import divided
from tests.mpi import ENVIRON, REPO, run_ranks
from tests.solver.harness import different, digits_net, in_files


def solver(folder, seed=1, text="", iterations=30):
    """Writes a net and a solver of the digits; returns the solver's path."""
    folder.mkdir()
    (folder / "net.prototxt").write_text(digits_net(8))
    (folder / "solver.prototxt").write_text(
        f'net: "{folder}/net.prototxt" base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 max_iter: {iterations} '
        f'snapshot_prefix: "{folder}/net" random_seed: {seed} {text}'
    )
    return str(folder / "solver.prototxt")


def engine(ranks, *words, **options):
    return run_ranks(ranks, ["-m", "engine", *words], timeout=120, **options)


@pytest.mark.mpi
def test_two_trainings_are_those_of_two_jobs(tmp_path):
    """One trains on two ranks, the other on one with another seed and length. Weights and state have the same bits as
    in separate jobs."""
    first, second = solver(tmp_path / "a"), solver(tmp_path / "b", seed=2, iterations=60)
    done = engine(3, "groups", "2", "train", "--solver", first, "+", "1", "train", "--solver", second)
    assert done.returncode == 0 and done.stderr.count("Optimization Done.") == 2, done.stderr[-3000:]
    assert done.stderr.count("shared by 3 ranks") == 2  # cores are divided among all ranks
    for name, ranks, seed, last in (("a", 2, 1, 30), ("b", 1, 2, 60)):
        alone = engine(ranks, "train", "--solver", solver(tmp_path / f"{name} alone", seed, iterations=last))
        assert alone.returncode == 0, alone.stderr[-3000:]
        assert different(in_files(tmp_path / name, last), in_files(tmp_path / f"{name} alone", last)) == []


@pytest.mark.mpi
def test_a_net_is_tested_while_another_is_trained(tmp_path):
    """The group that ends first waits for the other. Its results are those of a separate job."""
    trained = engine(1, "train", "--solver", solver(tmp_path / "before"))
    assert trained.returncode == 0, trained.stderr[-3000:]
    net, weights = tmp_path / "before/net.prototxt", tmp_path / "before/net_iter_30.caffemodel"
    test = ["test", "--model", str(net), "--weights", str(weights), "--json"]
    longer = solver(tmp_path / "a", iterations=200)
    together = ["groups", "1", *test, str(tmp_path / "beside.json"), "+", "2", "train", "--solver", longer]
    done = engine(3, *together)
    assert done.returncode == 0 and done.stderr.count("Optimization Done.") == 1, done.stderr[-3000:]
    alone = engine(1, *test, str(tmp_path / "alone.json"))
    assert alone.returncode == 0, alone.stderr[-3000:]
    beside, alone = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("beside", "alone"))
    assert beside["accuracy"] == alone["accuracy"] and beside["loss"] == alone["loss"]


@pytest.mark.mpi
def test_an_error_in_one_group_ends_all_with_one_line(tmp_path):
    good, bad = solver(tmp_path / "a", iterations=100_000), solver(tmp_path / "b", text='type: "Sdg"')
    done = engine(2, "groups", "1", "train", "--solver", good, "+", "1", "train", "--solver", bad)
    assert done.returncode != 0
    assert len(re.findall("^engine: .*unknown.*Sdg|^engine: .*Sdg.*", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "Optimization Done." not in done.stderr


def divided_by_launcher(first, second):
    """Lets the launcher start one rank with each command, in groups by ENGINE_GROUPS; returns the finished process."""
    program = ["-m", "engine", *first, ":", "-n", "1", sys.executable, "-m", "engine", *second]
    return run_ranks(1, program, timeout=30, environ={"ENGINE_GROUPS": "1,1"})


@pytest.mark.mpi
def test_a_verb_of_one_rank_is_beside_a_training(tmp_path):
    """This holds whether `groups` or the launcher gives ranks different commands: MPI starts and ends with all of
    them."""
    path = solver(tmp_path / "a")
    train, check = ["train", "--solver", path], ["check", path]
    for done in (divided_by_launcher(train, check), engine(2, "groups", "1", *train, "+", "1", *check)):
        assert done.returncode == 0 and done.stderr.count("Optimization Done.") == 1, done.stderr[-3000:]
        assert f"{path}: solver" in done.stdout and "memory: " in done.stdout


@pytest.mark.mpi
def test_a_group_of_the_launcher_is_not_divided_again(tmp_path):
    train = ["train", "--solver", solver(tmp_path / "a")]
    done = divided_by_launcher(train, ["groups", "1", "doctor", "+", "1", "doctor"])
    assert done.returncode != 0 and "groups: a group cannot be divided again" in done.stderr, done.stderr


@pytest.mark.mpi
def test_wrong_usage_of_one_group_ends_the_others(tmp_path):
    """Otherwise the others would wait for it in MPI_Init."""
    train = ["train", "--solver", solver(tmp_path / "a", iterations=100_000)]
    for wrong in (["nosuch"], ["check", "--nosuch"], []):
        done = divided_by_launcher(wrong, train)
        assert done.returncode != 0 and "usage: engine" in done.stderr, done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(
    "words, status, message",
    [
        (
            ["groups", "2", "train", "--solver", "x"],
            1,
            "groups: 2 ranks are asked for, 3 were started",
        ),
        (["groups", "1", "trian", "+", "1", "train"], 2, "unknown verb 'trian'; did you mean 'train'?"),
        (["groups", "1", "groups", "1", "doctor", "+", "2", "doctor"], 1, "groups: a group cannot be divided again"),
    ],
)
def test_what_is_wrong_is_told_once(words, status, message):
    done = engine(3, *words)
    assert done.returncode == status and done.stderr.count(message) == 1, done.stderr


@pytest.mark.mpi
def test_it_starts_its_ranks_itself():
    """Without a launcher it starts its ranks as verify does. Their log and output become those of this process."""
    command = [sys.executable, "-m", "engine", "groups", "1", "doctor", "+", "1", "doctor"]
    environ = {**ENVIRON, **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPO, env=environ)
    assert done.returncode == 0 and done.stdout.count("1 on 1 host") == 2, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words, group",
    [
        ([], 1),
        (["2"], 1),
        (["train", "--solver", "x"], 1),
        (["2", "train", "+"], 2),
        (["2", "train", "+", "0", "train"], 2),
        (["-1", "train"], 1),
        (["99999999999", "train"], 1),
    ],
)
def test_command_lines_that_are_none(words, group):
    with pytest.raises(ConfigError, match=f"expected RANKS VERB ... for group {group}, got "):
        divided(words)


def test_a_command_line_is_divided():
    assert divided(["2", "train", "--solver", "a", "+", "1", "test"]) == (
        [2, 1],
        [["train", "--solver", "a"], ["test"]],
    )
