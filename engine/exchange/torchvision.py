"""Makes Caffe nets of the state dictionaries of torchvision's classifiers: ResNet (ResNeXt and Wide ResNet, too), VGG,
DenseNet, GoogLeNet, Inception-v3, MobileNet-v2.

Layers have the names of torchvision's modules, so that `engine export --torch` gives back the same dictionary. The
weights tell the sizes and numbers of blocks; strides and padding are known by architecture. Nets end in scores, as
torchvision's do. Auxiliary classifiers, which are for training only, are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.errors import WeightsError, shape_text
from engine.exchange.net_maker import NetMaker
from engine.layers.base import Blob

State = Mapping[str, np.ndarray]
Wanted = tuple[int | None, ...]  # a shape, in which None is any size but 0
Pair = int | tuple[int, int]  # one number for height and width, or two
_SHOWN = 5  # the most tensors that a message lists


class Modules:
    """Adds the layers of torchvision's modules, with their weights, to a net.

    Methods that add layers take their bottoms and return the last top. They raise WeightsError if weights are missing
    or do not fit.

    Args:
        eps: of the architecture's BatchNorms.
    """

    def __init__(self, maker: NetMaker, state: State, eps: float):
        self.maker, self.state, self.eps = maker, state, eps
        self.placed: set[str] = set()  # names of the tensors that the net has so far

    def has(self, name: str) -> bool:
        """Returns whether there is a module of that name with weights of its own."""
        return f"{name}.weight" in self.state

    def tensor(self, name: str, shape: Wanted) -> np.ndarray:
        """Returns a tensor, and notes that the net has it. Raises WeightsError if it is missing or has another
        shape."""
        if name not in self.state:
            raise WeightsError(f"has no '{name}', which its architecture needs", self.maker.source)
        found = self.state[name].shape
        if len(found) != len(shape) or any(size != (want or size or -1) for size, want in zip(found, shape)):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise WeightsError(
                f"'{name}' has the shape {found}, expected for {self.maker.message.name} ({expected})",
                self.maker.source,
            )
        self.placed.add(name)
        return self.state[name]

    def conv(
        self, name: str, x: Blob, stride: int = 1, pad: Pair = 0, *, kernel: int | None = None, group: int | None = 1
    ) -> Blob:
        """Adds a Convolution.

        Args:
            kernel: its size; by default 2 pad + 1, which keeps height and width at stride 1.
            group: None stands for as many as the shape of the weights tells.
        """
        pads = pad if isinstance(pad, tuple) else (pad, pad)
        sides = (kernel, kernel) if kernel else (2 * pads[0] + 1, 2 * pads[1] + 1)
        weights = self.tensor(f"{name}.weight", (None, x.shape[1] // group if group else None, *sides))
        if x.shape[1] % weights.shape[1]:
            raise WeightsError(
                f"'{name}.weight' has the shape {weights.shape}, for groups of {weights.shape[1]} of {x.shape[1]} "
                "channels",
                self.maker.source,
            )
        param: dict[str, Any] = {"num_output": len(weights)}
        if sides[0] == sides[1]:
            param["kernel_size"] = [sides[0]]
        else:
            param["kernel_h"], param["kernel_w"] = sides
        if isinstance(pad, tuple):
            param["pad_h"], param["pad_w"] = pad
        elif pad:
            param["pad"] = [pad]
        groups = x.shape[1] // weights.shape[1]
        param |= {"stride": [stride]} if stride > 1 else {}
        param |= {"group": groups} if groups > 1 else {}
        arrays = [weights]
        if f"{name}.bias" in self.state:
            arrays.append(self.tensor(f"{name}.bias", (len(weights),)))
        else:
            param["bias_term"] = False
        return self.maker.layer(name, "Convolution", [x], arrays, convolution_param=param)

    def norm(self, name: str, x: Blob, in_place: bool = True) -> Blob:
        mean, variance, *affine = (
            self.tensor(f"{name}.{each}", (x.shape[1],)) for each in ("running_mean", "running_var", "weight", "bias")
        )
        param = {} if self.eps == 1e-5 else {"eps": self.eps}
        y = self.maker.layer(
            name, "BatchNorm", [x], [mean, variance, np.ones(1)], in_place=in_place, batch_norm_param=param
        )
        self.placed.add(f"{name}.num_batches_tracked")  # no layer of Caffe has this, and none needs it
        return self.maker.layer(f"{name}/scale", "Scale", [y], affine, in_place=True, scale_param={"bias_term": True})

    def relu(self, x: Blob, type: str = "ReLU") -> Blob:
        return self.maker.layer(f"{x.name}/relu", type, [x], in_place=True)

    def conv_norm(
        self,
        conv: str,
        norm: str,
        x: Blob,
        stride: int = 1,
        pad: Pair = 0,
        *,
        kernel: int | None = None,
        group: int | None = 1,
    ) -> Blob:
        return self.norm(norm, self.conv(conv, x, stride, pad, kernel=kernel, group=group))

    def basic(self, name: str, x: Blob, stride: int = 1, pad: Pair = 0, *, kernel: int | None = None) -> Blob:
        """Adds a BasicConv2d of GoogLeNet and Inception-v3."""
        return self.relu(self.conv_norm(f"{name}.conv", f"{name}.bn", x, stride, pad, kernel=kernel))

    def max_pool(self, name: str, x: Blob, kernel: int, stride: int, pad: int = 0, up: bool = False) -> Blob:
        """Adds a max pooling. up: PyTorch's ceil_mode, which is how Caffe rounds by default."""
        param = {"kernel_size": kernel, "stride": stride} | ({"pad": pad} if pad else {})
        return self._pool(name, x, {"pool": "MAX", **param}, up)

    def average_pool(self, name: str, x: Blob, kernel: int, stride: int, pad: int = 0) -> Blob:
        param = {"kernel_size": kernel, "stride": stride} | ({"pad": pad} if pad else {})
        return self._pool(name, x, {"pool": "AVE", **param}, False)

    def _pool(self, name: str, x: Blob, param: dict[str, Any], up: bool) -> Blob:
        return self.maker.layer(name, "Pooling", [x], pooling_param=param if up else {**param, "round_mode": "FLOOR"})

    def global_pool(self, name: str, x: Blob) -> Blob:
        return self.maker.layer(name, "Pooling", [x], pooling_param={"pool": "AVE", "global_pooling": True})

    def linear(self, name: str, x: Blob) -> Blob:
        weights = self.tensor(f"{name}.weight", (None, math.prod(x.shape[1:])))
        arrays = [weights, self.tensor(f"{name}.bias", (len(weights),))]
        return self.maker.layer(name, "InnerProduct", [x], arrays, inner_product_param={"num_output": len(weights)})

    def dropout(self, name: str, x: Blob, ratio: float) -> Blob:
        return self.maker.layer(name, "Dropout", [x], in_place=True, dropout_param={"dropout_ratio": ratio})

    def concat(self, name: str, parts: list[Blob]) -> Blob:
        return self.maker.layer(name, "Concat", parts)

    def sum(self, name: str, x: Blob, y: Blob) -> Blob:
        return self.maker.layer(name, "Eltwise", [x, y])


def _resnet(net: Modules, x: Blob) -> None:
    x = net.relu(net.conv_norm("conv1", "bn1", x, stride=2, pad=3))
    x = net.max_pool("maxpool", x, 3, 2, pad=1)
    for group in range(1, 5):
        block = 0
        while net.has(f"layer{group}.{block}.conv1"):
            x = _resnet_block(net, f"layer{group}.{block}", x, 2 if group > 1 and block == 0 else 1)
            block += 1
    net.linear("fc", net.global_pool("avgpool", x))


def _resnet_block(net: Modules, name: str, x: Blob, stride: int) -> Blob:
    """Adds a bottleneck of three convolutions, of which the second has the stride, or a basic block of two, of which
    the first has it."""
    deep = net.has(f"{name}.conv3")
    y = net.relu(net.conv_norm(f"{name}.conv1", f"{name}.bn1", x, 1 if deep else stride, 0 if deep else 1))
    y = net.conv_norm(f"{name}.conv2", f"{name}.bn2", y, stride if deep else 1, 1, group=None if deep else 1)
    if deep:
        y = net.conv_norm(f"{name}.conv3", f"{name}.bn3", net.relu(y))
    shortcut = x
    if net.has(f"{name}.downsample.0"):
        shortcut = net.conv_norm(f"{name}.downsample.0", f"{name}.downsample.1", x, stride)
    return net.relu(net.sum(name, y, shortcut))


def _vgg(net: Modules, x: Blob) -> None:
    """Adds a VGG. Modules are numbered: a convolution, its norm if it has one, ReLU, and in places pooling. So a gap
    before the next convolution tells where pooling is."""
    found = {name.split(".")[1] for name in net.state if name.startswith("features.")}
    numbers = {int(number) for number in found if number.isdecimal()}
    convs = [n for n in sorted(numbers) if net.has(f"features.{n}") and net.state[f"features.{n}.weight"].ndim == 4]
    for number, following in zip(convs, [*convs[1:], None]):
        x = net.conv(f"features.{number}", x, pad=1)
        normed = number + 1 in numbers and number + 1 != following
        if normed:
            x = net.norm(f"features.{number + 1}", x)
        x = net.relu(x)
        pool = number + 2 + normed
        if following is None or following > pool:
            x = net.max_pool(f"features.{pool}", x, 2, 2)
    for number in (0, 3):
        x = net.relu(net.linear(f"classifier.{number}", x))
        x = net.dropout(f"classifier.{number + 2}", x, 0.5)
    net.linear("classifier.6", x)


def _densenet(net: Modules, x: Blob) -> None:
    x = net.relu(net.conv_norm("features.conv0", "features.norm0", x, stride=2, pad=3))
    x = net.max_pool("features.pool0", x, 3, 2, pad=1)
    block = 1
    while net.has(f"features.denseblock{block}.denselayer1.norm1"):
        layer = 1
        while net.has(name := f"features.denseblock{block}.denselayer{layer}.norm1"):
            name = name.removesuffix(".norm1")
            y = net.relu(net.norm(f"{name}.norm1", x, in_place=False))
            y = net.relu(net.conv_norm(f"{name}.conv1", f"{name}.norm2", y))
            x = net.concat(name, [x, net.conv(f"{name}.conv2", y, pad=1)])
            layer += 1
        name = f"features.transition{block}"
        if net.has(f"{name}.conv"):
            x = net.conv(f"{name}.conv", net.relu(net.norm(f"{name}.norm", x)))
            x = net.average_pool(f"{name}.pool", x, 2, 2)
        block += 1
    net.linear("classifier", net.global_pool("avgpool", net.relu(net.norm("features.norm5", x))))


def _googlenet(net: Modules, x: Blob) -> None:
    x = net.max_pool("maxpool1", net.basic("conv1", x, stride=2, pad=3), 3, 2, up=True)
    x = net.basic("conv3", net.basic("conv2", x), pad=1)
    x = net.max_pool("maxpool2", x, 3, 2, up=True)
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        x = _googlenet_block(net, f"inception{name}", x)
        if name == "3b":
            x = net.max_pool("maxpool3", x, 3, 2, up=True)
        elif name == "4e":
            x = net.max_pool("maxpool4", x, 2, 2, up=True)
    x = net.dropout("dropout", net.global_pool("avgpool", x), 0.2)
    net.linear("fc", x)


def _googlenet_block(net: Modules, name: str, x: Blob) -> Blob:
    """Adds an Inception block. Its third branch has a kernel of 3, not the paper's 5: so torchvision trained it."""
    pooled = net.max_pool(f"{name}.branch4.0", x, 3, 1, pad=1, up=True)
    branches = [
        net.basic(f"{name}.branch1", x),
        net.basic(f"{name}.branch2.1", net.basic(f"{name}.branch2.0", x), pad=1),
        net.basic(f"{name}.branch3.1", net.basic(f"{name}.branch3.0", x), pad=1),
        net.basic(f"{name}.branch4.1", pooled),
    ]
    return net.concat(name, branches)


def _inception_v3(net: Modules, x: Blob) -> None:
    x = net.basic("Conv2d_1a_3x3", x, stride=2, kernel=3)
    x = net.basic("Conv2d_2b_3x3", net.basic("Conv2d_2a_3x3", x, kernel=3), pad=1)
    x = net.max_pool("maxpool1", x, 3, 2)
    x = net.basic("Conv2d_4a_3x3", net.basic("Conv2d_3b_1x1", x), kernel=3)
    x = net.max_pool("maxpool2", x, 3, 2)
    kinds: tuple[tuple[Callable[[Modules, str, Blob], list[Blob]], str], ...] = (
        (_inception_a, "5b 5c 5d"),
        (_inception_b, "6a"),
        (_inception_c, "6b 6c 6d 6e"),
        (_inception_d, "7a"),
        (_inception_e, "7b 7c"),
    )
    for block, names in kinds:
        for name in names.split():
            x = net.concat(f"Mixed_{name}", block(net, f"Mixed_{name}", x))
    net.linear("fc", net.dropout("dropout", net.global_pool("avgpool", x), 0.5))


def _pooled_branch(net: Modules, name: str, x: Blob) -> Blob:
    return net.basic(f"{name}.branch_pool", net.average_pool(f"{name}.pool", x, 3, 1, pad=1))


def _inception_a(net: Modules, name: str, x: Blob) -> list[Blob]:
    double = net.basic(f"{name}.branch3x3dbl_2", net.basic(f"{name}.branch3x3dbl_1", x), pad=1)
    return [
        net.basic(f"{name}.branch1x1", x),
        net.basic(f"{name}.branch5x5_2", net.basic(f"{name}.branch5x5_1", x), pad=2),
        net.basic(f"{name}.branch3x3dbl_3", double, pad=1),
        _pooled_branch(net, name, x),
    ]


def _inception_b(net: Modules, name: str, x: Blob) -> list[Blob]:
    double = net.basic(f"{name}.branch3x3dbl_2", net.basic(f"{name}.branch3x3dbl_1", x), pad=1)
    return [
        net.basic(f"{name}.branch3x3", x, stride=2, kernel=3),
        net.basic(f"{name}.branch3x3dbl_3", double, stride=2, kernel=3),
        net.max_pool(f"{name}.pool", x, 3, 2),
    ]


def _inception_c(net: Modules, name: str, x: Blob) -> list[Blob]:
    seven = net.basic(f"{name}.branch7x7_2", net.basic(f"{name}.branch7x7_1", x), pad=(0, 3))
    double = net.basic(f"{name}.branch7x7dbl_1", x)
    for number, pad in ((2, (3, 0)), (3, (0, 3)), (4, (3, 0)), (5, (0, 3))):
        double = net.basic(f"{name}.branch7x7dbl_{number}", double, pad=pad)
    return [
        net.basic(f"{name}.branch1x1", x),
        net.basic(f"{name}.branch7x7_3", seven, pad=(3, 0)),
        double,
        _pooled_branch(net, name, x),
    ]


def _inception_d(net: Modules, name: str, x: Blob) -> list[Blob]:
    seven = net.basic(f"{name}.branch7x7x3_2", net.basic(f"{name}.branch7x7x3_1", x), pad=(0, 3))
    seven = net.basic(f"{name}.branch7x7x3_3", seven, pad=(3, 0))
    return [
        net.basic(f"{name}.branch3x3_2", net.basic(f"{name}.branch3x3_1", x), stride=2, kernel=3),
        net.basic(f"{name}.branch7x7x3_4", seven, stride=2, kernel=3),
        net.max_pool(f"{name}.pool", x, 3, 2),
    ]


def _inception_e(net: Modules, name: str, x: Blob) -> list[Blob]:
    def both(stem: str, y: Blob) -> Blob:
        """Adds two convolutions of the same blob, one along the width and one along the height."""
        tops = [net.basic(f"{stem}a", y, pad=(0, 1)), net.basic(f"{stem}b", y, pad=(1, 0))]
        return net.concat(f"{stem}ab", tops)

    double = net.basic(f"{name}.branch3x3dbl_2", net.basic(f"{name}.branch3x3dbl_1", x), pad=1)
    return [
        net.basic(f"{name}.branch1x1", x),
        both(f"{name}.branch3x3_2", net.basic(f"{name}.branch3x3_1", x)),
        both(f"{name}.branch3x3dbl_3", double),
        _pooled_branch(net, name, x),
    ]


# The number of MobileNet-v2's blocks, and those of them that have a stride of 2 (Sandler et al. 2018, table 2).
BLOCKS, STRIDED = 17, frozenset({2, 4, 7, 14})


def _mobilenet_v2(net: Modules, x: Blob) -> None:
    x = net.relu(net.conv_norm("features.0.0", "features.0.1", x, stride=2, pad=1), "ReLU6")
    for block in range(1, BLOCKS + 1):
        x = _inverted_residual(net, f"features.{block}", x, 2 if block in STRIDED else 1)
    last = f"features.{BLOCKS + 1}"
    x = net.relu(net.conv_norm(f"{last}.0", f"{last}.1", x), "ReLU6")
    net.linear("classifier.1", net.dropout("classifier.0", net.global_pool("avgpool", x), 0.2))


def _inverted_residual(net: Modules, name: str, x: Blob, stride: int) -> Blob:
    """Adds a block: a convolution to more channels, unless the expansion factor is 1; a depthwise one; and one to fewer
    channels, without ReLU6."""
    y, last = x, 1
    if net.has(f"{name}.conv.3"):
        y, last = net.relu(net.conv_norm(f"{name}.conv.0.0", f"{name}.conv.0.1", x), "ReLU6"), 2
    depthwise = f"{name}.conv.{last - 1}"
    y = net.conv_norm(f"{depthwise}.0", f"{depthwise}.1", y, stride, 1, group=y.shape[1])
    y = net.relu(y, "ReLU6")
    y = net.conv_norm(f"{name}.conv.{last}", f"{name}.conv.{last + 1}", y)
    return net.sum(name, x, y) if stride == 1 and x.shape == y.shape else y


class Architecture(NamedTuple):
    """One of torchvision's families of classifiers.

    Attributes:
        mark: the name of a tensor that only its state dictionaries have.
        first: the name of the first convolution.
        side: height and width of its images.
        build: adds the net's layers after the given input.
        eps: of its BatchNorms.
        auxiliary: modules that are for training only.
    """

    name: str
    mark: str
    first: str
    side: int
    build: Callable[[Modules, Blob], None]
    eps: float = 1e-5
    auxiliary: tuple[str, ...] = ()


ARCHITECTURES = (
    Architecture("ResNet", "layer1.0.conv1.weight", "conv1", 224, _resnet),
    Architecture("DenseNet", "features.denseblock1.denselayer1.norm1.weight", "features.conv0", 224, _densenet),
    Architecture("GoogLeNet", "inception3a.branch1.conv.weight", "conv1.conv", 224, _googlenet, 1e-3, ("aux1", "aux2")),
    Architecture(
        *("Inception-v3", "Mixed_5b.branch1x1.conv.weight", "Conv2d_1a_3x3.conv", 299, _inception_v3, 1e-3),
        auxiliary=("AuxLogits",),
    ),
    Architecture("MobileNet-v2", "features.1.conv.0.0.weight", "features.0.0", 224, _mobilenet_v2),
    Architecture("VGG", "classifier.6.weight", "features.0", 224, _vgg),
)


def architecture_of(state: State) -> Architecture | None:
    """Returns the architecture that a state dictionary is of; None if it is not a known one."""
    return next((each for each in ARCHITECTURES if each.mark in state and f"{each.first}.weight" in state), None)


def build(state: State, source: str, batch_size: int, side: int = 0) -> NetMaker:
    """Makes the net of a state dictionary, with its weights.

    Args:
        source: the dictionary's file, which errors name.
        side: height and width of images; 0 stands for the architecture's own.
    Raises:
        WeightsError: the dictionary is of no known architecture, or lacks tensors, or has too many.
    """
    # torchvision's first files of DenseNet have "norm.1" where later ones have "norm1".
    state = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", name): each for name, each in state.items()}
    found = architecture_of(state)
    if found is None:
        known = ", ".join(each.name for each in ARCHITECTURES)
        raise WeightsError(
            f"not a state dictionary of torchvision's {known}; --onto takes others whose names are those of a net",
            source,
        )
    maker = NetMaker(found.name, source)
    modules = Modules(maker, state, found.eps)
    channels = modules.tensor(f"{found.first}.weight", (None,) * 4).shape[1]
    x = maker.input("data", (batch_size, channels, side or found.side, side or found.side))
    found.build(modules, x)
    rest = [each for each in state if each not in modules.placed and each.split(".")[0] not in found.auxiliary]
    if rest:
        raise WeightsError(f"{found.name} has no place for {described(rest, state)}", source)
    return maker


def described(names: Sequence[str], state: State) -> str:
    """Returns a list of tensors with their shapes for a message, which ends after the first few."""
    shown = ", ".join(f"'{name}' ({shape_text(state[name].shape)})" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
