"""Nets that do not fit into memory are refused before memory is taken."""

import os
import subprocess
import sys

import pytest

from engine import proto
from engine.config import parse_net
from engine.errors import EngineError
from engine.examine.check import check_file
from engine.examine.device import device
from engine.host import memory
from engine.net import PASSES, Net, NetOptions
from tests.mpi import REPO, run_ranks
from tests.solver.harness import DIGITS, digits_net, make_solver

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1000 dim: 1000 } } }
layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 500 } }
layer { name: "z" type: "Reduction" bottom: "y" top: "z" loss_weight: 1 }
"""  # x is 4 MB; the weights, the gradients, y and its gradient are 2 MB each


@pytest.fixture
def undivided(monkeypatch):
    """Forgets how ranks have divided the memory."""
    monkeypatch.setattr(memory, "_share", [])


def test_what_is_free_is_less_than_there_is(undivided):
    assert 0 < memory.free_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_ranks_divide_it(undivided, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 8_000_000_000)
    memory.divide_memory(4)
    assert abs(memory.free_memory() - 2_000_000_000) < 200_000_000
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000_000)  # other processes have taken the rest
    assert memory.free_memory() == 1_000_000_000


def test_a_group_has_its_own_limit(tmp_path):
    names = ("memory.max", "memory.current", ("inactive_file", "active_file"))
    assert list(memory._left_in(tmp_path, *names)) == []
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 50000\n")
    assert list(memory._left_in(tmp_path, *names)) == [550_000]
    (tmp_path / "memory.max").write_text("max\n")
    assert list(memory._left_in(tmp_path, *names)) == []


def test_what_a_group_leaves_is_what_the_device_has(monkeypatch):
    monkeypatch.setattr(memory, "_left_in_groups", lambda: iter([500_000]))
    assert device()["memory_available_bytes"] == 500_000


def test_a_limit_of_addresses_counts():
    program = "from engine.host.memory import free_memory; print(free_memory())"
    command = ["bash", "-c", 'ulimit -v 1000000; exec "$@"', "bash", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1_024_000_000


def test_a_net_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "SMALL", 0)
    config = parse_net(NET)
    monkeypatch.setattr(memory, "free_memory", lambda: 20_000_000)
    Net(config, proto.TRAIN)
    monkeypatch.setattr(memory, "free_memory", lambda: 5_000_000)
    for passes in (PASSES, PASSES - {"memory_plan"}):
        with pytest.raises(EngineError, match=r":3:.*above all its layer 'y', needs \d+ MB, 5 MB are free: lower"):
            Net(config, proto.TRAIN, NetOptions(passes=passes))


def test_check_notes_it(monkeypatch, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    monkeypatch.setattr("engine.examine.check_net.free_memory", lambda: 7_000_000)
    report = check_file(str(tmp_path / "net.prototxt"))
    note = next(note for note in report.notes if "free" in note)
    assert "in phase TRAIN it needs" in note and "7 MB are free on this host: lower batch_size" in note
    assert report.errors == []


def test_check_counts_what_the_optimizer_remembers(monkeypatch, tmp_path):
    (tmp_path / "solver.prototxt").write_text(
        f'type: "Adam" base_lr: 1 lr_policy: "fixed" max_iter: 1 ema: 0.9 net_param {{ {NET} }}'
    )
    free = 13_000_000  # the net takes 12 MB, histories and average 6, and a twentieth is added
    monkeypatch.setattr("engine.examine.check_net.free_memory", lambda: free)
    report = check_file(str(tmp_path / "solver.prototxt"))
    assert any("it needs 19 MB, 13 MB are free" in note for note in report.notes), report.notes


def test_batches_decoded_ahead_that_do_not_fit_are_refused(monkeypatch):
    solver = make_solver("", digits_net(batch=1000))
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
    with pytest.raises(EngineError, match="the ring of batches of layer 'data' needs"):
        solver.solve()


LINEAR = """
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { crop_size: 6 }
  data_param { source: "%s/digits_train_lmdb" batch_size: 10000 prefetch: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""  # a batch of images has 1.48 MB, and 3 batches are held; blobs have less than 1.5 MB


def test_all_that_a_training_takes_is_summed_before_any_of_it_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 4_000_000)
    with pytest.raises(EngineError, match=r":\d+:\d+: net '.*', above all its layer 'data', needs 5 MB, 4 MB are free"):
        make_solver("", LINEAR % DIGITS)


def test_what_is_summed(monkeypatch):
    """It is the net, the optimizer's state and the batches. For a test net, the batches of the train net count, too,
    since they exist by then."""
    asked: list[int] = []
    monkeypatch.setattr("engine.net.net.require_memory", lambda needed, *rest: asked.append(needed))
    solver = make_solver('type: "Adam" test_iter: 1 test_interval: 5', digits_net(batch=1000))
    train, test = (sum(each.ring_bytes().values()) for each in (solver.feeder, solver.test_nets.evaluators[0].feeder))
    assert (train, test) == (5 * 1000 * 37 * 4, 5 * 47 * 37 * 4)
    for net, share in ((solver.net, None), (solver.test_nets.evaluators[0].net, solver.net)):
        options = net.options.replace(besides=lambda learned: {})
        Net(parse_net(digits_net(batch=1000)), net.phase, options, share=share)
    assert asked[0] - asked[2] == train + 2 * solver.net._learned()
    assert asked[1] - asked[3] == train + test


def test_a_batch_too_large_ends_in_one_line(tmp_path):
    large = NET.replace("dim: 1000 dim: 1000", "dim: 4000000 dim: 1")  # y has 8 GB
    (tmp_path / "net.prototxt").write_text(large)
    command = [sys.executable, "-m", "engine", "time", "--model", str(tmp_path / "net.prototxt"), "--iterations", "1"]
    bash = ["bash", "-c", 'ulimit -v 6000000; exec "$@"', "bash", *command]
    done = subprocess.run(bash, cwd=REPO, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and done.stderr.startswith("engine: ") and done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr or "are free: lower batch_size" in done.stderr


@pytest.mark.mpi
def test_two_ranks_of_a_host_have_half_each():
    program = """
from engine.host import memory
memory.available_memory = lambda: 10**12
from engine.verbs.runtime import start
world = start()
print(round(memory._share[0] / 10**12, 1))
world.close()
"""
    done = run_ranks(2, program)
    assert done.returncode == 0 and done.stdout.split() == ["0.5", "0.5"], done.stdout + done.stderr
