"""Shared by the generators in nets/: layers as text, the usual groups of layers of convolutional nets, data, options.

A generator is a table and a function that turns it into calls of Net. Every call adds layers and returns the name of
their last top.
"""

import argparse
import textwrap

CLASSES = 1000  # of ImageNet-1K
SYNTHETIC = "synthetic"
DATA = "examples/imagenet"
# As in Caffe's own nets, biases learn faster than weights, and do not decay.
BIASED = "param { lr_mult: 1 decay_mult: 1 }\nparam { lr_mult: 2 decay_mult: 0 }"
UNDECAYED = "param { decay_mult: 0 }\nparam { decay_mult: 0 }"
CUBIC = "resize_param { interp_mode: CUBIC }"
MIRROR = "mirror: true"


def aspect(change):
    """Returns the fields that mirror half of the pictures and cut out patches of 8% to 100% of their area. One side of
    a patch is that of a square times a random number between `change` and its inverse, the other side is that of the
    square divided by the number."""
    return f"""\
{MIRROR}
random_aspect_ratio_param {{
    min_area_ratio: 0.08
    max_area_ratio: 1
    aspect_ratio_change: {change}
    {CUBIC}
}}"""


ASPECT = aspect(0.866)  # sides from 3:4 to 4:3 (Szegedy et al., 2014)
WIDE_ASPECT = aspect(0.75)  # from 9:16 to 16:9, as for SURFsara's ResNet-50 and Intel's Inception-v3


def layer(name, kind, bottoms, tops, body=""):
    """Returns the text of a layer. bottoms, tops: names in one string, separated by blanks. body: further fields."""
    blobs = [f'bottom: "{blob}"' for blob in bottoms.split()] + [f'top: "{blob}"' for blob in tops.split()]
    lines = "\n".join([f'name: "{name}"', f'type: "{kind}"', *blobs, *([body] if body else [])])
    return f"layer {{\n{textwrap.indent(lines, '    ')}\n}}\n"


def short_side(size):
    """Returns the field that resizes a picture until its short side has `size` pixels."""
    return f"random_resize_param {{\n    min_size: {size}\n    max_size: {size}\n    {CUBIC}\n}}"


def data(rule, source, batch, crop, augmentation, scale="", reading=""):
    """Returns a Data layer of crop x crop pictures (BGR).

    rule: the layer's include rule, such as "phase: TEST". augmentation: fields of transform_param. reading: further
    lines of data_param, which begin at the end of that of batch_size."""
    scaled = f"\n    scale: {scale}" if scale else ""
    body = f"""\
include {{ {rule} }}
transform_param {{
    crop_size: {crop}
{textwrap.indent(augmentation, "    ")}
    mean_value: 104
    mean_value: 117
    mean_value: 123{scaled}
}}
data_param {{
    source: "{source}"
    backend: LMDB
    batch_size: {batch}{reading}
}}"""
    return layer("data", "Data", "", "data label", body)


def synthetic(batch, crop, classes=CLASSES, std=50):
    """Returns a DummyData layer that gives new noise with labels at every step."""
    body = f"""\
dummy_data_param {{
    shape {{ dim: {batch} dim: 3 dim: {crop} dim: {crop} }}
    shape {{ dim: {batch} }}
    data_filler {{ type: "gaussian" std: {std} }}
    data_filler {{ type: "uniform" min: 0 max: {classes - 1} }}
}}"""
    return layer("data", "DummyData", "", "data label", body)


def pair(name, value):
    """Returns a field of both axes: `pad: 3` for 3, `pad_h: 0 pad_w: 3` for (0, 3)."""
    if isinstance(value, int):
        return f"{name}: {value}"
    short = name.removesuffix("_size")
    return f"{short}_h: {value[0]} {short}_w: {value[1]}"


def same(kernel):
    """Returns the padding with which a convolution of stride 1 keeps the size."""
    return kernel // 2 if isinstance(kernel, int) else tuple(side // 2 for side in kernel)


class Net:
    """A net that grows: every method adds layers, and returns the name of their last top.

    A kernel or pad is a side or (height, width)."""

    def __init__(self, name, crop, short=256, augmentation=ASPECT, scale=0.0078125):
        """Begins a net without layers.

        Args:
            crop: the side of the pictures.
            short: the short side of a picture before the crop is cut out.
            augmentation: fields of transform_param for training.
            scale: that of transform_param; "" for none.
        """
        self.name, self.crop = name, crop
        self._short, self._augmentation, self._scale = short, augmentation, scale
        self._layers = []

    def add(self, name, kind, bottoms, body="", top=""):
        """Adds a layer of type `kind`. top: `name` by default."""
        self._layers.append(layer(name, kind, bottoms, top or name, body))
        return top or name

    def convolution(self, name, bottom, channels, kernel, stride=1, pad=None, group=1, bias=0.0, filler='"xavier"'):
        """Adds a convolution with bias, and a ReLU. pad: None for the padding that keeps the size at stride 1. bias:
        its first value."""
        groups = f" group: {group}" if group > 1 else ""
        body = f"""\
{BIASED}
convolution_param {{
    num_output: {channels} {self._window(kernel, stride, pad)}{groups}
    weight_filler {{ type: {filler} }}
    bias_filler {{ type: "constant" value: {bias:g} }}
}}"""
        return self.relu(self.add(name, "Convolution", bottom, body))

    def linear(self, name, bottom, channels, kernel, stride=1, pad=None, bias=False):
        """Adds a convolution with nothing behind it. bias: whether it has one."""
        body = f"""\
convolution_param {{
    num_output: {channels} {self._window(kernel, stride, pad)} bias_term: {str(bias).lower()}
    weight_filler {{ type: "msra" }}
}}"""
        return self.add(name, "Convolution", bottom, body)

    def conv_norm(self, name, bottom, channels, kernel, stride=1, pad=None):
        """Adds a convolution, and BatchNorm, Scale and ReLU in place."""
        return self.norm(name, self.linear(name, bottom, channels, kernel, stride, pad))

    def norm(self, name, bottom, top=""):
        """Adds BatchNorm, Scale and ReLU, in place or, if `top` is given, from bottom to top."""
        top = self.add(
            f"{name}/bn", "BatchNorm", bottom, "batch_norm_param { moving_average_fraction: 0.95 }", top or bottom
        )
        self.add(f"{name}/scale", "Scale", top, f"{UNDECAYED}\nscale_param {{ bias_term: true }}", top)
        return self.relu(top, name)

    def relu(self, blob, name=""):
        return self.add(f"{name or blob}/relu", "ReLU", blob, top=blob)

    def max_pool(self, name, bottom, kernel, stride, pad=0):
        return self._pool(name, bottom, f"pool: MAX {self._window(kernel, stride, pad)}")

    def ave_pool(self, name, bottom, kernel, stride, pad=0):
        return self._pool(name, bottom, f"pool: AVE {self._window(kernel, stride, pad)}")

    def global_pool(self, name, bottom):
        return self._pool(name, bottom, "pool: AVE global_pooling: true")

    def _pool(self, name, bottom, param):
        return self.add(name, "Pooling", bottom, f"pooling_param {{ {param} }}")

    @staticmethod
    def _window(kernel, stride, pad):
        return f"{pair('kernel_size', kernel)} stride: {stride} {pair('pad', same(kernel) if pad is None else pad)}"

    def lrn(self, name, bottom):
        """Adds an LRN across 5 channels, with the constants of Krizhevsky et al. (2012)."""
        return self.add(name, "LRN", bottom, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def concat(self, name, bottoms):
        return self.add(name, "Concat", " ".join(bottoms))

    def inner_product(self, name, bottom, outputs, bias=0.0, filler='"xavier"'):
        """Adds an inner product. bias: its first value; None for no bias."""
        last = "bias_term: false" if bias is None else f'bias_filler {{ type: "constant" value: {bias:g} }}'
        body = f"""\
inner_product_param {{
    num_output: {outputs}
    weight_filler {{ type: {filler} }}
    {last}
}}"""
        body = body if bias is None else f"{BIASED}\n{body}"
        return self.add(name, "InnerProduct", bottom, body)

    def dropout(self, name, blob, ratio):
        return self.add(name, "Dropout", blob, f"dropout_param {{ dropout_ratio: {ratio:g} }}", blob)

    def loss(self, name, scores, weight=1.0):
        body = f"loss_weight: {weight:g}" if weight != 1 else ""
        return self.add(name, "SoftmaxWithLoss", f"{scores} label", body)

    def accuracy(self, scores):
        """Adds the top-1 and top-5 accuracy in phase TEST."""
        for k in (1, 5):
            rule = f"include {{ phase: TEST }}\naccuracy_param {{ top_k: {k} }}"
            self.add(f"accuracy_top{k}", "Accuracy", f"{scores} label", rule)

    def layers(self):
        """Returns the text of all layers so far, without data layers."""
        return "".join(self._layers)

    def text(self, batch, source):
        """Returns the text of the whole net. source: the folder of its LMDBs, or SYNTHETIC."""
        if source == SYNTHETIC:
            return "".join([f'name: "{self.name}"\n', synthetic(batch, self.crop), *self._layers])
        train, test = (f"{source}/ilsvrc12_{name}_lmdb" for name in ("train", "val"))
        shuffled = "  # per rank\n    shuffle: true"
        cut = short_side(self._short)
        augmentation = f"{MIRROR}\n{cut}" if self._augmentation == MIRROR else self._augmentation
        scale = self._scale
        sources = (
            data("phase: TRAIN", train, batch, self.crop, augmentation, scale, shuffled),
            data("phase: TEST", test, 50, self.crop, cut, scale),
        )
        return "".join([f'name: "{self.name}"\n', *sources, *self._layers])


def options(description, batch):
    """Parses the arguments that every generator has. description: the generator's docstring. batch: the default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=batch, help=f"per rank, in training (default: {batch})")
    parser.add_argument(
        "--data",
        default=DATA,
        metavar="FOLDER",
        help=f"holds ilsvrc12_train_lmdb and ilsvrc12_val_lmdb (default: {DATA}); or '{SYNTHETIC}': noise",
    )
    return parser.parse_args()


def write(file, description, net, batch):
    """Prints a net, as the command line asks for it. file: the name of the generator."""
    chosen = options(description, batch)
    print(f"# {description.splitlines()[0]}\n# Written by nets/{file}: change that, not this.")
    print(net.text(chosen.batch_size, chosen.data), end="")
