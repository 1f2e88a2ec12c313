"""What the generators in nets/ share: layers as text, the idioms of convolutional nets, data, options.

A generator is a table and a function that turns it into calls of Net. Every call adds layers and returns the name of
the blob that they leave behind.
"""

import argparse
import textwrap

CLASSES = 1000  # of ImageNet-1K
SYNTHETIC = "synthetic"
DATA = "examples/imagenet"
BIASED = "param { lr_mult: 1 decay_mult: 1 }\nparam { lr_mult: 2 decay_mult: 0 }"  # Caffe's habit: biases learn faster
UNDECAYED = "param { decay_mult: 0 }\nparam { decay_mult: 0 }"
CUBIC = "resize_param { interp_mode: CUBIC }"
MIRROR = "mirror: true"


def aspect(change):
    """Mirror images, and crops of 8% to 100% of the picture: one side is that of a square times a random number from
    `change` to its inverse, the other side that over it."""
    return f"""\
{MIRROR}
random_aspect_ratio_param {{
    min_area_ratio: 0.08
    max_area_ratio: 1
    aspect_ratio_change: {change}
    {CUBIC}
}}"""


ASPECT = aspect(0.866)  # sides 3:4 to 4:3 (Szegedy et al., 2014)
WIDE_ASPECT = aspect(0.75)  # 9:16 to 16:9: SURFsara's ResNet-50, Intel's Inception-v3


def layer(name, kind, bottoms, tops, body=""):
    """One layer in prototxt; bottoms and tops are names in one string, separated by blanks."""
    blobs = [f'bottom: "{blob}"' for blob in bottoms.split()] + [f'top: "{blob}"' for blob in tops.split()]
    lines = "\n".join([f'name: "{name}"', f'type: "{kind}"', *blobs, *([body] if body else [])])
    return f"layer {{\n{textwrap.indent(lines, '    ')}\n}}\n"


def short_side(size):
    """The picture's short side becomes `size` pixels."""
    return f"random_resize_param {{\n    min_size: {size}\n    max_size: {size}\n    {CUBIC}\n}}"


def data(rule, source, batch, crop, augmentation, scale="", reading=""):
    """A Data layer of crop x crop pictures (BGR) for one phase."""
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
    """Noise with labels, made anew at every step."""
    body = f"""\
dummy_data_param {{
    shape {{ dim: {batch} dim: 3 dim: {crop} dim: {crop} }}
    shape {{ dim: {batch} }}
    data_filler {{ type: "gaussian" std: {std} }}
    data_filler {{ type: "uniform" min: 0 max: {classes - 1} }}
}}"""
    return layer("data", "DummyData", "", "data label", body)


def pair(name, value):
    """`pad: 3`, or `pad_h: 0 pad_w: 3` of (0, 3)."""
    if isinstance(value, int):
        return f"{name}: {value}"
    short = name.removesuffix("_size")
    return f"{short}_h: {value[0]} {short}_w: {value[1]}"


def same(kernel):
    """The padding that keeps the size."""
    return kernel // 2 if isinstance(kernel, int) else tuple(side // 2 for side in kernel)


class Net:
    """The layers so far. crop: side of the pictures; short: that of a picture's short side before the crop is cut."""

    def __init__(self, name, crop, short=256, augmentation=ASPECT, scale=0.0078125):
        self.name, self.crop = name, crop
        self._short, self._augmentation, self._scale = short, augmentation, scale
        self._layers = []

    def add(self, name, kind, bottoms, body="", top=""):
        self._layers.append(layer(name, kind, bottoms, top or name, body))
        return top or name

    def convolution(self, name, bottom, channels, kernel, stride=1, pad=None, group=1, bias=0.0, filler='"xavier"'):
        """With bias (its start value) and ReLU. pad: None keeps the size at stride 1; kernel, pad: side or (h, w)."""
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
        """A convolution with nothing after it."""
        body = f"""\
convolution_param {{
    num_output: {channels} {self._window(kernel, stride, pad)} bias_term: {str(bias).lower()}
    weight_filler {{ type: "msra" }}
}}"""
        return self.add(name, "Convolution", bottom, body)

    def conv_norm(self, name, bottom, channels, kernel, stride=1, pad=None):
        """Convolution, then BatchNorm, Scale and ReLU in place."""
        return self.norm(name, self.linear(name, bottom, channels, kernel, stride, pad))

    def norm(self, name, bottom, top=""):
        """BatchNorm, Scale and ReLU; in place, or from bottom to `top`."""
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
        """Across 5 channels, with the constants of Krizhevsky et al. (2012)."""
        return self.add(name, "LRN", bottom, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def concat(self, name, bottoms):
        return self.add(name, "Concat", " ".join(bottoms))

    def inner_product(self, name, bottom, outputs, bias=0.0, filler='"xavier"'):
        """bias: its start value; None: there is none."""
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
        """Top-1 and top-5, in testing."""
        for k in (1, 5):
            rule = f"include {{ phase: TEST }}\naccuracy_param {{ top_k: {k} }}"
            self.add(f"accuracy_top{k}", "Accuracy", f"{scores} label", rule)

    def layers(self):
        """The text of all layers so far, without their data."""
        return "".join(self._layers)

    def text(self, batch, source):
        """The whole net, fed from the LMDBs in folder `source`, or SYNTHETIC."""
        if source == SYNTHETIC:
            return "".join([f'name: "{self.name}"\n', synthetic(batch, self.crop), *self._layers])
        train, test = (f"{source}/ilsvrc12_{part}_lmdb" for part in ("train", "val"))
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
    """What every generator understands."""
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
    """Prints the net as the command line asks for it."""
    chosen = options(description, batch)
    print(f"# {description.splitlines()[0]}\n# Written by nets/{file}: change that, not this.")
    print(net.text(chosen.batch_size, chosen.data), end="")
