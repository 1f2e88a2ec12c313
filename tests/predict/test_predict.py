"""engine predict: what it says of published runs, of nets whose answer is known, and of wrong questions."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.comm.link import Link
from engine.config import read_net
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
)
from engine.predict.simulate import Network
from tests.mpi import REPO, run_ranks
from tests.verbs.test_cli import engine, fails

IMAGES = 1_281_167
SERVERS = {"KNL": 4, "Skylake": 2}  # as the published runs had
TABLES = {"KNL": "V, Xeon Phi", "Skylake": "VI, Skylake"}  # of the paper, as docs/predict.md names them
OMNI_PATH = Network(1, Link(1e-6, 100e9 / 8))  # 100 Gbit/s and about 1 us, as Intel gives them
TABLE = Path(__file__).with_name("scale_out_paper.csv")


def published() -> list[dict]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return [
        {"machine": row["machine"], **{name: float(row[name]) for name in ("batch", "nodes", "seconds")}}
        for row in csv.DictReader(lines)
    ]


def step_of(row: dict) -> float:
    """Seconds."""
    return row["seconds"] * row["batch"] * row["nodes"] / IMAGES


def errors() -> dict[str, list[tuple[dict, float]]]:
    """Machine -> (row, error of the predicted time per epoch). The paper does not tell what one node does alone:
    compute is the line a + b batch through the two runs on the fewest nodes, which say nothing about the prediction
    therefore, but for their own communication."""
    resnet = from_flops(read_net(str(REPO / "nets/resnet50.prototxt")), 32)
    found: dict[str, list[tuple[dict, float]]] = {}
    rows = published()
    for machine in ("KNL", "Skylake"):
        mine = [row for row in rows if row["machine"] == machine]
        first = {row["batch"]: row for row in sorted(mine, key=lambda row: -row["nodes"])}
        small, large = first[16], first[32]
        slope = (step_of(large) - step_of(small)) / 16
        for row in mine:
            rate = row["batch"] / (step_of(small) + slope * (row["batch"] - 16))
            profile = resnet.at_batch(int(row["batch"])).at_rate(rate)
            network = replace(OMNI_PATH, ranks=int(row["nodes"]))
            steps = IMAGES / (row["batch"] * row["nodes"])
            settings = settings_for(network, comm_param(f"servers: {SERVERS[machine]}"))
            epoch = steps * seconds(profile, settings, network)
            found.setdefault(machine, []).append((row, epoch / row["seconds"] - 1))
    return found


def test_published_times_per_epoch():
    """What is off is more than communication: it is hidden on this network, as the paper's own 97% at 256 nodes says.
    The rest, up to 20% at 1024 nodes and more, is not in the model: ranks that are not equally fast, and data."""
    told = (REPO / "docs/predict.md").read_text()
    for machine, rows in errors().items():
        for row, error in rows:
            run = f"{TABLES[machine]} | {row['batch']:.0f} | {row['nodes']:.0f} | {row['seconds']:g}"
            assert f"| {run} | {row['seconds'] * (1 + error):.1f} | {100 * error:+.1f}% |" in told
        found = np.array([error for _, error in rows])
        assert np.abs(found).max() < 0.25 and np.abs(found).mean() < 0.13, machine


# One layer computes, the other learns: 4 MB, ready at the start of backward.
NET = Profile("two", 8, 4, [0.1, 0.1], [0.5, 0.1], [0, 1_000_000], 0.0)


def test_hidden_communication_costs_nothing():
    found = predict(NET, Network(1, Link(0.0, 100e6)), 2)
    assert found.step_ms == pytest.approx(800) and found.exposed_ms == pytest.approx(0, abs=1e-6)
    assert (found.efficiency, found.images_per_second) == (pytest.approx(1), pytest.approx(20))


def test_a_slow_link_shows_and_the_best_settings_are_better():
    network = Network(1, Link(0.05, 8e6))  # 0.5 s for the 4 MB, 0.1 s for the messages of each allreduce
    poor = predict(NET, network, 2, comm_param("servers: 1 bucket_mb: 0.25 priority: false"))
    assert poor.step_ms > 1700 and poor.efficiency < 0.5
    assert poor.best_step_ms < 900 and poor.best_bucket_mb > 0.25


def test_what_is_told_of_given_networks_is_never_better_than_one_rank():
    """Servers update with the cores that compute: nothing says that there are others."""
    learns = replace(NET, update=4e-8)  # 40 ms on 4 threads
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
    learns = replace(NET, update=4e-8)  # 4 MB on 4 threads: 40 ms
    other = predict(learns.at_rate(20.0), Network(1, None), 1)
    assert other.step_ms == pytest.approx(400) and other.images_per_second == pytest.approx(20)
    with pytest.raises(ConfigError, match=r"the update alone takes 40\.0 ms"):
        learns.at_rate(1000.0)


def test_a_profile_of_engine_time(tmp_path):
    times, told = tmp_path / "times.json", tmp_path / "told.json"
    assert engine("time", "--model", "nets/digits.prototxt", "--iterations", 3, "--json", times).returncode == 0
    profile = read_profile(str(times))
    assert sum(profile.gradients) >= 138_000 and profile.gradients[0] >= 16 * 9 and profile.batch == 32
    network = ["--latency", 1, "--bandwidth", 100]
    done = engine("predict", "--profile", times, "--ranks", "1,2,64", *network, "--json", told)
    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())["predictions"]
    assert [each["ranks"] for each in found] == [1, 2, 64] and found[0]["efficiency"] == 1
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
