"""The net behind a caffe.Net, which is built again while a script uses it: for other shapes, for the weights of another
net, or to keep inner blobs. Arrays that the script holds stay live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from engine import proto
from engine.caffe.fused import FusedNet, may_fuse
from engine.caffe.inputs import FedBySolver, Inputs
from engine.caffe.live import LiveNet
from engine.config import NetConfig
from engine.errors import EngineError
from engine.host.interrupts import delaying_interrupt
from engine.layers.base import Layer, Parameter
from engine.layers.python import Python, ShapesChanged
from engine.layers.python_layer import Memory, Shape
from engine.net import Counters, Net, NetOptions

Rebuild = Callable[[NetConfig, bool], Net]
AroundLayer = Callable[[str, int], None]  # takes when ("before_forward" and so on) and the layer's index in `layers`


class ChangingNet:
    """Runs as a FusedNet as long as that will do, then as a LiveNet (`live`).

    now: the net that it is at first, and config: what that was built from. rebuild: builds a solver's net again; None
    for a net that a script has made. `input_names`: the names of the blobs of Input layers.
    """

    def __init__(
        self,
        now: FusedNet | LiveNet,
        config: NetConfig,
        inputs: Inputs | FedBySolver,
        rebuild: Rebuild | None = None,
    ):
        self._now = now  # read once where it matters: another thread may set it meanwhile
        self._config, self._inputs, self._rebuild = config, inputs, rebuild
        self.input_names = [top.name for layer in now.layers if layer.type == "Input" for top in layer.tops]
        self._pending: dict[str, np.ndarray] = {}  # inputs of another shape than the net's: name -> values
        self._memory: dict[str, Memory] = {}  # by name, of inputs that were reshaped
        self._looking = threading.RLock()  # held while a fused net is replaced by a LiveNet

    @classmethod
    def of_script(cls, config: NetConfig, seed: int) -> ChangingNet:
        """Builds the net that a script asks for. seed: of fillers and randomness; it stays when shapes change. Raises
        ConfigErrors."""
        phase = config.message.state.phase
        inputs, fused = Inputs(config, phase, seed), may_fuse(config, phase)
        net = _net_of_script(config, inputs, seed, fused)
        return cls(FusedNet(net) if fused else LiveNet(net), config, inputs)

    @classmethod
    def of_solver(
        cls, net: Net, config: NetConfig, inputs: FedBySolver, rebuild: Rebuild, train: ChangingNet | None = None
    ) -> ChangingNet:
        """Takes a net that a solver has built, and builds again by rebuild(config, strict).

        train: for a test net, the net whose parameters it reads."""
        return cls(LiveNet(net, train and train.live), config, inputs, rebuild)

    # What it is now

    @property
    def net(self) -> Net:
        return self._now.net

    @property
    def live(self) -> LiveNet:
        """The net with every blob; ends the fused net."""
        self._look_inside()
        return cast(LiveNet, self._now)

    @property
    def layers(self) -> list[Layer]:
        """The layers of the file, in order."""
        return self._now.layers

    @property
    def is_of_solver(self) -> bool:
        return self._rebuild is not None

    @property
    def path(self) -> str:
        """The path of the net's file."""
        return self._config.path

    def names(self) -> list[str]:
        """Returns the names of its blobs, in the order in which the net makes them."""
        return self._now.names()

    def shape(self, name: str) -> Shape:
        return self._pending[name].shape if name in self._pending else self._now.shape(name)

    def data(self, name: str) -> np.ndarray:
        if name in self._pending:
            return self._pending[name]
        return self._now.data(name) if self._shows(name) else self.live.data(name)

    def diff(self, name: str) -> np.ndarray:
        if name in self._pending:
            self._apply_pending(strict=False)
        return self.live.diff(name)

    def _shows(self, name: str) -> bool:
        """Returns whether the net, as it is now, has the values of a blob: a fused net has those of few."""
        now = self._now
        return isinstance(now, LiveNet) or now.shows(name)

    @property
    def params_of(self) -> dict[str, list[Parameter]]:
        """Parameters by the name of their layer."""
        return self._now.params_of

    def parameter(self, layer: str, index: int) -> np.ndarray:
        return self._now.parameter(layer, index)

    # Running

    def set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Feeds the first MemoryData layer from arrays: see Inputs.set_arrays()."""
        self._inputs.set_arrays(self.net, data, labels)

    def forward(self, first: int, last: int, wanted: Iterable[str], call_back: AroundLayer | None) -> None:
        """Runs layers first to last, both included, on the next batch of their data, in the shapes that the inputs have
        now. wanted: the blobs that the caller looks at afterwards. call_back: called before and after each layer."""
        if call_back or (first, last) != (0, len(self.layers) - 1) or not all(map(self._shows, wanted)):
            self._look_inside()
        self._apply_pending(strict=False)
        now = self._now
        counters = self._inputs.next(now.net, now.layers[first : last + 1])
        if isinstance(now, FusedNet):
            now.forward()
        elif call_back:
            self._forward_one_by_one(first, last, counters or Counters(now.step), call_back)
        else:
            self._forward(first, last, counters)

    def _forward(self, first: int, last: int, counters: Counters | None) -> None:
        """Runs layers, and builds the net again each time a layer written in Python gives its tops other shapes."""
        while True:
            try:
                return self.live.forward(first, last, counters)
            except ShapesChanged as change:
                self.follow(change, first)

    def _forward_one_by_one(self, first: int, last: int, counters: Counters, call_back: AroundLayer) -> None:
        step = self.live.step
        try:
            for layer in range(first, last + 1):
                call_back("before_forward", layer)
                self._forward(layer, layer, counters)
                call_back("after_forward", layer)
        finally:
            self.live.step = step + 1  # all layers are one pass, also if a callback raises

    def backward(self, first: int, last: int, call_back: AroundLayer | None) -> None:
        """Runs layers first down to last, both included, backward. call_back: as in forward()."""
        self.live.refuse_misfits(last, first)  # before gradients change
        if not call_back:
            return self.live.backward(first, last)
        for layer in range(first, last - 1, -1):
            call_back("before_backward", layer)
            self.live.backward(layer, layer)
            call_back("after_backward", layer)

    # Changes

    def reshape_input(self, name: str, shape: Shape) -> None:
        """Gives an input another shape, which the net takes at the next reshape() or forward(). Its values stay, as
        Memory tells. Raises EngineError for a blob that is no input."""
        if shape == self.shape(name):
            return
        if name not in self.input_names:
            inputs = ", ".join(self.input_names)
            raise EngineError(f"blob '{name}': only inputs ({inputs}) can be reshaped; others follow")
        self._pending[name] = self._memory.setdefault(name, Memory()).reshaped(self.data(name), shape)

    def reshape(self) -> None:
        """Gives all blobs the shapes that follow from the inputs'. Raises ConfigErrors of layers that do not fit."""
        self._apply_pending(strict=True)
        if isinstance(self._now, LiveNet):  # a fused one fits
            self._now.refuse_misfits(0, len(self.layers) - 1)  # left by a forward() before, which is not strict

    def _apply_pending(self, strict: bool) -> None:
        """Builds the net again if inputs have other shapes than it was built for. strict: as in _replace()."""
        if not self._pending:
            return
        message = proto.NetParameter()
        message.CopyFrom(self._config.message)
        names = self.names()
        for layer in message.layer:
            if layer.type == "Input":
                del layer.input_param.shape[:]
                for top in layer.top:
                    layer.input_param.shape.add(dim=self.shape(top) if top in names else ())
        self._replace(self._config.with_message(message), self._now, strict)

    def follow(self, change: ShapesChanged, first: int = 0) -> None:
        """Builds the net for the shapes that a forward from layer `first` on has found. In the next forward, layers
        written in Python that have run already give the same tops again, so that those that read data skip none."""
        culprit = self.live.layers.index(change.layer)
        for layer in self.live.layers[first : culprit + 1]:
            if isinstance(layer, Python):
                layer.repeat()
        self._replace(self._config, self.live)

    def share_with(self, other: ChangingNet) -> None:
        """Reads the weights of `other`'s layers of the same names from now on. Raises EngineError for a net of a solver
        that does not do so already."""
        if self._rebuild:
            mine, its = ({tensor.origin for tensor in net.live.net.tensor_of.values()} for net in (self, other))
            if mine <= its:
                return
            raise EngineError("a solver has built this net with its own weights; copy them with copy_from()")
        self._look_inside()  # neither net could tell when the other changes the weights
        self._replace(self._config, other.live)

    def push(self) -> Net:
        """Takes what was written into arrays of parameters into the net, and returns that."""
        if self._now.parameters.changed():
            self._keep_last_forward()
        self._now.push()
        return self.net

    def push_before_change(self) -> Net:
        """Does the same before the caller loads other weights into the net; the caller then calls pull()."""
        self._keep_last_forward()
        return self.push()

    def pull(self) -> None:
        """Lets arrays of parameters show the weights that have gone into the net."""
        self._now.pull()

    def _keep_last_forward(self) -> None:
        """Ends a fused net that has run: with other weights, the inner blobs of its last forward could not be computed
        any more."""
        now = self._now
        if isinstance(now, FusedNet) and now.has_run:
            self._look_inside()

    def _look_inside(self) -> None:
        """Replaces the fused net, if it still is one, by a LiveNet with the blobs of the last forward."""
        if isinstance(self._now, LiveNet):
            return
        with self._looking, delaying_interrupt():
            fused = self._now
            if isinstance(fused, LiveNet):  # another thread has been here
                return
            live = LiveNet(self._build(self._config, False, fused.net), fused)
            live.take_place_of(fused)
            self._now = live

    def _replace(self, config: NetConfig, share: LiveNet | FusedNet, strict: bool = False) -> None:
        """Builds the net again, with the weights of `share` and the arrays of blobs whose shapes stay.

        strict: raises ConfigErrors for layers that do not fit; else forward() raises when it comes to one. A fused net
        is always strict."""
        before, pending = self._now, self._pending
        before.push()
        share.push()
        fused = isinstance(before, FusedNet)
        if self._rebuild:
            net = self._rebuild(config, strict)
        else:
            net = self._build(config, fused, share.net, strict or fused)
        self._config = config
        after = self._now = FusedNet(net, share) if fused else LiveNet(net, share)
        after.keep_parameters_of(before)
        after.keep_arrays_of(cast(Any, before))  # a net of the same kind
        after.step = before.step
        arrays = {blob.name: before.net.fed[blob] for blob in before.net.inputs} | pending
        for blob in net.inputs:
            if blob.name in arrays and arrays[blob.name].shape == blob.shape:
                net.feed(blob, arrays[blob.name])
        self._pending = {name: array for name, array in pending.items() if array.shape != after.shape(name)}

    def _build(self, config: NetConfig, fused: bool, share: Net, strict: bool = True) -> Net:
        """Builds a net of a script, in place of the present one."""
        inputs = cast(Inputs, self._inputs)
        return _net_of_script(config, inputs, self.net.seed, fused, share=share, before=self.net, strict=strict)


def _net_of_script(
    config: NetConfig,
    inputs: Inputs,
    seed: int,
    fused: bool,
    share: Net | None = None,
    before: Net | None = None,
    strict: bool = True,
) -> Net:
    options = NetOptions(seed=seed, shapes_of=inputs.shapes_of, accumulate=True, gradients=False)
    if not fused:
        options = options.replace(gradients=True).watched()
    net = Net(config, config.message.state.phase, options, share=share, before=before, strict=strict)
    inputs.connect(net)
    return net
