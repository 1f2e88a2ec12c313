"""Writes nets/resnet50.prototxt: ResNet-50 (He et al., 2015) as the large-batch runs of solvers/ train it.

The first block of a group has its stride in the 3 x 3 convolution. BatchNorm has a moving_average_fraction of 0.95. The
last scale of each block starts at 0, so that a block starts as its shortcut. Scales and biases are not decayed. Layers
have the names of those in He's own nets. resnet101.py, resnet152.py and wide_resnet50.py consist of the same blocks.

    python nets/resnet50.py > nets/resnet50.prototxt
"""

from pathlib import Path

from writer import CLASSES, MIRROR, SYNTHETIC, WIDE_ASPECT, data, layer, options, short_side, synthetic

WIDTHS = (64, 128, 256, 512)  # channels of the 3 x 3 convolutions of a group
EXPANSION = 4  # channels of a block's top, as a multiple of its width
LETTERS = 6  # He's own nets call blocks a, b, c, ...; with more blocks in any group, a, b1, b2, ...
CROP = 224
BATCH = 16  # per rank


def all_data(batch, folder):
    """Yields the data layers: training with augmentation, training without it (stage "collapse"), and testing."""
    if folder == SYNTHETIC:
        yield synthetic(batch, CROP)
        return
    shuffled = "  # per rank\n    shuffle: true"
    train, test = (f"{folder}/ilsvrc12_{name}_lmdb" for name in ("train", "val"))
    cut = short_side(256)

    def source(rule, db, count, augmentation, reading=""):
        return data(rule, db, count, CROP, augmentation, 0.0078125, reading)

    yield source('phase: TRAIN not_stage: "collapse"', train, batch, WIDE_ASPECT, shuffled)
    yield source('phase: TRAIN stage: "collapse"', train, batch, f"{MIRROR}\n{cut}", shuffled)
    yield source("phase: TEST", test, 50, cut)


def convolution(name, suffix, bottom, channels, kernel, stride=1, relu=True, gamma=1, fan=""):
    """Yields a Convolution, and BatchNorm, Scale and ReLU in place behind it.

    suffix: of the names of BatchNorm and Scale, such as "2a_branch1". gamma: the first value of the scale. fan: further
    fields of the weight filler."""
    yield layer(
        name,
        "Convolution",
        bottom,
        name,
        f"""\
convolution_param {{
    num_output: {channels}
    kernel_size: {kernel}
    pad: {kernel // 2}
    stride: {stride}
    bias_term: false
    weight_filler {{ type: "msra"{fan} }}
}}""",
    )
    yield layer(f"bn{suffix}", "BatchNorm", name, name, "batch_norm_param { moving_average_fraction: 0.95 }")
    undecayed = "param { decay_mult: 0 }\nparam { decay_mult: 0 }\n"
    filler = "" if gamma == 1 else f' filler {{ type: "constant" value: {gamma} }}'
    yield layer(f"scale{suffix}", "Scale", name, name, undecayed + f"scale_param {{ bias_term: true{filler} }}")
    if relu:
        yield layer(f"{name}_relu", "ReLU", name, name)


def block(name, bottom, width, wider, stride, projection):
    """Yields a bottleneck of three convolutions beside a shortcut.

    width: a quarter of the channels of the block's top. wider: the channels of the inner convolutions, as a multiple of
    width. projection: whether the shortcut is a 1 x 1 convolution, because shapes change."""

    def branch(suffix, source, *args, **kwargs):
        return convolution(f"res{name}_branch{suffix}", f"{name}_branch{suffix}", source, *args, **kwargs)

    wide, channels = EXPANSION * width, wider * width
    shortcut = bottom
    if projection:
        shortcut = f"res{name}_branch1"
        yield from branch("1", bottom, wide, 1, stride, relu=False)
    yield from branch("2a", bottom, channels, 1)
    yield from branch("2b", f"res{name}_branch2a", channels, 3, stride)
    yield from branch("2c", f"res{name}_branch2b", wide, 1, relu=False, gamma=0)
    yield layer(f"res{name}", "Eltwise", f"{shortcut} res{name}_branch2c", f"res{name}")
    yield layer(f"res{name}_relu", "ReLU", f"res{name}", f"res{name}")


def body(blocks, wider):
    yield from convolution("conv1", "_conv1", "data", 64, 7, stride=2, fan=" variance_norm: FAN_OUT")
    yield layer("pool1", "Pooling", "conv1", "pool1", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }")
    bottom, numbered = "pool1", max(blocks) > LETTERS
    for group, (width, count) in enumerate(zip(WIDTHS, blocks), start=2):
        for index in range(count):
            name = f"{group}{f'b{index}' if index and numbered and count > 3 else 'abcdef'[index]}"
            stride = 2 if index == 0 and group > 2 else 1
            yield from block(name, bottom, width, wider, stride, projection=index == 0)
            bottom = f"res{name}"
    yield layer("pool5", "Pooling", bottom, "pool5", "pooling_param { pool: AVE global_pooling: true }")


def head():
    parameters = f"""\
param {{ decay_mult: 1 }}
param {{ decay_mult: 0 }}
inner_product_param {{
    num_output: {CLASSES}
    weight_filler {{ type: "gaussian" std: 0.01 }}
}}"""
    name = f"fc{CLASSES}"
    yield layer(name, "InnerProduct", "pool5", name, parameters)
    yield layer("loss", "SoftmaxWithLoss", f"{name} label", "loss")
    for k in (1, 5):
        rule = f"include {{ phase: TEST }}\naccuracy_param {{ top_k: {k} }}"
        yield layer(f"accuracy_top{k}", "Accuracy", f"{name} label", f"accuracy_top{k}", rule)


def write(file, description, name, blocks, wider=1, batch=BATCH):
    """Prints a net, as the command line asks for it. file: the path of the generator. blocks: their number in each
    group."""
    chosen = options(description, batch)
    print(f"# {name}. Written by nets/{Path(file).name}: change that, not this.")
    print(f'name: "{name}"')
    print("".join([*all_data(chosen.batch_size, chosen.data), *body(blocks, wider), *head()]), end="")


if __name__ == "__main__":
    write(__file__, __doc__, "ResNet-50", (3, 4, 6, 3))
