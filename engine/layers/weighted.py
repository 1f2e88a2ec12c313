"""The base of Convolution and InnerProduct: layers with weights, which can absorb layers that follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from engine.layers import model_parallel
from engine.layers.base import Attributes, Layer
from engine.layers.model_parallel import Part

if TYPE_CHECKING:
    from engine import proto
    from engine.layers.batch_norm import BatchNorm
    from engine.layers.builder import Builder
    from engine.layers.eltwise import Eltwise
    from engine.layers.elu import ELU
    from engine.layers.scale import Scale

# The activations that kernels can apply to what they write: oneDNN's name, alpha and beta. They are 0 at 0, so that the
# padding of layouts stays 0, and their gradient follows from their result, as it does if alpha is 0 or more.
ACTIVATIONS = {
    "ELU": lambda message: ("elu", message.elu_param.alpha, 0.0),
    "ReLU": lambda message: ("relu", message.relu_param.negative_slope, 0.0),
    "ReLU6": lambda message: ("clip", 0.0, 6.0),
    "TanH": lambda message: ("tanh", 0.0, 0.0),
}


class Weighted(Layer):
    """normalises: whether the weights of a type can take over a normalisation of axis 1 of the top."""

    bf16 = True
    normalises = False
    # What `absorb` has taken over: the attributes of a BatchNorm, an addition, an entry of ACTIVATIONS.
    norm: Attributes | None = None
    adds = False
    activation: tuple[str, float, float] | None = None

    @property
    def param(self) -> proto.ConvolutionParameter | proto.InnerProductParameter:
        raise NotImplementedError

    def attributes(self) -> Attributes:
        norm = {"norm": True, **self.norm} if self.norm else {}
        activation = dict(zip(("activation", "alpha", "beta"), self.activation)) if self.activation else {}
        return {"bias": self.param.bias_term, "adds": self.adds, "constant": self.constant, **activation, **norm}

    def lower_part(self, builder: Builder, part: Part) -> None:
        """Adds the ops of a layer of which this rank holds a part of the outputs."""
        top, count = self.tops[0], part.count
        every = model_parallel.gather(builder, self, builder.tensor(self.bottoms[0]), part)
        shape = (count * top.shape[0], top.shape[1] // count, *top.shape[2:])
        mine = builder.op(self.type, self, [every], self.attributes(), tops=[], shapes=[shape])[0]
        model_parallel.exchange(builder, self, mine, part, top)

    def absorb(self, following: Layer) -> bool:
        """Takes over, in this order: if parameters are constant, a BatchNorm of its channels by running statistics, a
        Scale, and the addition of another blob; and in any case one of ACTIVATIONS."""
        if self.part or self.activation or self.param.relu:
            return False
        folds = self.constant and self.normalises and not self.adds
        # With another bottom, the BatchNorm has absorbed a sum itself, and this layer's top is the other term of it.
        normalises = following.type == "BatchNorm" and following.bottoms == [self.tops[0]]
        if normalises and folds and not self.norm and cast("BatchNorm", following).use_global_stats:
            norm = following.attributes()
            self.norm = {name: norm[name] for name in ("eps", "scale", "shift")}
            self.params = self.params + following.params
            if norm["relu"]:  # Intel's ReLU within BatchNorm
                self.activation = ("relu", 0.0, 0.0)
        elif following.type == "Scale" and folds and self.norm and not self.norm["scale"]:
            if not cast("Scale", following).is_per_channel:
                return False
            self.norm.update(scale=True, shift=len(following.params) == 2)
            self.params = self.params + following.params
        elif following.type == "Eltwise" and folds and cast("Eltwise", following).adds_two:
            self.adds = True
            self.bottoms = self.bottoms + [blob for blob in following.bottoms if blob is not self.tops[0]]
        else:
            return self._absorb_activation(following)
        return True

    def _absorb_activation(self, following: Layer) -> bool:
        """Takes over one of ACTIVATIONS, if its gradient follows from its result. Returns whether it has."""
        if following.type not in ACTIVATIONS:
            return False
        activation = ACTIVATIONS[following.type](following.message)
        if activation[1] < 0 or (following.type == "ELU" and cast("ELU", following).factor != 1):
            return False
        self.activation = activation
        return True
