"""Writes pictures and the objects in them to a new LMDB: boxes, for AnnotatedData layers, or, with --masks, a class for
each pixel, for Data layers. ANNOTATIONS is COCO's instances_*.json, ROOT the folder of its pictures; or ANNOTATIONS is
an image set of Pascal VOC, ImageSets/*/*.txt, ROOT the folder that has Annotations, JPEGImages and SegmentationClass.
ROOT may be a .zip or .tar, or a folder in one. COCO's crowds become difficult boxes, or in masks pixels that do not
count (255), as VOC's borders do. Boxes are cut at the edges of their pictures, and those without an area are left out.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_output, uint32

ORDER = 91
SUMMARY = "make an LMDB of VOC's or COCO's boxes or masks"
EXAMPLES = [
    "engine convert_annotations VOCdevkit/VOC2007 VOCdevkit/VOC2007/ImageSets/Main/trainval.txt voc_lmdb --encoded",
    "engine convert_annotations val2017.zip annotations/instances_val2017.json val_lmdb --encoded "
    "--label_map train_lmdb/labelmap.prototxt",
    "engine convert_annotations VOC2012 VOC2012/ImageSets/Segmentation/train.txt segments_lmdb --masks --encoded",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", help="COCO's pictures, or a folder as VOC2007")
    parser.add_argument("annotations", metavar="ANNOTATIONS", help="instances_*.json, or ImageSets/*/*.txt")
    parser.add_argument("db", metavar="DB", help="the LMDB to create")
    parser.add_argument("--masks", action="store_true", help="write classes of pixels, not boxes")
    parser.add_argument(
        "--label_map",
        metavar="FILE",
        help="a labelmap.prototxt that numbers the classes, SSD's or another LMDB's (default: VOC's by their names, "
        "COCO's by the numbers of the categories, from 1)",
    )
    parser.add_argument("--shuffle", action="store_true", help="write the pictures in a random order")
    parser.add_argument("--seed", type=uint32, default=1, help="seed of --shuffle (default: 1)")
    add_output(parser)
    parser.add_argument(
        "--skip_bad_images", action="store_true", help="leave out pictures that cannot be decoded, and count them"
    )


def run(options: Namespace) -> int:
    from engine.data.convert_annotations import convert_annotations
    from engine.report.log import log, set_up, warn
    from engine.report.progress import Progress
    from engine.verbs.runtime import asked_output, log_skipped, refuse_idle

    if not options.shuffle:
        refuse_idle(options, ("--seed",), "without --shuffle")
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        done = convert_annotations(
            options.root,
            options.annotations,
            options.db,
            asked_output(options, database=True),
            masks=options.masks,
            label_map=options.label_map,
            shuffle=options.shuffle,
            seed=options.seed,
            skip_bad_images=options.skip_bad_images,
            progress=progress.update,
        )
    log_skipped(list(done.skipped))
    if done.empty:
        warn(f"{len(done.empty)} boxes have no area and are left out, the first at {done.empty[0]}")
    if done.cut:
        warn(f"{done.cut} boxes reach out of their pictures and are cut at the edges")
    for line in done.table(options.masks):
        log(line)
    log(f"Wrote {done.written} images to {options.db}")
    return 0
