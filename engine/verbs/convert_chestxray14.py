"""Writes lists of the pictures of ChestX-ray14 to a new folder OUT: train.txt, val.txt and test.txt, a picture and its
14 labels, 0 or 1, on a line, for convert_imageset and ImageData. ROOT holds what the NIH distributes:
Data_Entry_2017.csv, train_val_list.txt, test_list.txt, and the pictures, in images_001/images and so on or in any other
folders. A patient's pictures are all in one list. OUT/labels.txt has the names of the labels, OUT/loss_param.prototxt
CheXNet's weights of them, from the counts of the training pictures.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import number, uint32

ORDER = 93
SUMMARY = "make lists of ChestX-ray14's pictures, divided by patient"
EXAMPLES = [
    "engine convert_chestxray14 CXR8 chestxray14",
    "engine convert_chestxray14 CXR8/images chestxray14 --csv CXR8/Data_Entry_2017_v2020.csv "
    "--train_val_list CXR8/train_val_list.txt --test_list CXR8/test_list.txt",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", help="a folder, .zip or .tar with the pictures")
    parser.add_argument("out", metavar="OUT", help="the folder to create")
    parser.add_argument("--csv", metavar="FILE", help="the NIH's table (default: Data_Entry_2017.csv in ROOT)")
    parser.add_argument(
        "--train_val_list", metavar="FILE", help="pictures to train with (default: train_val_list.txt in ROOT)"
    )
    parser.add_argument("--test_list", metavar="FILE", help="pictures to test with (default: test_list.txt in ROOT)")
    parser.add_argument(
        "--val_fraction",
        type=number,
        default=0.125,
        metavar="F",
        help="set the pictures of this fraction of the training patients, chosen by --seed, aside in val.txt "
        "(default: 0.125)",
    )
    parser.add_argument("--seed", type=uint32, default=1, help="seed of --val_fraction (default: 1)")
    parser.add_argument("--skip_missing", action="store_true", help="leave out pictures that are not in ROOT")


def run(options: Namespace) -> int:
    from engine.data.chest_xray14 import LABELS, convert_chestxray14
    from engine.report.log import log, set_up, warn
    from engine.report.table import table

    set_up()
    found = convert_chestxray14(
        options.root,
        options.out,
        table=options.csv,
        train_val_list=options.train_val_list,
        test_list=options.test_list,
        val_fraction=options.val_fraction,
        seed=options.seed,
        skip_missing=options.skip_missing,
    )
    if found.missing:
        warn(f"{found.missing} pictures are not in {options.root} and are left out")
    parts = list(found.images)
    rows = [
        [label, *(found.with_label[part][i] for part in parts), f"{found.positive_weight[i]:.4f}"]
        for i, label in enumerate(LABELS)
    ]
    rows.append(["patients", *found.patients.values(), ""])
    log(table(["label", *parts, "positive_weight"], rows, total=["pictures", *found.images.values(), ""]))
    for label, count in zip(LABELS, found.with_label["train"]):
        if count == 0:
            warn(f"No training picture has {label}: with the weights of loss_param.prototxt nothing is learned of it")
    log(f"Wrote lists of {sum(found.images.values())} pictures to {options.out}")
    return 0
