"""What is found before iteration 0: ranks that differ are named, with their difference, in one line."""

import json

import numpy as np
import pytest

from engine.comm.preflight import check_sum, hosts, preflight, versions
from engine.comm.world import World
from engine.config.config import texts_of
from engine.errors import CommError
from tests.mpi import REPO, run_ranks

TRAIN = "from engine.cli import main\nmain(['train', '--solver', 'solvers/digits.prototxt', '--set', {override}])"


def lines_of_engine(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("engine:")]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("f'base_lr=0.{1 + (rank == 2)}'", 'the solver: "base_lr: 0.1\\nmo'),
        ("f'layer[ip2].inner_product_param.num_output={10 + (rank == 2)}'", "the train net: "),
    ],
)
def test_a_rank_with_another_text_is_named(override, what):
    program = f"from engine.host.launch import detect\nrank = detect().rank\n{TRAIN.format(override=override)}"
    done = run_ranks(3, program)
    (line,) = lines_of_engine(done)
    assert done.returncode != 0 and "Iteration" not in done.stderr
    assert line.startswith("engine: [rank ") and "preflight: rank 0 (on " in line and "and rank 2 (on " in line
    assert "differ in " + what.split(":")[0] in line, line


@pytest.mark.mpi
def test_a_rank_with_another_version_is_named():
    program = (
        "import numpy\nfrom engine.host.launch import detect\nnumpy.__version__ += '.post' * detect().rank\n"
        "from engine.cli import main\nmain(['doctor'])"
    )
    (line,) = lines_of_engine(run_ranks(2, program))
    assert f'differ in numpy: "{np.__version__}" and "{np.__version__}.post"' in line


@pytest.mark.mpi
def test_doctor(tmp_path):
    arguments = ["doctor", "--solver", "solvers/digits.prototxt", "--json", str(tmp_path / "found.json")]
    done = run_ranks(2, ["-m", "engine", *arguments])
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ranks"].startswith("2 on 1 host (") and found["sum"] == "right"
    assert found["layouts"] == "of 8 parameters, the same on all ranks"
    assert "within a host" in found["link"] and "compute thread" in found["cores"]["0-1"]
    assert "ranks 0-1" in done.stdout and "MPI" in done.stdout


class Broken(World):
    """Two ranks whose sums lack something."""

    size = 2

    def allreduce(self, values: np.ndarray) -> None:
        values *= 2
        values += 1
        values[17] += 0.5


def test_a_wrong_sum_is_told():
    with pytest.raises(
        CommError, match=r"a sum over 2 ranks came out wrong on rank 0: element 17 is 3\.5 instead of 3"
    ):
        check_sum(Broken())


def test_one_rank_has_nothing_to_compare():
    preflight(World(), {"the solver": ""})
    assert versions(World())["MPI"] == "none"


def test_where_the_ranks_are():
    assert hosts(["a", "a", "b", "b"]) == ("4 on 2 hosts (a: 0-1; b: 2-3)", "")
    assert hosts(["a", "b", "a"])[1].startswith("a has 2 ranks and b has 1")
    assert hosts([f"n{i}" for i in range(448)])[0] == "448 on 448 hosts (n0: 0; n1: 1; n2: 2; ...; n447: 447)"


def test_texts_of_a_solver():
    from engine.config import read_solver

    texts = texts_of(read_solver(REPO / "solvers/digits.prototxt", ["max_iter=7"]))
    assert list(texts) == ["the solver", "the train net", "test net #0"] and "max_iter: 7" in texts["the solver"]
