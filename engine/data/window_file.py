"""Reads the list of windows that R-CNN's tools write: for each picture a header and a line for each window in it.

    # 0
    pictures/000001.jpg
    3
    500
    353
    2
    12 0.83 48 240 195 371
    0 0.10 8 12 352 498

Picture number, path, channels, height, width, number of windows; then class, overlap and the corners x1 y1 x2 y2.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.config.numbers import whole
from engine.data.image_tree import read_text
from engine.errors import DataError

SIZES = ("channels", "height", "width", "number of windows")
T = TypeVar("T")


@dataclass(frozen=True)
class Window:
    """A window of a picture. picture: index into the list of paths. overlap: with the object of class `label`, 0 to 1.
    box: corners x1, y1, x2, y2 in pixels, all inclusive."""

    picture: int
    label: int
    overlap: float
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Windows:
    """All windows of a list, which may be many millions, in arrays (n,), and their boxes in one (n, 4)."""

    pictures: np.ndarray
    labels: np.ndarray
    overlaps: np.ndarray
    boxes: np.ndarray

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Window:
        x1, y1, x2, y2 = self.boxes[index].tolist()
        picture, label, overlap = (values[index].item() for values in (self.pictures, self.labels, self.overlaps))
        return Window(picture, label, overlap, (x1, y1, x2, y2))


def read_windows(path: str, root_folder: str, where: str | None) -> tuple[list[str], Windows]:
    """Returns (paths of the pictures, all windows). Raises DataError with the line that is wrong."""
    if not path:
        raise DataError("window_data_param.source is missing", where)
    lines = _Lines(path, read_text(path, where, "a text file of pictures and their windows"))
    pictures: list[str] = []
    # Overlaps have 32 bits, as in Caffe: an overlap of 0.6 with 64 bits is less than the threshold 0.6 with 32.
    of_pictures, labels, overlaps, boxes = array("i"), array("i"), array("f"), array("i")
    while lines.left:
        lines.read("`# number of a picture`", lambda line: line.index("#", 0, 1))
        pictures.append(root_folder + lines.read("the path of a picture", _name))
        _, _, _, count = [lines.read(f"a picture's {what}", _count) for what in SIZES]
        for _ in range(count):
            label, overlap, box = lines.read("`class overlap x1 y1 x2 y2`", _window)
            of_pictures.append(len(pictures) - 1)
            labels.append(label)
            overlaps.append(overlap)
            boxes.extend(box)
    if not labels:
        raise DataError(f"{path} has no windows in it", where)
    return pictures, Windows(
        *(np.asarray(of_pictures), np.asarray(labels), np.asarray(overlaps), np.asarray(boxes).reshape(-1, 4))
    )


class _Lines:
    """The lines of a text that are not empty, one after the other."""

    def __init__(self, path: str, text: str):
        self._path, self._lines, self._number = path, _numbered(text), 0
        self._next = next(self._lines, None)

    @property
    def left(self) -> bool:
        return self._next is not None

    def read(self, wanted: str, convert: Callable[[str], T]) -> T:
        """Returns convert(next line). Raises DataError with the line's number if convert raises ValueError, or if there
        are no more lines. wanted: what was expected, for the message."""
        if self._next is None:
            raise DataError(f"the file ends too early: expected {wanted}", f"{self._path}:{self._number}")
        self._number, line = self._next
        self._next = next(self._lines, None)
        try:
            return convert(line)
        except ValueError:
            raise DataError(f"expected {wanted}, got {line!r}", f"{self._path}:{self._number}") from None


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of the lines that are not empty: a list of all would take several times the text's
    memory."""
    begin, number = 0, 0
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        number += 1
        if line := text[begin:end].strip():
            yield number, line
        begin = end + 1


def _name(line: str) -> str:
    if "\0" in line:
        raise ValueError
    return line


def _window(line: str) -> tuple[int, float, tuple[int, int, int, int]]:
    """Parses (label, overlap, corners) of a window. Raises ValueError."""
    label, overlap, *corners = line.split()
    x1, y1, x2, y2 = (_number(corner) for corner in corners)
    if x1 > x2 or y1 > y2 or not 0 <= float(overlap) <= 1:
        raise ValueError
    return _number(label), float(overlap), (x1, y1, x2, y2)


def _number(text: str, low: int = -(2**31)) -> int:
    value = whole(text, low, 2**31 - 1)
    if value is None:
        raise ValueError
    return value


def _count(text: str) -> int:
    return _number(text, 0)
