"""Writes annotations of Pascal VOC and COCO to an LMDB: as AnnotatedDatums, as SSD's create_annoset does, for
AnnotatedData layers; or as Datums with masks, for Data layers."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from engine import proto
from engine.config.label_map import label_map_text
from engine.data.annotations import (
    BACKGROUND,
    Annotations,
    Scene,
    Thing,
    is_coco,
    known_labels,
    label_map_of,
    label_of,
    read_annotations,
)
from engine.data.coco_masks import draw_mask
from engine.data.convert_imageset import Output
from engine.data.decode import ImageError, as_pillow, decode_mask, open_image
from engine.data.labels import LABELS
from engine.data.limits import check_within
from engine.data.lmdb_writer import check_new, new_lmdb
from engine.data.ordered_map import ordered_map
from engine.data.pair import IGNORED
from engine.data.readers.annotated import MAX_BOXES
from engine.errors import DataError, shape_text
from engine.host.cores import cores_at_once

LABEL_MAP, NAME_SIZE = "labelmap.prototxt", "name_size.txt"  # beside the data, in the LMDB's folder
_TELL_EVERY = 16


@dataclass
class Conversion:
    """What convert_annotations did.

    By label: things, the number of boxes, or with masks of pixels; images, the number of pictures that have it;
    difficult, the number of difficult boxes; names.
    empty: the places of boxes without an area, which are left out. cut: boxes that reached out of their pictures."""

    written: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # picture -> why it could not be decoded
    things: Counter[int] = field(default_factory=Counter)
    images: Counter[int] = field(default_factory=Counter)
    difficult: Counter[int] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)
    cut: int = 0
    names: dict[int, str] = field(default_factory=dict)

    def table(self, masks: bool) -> list[str]:
        """Returns a line for each class: its label, its name, and how much there is of it."""
        lines = []
        for label in sorted({*self.things, *self.names} - (set() if masks else {0})):
            name = f" {self.names[label]}" if label in self.names else " not counted" if label == IGNORED else ""
            difficult = f", {self.difficult[label]} of them difficult" if self.difficult[label] else ""
            what = "pixels" if masks else "boxes"
            lines.append(f"class {label}{name}: {self.things[label]} {what} in {self.images[label]} images{difficult}")
        return lines


@dataclass
class _Made:
    """What is stored of a picture, and what it adds to the counts."""

    scene: Scene
    stored: bytes = b""
    size: tuple[int, int] = (0, 0)  # width, height of the picture as it is there
    things: Counter[int] = field(default_factory=Counter)
    difficult: Counter[int] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)
    cut: int = 0
    bad: DataError | None = None  # where the picture cannot be decoded


def convert_annotations(
    root: str,
    annotations: str,
    db: str,
    output: Output | None = None,
    *,
    masks: bool = False,
    label_map: str | None = None,
    shuffle: bool = False,
    seed: int = 1,
    skip_bad_images: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Writes pictures with their boxes, or with masks, to a new LMDB.

    Args:
        root, annotations: as read_annotations() takes them.
        output: what the pictures become; boxes are fractions of their sides, masks change with them.
        label_map: a labelmap.prototxt, SSD's or another part's; None: labels from 1, of VOC by the names, of COCO by
            the numbers of the categories.
        progress: is called with (done, total) now and then.

    Keys are "%08d_name", counted after the shuffle. The LMDB's folder has a label map (of masks labels.txt) and
    name_size.txt, a line `name height width` for each picture. Raises DataError if db exists, a file is missing or
    wrong, or a picture cannot be decoded (unless skip_bad_images). Then nothing is left behind.
    """
    output = output or Output()
    output.check()
    if output.encode_type:
        output = replace(output, encoded=True)
    check_within(0, seed, 2**32 - 1, "seed", None)
    check_new(db)
    found = read_annotations(root, annotations, masks)
    wanted = known_labels(label_map) if label_map else label_map_of(found.classes)
    has_names = not masks or label_map or is_coco(annotations)  # a palette's numbers have none
    names = _names_of(wanted, masks) if has_names else {}
    labels = {item.name: item.label for item in wanted.item}
    make = _Maker(found, output, masks, labels, names, label_map or annotations)
    order = np.random.RandomState(seed).permutation(len(found.scenes)) if shuffle else np.arange(len(found.scenes))
    texts = {NAME_SIZE: "", **_texts_of(wanted, names, masks)}
    conversion = Conversion(names=names)
    results = ordered_map(make, [found.scenes[index] for index in order], cores_at_once())
    sizes: list[str] = []
    with contextlib.closing(results), new_lmdb(db, texts) as put:
        for done, each in enumerate(results, start=1):
            if each.bad and not skip_bad_images:
                raise each.bad
            if each.bad:
                conversion.skipped[each.scene.path] = str(each.bad)
            else:
                put(f"{conversion.written:08d}_{each.scene.name}".encode(errors="surrogateescape"), each.stored)
                sizes.append(f"{each.scene.name} {each.size[1]} {each.size[0]}\n")
                _count(conversion, each)
            if progress and (done % _TELL_EVERY == 0 or done == len(order)):
                progress(done, len(order))
        if not conversion.written:
            raise DataError(f"none of its {len(order)} pictures can be decoded", annotations)
        texts[NAME_SIZE] = "".join(sizes)
    return conversion


def _names_of(wanted: proto.LabelMap, masks: bool) -> dict[int, str]:
    """Returns the classes' names by label."""
    names = {item.label: item.display_name or item.name for item in wanted.item}
    if masks:
        names.setdefault(0, BACKGROUND[1])
    return names


def _texts_of(wanted: proto.LabelMap, names: dict[int, str], masks: bool) -> dict[str, str]:
    """Returns the files that tell the classes of an LMDB, as texts by their names: a label map or, with masks, a line
    for each label."""
    if not masks:
        return {LABEL_MAP: label_map_text(wanted)}
    if not names:
        return {}
    return {LABELS: "".join(f"{names.get(label, label)}\n" for label in range(max(names) + 1))}


def _count(conversion: Conversion, made: _Made) -> None:
    conversion.written += 1
    conversion.things += made.things
    conversion.difficult += made.difficult
    conversion.images.update(made.things.keys())
    conversion.empty += made.empty
    conversion.cut += made.cut


class _Maker:
    """Makes what is stored of a scene. labels: by the names of classes. path: the file that has these."""

    def __init__(
        self,
        found: Annotations,
        output: Output,
        masks: bool,
        labels: dict[str, int],
        names: dict[int, str],
        path: str,
    ):
        self._tree, self._output, self._masks = found.tree, output, masks
        self._labels, self._names, self._path = labels, names, path

    def __call__(self, scene: Scene) -> _Made:
        """Returns what is stored of a scene; for a picture that cannot be decoded, why (`bad`). Raises DataError."""
        made = _Made(scene)
        try:
            data = self._tree.read(scene.path)
            made.size = open_image(data).size
            if scene.size not in (None, made.size):  # boxes of another picture would be wrong
                raise DataError(
                    f"expected {scene.path} of {shape_text(scene.size or ())} pixels (width x height), as its "
                    f"annotations say; it has {shape_text(made.size)}",
                    scene.where,
                )
            (self._add_mask if self._masks else self._add_boxes)(made, data)
        except ImageError as error:
            made.bad = DataError(f"{scene.path}: {error}", scene.where)
        return made

    def _add_boxes(self, made: _Made, data: bytes) -> None:
        stored = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
        groups: dict[int, proto.AnnotationGroup] = {}
        stored.datum.CopyFrom(self._output.datum(proto.Datum(encoded=True, data=data))[0])
        stored.datum.label = -1  # as create_annoset's: the boxes have labels
        for thing in made.scene.things:
            label = label_of(thing, self._labels, self._path)
            corners = _within(thing, made)
            if corners is None:
                continue
            if label not in groups:
                groups[label] = stored.annotation_group.add(group_label=label)
            instance = len(groups[label].annotation)
            box = groups[label].annotation.add(instance_id=instance).bbox
            box.xmin, box.ymin, box.xmax, box.ymax = corners
            box.difficult = thing.difficult
            made.things[label] += 1
            made.difficult[label] += thing.difficult
        if (count := made.things.total()) > MAX_BOXES:
            raise DataError(
                f"{made.scene.path} has {count} boxes, at most {MAX_BOXES} are held by AnnotatedData", made.scene.where
            )
        made.stored = stored.SerializeToString()

    def _add_mask(self, made: _Made, data: bytes) -> None:
        scene, (width, height) = made.scene, made.size
        datum = proto.Datum(encoded=True, data=data)
        if scene.mask:
            datum.mask = self._tree.read(scene.mask)
        else:
            known = [(label_of(thing, self._labels, self._path), thing) for thing in scene.things]
            drawn = io.BytesIO()
            as_pillow(draw_mask(known, height, width)[:, :, np.newaxis]).save(drawn, "PNG")
            datum.mask = drawn.getvalue()
        datum, _ = self._output.datum(datum)
        counts = np.bincount(np.asarray(decode_mask(datum.mask)).ravel())
        made.things = Counter({int(label): int(counts[label]) for label in np.flatnonzero(counts)})
        if unknown := self._names and [label for label in made.things if label not in (*self._names, IGNORED)]:
            raise DataError(f"{scene.mask} has pixels of class {unknown[0]}, which {self._path} has not", scene.where)
        made.stored = datum.SerializeToString()


def _within(thing: Thing, made: _Made) -> tuple[float, float, float, float] | None:
    """Returns the box in fractions of the picture's sides, cut at its edges; None for one without an area. As in
    create_annoset, VOC's pixels are divided by the sides as they are, though they count from 1. Raises DataError."""
    x1, y1, x2, y2 = thing.box
    width, height = made.size
    text = " ".join(f"{value:g}" for value in thing.box)
    if x2 < x1 or y2 < y1:
        raise DataError(f"expected a box whose first corner is above and left of its second; got {text}", thing.where)
    if x1 == x2 or y1 == y2:
        made.empty.append(thing.where)
        return None
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        raise DataError(f"expected a box in the picture, {width} x {height} pixels; got {text}", thing.where)
    made.cut += min(x1, y1) < 0 or x2 > width or y2 > height
    return max(x1, 0.0) / width, max(y1, 0.0) / height, min(x2, width) / width, min(y2, height) / height
