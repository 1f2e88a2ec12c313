"""labels.txt: the names of the classes, one per line in the order of the labels, with what convert_imageset writes."""

from __future__ import annotations

import os

from engine.data.shard_writer import unsharded
from engine.data.shards import expand
from engine.errors import DataError
from engine.files import is_regular, read_text

LABELS = "labels.txt"


def format_of(db: str) -> str:
    """Returns "lmdb", "tar" or "tfrecord", by a name."""
    extension = os.path.splitext(db)[1].lower()
    return {".tar": "tar", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}.get(extension, "lmdb")


def labels_file(db: str) -> str:
    """Returns where the names of the classes are written: in an LMDB's folder, beside files."""
    return os.path.join(db, LABELS) if format_of(db) == "lmdb" else f"{os.path.splitext(db)[0]}.{LABELS}"


def labels_files(source: str) -> list[str]:
    """Returns where convert_imageset may have written the names of a source's classes; [] for a pattern of files that
    are not there. source: a database, an LMDB's data.mdb, one shard or a pattern of them."""
    try:
        first = expand(source)[0]
    except DataError:  # whoever reads it says what is wrong
        return []
    db = os.path.dirname(first) if os.path.basename(first) == "data.mdb" else first
    return [labels_file(db), labels_file(unsharded(db))]


def names_written_with(source: str) -> list[str]:
    """Returns the names of a source's classes that convert_imageset has written with it; [] where it has not, and for a
    file that is no text."""
    try:
        return next((read_text(path, DataError).splitlines() for path in labels_files(source) if is_regular(path)), [])
    except DataError:
        return []
