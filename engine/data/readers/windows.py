"""WindowData: Cuts windows out of pictures, foreground and background, for training R-CNN."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import proto
from engine.data.decode import COLOR, LINEAR, ImageError, Picture, UndecodableImage, open_image
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_BYTES, check_size, check_within
from engine.data.mean import read_mean
from engine.data.reader import Reader, Request, Sample, Shape
from engine.data.registry import reader
from engine.data.transform import refuse_elsewhere
from engine.data.window_file import Window, read_windows
from engine.errors import ConfigError, DataError
from engine.files import read_bytes

_log = logging.getLogger("engine")


@reader("WindowData")
class WindowReader(Reader):
    """Gives two arrays: the window (3, crop_size, crop_size) and its class (), 0 for background.

    In every batch the last fg_fraction of the samples are foreground windows (overlap of at least fg_threshold), the
    others background windows (overlap below bg_threshold), each drawn at random. An epoch has as many samples as there
    are windows of both kinds. With skip_bad_images a window of a bad picture is replaced by the next one of its kind in
    the file.
    """

    field = "window_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param, transform = message.window_data_param, message.transform_param
        self._seed = request.seed
        self.name, self.owners = request.path(param.source), request.owners(param.source)
        self._place = f"{request.where}: {self.name}" if request.where else self.name
        self._batch = self.batch_size(message, request.where)
        self.shapes = self.shapes_without_data(message, request.where)
        self._crop = _Crop(transform.crop_size, param.context_pad, param.crop_mode == "square")
        if param.crop_mode not in ("warp", "square"):
            raise ConfigError(f"crop_mode: expected warp or square, got {param.crop_mode!r}", request.where)
        refuse_elsewhere(transform, request.phase, request.where)
        check_within(0, param.fg_fraction, 1, "window_data_param.fg_fraction", request.where)
        self._mirror, self._scale = transform.mirror, param.scale
        self._mean = _centre_mean(transform, request.where)
        self._pictures, windows = read_windows(self.name, param.root_folder, request.where)
        foreground = np.flatnonzero(windows.overlaps >= param.fg_threshold)
        background = np.flatnonzero(windows.overlaps < min(param.fg_threshold, param.bg_threshold))
        wanted = int(np.float32(self._batch) * np.float32(param.fg_fraction))  # float32, as in Caffe: 20 * 0.9 is 18
        self._background = self._batch - wanted  # samples of a batch
        if param.fg_fraction > 0 and not wanted:
            _log.warning(
                f"layer '{message.name}': fg_fraction {param.fg_fraction:g} of a rank's batch of {self._batch} is no "
                "foreground window: make batch_size larger, or set fg_fraction: 0"
            )
        self._windows, self._kinds = windows, (background, foreground)
        if (wanted and not len(foreground)) or (self._background and not len(background)):
            raise DataError(
                f"{self.name}: a batch of {self._batch} takes {wanted} foreground and {self._background} background "
                f"windows; the file has {len(foreground)} and {len(background)}",
                request.where,
            )
        self.size = len(foreground) + len(background)

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        random = KeyedRandom(self._seed, sample.epoch, sample.index)
        is_foreground = sample.place >= self._background
        kind = self._kinds[is_foreground]
        begin, mirrored = random.integer(0, len(kind) - 1), self._mirror and random.coin()
        for number in range(begin, begin + len(kind)):
            window = self._windows[kind[number % len(kind)]]
            if window.picture in self.skipped:
                continue  # a bad picture is not read again for its next windows
            path = self._pictures[window.picture]
            content = read_bytes(path, DataError, self._place, MAX_BYTES)
            try:
                self._crop.fill(out[0], open_image(content, COLOR), window, mirrored, self._mean, self._scale)
            except ImageError as error:
                if not (self._skip_bad_images and isinstance(error, UndecodableImage)):
                    raise DataError(f"{path}: {error}", self._place) from None
                self.skip(window.picture, path, str(error))
                continue
            out[1][...] = window.label if is_foreground else 0
            return f"{path} {window.box}"
        what = "foreground" if is_foreground else "background"
        raise DataError(f"none of the pictures of its {len(kind)} {what} windows can be decoded", self._place)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        size = message.transform_param.crop_size
        if not size or size <= 2 * message.window_data_param.context_pad:
            raise ConfigError(
                f"layer '{message.name}': expected a crop_size above twice the context_pad, got {size}", where
            )
        check_size(size, size, "crop_size", where)
        return (3, size, size), ()

    @classmethod
    def transform_of(cls, message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
        transform = proto.TransformationParameter()
        transform.CopyFrom(message.transform_param)
        transform.scale = message.window_data_param.scale
        return transform


def _centre_mean(param: proto.TransformationParameter, where: str | None) -> np.ndarray:
    """Returns the mean to subtract: (3, crop_size, crop_size), the middle of mean_file, or (3, 1, 1). Raises
    ConfigError."""
    if param.mean_file:
        mean, size = read_mean(param.mean_file, where), param.crop_size
        top, left = (mean.shape[1] - size) // 2, (mean.shape[2] - size) // 2
        if mean.shape[0] != 3 or top < 0 or left < 0:
            raise ConfigError(f"mean_file {param.mean_file} is smaller than the crop of {size}", where)
        return mean[:, top : top + size, left : left + size]
    values = np.array(param.mean_value or [0], np.float32)
    if values.size not in (1, 3):
        raise ConfigError(f"expected 1 or 3 mean_value, got {values.size}", where)
    return np.broadcast_to(values.reshape(-1, 1, 1), (3, 1, 1))


@dataclass(frozen=True)
class _Crop:
    """Cuts a window with its context out of a picture and stretches it to size x size. What lies outside of the picture
    is 0."""

    size: int
    context: int  # pixels on each side of the result that show what is around the window
    square: bool  # whether the window is extended to a square first

    def region(self, window: Window) -> tuple[int, int, int, int]:
        """Returns x1, y1, x2, y2, all inclusive, of what the result shows. It may reach out of the picture."""
        x1, y1, x2, y2 = window.box
        if not (self.context or self.square):
            return x1, y1, x2, y2
        half_w, half_h = (x2 - x1 + 1) / 2, (y2 - y1 + 1) / 2
        centre_x, centre_y = x1 + half_w, y1 + half_h
        if self.square:
            half_w = half_h = max(half_w, half_h)
        stretch = self.size / (self.size - 2 * self.context)
        left, right = _round(centre_x - half_w * stretch), _round(centre_x + half_w * stretch)
        top, bottom = _round(centre_y - half_h * stretch), _round(centre_y + half_h * stretch)
        return left, top, right, bottom

    def fill(
        self, out: np.ndarray, picture: Picture, window: Window, mirrored: bool, mean: np.ndarray, scale: float
    ) -> None:
        """Writes a window to out (3, size, size). Raises ImageError if the window lies outside of its picture."""
        x1, y1, x2, y2 = self.region(window)
        if mirrored:  # the offset is what lies beyond the right edge, rounded by itself, as in Caffe
            left, width = self._span(picture.width - 1 - x2, picture.width - 1 - x1, picture.width)
        else:
            left, width = self._span(x1, x2, picture.width)
        top, height = self._span(y1, y2, picture.height)
        box = (max(x1, 0), max(y1, 0), min(x2, picture.width - 1) + 1, min(y2, picture.height - 1) + 1)
        if box[0] >= box[2] or box[1] >= box[3]:
            raise ImageError(f"window {window.box} lies outside of the picture of {picture.width} x {picture.height}")
        pixels = picture.resized((width, height), LINEAR, box).pixels()
        if mirrored:
            pixels = pixels[:, ::-1]
        rows, columns = slice(top, top + height), slice(left, left + width)
        less = mean if mean.shape[1] == 1 else mean[:, rows, columns]
        out.fill(0)
        out[:, rows, columns] = (pixels.transpose(2, 0, 1).astype(np.float32) - less) * scale

    def _span(self, begin: int, end: int, limit: int) -> tuple[int, int]:
        """Returns (offset, length) in the result, along one axis, of those pixels begin..end that lie in the picture:
        in 0..limit - 1."""
        stretch = self.size / (end - begin + 1)
        offset = min(_round(max(0, -begin) * stretch), self.size - 1)
        inside = min(end, limit - 1) - max(begin, 0) + 1
        return offset, max(1, min(_round(inside * stretch), self.size - offset))


def _round(value: float) -> int:
    """Rounds halves away from 0, as C does."""
    return int(np.floor(abs(value) + 0.5)) * (1 if value >= 0 else -1)
