"""Training steps, with their updates, allocate nothing: calls of the C library's allocators are counted in all threads.

Not counted are those of oneDNN itself: the table of arguments of each primitive that runs, and the buffers of its
float32 matrix product. The caller can provide neither.
"""

import shutil
import subprocess
import sys

import pytest

from engine.host.cores import CROWDED_SPIN_COUNT
from tests.layers.harness import PRECISIONS
from tests.mpi import REPO

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include <execinfo.h>
#include <string.h>

static _Atomic long ours, all;
static _Atomic int counting;
static _Thread_local int inside;
long allocations(void) { return ours; }
long all_allocations(void) { return all; }
void start(int on) { counting = on; }

// Whose a call is: of the first of the two libraries on the stack.
static void count(void) {
    if (!counting || inside) return;
    inside = 1;
    all++;
    void* stack[32];
    const int depth = backtrace(stack, 32);
    for (int i = 0; i < depth; i++) {
        Dl_info info;
        if (!dladdr(stack[i], &info) || !info.dli_fname) continue;
        if (strstr(info.dli_fname, "libdnnl")) break;
        if (!strstr(info.dli_fname, "engine/host/_ext")) continue;
        ours++;
        break;
    }
    inside = 0;
}
void* malloc(size_t size) {
    static void* (*real)(size_t);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "malloc");
    count();
    return real(size);
}
void* realloc(void* old, size_t size) {
    static void* (*real)(void*, size_t);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "realloc");
    count();
    return real(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
    static void* (*real)(size_t, size_t);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "aligned_alloc");
    count();
    return real(alignment, size);
}
int posix_memalign(void** into, size_t alignment, size_t size) {
    static int (*real)(void**, size_t, size_t);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "posix_memalign");
    count();
    return real(into, alignment, size);
}
"""

STEPS = """
import ctypes, sys
from engine import proto
from engine.examine.benchmark import Training, step
from engine.examine.synthetic import feed_synthetic
from engine.comm.world import World
from engine.config import read_net
from engine.net import Net, NetOptions

shapes = [(4, 3, 28, 28), (4,)]
net = Net(read_net(sys.argv[1]), proto.TRAIN, NetOptions(shapes_of=lambda layer, where: shapes, precision=sys.argv[2]))
feed_synthetic(net, seed=1)
training = Training(net, World())
for iteration in range(5):
    step(net, training, iteration)
training.optimizer.wait()
counter = ctypes.CDLL(None)
counter.allocations.restype = counter.all_allocations.restype = ctypes.c_long
for iteration in range(5, 10):
    counter.start(0)
    feed_synthetic(net, seed=iteration)
    counter.start(1)
    step(net, training, iteration)
counter.start(0)
print(counter.allocations(), counter.all_allocations())
training.optimizer.close()
"""


SEQUENCES = """
layer { name: "text" type: "Input" top: "text" input_param { shape { dim: 6 dim: 40 } } }
layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 6 dim: 40 } } }
layer { name: "next" type: "Input" top: "next" input_param { shape { dim: 6 dim: 40 } } }
layer { name: "embed" type: "Embed" bottom: "text" top: "embed" embed_param { input_dim: 9 num_output: 16 } }
layer { name: "lstm" type: "LSTM" bottom: "embed" bottom: "cont" top: "lstm" recurrent_param { num_output: 48 } }
layer { name: "gru" type: "GRU" bottom: "lstm" bottom: "cont" top: "gru"
  recurrent_param { num_output: 48 linear_before_reset: true } }
layer { name: "ip" type: "InnerProduct" bottom: "gru" top: "ip" inner_product_param { num_output: 9 axis: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "next" top: "loss" softmax_param { axis: 2 } }
"""

# The lattice has other vertices for each picture. The scores have two readers, whose gradients are added.
MEAN_FIELD = """
layer { name: "picture" type: "Input" top: "picture" input_param { shape { dim: 2 dim: 3 dim: 40 dim: 50 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 dim: 1 dim: 40 dim: 50 } } }
layer { name: "scores" type: "Convolution" bottom: "picture" top: "scores"
  convolution_param { num_output: 9 kernel_size: 1 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "crf" type: "MultiStageMeanfield" bottom: "scores" bottom: "scores" bottom: "picture" top: "crf"
  multi_stage_meanfield_param { num_iterations: 2 theta_alpha: 40 theta_beta: 50 theta_gamma: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "crf" bottom: "label" top: "loss" }
"""
NETS = {"sequences": SEQUENCES, "mean_field": MEAN_FIELD}


@pytest.mark.parametrize("net", ["cifar10", *NETS])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_running_a_net_allocates_nothing(tmp_path, net, precision):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler for the counter")
    source, library = tmp_path / "count.c", tmp_path / "count.so"
    source.write_text(COUNTER)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    model = REPO / "nets/cifar10.prototxt"
    if net in NETS:
        model = tmp_path / "net.prototxt"
        model.write_text(NETS[net])
    command = [sys.executable, "-c", STEPS, str(model), precision]
    environ = {"LD_PRELOAD": str(library), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "2", "PATH": "/usr/bin:/bin"}
    # Otherwise csrc/crowd.cpp starts threads when other processes begin to use the cores, as other tests do.
    environ["GOMP_SPINCOUNT"] = CROWDED_SPIN_COUNT
    done = subprocess.run(command, env=environ, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, everything = map(int, done.stdout.split())
    assert everything > 0, "the counter counts: oneDNN's and Python's are there"
    assert ours == 0
