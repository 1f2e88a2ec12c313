"""Layer types, one in each file. As `caffe.layers` of scripts that `import engine as caffe`, L.Convolution(...)."""

from collections.abc import Callable
from typing import Any

# Set by engine.caffe: what L.Convolution is in a script. Only layer types begin with a capital letter.
call_of_type: Callable[[str], Any] | None = None


def __getattr__(name: str) -> Any:
    if call_of_type is None or not name[:1].isupper():
        raise AttributeError(f"module 'engine.layers' has no attribute '{name}'")
    return call_of_type(name)
