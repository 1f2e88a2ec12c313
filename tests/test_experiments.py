"""The experiments: drivers go on after being killed, and reports say what the results say."""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.comm.strategies.asynchronous import describe_staleness

FOLDER = Path(__file__).resolve().parent.parent / "experiments/cifar10"
ENGINE = f"{sys.executable} -c 'import sys; from engine.cli import main; sys.exit(main())'"


@pytest.fixture
def module(monkeypatch):
    """Yields a function that imports a file of the experiment, as its scripts do."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in ("arms", "report", "run"):
        sys.modules.pop(name, None)


def driver(work, *options):
    """Starts the experiment's driver."""
    words = [sys.executable, FOLDER / "run.py", "--quick", "--work", work, "--engine", ENGINE, *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def runs_of(work):
    """Returns the runs in the driver's results."""
    path = work / "results.json"
    return json.loads(path.read_text())["runs"] if path.exists() else []


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_goes_on_where_it_was(tmp_path):
    first = driver(tmp_path, "--seeds", "1", "--processes", "1")
    while not (runs_of(tmp_path) and list(tmp_path.glob("ensemble-1/stage1_iter_*.caffemodel"))):
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = runs_of(tmp_path)
    second = driver(tmp_path, "--seeds", "1")
    output, _ = second.communicate(timeout=600)
    assert second.returncode == 0, output
    found = runs_of(tmp_path)
    assert found[: len(before)] == before  # the runs that were done are not done again
    assert [run["arm"] for run in found] == ["linear", "steps", "ensemble"]
    ensemble = found[-1]
    assert len(ensemble["members"]) == 2 and all(0 <= run["top1"] <= 100 for run in found)
    log = (tmp_path / "ensemble-1.log").read_text()
    assert (
        "Restoring previous solver status from stage0" in log or "Restoring previous solver status from stage1" in log
    )
    assert "### Decay of the rate" in output and "top-1, %" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.svg").stat().st_size > 1000
    assert not list(tmp_path.glob("*-1/"))  # folders of finished runs are removed
    third, _ = driver(tmp_path, "--seeds", "1").communicate(timeout=60)
    assert "3 runs are done, 0 are to do" in third and runs_of(tmp_path) == found


def test_results_of_another_plan_are_not_mixed_in(tmp_path):
    (tmp_path / "results.json").write_text('{"net": "ResNet-20", "epochs": 20, "runs": []}')
    run = driver(tmp_path)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1 and "has results of net ResNet-20, asked for ResNet-8; give --results" in output


@pytest.mark.parametrize("text", ["", "[]", '{"runs": 3', '{"net": "ResNet-8"}'])
def test_a_file_that_is_no_result_is_left_alone(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    run = driver(tmp_path)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1 and "is no results.json" in output and "Traceback" not in output
    assert (tmp_path / "results.json").read_text() == text


def test_pictures_that_are_missing_are_asked_for(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "CIFAR10_ZIP"}
    words = [sys.executable, FOLDER / "run.py", "--work", tmp_path, "--engine", ENGINE]
    found = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert found.returncode == 1 and "cifar10_train_lmdb is not there; give --archive" in found.stderr


def content(**arms):
    """Makes the content of a file of results.

    Args:
        arms: the top-1 accuracy of each seed, by arm; None if it diverged.
    """
    runs = []
    for arm, values in arms.items():
        for seed, value in enumerate(values, start=1):
            end = {"diverged": "iteration 3: the loss is nan"} if value is None else {"top1": value, "top5": 99.0}
            runs.append({"arm": arm, "seed": seed, "processor_seconds": 600.0, **end})
    return {"net": "ResNet-8", "epochs": 20.0, "runs": runs}


def test_intervals_are_student_s(module):
    estimate = module("report").Estimate.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (estimate.mean, estimate.half) == (3.0, pytest.approx(2.776 * math.sqrt(2.5 / 5)))
    assert str(estimate) == "3.00 ± 1.96"
    assert str(module("report").Estimate.of([7.0])) == "7.00"


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((80.0, 81.0, 82.0), "Here it holds (difference 1.00 ± 0.00 points, 3 seeds)"),
        ((82.0, 83.0, 84.0), "Here it does not hold (difference -1.00 ± 0.00 points, 3 seeds)"),
        ((80.0, 83.0, 82.0), "Here it cannot be told from chance (difference 0.33"),
        ((80.0, 81.0, None), "Here it holds (difference 1.00 ± 0.00 points, 2 seeds)"),
        ((None, None, None), "Here it is not known yet"),
    ],
)
def test_claims_are_judged_by_differences_seed_by_seed(module, steps, says):
    text = "\n".join(module("report").lines(content(linear=(81.0, 82.0, 83.0), steps=steps)))
    assert says in text
    assert (f"| {steps.count(None)} | 10.0 | 20 |" in text) == (None in steps)


def test_every_comparison_is_of_arms_of_one_budget(module):
    arms = module("arms")
    for comparison in arms.COMPARISONS:
        assert len({arms.ARMS[arm].budget for arm in comparison.arms}) == 1
        assert {comparison.better, comparison.worse} - {""} <= set(comparison.arms)
    for arm in arms.ARMS.values():
        assert sum(stage.length for stage in arm.stages) == pytest.approx(1)


def test_a_cycle_triples_the_rate_and_brings_it_down_to_a_quarter(module):
    """Codreanu et al. 2017, section VI: five cycles of 15 of the 120 epochs each, which begin at 22% of the rate after
    45."""
    arms = module("arms")
    stages = [stage for stage in arms.ARMS["ensemble"].stages if not stage.collapse]
    whole = sum(stage.length for stage in stages)
    assert [stage.length / whole * 120 for stage in stages] == pytest.approx([30, 15, 15, 15, 15, 15, 15])

    def end(stage):
        peak, over = stage.settings.get("base_lr", 0.1), stage.length
        if stage.settings.get("policy_after_warmup"):
            over -= stage.shares["warmup_epoch"]
        return peak * (1 - over / stage.shares["lr_epoch"]) ** stage.settings["power"]

    assert end(stages[0]) == pytest.approx(stages[1].settings["base_lr"])
    rate = end(stages[1])
    assert rate == pytest.approx(0.022)
    for stage in stages[2:]:
        assert stage.settings["warmup_start_lr"] == pytest.approx(rate)
        assert stage.settings["base_lr"] == pytest.approx(3 * rate)
        assert stage.shares["warmup_epoch"] / stage.length == pytest.approx(1 / 5)
        rate = end(stage)
        assert rate == pytest.approx(stage.settings["base_lr"] / 4)


def test_the_staleness_of_gradients_is_kept_and_shown(module):
    """The engine itself makes the line, so that this test fails if its wording changes. The last one of a log
    counts."""
    text = ""
    for counts in ({0: 1}, {0: 1, 1: 2, 16: 1}):
        text += f"I1125 15:45:00 solver.py:1] {describe_staleness(Counter(counts), 16)}\nIteration 3, loss = 1: 2\n"
    found = module("run").staleness(text)
    assert found == {"staleness": {"0": 25.0, "1": 50.0, "16": 25.0}, "mean_staleness": 4.5}
    assert module("run").staleness("Iteration 3, loss = 1\n") == {}
    known = content(**{"SYNC": (80.0, 81.0), "ASYNC 16": (80.0, 81.0), "linear": (80.0,)})
    for run in known["runs"]:
        run |= found if run["arm"] == "ASYNC 16" else {}
    known["runs"][-2]["mean_staleness"] = 5.5
    tables = "\n".join(module("report").lines(known)).split("###")
    decay, waiting = (next(table for table in tables if words in table) for words in ("Decay", "wait for each other"))
    assert "staleness" not in decay
    assert "| epochs | staleness: mean, most |\n|---|---|---|---|---|---|---|---|\n" in waiting
    assert "| SYNC | 80.50" in waiting and "| 10.0 | 20 |  |\n" in waiting
    assert "| 10.0 | 20 | 5.00 ± 6.35, 16 |\n" in waiting


NO_ENGINE = """
import pathlib, sys
if sys.argv[1] == "train":
    pathlib.Path("stage0_iter_3.caffemodel").touch()
    print("Staleness of gradients, in updates: 0: 90.0%, 2: 10.0%; mean 0.20, most allowed 4")
else:
    pathlib.Path("test.json").write_text('{"accuracy_top1": 0.5, "accuracy_top5": 1, "loss": 1}')
"""


def test_a_run_of_an_arm_that_waits_for_nobody_keeps_its_staleness(module, tmp_path):
    run = module("run")
    runner = run.Runner(run.Plan(8, 1.0), tmp_path, run.ARMS, [sys.executable, "-c", NO_ENGINE])
    found = runner.run(run.Job("ASYNC 4", 1))
    assert "--set comm_param.mode=ASYNC" in found["commands"][0] and found["top1"] == 50
    assert (found["staleness"], found["mean_staleness"]) == ({"0": 90.0, "2": 10.0}, 0.2)


MOSAICS = FOLDER.parent / "mosaics"


def mosaics(work, *options):
    words = [sys.executable, MOSAICS / "run.py", "--work", work, "--engine", ENGINE, "--mpiexec", "", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_mosaics_are_labelled_trained_and_scored(tmp_path):
    done = mosaics(tmp_path, "--quick", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    runs = runs_of(tmp_path)
    assert [run["arm"] for run in runs] == ["fine-tuned", "from scratch"]
    assert all(run["labels"] == ["class0", "class1", "class2"] and len(run["auroc"]) == 3 for run in runs)
    assert all(run["agrees"]["scikit-learn, 1 rank"] < 1e-6 for run in runs)
    assert "| label | fine-tuned | from scratch | margin |" in done.stdout and "| mean |" in done.stdout
    # A mosaic of two reds, a green and a blue has three labels, wherever they are.
    for line in (tmp_path / "data/train.txt").read_text().splitlines()[:5]:
        name, *labels = line.split()
        pixels = np.asarray(Image.open(tmp_path / "data/mosaics_train" / name)).reshape(2, 32, 2, 32, 3)
        seen = {int(pixels[i, :, j].mean((0, 1)).argmax()) for i in range(2) for j in range(2)}
        assert [int(label) for label in labels] == [int(label in seen) for label in range(3)]
    again = mosaics(tmp_path, "--quick", "--seeds", "1")
    assert again.returncode == 0 and runs_of(tmp_path) == runs


def test_mosaics_say_what_is_wrong(tmp_path):
    (tmp_path / "no.zip").write_text("<html>")
    for archive, said in (("", "has no LMDBs; give --archive"), (tmp_path / "no.zip", "no.zip is no zip file")):
        done = mosaics(tmp_path / "work", "--archive", archive)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work/results.json").write_text('{"plan": {"depth": 20}, "runs": []}')
    done = mosaics(tmp_path / "work")
    assert done.returncode == 1 and "has results of {'depth': 20}" in done.stderr
