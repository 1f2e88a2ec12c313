"""Trains Caffe nets. With `import engine as caffe` scripts get Caffe's Python interface, engine.caffe, on first use."""

__version__ = "0.1.0"

_INTERFACE = frozenset(
    """AdaDeltaSolver AdaGradSolver AdamSolver Classifier Detector Layer Net NesterovSolver NetSpec RMSPropSolver
    SGDSolver Solver TEST TRAIN Timer classifier coord_map detector draw get_solver has_nccl init_log install io
    layer_type_list log net_spec params pycaffe set_device set_mode_cpu set_mode_gpu set_multiprocess set_random_seed
    set_solver_count set_solver_rank solver_count solver_rank to_proto""".split()
)
_PACKAGES = frozenset({"caffe", "layers", "proto"})  # engine.layers is Caffe's `layers` of NetSpec, too


def __dir__() -> list[str]:
    return sorted({*globals(), *_INTERFACE, *_PACKAGES})


def __getattr__(name: str):
    import importlib

    if name == "layers":
        importlib.import_module("engine.caffe")  # it makes engine.layers.Convolution() add a layer to a NetSpec
    if name in _PACKAGES:
        return importlib.import_module(f"engine.{name}")
    if name in _INTERFACE or name == "_caffe":
        return getattr(importlib.import_module("engine.caffe"), name)
    raise AttributeError(f"module 'engine' has no attribute '{name}'")
