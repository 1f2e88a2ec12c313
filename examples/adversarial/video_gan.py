"""Writes two nets of 3-D convolutions and deconvolutions that learn to predict the next six frames of a clip:

    python examples/adversarial/video_gan.py --size small --source FOLDER
    python examples/adversarial/video_gan.py --size colour --source FOLDER --test_list val.txt
    python examples/adversarial/video_gan.py --size full --source FOLDER --test_list val.txt

small: 16 x 16 pixels, grey. colour: 32 x 32 in colour, cut out of larger frames at random places. full: 128 x 128 in
colour, with a generator and a discriminator of the size that the PRACE guide has (section 6.1). FOLDER holds train.txt
and test.txt, lists for VideoData; engine convert_video writes train.txt and val.txt.

The generator halves the sides in each of its convolutions, mixes the frames in `middle`, doubles the sides again, and
adds the result to the last frame that it has seen. The discriminator gives all twelve frames one score.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "nets"))
from writer import layer

FRAMES = 6


@dataclass(frozen=True)
class Size:
    """The numbers that make a net small or large.

    side: of the frames, in pixels. channels: of the frames. batch: per rank.
    widths: channels after each convolution that halves the sides.
    middle: (frames of the kernel, channels) of the generator's convolutions between those and the deconvolutions.
    behind: channels of the discriminator's convolutions after those that halve the sides.
    cropped: whether frames are cropped to the side, instead of resized.
    """

    side: int
    channels: int
    batch: int
    widths: tuple[int, ...]
    middle: tuple[tuple[int, int], ...]
    behind: tuple[int, ...]
    cropped: bool = False


SIZES = {
    "small": Size(16, 1, 16, (16, 32), ((5, 32), (5, 32)), ()),
    "colour": Size(32, 3, 8, (32, 64), ((5, 64), (5, 64)), (), cropped=True),
    "full": Size(128, 3, 1, (128, 256, 512, 1024), ((3, 1184), (3, 1024)), (1024, 704)),
}


def sides(name: str, values: tuple[int, int, int]) -> str:
    """Returns a field that is given for all three axes."""
    return " ".join(f"{name}: {value}" for value in values)


def convolution(name: str, kind: str, bottom: str, channels: int, kernel: tuple, stride: tuple, pad: tuple) -> str:
    body = f"""convolution_param {{
    num_output: {channels}
    {sides("kernel_size", kernel)}
    {sides("stride", stride)}
    {sides("pad", pad)}
    weight_filler {{ type: "msra" }}
}}"""
    return layer(name, kind, bottom, name, body)


def relu(name: str) -> str:
    return layer(f"{name}_relu", "ReLU", name, name, "relu_param { negative_slope: 0.2 }")


def halving(prefix: str, bottom: str, widths: tuple[int, ...]) -> tuple[str, str]:
    """Returns (text of convolutions that halve the sides, their last top). prefix: of the layers' names."""
    text = ""
    for number, width in enumerate(widths, start=1):
        name = f"{prefix}{number}"
        text += convolution(name, "Convolution", bottom, width, (3, 4, 4), (1, 2, 2), (1, 1, 1)) + relu(name)
        bottom = name
    return text, bottom


def data(size: Size, lists: dict[str, str]) -> str:
    """Returns the data layers of the generator. lists: by phase.

    They read clips (n, channels, 12, side, side), cut them into the blobs past and future, and copy the last frame of
    past six times."""
    text = ""
    for phase, source in lists.items():
        grey = "\n    grayscale: true" if size.channels == 1 else ""
        shuffle = "\n    shuffle: true" if phase == "TRAIN" else ""
        resize = f"\n    new_height: {size.side}\n    new_width: {size.side}"
        crop = ""
        if size.cropped:
            resize, crop = "", f" crop_size: {size.side}" + (" mirror: true" if phase == "TRAIN" else "")
        body = f"""include {{ phase: {phase} }}
transform_param {{ mean_value: 127.5 scale: 0.00784313725{crop} }}
video_data_param {{
    source: "{source}"
    name_pattern: "image_%04d.png"
    modality: RGB{grey}
    new_length: {2 * FRAMES}{resize}
    batch_size: {size.batch}{shuffle}
}}"""
        text += layer("clips", "VideoData", "", "stack no_label", body)
    text += layer("no_label", "Silence", "no_label", "")
    shape = f"dim: 0 dim: {2 * FRAMES} dim: {size.channels} dim: {size.side} dim: {size.side}"
    text += layer("frames", "Reshape", "stack", "frames", f"reshape_param {{ shape {{ {shape} }} }}")
    text += layer("clip", "Permute", "frames", "clip", "permute_param { order: 0 order: 2 order: 1 order: 3 order: 4 }")
    text += layer("cut", "Slice", "clip", "past future", f"slice_param {{ axis: 2 slice_point: {FRAMES} }}")
    ends = f"slice_param {{ axis: 2 slice_point: {FRAMES - 1} }}"
    text += layer("end", "Slice", "past", "earlier last", ends)
    text += layer("earlier", "Silence", "earlier", "")
    return text + layer("copy", "Tile", "last", "copy", f"tile_param {{ axis: 2 tiles: {FRAMES} }}")


def tests() -> str:
    """Returns layers that compare the next frame, in phase TEST, with the one that is made and with a copy of the last
    one."""
    text, cut = "", "include { phase: TEST } slice_param { axis: 2 slice_point: 1 }"
    for blob in ("made", "future"):
        text += layer(f"{blob}_next", "Slice", blob, f"{blob}_next {blob}_rest", cut)
        text += layer(f"{blob}_rest", "Silence", f"{blob}_rest", "", "include { phase: TEST }")
    for name, blob in (("next_frame_error", "made_next"), ("copy_error", "last")):
        text += layer(name, "EuclideanLoss", f"{blob} future_next", name, "include { phase: TEST }")
    return text


def generator(size: Size, lists: dict[str, str]) -> str:
    text, blob = halving("g_down", "past", size.widths)
    for number, (frames, width) in enumerate(size.middle, start=1):
        name, pad = f"g_middle{number}", (frames // 2, 1, 1)
        text += convolution(name, "Convolution", blob, width, (frames, 3, 3), (1, 1, 1), pad) + relu(name)
        blob = name
    for number, width in enumerate((*size.widths[-2::-1], size.channels), start=1):
        name = f"g_up{number}"
        text += convolution(name, "Deconvolution", blob, width, (3, 4, 4), (1, 2, 2), (1, 1, 1))
        text += relu(name) if number < len(size.widths) else ""
        blob = name
    text += layer("made", "Eltwise", f"copy {blob}", "made", "eltwise_param { operation: SUM }")
    weight = 10 / (size.channels * size.side**2)
    text += layer("distance", "EuclideanLoss", "made future", "distance", f"loss_weight: {weight:.6g}")
    return f'name: "video_generator"\n{data(size, lists)}{text}{tests()}'


def discriminator(size: Size) -> str:
    shape = f"dim: 1 dim: {size.channels} dim: {FRAMES} dim: {size.side} dim: {size.side}"
    text = layer("input", "Input", "", "before after", f"input_param {{ shape {{ {shape} }} }}")
    text += layer("d_clip", "Concat", "before after", "d_clip", "concat_param { axis: 2 }")
    layers, blob = halving("d", "d_clip", size.widths)
    text += layers
    for number, width in enumerate(size.behind, start=1):
        name = f"d_behind{number}"
        text += convolution(name, "Convolution", blob, width, (3, 3, 3), (1, 1, 1), (1, 1, 1)) + relu(name)
        blob = name
    body = 'inner_product_param { num_output: 1 weight_filler { type: "xavier" } }'
    return f'name: "video_discriminator"\n{text}{layer("d_score", "InnerProduct", blob, "score", body)}'


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the two nets of a video GAN.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--source", default="examples/adversarial/clips", help="the folder of the lists of clips")
    parser.add_argument("--test_list", default="test.txt", help="the list of clips to test with, in that folder")
    parser.add_argument("--to", type=Path, default=Path("examples/adversarial"), help="the folder to write to")
    options = parser.parse_args()
    size = SIZES[options.size]
    lists = {"TRAIN": f"{options.source}/train.txt", "TEST": f"{options.source}/{options.test_list}"}
    if set('"\\\n') & set("".join(lists.values())):
        parser.error("--source and --test_list: expected names without quotes, backslashes and line ends")
    try:
        (options.to / "video_generator.prototxt").write_text(generator(size, lists))
        (options.to / "video_discriminator.prototxt").write_text(discriminator(size))
    except OSError as error:
        sys.exit(f"{options.to}: cannot be written: {error}")


if __name__ == "__main__":
    main()
