"""Writes the images of ROOT to a new LMDB, or, where DB is named so, a .tar or .tfrecord. ROOT is a folder, a .zip, a
.tar (or a folder inside one: data.zip/train), or any other source: TFRecords, a .rec, a LevelDB, an LMDB. LIST has a
line 'relative/path label' for each image, with several labels or the path of a mask in place of the label; without it,
the folders in ROOT are the classes, numbered in alphabetical order.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_backend, add_output, number, positive, uint32

ORDER = 90
SUMMARY = "make an LMDB, a tar or TFRecords of images"
EXAMPLES = [
    "engine convert_imageset cifar10.zip/cifar10/train cifar10_train_lmdb --shuffle",
    "engine convert_imageset images/ train.txt train_lmdb --encoded --resize_height 256 --resize_width 256",
    "engine convert_imageset ILSVRC2012_img_train.tar train.tar --shorter_side 256 --quality 90 --shards 64 --shuffle",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", help="a folder, a .zip, a .tar, or any other source")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="[LIST] DB",
        help="the list of images, if there is one; the LMDB, .tar or .tfrecord to create",
    )
    parser.add_argument("--shuffle", action="store_true", help="write the images in a random order")
    parser.add_argument("--seed", type=uint32, default=1, help="seed of --shuffle (default: 1)")
    add_output(parser)
    add_backend(parser, ("lmdb",))
    parser.add_argument("--check_size", action="store_true", help="end with an error if pictures differ in size")
    parser.add_argument(
        "--shards", type=positive, default=0, metavar="N", help="write N files x-000000.tar ... of a .tar or .tfrecord"
    )
    parser.add_argument(
        "--val_fraction",
        type=number,
        default=0.0,
        metavar="F",
        help="set this fraction of the images, chosen by --seed, aside in DB_val",
    )
    parser.add_argument(
        "--skip_bad_images", action="store_true", help="leave out images that cannot be decoded, and count them"
    )


def run(options: Namespace) -> int:
    from engine.data.convert_imageset import convert_imageset
    from engine.data.labels import format_of
    from engine.errors import ConfigError
    from engine.report.log import log, set_up
    from engine.report.progress import Progress
    from engine.verbs.runtime import asked_output, log_skipped, refuse_idle

    *lists, db = options.paths
    if len(lists) > 1:
        raise ConfigError(f"expected ROOT [LIST] DB, got {len(options.paths) + 1} names")
    if not (options.shuffle or options.val_fraction):
        refuse_idle(options, ("--seed",), "without --shuffle or --val_fraction")
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        done = convert_imageset(
            options.root,
            lists[0] if lists else None,
            db,
            asked_output(options, format_of(db) == "lmdb"),
            shuffle=options.shuffle,
            seed=options.seed,
            shards=options.shards,
            val_fraction=options.val_fraction,
            check_size=options.check_size,
            skip_bad_images=options.skip_bad_images,
            progress=progress.update,
        )
    log_skipped([name for name, _ in done.skipped])
    for line in done.table():
        log(line)
    for name, images in done.outputs.items():
        log(f"Wrote {images} images to {name}")
    return 0
