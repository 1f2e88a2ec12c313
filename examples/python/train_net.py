"""Writes a net in Python (NetSpec) and trains it step by step, with a look at its weights and accuracy in between.

    python examples/python/train_net.py [FOLDER]

FOLDER (default: examples/python/out) gets the nets as prototxt and the weights, which the other scripts use. Several
ranks train together under mpiexec.
"""

import sys
from pathlib import Path

import numpy as np
from digits import DIGITS

import engine.caffe as caffe
from engine.caffe import layers as L
from engine.caffe import params as P
from engine.proto import caffe_pb2

OUT = Path(__file__).with_name("out")
ITERATIONS = 300


def scores(n, top, **last):
    """Adds two convolutions and two inner products on n.data. The last layer has the name `top`, and parameters
    `last`."""
    learn = dict(weight_filler=dict(type="msra"))
    n.conv1 = L.Convolution(n.data, num_output=16, kernel_size=3, pad=1, **learn)
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    n.conv2 = L.Convolution(n.conv1, num_output=32, kernel_size=3, pad=1, **learn)
    n.relu2 = L.ReLU(n.conv2, in_place=True)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=64, **learn)
    n.relu3 = L.ReLU(n.ip1, in_place=True)
    n[top] = L.InnerProduct(n.ip1, **{"num_output": 10, **learn, **last})
    return n[top]


def train_net(subset, batch_size):
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        source=str(DIGITS / f"digits_{subset}_lmdb"),
        backend=P.Data.LMDB,
        batch_size=batch_size,
        shuffle=subset == "train",
        transform_param=dict(scale=1 / 16),
        ntop=2,
    )
    n.loss = L.SoftmaxWithLoss(scores(n, "ip2"), n.label)
    n.accuracy = L.Accuracy(n.ip2, n.label)
    return n.to_proto()


def deploy_net():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 8, 8]))
    n.prob = L.Softmax(scores(n, "ip2"))
    return n.to_proto()


def write_solver(folder, net, test_net=None, **settings):
    """Writes solver.prototxt to a folder, and returns its path. net, test_net: files. settings: further fields."""
    solver = caffe_pb2.SolverParameter(
        train_net=str(net), base_lr=0.05, lr_policy="poly", power=1, momentum=0.9, weight_decay=0.0005, random_seed=1
    )
    solver.max_iter = ITERATIONS
    solver.snapshot_prefix = str(folder / "digits")
    if test_net:
        solver.test_net.append(str(test_net))
        solver.test_iter.append(6)
        solver.test_interval = ITERATIONS
    for name, value in settings.items():
        setattr(solver, name, value)
    path = folder / "solver.prototxt"
    path.write_text(str(solver))
    return str(path)


def test_accuracy(net, batches=6):
    return np.mean([net.forward()["accuracy"] for _ in range(batches)])


def trained(folder):
    """Returns the folder, as a Path, if this script has written weights to it; ends with a message if not. The other
    scripts call it."""
    if not (Path(folder) / "digits.caffemodel").exists():
        sys.exit(f"{folder}: no digits.caffemodel in it: run train_net.py first, with the same folder")
    return Path(folder)


def main(folder=OUT):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.prototxt").write_text(str(train_net("train", 32)))
    (folder / "test.prototxt").write_text(str(train_net("test", 60)))
    (folder / "deploy.prototxt").write_text(str(deploy_net()))

    caffe.set_mode_cpu()
    solver = caffe.SGDSolver(write_solver(folder, folder / "train.prototxt", folder / "test.prototxt"))
    before = solver.net.params["conv1"][0].data.copy()
    for _ in range(3):
        solver.step(ITERATIONS // 3)
        moved = np.abs(solver.net.params["conv1"][0].data - before).mean()
        print(
            f"iteration {solver.iter}: loss {float(solver.net.blobs['loss'].data):.3f}, "
            f"test accuracy {test_accuracy(solver.test_nets[0]):.3f}, weights of conv1 have moved by {moved:.3f}"
        )
    solver.net.save(str(folder / "digits.caffemodel"))


if __name__ == "__main__":
    main(*sys.argv[1:])
