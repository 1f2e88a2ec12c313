"""`engine check DB`: decodes every item of a source and lists what is broken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine import proto
from engine.data.decode import AnyImage, ImageError, as_array, decode, decode_mask, parse_annotated, parse_datum
from engine.data.ordered_map import ordered_map
from engine.data.pair import check_pair
from engine.data.registry import open_source, recognised
from engine.errors import DataError, printable, shape_text
from engine.host.cores import cores_at_once

_SHOWN = 5  # sizes that are named, the most frequent first
_TELL_EVERY = 64  # items between two updates of the progress


@dataclass
class DataReport:
    """What was found in a source."""

    path: str
    kind: str
    items: int = 0
    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)  # (c, h, w) of pictures -> how many
    labels: Counter[int] = field(default_factory=Counter)  # label -> how many items
    masks: int = 0  # items that have one
    broken: list[tuple[str, str]] = field(default_factory=list)  # (key, what is wrong)

    def to_json(self) -> dict[str, object]:
        """Returns the report for programs."""
        shapes = [{"shape": list(shape), "items": count} for shape, count in self.shapes.most_common()]
        labels = {str(label): self.labels[label] for label in self.labels}
        broken = [{"key": key, "why": why} for key, why in self.broken]
        return {**vars(self), "shapes": shapes, "labels": labels, "broken": broken}

    def lines(self) -> list[str]:
        """Returns lines for people."""
        shapes = [f"{shape_text(shape)} ({count})" for shape, count in self.shapes.most_common(_SHOWN)]
        more = f" and {len(self.shapes) - _SHOWN} other sizes" if len(self.shapes) > _SHOWN else ""
        lines = [f"{self.path}: {self.kind}, {self.items} items: {', '.join(shapes) or 'nothing decoded'}{more}"]
        if self.labels:
            least, most = min(self.labels.values()), max(self.labels.values())
            classes = f"{len(self.labels)} classes, {min(self.labels)} to {max(self.labels)}"
            lines.append(f"labels: {classes}, {least} to {most} items each")
        if self.masks:
            lines.append(f"masks: {self.masks}")
        lines += [f"broken: '{key}': {why}" for key, why in self.broken]
        return [printable(line) for line in [*lines, f"broken items: {len(self.broken)}"]]


def is_data(path: str) -> bool:
    """Returns whether a path names a source of data. A folder with .prototxt files below it is none."""
    kind = recognised(path)
    if kind == "FOLDER":
        return os.path.isdir(path) and next(Path(path).rglob("*.prototxt"), None) is None
    return bool(kind)


def check_data(path: str, progress: Callable[[int, int], None] | None = None) -> DataReport:
    """Reads and decodes every item. Raises DataError if the source cannot be opened.

    Args:
        progress: is called with the numbers of items done and of all items.
    """
    source = open_source(path)
    report = DataReport(path, recognised(path), len(source))

    def look(index: int) -> tuple[str, tuple[int, ...], proto.Datum | None, str]:
        """Returns (key, shape, Datum, ""), or (key, (), None, what is wrong) for a broken item."""
        key = f"item {index}"
        try:
            key, stored = source.item(index)
            datum = parse_datum(stored) if isinstance(stored, bytes) else stored
            if isinstance(stored, bytes) and not (datum.data or datum.float_data):
                datum = parse_annotated(stored).datum  # an AnnotatedDatum, with boxes
            image = decode(datum)
            if datum.mask:
                check_pair(decode_mask(datum.mask), image)
            return key, _shape(image), datum, ""
        except (DataError, ImageError, MemoryError, ValueError) as error:
            return key, (), None, str(error) or type(error).__name__

    for done, (key, shape, datum, wrong) in enumerate(ordered_map(look, range(len(source)), cores_at_once()), start=1):
        if datum is None:
            report.broken.append((key, wrong))
        else:
            report.shapes[shape] += 1
            report.masks += bool(datum.mask)
            if datum.HasField("label"):
                report.labels[datum.label] += 1
        if progress and (done % _TELL_EVERY == 0 or done == len(source)):
            progress(done, len(source))
    return report


def _shape(image: AnyImage) -> tuple[int, ...]:
    height, width, channels = as_array(image).shape
    return channels, height, width
