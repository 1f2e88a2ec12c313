"""`engine preview`: draws a contact sheet of a batch as a net sees it, with labels, boxes and masks.

A net sees floats, from which the mean is subtracted and which are scaled. They are shown as the pixels before that.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from engine import proto
from engine.comm.world import World
from engine.config import NetConfig
from engine.config.phases import PHASE_NAMES
from engine.data.feeder import Feeder
from engine.data.mean import read_mean
from engine.data.registry import find_reader
from engine.errors import ConfigError, EngineError, shape_text, shortened
from engine.files import atomic_write
from engine.graph.build import build
from engine.graph.graph import Graph
from engine.inference.classify import written_labels
from engine.layers.base import Layer

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_SMALLEST, _LARGEST = 112, 320  # the longer side of a picture on the sheet, in pixels
_MARGIN, _LINE, _TEXT = 6, 15, 12  # pixels: around a picture, of a line of text below it, of a letter
_MOST_LINES = 3
_INK, _PAPER = (20, 20, 20), (250, 250, 250)
_MOST_CLASSES = 2  # of a distribution, that are named


@dataclass
class Shown:
    """One sample on the sheet."""

    image: Image.Image  # its picture, with its mask beside it
    lines: list[str] = field(default_factory=list)  # the text below


def preview(config: NetConfig, phase: int, world: World, seed: int, count: int) -> tuple[Image.Image, int, list[str]]:
    """Returns a sheet of the first `count` samples that a net reads, or of all if there are fewer; how many it shows;
    and lines that say what they are. Raises ConfigErrors, DataError."""
    with contextlib.closing(Feeder(config, phase, seed, world)) as feeder:
        graph = build(config, phase, shapes_of=feeder.shapes_of, to_look_at=True)
        layer = _picture_layer(graph, feeder, config)
        source = feeder.data_sources[layer.name]
        names = list(source.reader.classes) or _names(layer.message, config)
        shown: list[Shown] = []
        notes = [_describe(layer)]
        count = min(count, source.size)
        with source.batches(feeder.batch_sizes[layer.name]) as batches:  # of this layer alone: their keys are its own
            while len(shown) < count:
                batch = next(batches)
                shown += _samples(layer, batch.arrays[layer.name], batch.keys, names)
    return _sheet(shown[:count]), count, notes


def save(sheet: Image.Image, path: str) -> None:
    """Writes a sheet whole, or not at all. Raises EngineError if the file cannot be written."""
    content = io.BytesIO()
    sheet.save(content, KINDS[os.path.splitext(path)[1].lower()])
    with atomic_write(path) as file:
        file.write(content.getvalue())


def _picture_layer(graph: Graph, feeder: Feeder, config: NetConfig) -> Layer:
    """Returns the first data layer whose first top holds pictures. Raises ConfigError if there is none."""
    fed = [layer for layer in graph.layers if layer.name in feeder.readers]
    for layer in fed:
        if len(layer.tops[0].shape) == 4:
            return layer
    phase = PHASE_NAMES[graph.phase]
    if fed:
        shapes = ", ".join(f"'{layer.name}' ({shape_text(layer.tops[0].shape)})" for layer in fed)
        raise ConfigError(f"the net reads no pictures in phase {phase}: its data layers are {shapes}", config.path)
    raise ConfigError(f"the net has no data layer in phase {phase}; is it in the other, or deployed?", config.path)


def _describe(layer: Layer) -> str:
    tops = ", ".join(f"{top.name} {shape_text(top.shape)}" for top in layer.tops)
    return f"layer '{layer.name}' ({layer.type}): {tops}"


def _names(message: proto.LayerParameter, config: NetConfig) -> list[str]:
    """Returns the names of classes, where the source itself has none: see written_labels(); [] if there are none."""
    source = message.data_param.source or message.image_data_param.source
    return next(written_labels(config, [source] if source else []), [])


def _samples(layer: Layer, tops: Sequence[np.ndarray], keys: Sequence[str], names: Sequence[str]) -> Iterator[Shown]:
    """Yields the samples of a batch. tops: of the data layer, pictures first; names: of the classes."""
    pictures, rest = tops[0], tops[1:]
    restore = _restoring(find_reader(layer.type).transform_of(layer.message, layer.where), pictures.shape[1])
    for n, key in enumerate(keys):
        shown = Shown(_as_image(restore(pictures[n])))
        scale = _scale_of(shown.image)
        shown.image = _resized(shown.image, scale)
        for top in rest:
            if top.ndim == 4 and top.shape[0] == 1 and top.shape[1] == 1 and top.shape[3] == 8:
                shown.lines.append(_draw_boxes(shown.image, top[0, 0][top[0, 0, :, 0] == n], names))
            elif top.ndim == 4 and top.shape[2:] == pictures.shape[2:]:
                shown.image = _beside(shown.image, _resized(_mask_image(top[n, 0]), scale))
                shown.lines.append(_classes_of(top[n, 0], names))
            elif top.size:
                shown.lines.append(_label_text(np.atleast_1d(top[n]).ravel(), names))
        shown.lines.append(os.path.basename(key) or key)
        yield shown


def _restoring(param: proto.TransformationParameter, channels: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function of a picture (c, h, w) that undoes mean and scale, and returns uint8. Of a mean_file it takes
    the mean of each channel, as it does not know where the picture was cropped."""
    mean = np.array(list(param.mean_value) or [0.0], np.float32)
    if param.mean_file:
        mean = read_mean(param.mean_file).mean(axis=(1, 2))
    mean = np.resize(mean, channels).reshape(channels, 1, 1)
    scale = param.scale or 1.0
    return lambda values: np.clip(np.rint(values / scale + mean), 0, 255).astype(np.uint8)


def _as_image(pixels: np.ndarray) -> Image.Image:
    """Returns pixels (c, h, w) as an image: of 3 channels (B, G, R) in colours, of 1 in grey. More channels, of frames
    or pairs, are drawn side by side: in threes if their number allows, else each in grey."""
    channels, height, width = pixels.shape
    group = 3 if channels % 3 == 0 else 1
    strip = pixels.reshape(channels // group, group, height, width).transpose(2, 0, 3, 1).reshape(height, -1, group)
    return Image.fromarray(np.ascontiguousarray(strip[:, :, ::-1])) if group == 3 else Image.fromarray(strip[:, :, 0])


def _scale_of(image: Image.Image) -> float:
    longer = max(image.size)
    return math.ceil(_SMALLEST / longer) if longer < _SMALLEST else min(1.0, _LARGEST / longer)


def _resized(image: Image.Image, scale: float) -> Image.Image:
    """Returns an image in RGB at another size. Enlarged pixels stay squares."""
    image = image.convert("RGB")
    if scale == 1:
        return image
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX)


def _colour(number: int) -> tuple[int, int, int]:
    """Returns the colour of a class, by the bits of its number, as in Pascal VOC's masks: those of neighbours differ
    much."""
    found = [0, 0, 0]
    for bit in range(8):
        for channel in range(3):
            found[channel] |= (number >> channel & 1) << (7 - bit)
        number >>= 3
    return found[0], found[1], found[2]


_COLOURS = np.array([_colour(number) for number in range(256)], np.uint8)


def _mask_image(mask: np.ndarray) -> Image.Image:
    return Image.fromarray(_COLOURS[np.clip(mask, 0, 255).astype(np.uint8)])


def _beside(left: Image.Image, right: Image.Image) -> Image.Image:
    both = Image.new("RGB", (left.width + 2 + right.width, max(left.height, right.height)), _PAPER)
    both.paste(left, (0, 0))
    both.paste(right, (left.width + 2, 0))
    return both


def _name(number: float, names: Sequence[str]) -> str:
    if float(number).is_integer() and 0 <= number < len(names):
        return f"{int(number)} {names[int(number)]}"
    return f"{number:g}"


def _classes_of(mask: np.ndarray, names: Sequence[str]) -> str:
    return "classes " + ", ".join(_name(float(each), names) for each in np.unique(mask)[:6])


def _label_text(values: np.ndarray, names: Sequence[str]) -> str:
    """Returns the text of a label: a class, the likeliest classes of a distribution, or the numbers."""
    if values.size == 1:
        return _name(float(values[0]), names)
    if values.min() >= 0 and abs(values.sum() - 1) < 1e-3 and values.size > _MOST_CLASSES:
        largest = [int(i) for i in np.argsort(-values)[:_MOST_CLASSES] if values[i] > 0.005]
        return ", ".join(f"{_name(i, names)} {100 * values[i]:.0f}%" for i in largest)
    return " ".join(f"{value:g}" for value in values[:12])


def _draw_boxes(image: Image.Image, rows: np.ndarray, names: Sequence[str]) -> str:
    """Draws boxes, rows of sample, class, instance, x1, y1, x2, y2, difficult. Rows that are no boxes are left out.
    Returns a line that tells how many there are."""
    draw = ImageDraw.Draw(image)
    are_boxes = np.isfinite(rows).all(axis=1) & (rows[:, 3:5] <= rows[:, 5:7]).all(axis=1)
    boxes = rows[are_boxes]
    boxes[:, 3:7] = np.clip(boxes[:, 3:7], -1, 2)  # what is further out is not seen, and may overflow in Pillow
    for _, number, _, x1, y1, x2, y2, difficult in boxes.tolist():
        colour = _colour(int(number) % 256) if number else (255, 255, 0)
        corners = [x1 * (image.width - 1), y1 * (image.height - 1), x2 * (image.width - 1), y2 * (image.height - 1)]
        draw.rectangle(corners, outline=colour, width=1 if difficult else 2)
        text, place = _name(number, names), (corners[0] + 3, corners[1] + 1)
        draw.rectangle(draw.textbbox(place, text, _font()), fill=colour)
        draw.text(place, text, _INK if sum(colour) > 3 * 128 else _PAPER, _font())
    bad = len(rows) - len(boxes)
    told = f", {bad} of them with corners in the wrong order, or not finite" if bad else ""
    return f"{len(rows)} box{'es' if len(rows) != 1 else ''}{told}"


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT)


def _fitting(text: str, width: int) -> str:
    """Returns text that fits into so many pixels: what is too long is cut in the middle."""
    font = _font()
    for length in range(len(text), 4, -1):
        cut = text if length == len(text) else shortened(text, length)
        if font.getlength(cut) <= width:
            return cut
    return text[:4]


def _sheet(shown: Sequence[Shown]) -> Image.Image:
    """Returns a sheet of samples in rows and columns, about as wide as high."""
    width = max(each.image.width for each in shown) + 2 * _MARGIN
    lines = min(_MOST_LINES, max(len(each.lines) for each in shown))
    height = max(each.image.height for each in shown) + _MARGIN + lines * _LINE + _MARGIN
    columns = min(len(shown), max(1, round(math.sqrt(len(shown) * height / width))))
    rows = math.ceil(len(shown) / columns)
    sheet = Image.new("RGB", (columns * width, rows * height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for n, each in enumerate(shown):
        left, top = n % columns * width + _MARGIN, n // columns * height + _MARGIN
        sheet.paste(each.image, (left, top))
        below = top + max(other.image.height for other in shown) + 1
        for k, text in enumerate(each.lines[:_MOST_LINES]):
            draw.text((left, below + k * _LINE), _fitting(text, width - 2 * _MARGIN), _INK, _font())
    return sheet


def check_name(path: str) -> None:
    """Raises EngineError if the name of a file does not end as a sheet's may."""
    if os.path.splitext(path)[1].lower() not in KINDS:
        raise EngineError(f"{path}: expected a file name that ends in .png or .jpg")
