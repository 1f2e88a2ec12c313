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

from collections.abc import Iterator
from dataclasses import dataclass

from engine.data.image_tree import read_text
from engine.errors import DataError


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
    lines = enumerate(read_text(path).splitlines(), 1)
    full = ((number, line.strip()) for number, line in lines if line.strip())
    pictures: list[str] = []
    windows: list[Window] = []
    for number, line in full:
        try:
            if not line.startswith("#"):
                raise ValueError(f"expected `# number of a picture`, got {line!r}")
            name = next(full)[1]
            count = [int(next(full)[1]) for _ in range(4)][-1]
            windows += _windows(full, len(pictures), count)
            pictures.append(root_folder + name)
        except (ValueError, StopIteration, RuntimeError) as error:
            reason = str(error) or "the file ends too early"
            raise DataError(f"in the picture that begins here: {reason}", f"{path}:{number}") from None
    if not windows:
        raise DataError(f"{path} has no windows in it", where)
    return pictures, windows


def _windows(lines: Iterator[tuple[int, str]], picture: int, count: int) -> list[Window]:
    windows = []
    for _ in range(count):
        label, overlap, *corners = next(lines)[1].split()
        box = tuple(int(corner) for corner in corners)
        if len(box) != 4 or box[0] > box[2] or box[1] > box[3]:
            raise ValueError(f"expected `class overlap x1 y1 x2 y2`, got the corners {corners}")
        windows.append(Window(picture, int(label), float(overlap), box))
    return windows
