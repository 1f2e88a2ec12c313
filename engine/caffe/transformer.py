"""caffe.io.Transformer: from images to what a net takes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.caffe.resize import resize_image
from engine.errors import ConfigError


class Transformer:
    """Settings for each input of a net; `inputs` are the shapes (n, channels, height, width) of its blobs by name.

    preprocess() does what is set, in this order: resize, transpose, channel_swap, raw_scale, mean, input_scale. All
    methods raise ConfigError for a name that is no input, and the setters for what does not fit its shape.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]):
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.inputs:
            raise ConfigError(f"'{name}' is not an input of the net; inputs: {', '.join(self.inputs)}")
        return self.inputs[name]

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """An image (h, w, channels) as float32 in the shape of the input `in_`, without the batch."""
        height, width = self._shape(in_)[2:]
        image = np.asarray(data, np.float32)
        if image.shape[:2] != (height, width):
            image = resize_image(image, (height, width))
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[list(self.channel_swap[in_])]
        if in_ in self.raw_scale:
            image = image * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            image = image - self.mean[in_]
        if in_ in self.input_scale:
            image = image * np.float32(self.input_scale[in_])
        return image

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """The image (h, w, channels) of which preprocess() has made `data`, in the net's size."""
        self._shape(in_)
        image = np.array(data, np.float32).squeeze()
        if image.ndim == 2:  # squeezed away, too: the one channel
            image = image[np.newaxis]
        if in_ in self.input_scale:
            image /= self.input_scale[in_]
        if in_ in self.mean:
            image += self.mean[in_]
        if in_ in self.raw_scale:
            image /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """The axes of an image in the net's order: (2, 0, 1) makes (channels, h, w) of (h, w, channels)."""
        if len(order) != len(self._shape(in_)) - 1:
            raise ConfigError(f"input '{in_}': expected the order of {len(self._shape(in_)) - 1} axes, got {order}")
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """The order of channels: (2, 1, 0) makes BGR of RGB."""
        channels = self._shape(in_)[1]
        if sorted(order) != list(range(channels)):
            raise ConfigError(f"input '{in_}': expected the order of {channels} channels, got {order}")
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """A factor for the image before the mean is subtracted: 255, for a mean of bytes."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """What is subtracted: a value for each channel, or an image (channels, h, w), resized to the input's."""
        channels, height, width = self._shape(in_)[1:]
        mean = np.asarray(mean, np.float32)
        if mean.ndim == 1:
            mean = mean[:, np.newaxis, np.newaxis]
        if mean.ndim == 2:
            mean = mean[np.newaxis]
        if mean.ndim != 3 or mean.shape[0] not in (1, channels):
            raise ConfigError(f"input '{in_}': expected a mean of {channels} channels, got the shape {mean.shape}")
        if mean.shape[1:] not in ((1, 1), (height, width)):
            mean = resize_image(mean.transpose(1, 2, 0), (height, width)).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """A factor for everything, after the mean."""
        self._shape(in_)
        self.input_scale[in_] = scale
