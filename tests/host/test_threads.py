"""Every computing thread flushes denormals to zero. A net whose gradients have faded keeps its pace, and its bits do
not depend on which thread computes them."""

import subprocess
import sys

import numpy as np
import pytest

from tests.layers.harness import run
from tests.mpi import REPO

DENORMAL = 1e-39
SMALLEST = np.finfo(np.float32).tiny  # the smallest normal number
SHAPE = (64, 64, 16, 16)  # large enough that each thread has a share

PRODUCT = (
    'layer { name: "y" type: "Eltwise" bottom: "x" bottom: "x" top: "y" eltwise_param { coeff: 0.25 coeff: 0.25 } }'
)
DENSE = """layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 64 weight_filler { type: "constant" value: 1e-20 } } }"""
NORM = 'layer { name: "y" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { use_global_stats: true } }'

CASES = {  # an input, and a result above 0 that would come out if denormals were kept
    "engine's kernels": (PRODUCT, SMALLEST),
    "oneDNN's kernels": (DENSE, 1e-20),
    "denormal input": (NORM, DENORMAL),
}


@pytest.mark.parametrize("case", CASES)
def test_results_too_small_are_zero_in_every_thread(case):
    layer, value = CASES[case]
    net = run(layer, x=np.full(SHAPE, value, np.float32))
    np.testing.assert_array_equal(net.blobs["y"].data, 0)


def test_with_more_threads_too():
    """This needs a process of its own, because the number of threads is decided at its start."""
    check = "t.test_results_too_small_are_zero_in_every_thread(case)"
    code = f"import tests.host.test_threads as t; [{check} for case in t.CASES]"
    command = ["env", "OMP_NUM_THREADS=5", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


FORKS = """
import os, signal, sys
from pathlib import Path
import numpy as np
import engine.caffe as caffe
from tests.caffe.nets import DEPLOY, write
path = write(Path(sys.argv[1]), DEPLOY)
net = caffe.Net(path, caffe.TEST)
data = np.random.default_rng(0).normal(size=(2, 3, 6, 6))
expected = net.forward(data=data)["prob"].copy()
gradients = net.backward(prob=expected)["data"].copy()
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        assert (net.forward(data=data)["prob"] == expected).all()
        assert (net.backward(prob=expected)["data"] == gradients).all()
        assert (caffe.Net(path, caffe.TEST).forward(data=data)["prob"] == expected).all()
        os._exit(7)
    assert (net.forward(data=data)["prob"] == expected).all()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_process_that_is_forked_computes(tmp_path):
    """The child has none of the threads that computed before, neither for a new net nor for one that exists."""
    command = ["env", "OMP_NUM_THREADS=2", sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


SIGNALS = """
import signal, sys
import numpy as np
from engine import proto
from engine.comm.world import World
from engine.config import read_net
from engine.examine import benchmark
from engine.examine.synthetic import feed_synthetic
from engine.data.source_shapes import SourceShapes
from engine.net import Net, NetOptions
count = 0
def handler(number, frame):
    global count
    count += 1
signal.signal(signal.SIGALRM, handler)
config = read_net("nets/digits.prototxt")
net = Net(config, proto.TRAIN, NetOptions(shapes_of=SourceShapes(config.message, proto.TRAIN, print)))
feed_synthetic(net, seed=1)
training = benchmark.Training(net, World())
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for iteration in range(int(sys.argv[1])):
    benchmark.step(net, training, iteration)
signal.setitimer(signal.ITIMER_REAL, 0)
training.optimizer.close()
assert count > 100, count
"""


def test_signals_do_not_disturb_kernels():
    """If signals had no stack of their own, they would overwrite the heap, and glibc would notice within some hundred
    steps."""
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, "-c", SIGNALS, "400"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
