"""Collects what a detector has found in the pictures of a test, in the form that pycocotools reads (COCO.loadRes)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from engine.config.label_map import read_label_map
from engine.config.numbers import whole
from engine.errors import ConfigError, DataError
from engine.files import is_regular, read_text

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.layers.base import Layer
    from engine.net import Net
    from engine.proto import SaveOutputParameter

FORMAT = "COCO"
Other = TypeVar("Other", int, str)


class CocoResults:
    """Reads the DetectionOutput layers whose save_output_param has output_format "COCO", as SSD's nets have.

    The name_size_file of save_output_param, which is convert_annotations' name_size.txt, has the name and size of each
    picture in the order of the database. Its label_map_file has the numbers of COCO's categories as names."""

    def __init__(self, net: Net, note: Callable[[str], None]):
        """Reads these files. Raises ConfigError if they hold something else. note: is called with a line about each
        layer that is left out, as its files are not here."""
        self.results: list[dict[str, object]] = []
        self._layers: dict[str, _Names] = {}
        for layer in _writing(net):
            param = layer.message.detection_output_param.save_output_param
            missing = [path for path in (param.name_size_file, param.label_map_file) if not is_regular(path)]
            if missing:
                what = f"{missing[0]} is not here" if missing[0] else "it names no name_size_file or no label_map_file"
                note(f"Layer {layer.name}, save_output_param: {what}; coco_results.json is left out of the report")
            else:
                self._layers[layer.name] = _Names(param)

    @property
    def any(self) -> bool:
        """Whether there is a layer to read."""
        return bool(self._layers)

    def watch(self, net: Net, keys: Sequence[str]) -> None:
        """Takes the detections of a forward pass. keys: of its samples. Raises DataError."""
        for layer in _writing(net):
            if (names := self._layers.get(layer.name)) is None:
                continue
            rows = net.tensors[layer.tops[0]].get().reshape(-1, 7)
            self.results += [names.result(keys, row) for row in rows.tolist() if row[0] >= 0]

    def gather(self, world: World) -> None:
        """Collective. Gives rank 0 the results of all ranks, in the order of the pictures."""
        self.results = [each for part in world.gather(self.results) or [] for each in part]
        self.results.sort(key=lambda each: str(each["image_id"]).zfill(20))


def _writing(net: Net) -> Iterator[Layer]:
    for layer in net.graph.layers:
        if layer.type == "DetectionOutput" and layer.message.detection_output_param.save_output_param.output_format == (
            FORMAT
        ):
            yield layer


class _Names:
    """Names and sizes of pictures, and categories by label."""

    def __init__(self, param: SaveOutputParameter):
        self._path = param.name_size_file
        self._pictures = [_picture(line, f"{self._path}:{n}") for n, line in _lines(self._path)]
        labels = read_label_map(param.label_map_file)
        if labels is None:
            raise ConfigError("expected a label map: item { name: ... label: ... }", param.label_map_file)
        self._categories = {item.label: _number(item.name, item.label) for item in labels.item}

    def result(self, keys: Sequence[str], row: list[float]) -> dict[str, object]:
        """Returns a detection as COCO has it. Raises DataError if its key has no number of a picture.

        Args:
            keys: of the samples of the batch; they begin with the number of the picture.
            row: image, label, score and corners, as in a top of DetectionOutput.
        """
        key = keys[int(row[0])] if int(row[0]) < len(keys) else ""
        number = whole(key.partition("_")[0], 0, len(self._pictures) - 1)
        if number is None:
            raise DataError(
                f"key '{key}' is of no picture of {self._path}, which has {len(self._pictures)}; expected the file "
                "that convert_annotations has written beside the data"
            )
        name, height, width = self._pictures[number]
        x1, y1, x2, y2 = np.multiply(row[3:], [width, height, width, height]).tolist()
        return {
            "image_id": name,
            "category_id": self._categories.get(int(row[1]), int(row[1])),
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "score": row[2],
        }


def _lines(path: str) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(read_text(path, ConfigError).splitlines(), 1) if line.strip()]


def _picture(line: str, where: str) -> tuple[int | str, int, int]:
    """Returns (name, height, width) of a line of name_size_file; a name that is a number as int. Raises ConfigError."""
    name, *sides = line.rsplit(maxsplit=2)
    height, width = (whole(side, 1, 2**31 - 1) for side in sides) if len(sides) == 2 else (None, None)
    if height is None or width is None:
        raise ConfigError(f"expected `name height width`, got {line!r}", where)
    return _number(name, name), height, width


def _number(name: str, otherwise: Other) -> int | Other:
    value = whole(name, 0, 2**63 - 1)
    return otherwise if value is None else value
