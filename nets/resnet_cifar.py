"""Writes a ResNet for CIFAR-10 (He et al., 2015, section 4.2): 6n + 2 layers, in blocks of two 3 x 3 convolutions.

Shortcuts have no parameters: where a group halves the sides and doubles the channels, they take every other pixel and
add channels of zeros. Training takes random 32 x 32 crops of pictures with four black pixels around them, and mirrors
half of them; with stage "collapse" it mirrors them only. Means are in the order B, G, R.

    python nets/resnet_cifar.py --depth 20 > nets/resnet20.prototxt
"""

import argparse

from writer import UNDECAYED, layer, synthetic

WIDTHS = (16, 32, 64)  # channels of the three groups
SIDE = 32
PAD = 4
CLASSES = 10
BATCH = 128
DATA = "examples/cifar10"
SYNTHETIC = "synthetic"
MEAN = (113.9, 123.0, 125.3)
SCALE = 0.015625


def all_data(batch, folder, test_batch=100):
    """Yields the data layers: training with augmentation, training without random crops (stage "collapse"), and
    testing."""
    if folder == SYNTHETIC:
        yield synthetic(batch, SIDE, CLASSES, std=1)
        return
    train, test = (f"{folder}/cifar10_{name}_lmdb" for name in ("train", "test"))
    shuffled = "  # per rank\n    shuffle: true"
    crops = f"crop_size: {SIDE}\n    pad: {PAD}\n    mirror: true"
    yield data('phase: TRAIN not_stage: "collapse"', train, batch, crops, shuffled)
    yield data('phase: TRAIN stage: "collapse"', train, batch, f"crop_size: {SIDE}\n    mirror: true", shuffled)
    yield data("phase: TEST", test, test_batch, f"crop_size: {SIDE}")


def data(rule, source, batch, augmentation, reading=""):
    means = "\n".join(f"    mean_value: {mean}" for mean in MEAN)
    body = f"""\
include {{ {rule} }}
transform_param {{
    {augmentation}
{means}
    scale: {SCALE}
}}
data_param {{
    source: "{source}"
    backend: LMDB
    batch_size: {batch}{reading}
}}"""
    return layer("data", "Data", "", "data label", body)


def convolution(name, bottom, channels, stride=1, relu=True):
    """Yields a Convolution of 3 x 3, and BatchNorm, Scale and ReLU in place behind it."""
    body = f"""\
convolution_param {{
    num_output: {channels}
    kernel_size: 3
    pad: 1
    stride: {stride}
    bias_term: false
    weight_filler {{ type: "msra" }}
}}"""
    yield layer(name, "Convolution", bottom, name, body)
    yield layer(f"{name}_bn", "BatchNorm", name, name, "batch_norm_param { moving_average_fraction: 0.95 }")
    yield layer(f"{name}_scale", "Scale", name, name, f"{UNDECAYED}\nscale_param {{ bias_term: true }}")
    if relu:
        yield layer(f"{name}_relu", "ReLU", name, name)


def block(name, bottom, channels, first):
    """Yields two convolutions beside a shortcut. first: whether the block is the first of a group that halves the
    sides."""
    yield from convolution(f"{name}_conv1", bottom, channels, 2 if first else 1)
    yield from convolution(f"{name}_conv2", f"{name}_conv1", channels, relu=False)
    shortcut = bottom
    if first:
        shortcut = f"{name}_shortcut"
        pool = "pooling_param { pool: AVE kernel_size: 1 stride: 2 round_mode: FLOOR }"
        yield layer(f"{name}_pool", "Pooling", bottom, f"{name}_pool", pool)
        yield layer(f"{name}_zeros", "Power", f"{name}_pool", f"{name}_zeros", "power_param { scale: 0 }")
        yield layer(shortcut, "Concat", f"{name}_pool {name}_zeros", shortcut)
    yield layer(name, "Eltwise", f"{shortcut} {name}_conv2", name)
    yield layer(f"{name}_relu", "ReLU", name, name)


def body(blocks):
    yield from convolution("conv1", "data", WIDTHS[0])
    bottom = "conv1"
    for group, channels in enumerate(WIDTHS, start=2):
        for index in range(1, blocks + 1):
            name = f"res{group}_{index}"
            yield from block(name, bottom, channels, first=group > 2 and index == 1)
            bottom = name
    yield layer("pool", "Pooling", bottom, "pool", "pooling_param { pool: AVE global_pooling: true }")


def head():
    parameters = f"""\
param {{ decay_mult: 1 }}
param {{ decay_mult: 0 }}
inner_product_param {{
    num_output: {CLASSES}
    weight_filler {{ type: "msra" }}
}}"""
    yield layer("fc10", "InnerProduct", "pool", "fc10", parameters)
    yield layer("loss", "SoftmaxWithLoss", "fc10 label", "loss")
    for k in (1, 5):
        rule = f"include {{ phase: TEST }}\naccuracy_param {{ top_k: {k} }}"
        yield layer(f"accuracy_top{k}", "Accuracy", "fc10 label", f"accuracy_top{k}", rule)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, required=True, metavar="6n+2", help="layers: 8, 14, 20, 32, 44, 56, ...")
    parser.add_argument("--batch_size", type=int, default=BATCH, help=f"per rank, in training (default: {BATCH})")
    parser.add_argument(
        "--data",
        default=DATA,
        metavar="FOLDER",
        help=f"holds cifar10_train_lmdb and cifar10_test_lmdb (default: {DATA}); or '{SYNTHETIC}': noise",
    )
    chosen = parser.parse_args()
    blocks, rest = divmod(chosen.depth - 2, 6)
    if rest or blocks < 1:
        parser.error(f"--depth: expected 6n + 2 layers, got {chosen.depth}")
    print(f"# ResNet-{chosen.depth} for CIFAR-10. Written by nets/resnet_cifar.py: change that, not this.")
    print(f'name: "ResNet-{chosen.depth}"')
    print("".join([*all_data(chosen.batch_size, chosen.data), *body(blocks), *head()]), end="")


if __name__ == "__main__":
    main()
