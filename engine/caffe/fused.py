"""A net of phase TEST as it runs fastest, and of which a script sees inputs, outputs and parameters only.

caffe.Net begins with it, where layers allow, and goes over to a LiveNet as soon as somebody looks at anything else. All
arrays that it hands out are copies, which that LiveNet takes over: they stay live.
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
    """Whether a forward can be repeated to see what it has computed: no layer leaves anything behind but its tops, such
    as other weights, and none works in place on an input. A file that asks for gradients (force_backward) is of
    somebody who looks inside."""
    if phase != proto.TEST or config.message.force_backward:
        return False
    layers = test_layers(config)
    made = Counter(top for layer in layers for top in layer.top)
    if any(made[top] > 1 for layer in layers if not layer.bottom for top in layer.top):
        return False
    found = (layer_type(each.type, each.name, config.path)(each, config.path, phase) for each in layers)
    return not any(layer.remembers or layer.rescales_weights for layer in found)


class FusedNet:
    """What it does, a LiveNet does under the same name. `shares`: the net whose parameters it reads.

    `layers` are those of the file, `inputs` the blobs that come from outside, by name.
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
        """Whether data() has this blob."""
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
        """Whether there are values of inner blobs that somebody may ask for."""
        return self._last is not None

    def keep_parameters_of(self, before: LiveNet | FusedNet) -> None:
        """Arrays of parameters that the caller may hold stay live."""
        self.parameters.adopt(before.parameters)

    def keep_arrays_of(self, before: FusedNet) -> None:
        """Arrays of outputs that the caller may hold stay live, of those whose shapes both nets have."""
        outputs = {name: self.net.tensors[self._blobs[name]] for name in self._blobs if self._is_output(name)}
        self._outputs = before._arrays_as(outputs)

    def push(self) -> None:
        """Before a run: takes what was written into arrays of parameters."""
        self._outputs.release()
        self.parameters.push()

    def pull(self) -> None:
        """After a run, or after another change of tensors that followed a push()."""
        self._outputs.pull()
        self.parameters.pull()

    def forward(self) -> None:
        """All layers."""
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
        """Runs the last forward again in a net that reads the same parameters and inputs; what scripts have written
        into arrays since then stays for the next one."""
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
        """The arrays of outputs that somebody may hold, as those of another net's tensors."""
        return self._arrays_as(
            {blob.name: other.tensors[blob] for blob in other.graph.outputs if blob in other.tensors}
        )

    def _arrays_as(self, outputs: Mapping[str, Tensor]) -> Views:
        mine = {name: self.net.tensors[self._blobs[name]] for name in outputs if self._is_output(name)}
        return self._outputs.of(
            {tensor: outputs[name] for name, tensor in mine.items() if tensor.shape == outputs[name].shape}
        )
