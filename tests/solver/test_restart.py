"""--resume auto and --max_restarts go on from the newest whole snapshot, with the same global batch, to the same
result."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine import proto
from engine.cli import main
from engine.comm.world import World
from engine.config import net_of_solver, parse_solver
from engine.data import batch_size_of
from engine.errors import ConfigError, WeightsError
from engine.solver.global_batch import data_layers, divide_batch, hold_global_batch
from engine.solver.lock import unlock_prefix
from engine.solver.resume import Snapshot, newest, note_known, take_prefix
from engine.solver.snapshot_files import read_whole
from engine.solver.stages import resume_stages
from engine.watchdog.supervise import without
from engine.weights import read_caffemodel, read_solverstate, write_solverstate
from tests.mpi import ENVIRON, REPO, mpiexec
from tests.solver.harness import different, digits_net, distance, in_files, make_solver, solve
from tests.watchdog.test_dead_rank import pid_of_rank

SOLVER = """
net: "{folder}/train.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 random_seed: 7
max_iter: 20 display: 1 snapshot: 10 iter_size: {iter_size} snapshot_prefix: "{folder}/net"
comm_param {{ bucket_mb: 1 chunk_mb: 1 }}
"""


def files(folder: Path, batch: int = 16, iter_size: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.prototxt").write_text(digits_net(batch))
    (folder / "solver.prototxt").write_text(SOLVER.format(folder=folder, iter_size=iter_size))
    return folder


def start(folder: Path, ranks: int, *arguments: str) -> subprocess.Popen:
    """Starts `engine train` in a folder, under mpiexec if there are several ranks."""
    environ = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "ENGINE_TEST": str(os.getpid())}
    command = [sys.executable, "-m", "engine", "train", "--solver", str(folder / "solver.prototxt"), *arguments]
    if ranks > 1:
        command = [mpiexec(), "-n", str(ranks), *command]
    return subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)


def train(folder: Path, ranks: int, *arguments: str) -> tuple[int, str]:
    """Runs `engine train`; returns its status and stderr."""
    process = start(folder, ranks, *arguments)
    try:
        _, errors = process.communicate(timeout=90)
    finally:
        process.terminate()
    return process.returncode, errors


@pytest.fixture
def two_snapshots(tmp_path) -> Path:
    solve("snapshot: 3 max_iter: 6", digits_net(), tmp_path)
    return tmp_path


def test_the_newest(two_snapshots, caplog):
    found = newest(str(two_snapshots / "net"))
    assert (found.iteration, found.ranks, found.global_batch) == (6, 1, 16)
    assert newest(str(two_snapshots / "other")) is None and newest(str(two_snapshots / "no" / "folder")) is None


def test_snapshots_in_hdf5(tmp_path):
    pytest.importorskip("h5py")
    solve("snapshot: 3 max_iter: 6 snapshot_format: HDF5", digits_net(), tmp_path)
    damage(tmp_path / "net_iter_6.solverstate.h5", "cut")
    found = newest(str(tmp_path / "net"))
    assert (found.iteration, found.global_batch) == (3, 16)
    assert len(read_whole(found.path).state.digest) == 64


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["caffemodel", "solverstate"])
@pytest.mark.parametrize("how", ["cut", "empty", "one bit", "missing"])
def test_a_damaged_snapshot_is_skipped(two_snapshots, caplog, kind, how):
    damage(two_snapshots / f"net_iter_6.{kind}", how)
    assert newest(str(two_snapshots / "net")).iteration == 3
    if kind == "caffemodel" or how != "missing":
        with pytest.raises(WeightsError):
            read_whole(str(two_snapshots / "net_iter_6.solverstate"))


def put_state(path: Path, **fields) -> None:
    """Writes a solverstate of iteration 9 with these fields."""
    state = proto.SolverState(iter=9, learned_net="net_iter_6.caffemodel")
    for name, value in fields.items():
        getattr(state, name).add(**value) if name == "history" else setattr(state, name, value)
    path.write_bytes(state.SerializeToString())


STRANGE = {
    "a dangling link": lambda path: path.symlink_to("/nonexistent"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a negative axis": lambda path: put_state(path, history={"shape": {"dim": [-1, -5]}, "data": [0] * 5}),
    "70 axes": lambda path: put_state(path, history={"shape": {"dim": [1] * 70}, "data": [0]}),
    "2^62 of nothing": lambda path: put_state(path, history={"shape": {"dim": [0, 2**62]}}),
    "weights in a device": lambda path: put_state(path, learned_net="/dev/zero", digest="ab"),
    "weights in a pipe": lambda path: (os.mkfifo(path.parent / "p"), put_state(path, learned_net="p")),
    "weights that are gone": lambda path: put_state(path, learned_net="gone"),
    "weights without a name": lambda path: put_state(path, learned_net=""),
    "weights with NUL": lambda path: put_state(path, learned_net="a\0b"),
    "weights of a long name": lambda path: put_state(path, learned_net="a" * 5000),
    "a negative iteration": lambda path: put_state(path, iter=-8),
    "another iteration": lambda path: put_state(path, iter=6),
}


@pytest.mark.parametrize("what", STRANGE)
def test_whatever_it_is_it_is_stepped_over(two_snapshots, caplog, what):
    """Whatever stands in place of the newest solverstate, a line says that it is skipped."""
    STRANGE[what](path := two_snapshots / "net_iter_9.solverstate")
    assert newest(str(two_snapshots / "net")).iteration == 6
    assert [r.getMessage() for r in caplog.records if f"Skipping a snapshot that is damaged: {path}: " in r.message]


def test_a_name_of_many_digits_is_stepped_over(two_snapshots, caplog):
    for digits in ("9" * 200, "\u0669"):
        (two_snapshots / f"net_iter_{digits}.solverstate").write_bytes(b"")
    assert newest(str(two_snapshots / "net")).iteration == 6
    assert "Skipping a snapshot that is damaged: " in caplog.text and "9" * 200 in caplog.text


def test_memory_that_is_not_there_for_one_may_be_there_for_another(two_snapshots, monkeypatch, caplog):
    """A snapshot whose weights need more memory than is free is skipped, as if it were damaged."""

    def read(path):
        if "iter_6" in str(path):
            raise MemoryError
        return read_caffemodel(path)

    monkeypatch.setattr("engine.weights.read_caffemodel", read)
    assert newest(str(two_snapshots / "net")).iteration == 3
    assert "it is too large for the memory that is left" in caplog.text


def test_a_snapshot_that_has_changed_is_refused(two_snapshots):
    damage(two_snapshots / "net_iter_6.caffemodel", "one bit")
    with pytest.raises(WeightsError, match=r"net_iter_6\.solverstate: it or .* has changed since it was written"):
        make_solver("", digits_net()).restore(str(two_snapshots / "net_iter_6.solverstate"))


def test_the_digest_is_of_what_was_written(tmp_path, monkeypatch):
    """It is not that of the file which another run has put in its place before the state is written."""

    def write(path, state):
        shutil.copy(tmp_path / "net_iter_3.caffemodel", tmp_path / "net_iter_6.caffemodel")
        write_solverstate(path, state)

    solve("max_iter: 3", digits_net(), tmp_path)
    monkeypatch.setattr("engine.weights.write_solverstate", write)
    solve("max_iter: 6", digits_net(), tmp_path)
    assert newest(str(tmp_path / "net")).iteration == 3


def test_weights_beside_a_state_go_before_those_it_names(two_snapshots):
    """Copies of a snapshot are whole, even though the weights that the state names by path are damaged."""
    (copies := two_snapshots / "copies").mkdir()
    for kind in ("caffemodel", "solverstate"):
        shutil.copy(two_snapshots / f"net_iter_6.{kind}", copies)
    damage(two_snapshots / "net_iter_6.caffemodel", "one bit")
    assert newest(str(copies / "net")).iteration == 6


def test_snapshots_of_before_a_supervised_run_do_not_count(two_snapshots, monkeypatch):
    """This holds whatever times the clocks of the host and of the file server give the files."""
    monkeypatch.setenv("ENGINE_KNOWN_SNAPSHOTS", str(two_snapshots / "known"))
    text = f'max_iter: 9 snapshot_prefix: "{two_snapshots}/net" net_param {{ {digits_net()} }}'
    config = parse_solver(text, str(two_snapshots / "solver.prototxt"))
    try:
        for _ in range(2):
            note_known([f"{two_snapshots}/net"])
            take_prefix(config, World())
            assert resume_stages([config], World(), []).snapshot is None
        solve("max_iter: 4", digits_net(), two_snapshots)
        solve("max_iter: 6", digits_net(), two_snapshots)  # over the same snapshots
        for path in two_snapshots.glob("net_iter_*"):
            os.utime(path, (1, 1))
        (two_snapshots / "net_iter_3.solverstate").touch()
        note_known([f"{two_snapshots}/net"])
        take_prefix(config, World())
        assert resume_stages([config], World(), []).snapshot == str(two_snapshots / "net_iter_6.solverstate")
    finally:
        unlock_prefix(f"{two_snapshots}/net")


def test_a_run_that_goes_back_tells_of_the_snapshots_that_it_leaves(tmp_path, capfd):
    solver = ["train", "--solver", str(files(tmp_path) / "solver.prototxt"), "--set", "snapshot=5"]
    assert main(solver) == 0 and "is of a later iteration" not in capfd.readouterr().err
    assert main([*solver, "--snapshot", f"{tmp_path}/net_iter_10.solverstate", "--set", "max_iter=11"]) == 0
    told = f"{tmp_path}/net_iter_20.solverstate (and 1 more) is of a later iteration than this run begins with, 10, and"
    assert told in capfd.readouterr().err
    assert main([*solver, "--resume", "auto"]) == 0 and "is of a later iteration" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("total", "ranks", "batch", "steps", "expected"),
    [
        (128, 4, 32, 1, (32, 1)),
        (128, 2, 32, 1, (32, 2)),  # fewer ranks: more micro-batches
        (128, 1, 32, 1, (32, 4)),
        (128, 8, 32, 1, (16, 1)),  # more ranks: smaller micro-batches
        (256, 4, 32, 4, (32, 2)),  # or fewer of them
        (96, 1, 64, 1, (48, 2)),
        (30, 3, 32, 1, (10, 1)),
    ],
)
def test_how_a_global_batch_is_held(total, ranks, batch, steps, expected):
    assert divide_batch(total, ranks, batch, steps) == expected
    assert expected[0] * expected[1] * ranks == total


MIX = "transform_param { mix_param { mixup_alpha: 1 num_classes: 10 } }"
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "d" top: "bn" batch_norm_param { %s } %s }'
OTHER = 'layer { name: "e" type: "Data" top: "e" data_param { source: "e" batch_size: %d } %s }'


@pytest.mark.parametrize(
    ("transform", "more", "total", "batch", "expected"),
    [
        ("", "", 12, 4, (3, 2)),
        (MIX, "", 12, 4, (2, 3)),  # the data layer mixes pairs of samples, so batches are even
        ("", NORM % ("stats_batch_size: 2", ""), 60, 16, (10, 3)),  # 15 samples cannot be divided into slices of 2
        ("", f"bn_stats_batch_size: 8 {NORM % ('', '')}", 48, 16, (8, 3)),
        (MIX, NORM % ("stats_batch_size: 3", ""), 60, 12, (6, 5)),
        ("", f"bn_stats_batch_size: 4 {NORM % ('use_global_stats: true', '')}", 12, 4, (3, 2)),
        ("", NORM % ("stats_batch_size: 4", "include { phase: TEST }"), 12, 4, (3, 2)),
        ("", OTHER % (3, ""), 80, 12, (8, 5)),  # the other data layer's batch becomes 2
        ("", OTHER % (4, MIX), 24, 8, (4, 3)),  # here as well
    ],
)
def test_the_batch_that_holds_it_is_one_that_the_net_takes(tmp_path, transform, more, total, batch, expected):
    data = f'name: "d" type: "Data" top: "d" data_param {{ source: "d" batch_size: {batch} }} {transform}'
    config = parse_solver(f'net_param {{ layer {{ {data} }} {more} }} base_lr: 1 lr_policy: "fixed"', "solver.prototxt")
    world = World()
    world.size = 2
    hold_global_batch(config, world, Snapshot("", 1, ranks=3, global_batch=total))
    assert (batch_size_of(data_layers(config)[0]), config.message.iter_size) == expected


def test_sequences_are_as_many_as_the_held_batch(caplog):
    """A note tells of a loss whose gradient is a sum over the batch."""
    net = """layer { name: "d" type: "Data" top: "d" top: "l" data_param { source: "d" batch_size: 12 } }
      layer { name: "i" type: "ContinuationIndicator" top: "i"
        continuation_indicator_param { time_step: 7 batch_size: 6 } }
      layer { name: "loss" type: "CtcLoss" bottom: "d" bottom: "l" }"""
    config, world = parse_solver(f'net_param {{ {net} }} base_lr: 1 lr_policy: "fixed"', "solver.prototxt"), World()
    world.size = 2
    hold_global_batch(config, world, Snapshot("", 1, ranks=3, global_batch=60))
    layers = net_of_solver(config, proto.TRAIN).message.layer
    assert (layers[0].data_param.batch_size, config.message.iter_size) == (10, 3)
    assert layers[1].continuation_indicator_param.batch_size == 5
    assert any("gradient of 'loss' is the sum over a batch, which has 10 samples" in line for line in caplog.messages)


def test_without_a_data_layer_iter_size_holds_the_batch(caplog):
    """Nobody knows the number of rows before the net is built."""
    caplog.set_level("INFO", "engine")
    dummy = 'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 4 dim: 3 } } }'
    config = parse_solver(f'net_param {{ {dummy} }} base_lr: 1 lr_policy: "fixed"', "solver.prototxt")
    hold_global_batch(config, World(), Snapshot("", 1, ranks=2, global_batch=2))
    assert config.message.iter_size == 2
    assert caplog.messages == ["iter_size 1 -> 2: 2 batches in an iteration, as before"]


def test_what_cannot_be_held_is_refused():
    with pytest.raises(
        ConfigError, match="3 ranks cannot share the snapshot's global batch of 128; ranks that can: 1, 2, 4, 8"
    ):
        divide_batch(128, 3, 32, 1)
    with pytest.raises(
        ConfigError, match="254 is 127 for each of 2 ranks, which is no multiple of a batch_size of 16 to 32"
    ):
        divide_batch(254, 2, 32, 1)
    with pytest.raises(ConfigError, match=r"batch_size of 2 to 4 that 2 divides, .*; ranks that can: 1, 2, 3, 6; "):
        divide_batch(12, 4, 4, 1, multiple=2)
    with pytest.raises(ConfigError, match="no multiple of a batch_size of 32"):
        divide_batch(96, 2, 32, 1, adjustable=False)
    with pytest.raises(ConfigError, match="batch_size of 16 to 32; ranks that can: none up to 8; "):
        divide_batch(254, 2, 32, 1)


def holds(total: int, ranks: int, batch: int, adjustable: bool) -> bool:
    """Returns whether a global batch can be divided among ranks."""
    try:
        divide_batch(total, ranks, batch, 1, adjustable)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("total", "ranks", "batch", "adjustable", "told"),
    [(140, 4, 20, True, "2, 5, 7, 10, 14"), (140, 3, 20, True, "1, 2, 5, 7, 10"), (140, 3, 20, False, "1, 7")],
)
def test_all_numbers_of_ranks_that_it_names_can_hold_it(total, ranks, batch, adjustable, told):
    with pytest.raises(ConfigError, match=f"ranks that can: (.*, )?{told}; --snapshot"):
        divide_batch(total, ranks, batch, 1, adjustable)
    assert all(holds(total, int(number), batch, adjustable) for number in told.split(", "))


@pytest.mark.mpi
@pytest.mark.parametrize(("before", "after", "note"), [(2, 1, "1 rank x 16 x iter_size 2"), (1, 2, "2 ranks x 8 x")])
def test_another_number_of_ranks_holds_the_batch(tmp_path, before, after, note):
    """The result stays the same, from the same files: samples, dropout and clipping do not depend on ranks or
    iter_size."""
    whole, broken = files(tmp_path / "whole"), files(tmp_path / "broken")
    clip = ("--set", "clip_gradients=0.3")
    assert train(whole, before, "--resume", "auto", *clip)[0] == 0
    assert train(broken, before, "--set", "max_iter=10", *clip)[0] == 0
    status, errors = train(broken, after, "--resume", "auto", *clip)
    assert status == 0 and f"Global batch {16 * before} held: {note}" in errors, errors
    assert read_solverstate(broken / "net_iter_20.solverstate").samples_seen == 20 * 16 * before
    assert distance(in_files(whole, 20), in_files(broken, 20)) < 1e-5


@pytest.mark.mpi
def test_a_batch_that_cannot_be_held_ends_the_run(tmp_path):
    folder = files(tmp_path)
    assert train(folder, 1, "--set", "max_iter=10")[0] == 0
    status, errors = train(folder, 3, "--resume", "auto")
    assert status == 1 and "engine: --resume auto: 3 ranks cannot share the snapshot's global batch of 16" in errors


@pytest.mark.mpi
def test_a_crashed_run_is_started_again(tmp_path):
    """It begins anew, though the snapshot of an older run lies in the same place, since that does not count."""
    whole, broken = files(tmp_path / "whole"), files(tmp_path / "broken")
    longer = ("--set", "max_iter=140", "--set", "snapshot=20")
    assert train(whole, 2, *longer)[0] == 0
    for name in ("net_iter_140.solverstate", "net_iter_140.caffemodel"):
        (broken / name).write_bytes(b"")
    process = start(broken, 1, "--ranks", "2", "--max_restarts", "2", *longer)
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if "Iteration 25," in line and not any("restart 1" in line for line in lines):
                os.kill(pid_of_rank(1), signal.SIGKILL)
        assert process.wait(timeout=60) == 0, "".join(lines)
    finally:
        process.terminate()
    assert sum("died, killed or crashed" in line for line in lines) == 1
    assert sum("restart 1 of 2" in line for line in lines) == 1 and "Optimization Done." in lines[-1]
    assert sum("Restoring previous solver status" in line for line in lines) == 1
    assert different(in_files(whole, 140), in_files(broken, 140)) == []


@pytest.mark.mpi
def test_an_error_that_would_come_again_is_not_tried_again(tmp_path):
    status, errors = train(files(tmp_path), 1, "--ranks", "2", "--max_restarts", "3", "--set", "base_lr=-1")
    assert status == 1 and "restart" not in errors and errors.count("base_lr") == 1, errors


def test_a_signal_ends_restarting(tmp_path):
    process = start(files(tmp_path), 1, "--max_restarts", "3", "--set", "max_iter=1000000", "--set", "snapshot=0")
    try:
        while "Iteration 5," not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    finally:
        process.terminate()
    assert process.returncode == 0 and "Optimization stopped early." in rest and "engine: the run has ended" not in rest
    assert newest(str(tmp_path / "net")) is not None


def test_options_of_the_supervisor_stay_with_it():
    """The ranks' own command line has neither --ranks nor --max_restarts."""
    words = ["train", "--solver", "s", "-ranks", "4", "--set", "a=1", "--max_restarts=3", "--resume", "auto"]
    assert without(words, ("ranks", "max_restarts")) == ["train", "--solver", "s", "--set", "a=1", "--resume", "auto"]
