"""Ranks of a script that go separate ways. A rank that leaves or hangs ends the others; one that is slow does not."""

import re
import time

import pytest

import engine.caffe as caffe
from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, all_fine, digits_net

pytestmark = pytest.mark.mpi

SCRIPT = """
import sys, threading, time
import engine.caffe as caffe
solver = caffe.SGDSolver("{solver}")
solver.step(2)
if caffe.solver_rank() == 1:
{deed}
solver.step(2)
print("fine", flush=True)
"""


def script(folder, deed: str) -> str:
    path = folder / "solver.prototxt"
    path.write_text(f'base_lr: 0.05 lr_policy: "fixed" snapshot_prefix: "{folder}/x" net_param {{ {digits_net(8)} }}')
    return SCRIPT.format(solver=path, deed="".join(f"    {line}\n" for line in deed.splitlines()))


@pytest.mark.parametrize("first", ["", "dir(caffe)"], ids=["", "dir"])
@pytest.mark.parametrize("make", ["SGDSolver", "get_solver"])
def test_ranks_divide_the_cores(make, first, tmp_path):
    """Though the extension, with which libgomp reads OMP_NUM_THREADS, knows the types of solvers: dir(caffe) loads it
    before there are ranks."""
    program = """
import os
del os.environ["OMP_NUM_THREADS"]
import engine.caffe as caffe
{first}
solver = caffe.{make}("{solver}")
from engine.host import _core
assert _core.threads() == max(1, len(os.sched_getaffinity(0)) // 2), _core.threads()
print("fine", flush=True)
"""
    script(tmp_path, "")
    all_fine(2, program.format(make=make, first=first, solver=tmp_path / "solver.prototxt"))


@pytest.mark.parametrize(
    ("code", "said"),
    [('"no file"', "no file"), ("3", "engine: [rank 1] the script has left by sys.exit(3): ending all ranks")],
)
def test_an_exit_of_one_rank_ends_all(code, said, tmp_path):
    begin = time.monotonic()
    done = run_ranks(2, script(tmp_path, f"sys.exit({code})"))
    assert done.returncode == (3 if code == "3" else 1) and time.monotonic() - begin < 50
    assert done.stderr.splitlines().count(said) == 1 and "fine" not in done.stdout, done.stderr


@pytest.mark.parametrize(
    "deed",
    [
        "try:\n    sys.exit('caught')\nexcept SystemExit as left:\n    assert left.code == 'caught'",
        "thread = threading.Thread(target=lambda: sys.exit(3))\nthread.start()\nthread.join()",
    ],
    ids=["caught", "of a thread"],
)
def test_an_exit_that_does_not_end_the_script_ends_nobody(deed, tmp_path):
    all_fine(2, script(tmp_path, deed))


def test_a_rank_that_leaves_early_is_named(tmp_path):
    done = run_ranks(2, script(tmp_path, "raise SystemExit"), environ={"ENGINE_WATCHDOG": "2"})
    lines = [line for line in done.stderr.splitlines() if line.startswith("engine:")]
    assert done.returncode != 0 and "no progress for 2 s, stopping all ranks: rank 1 (pid " in lines[0], done.stderr
    assert lines[0].endswith("iteration 1, end of the run")
    assert re.search(r"rank 0, for \d+ s: iteration 2, ", lines[1])


@pytest.mark.parametrize("deed", ["time.sleep(5)", "solver.net.forward()\ntime.sleep(5)"], ids=["", "after a forward"])
def test_a_script_may_take_as_long_as_it_likes(deed, tmp_path):
    """It may run code of its own, for instance a test that one rank does for all."""
    all_fine(2, script(tmp_path, deed), ENGINE_WATCHDOG="2")


def test_a_callback_may_take_as_long_as_it_likes(tmp_path):
    deed = "seconds = [5, 0]\nsolver.add_callback(lambda: None, lambda: time.sleep(seconds.pop(0)))"
    all_fine(2, script(tmp_path, deed), ENGINE_WATCHDOG="2")


ALONE = """
import engine.caffe as caffe
if caffe.solver_rank() == 1:
    net = caffe.Net("{folder}/net.prototxt", caffe.TEST)
    assert net.forward()["data"].any()
print("fine", flush=True)
"""


def test_a_net_of_one_rank_copies_its_source_to_the_host(tmp_path):
    """The other ranks take no part, since their script may not have that net."""
    data = f'source: "{DIGITS}/digits_test_lmdb" batch_size: 4 stage: "{tmp_path}/stage"'
    (tmp_path / "net.prototxt").write_text(f'layer {{ name: "data" type: "Data" top: "data" data_param {{ {data} }} }}')
    all_fine(2, ALONE.format(folder=tmp_path))


LAYER = """
import os, time
import caffe

class Teacher(caffe.Layer):
    def setup(self, bottom, top):
        caffe.init_log()
        self.net = caffe.Net(self.param_str, caffe.TEST)
        self.count = 0

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        assert self.net.forward()["data"].any()
        self.count += 1
        if self.count == 3 and caffe.solver_rank() == caffe.solver_count() - 1:
            time.sleep(float(os.environ["SLEEP"]))
        top[0].data[...] = 0

    def backward(self, top, propagate_down, bottom):
        pass
"""


@pytest.mark.parametrize("hangs", [False, True], ids=["", "that hangs"])
def test_a_layer_of_the_command_line_leaves_ranks_and_watchdog_to_it(hangs, tmp_path):
    (tmp_path / "teacher.py").write_text(LAYER)
    data = f'source: "{DIGITS}/digits_test_lmdb" batch_size: 4'
    (tmp_path / "net.prototxt").write_text(f'layer {{ name: "data" type: "Data" top: "data" data_param {{ {data} }} }}')
    param = f'module: "teacher" layer: "Teacher" param_str: "{tmp_path}/net.prototxt"'
    user = f'layer {{ name: "user" type: "Python" bottom: "ip2" top: "user" python_param {{ {param} }} }}'
    (tmp_path / "solver.prototxt").write_text(
        f'base_lr: 0.05 lr_policy: "fixed" max_iter: 4 snapshot_after_train: false comm_param {{ watchdog: 3 }} '
        f"net_param {{ {digits_net(8)} {user} }}"
    )
    command = ["-m", "engine", "train", "--solver", str(tmp_path / "solver.prototxt"), "--python_layers"]
    done = run_ranks(2, command, environ={"SLEEP": "1000" if hangs else "0"})
    if hangs:
        assert done.returncode != 0 and "engine: no progress for 3 s, stopping all ranks" in done.stderr, done.stderr
    else:
        assert done.returncode == 0 and "Optimization Done." in done.stderr, done.stderr


FILES = """
import shutil
import engine.caffe as caffe
from engine.errors import EngineError
solver = caffe.SGDSolver("{folder}/solver.prototxt")
solver.step(1)
solver.snapshot()
if caffe.solver_rank() == 0:
    shutil.move("{folder}/run", "{folder}/gone")
found = []
calls = [solver.snapshot, lambda: solver.restore("{folder}/none.solverstate"), lambda: solver.restore("{other}")]
for call in calls:
    try:
        call()
    except EngineError as error:
        found.append(str(error))
solver.step(1)
assert solver.iter == 2 and len(found) == 3 and "ip2" in found[2], found
print("fine", flush=True)
"""


@pytest.mark.parametrize("more", ["", "ema: 0.9", "comm_param { shard_updates: true }"])
def test_what_rank_0_cannot_read_or_write_fails_on_all(more, tmp_path):
    """A program that catches the error can go on."""
    text = f'base_lr: 0.05 lr_policy: "fixed" {more}'
    other = digits_net(8).replace("num_output: 10", "num_output: 11")
    (tmp_path / "run").mkdir()
    (tmp_path / "other.prototxt").write_text(f'{text} snapshot_prefix: "{tmp_path}/other" net_param {{ {other} }}')
    solver = caffe.SGDSolver(tmp_path / "other.prototxt")
    solver.step(1)
    solver.snapshot()
    (tmp_path / "solver.prototxt").write_text(
        f'{text} snapshot_prefix: "{tmp_path}/run/x" net_param {{ {digits_net(8)} }}'
    )
    all_fine(2, FILES.format(folder=tmp_path, other=tmp_path / "other_iter_1.solverstate"))


SNAPSHOTS = """
import os
import engine.caffe as caffe
from engine.comm.world import world
from engine.errors import EngineError
found = []
try:
    caffe.SGDSolver("{folder}/solver.prototxt")
except EngineError as error:
    found.append(str(error))
world().gather(0)
if caffe.solver_rank() == 0:
    os.mkdir("{folder}/run")
world().gather(0)
solver = caffe.SGDSolver("{folder}/solver.prototxt")
other = None
if caffe.solver_rank() == 0:
    from tests.solver.test_lock import holder
    other = holder("{folder}/run/x")
world().gather(0)
try:
    solver.step(1)
except EngineError as error:
    found.append(str(error))
if other:
    other.kill()
    other.wait()
solver.step(3)
assert solver.iter == 3 and "no folder" in found[0] and "in use by process" in found[1], found
solver = None
solver = caffe.SGDSolver("{folder}/solver.prototxt")
solver.step(1)
print("fine", flush=True)
"""


def test_snapshots_that_rank_0_could_not_write_are_told_on_all(tmp_path):
    """Before the first step, after which everything goes on; so it does when a solver is dropped."""
    text = f'base_lr: 0.05 lr_policy: "fixed" snapshot: 2 snapshot_prefix: "{tmp_path}/run/x"'
    (tmp_path / "solver.prototxt").write_text(f"{text} net_param {{ {digits_net(8)} }}")
    all_fine(2, SNAPSHOTS.format(folder=tmp_path))
    assert (tmp_path / "run/x_iter_2.solverstate").exists() and not (tmp_path / "run/.x.lock").exists()
