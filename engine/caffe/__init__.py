"""Caffe's Python interface on this engine: `import engine.caffe as caffe`, or install() and `import caffe`.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="digits.caffemodel")
net.blobs["data"].data[...] = images
net.forward()["prob"]
"""

import importlib
import sys

from engine.host.cores import keep_within_limit

keep_within_limit()  # before libgomp is loaded: it then reads how many threads to start, and may bind this one

# ruff: noqa: E402
import engine.caffe.solver
import engine.layers
from engine.caffe import classifier, coord_map, detector, draw, io, net_spec, proto
from engine.caffe.classifier import Classifier
from engine.caffe.detector import Detector
from engine.caffe.mode import (
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
)
from engine.caffe.net import Net
from engine.caffe.net_spec import NetSpec, layers, params, to_proto
from engine.caffe.ranks import solver_count, solver_rank
from engine.caffe.solver import Solver, get_solver
from engine.caffe.timer import Timer
from engine.layers.python import before_import
from engine.layers.python_layer import PythonLayer as Layer
from engine.layers.registry import layer_types
from engine.proto import TEST, TRAIN
from engine.report.log import log, set_up

__version__ = "1.0.0"  # of the interface: BVLC's last release
_caffe = pycaffe = sys.modules[__name__]  # two modules of Caffe's: all their names are in this one


def install() -> None:
    """Registers this package and its modules as `caffe`, for scripts and modules that import that."""
    sys.modules.setdefault("caffe", pycaffe)
    for name in ("classifier", "coord_map", "detector", "draw", "io", "net_spec", "proto"):
        sys.modules.setdefault(f"caffe.{name}", importlib.import_module(f"{__name__}.{name}"))
    sys.modules.setdefault("caffe.proto.caffe_pb2", proto.caffe_pb2)
    for name in ("_caffe", "pycaffe"):
        sys.modules.setdefault(f"caffe.{name}", pycaffe)


before_import(install)
engine.layers.call_of_type = lambda name: getattr(layers, name)


def layer_type_list() -> list[str]:
    """Returns the known layer types, sorted."""
    return sorted(layer_types())


def __getattr__(name: str) -> type[Solver]:
    """Returns the class of a solver type: SGDSolver and so on. Raises AttributeError for any other name."""
    return getattr(engine.caffe.solver, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in dir(engine.caffe.solver) if name.endswith("Solver"))})


# The classes that __getattr__ finds, for type checkers.
AdaDeltaSolver: type[Solver]
AdaGradSolver: type[Solver]
AdamSolver: type[Solver]
NesterovSolver: type[Solver]
RMSPropSolver: type[Solver]
SGDSolver: type[Solver]


def init_log(level: int = 0, to_stderr: bool = True) -> None:
    """Sends the log to stderr, as solvers do by themselves.

    level: the lowest of glog's levels that is shown: 0 for all, 1 for warnings, 2 for errors. to_stderr: ignored; the
    log always goes to stderr."""
    set_up(solver_rank(), level)


def has_nccl() -> bool:
    """Returns False: ranks talk through MPI."""
    return False


__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Detector",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "Timer",
    "classifier",
    "coord_map",
    "detector",
    "draw",
    "get_solver",
    "has_nccl",
    "init_log",
    "install",
    "io",
    "layer_type_list",
    "layers",
    "log",
    "net_spec",
    "params",
    "proto",
    "pycaffe",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]
