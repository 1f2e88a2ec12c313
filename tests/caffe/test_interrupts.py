"""Ctrl-C in a program or a notebook: the call that is interrupted ends soon, raises KeyboardInterrupt, and can be made
again."""

import signal
import subprocess
import sys

import pytest

from tests.caffe.nets import NORMED
from tests.mpi import REPO, run_ranks
from tests.solver.harness import digits_net

SOLVER = 'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 100000 test_iter: 2 test_interval: 7 ema: 0.9'

# interrupt(call, times) sends SIGINT `times` times, at a random moment of a call or just after it, and returns whether
# KeyboardInterrupt was raised.
PROLOGUE = """
import os, random, signal, sys, threading, time
import numpy as np
import engine.caffe as caffe

chance = random.Random(int(sys.argv[2]))
lasts = {}

def interrupt(name, call, times):
    begin, struck = time.monotonic(), []
    def strike():
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.002)
        struck.append(True)
    timer = threading.Timer(chance.uniform(0, 1.1 * lasts.get(name, 0.05)), strike)
    raised = False
    try:
        timer.start()
        call()
        lasts[name] = time.monotonic() - begin
    except KeyboardInterrupt:
        raised = True
    while True:  # it may still come, or the others of several
        try:
            while not struck:  # timer.is_alive() is wrong after a join() that was interrupted
                time.sleep(0.001)
            time.sleep(0.005)
            return raised
        except KeyboardInterrupt:
            raised = True

solver = caffe.SGDSolver(sys.argv[1])
net, test = solver.net, solver.test_nets[0]
calls = dict(step=lambda: solver.step(5), forward=test.forward, backward=test.backward, snapshot=solver.snapshot)
solver.step(1)
"""

AGAIN_AND_AGAIN = """
raised = 0
for number in range(int(sys.argv[3])):
    name = list(calls)[number % len(calls)]
    raised += interrupt(name, calls[name], int(sys.argv[4]))
solver.step(1)
print("raised", raised, "of", sys.argv[3])
interrupted, iterations = [blob.data.copy() for blobs in net.params.values() for blob in blobs], solver.iter
other = caffe.SGDSolver(sys.argv[1])
other.step(iterations)
blobs = [blob.data for blobs in other.net.params.values() for blob in blobs]
print("same bits", all((mine == blob).all() for mine, blob in zip(interrupted, blobs, strict=True)), flush=True)
"""

AT_EXIT = """
import atexit
def strike():
    time.sleep(float(sys.argv[3]))
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=strike, daemon=True).start()
"""

RANKS = """
import os, signal
import engine.caffe as caffe
from engine.comm.world import world
solver = caffe.SGDSolver(%(file)r)
solver.step(1)
def strike():
    if caffe.solver_rank() == 1 and solver.iter == 5:
        for _ in range(%(times)d):
            os.kill(os.getpid(), signal.SIGINT)
solver.add_callback(lambda: None, strike)
try:
    while True:
        %(call)s
except KeyboardInterrupt:
    print("caught", flush=True)
if %(times)d == 1:
    iterations = world().gather(solver.iter)
    solver.step(3)
    sums = world().gather(float(sum(blob.data.sum() for blobs in solver.net.params.values() for blob in blobs)))
    if iterations:
        print("alike", len(set(iterations)), len(set(sums)), solver.iter - iterations[0], flush=True)
"""


def write(folder, net):
    path = folder / "solver.prototxt"
    path.write_text(f'{SOLVER} snapshot_prefix: "{folder}/x" net_param {{ force_backward: true {net} }}')
    return str(path)


def run(program, *arguments, timeout=60):
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program, *map(str, arguments)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_calls_can_be_made_again(tmp_path, times):
    """The bits are those of a run without interrupts, also if a second interrupt comes at once."""
    done = run(AGAIN_AND_AGAIN, write(tmp_path, NORMED), times, 24, times)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "raised 24 of 24" in done.stdout
    assert "same bits True" in done.stdout


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_an_interrupt_at_the_exit_ends_it(tmp_path, seconds):
    done = run(AT_EXIT, write(tmp_path, digits_net()), 0, seconds)
    assert done.returncode in (0, 1, 130, -signal.SIGINT), done.stderr[-3000:]
    assert "defect" not in done.stderr and "Fatal Python error" not in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("call", ["solver.step(10**6)", "solver.step(1)", "solver.solve()"])
def test_an_interrupt_of_one_rank_ends_the_call_of_all(call, tmp_path):
    """The interrupt may also come in the last iteration."""
    done = run_ranks(2, RANKS % {"file": write(tmp_path, digits_net()), "times": 1, "call": call})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("caught") == 2 and "alike 1 1 3" in done.stdout


@pytest.mark.mpi
def test_ranks_that_parted_within_an_iteration_end(tmp_path):
    done = run_ranks(2, RANKS % {"file": write(tmp_path, digits_net()), "times": 2, "call": "solver.step(10**6)"})
    assert done.returncode != 0
    assert "[rank 1] training has failed or was interrupted within an iteration" in done.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_a_layer_of_a_program_may_be_interrupted(tmp_path, times):
    """If the layer never ends by itself, the second interrupt ends it."""
    (tmp_path / "endless.py").write_text(
        "import threading, time\nimport caffe\n"
        "class Endless(caffe.Layer):\n    left, runs = 1000.0, threading.Event()\n"
        "    def setup(self, bottom, top): pass\n    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top):\n        top[0].data[...] = bottom[0].data\n"
        "        begin = time.monotonic()\n        Endless.runs.set()\n"
        "        while time.monotonic() < begin + Endless.left: time.sleep(0.01)\n"
        "    def backward(self, top, down, bottom): bottom[0].diff[...] = top[0].diff\n"
    )
    layer = 'layer { name: "py" type: "Python" bottom: "ip1" top: "py"'
    layer += ' python_param { module: "endless" layer: "Endless" } }'
    path = tmp_path / "solver.prototxt"
    net = digits_net().replace(
        'layer { name: "ip2" type: "InnerProduct" bottom: "ip1"',
        layer + 'layer { name: "ip2" type: "InnerProduct" bottom: "py"',
    )
    path.write_text(f'base_lr: 0.1 lr_policy: "fixed" max_iter: 9 net_param {{ {net} }}')
    program = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(tmp_path)!r})
import engine.caffe as caffe
caffe.install()
solver = caffe.SGDSolver({str(path)!r})
from endless import Endless
def strike():
    Endless.runs.wait()
    for _ in range({times}):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    if {times} == 1:
        Endless.left = 0
threading.Thread(target=strike, daemon=True).start()
try:
    solver.step(5)
except KeyboardInterrupt:
    print("at", solver.iter)
Endless.left = 0
solver.step(2)
print("then", solver.iter)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["at", str(2 - times), "then", str(4 - times)], done.stderr[-3000:]
