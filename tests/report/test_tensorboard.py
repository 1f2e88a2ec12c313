"""--tensorboard: what TensorBoard's own reader finds in the event files."""

import os
import subprocess
import sys

import numpy as np
import pytest

from engine.caffe import SGDSolver
from engine.cli import main
from engine.comm.world import World
from engine.errors import EngineError
from engine.report.observer import Observer, Run
from engine.report.tensorboard import TensorBoard
from tests.mpi import REPO, run_ranks
from tests.solver.harness import make_solver
from tests.solver.test_goals import digits_net

pytest.importorskip("tensorboardX")
reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")

TEXT = "max_iter: 20 test_interval: 5 snapshot: 10 display: 2 momentum: 0.9 base_lr: 0.05 "


class Told(Observer):
    """Collects what TensorBoard should show: losses and accuracies by iteration."""

    def __init__(self):
        self.losses, self.tests = [], []

    def step(self, record):
        if record.figures:
            self.losses.append((record.iteration, pytest.approx(record.figures.loss)))

    def test(self, record):
        self.tests.append((record.iteration, pytest.approx(record.outputs["accuracy"][0])))

    def finished(self, iteration, loss):
        self.losses.append((iteration, pytest.approx(loss)))


def train(folder, events, restore="", text=TEXT, histograms=0):
    """Trains with --tensorboard; returns what a Told has collected."""
    solver, told = make_solver(text, digits_net(), folder), Told()
    solver.observers += [TensorBoard(str(events), histograms), told]
    if restore:
        solver.restore(str(restore))
    assert solver.solve()
    solver.close()
    return told


def read(events):
    found = reader.EventAccumulator(str(events), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def points(found, tag):
    """Returns (step, value) of a scalar."""
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_scalars_and_graph(tmp_path):
    told = train(tmp_path, tmp_path / "events")
    found = read(tmp_path / "events")
    assert points(found, "loss/train") == told.losses and points(found, "test/accuracy") == told.tests
    assert points(found, "learning_rate")[-1] == (18, pytest.approx(0.05))
    times = {tag for tag in found.Tags()["scalars"] if tag.startswith("time/")}
    assert {"time/ms_per_iteration", "time/ms_waiting_for_data", "time/samples_per_second"} <= times
    assert min(event.value for event in found.Scalars("time/ms_per_iteration")) > 0
    nodes = {node.name: node for node in found.Graph().node}
    assert nodes["ip"].op == "InnerProduct" and "data" in "".join(nodes["ip"].input)
    assert [dim.size for dim in nodes["ip"].attr["_output_shapes"].list.shape[0].dim] == [16, 10]
    assert not found.Tags()["histograms"]


def test_a_run_that_goes_on_doubles_no_step(tmp_path):
    """This includes steps after the snapshot, which the first run has written, too."""
    whole = train(tmp_path, tmp_path / "whole")
    train(tmp_path, tmp_path / "events")
    train(tmp_path, tmp_path / "events", restore=tmp_path / "net_iter_10.solverstate")
    assert len(list((tmp_path / "events").iterdir())) == 2
    found = read(tmp_path / "events")
    assert points(found, "loss/train") == whole.losses and points(found, "test/accuracy") == whole.tests


@pytest.mark.parametrize("another", [False, True])
def test_a_run_that_goes_back_doubles_no_step(tmp_path, another):
    """It goes back after a rank has died: rank 0, whose part another rank then takes over, or one of the others."""
    solver, alive = make_solver(TEXT, digits_net(), tmp_path), World()
    board = TensorBoard(str(tmp_path / "events"))
    solver.observers.append(board)
    solver.run(20)
    if another:
        board.close()
        board = TensorBoard(str(tmp_path / "events"), rank=1)
        alive.rank = 1
        board.begin(Run(alive, solver.net, [], 0, 20))
        board.finished(15, 1.0)  # rank 1 does not write this
        alive.rank = 0
    board.gone_back(10)
    board.finished(12, 1.5)
    board.close()
    solver.close()
    shown = points(read(tmp_path / "events"), "loss/train")
    assert shown[-1] == (12, 1.5) and [at for at, _ in shown] == [0, 2, 4, 6, 8, 12]


FULL = """
import resource
from engine.report.tensorboard import TensorBoard
from tests.solver.harness import digits_net, make_solver
solver = make_solver("max_iter: 400 display: 1 test_iter: 1 test_interval: {interval}", digits_net())
solver.observers[:] = [TensorBoard("events", 20)]
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, -1))
assert solver.solve() and solver.iteration == 400
solver.close()
"""


@pytest.mark.parametrize(("limit", "interval"), [(300, 10), (20000, 1000)])
def test_a_full_disk_ends_the_event_files_alone(tmp_path, limit, interval):
    program = FULL.format(limit=limit, interval=interval)
    environ = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )
    told = "--tensorboard: the event files in events end here: File too large"
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.count(told) == 1, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_histograms_are_of_weights_and_mean_gradients(tmp_path):
    """The histograms count every element. The gradients are those that Caffe's interface shows, divided by
    iter_size."""
    text = TEXT + "iter_size: 2 "
    train(tmp_path, tmp_path / "events", text=text, histograms=8)
    found = read(tmp_path / "events")
    events = found.Histograms("gradients/ip/0")
    assert [event.step for event in events] == [0, 8, 16]
    assert {event.histogram_value.num for event in events} == {640}
    (tmp_path / "net.prototxt").write_text(digits_net())
    solver = f'net: "{tmp_path}/net.prototxt" lr_policy: "fixed" {text} snapshot_after_train: false snapshot: 0'
    (tmp_path / "solver.prototxt").write_text(solver.replace("snapshot: 10", ""))
    script = SGDSolver(str(tmp_path / "solver.prototxt"))
    script.step(9)
    for event, values in (
        (events[1], script.net.params["ip"][0].diff / 2),
        (found.Histograms("weights/ip/0")[1], script.net.params["ip"][0].data),
    ):
        value = event.histogram_value
        np.testing.assert_allclose(
            [value.min, value.max, value.sum], [values.min(), values.max(), values.sum()], rtol=1e-4, atol=1e-5
        )


def test_what_is_looked_at_does_not_change(tmp_path):
    """Training computes the same with histograms as without."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    train(tmp_path / "a", tmp_path / "events", histograms=1)
    train(tmp_path / "b", tmp_path / "others")
    for name in ("caffemodel", "solverstate"):
        a, b = ((tmp_path / folder / f"net_iter_20.{name}").read_bytes() for folder in "ab")
        assert a.replace(b"/a/", b"/b/") == b


def test_without_the_library_and_without_a_folder(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="file: --tensorboard: cannot be made"):
        TensorBoard(str(tmp_path / "file"))
    assert main(["train", "--solver", "solvers/digits.prototxt", "--histograms", "5"]) == 1
    assert "engine: --histograms go into event files: give --tensorboard DIR, too\n" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(
        EngineError, match=r"--tensorboard needs tensorboardX: pip install prototxt-engine\[tensorboard\]"
    ):
        TensorBoard(str(tmp_path / "events"))


@pytest.mark.mpi
def test_rank_0_writes_for_all(tmp_path):
    script = f"""
from engine.comm.world import world
from engine.report.tensorboard import TensorBoard
from tests.solver.harness import make_solver
solver = make_solver(TEXT, NET, "{tmp_path}", world())
solver.observers.append(TensorBoard("{tmp_path}/events", 8, world().rank))
assert solver.solve()
solver.close()
world().close()
"""
    done = run_ranks(2, script, timeout=100, names={"TEXT": TEXT, "NET": digits_net(8)})
    assert done.returncode == 0, done.stderr
    two = read(tmp_path / "events")
    told = train(tmp_path, tmp_path / "one", histograms=8)
    assert len(list((tmp_path / "events").iterdir())) == 1
    assert points(two, "loss/train") == [(at, pytest.approx(loss.expected, rel=1e-4)) for at, loss in told.losses]
    ours, alone = (read(tmp_path / name).Histograms("gradients/ip/0")[1].histogram_value for name in ("events", "one"))
    assert (ours.min, ours.max) == (pytest.approx(alone.min, rel=1e-3), pytest.approx(alone.max, rel=1e-3))


@pytest.mark.mpi
def test_histograms_beside_sharded_updates(tmp_path):
    """Only rank 0 writes histograms, and the other ranks would not exchange their gradients with it."""
    script = f"""
from engine.comm.world import world
from engine.report.tensorboard import TensorBoard
from tests.solver.harness import make_solver
solver = make_solver(TEXT + "comm_param {{ shard_updates: true }}", NET, "{tmp_path}", world())
solver.observers.append(TensorBoard("{tmp_path}/events", 8, world().rank))
assert solver.solve()
solver.close()
world().close()
"""
    done = run_ranks(2, script, timeout=100, names={"TEXT": TEXT, "NET": digits_net(8)})
    assert done.returncode == 0, done.stderr
    tags = read(tmp_path / "events").Tags()["histograms"]
    assert "weights/ip/0" in tags and "gradients/ip/0" not in tags


def test_a_loss_that_another_layer_reads(tmp_path):
    """Such a loss counts, but is not an output of the net."""
    more = """layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss2" loss_weight: 0.5 }
    layer { name: "half" type: "Power" bottom: "loss2" top: "half" power_param { scale: 0.5 } }"""
    solver = make_solver("max_iter: 4 display: 2", digits_net() + more)
    solver.observers.append(TensorBoard(str(tmp_path / "events")))
    assert solver.solve()
    solver.close()
    found = read(tmp_path / "events")
    assert {"train/loss", "train/half"} <= set(found.Tags()["scalars"])
    assert "train/loss2" not in found.Tags()["scalars"]
