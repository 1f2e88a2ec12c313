"""However a verb ends, whether by the terminal, the system or the user, it says so in one clear line and by its
status."""

import functools
import os
import signal
import socket
import subprocess
import sys

import pytest

from engine.cli import main
from engine.host.launch import own_command
from tests.mpi import REPO, run_ranks

NOBODY = ["check", "nothere.prototxt"]
NET = ["check", "nets/digits.prototxt"]


def shell(redirections: str, arguments: list[str], **environ: str) -> subprocess.CompletedProcess:
    """Runs `engine` with redirections of bash; returns the finished process, with what still comes out of its
    streams."""
    command = ["bash", "-c", f'exec "$@" {redirections}', "bash", sys.executable, "-m", "engine", *arguments]
    return subprocess.run(command, cwd=REPO, env={**os.environ, **environ}, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [NET, ["--help"], ["--version"]], ids=["check", "--help", "--version"])
def test_a_full_stdout_is_said_in_one_line(arguments, unbuffered):
    done = shell(">/dev/full", arguments, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == "engine: standard output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("streams", ["2>/dev/full", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments, status", [(NET, 0), (NOBODY, 1), (["--help"], 0), (["xyz"], 2)])
def test_the_status_does_not_depend_on_streams(streams, arguments, status):
    done = shell(streams, arguments, PYTHONUNBUFFERED="")
    assert done.returncode == status and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_closed_stream_is_nobody_elses_file():
    """A database that is opened later would get the number of a closed stderr, and messages would be written into
    it."""
    program = """
import functools
import os
import signal
from engine.host.startup import open_streams
open_streams()
print(*(os.readlink(f"/proc/self/fd/{n}") for n in (0, 2)), os.get_inheritable(2), os.open("/", os.O_RDONLY) > 2)
"""
    command = ["bash", "-c", 'exec "$@" <&- 2>&-', "bash", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout.split() == ["/dev/null", "/dev/null", "True", "True"]


def test_a_run_without_streams_goes_on(tmp_path):
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }'
        'layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }'
        'layer { name: "l" type: "Reduction" bottom: "y" top: "l" loss_weight: 1 }'
    )
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3 snapshot_prefix: "{tmp_path}/x"'
    )
    done = shell("<&- >&- 2>&-", ["train", "--solver", f"{tmp_path}/solver.prototxt"])
    assert done.returncode == 0 and (tmp_path / "x_iter_3.solverstate").exists()


@pytest.mark.parametrize("limit", [5, 8, 63])
def test_few_open_files_are_said_in_one_line(limit):
    command = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", sys.executable, "-m", "engine", *NET]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    line = f"engine: at most {limit} files may be open at once (ulimit -n); expected at least 64\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_a_soft_limit_of_open_files_is_raised():
    command = ["bash", "-c", 'ulimit -Sn 20; exec "$@"', "bash", sys.executable, "-m", "engine", *NET]
    assert subprocess.run(command, cwd=REPO, capture_output=True, timeout=60).returncode == 0
    program = "import resource; from engine.host.startup import allow_files; allow_files(); "
    program += "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    command = ["bash", "-c", 'ulimit -Sn 20; ulimit -Hn 800; exec "$@"', "bash", sys.executable, "-c", program]
    assert subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60).stdout == "(800, 800)\n"


@pytest.fixture
def verb_raises(monkeypatch):
    """Returns a function that makes `engine device_query` raise an exception."""

    def make(error: BaseException) -> None:
        def run(options):
            raise error

        monkeypatch.setattr("engine.verbs.device_query.run", run)

    return make


@pytest.mark.parametrize(
    "error, line",
    [
        (OSError(24, "Too many open files", "a/b"), "engine: a/b: Too many open files"),
        (OSError(28, "No space left on device"), "engine: No space left on device"),
        (OSError(30, "Read-only file system", b"a\xff"), "engine: a\\udcff: Read-only file system"),
        (PermissionError(13, "Permission denied", "a\x1b[31m"), "engine: a\\x1b[31m: Permission denied"),
        (MemoryError("Unable to allocate 1.49 GiB"), "engine: out of memory: Unable to allocate 1.49 GiB"),
        (MemoryError("std::bad_alloc"), "engine: out of memory"),
        (MemoryError(), "engine: out of memory"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_what_the_system_refuses_is_said_in_one_line(error, line, verb_raises, capsys):
    verb_raises(error)
    assert main(["device_query"]) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("a\x1b[31m"), FileNotFoundError(2, "No such file", "x")])
def test_a_defect_has_its_traceback(error, verb_raises, capsys):
    verb_raises(error)
    assert main(["device_query"]) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text and "in run\n" in text and "this is a defect of engine" in text and "\x1b" not in text


PROGRAM = """
import os, signal, sys
import engine.verbs.device_query as verb, engine.host.launch as launch
from engine.cli import main
from engine.host.launch import own_command

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    return True

class Callback:
    __del__ = interrupt

def run(options):
    {begin}
    import time
    time.sleep(60)

verb.run, launch.is_spokesman = run, interrupt
sys.argv = ["engine", "device_query"]
sys.exit(main())
"""


IN_AN_IMPORT = """try:
        interrupt()
    except KeyboardInterrupt as error:
        raise ImportError("as C code makes of it") from error"""


@pytest.mark.parametrize("begin", ["interrupt()", "Callback()", IN_AN_IMPORT])
def test_a_second_interrupt_does_not_disturb_the_first(begin):
    """This holds even if Python cannot raise the first one where it comes, or it becomes another exception."""
    program = PROGRAM.format(begin=begin)
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "engine.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


def test_an_interrupt_while_engine_is_imported_needs_no_traceback(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    done = subprocess.run(
        own_command("--version"), env=environ, capture_output=True, text=True, timeout=50, preexec_fn=heed
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


ONE_LEAVES = """
import os, signal, sys
from engine import cli
from engine.host.launch import detect
from engine.verbs import command_line

def parse(arguments):
    if detect().rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    from engine.comm.world import world
    world()

command_line.parse = parse
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(cli.main())
"""


@pytest.mark.mpi
def test_nobody_waits_for_a_rank_that_was_interrupted_before_it_was_known():
    """If the rank ended with a status of its own, the launcher would not notice, and rank 0 would wait in MPI_Init for
    ever."""
    assert run_ranks(2, ONE_LEAVES).returncode != 0


WITHOUT_MPI = """
import os, sys
from engine.cli import main
from engine.host.launch import detect
if detect().rank == {rank}:
    os.environ["MPI4PY_LIBMPI"] = "/nowhere/libmpi.so"
sys.exit(main(["doctor"]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_that_one_rank_alone_meets_before_mpi_is_told(rank):
    """The other rank waits in MPI_Init meanwhile."""
    done = run_ranks(2, WITHOUT_MPI.format(rank=rank), timeout=30)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("engine: ")]
    who = f"[rank 1 on {socket.gethostname()}] " if rank else ""
    assert line.startswith(f"engine: {who}started by ") and f" as rank {rank} of 2, but MPI cannot be loaded (" in line
    assert line.endswith(" (exit status 1)") and done.returncode == 1 and not done.stdout


WITH_SRUN = """
import sys
from engine.cli import main
from engine.host import launch
launch.SPOKESMAN_SECONDS = 0.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("arguments", [["check", "net.prototxt"], ["average", "one", "out"]])
def test_what_the_command_line_alone_tells_is_told_by_rank_0(host, arguments):
    """All ranks fail alike here. Plain srun does not stop the ranks of other hosts, so each could tell of it."""
    environ = {**os.environ, "SLURM_PROCID": str(host), "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    command = [sys.executable, "-c", WITH_SRUN, *arguments]
    done = subprocess.run(command, cwd=REPO, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("engine: ") == 1 - host, done.stderr
