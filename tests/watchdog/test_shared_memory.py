"""However a run ends, MPI's files of shared memory are removed, and no other run's files."""

import mmap
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from engine.watchdog.shared_memory import NAMES, SharedMemory
from tests.mpi import run_ranks

FOLDER = Path("/dev/shm")
needs_folder = pytest.mark.skipif(not os.access(FOLDER, os.W_OK), reason="no /dev/shm here")
RANK = """
import os, signal, sys, time
from engine.watchdog.shared_memory import SharedMemory
from engine.comm.world import world
w = world()
w.watch(2)
memory = SharedMemory(os.getpid())
memory.note()
files = w.gather(sorted(memory._inodes))
if w.rank == 0:
    print(*sorted(set(sum(files, []))), flush=True)
w.barrier()
how = {how!r}
if w.rank == {who}:
    if how in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "abort":
        w.abort("no more")
    if how == "exit":
        sys.exit(3)
w.barrier()
w.close()
"""


def all_gone(text: str) -> None:
    """Checks that the files named in `text` are gone as soon as the ranks' sentinels have ended."""
    files = [Path(word) for word in text.split() if NAMES.fullmatch(word)]
    if not files:
        pytest.skip("this MPI keeps no files of shared memory")
    deadline = time.monotonic() + 5
    while (left := [path for path in files if path.exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@needs_folder
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "who"),
    [("SIGKILL", 0), ("SIGKILL", 3), ("SIGSTOP", 0), ("SIGSTOP", 2), ("abort", 0), ("abort", 1), ("exit", 1), ("", 0)],
)
def test_nothing_is_left_of_a_run(how, who):
    done = run_ranks(4, RANK.format(how=how, who=who), timeout=60)
    assert (done.returncode == 0) == (how == ""), done.stderr
    all_gone(done.stdout)
    if not how:
        assert done.stderr == ""


EARLY = """
import os, signal, time
from engine.comm import mpi_world
from engine.comm.world import world
load = mpi_world._load_mpi
def die(launch):
    load(launch)
    if launch.rank == 0:
        print(*[line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line], flush=True)
    time.sleep(0.5)
    if launch.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)
mpi_world._load_mpi = die
world()
"""


@needs_folder
@pytest.mark.mpi
def test_nothing_is_left_of_a_run_whose_ranks_have_not_met():
    done = run_ranks(2, EARLY, timeout=60)
    assert done.returncode != 0
    all_gone(done.stdout)


class Mapping:
    """Runs a process that maps a file of this name. As a context manager, gives the SharedMemory of that process."""

    def __init__(self, path: Path):
        path.write_bytes(bytes(mmap.PAGESIZE))
        program = f"import mmap, sys; f = open({str(path)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        program += "print('ready', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> SharedMemory:
        self.memory = SharedMemory(self.process.pid)
        self.memory.note()
        return self.memory

    def __exit__(self, *_) -> None:
        self.process.communicate("")


@pytest.fixture
def path():
    """Yields a path with a name as MPICH gives one."""
    path = FOLDER / f"mpich_shm_{uuid.uuid4().hex}_0"
    yield path
    path.unlink(missing_ok=True)


@needs_folder
def test_a_file_that_mpi_has_made(path):
    with Mapping(path) as memory:
        pass
    assert path.exists()
    memory.remove()
    assert not path.exists()


@needs_folder
def test_a_file_of_another_run(path):
    """The file has the same name, but is not the one that was mapped."""
    with Mapping(path) as memory:
        other = path.with_name(path.name + "x")
        other.write_text("another")
        other.rename(path)
    memory.remove()
    assert path.read_text() == "another"


@needs_folder
def test_files_of_no_mpi(path):
    data = path.with_name("data.mdb" + path.name)
    try:
        with Mapping(data) as memory:
            pass
        memory.remove()
        assert data.exists()
    finally:
        data.unlink(missing_ok=True)


@needs_folder
def test_a_rank_that_ends_well(path):
    with Mapping(path) as memory:
        memory.forget()
    memory.remove()
    assert path.exists()


@needs_folder
def test_a_file_that_is_unlinked_already(path):
    mapping = Mapping(path)
    path.unlink()
    with mapping as memory:
        assert not memory._inodes


def test_a_process_that_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    memory = SharedMemory(process.pid)
    memory.note()
    assert not memory._inodes
    memory.remove()
