"""Differences between ranks are found before iteration 0: one line names the ranks and what differs."""

import json
import platform

import lmdb
import numpy as np
import pytest

from engine import proto
from engine.comm.preflight import check_sum, compare, describe_hosts, preflight, versions
from engine.comm.world import World
from engine.config.solver_nets import texts_of
from engine.errors import CommError
from tests.mpi import REPO, run_ranks

TRAIN = """
from engine.cli import main
main(["train", "--solver", "solvers/digits.prototxt", "--set", "snapshot_after_train=false", "--set", {override}])
"""


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
    assert found["data"] == "of 2 sources, the same on all ranks"
    assert "within a host" in found["link"] and "compute thread" in found["cores"]["0-1"]
    assert "ranks 0-1" in done.stdout and "MPI" in done.stdout


@pytest.mark.mpi
def test_doctor_copies_no_data_and_takes_a_row_of_solvers(tmp_path):
    """Options mean what they do in training: --set 2:PATH=VALUE is for the second solver."""
    write_ranks(tmp_path, {"train": keys(144), "test": keys(20)}, {"train": keys(144), "test": keys(20)})
    for folder in (tmp_path / "0", tmp_path / "1"):
        net = (
            (folder / "net.prototxt")
            .read_text()
            .replace('source: "train"', f'source: "train" stage: "{tmp_path}/copy"')
        )
        (folder / "net.prototxt").write_text(net)
        solver = (folder / "s.prototxt").read_text().replace("snapshot_after_train: false", "")
        for name in ("s", "t"):
            (folder / f"{name}.prototxt").write_text(f'{solver} snapshot_prefix: "{name}"')
    done = run_in_own_folders(tmp_path, "doctor of a row")
    assert done.returncode == 0 and not (tmp_path / "copy").exists(), done.stderr
    for stage in (1, 2):
        assert f"layouts of stage {stage}  of 2 parameters, the same on all ranks" in done.stdout
        assert f"data of stage {stage}     of 2 sources, the same on all ranks" in done.stdout
    (tmp_path / "1/t.prototxt").write_text((tmp_path / "1/t.prototxt").read_text() + "momentum: 0.5")
    (line,) = lines_of_engine(run_in_own_folders(tmp_path, "doctor of a row"))
    assert "differ in the solver of stage 2: " in line


NET = """
layer {{ name: "digits" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
  data_param {{ source: "{train}" batch_size: 2 backend: LMDB }} }}
layer {{ name: "digits" type: "Data" top: "data" top: "label" include {{ phase: TEST }}
  data_param {{ source: "test" batch_size: 2 backend: LMDB }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 4 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
VERBS = {
    "train": ["train", "--solver", "s.prototxt"],
    "doctor": ["doctor", "--solver", "s.prototxt"],
    "doctor of a row": ["doctor", "--solver", "s.prototxt,t.prototxt", "--set", "2:base_lr=0.2"],
    "test": ["test", "--model", "net.prototxt", "--weights", "none"],
}


def write_ranks(folder, *datasets: dict[str, list[str]], train: str = "train") -> None:
    """Writes a folder for each rank, with a solver, a net and LMDBs.

    Args:
        datasets: of each rank, the keys of its LMDBs by name. The values are zeros.
        train: the source of the training data.
    """
    value = proto.Datum(channels=1, height=2, width=2, data=bytes(4)).SerializeToString()
    for rank, sources in enumerate(datasets):
        own = folder / str(rank)
        own.mkdir()
        (own / "net.prototxt").write_text(NET.format(train=train))
        (own / "s.prototxt").write_text(
            'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3 test_iter: 2 test_interval: 3 '
            "snapshot_after_train: false"
        )
        for name, keys in sources.items():
            with lmdb.open(str(own / name), map_size=1 << 24) as file, file.begin(write=True) as transaction:
                for key in keys:
                    transaction.put(key.encode(), value)


def run_in_own_folders(folder, verb: str):
    """Runs a verb on two ranks, each in its own folder; returns the finished process."""
    program = f"""
import os
from engine.cli import main
from engine.host.launch import detect
os.chdir(f"{folder}/{{detect().rank}}")
raise SystemExit(main({VERBS[verb]}))
"""
    return run_ranks(2, program)


def keys(count: int, tail: str = "") -> list[str]:
    return [f"{number:08d}{tail}" for number in range(count)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("verb", "others", "difference"),
    [
        ("train", {"train": keys(36), "test": keys(20)}, ("train", "144 items, keys '00000000'", "36 items, keys")),
        (
            "train",
            {"train": keys(144, "_b"), "test": keys(20)},
            ("train", "144 items, keys '00000000'", "144 items, keys '00000000_b'"),
        ),
        ("train", {"train": keys(144), "test": keys(21)}, ("test", "20 items, keys", "21 items, keys")),
        ("test", {"test": keys(21)}, ("test", "20 items, keys", "21 items, keys")),
        ("doctor", {"train": keys(36), "test": keys(20)}, ("train", "144 items, keys", "36 items, keys")),
        ("doctor", {"train": keys(144), "test": keys(21)}, ("test", "20 items, keys", "21 items, keys")),
    ],
    ids=["number of items", "keys", "test data of a training", "test", "doctor", "test data of doctor"],
)
def test_a_rank_with_other_data_is_named(tmp_path, verb, others, difference):
    write_ranks(tmp_path, {"train": keys(144), "test": keys(20)}, others)
    done = run_in_own_folders(tmp_path, verb)
    (line,) = lines_of_engine(done)
    assert done.returncode == 1 and "Iteration" not in done.stderr
    (name, first, second), host = difference, platform.node()
    start = f"rank 0 (on {host}) and rank 1 (on {host}) differ in the {name} data of layer 'digits' ({name}): "
    assert f'preflight: {start}"{first}' in line and f'" and "{second}' in line, line


@pytest.mark.mpi
def test_ranks_may_have_parts_of_their_own(tmp_path):
    """A source whose name has %# belongs to one rank, and may have any size."""
    write_ranks(
        tmp_path,
        {"part_0": keys(144), "test": keys(20)},
        {"part_1": keys(36, "_b"), "test": keys(20)},
        train="part_%#",
    )
    done = run_in_own_folders(tmp_path, "train")
    assert done.returncode == 0 and "Optimization Done" in done.stderr, done.stderr


class Broken(World):
    """Stands for two ranks whose sums are wrong in one element."""

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


def test_names_that_are_not_utf8_can_be_compared():
    compare(World(), {"the train data": "12 items, keys 'a\udcff.jpg' to 'b.jpg'"})


def test_where_the_ranks_are():
    assert describe_hosts(["a", "a", "b", "b"]) == ("4 on 2 hosts (a: 0-1; b: 2-3)", "")
    assert describe_hosts(["a", "b", "a"])[1].startswith("a has 2 ranks and b has 1")
    assert describe_hosts([f"n{i}" for i in range(448)])[0] == "448 on 448 hosts (n0: 0; n1: 1; n2: 2; ...; n447: 447)"


def test_texts_of_a_solver():
    from engine.config import read_solver

    texts = texts_of(read_solver(REPO / "solvers/digits.prototxt", ["max_iter=7"]))
    assert list(texts) == ["the solver", "the train net", "test net #0"] and "max_iter: 7" in texts["the solver"]
