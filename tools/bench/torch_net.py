"""Builds a net of engine as a PyTorch module from what describe_net.py has written. Only torch and numpy are
needed."""

import functools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

UNSEEN = ("Accuracy", "Silence")  # layers that training does not need


class TorchNet(nn.Module):
    """The module of a net. Its forward returns the sum of the weighted losses, or the last top if there is no loss.

    It saves memory and time as a careful author would: a blob is released after its last reader, layers that the text
    has in place are in place if autograd allows it, a sum is added to the result of a norm, and a Scale behind a
    BatchNorm is computed by the norm.
    """

    def __init__(self, folder: Path, layout: torch.memory_format, trains: bool):
        super().__init__()
        told = json.loads((folder / "net.json").read_text())
        arrays = np.load(folder / "arrays.npz")
        # What engine has computed without Dropout: the loss, and the lengths of gradients.
        self.wanted: float | None = told["loss"]
        self.wanted_gradients: dict[str, float] = told["gradients"]
        self.drops = False
        self.inputs = {name: laid_out(torch.from_numpy(arrays[name]), layout) for name in told["inputs"]}
        self.batch_size = len(self.inputs[told["inputs"][0]])
        self.values, self.names = nn.ParameterList(), []
        self.steps: list[Step] = []
        readers = Counter(blob for layer in told["layers"] for blob in layer["bottoms"])
        for layer in told["layers"]:
            if layer["type"] in UNSEEN:
                continue
            own = []
            while (name := f"{layer['name']}/{len(own)}") in arrays:
                own.append(laid_out(torch.from_numpy(arrays[name]), layout))
            before = self.steps[-1] if self.steps else None
            if layer["type"] == "Scale" and before and before.takes_scale(layer, readers):
                before.tops, before.params = layer["tops"], self.learned(layer, own)
            elif layer["type"] == "BatchNorm":
                self.steps.append(Norm(layer, own[:3], self.learned(layer, own[3:], 3), trains))
            else:
                self.steps.append(Step(layer, self.learned(layer, own), trains))
        last = {blob: number for number, step in enumerate(self.steps) for blob in step.bottoms}
        for number, step in enumerate(self.steps):
            step.done = [blob for blob in set(step.bottoms) - set(step.tops) if last[blob] == number]
        unread: set[str] = set()  # results of norms that no layer has read: a norm's backward does not need its result
        for step in self.steps:
            free = [blob in unread and blob in step.done for blob in step.bottoms]
            step.adds_to = free.index(True) if True in free else None
            unread -= {*step.bottoms, *step.tops}
            unread |= set(step.tops if isinstance(step, Norm) else ())

    def learned(self, layer: dict, own: list[torch.Tensor], begin: int = 0) -> list[nn.Parameter]:
        """Adds parameters of a layer to the module, and returns them. begin: the index of the first in its layer."""
        first = len(self.values)
        self.values.extend(nn.Parameter(values) for values in own)
        self.names += [f"{layer['name']}/{number}" for number in range(begin, begin + len(own))]
        return list(self.values[first:])

    def gradients(self) -> dict[str, float]:
        """Returns the lengths of all gradients, by LAYER/NUMBER."""
        pairs = zip(self.names, self.values, strict=True)
        return {name: values.grad.norm().item() for name, values in pairs if values.grad is not None}

    def narrow(self) -> None:
        """Converts to bf16, once for all, the parameters that autocast would convert at every forward."""
        for step in self.steps:
            if step.op in (convolution, deconvolution, inner_product):
                step.params = [values.detach().bfloat16() for values in step.params]

    def forward(self) -> torch.Tensor:
        blobs, losses, top = dict(self.inputs), [], None
        for step in self.steps:
            step.drops = self.drops
            tops = step.run(*[blobs[name] for name in step.bottoms])
            for name in step.done:
                del blobs[name]
            tops = tops if isinstance(tops, (tuple, list)) else (tops,)
            blobs.update(zip(step.tops, tops, strict=False))
            losses += [weight * top.sum() for top, weight in zip(tops, step.loss_weights, strict=False) if weight]
            top = tops[0]
        return sum(losses[1:], losses[0]) if losses else top


def laid_out(values: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return values.contiguous(memory_format=layout) if values.ndim == 4 else values


class Step:
    """One layer. run(*bottoms) returns its top, or its tops."""

    def __init__(self, layer: dict, params: list[torch.Tensor], trains: bool):
        if layer["type"] not in OPS:
            raise SystemExit(f"torch_net.py does not know {layer['type']}, the type of layer '{layer['name']}'")
        self.bottoms, self.tops, self.loss_weights = layer["bottoms"], layer["tops"], layer["loss_weights"]
        self.params, self.text, self.trains = params, layer["param"], trains
        self.bottom_shapes = layer["shapes"][: len(self.bottoms)]
        self.top_shape = layer["shapes"][len(self.bottoms)]
        self.in_place = self.bottoms == self.tops
        self.op = OPS[layer["type"]]
        self.done: list[str] = []
        self.drops = True
        self.adds_to: int | None = None  # the bottom that a sum may overwrite

    def run(self, *bottoms: torch.Tensor):
        return self.op(self, *bottoms)

    def takes_scale(self, layer: dict, readers: Counter) -> bool:
        """Returns whether this step can compute `layer`, a Scale behind it. readers: how many layers read each blob."""
        return False

    def get(self, name: str, default):
        return self.text.get(name, default)

    def sides(self, name: str, default: int, short: str = "") -> tuple[int, ...]:
        """Returns (height, width) of kernel_size, stride, pad or dilation, given in any of Caffe's ways."""
        short = short or name
        if f"{short}_h" in self.text or f"{short}_w" in self.text:
            return self.text.get(f"{short}_h", default), self.text.get(f"{short}_w", default)
        given = self.text.get(name, default)
        given = given if isinstance(given, list) else [given]
        return tuple(given) if len(given) > 1 else (given[0], given[0])


class Norm(Step):
    """A BatchNorm, with the Scale behind it if there is one."""

    def __init__(self, layer: dict, statistics: list[torch.Tensor], params: list[torch.Tensor], trains: bool):
        super().__init__(layer, params, trains)
        self.mean, self.variance, factor = statistics
        self.of_batch = trains and not layer["param"].get("use_global_stats", False)
        if not self.of_batch and factor.item():
            self.mean, self.variance = self.mean / factor, self.variance / factor

    def takes_scale(self, layer: dict, readers: Counter) -> bool:
        alone = layer["tops"] == self.tops or readers[self.tops[0]] == 1
        return layer["bottoms"] == self.tops and not self.params and alone and layer["param"].get("axis", 1) == 1


def batch_norm(step: Norm, x):
    weight, bias = (*step.params, None, None)[:2]
    return F.batch_norm(x, step.mean, step.variance, weight, bias, step.of_batch, 0.05, step.get("eps", 1e-5))


def window(step: Step) -> dict:
    return {"stride": step.sides("stride", 1), "padding": step.sides("pad", 0)}


def convolution(step: Step, x):
    weight, bias = (*step.params, None)[:2]
    groups = step.get("group", step.bottom_shapes[0][1] if "Depthwise" in step.text.get("type", "") else 1)
    return F.conv2d(x, weight, bias, dilation=step.sides("dilation", 1), groups=groups, **window(step))


def deconvolution(step: Step, x):
    weight, bias = (*step.params, None)[:2]
    more = {"dilation": step.sides("dilation", 1), "groups": step.get("group", 1)}
    return F.conv_transpose2d(x, weight, bias, **more, **window(step))


def pooling(step: Step, x):
    average = step.get("pool", "MAX") == "AVE"
    if step.get("global_pooling", False):
        return F.adaptive_avg_pool2d(x, 1) if average else F.adaptive_max_pool2d(x, 1)
    size, up = step.sides("kernel_size", 1, "kernel"), step.get("round_mode", "CEIL") == "CEIL"
    return (F.avg_pool2d if average else F.max_pool2d)(x, size, ceil_mode=up, **window(step))


def inner_product(step: Step, x):
    weight, bias = (*step.params, None)[:2]
    return F.linear(x.flatten(step.get("axis", 1)), weight, bias)


def scale(step: Step, x, *factors):
    factor, *bias = (*factors, *step.params)
    axis = step.get("axis", 1)

    def spread(values):
        return values.reshape([1] * axis + list(values.shape) + [1] * (x.ndim - axis - values.ndim))

    x = x * spread(factor)
    return x + spread(bias[0]) if bias else x


def relu(step: Step, x):
    slope = step.get("negative_slope", 0)
    return F.leaky_relu(x, slope, inplace=step.in_place) if slope else F.relu(x, inplace=step.in_place)


def lrn(step: Step, x):
    return F.local_response_norm(
        x, step.get("local_size", 5), step.get("alpha", 1.0), step.get("beta", 0.75), step.get("k", 1.0)
    )


def dropout(step: Step, x):
    return F.dropout(x, step.get("dropout_ratio", 0.5), step.trains and step.drops)


def eltwise(step: Step, *bottoms):
    factors, kind = step.get("coeff", []), step.get("operation", "SUM")
    if any(factor != 1 for factor in factors):
        bottoms = [factor * x for factor, x in zip(factors, bottoms, strict=True)]
    elif kind == "SUM" and step.adds_to is not None:
        first, *others = bottoms[step.adds_to], *bottoms[: step.adds_to], *bottoms[step.adds_to + 1 :]
        return functools.reduce(lambda x, y: x.add_(y), others, first)
    return functools.reduce({"PROD": torch.mul, "MAX": torch.maximum}.get(kind, torch.add), bottoms)


def slices(step: Step, x):
    axis, points = step.get("axis", 1), step.get("slice_point", [])
    return x.tensor_split(points or len(step.tops), axis)


def crop(step: Step, x, like):
    axis, offsets = step.get("axis", 2), step.get("offset", [0])
    for i in range(axis, x.ndim):
        offset = offsets[i - axis] if len(offsets) > 1 else offsets[0]
        x = x.narrow(i, offset, like.shape[i])
    return x


def softmax_loss(step: Step, scores, labels):
    ignored = step.get("ignore_label", -100)
    shape = scores.shape[:1] + scores.shape[2:]
    return F.cross_entropy(scores, labels.reshape(shape).long(), ignore_index=ignored)


def power(step: Step, x):
    x = step.get("scale", 1.0) * x + step.get("shift", 0.0)
    return x ** step.text["power"] if step.get("power", 1.0) != 1 else x


OPS = {
    "Axpy": lambda step, a, x, y: torch.addcmul(y, a, x),
    "BatchNorm": batch_norm,
    "Concat": lambda step, *x: torch.cat(x, step.get("axis", 1)),
    "Convolution": convolution,
    "ConvolutionDepthwise": convolution,
    "Crop": crop,
    "Deconvolution": deconvolution,
    "Dropout": dropout,
    "ELU": lambda step, x: F.elu(x, step.get("alpha", 1.0)),
    "Eltwise": eltwise,
    "Flatten": lambda step, x: x.flatten(1),
    "InnerProduct": inner_product,
    "Interp": lambda step, x: F.interpolate(x, step.top_shape[2:], mode="bilinear", align_corners=True),
    "LRN": lrn,
    "Permute": lambda step, x: x.permute(step.get("order", [])),
    "Pooling": pooling,
    "Power": power,
    "PReLU": lambda step, x: F.prelu(x, step.params[0]),
    "ReLU": relu,
    "ReLU6": lambda step, x: F.relu6(x, inplace=step.in_place),
    "Reshape": lambda step, x: x.reshape(step.top_shape),
    "Scale": scale,
    "ShuffleChannel": lambda step, x: torch.channel_shuffle(x, step.get("group", 1)),
    "Sigmoid": lambda step, x: torch.sigmoid(x),
    "Slice": slices,
    "Softmax": lambda step, x: F.softmax(x, step.get("axis", 1)),
    "SoftmaxWithLoss": softmax_loss,
    "Swish": lambda step, x: F.silu(x, inplace=step.in_place),
    "TanH": lambda step, x: torch.tanh(x),
    "Upsample": lambda step, x: F.interpolate(x, step.top_shape[2:]),
}
