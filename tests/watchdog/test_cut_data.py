"""If the data of a rank is cut off while it trains, one line names the file and the key, and the watchdog says
nothing."""

import re

import lmdb
import pytest

from engine import proto
from tests.mpi import run_ranks

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 8 backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 100000000 snapshot_after_train: false'
PROGRAM = """
import os
os.chdir({folder!r})
from engine.cli import main
from engine.solver.solver import Solver
step = Solver.step
def cut(solver):
    if solver.iteration == 5 and solver.world.rank == 0:
        os.truncate("db/data.mdb", 8192)
    step(solver)
Solver.step = cut
raise SystemExit(main(["train", "--solver", "s.prototxt"]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_file_and_the_key_are_named(tmp_path, ranks):
    value = proto.Datum(channels=1, height=16, width=16, data=bytes(256)).SerializeToString()
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 24) as file, file.begin(write=True) as transaction:
        for number in range(5000):
            transaction.put(b"%08d" % number, value)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "s.prototxt").write_text(SOLVER)
    done = run_ranks(ranks, PROGRAM.format(folder=str(tmp_path)))
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("engine:")]
    rank = r"\[rank \d\] " if ranks > 1 else ""
    expected = rf"engine: {rank}net.prototxt:2:1: LMDB db: key '\d{{8}}': the file is damaged, or has been cut off; .*"
    assert re.fullmatch(expected, line), line
