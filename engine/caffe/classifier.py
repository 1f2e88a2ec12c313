"""caffe.Classifier: a net that tells what an image shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engine.caffe.io import Transformer, resize_image
from engine.caffe.io import oversample as ten_crops
from engine.caffe.net import Net
from engine.errors import ConfigError
from engine.proto import TEST


class Classifier(Net):
    """A net with one image as its input. mean, input_scale, raw_scale and channel_swap: as the Transformer's setters.

    image_dims: (h, w) to which images are resized before they are cropped to the net's input; its size by default.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ):
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.image_dims = tuple(image_dims or self.crop_dims)

    def predict(self, inputs: Iterable[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Returns the net's first output, (n, classes) float32, for n images (h, w, channels) as of load_image().

        oversample: whether to take the mean over ten crops of each image (corners, centre, and their mirror images) or
        the centre alone."""
        images = np.stack([resize_image(image, self.image_dims) for image in inputs])
        crops = ten_crops(images, self.crop_dims) if oversample else self._centres(images)
        name = self.inputs[0]
        result = self.forward_all(None, **{name: np.stack([self.transformer.preprocess(name, crop) for crop in crops])})
        predictions = result[self.outputs[0]]
        return predictions.reshape(len(images), 10, -1).mean(1) if oversample else predictions

    def _centres(self, images: np.ndarray) -> np.ndarray:
        height, width = self.crop_dims
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        return images[:, top : top + height, left : left + width]


def image_transformer(
    net: Net,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> Transformer:
    """Returns a Transformer for the first input of a net, which takes images (h, w, channels). Raises ConfigError for a
    net without inputs."""
    if not net.inputs:
        feeds = ", ".join(f"'{layer.name}' ({layer.type})" for layer in net._net.layers if not layer.bottoms)
        raise ConfigError(
            f"its data comes from {feeds}; expected a net for deployment, with an Input layer in its place and without "
            "losses",
            net._net.path,
        )
    name = net.inputs[0]
    transformer = Transformer({name: net.blobs[name].shape})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, channel_swap)
    return transformer
