"""A program may ask OpenMP for more threads after a net has been built."""

import subprocess
import sys

# Prints how far the tops with more threads are from those with the threads that the net was built for. If threads wrote
# beyond their memory, the process would end sooner or later.
PROGRAM = """
import ctypes
import numpy as np
from engine import proto
from engine.config import parse_net
from engine.net import Net, NetOptions

openmp = ctypes.CDLL("libgomp.so.1")
for layer in ('type: "Softmax"', 'type: "Interp" interp_param { zoom_factor: 2 }'):
    openmp.omp_set_num_threads(1)
    text = 'input: "x" input_dim: 8 input_dim: 21 input_dim: 64 input_dim: 64 force_backward: true\\n'
    text += 'layer { name: "layer" bottom: "x" top: "y" %s }' % layer
    net = Net(parse_net(text), proto.TRAIN, NetOptions(keep_all=True))
    net.feed(net.inputs[0], np.random.default_rng(1).normal(size=(8, 21, 64, 64)).astype(np.float32))
    before = net.forward()["y"].copy()
    openmp.omp_set_num_threads(16)
    print(max(abs(net.forward()["y"] - before).max() for _ in range(10)))
"""


def test_more_threads_than_a_net_was_built_for():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "0.0\n0.0\n"), done.stderr
