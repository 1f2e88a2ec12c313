"""Layer types, one in each file. As `caffe.layers` of scripts that `import engine as caffe`, L.Convolution(...)."""


def __getattr__(name: str):
    import importlib

    if not name[:1].isupper():
        raise AttributeError(f"module 'engine.layers' has no attribute '{name}'")
    return getattr(importlib.import_module("engine.caffe.net_spec").layers, name)
