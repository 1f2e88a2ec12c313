"""The list of windows that R-CNN's tools write: for each picture a header and a line for each window in it.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.config.numbers import whole
from engine.data.image_tree import read_text
from engine.errors import DataError

SIZES = ("channels", "height", "width", "number of windows")
T = TypeVar("T")


@dataclass(frozen=True)
class Window:
    """picture: index into the list of paths; box: inclusive corners x1, y1, x2, y2 in pixels."""

    picture: int
    label: int
    overlap: float
    box: tuple[int, int, int, int]


def read_windows(path: str, root_folder: str, where: str | None) -> tuple[list[str], list[Window]]:
    """(paths of the pictures, all windows). Raises DataError with the line that is wrong."""
    if not path:
        raise DataError("window_data_param.source is missing", where)
    lines = _Lines(path, read_text(path, where))
    pictures: list[str] = []
    windows: list[Window] = []
    while lines.left:
        lines.read("`# number of a picture`", lambda line: line.index("#", 0, 1))
        pictures.append(root_folder + lines.read("the path of a picture", _name))
        _, _, _, count = [lines.read(f"a picture's {what}", _count) for what in SIZES]
        for _ in range(count):
            label, overlap, box = lines.read("`class overlap x1 y1 x2 y2`", _window)
            windows.append(Window(len(pictures) - 1, label, overlap, box))
    if not windows:
        raise DataError(f"{path} has no windows in it", where)
    return pictures, windows


class _Lines:
    """Those that are not empty, one after the other."""

    def __init__(self, path: str, text: str):
        self._path, self._text = path, text.splitlines()
        self._full = [number for number, line in enumerate(self._text, 1) if line.strip()]
        self.left = self._full[::-1]  # numbers

    def read(self, wanted: str, convert: Callable[[str], T]) -> T:
        """What `convert` makes of the next line. Raises DataError with its number where it raises ValueError."""
        if not self.left:
            raise DataError(f"the file ends too early: expected {wanted}", f"{self._path}:{self._full[-1]}")
        number = self.left.pop()
        line = self._text[number - 1].strip()
        try:
            return convert(line)
        except ValueError:
            raise DataError(f"expected {wanted}, got {line!r}", f"{self._path}:{number}") from None


def _name(line: str) -> str:
    if "\0" in line:
        raise ValueError
    return line


def _window(line: str) -> tuple[int, float, tuple[int, int, int, int]]:
    """Raises ValueError, as float() does."""
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
