"""Makes random valid nets: one to four layers behind an input, and a loss or two. A net is determined by its number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine import proto
from engine.config import parse_net
from engine.graph.build import build

Shape = tuple[int, ...]


@dataclass(eq=False)
class Draft:
    """A net that is being made.

    `shapes` has the shapes of all its blobs. Labels are below `classes`."""

    dice: random.Random
    inputs: dict[str, Shape] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    classes: int = 2

    def add(self, kind: str, bottoms: list[str], rest: str = "", tops: int = 1, in_place: bool = False) -> str:
        """Appends a layer, and returns the name of its first top."""
        name = f"{kind.lower()}{len(self.layers)}"
        made = bottoms[:1] if in_place else [name, *(f"{name}_{i}" for i in range(1, tops))][:tops]
        ends = " ".join([*(f'bottom: "{each}"' for each in bottoms), *(f'top: "{each}"' for each in made)])
        self.layers.append(f'layer {{ name: "{name}" type: "{kind}" {ends} {rest} }}')
        self.types.append(kind)
        inputs = [input_layer(each, self.shapes[each]) for each in bottoms]
        graph = build(parse_net("\n".join([*inputs, self.layers[-1]]), "random.prototxt"), proto.TRAIN)
        self.shapes.update({blob.name: blob.shape for blob in graph.layers[-1].tops})
        return made[0] if made else ""

    def input(self, name: str, shape: Shape) -> str:
        """Appends an Input layer; all of them come first in the net."""
        self.inputs[name] = self.shapes[name] = shape
        return name

    def text(self) -> str:
        inputs = [input_layer(name, shape) for name, shape in self.inputs.items()]
        return "\n".join(["force_backward: true", *inputs, *self.layers])

    def trained_text(self, source: str, batch: int) -> str:
        """Returns the net's text with an HDF5Data layer in place of its inputs. `source` is the file that lists the
        HDF5 file."""
        tops = " ".join(f'top: "{name}"' for name in self.inputs)
        parameters = f'hdf5_data_param {{ source: "{source}" batch_size: {batch} }}'
        return "\n".join([f'layer {{ name: "data" type: "HDF5Data" {tops} {parameters} }}', *self.layers])

    def values(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns random values for each input: whole numbers for labels, from 0 to 1 for targets, else from -1 to
        1."""
        generator = np.random.default_rng(seed)
        found = {}
        for name, shape in self.inputs.items():
            low = 0 if name == "target" else -1
            labels = name == "label"
            drawn = generator.integers(0, self.classes, shape) if labels else generator.uniform(low, 1, shape)
            found[name] = drawn.astype(np.float32)
        return found

    def some(self, low: int, high: int) -> int:
        return self.dice.randint(low, high)

    def flag(self, chance: float = 0.5) -> bool:
        return self.dice.random() < chance

    def number(self, low: float, high: float) -> str:
        return f"{self.dice.uniform(low, high):.3f}"


def random_net(number: int, samples: int = 4) -> Draft:
    """Returns the net of that number: its text, its types and its blobs' shapes."""
    draft = Draft(random.Random(f"net {number}"))
    image = (samples, draft.some(1, 20), draft.some(4, 9), draft.some(4, 9))
    at = draft.input("data", image)
    for _ in range(draft.some(1, 4)):
        kinds = [each for each, fits in MIDDLE.items() if fits[0](draft.shapes[at])]
        at = MIDDLE[draft.dice.choice(kinds)][1](draft, at)
        if draft.flag(0.2):
            second_loss(draft, at)
    end(draft, at)
    return draft


def input_layer(name: str, shape: Shape) -> str:
    dims = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'


def filler(draft: Draft) -> str:
    return draft.dice.choice(
        ['type: "xavier"', 'type: "msra"', 'type: "gaussian" std: 0.3', 'type: "uniform" min: -0.5']
    )


# Each function below adds a layer, or a few that belong together, that reads blob `at`, and returns the blob to go on
# from.


def convolution(draft: Draft, at: str, kind: str = "Convolution") -> str:
    channels = draft.shapes[at][1]
    group = draft.dice.choice([each for each in (1, 1, 1, 2, 4, channels) if channels % each == 0])
    kernel = draft.some(1, 3)
    rest = f"num_output: {group * draft.some(1, max(1, 24 // group))} group: {group} kernel_size: {kernel}"
    if kind == "Convolution" and draft.flag(0.2):
        rest += " pad: 2 dilation: 2"
    else:
        rest += f" stride: {draft.some(1, 2)} pad: {draft.some(0, kernel - 1)} bias_term: {str(draft.flag()).lower()}"
    fillers = f"weight_filler {{ {filler(draft)} }} bias_filler {{ {filler(draft)} }}"
    return draft.add(kind, [at], f"convolution_param {{ {rest} {fillers} }}")


def deconvolution(draft: Draft, at: str) -> str:
    return convolution(draft, at, "Deconvolution")


def inner_product(draft: Draft, at: str) -> str:
    rest = f"num_output: {draft.some(1, 40)} bias_term: {str(draft.flag()).lower()}"
    rest += f" transpose: {str(draft.flag(0.3)).lower()} weight_filler {{ {filler(draft)} }}"
    return draft.add("InnerProduct", [at], f"inner_product_param {{ {rest} }}")


def pooling(draft: Draft, at: str) -> str:
    method = draft.dice.choice(["MAX", "AVE"])
    if draft.flag(0.2):
        return draft.add("Pooling", [at], f"pooling_param {{ pool: {method} global_pooling: true }}")
    kernel = draft.some(2, 3)
    stride = min(draft.some(1, 3), kernel)  # a window that lies beyond the bottom has no average
    rest = f"pool: {method} kernel_size: {kernel} stride: {stride} pad: {draft.some(0, kernel - 1)}"
    return draft.add("Pooling", [at], f"pooling_param {{ {rest} }}")


def lrn(draft: Draft, at: str) -> str:
    region = draft.dice.choice(["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
    rest = f"local_size: {draft.dice.choice([1, 3, 5])} alpha: {draft.number(0.01, 1)} beta: {draft.number(0.5, 1)}"
    return draft.add("LRN", [at], f"lrn_param {{ {rest} norm_region: {region} }}")


def batch_norm(draft: Draft, at: str) -> str:
    at = draft.add("BatchNorm", [at], in_place=draft.flag(0.3))
    return scale(draft, at) if draft.flag(0.7) else at


def scale(draft: Draft, at: str) -> str:
    rest = f'bias_term: {str(draft.flag()).lower()} filler {{ type: "uniform" min: 0.3 max: 1.5 }}'
    return draft.add("Scale", [at], f"scale_param {{ {rest} }}", in_place=draft.flag(0.3))


def bias(draft: Draft, at: str) -> str:
    return draft.add("Bias", [at], f"bias_param {{ filler {{ {filler(draft)} }} }}")


def activation(draft: Draft, at: str) -> str:
    kind, rest = draft.dice.choice(
        [
            ("ReLU", ""),
            ("ReLU", ""),
            ("ReLU", f"relu_param {{ negative_slope: {draft.number(0.1, 0.5)} }}"),
            ("ELU", f"elu_param {{ alpha: {draft.number(0.5, 1.5)} }}"),
            ("Sigmoid", ""),
            ("TanH", ""),
            ("BNLL", ""),
            ("AbsVal", ""),
            ("Swish", ""),
            ("ReLU6", ""),
            ("Clip", "clip_param { min: -0.6 max: 0.9 }"),
            ("Power", f"power_param {{ scale: {draft.number(0.5, 1.5)} shift: {draft.number(-1, 1)} power: 2 }}"),
            ("Exp", f"exp_param {{ scale: {draft.number(0.1, 0.5)} }}"),
        ]
    )
    return draft.add(kind, [at], rest, in_place=kind not in ("Power", "AbsVal", "Exp") and draft.flag())


def prelu(draft: Draft, at: str) -> str:
    shared = str(draft.flag(0.3)).lower()
    return draft.add("PReLU", [at], f"prelu_param {{ channel_shared: {shared} }}", in_place=draft.flag(0.3))


def dropout(draft: Draft, at: str) -> str:
    ratio = draft.number(0.1, 0.6)
    return draft.add("Dropout", [at], f"dropout_param {{ dropout_ratio: {ratio} }}", in_place=draft.flag())


def join(draft: Draft, at: str) -> str:
    """Adds two layers that read one blob, and a layer that joins their tops."""
    split = draft.add("Split", [at], tops=2)
    ends = [draft.dice.choice([activation, scale, prelu, dropout])(draft, split), f"{split}_1"]
    draft.dice.shuffle(ends)
    if draft.flag(0.4):
        return draft.add("Concat", ends)
    operation = draft.dice.choice(["SUM", "SUM", "PROD", "MAX"])
    rest = f"operation: {operation}"
    if operation == "SUM" and draft.flag():
        rest += f" coeff: {draft.number(-1, 1)} coeff: {draft.number(-1, 1)}"
    return draft.add("Eltwise", ends, f"eltwise_param {{ {rest} }}")


def residual(draft: Draft, at: str) -> str:
    """Adds normalised convolutions beside a shortcut, as in ResNet."""
    channels = draft.shapes[at][1]
    rest = f"num_output: {channels} kernel_size: 3 pad: 1 bias_term: false weight_filler {{ {filler(draft)} }}"
    branch = draft.add("Convolution", [at], f"convolution_param {{ {rest} }}")
    branch = draft.add("BatchNorm", [branch], in_place=True)
    branch = draft.add("Scale", [branch], "scale_param { bias_term: true }", in_place=True)
    total = draft.add("Eltwise", [branch, at])
    return draft.add("ReLU", [total], in_place=True)


def slices(draft: Draft, at: str) -> str:
    point = draft.some(1, draft.shapes[at][1] - 1)
    first = draft.add("Slice", [at], f"slice_param {{ axis: 1 slice_point: {point} }}", tops=2)
    draft.add("Silence", [f"{first}_1"], tops=0)
    return first


def flatten(draft: Draft, at: str) -> str:
    return draft.add("Flatten", [at])


def reshape(draft: Draft, at: str) -> str:
    shape = draft.shapes[at]
    return draft.add("Reshape", [at], f"reshape_param {{ shape {{ dim: 0 dim: {shape[1] * shape[2]} dim: -1 }} }}")


def softmax(draft: Draft, at: str) -> str:
    return draft.add("Softmax", [at])


def mvn(draft: Draft, at: str) -> str:
    rest = f"normalize_variance: {str(draft.flag()).lower()} across_channels: {str(draft.flag()).lower()}"
    return draft.add("MVN", [at], f"mvn_param {{ {rest} }}")


def normalize(draft: Draft, at: str) -> str:
    return draft.add("Normalize", [at], f"norm_param {{ across_spatial: {str(draft.flag()).lower()} }}")


def permute(draft: Draft, at: str) -> str:
    order = [0, *draft.dice.sample([1, 2, 3], 3)]
    return draft.add("Permute", [at], f"permute_param {{ {' '.join(f'order: {axis}' for axis in order)} }}")


def shuffle(draft: Draft, at: str) -> str:
    channels = draft.shapes[at][1]
    group = draft.dice.choice([each for each in range(1, channels + 1) if channels % each == 0])
    return draft.add("ShuffleChannel", [at], f"shuffle_channel_param {{ group: {group} }}")


def tile(draft: Draft, at: str) -> str:
    return draft.add("Tile", [at], f"tile_param {{ axis: 1 tiles: {draft.some(1, 3)} }}")


def interp(draft: Draft, at: str) -> str:
    return draft.add("Interp", [at], f"interp_param {{ height: {draft.some(2, 12)} width: {draft.some(2, 12)} }}")


def spp(draft: Draft, at: str) -> str:
    return draft.add("SPP", [at], f"spp_param {{ pyramid_height: {draft.some(1, 2)} }}")


def is_image(shape: Shape) -> bool:
    return len(shape) == 4 and min(shape[2:]) >= 3 and shape[1] <= 200


def has_channels(shape: Shape) -> bool:
    return len(shape) >= 2 and shape[1] >= 2


def any_shape(shape: Shape) -> bool:
    return len(shape) >= 2


# By name: which blobs it can read, and the function that adds it. Common layers come more often.
MIDDLE: dict[str, tuple[Callable[[Shape], bool], Callable[[Draft, str], str]]] = {
    **{f"convolution {i}": (is_image, convolution) for i in range(4)},
    **{f"activation {i}": (any_shape, activation) for i in range(3)},
    **{f"pooling {i}": (is_image, pooling) for i in range(2)},
    **{f"batch norm {i}": (is_image, batch_norm) for i in range(2)},
    "deconvolution": (is_image, deconvolution),
    "inner product": (any_shape, inner_product),
    "lrn": (is_image, lrn),
    "scale": (any_shape, scale),
    "bias": (any_shape, bias),
    "prelu": (any_shape, prelu),
    "dropout": (any_shape, dropout),
    "join": (any_shape, join),
    "residual": (is_image, residual),
    "slice": (has_channels, slices),
    "flatten": (any_shape, flatten),
    "reshape": (is_image, reshape),
    "softmax": (any_shape, softmax),
    "mvn": (is_image, mvn),
    "normalize": (is_image, normalize),
    "permute": (is_image, permute),
    "shuffle": (is_image, shuffle),
    "tile": (any_shape, tile),
    "interp": (is_image, interp),
    "spp": (is_image, spp),
}


def second_loss(draft: Draft, at: str) -> None:
    """Adds a second loss beside the main path: a Reduction, or any blob with a loss_weight."""
    if draft.flag():
        rest = f"reduction_param {{ operation: {draft.dice.choice(['SUMSQ', 'MEAN', 'ASUM'])} axis: 1 }}"
        at = draft.add("Reduction", [at], rest)
    draft.add("Power", [at], f"power_param {{ scale: 0.1 }} loss_weight: {draft.number(-0.5, 0.5)}")


def end(draft: Draft, at: str) -> None:
    """Adds the loss that the net ends with."""
    samples = draft.shapes[at][0]
    kind = draft.dice.choice(["SoftmaxWithLoss", "SoftmaxWithLoss", "EuclideanLoss", "SigmoidCrossEntropyLoss"])
    if kind == "SoftmaxWithLoss":
        draft.classes = draft.some(2, 12)
        rest = f"inner_product_param {{ num_output: {draft.classes} weight_filler {{ {filler(draft)} }} }}"
        at = draft.add("InnerProduct", [at], rest)
        other = draft.input("label", (samples,))
    else:
        other = draft.input("target", draft.shapes[at])
    draft.add(kind, [at, other], f"loss_weight: {draft.number(0.3, 2)}")
