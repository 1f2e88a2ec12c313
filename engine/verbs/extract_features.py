"""Runs the net's phase TEST over its data and writes the named blobs: each to an LMDB of Datums (float_data), or all of
them to one .npz, with an array of shape (samples, ...) under each blob's name.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from engine.verbs.options import add_common, add_consent, comma_separated, positive

ORDER = 140
SUMMARY = "write the blobs of a trained net, sample by sample"
EXAMPLES = [
    "engine extract_features x.caffemodel net.prototxt fc7,prob fc7_lmdb,prob_lmdb 10 lmdb",
    "engine extract_features x.caffemodel net.prototxt fc7 features.npz 10",
]


def _device(text: str) -> str:
    if not re.fullmatch(r"CPU|GPU|(DEVICE_ID=)?\d+", text):
        raise ArgumentTypeError(f"expected CPU or GPU, got {text!r}")
    return text


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "weights", type=comma_separated, metavar="WEIGHTS", help=".caffemodel files, separated by commas"
    )
    parser.add_argument("model", metavar="NET", help="the net, a prototxt")
    parser.add_argument("blobs", type=comma_separated, metavar="BLOBS", help="names of blobs, separated by commas")
    parser.add_argument("outputs", type=comma_separated, metavar="OUT", help="an LMDB for each blob, or one .npz")
    parser.add_argument("batches", type=positive, metavar="BATCHES", help="number of batches to run")
    parser.add_argument(
        "db_type", nargs="?", choices=["lmdb"], help="Caffe's word for what OUT is; lmdb is the only one"
    )
    parser.add_argument(
        "device", nargs="*", type=_device, metavar="CPU|GPU", help="Caffe's words for what computes; have no effect"
    )
    add_consent(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.errors import shape_text
    from engine.inference.extract_features import extract_features
    from engine.report.log import log, set_up
    from engine.report.progress import Progress
    from engine.verbs.runtime import asked_net

    set_up()
    if options.device:
        log(f"{' '.join(options.device)} is ignored: engine computes on processors")
    config = asked_net(options, options.model)
    with Progress("Extracting", line="Extracted features of {done} of {total} batches.") as progress:
        shapes = extract_features(
            config, options.weights, options.blobs, options.outputs, options.batches, progress=progress.update
        )
    for blob, shape in shapes.items():
        log(f"Extracted features of {shape[0]} query images for feature blob {blob}: {shape_text(shape)}")
    return 0
