"""caffe.Detector: a net that tells what windows of an image show (R-CNN)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from engine.caffe.classifier import image_transformer
from engine.caffe.io import load_image, resize_image
from engine.caffe.net import Net
from engine.errors import EngineError
from engine.proto import TEST


class Detector(Net):
    """A net with one image as its input. mean, input_scale, raw_scale and channel_swap: as the Transformer's setters.

    context_pad: the pixels at each side of the net's input that show what lies around a window; they have the mean
    where the image ends. Windows are (ymin, xmin, ymax, xmax).
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ):
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def configure_crop(self, context_pad: int | None) -> None:
        """Sets context_pad, as in __init__(); with None or 0, windows are cut out as they are."""
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.context_pad = context_pad or 0

    def detect_windows(self, images_windows: Iterable[tuple[str, Sequence]]) -> list[dict[str, object]]:
        """Returns, for every window of every (file name, windows), a dictionary of `window`, `prediction` and
        `filename`."""
        name, found, crops = self.inputs[0], [], []
        for filename, windows in images_windows:
            image = load_image(filename)
            for window in windows:
                crops.append(self.transformer.preprocess(name, self.crop(image, window)))
                found.append({"window": window, "filename": filename})
        if not crops:
            return []
        predictions = self.forward_all(None, **{name: np.stack(crops)})[self.outputs[0]]
        for each, prediction in zip(found, predictions):
            each["prediction"] = prediction.squeeze()
        return found

    def detect_selective_search(self, image_fnames: Iterable[str]) -> NoReturn:
        """Raises EngineError: Caffe finds these windows by a program for MATLAB."""
        raise EngineError(
            "detect_selective_search() needs selective search, a program for MATLAB, which engine does not run: find "
            "windows (ymin, xmin, ymax, xmax) by other means, and give them to detect_windows([(file, windows)])"
        )

    def crop(self, im: np.ndarray, window: Sequence[float]) -> np.ndarray:
        """Returns the window of an image (h, w, channels); if there is a context_pad, with its context and in the size
        of the net's input."""
        corners = np.asarray(window)
        top, left, bottom, right = corners.astype(int)
        if not self.context_pad:
            return im[top:bottom, left:right]
        size = int(self.crop_dims[1])  # as R-CNN: of a square input
        # The window grows about its centre, so that it fills the input but for context_pad pixels on every side.
        half = (corners[2:] - corners[:2] + 1) / 2 * size / (size - 2 * self.context_pad)
        centre = (corners[:2] + corners[2:] + 1) / 2
        box = np.round(np.concatenate([centre - half, centre + half])).astype(int)
        scale = size / (box[2:] - box[:2] + 1)
        pad = np.round(np.maximum(0, -box[:2]) * scale).astype(int)
        box = np.clip(box, 0, [*im.shape[:2]] * 2)
        dims = np.minimum(np.round((box[2:] - box[:2] + 1) * scale).astype(int), size - pad)
        result = self._mean_crop(size, im.shape[2])
        inside = im[box[0] : box[2], box[1] : box[3]]
        result[pad[0] : pad[0] + dims[0], pad[1] : pad[1] + dims[1]] = resize_image(inside, [*dims])
        return result

    def _mean_crop(self, size: int, channels: int) -> np.ndarray:
        """Returns an image (size, size, channels) that preprocess() turns into zeros."""
        zeros = np.zeros((channels, size, size), np.float32)
        return np.ascontiguousarray(self.transformer.deprocess(self.inputs[0], zeros))
