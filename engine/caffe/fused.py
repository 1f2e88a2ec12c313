"""A net of phase TEST as it runs fastest, with all fusions: a script sees its inputs, outputs and parameters only.

caffe.Net begins with it, if the layers allow, and replaces it by a LiveNet as soon as a script looks at anything else.
All arrays that it hands out are copies, which that LiveNet takes over: they stay live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.caffe.views import Views
from engine.config import NetConfig
from engine.inference.deploy import test_layers
from engine.layers.python_layer import Shape
from engine.layers.registry import layer_type
from engine.net import Counters, Net

if TYPE_CHECKING:
    from engine.caffe.live import LiveNet
    from engine.host._core import Tensor


def may_fuse(config: NetConfig, phase: int) -> bool:
    """Returns whether a net can begin as a FusedNet: it is of phase TEST, and its forward can be repeated later to see
    the inner blobs. For that, no layer may change anything but its tops, such as weights, or overwrite an input. A file
    that asks for gradients (force_backward) cannot: its script will look inside anyway."""
    if phase != proto.TEST or config.message.force_backward:
        return False
    layers = test_layers(config)
    made = Counter(top for layer in layers for top in layer.top)
    if any(made[top] > 1 for layer in layers if not layer.bottom for top in layer.top):
        return False
    found = (layer_type(each.type, each.name, config.path)(each, config.path, phase) for each in layers)
    return not any(layer.remembers or layer.rescales_weights for layer in found)


class FusedNet:
    """Has the methods of a LiveNet, as far as a fused net can do them.

    shares: the net whose parameters it reads, None for its own. `layers`: those of the file. `inputs`: the blobs that
    come from outside, by name.
    """

    def __init__(self, net: Net, shares: LiveNet | FusedNet | None = None):
        self.net = net
        self.layers = net.written
        self.params_of = net.params_by_layer()
        self.parameters = shares.parameters if shares else Views()
        self._outputs = Views()
        self._blobs = {name: blob for name, blob in net.named.items() if not name.startswith("(automatic)")}
        self.inputs = {blob.name: blob for blob in net.inputs}
        self._last: dict[str, np.ndarray] | None = None  # inputs of the last forward, by name
        self.step = shares.step if shares else 0
        for layer in net.self_fed:
            for blob, values in layer.feed(self.step, net.seed).items():
                net.feed(blob, values)

    def names(self) -> list[str]:
        return list(self._blobs)

    def shape(self, name: str) -> Shape:
        return self._blobs[name].shape

    def shows(self, name: str) -> bool:
        """Returns whether data() has this blob."""
        return name in self.inputs or self._is_output(name)

    def _is_output(self, name: str) -> bool:
        blob = self._blobs[name]
        return blob in self.net.graph.outputs and blob in self.net.tensors

    def data(self, name: str) -> np.ndarray:
        if name in self.inputs:
            blob = self.inputs[name]
            return self.net.fed[blob].reshape(blob.shape)
        blob = self._blobs[name]
        return self._outputs.copy(self.net.tensors[blob], blob.shape)

    def parameter(self, layer: str, index: int) -> np.ndarray:
        parameter = self.params_of[layer][index]
        return self.parameters.copy(self.net.tensor_of[parameter.owner or parameter], parameter.shape)

    @property
    def has_run(self) -> bool:
        """Whether there has been a forward, so that a script may ask for its inner blobs."""
        return self._last is not None

    def keep_parameters_of(self, before: LiveNet | FusedNet) -> None:
        """Takes over the arrays of parameters that a script may hold: they stay live."""
        self.parameters.adopt(before.parameters)

    def keep_arrays_of(self, before: FusedNet) -> None:
        """Takes over the arrays of outputs that a script may hold, if both nets have them in the same shape: they stay
        live."""
        outputs = {name: self.net.tensors[self._blobs[name]] for name in self._blobs if self._is_output(name)}
        self._outputs = before._arrays_as(outputs)

    def push(self) -> None:
        """Takes what was written into arrays of parameters. Call it before a run."""
        self._outputs.release()
        self.parameters.push()

    def pull(self) -> None:
        """Writes the values of tensors into the arrays. Call it after a run, or after a push() and another change of
        tensors."""
        self._outputs.pull()
        self.parameters.pull()

    def forward(self) -> None:
        """Runs all layers, and keeps the inputs for repeat_in()."""
        self.push()
        before = self._last or {name: np.empty_like(self.data(name)) for name in self.inputs}
        self._last = None
        for name, values in before.items():
            np.copyto(values, self.data(name))
        self.net.run_forward(Counters(self.step))
        self._outputs.pull()
        self._last = before
        self.step += 1

    def repeat_in(self, other: Net) -> None:
        """Runs the last forward again, in a net that reads the same parameters and inputs. What scripts have written
        into arrays of inputs since then stays there for the next forward."""
        if self._last is None:
            return
        of_name = {blob.name: blob for blob in other.inputs}
        now = {name: np.array(other.fed[blob]) for name, blob in of_name.items()}
        for name, blob in of_name.items():
            np.copyto(other.fed[blob], self._last[name].reshape(other.fed[blob].shape))
        try:
            other.run_forward(Counters(self.step - 1))
        finally:
            for name, blob in of_name.items():
                np.copyto(other.fed[blob], now[name])

    def arrays_for(self, other: Net) -> Views:
        """Returns the arrays of outputs that a script may hold, as arrays of another net's tensors."""
        return self._arrays_as(
            {blob.name: other.tensors[blob] for blob in other.graph.outputs if blob in other.tensors}
        )

    def _arrays_as(self, outputs: Mapping[str, Tensor]) -> Views:
        mine = {name: self.net.tensors[self._blobs[name]] for name in outputs if self._is_output(name)}
        return self._outputs.of(
            {tensor: outputs[name] for name, tensor in mine.items() if tensor.shape == outputs[name].shape}
        )
