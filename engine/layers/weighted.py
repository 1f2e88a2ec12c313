"""What Convolution and InnerProduct share: weights, and the layers behind them whose work their kernels can do."""

from __future__ import annotations

from typing import Any

from engine.layers.base import Layer


class Weighted(Layer):
    """Subclasses say in `normalises` whether weights can take over a normalisation of axis 1 of the top."""

    bf16 = True
    normalises = False
    norm: dict[str, Any] | None = None  # attributes of a BatchNorm that `absorb` has taken over
    adds = relu = False  # what else it has

    @property
    def param(self):
        raise NotImplementedError

    def attributes(self) -> dict[str, Any]:
        norm = {"norm": True, **self.norm} if self.norm else {}
        return {"bias": self.param.bias_term, "relu": self.relu, "adds": self.adds, "constant": self.constant, **norm}

    def absorb(self, following: Layer) -> bool:
        """In this order: where parameters are constant, a BatchNorm of its channels by running statistics, a Scale, and
        the addition of another blob; and in any case a ReLU without slope."""
        if self.relu or self.param.relu:
            return False
        folds = self.constant and self.normalises and not self.adds
        if following.type == "BatchNorm" and folds and not self.norm and following.use_global_stats:
            self.norm = {"eps": following.attributes()["eps"], "scale": False, "shift": False}
            self.params = self.params + following.params
        elif following.type == "Scale" and folds and self.norm and not self.norm["scale"]:
            if not following.is_per_channel:
                return False
            self.norm.update(scale=True, shift=len(following.params) == 2)
            self.params = self.params + following.params
        elif following.type == "Eltwise" and folds and following.adds_two:
            self.adds = True
            self.bottoms = self.bottoms + [blob for blob in following.bottoms if blob is not self.tops[0]]
        elif following.type == "ReLU" and following.message.relu_param.negative_slope == 0:
            self.relu = True
        else:
            return False
        return True
