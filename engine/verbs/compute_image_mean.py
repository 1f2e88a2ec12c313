"""Writes the mean image of a source as a .binaryproto for transform_param.mean_file, and prints the mean of each
channel for mean_value.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_backend

ORDER = 100
SUMMARY = "average the images of a source"
EXAMPLES = [
    "engine compute_image_mean cifar10_train_lmdb mean.binaryproto",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", help="an LMDB, or any other source of pictures")
    parser.add_argument("out", nargs="?", metavar="OUT", help="the .binaryproto to write (default: print only)")
    add_backend(parser, ("lmdb", "leveldb"))


def run(options: Namespace) -> int:
    from engine.data.compute_image_mean import compute_image_mean
    from engine.report.log import log, set_up
    from engine.report.progress import Progress

    set_up()
    with Progress("Averaging", line="Processed {done} of {total} files.") as progress:
        mean = compute_image_mean(options.db, options.out, progress=progress.update)
    if options.out:
        log(f"Write to {options.out}")
    log(f"Number of channels: {mean.shape[0]}")
    for channel, value in enumerate(mean.mean(axis=(1, 2))):
        log(f"mean_value channel [{channel}]: {value:g}")
    return 0
