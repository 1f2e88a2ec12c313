"""The world of ranks, without MPI and under mpiexec."""

import re
import subprocess
import sys

import numpy as np
import pytest

from engine.comm.world import World
from tests.mpi import REPO, run_ranks


def test_one_rank_loads_no_mpi():
    program = "import sys; from engine.comm.world import world; print(world().size, 'mpi4py' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, env={}, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "False"], done.stderr


def test_one_rank_answers_for_itself():
    world, values = World(), np.arange(4, dtype=np.float32)
    world.allreduce(values)
    world.allreduce_mean([values])
    world.broadcast(values)
    world.same_on_all_ranks("a", "nothing")
    assert values.tolist() == [0, 1, 2, 3]
    assert world.gather("x") == ["x"] and world.agree(lambda: 5).finish() == 5
    with pytest.raises(SystemExit) as stopped:
        world.abort(status=3)
    assert stopped.value.code == 3


def test_a_launcher_without_mpi_is_explained(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('cannot load MPI library')")
    program = (
        "from engine.comm.world import world\nfrom engine.errors import CommError\n"
        "try: world()\nexcept CommError as error: print(error)"
    )
    environ = {"PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == (
        "started by mpiexec as rank 1 of 2, but MPI cannot be loaded (cannot load MPI library): install mpi4py and "
        "an MPI library (pip install mpi4py mpich), or load the cluster's module\n"
    ), done.stderr


COLLECTIVES = """
import numpy as np
from engine.comm import mpi_channel
from engine.comm.world import world
from engine.errors import CommError
mpi_channel.MESSAGE_BYTES = 4096  # large arrays travel in several messages
w = world()
question = w.agree(lambda: 1 << w.rank)
values = np.full((3, 1111), w.rank + 1, np.float32)
w.allreduce(values)
assert (values == w.size * (w.size + 1) / 2).all()
values[:] = w.rank + 5
w.broadcast(values)
assert (values == 5).all() and w.broadcast_object(w.rank, root=1) == 1
means = [np.full((2, 3), w.rank, np.float32), np.full(5, 2.0 * w.rank, np.float32)]
w.allreduce_mean(means)
assert (means[0] == (w.size - 1) / 2).all() and (means[1] == w.size - 1).all()
w.allreduce_mean([])
assert w.broadcast_object([w.rank]) == [0]
assert w.gather(w.rank) == (list(range(w.size)) if w.rank == 0 else None)
mine = np.arange((w.size - 1 - w.rank) * 3000, dtype=np.float32)  # the last rank has none
theirs = w.gather_array(mine)
assert (theirs is None) == (w.rank > 0)
for rank, array in enumerate(theirs or []):
    assert (array == np.arange((w.size - 1 - rank) * 3000)).all()
assert question.finish() == (1 << w.size) - 1
assert (w.local_rank, w.local_size) == (w.rank, w.size)
w.same_on_all_ranks("equal", "x")
w.same_on_all_ranks("not UTF-8: \\udcff", "x")
try:
    w.same_on_all_ranks("max_iter: 100 base_lr: " + ("0.2" if w.rank == w.size - 1 else "0.1"), "the solver")
    raise SystemExit("not noticed")
except CommError as error:
    assert str(error) == (
        f'ranks 0 and {w.size - 1} differ in the solver: "...ase_lr: 0.1" and "...ase_lr: 0.2"'), error
links = w.links()
assert links.between is None and 1e-8 < links.within.latency < 1 and links.within.bandwidth > 1e6, links
assert len(set(w.gather(str(links)) or [0])) == 1 and links.slowest is links.within
channels = [w.channel(), w.channel()]
assert channels[0].follow(w.rank + 7) == 7
for channel in channels:
    sums = np.arange(3000, dtype=np.float32)
    channel.allreduce(sums)
    assert (sums == w.size * np.arange(3000)).all()
    channel.close()
try:
    w.allreduce(np.zeros((4, 4), np.float32)[:, ::2])
    raise SystemExit("not noticed")
except ValueError:
    pass
print("fine", flush=True)
w.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives(ranks):
    done = run_ranks(ranks, COLLECTIVES, timeout=60)
    assert done.stdout.count("fine") == ranks and done.returncode == 0, done.stderr


@pytest.mark.mpi
def test_a_launcher_of_another_mpi_is_noticed():
    program = """
import os
name = next(name for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in os.environ)
size, os.environ[name] = os.environ[name], "5"  # as a launcher would say whose ranks this library cannot see
from engine.comm import mpi_world
from engine.host.launch import detect
from engine.errors import CommError
launch = detect()
os.environ[name] = size
try:
    mpi_world._load_mpi(launch)
except CommError as error:
    print(error)
from mpi4py import MPI
MPI.Finalize()
"""
    done = run_ranks(2, program, timeout=60)
    assert done.stdout.count("mpiexec started 5 ranks but") == 2, done.stdout + done.stderr
    assert "sees 2: the launcher and the MPI library are from different installations" in done.stdout


@pytest.mark.mpi
def test_a_call_of_mpi_that_fails_does_not_end_the_rank():
    """If it ended, this rank would be taken for the one that has died."""
    program = """
from engine.comm import mpi_faults
from engine.comm.world import world
from engine.errors import CommError
mpi_faults.PATIENCE_SECONDS = 0.01
w = world()
try:
    w.broadcast_object("text", root=7)
except CommError as error:
    print(str(error).startswith("MPI has failed: "), flush=True)
w.close()
"""
    done = run_ranks(2, program, timeout=60)
    assert done.returncode == 0 and done.stdout.count("True") == 2, done.stdout + done.stderr


@pytest.mark.mpi
def test_the_link_between_hosts():
    program = """
import time
from engine.comm.world import world
w = world()
begin = time.monotonic()
links = w.links()
assert time.monotonic() - begin < 20
assert w.local_size == 2, "hosts are not made up"
assert links.slowest is links.between and links.within.bandwidth > 1e6 and links.between.bandwidth > 1e6
assert len(set(w.gather(str(links)) or [0])) == 1
if w.rank == 0:
    print(links, flush=True)
w.close()
"""
    done = run_ranks(4, program, environ={"MPIR_CVAR_NUM_CLIQUES": "2"})
    if "hosts are not made up" in done.stderr:
        pytest.skip("this MPI cannot make several hosts of one")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"between hosts \d+ us, \d+ MB/s; within a host \d+ us, \d+ MB/s\n", done.stdout)
