"""A loss layer written in Python: the softmax loss with smoothed labels (Szegedy et al., 2016).

    python examples/python/python_loss.py [FOLDER]

The class must be in a module that Python finds, or that lies beside the prototxt; `engine train` runs it, too:

    PYTHONPATH=examples/python engine train --solver examples/python/out/smoothed/solver.prototxt
"""

import sys
from pathlib import Path

import numpy as np
from digits import DIGITS
from train_net import OUT, scores, test_accuracy, train_net, write_solver

import engine.caffe as caffe
from engine.caffe import layers as L
from engine.caffe import params as P


class SmoothedSoftmaxLoss(caffe.Layer):
    """Bottoms: scores (n, classes), labels (n,). Top: the mean over the samples of -sum_k q_k log p_k. Of q, the label
    gets 1 - param_str; param_str is divided evenly among all classes."""

    def setup(self, bottom, top):
        self.smoothing = float(self.param_str)
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"expected a smoothing in [0, 1), got {self.param_str}")

    def reshape(self, bottom, top):
        self.target = np.zeros(bottom[0].shape, np.float32)
        top[0].reshape(1)

    def forward(self, bottom, top):
        shifted = bottom[0].data - bottom[0].data.max(1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        self.target[...] = self.smoothing / bottom[0].channels
        self.target[np.arange(bottom[0].num), bottom[1].data.astype(int)] += 1 - self.smoothing
        self.p = np.exp(log_p)
        top[0].data[...] = -(self.target * log_p).sum() / bottom[0].num

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = (self.p - self.target) * top[0].diff / bottom[0].num


def smoothed_net():
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        source=str(DIGITS / "digits_train_lmdb"),
        backend=P.Data.LMDB,
        batch_size=32,
        shuffle=True,
        transform_param=dict(scale=1 / 16),
        ntop=2,
    )
    n.loss = L.Python(
        scores(n, "ip2"), n.label, module="python_loss", layer="SmoothedSoftmaxLoss", param_str="0.1", loss_weight=1
    )
    return n.to_proto()


def main(folder=OUT):
    folder = Path(folder) / "smoothed"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.prototxt").write_text(str(smoothed_net()))
    (folder / "test.prototxt").write_text(str(train_net("test", 60)))
    solver = caffe.SGDSolver(write_solver(folder, folder / "train.prototxt", folder / "test.prototxt"))
    for _ in range(3):
        solver.step(100)
        loss = solver.net.blobs["loss"].data.item()
        print(f"iteration {solver.iter}: loss {loss:.3f}, test accuracy {test_accuracy(solver.test_nets[0]):.3f}")
    sure = np.exp(-solver.test_nets[0].forward()["loss"])
    print(f"mean probability of the right class {sure:.3f}: smoothing keeps the net from being too sure")


if __name__ == "__main__":
    main(*sys.argv[1:])
