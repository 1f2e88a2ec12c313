"""Writes VGG-16, ResNet-50 or DenseNet-121 with a sigmoid for each of several labels, as for the 14 of ChestX-ray14.

The folder of --data holds train_lmdb, val_lmdb, labels.txt (a name on each line) and, for --weighted,
loss_param.prototxt, as `engine convert_chestxray14` and `convert_imageset` write them. All layers but the last have the
names that they have in nets/vgg16.py, resnet50.py and densenet121.py, so that they can start from the weights of these
nets. The last layer, `scores`, starts anew and learns faster.

    python nets/multi_label.py densenet121 --data chestxray14 > chestxray14/densenet121.prototxt
"""

import argparse
from pathlib import Path

import densenet121
import resnet50
import vgg16
import writer

FASTER = 10  # the rate of the new layer, as a multiple of that of layers that are trained already


def resnet50_body():
    return "".join(resnet50.body((3, 4, 6, 3), 1)), "pool5"


def body_of(net, bottom):
    return net.layers(), bottom


# Name -> (the net's name, the scale of its pixels, a function that returns the text of its layers and the blob from
# which scores are computed).
NETS = {
    "vgg16": ("VGG-16", "", lambda: body_of(*vgg16.body())),
    "resnet50": ("ResNet-50", 0.0078125, resnet50_body),
    "densenet121": ("DenseNet-121", 0.0078125, lambda: body_of(*densenet121.body())),
}


def head(bottom, count, loss_param):
    """Yields the layers of the scores, one for each of `count` labels, and of their loss. loss_param: its text, or
    ""."""
    parameters = f"""\
param {{ lr_mult: {FASTER} decay_mult: 1 }}
param {{ lr_mult: {2 * FASTER} decay_mult: 0 }}
inner_product_param {{
    num_output: {count}
    weight_filler {{ type: "xavier" }}
}}"""
    yield writer.layer("scores", "InnerProduct", bottom, "scores", parameters)
    yield writer.layer("loss", "SigmoidCrossEntropyLoss", "scores label", "loss", loss_param)


def data(folder, batch, scale):
    """Yields the Data layers. Grey pictures become three equal channels, as nets for ImageNet expect them."""
    cut = f"force_color: true\n{writer.short_side(256)}"
    shuffled = "  # per rank\n    shuffle: true"
    yield writer.data("phase: TRAIN", f"{folder}/train_lmdb", batch, 224, f"{writer.MIRROR}\n{cut}", scale, shuffled)
    yield writer.data("phase: TEST", f"{folder}/val_lmdb", batch, 224, cut, scale)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--data", default="chestxray14", metavar="FOLDER", help="(default: chestxray14)")
    parser.add_argument("--batch_size", type=int, default=16, help="per rank (default: 16)")
    parser.add_argument("--weighted", action="store_true", help="weigh labels by FOLDER/loss_param.prototxt")
    options = parser.parse_args()
    folder = Path(options.data)
    files = [folder / "labels.txt", *([folder / "loss_param.prototxt"] if options.weighted else [])]
    for file in files:
        if not file.is_file():
            parser.error(f"{file} is not there; `engine convert_chestxray14` writes it")
    labels = [line for line in files[0].read_text().splitlines() if line.strip()]
    loss_param = files[1].read_text().strip() if options.weighted else ""
    name, scale, body = NETS[options.net]
    layers, bottom = body()
    print(f"# {name} for {len(labels)} labels. Written by nets/multi_label.py.")
    print(f'name: "{name}"')
    sources = data(options.data, options.batch_size, scale)
    print("".join([*sources, layers, *head(bottom, len(labels), loss_param)]), end="")


if __name__ == "__main__":
    main()
