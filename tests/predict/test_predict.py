"""`engine predict`: published runs, nets whose answer is known, and wrong questions."""

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cli import main
from engine.comm.link import Link
from engine.config import parse_net, read_net
from engine.errors import ConfigError
from engine.predict.predict import (
    Profile,
    comm_param,
    from_flops,
    given_network,
    predict,
    read_profile,
    seconds,
    settings_for,
    slowest,
)
from engine.predict.simulate import Network
from tests.mpi import REPO, run_ranks
from tests.verbs.test_cli import engine, fails

IMAGES = 1_281_167
SERVERS = {"KNL": 4, "Skylake": 2}  # of the published runs
MACHINES = {"KNL": "Xeon Phi", "Skylake": "Skylake"}  # the names in docs/predict.md
TABLES = {"KNL": "V", "Skylake": "VI"}  # tables of the paper with the times per epoch
OMNI_PATH = Network(1, Link(1e-6, 100e9 / 8))  # 100 Gbit/s and about 1 us, by Intel's figures
# By machine: a and b of a node's step of a + b * batch seconds, and the variation of its steps. They are chosen such
# that the largest error of all rows of the paper's tables V, VI, II, III, IV, VII and IX is small.
FITTED = {"KNL": (0.0806, 0.01060, 0.15), "Skylake": (0.1185, 0.01195, 0.04)}


def rows_of(name: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file beside this one."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@cache
def resnet() -> Profile:
    return from_flops(read_net(str(REPO / "nets/resnet50.prototxt")), 32)


def step_of(machine: str, batch: float, nodes: int) -> float:
    """Returns the predicted seconds of a step. batch: of one node."""
    a, b, variation = FITTED[machine]
    profile = resnet().scaled(batch / 32, round(batch)).at_rate(round(batch) / (a + b * batch))
    network = replace(OMNI_PATH, ranks=nodes)
    settings = settings_for(network, comm_param(f"servers: {SERVERS[machine]}"))
    return seconds(profile, settings, network) + profile.compute * variation * slowest(nodes)


def times() -> Iterator[tuple[str, float, float]]:
    """Yields (row of docs/predict.md, published time, predicted time)."""
    for row in rows_of("scale_out_paper.csv"):
        machine, batch, nodes = row["machine"], int(row["batch"]), int(row["nodes"])
        steps = IMAGES / (batch * nodes)
        name = f"{TABLES[machine]} | {MACHINES[machine]} | {batch} | {nodes} | {row['seconds']} s"
        yield name, float(row["seconds"]), steps * step_of(machine, batch, nodes)
    for row in rows_of("scale_out_times.csv"):
        machine, batch, nodes = row["machine"], int(row["batch"]), int(row["nodes"])
        name = f"{row['table']} | {MACHINES[machine]} | {batch / nodes:g} | {nodes} | {row['minutes']} min"
        steps = int(row["iterations"])
        yield f"{name}, {steps}", float(row["minutes"]), steps * step_of(machine, batch / nodes, nodes) / 60


def test_published_times():
    """The times are those of epochs and of whole trainings, such as 28 minutes on 1,536 nodes."""
    told = (REPO / "docs/predict.md").read_text()
    errors = []
    for name, published, predicted in times():
        errors.append(predicted / published - 1)
        row = f"| {name} | {predicted:.1f} | {100 * errors[-1]:+.1f}% |"
        assert row in told, row
    assert len(errors) == 14 + 22 and np.abs(errors).max() < 0.1


def test_the_slowest_of_many_ranks():
    """The expected value is the mean of the largest of random normal values."""
    random = np.random.RandomState(1)
    for ranks in (1, 2, 16, 256):
        largest = random.normal(size=(20000, ranks)).max(axis=1)
        assert slowest(ranks) == pytest.approx(largest.mean(), abs=0.03)


def test_ranks_wait_for_the_slowest():
    network = Network(1, Link(0.0, 100e9))
    even, varying = (predict(NET, network, 64, None, variation) for variation in (0.0, 0.05))
    assert even.waiting_ms == 0 and varying.waiting_ms == pytest.approx(800 * 0.05 * slowest(64))
    assert varying.step_ms == pytest.approx(even.step_ms + varying.waiting_ms)
    assert varying.efficiency == pytest.approx(even.efficiency * even.step_ms / varying.step_ms)
    assert predict(NET, network, 1, None, 0.05).waiting_ms == pytest.approx(0)
    assert varying.minutes(6e5) == pytest.approx(1e4 / varying.images_per_second)


# The first layer computes most. The second has the gradients, 4 MB, ready at the start of backward.
NET = Profile("two", 8, 4, [0.1, 0.1], [0.5, 0.1], [0, 1_000_000], 0.0)


def test_hidden_communication_costs_nothing():
    found = predict(NET, Network(1, Link(0.0, 100e6)), 2)
    assert found.step_ms == pytest.approx(800) and found.exposed_ms == pytest.approx(0, abs=1e-6)
    assert (found.efficiency, found.images_per_second) == (pytest.approx(1), pytest.approx(20))


def test_a_slow_link_shows_and_the_best_settings_are_better():
    network = Network(1, Link(0.05, 8e6))  # the 4 MB take 0.5 s, the messages of each allreduce 0.1 s
    poor = predict(NET, network, 2, comm_param("servers: 1 bucket_mb: 0.25 priority: false"))
    assert poor.step_ms > 1700 and poor.efficiency < 0.5
    assert poor.best_step_ms < 900 and poor.best_bucket_mb > 0.25


def test_what_is_told_of_given_networks_is_never_better_than_one_rank():
    """Servers update with the cores that compute, because nothing says that there are others."""
    learns = replace(NET, update=4e-8)  # the update takes 40 ms on 4 threads
    network = given_network(1.0, 100.0, 1, learns.threads)
    for ranks in (2, 64):
        found = predict(learns, network, ranks)
        assert 0.95 < found.efficiency < 1.0 + 1e-9 and 0 <= found.exposed_ms < 5
        assert found.best_servers <= learns.threads and found.best_step_ms > 0.99 * found.step_ms
    assert settings_for(replace(network, cores=64.0)).servers == 4


def test_one_rank_is_the_base():
    found = predict(NET, Network(1, None), 1)
    assert (found.step_ms, found.efficiency, found.exposed_ms) == (pytest.approx(800), 1, 0)


def test_batches_and_other_machines_scale_compute():
    assert predict(NET.at_batch(4), Network(1, None), 1).step_ms == pytest.approx(400)
    learns = replace(NET, update=4e-8)  # the update of 4 MB takes 40 ms on 4 threads
    other = predict(learns.at_rate(20.0), Network(1, None), 1)
    assert other.step_ms == pytest.approx(400) and other.images_per_second == pytest.approx(20)
    with pytest.raises(ConfigError, match=r"the update alone takes 40\.0 ms"):
        learns.at_rate(1000.0)


def test_bf16_is_measured_only_where_it_saves_time(monkeypatch):
    """If it does not save time, training falls back to fp32."""
    asked = []
    monkeypatch.setattr("engine.host._core.bf16_gain", lambda: 0.0)
    monkeypatch.setattr("engine.predict.predict.own_profile", lambda *given: asked.append(given[2]) or resnet())
    network = ("--latency", "1", "--bandwidth", "100")
    assert (
        main(
            ["predict", "--model", str(REPO / "nets/digits.prototxt"), "--ranks", "2", "--precision", "bf16", *network]
        )
        == 0
    )
    assert asked == ["fp32"]


PROFILE: dict[str, Any] = {
    **{"net": "x", "phase": "TRAIN", "ranks": 1, "batch": 8, "threads": 2, "step_ms": 3.5},
    "layers": [{"forward_ms": 1.0, "backward_ms": 2.0, "gradients": 5}],
}


@pytest.mark.parametrize("text", ["[]", '{"layers": []}', json.dumps(PROFILE | {"layers": [3]})])
def test_what_is_no_profile(tmp_path, text):
    (tmp_path / "times.json").write_text(text)
    with pytest.raises(ConfigError, match=r"times.json: not a profile of engine time --json"):
        read_profile(str(tmp_path / "times.json"))


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *(("gradients", None), ("gradients", 1.5), ("forward_ms", "1"), ("backward_ms", math.nan), ("step_ms", 1e300)),
        *(("batch", 0), ("threads", None), ("step_variation", -1)),
    ],
)
def test_entries_that_no_profile_has(tmp_path, entry, value):
    profile = PROFILE | {entry: value}
    if entry in PROFILE["layers"][0]:
        profile = PROFILE | {"layers": [PROFILE["layers"][0] | {entry: value}]}
    path = tmp_path / "times.json"
    path.write_text(json.dumps(PROFILE))
    assert read_profile(str(path)).compute == pytest.approx(0.003)
    path.write_text(json.dumps(profile))
    said = rf"times.json: not a profile of engine time --json: {entry}: expected a (whole )?number from .*, got "
    with pytest.raises(ConfigError, match=said + re.escape(repr(value))):
        read_profile(str(path))


def test_nets_without_gradients_and_without_work():
    """A net without gradients has nothing to exchange. A net without work cannot be predicted from the speed of
    others."""
    fixed = replace(NET, gradients=[0, 0])
    found = predict(fixed, Network(1, Link(1.0, 1.0)), 64)
    assert found.step_ms == found.best_step_ms == pytest.approx(800) and found.efficiency == pytest.approx(1)
    shape = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 } } }'
    with pytest.raises(ConfigError, match=r"net.prototxt: nothing to compute in phase TRAIN"):
        from_flops(parse_net(shape, "net.prototxt"))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        *(("--latency", ["-1", "1e308"]), ("--bandwidth", ["0", "1e-300"]), ("--variation", ["1e300", "most"])),
        *(("--images_per_second", ["1e-300"]), ("--cores", ["1e-300"]), ("--epochs", ["inf"])),
    ],
)
def test_figures_of_no_machine(option, values, capsys):
    for value in values:
        assert main(["predict", "--model", "x", "--ranks", "2", option, value]) == 2
        assert re.search(rf"argument {option}: expected a .* to 1e\+12.*, got '{value}'", capsys.readouterr().err)


def test_a_profile_of_engine_time(tmp_path):
    times, told = tmp_path / "times.json", tmp_path / "told.json"
    assert engine("time", "--model", "nets/digits.prototxt", "--iterations", 3, "--json", times).returncode == 0
    profile = read_profile(str(times))
    assert sum(profile.gradients) >= 138_000 and profile.gradients[0] >= 16 * 9 and profile.batch == 32
    network = ["--latency", 1, "--bandwidth", 100]
    done = engine("predict", "--profile", times, "--ranks", "2,64", *network, "--json", told)
    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())["predictions"]
    assert [each["ranks"] for each in found] == [1, 2, 64] and found[0]["efficiency"] == 1
    assert re.search(r"^ +1 +[0-9.]+ +[0-9.]+ +100\.0% +[0-9.]+ +0\.0 +0\.0 ", done.stdout, re.MULTILINE)
    for each in found:
        assert each["compute_ms"] + each["exposed_ms"] + each["waiting_ms"] == pytest.approx(each["step_ms"])
    assert found[2]["step_ms"] >= found[1]["step_ms"] and str(round(found[2]["step_ms"], 1)) in done.stdout
    times.write_text("{}")
    assert f"{times}: no 'phase' in it" in fails("predict", "--profile", times, "--ranks", "2", *network)


def test_questions_that_cannot_be_answered():
    model = ["--model", "nets/digits.prototxt"]
    assert "which network?" in fails("predict", *model, "--ranks", "2")
    assert "go together" in fails("predict", *model, "--ranks", "2", "--latency", "1")
    given = ["--latency", "1", "--bandwidth", "100"]
    assert "--model or --profile" in fails("predict", "--ranks", "2", *given)
    assert "did you mean 'servers'" in fails("predict", *model, "--ranks", "2", *given, "--comm", "server: 2")
    rate = "--images_per_second", "60"
    said = fails("predict", *model, "--ranks", "2", *given, *rate, "--variation", "measured")
    assert "--variation measured: no variation of steps was measured" in said


@pytest.mark.parametrize(
    "text", ["mode: LOCAL", "algorithm: HIERARCHICAL", "autotune: true", "elastic { min_ranks: 2 }"]
)
def test_what_is_not_simulated_is_refused(text):
    with pytest.raises(ConfigError, match=f"--comm: {text.split(' {')[0]} cannot be predicted; "):
        comm_param(f"servers: 2 {text}")


def test_what_is_simulated_may_be_said():
    assert comm_param("mode: SYNC algorithm: PLAIN autotune: false servers: 2").servers == 2


PROGRAM = """
import sys
from engine.cli import main
sys.exit(main(["predict", "--model", "nets/digits.prototxt", "--ranks", {ranks!r}, "--iterations", "3"]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_network_is_measured_under_mpiexec(hosts):
    done = run_ranks(2, PROGRAM.format(ranks="2"), environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    assert done.returncode == 0, done.stderr
    if hosts == 2 and "between hosts" not in done.stdout:
        pytest.skip("this MPI cannot make several hosts of one")
    assert ("within a host" if hosts == 1 else "between hosts") in done.stdout
    more = run_ranks(2, PROGRAM.format(ranks="4"), environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    if hosts == 1:
        assert more.returncode == 1 and "4 ranks take 2 nodes, but only one was measured" in more.stderr
    else:
        assert more.returncode == 0, more.stderr
