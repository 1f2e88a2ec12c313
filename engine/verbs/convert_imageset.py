"""Writes the images of ROOT, a folder or a .zip (or a folder inside one: data.zip/train), to a new LMDB. LIST has a
line 'relative/path label' for each image; without it, the folders in ROOT are the classes, numbered in alphabetical
order.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import side, uint32

ORDER = 90
SUMMARY = "make an LMDB of images"
EXAMPLES = [
    "engine convert_imageset cifar10.zip/cifar10/train cifar10_train_lmdb --shuffle",
    "engine convert_imageset images/ train.txt train_lmdb --encoded --resize_height 256 --resize_width 256",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", help="a folder or a .zip")
    parser.add_argument(
        "paths", nargs="+", metavar="[LIST] DB", help="the list of images, if there is one; the LMDB to create"
    )
    parser.add_argument("--shuffle", action="store_true", help="write the images in a random order")
    parser.add_argument("--seed", type=uint32, default=1, help="seed of --shuffle (default: 1)")
    parser.add_argument(
        "--resize_height", type=side, default=0, metavar="N", help="0: keep each image's height (default)"
    )
    parser.add_argument(
        "--resize_width", type=side, default=0, metavar="N", help="0: keep each image's width (default)"
    )
    parser.add_argument("--gray", action="store_true", help="store one channel")
    parser.add_argument("--encoded", action="store_true", help="store image files (JPEG, PNG) instead of pixels")
    parser.add_argument(
        "--encode_type",
        default="",
        metavar="KIND",
        help="format of --encoded: jpg, png, bmp (default: each file's own)",
    )
    parser.add_argument(
        "--skip_bad_images", action="store_true", help="leave out images that cannot be decoded, and count them"
    )


def run(options: Namespace) -> int:
    from engine.data.convert_imageset import convert_imageset
    from engine.errors import ConfigError
    from engine.report.log import log, set_up
    from engine.report.progress import Progress
    from engine.verbs.runtime import log_skipped

    *lists, db = options.paths
    if len(lists) > 1:
        raise ConfigError(f"expected ROOT [LIST] DB, got {len(options.paths) + 1} names")
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        done = convert_imageset(
            options.root,
            lists[0] if lists else None,
            db,
            shuffle=options.shuffle,
            seed=options.seed,
            resize_height=options.resize_height,
            resize_width=options.resize_width,
            gray=options.gray,
            encoded=options.encoded,
            encode_type=options.encode_type,
            skip_bad_images=options.skip_bad_images,
            progress=progress.update,
        )
    log_skipped(done.skipped)
    log(f"Wrote {done.images} images to {db}")
    return 0
