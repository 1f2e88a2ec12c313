"""Draws masks, the class of each pixel, from the polygons and runs by which COCO describes the objects of a picture.

The work is bounded: it is known, and refused if it is too much, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.data.annotations import Thing, got, is_number
from engine.data.pair import IGNORED
from engine.errors import DataError, EngineError, shape_text

_MAX_OUTLINES = 1 << 23  # pixels along all polygons of a picture, which take 0.5 GB and 2 s; COCO's have 20,000
_MAX_DRAWN = 1 << 36  # pixels times objects of a picture, minutes of work: a thousand objects in the largest picture
_AT_ONCE = 16  # polygons drawn at a time: the time grows with the square of this number


def draw_mask(things: Sequence[tuple[int, Thing]], height: int, width: int) -> np.ndarray:
    """Returns the label of each pixel, (height, width) uint8. things: (label, object of COCO).

    A smaller object lies in front of a larger one. Pixels of crowds that belong to no other object are IGNORED. Raises
    DataError."""
    polygons = [_polygons(thing, height, width) for _, thing in things]
    _check_work(things, polygons, height, width)
    mask = np.zeros((height, width), np.uint8, "F")  # column by column, as COCO's runs are
    in_front = np.full((height, width), height * width + 1, np.int64, "F")  # area of the object that each pixel shows
    crowds = np.zeros((height, width), bool, "F")
    for (label, thing), points in zip(things, polygons, strict=True):
        if not 0 < label < IGNORED:
            raise DataError(f"a mask holds labels 1 to {IGNORED - 1}, got {label} of class {thing.name}", thing.where)
        inside = _inside(thing, height, width) if points is None else _inside_polygons(points, height, width)
        if thing.difficult:
            crowds |= inside
            continue
        area = np.count_nonzero(inside)
        shown = inside & (area < in_front)
        np.copyto(mask, label, where=shown)
        np.copyto(in_front, area, where=shown)
    mask[crowds & (mask == 0)] = IGNORED
    return np.ascontiguousarray(mask)


def _check_work(
    things: Sequence[tuple[int, Thing]], polygons: Sequence[list[np.ndarray] | None], height: int, width: int
) -> None:
    """Raises DataError for a picture whose objects would take too much memory or time to draw."""
    if len(things) * height * width > _MAX_DRAWN:
        raise DataError(
            f"the picture has {len(things)} objects in {shape_text((height, width))} pixels; at most "
            f"{_MAX_DRAWN // (height * width)} are drawn",
            things[0][1].where,
        )
    length = 0.0
    for (_, thing), points in zip(things, polygons, strict=True):
        length += sum(map(_outline, points or ()))
        if length > _MAX_OUTLINES:
            raise DataError(
                f"the polygons of the picture are {length:.0f} pixels long up to here, more than {_MAX_OUTLINES}",
                f"{thing.where}.segmentation",
            )


def _inside(thing: Thing, height: int, width: int) -> np.ndarray:
    """Returns, as bools (height, width), which pixels are the object's, by its runs. Raises DataError."""
    of, where = thing.segmentation, f"{thing.where}.segmentation"
    if not isinstance(of, dict):
        raise DataError(f"expected polygons, or runs {{counts, size}}, got {got(of)}", where)
    if of.get("size") != [height, width]:
        raise DataError(f"size: expected the picture's, [{height}, {width}], got {got(of.get('size'))}", where)
    counts = of.get("counts")
    if isinstance(counts, str):
        counts = _unpacked(counts, where)
    if not isinstance(counts, list) or not all(isinstance(run, int) and 0 <= run <= height * width for run in counts):
        raise DataError(f"counts: expected a text, or lengths of runs, got {got(counts)}", where)
    if sum(counts) != height * width:
        raise DataError(
            f"counts: expected runs of {height * width} pixels in all ({shape_text((height, width))}), got "
            f"{sum(counts)}",
            where,
        )
    # Runs of nothing and of the object take turns, column by column.
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def _unpacked(text: str, where: str) -> list[int]:
    """Returns the runs of COCO's compressed form: numbers of 5 bits a character, the lowest first. From the fourth on,
    each is the difference to the number two before it. Raises DataError."""
    # pycocotools leaves pixels behind the last run as they are in memory, so the runs are added up here first.
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise DataError(f"counts: {got(text)} is no compressed mask", where)
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    if shift:
        raise DataError(f"counts: {got(text)} ends within a number", where)
    return runs


def _polygons(thing: Thing, height: int, width: int) -> list[np.ndarray] | None:
    """Returns the points (n, 2) of an object's polygons; None if it has runs. Points beyond the picture's edges are
    moved to the edges, because pycocotools would use memory for what lies there. Raises DataError."""
    if not isinstance(thing.segmentation, list):
        return None
    polygons: list[np.ndarray] = []
    for position, polygon in enumerate(thing.segmentation):
        if not isinstance(polygon, list) or len(polygon) % 2 or not all(map(is_number, polygon)):
            where = f"{thing.where}.segmentation[{position}]"
            raise DataError(f"expected x, y, x, y, ... as numbers, got {got(polygon)}", where)
        if len(polygon) >= 6:  # COCO has some of two points, which hold no pixel
            polygons.append(np.clip(np.array(polygon, np.float64).reshape(-1, 2), 0, (width, height)))
    return polygons


def _outline(polygon: np.ndarray) -> float:
    """Returns how many pixels a polygon's outline goes through: pycocotools uses memory for each."""
    return float(np.abs(polygon - np.roll(polygon, 1, 0)).max(1).sum())


def _inside_polygons(polygons: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Returns, as bools (height, width), which pixels are in a polygon. pycocotools draws them, because COCO's
    evaluation takes its pixels."""
    if not polygons:
        return np.zeros((height, width), bool)
    coco = _pycocotools()
    drawn = coco.frPyObjects([polygon.ravel().tolist() for polygon in polygons], height, width)
    while len(drawn) > 1:
        drawn = [coco.merge(drawn[begin : begin + _AT_ONCE]) for begin in range(0, len(drawn), _AT_ONCE)]
    return coco.decode(drawn[0]).view(bool)


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError:
        raise EngineError(
            "COCO's polygons need pycocotools, which is not installed: pip install 'prototxt-engine[coco]'"
        ) from None
    return mask
