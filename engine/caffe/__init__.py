"""Caffe's Python interface on this engine: `import engine.caffe as caffe`, or install() and `import caffe`.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="digits.caffemodel")
net.blobs["data"].data[...] = images
net.forward()["prob"]
"""

from engine.cores import limit_spinning

limit_spinning()

from engine.caffe.mode import (  # noqa: E402
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
)
from engine.caffe.net import Net  # noqa: E402
from engine.proto import TEST, TRAIN  # noqa: E402

__version__ = "1.0.0"  # of the interface: BVLC's last release

__all__ = [
    "TEST",
    "TRAIN",
    "Net",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
]
