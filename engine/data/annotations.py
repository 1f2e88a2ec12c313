"""Reads the annotations of Pascal VOC and COCO: pictures with objects in them.

The files are checked here, and errors name the file and the key. No entity of an XML file is expanded, and no path may
lead out of the folder of pictures.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from engine import proto
from engine.config.label_map import read_label_map
from engine.config.numbers import number
from engine.config.suggestions import suggestion
from engine.data.decode import FORMATS
from engine.data.image_tree import Tree, open_tree, read_text
from engine.errors import DataError

# In the order of their labels, which begin at 1; VOC's own palette masks have the same labels.
VOC_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor"
).split()
BACKGROUND = ("none_of_the_above", "background")  # name and display_name of label 0 in SSD's label maps
_MAX_LABEL = 65535  # a list with the names of all labels up to the largest is written
_LONE = re.compile("[\ud800-\udfff]")  # half of a character, as JSON may have it: it cannot be written to a file
_MAX_XML = 1 << 24  # characters; VOC's longest file has 20,000
_SHOWN = 60  # characters of a wrong value


@dataclass(frozen=True)
class Thing:
    """An object in a picture.

    name: its class, by the label map's `name`. box: x1, y1, x2, y2 in pixels. difficult: as VOC says; for COCO, whether
    it is a crowd. where: the file and the key, for messages. segmentation: COCO's polygons or runs."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool
    where: str
    segmentation: Any = None


@dataclass
class Scene:
    """A picture with its objects.

    name: VOC's name, or COCO's number. path: of the picture, below the root. where: the file and the key, for messages.
    size: (width, height), if the annotations say it. mask: the path of VOC's palette picture."""

    name: str
    path: str
    where: str
    size: tuple[int, int] | None = None
    things: list[Thing] = field(default_factory=list)
    mask: str = ""


@dataclass
class Annotations:
    """The annotations of a part of a data set. classes: name -> display name, in the order of their labels from 1."""

    tree: Tree
    scenes: list[Scene]
    classes: dict[str, str]


def read_annotations(root: str, annotations: str, masks: bool = False) -> Annotations:
    """Reads annotations: COCO's, if `annotations` is a .json, else those of an image set of VOC.

    Args:
        root: COCO's folder of pictures, or VOC's folder with Annotations and JPEGImages; also in a .zip or .tar.
        annotations: instances_*.json, or ImageSets/*/*.txt.
        masks: whether to read the classes of pixels, and not boxes.

    Raises DataError for a file that is missing or wrong.
    """
    tree = open_tree(root)
    found = _Coco(tree, annotations).read(masks) if is_coco(annotations) else _read_voc(tree, root, annotations, masks)
    for scene in found.scenes:
        path = PurePosixPath(scene.path)
        if path.is_absolute() or ".." in path.parts or "\0" in scene.path:
            raise DataError(f"{got(scene.path)} leads out of {root}; expected a path below it", scene.where)
        if not tree.has(scene.path):
            raise DataError(f"{scene.path} is not in {root}", scene.where)
    return found


def is_coco(annotations: str) -> bool:
    return annotations.lower().endswith(".json")


def label_map_of(classes: dict[str, str]) -> proto.LabelMap:
    """Returns a label map like SSD's: the background, then the classes."""
    labels = proto.LabelMap()
    for label, (name, display_name) in enumerate([BACKGROUND, *classes.items()]):
        labels.item.add(name=name, label=label, display_name=display_name)
    return labels


def known_labels(path: str) -> proto.LabelMap:
    """Reads a label map. Raises DataError if an item lacks its name or label, or has that of another one; ConfigError
    if it cannot be read."""
    labels = read_label_map(path)
    if labels is None:
        raise DataError("expected a label map: item { name: ... label: ... }", path)
    seen: dict[object, proto.LabelMapItem] = {}
    for item in labels.item:
        if not item.name or not item.HasField("label") or not 0 <= item.label <= _MAX_LABEL:
            raise DataError(f"expected items with a name and a label of 0 to {_MAX_LABEL}, got {got(str(item))}", path)
        for key in (item.name, item.label):
            if key in seen:
                raise DataError(f"expected each name and label once, got {key!r} twice", path)
            seen[key] = item
    return labels


def label_of(thing: Thing, labels: dict[str, int], path: str) -> int:
    """Returns the label of an object. labels: those of the label map at `path`, by name. Raises DataError for an object
    of another class."""
    label = labels.get(thing.name, 0)
    if label == 0:  # no class has this name, or it is the background's
        raise DataError(f"'{thing.name}' is no class of {path}{suggestion(thing.name, labels)}", thing.where)
    return label


def got(value: object) -> str:
    """Returns a wrong value as errors show it: in one line, cut if it is long."""
    text = re.sub(r"\s+", " ", value if isinstance(value, str) else repr(value))
    return repr(text[:_SHOWN]) if isinstance(value, str) else text[:_SHOWN]


def is_number(value: object) -> bool:
    """Returns whether a value of JSON can be a coordinate."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


# VOC


def _read_voc(tree: Tree, root: str, list_file: str, masks: bool) -> Annotations:
    """Reads the pictures of a list, in its order, and the XML file of each, or with masks its mask instead."""
    scenes: list[Scene] = []
    lines: dict[str, int] = {}
    for line, text in enumerate(read_text(list_file).splitlines(), 1):
        if not (words := text.split()):
            continue
        where, name = f"{list_file}:{line}", words[0]
        if len(words) > 1:
            raise DataError(f"expected the name of a picture, without its folder and extension, got {got(text)}", where)
        if name in lines:
            raise DataError(f"{name} is there twice, first in line {lines[name]}", where)
        lines[name] = line
        path = f"JPEGImages/{name}"
        path += next((extension for extension in FORMATS if tree.has(path + extension)), ".jpg")
        scene = Scene(name, path, where)
        if ".." in PurePosixPath(path).parts:
            raise DataError(f"{got(name)} leads out of the folder; expected the name of a picture", where)
        if masks:
            scene.mask = f"SegmentationClass/{name}.png"
            if not tree.has(scene.mask):
                raise DataError(f"{scene.mask} is not there; is this an image set of ImageSets/Segmentation?", where)
        else:
            _read_voc_xml(tree, root, scene)
        scenes.append(scene)
    if not scenes:
        raise DataError("it names no pictures", list_file)
    names = {thing.name for scene in scenes for thing in scene.things}
    classes = VOC_CLASSES if names <= set(VOC_CLASSES) else sorted(names)
    return Annotations(tree, scenes, {name: name for name in classes})


def _read_voc_xml(tree: Tree, root: str, scene: Scene) -> None:
    """Adds what the picture's XML file says of it."""
    path = f"Annotations/{scene.name}.xml"
    if not tree.has(path):
        raise DataError(f"{path} is not there", scene.where)
    document = _parse_xml(tree.read(path), f"{root}/{path}")
    size = document.find("size")
    if size is not None:
        width, height = (_xml_number(size, side, f"{root}/{path}: size") for side in ("width", "height"))
        if width or height:  # some files have 0 for a size that nobody knew
            scene.size = int(width), int(height)
    for position, element in enumerate(document.findall("object"), 1):
        where = f"{root}/{path}: object {position}"
        box = element.find("bndbox")
        if box is None:
            raise DataError("expected a <bndbox>, got none", where)
        name = (element.findtext("name") or "").strip()
        if not name:
            raise DataError("expected a <name>, got none", where)
        difficult = (element.findtext("difficult") or "0").strip()
        if difficult not in ("0", "1"):
            raise DataError(f"difficult: expected 0 or 1, got {got(difficult)}", where)
        x1, y1, x2, y2 = (_xml_number(box, side, f"{where}: bndbox") for side in ("xmin", "ymin", "xmax", "ymax"))
        scene.things.append(Thing(name, (x1, y1, x2, y2), difficult == "1", where))


def _parse_xml(data: bytes, where: str) -> ElementTree.Element:
    """Returns the root <annotation>. A document that declares a type is refused: its entities could expand without end,
    or name other files."""
    try:
        text = data.decode("utf-8-sig")
        if len(text) > _MAX_XML:
            raise DataError(f"it has {len(text)} characters, more than {_MAX_XML}", where)
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise DataError("it declares a document type; expected plain elements: take <!DOCTYPE ...> out", where)
        root = ElementTree.fromstring(text)
    except UnicodeDecodeError as error:
        raise DataError(f"cannot be read: byte {error.start} is not UTF-8", where) from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"it is no XML: {error}", where) from None
    if root.tag != "annotation":
        raise DataError(f"expected <annotation> as its root, got <{got(root.tag)}>", where)
    return root


def _xml_number(element: ElementTree.Element, tag: str, where: str) -> float:
    text = (element.findtext(tag) or "").strip()
    value = number(text)
    if value is None or not math.isfinite(value):
        raise DataError(f"{tag}: expected a number, got {got(text) if text else 'none'}", where)
    return value


# COCO


class _Coco:
    """A file of instances. Errors name the file and the key."""

    def __init__(self, tree: Tree, path: str):
        self._tree, self._path = tree, path
        try:
            self._content = json.loads(read_text(path), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise DataError(f"it is no JSON: {error}", path) from None

    def read(self, masks: bool) -> Annotations:
        """Returns the pictures in the order of their numbers, each with its objects in the file's order."""
        classes: dict[int, str] = {}
        for key, category in self._list("categories"):
            number = self._whole(category, key, "id")
            if number in classes:
                raise self._error(f"{key}.id", f"{number} is there twice")
            classes[number] = self._get(category, key, "name", str, "a name")
        scenes: dict[int, Scene] = {}
        for key, image in self._list("images"):
            number = self._whole(image, key, "id")
            if number in scenes:
                raise self._error(f"{key}.id", f"{number} is there twice")
            file_name = self._get(image, key, "file_name", str, "the name of a file")
            size = self._whole(image, key, "width", 1), self._whole(image, key, "height", 1)
            scenes[number] = Scene(str(number), file_name, f"{self._path}: {key}.file_name", size)
        if not scenes:
            raise self._error("images", "expected pictures, got an empty list")
        for key, annotation in self._list("annotations"):
            image, category = (self._whole(annotation, key, of) for of in ("image_id", "category_id"))
            for of, value, known in (("image", image, scenes), ("category", category, classes)):
                if value not in known:
                    raise self._error(f"{key}.{of}_id", f"no {of} has the id {value}")
            crowd = annotation.get("iscrowd", 0)
            if crowd not in (0, 1):
                raise self._error(f"{key}.iscrowd", f"expected 0 or 1, got {got(crowd)}")
            thing = Thing(
                str(category),
                self._box(annotation, key) if not masks else (0.0, 0.0, 0.0, 0.0),
                bool(crowd),
                f"{self._path}: {key}",
                annotation.get("segmentation") if masks else None,
            )
            scenes[image].things.append(thing)
        return Annotations(
            self._tree,
            [scenes[number] for number in sorted(scenes)],
            {str(number): classes[number] for number in sorted(classes)},
        )

    def _error(self, key: str, message: str) -> DataError:
        return DataError(f"{key}: {message}", self._path)

    def _list(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Returns (key, object) for each object of a list of the file."""
        if not isinstance(self._content, dict) or not isinstance(self._content.get(name), list):
            raise self._error(name, "expected a list, as in COCO's instances_*.json; got none")
        for position, each in enumerate(self._content[name]):
            if not isinstance(each, dict):
                raise self._error(f"{name}[{position}]", f"expected an object, got {got(each)}")
        return [(f"{name}[{position}]", each) for position, each in enumerate(self._content[name])]

    def _get(self, of: dict[str, Any], key: str, name: str, kind: type, wanted: str) -> Any:
        value = of.get(name)
        lone = isinstance(value, str) and _LONE.search(value)
        if not isinstance(value, kind) or isinstance(value, bool) or value == "" or lone:
            raise self._error(f"{key}.{name}", f"expected {wanted}, got {got(value) if name in of else 'none'}")
        return value

    def _whole(self, of: dict[str, Any], key: str, name: str, least: int = 0) -> int:
        value = self._get(of, key, name, int, f"a whole number of {least} or more")
        if not least <= value < 2**63:
            raise self._error(f"{key}.{name}", f"expected a whole number of {least} or more, got {got(value)}")
        return value

    def _box(self, annotation: dict[str, Any], key: str) -> tuple[float, float, float, float]:
        """Returns the corners x1, y1, x2, y2 of COCO's x, y, width, height."""
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            raise self._error(f"{key}.bbox", f"expected x, y, width and height as numbers, got {got(box)}")
        x, y, width, height = map(float, box)
        return x, y, x + width, y + height


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")
