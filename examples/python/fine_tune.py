"""Fine-tuning: a net that knows digits learns from few pictures to tell odd ones from even ones.

    python examples/python/train_net.py && python examples/python/fine_tune.py [FOLDER]

Only the last layer is new. It has another name, so that copy_from() does not load weights into it, and a higher rate.
"""

import sys

import digits
import numpy as np
from train_net import OUT, scores, trained, write_solver

import engine.caffe as caffe
from engine.caffe import layers as L

BATCH, PICTURES, ITERATIONS = 20, 60, 60


def parity_net():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[BATCH, 1, 8, 8]))
    n.label = L.Input(shape=dict(dim=[BATCH]))
    scores(n, "parity", num_output=2, param=[dict(lr_mult=10), dict(lr_mult=10)])
    n.loss = L.SoftmaxWithLoss(n.parity, n.label)
    n.accuracy = L.Accuracy(n.parity, n.label)
    return n.to_proto()


def train(solver, images, labels):
    for step in range(ITERATIONS):
        batch = np.arange(step * BATCH, (step + 1) * BATCH) % PICTURES
        solver.net.blobs["data"].data[...] = images[batch]
        solver.net.blobs["label"].data[...] = labels[batch] % 2
        solver.step(1)


def accuracy(net, images, labels):
    batches = range(0, len(images) - BATCH + 1, BATCH)
    return np.mean(
        [net.forward(data=images[i : i + BATCH], label=labels[i : i + BATCH] % 2)["accuracy"] for i in batches]
    )


def main(folder=OUT):
    folder = trained(folder)
    (folder / "parity").mkdir(parents=True, exist_ok=True)
    net = folder / "parity" / "net.prototxt"
    net.write_text(str(parity_net()))
    solver_file = write_solver(folder / "parity", net, base_lr=0.005)
    images, labels = digits.read("train")
    for weights in (None, folder / "digits.caffemodel"):
        solver = caffe.SGDSolver(solver_file)
        if weights:
            solver.net.copy_from(str(weights))
        train(solver, images, labels)
        origin = "fine-tuned" if weights else "from scratch"
        print(f"{origin}: test accuracy {accuracy(solver.net, *digits.read('test')):.3f}, from {PICTURES} pictures")


if __name__ == "__main__":
    main(*sys.argv[1:])
