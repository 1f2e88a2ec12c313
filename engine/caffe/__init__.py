"""Caffe's Python interface on this engine: `import engine.caffe as caffe`, or install() and `import caffe`.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="digits.caffemodel")
net.blobs["data"].data[...] = images
net.forward()["prob"]
"""

import importlib
import sys

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
from engine.caffe.ranks import solver_count, solver_rank  # noqa: E402
from engine.caffe.solver import (  # noqa: E402
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from engine.layers.registry import layer_types  # noqa: E402
from engine.proto import TEST, TRAIN  # noqa: E402
from engine.python_layer import PythonLayer as Layer  # noqa: E402
from engine.report.log import log, set_up  # noqa: E402

__version__ = "1.0.0"  # of the interface: BVLC's last release


def install() -> None:
    """Registers this package as `caffe`, for scripts and modules that import that."""
    modules = {"caffe": __name__, "caffe.proto": f"{__name__}.proto", "caffe.proto.caffe_pb2": "engine.proto.caffe_pb2"}
    for name, ours in modules.items():
        sys.modules.setdefault(name, importlib.import_module(ours))


def layer_type_list() -> list[str]:
    """The known layer types."""
    return sorted(layer_types())


def init_log(level: int = 0) -> None:
    """Sends the log to stderr, as solvers do by themselves."""
    set_up(solver_rank())


def has_nccl() -> bool:
    """Ranks talk through MPI."""
    return False


__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Layer",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "log",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]
