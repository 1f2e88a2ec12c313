"""Makes lists of ChestX-ray14 (Wang et al. 2017, arXiv 1705.02315) as the NIH distributes it: pictures with 14 labels
each, divided by patient."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from engine.config.suggestions import suggestion
from engine.data.appearing import new_folder
from engine.data.image_tree import open_tree, read_text
from engine.data.limits import check_within
from engine.data.lmdb_writer import check_new
from engine.errors import DataError

# In the order of table 1 of CheXNet (Rajpurkar et al. 2017, arXiv 1711.05225).
LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
NOTHING = "No Finding"
IMAGE, FINDINGS, PATIENT = "Image Index", "Finding Labels", "Patient ID"
TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")  # the NIH's names; the second is the one of today
TRAIN, VAL, TEST = "train", "val", "test"


@dataclass(frozen=True)
class Entry:
    """A row of the table: the picture's name, the patient, the labels, and the line of the file."""

    image: str
    patient: str
    labels: np.ndarray  # (14), 0 or 1
    line: int


@dataclass
class Lists:
    """Counts of what was written, by part: pictures, patients, and pictures with each label (14).

    positive_weight, negative_weight: of the loss, from the training pictures. missing: the number of pictures of the
    table that are not there."""

    images: dict[str, int] = field(default_factory=dict)
    patients: dict[str, int] = field(default_factory=dict)
    with_label: dict[str, np.ndarray] = field(default_factory=dict)
    positive_weight: list[float] = field(default_factory=list)
    negative_weight: list[float] = field(default_factory=list)
    missing: int = 0


def convert_chestxray14(
    root: str,
    out: str,
    *,
    table: str | None = None,
    train_val_list: str | None = None,
    test_list: str | None = None,
    val_fraction: float = 0.125,
    seed: int = 1,
    skip_missing: bool = False,
) -> Lists:
    """Writes a new folder with train.txt, val.txt and test.txt, which convert_imageset and ImageData read, labels.txt,
    and loss_param.prototxt, the weights of CheXNet's loss.

    Args:
        root: a folder, zip or tar with the pictures, at any depth; the paths in the lists are relative to it.
        table, train_val_list, test_list: the NIH's files; None: of the NIH's names, in root.
        val_fraction: the fraction of the patients of train_val_list whose pictures go to val.txt, chosen by the seed.
        skip_missing: whether to leave out pictures that are not below root.

    A patient's pictures are all in one part. Raises DataError if out exists, a file cannot be read or is wrong, a
    patient is in both lists, or pictures are missing. Raises ConfigError for a val_fraction or seed out of range.
    """
    check_within(0, val_fraction, 0.99, "val_fraction", None)
    check_within(0, seed, 2**32 - 1, "seed", None)
    check_new(out)
    names = open_tree(root).names()
    table = table or _found_table(root, names)
    lists = {
        "train_val": train_val_list or os.path.join(root, "train_val_list.txt"),
        TEST: test_list or os.path.join(root, "test_list.txt"),
    }
    entries = list(read_entries(table))
    paths = _paths(root, names)
    there = [entry for entry in entries if entry.image in paths]
    if len(there) < len(entries) and not (skip_missing and there):
        first = next(entry for entry in entries if entry.image not in paths)
        raise DataError(
            f"{len(entries) - len(there)} of {len(entries)} pictures are not below {root}, the first of them "
            f"{first.image}; --skip_missing leaves them out, if there are any at all",
            f"{table}:{first.line}",
        )
    parts = _divide(there, {entry.image for entry in entries}, lists, table, val_fraction, seed)
    found = Lists(missing=len(entries) - len(there))
    for part, chosen in parts.items():
        found.images[part], found.patients[part] = len(chosen), len({entry.patient for entry in chosen})
        found.with_label[part] = np.sum([entry.labels for entry in chosen], axis=0, dtype=int) + np.zeros(14, int)
    fraction = found.with_label[TRAIN] / max(1, found.images[TRAIN])
    found.positive_weight, found.negative_weight = (1 - fraction).tolist(), fraction.tolist()
    _write(out, parts, paths, found)
    return found


def _found_table(root: str, names: list[str]) -> str:
    for name in TABLES:
        if name in names:
            return os.path.join(root, name)
    raise DataError(f"expected {TABLES[0]} there; name it with --csv", root)


def read_entries(table: str) -> Iterator[Entry]:
    """Yields the rows of the NIH's table, or of one with its first two columns. Raises DataError."""
    rows = csv.reader(read_text(table).removeprefix("\ufeff").splitlines())
    seen: dict[str, int] = {}
    try:
        header = [name.strip() for name in next(rows, [])]
        if missing := [name for name in (IMAGE, FINDINGS) if name not in header]:
            got = ", ".join(header) or "an empty file"
            raise DataError(f"expected a column '{missing[0]}', got {got}", f"{table}:1")
        image, findings = header.index(IMAGE), header.index(FINDINGS)
        patient = header.index(PATIENT) if PATIENT in header else None
        columns = 1 + max(image, findings, patient or 0)
        for row in rows:
            if not any(row):
                continue
            where = f"{table}:{rows.line_num}"
            if len(row) < columns:
                raise DataError(f"expected {columns} columns or more, got {len(row)}", where)
            name = row[image].strip()
            if not name or "/" in name:
                raise DataError(f"expected the name of a picture in '{IMAGE}', got {name!r}", where)
            if name in seen:
                raise DataError(f"{name} is there twice, first in line {seen[name]}", where)
            seen[name] = rows.line_num
            # Without a column of patients, the number that begins the picture's name is the patient: 00000001_000.png
            whose = row[patient].strip() if patient is not None else name.partition("_")[0]
            yield Entry(name, whose, _labels(row[findings], where), rows.line_num)
    except csv.Error as error:
        raise DataError(f"it is no table of comma-separated values: {error}", f"{table}:{rows.line_num}") from None
    if not seen:
        raise DataError("it has no rows below its header", table)


def _labels(text: str, where: str) -> np.ndarray:
    """Returns labels (14), 0 or 1, from names with | between them. Raises DataError."""
    names = [name.strip() for name in text.split("|")]
    labels = np.zeros(len(LABELS), np.int8)
    for name in names:
        if name in LABELS:
            labels[LABELS.index(name)] = 1
        elif name != NOTHING:
            hint = suggestion(name, (*LABELS, NOTHING)) or f"; known: {', '.join(LABELS)}, {NOTHING}"
            raise DataError(f"'{name}' is none of the 14 labels{hint}", where)
    if NOTHING in names and labels.any():
        raise DataError(f"'{NOTHING}' does not go with other labels, got {text!r}", where)
    return labels


def _paths(root: str, names: list[str]) -> dict[str, str]:
    """Returns the paths of pictures below root, by file name. Raises DataError if a name is there twice."""
    paths: dict[str, str] = {}
    for path in names:
        name = path.rpartition("/")[2]
        if not re.search(r"\.(png|jpe?g)$", name, re.IGNORECASE):
            continue
        if name in paths:
            raise DataError(f"{name} is there twice: {paths[name]} and {path}", root)
        paths[name] = path
    return paths


def _divide(
    entries: list[Entry], known: set[str], lists: dict[str, str], table: str, val_fraction: float, seed: int
) -> dict[str, list[Entry]]:
    """Returns the rows of each part, in the table's order. known: all pictures of the table. Raises DataError."""
    part_of: dict[str, str] = {}
    for part, path in lists.items():
        names = read_text(path).split()
        for name in names:
            if part_of.setdefault(name, part) != part:
                raise DataError(f"{name} is also in {lists['train_val']}", path)
    parts: dict[str, list[Entry]] = {"train_val": [], TEST: []}
    part_of_patient: dict[str, str] = {}
    for entry in entries:
        if (part := part_of.get(entry.image)) is None:
            raise DataError(f"{entry.image} is neither in {' nor in '.join(lists.values())}", f"{table}:{entry.line}")
        if part_of_patient.setdefault(entry.patient, part) != part:
            raise DataError(
                f"patient {entry.patient} has pictures in both lists, {entry.image} among them; results on the test "
                "set would be those of patients that the net knows",
                f"{table}:{entry.line}",
            )
        parts[part].append(entry)
    for part, path in lists.items():
        if not parts[part]:
            raise DataError(f"it names none of the pictures of {table}", path)
    for name, part in part_of.items():
        if name not in known:
            raise DataError(f"{name} is not in {table}: the table is cut short, or of another release", lists[part])
    patients = sorted({entry.patient for entry in parts["train_val"]})
    order = np.random.RandomState(seed).permutation(len(patients))
    aside = {patients[index] for index in order[: round(val_fraction * len(patients))]}
    if len(aside) == len(patients):
        raise DataError(f"val_fraction {val_fraction:g} leaves none of {len(patients)} patients for training")
    return {
        TRAIN: [entry for entry in parts["train_val"] if entry.patient not in aside],
        VAL: [entry for entry in parts["train_val"] if entry.patient in aside],
        TEST: parts[TEST],
    }


def _write(out: str, parts: dict[str, list[Entry]], paths: dict[str, str], found: Lists) -> None:
    """Writes the new folder. A part without pictures has no list."""
    texts = {
        f"{part}.txt": "".join(f"{paths[entry.image]} {' '.join(map(str, entry.labels))}\n" for entry in chosen)
        for part, chosen in parts.items()
        if chosen
    }
    texts["labels.txt"] = "".join(f"{label}\n" for label in LABELS)
    weights = (found.positive_weight, found.negative_weight)
    positive, negative = (", ".join(f"{weight:.6g}" for weight in each) for each in weights)
    texts["loss_param.prototxt"] = (
        f"# Of {found.images[TRAIN]} pictures, the share without each label, and with it.\n"
        f"loss_param {{\n    positive_weight: [{positive}]\n    negative_weight: [{negative}]\n}}\n"
    )
    with new_folder(out) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
