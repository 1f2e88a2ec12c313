"""Changes pictures for NVIDIA's DetectNet at random, and makes its targets for each square of a grid over them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

FIXED_CHANNELS, LABEL_SIZE = 8, 16  # channels of a grid before those of the classes; numbers in a row of labels
# Fields of detectnet_augmentation_param.
CHANCES = ("crop_prob", "scale_prob", "flip_prob", "rotation_prob", "hue_rotation_prob", "desaturation_prob")
RANGES = ("scale_min", "scale_max", "max_rotate_degree", "hue_rotation", "desaturation_max", "shift_x", "shift_y")


@register("DetectNetTransformation")
class DetectNetTransformation(Layer):
    """Changes pictures at random, and makes grids of targets from their boxes (NVIDIA's layer).

    Bottoms: images (N, 3, H, W), blue first; labels (N, rows of 16 numbers), as DIGITS writes them. The first row
    begins with the number of boxes and 16; then each box has a row of x, y, width, height, angle, class, and ten more.
    Tops: images (N, 3, image_size_y, image_size_x) without the `mean_value` of transform_param; grids (N, 8 + classes,
    image_size_y / stride, image_size_x / stride).

    The channels of a grid are the foreground (1), the box's corners x1, y1, x2, y2 from the square's own corner,
    1 / width, 1 / height, norm, and the coverage by each class of object_class. Squares without a box are 0.

    In TRAIN hue, saturation, side, scale, angle and the part that is kept are changed with the probabilities and within
    the bounds of detectnet_augmentation_param, by the seed, the iteration and the sample. In TEST images are resized
    only.
    """

    bottom_range = (2, 2)
    top_range = (2, 2)
    differentiable = False
    constant_bottoms = frozenset({0, 1})

    @property
    def param(self):
        return self.message.detectnet_groundtruth_param

    @property
    def classes(self) -> dict[int, int]:
        """The coverage, counted from 0, of each class of labels. By default there is one, of class 1, KITTI's cars."""
        return {each.src: each.dst for each in self.param.object_class} or {1: 0}

    def infer(self) -> list[Shape]:
        (images, labels), param = self.shapes, self.param
        if len(images) != 4 or images[1] != 3:
            raise self.error(f"expected images (N, 3, H, W), got {images}")
        if labels[:1] != images[:1] or math.prod(labels[1:]) % LABEL_SIZE:
            raise self.error(f"expected labels of rows of {LABEL_SIZE} numbers for {images[0]} images, got {labels}")
        if min(param.stride, param.image_size_x, param.image_size_y) < 1:
            raise self.error("expected stride, image_size_x and image_size_y of at least 1")
        if param.scale_cvg <= 0:
            raise self.error(f"expected scale_cvg above 0, got {param.scale_cvg:g}")
        self._check_augmentation()
        size = (param.image_size_y, param.image_size_x)
        grid = tuple(max(1, round(each / param.stride)) for each in size)
        return [(images[0], 3, *size), (images[0], FIXED_CHANNELS + max(self.classes.values()) + 1, *grid)]

    def _check_augmentation(self) -> None:
        """Raises ConfigError if the mean, a probability or the scales are out of range."""
        param, transform = self.message.detectnet_augmentation_param, self.message.transform_param
        if transform.HasField("mean_file") or len(transform.mean_value) not in (0, 1, 3):
            raise self.error("expected transform_param with mean_value, once or three times, or without a mean")
        for name in CHANCES:
            if not 0 <= getattr(param, name) <= 1:
                raise self.error(f"expected {name} between 0 and 1, got {getattr(param, name):g}")
        if not 0 < param.scale_min <= param.scale_max:
            raise self.error(
                f"expected scale_min above 0 and at most scale_max, got {param.scale_min:g} and {param.scale_max:g}"
            )

    def lower(self, builder: Builder) -> None:
        param, augmentation = self.param, self.message.detectnet_augmentation_param
        inputs = builder.plain_bottoms(self)
        means = list(self.message.transform_param.mean_value) or [0.0]
        attributes = {
            **{name: getattr(augmentation, name) for name in (*CHANCES, *RANGES)},
            **{name: getattr(param, name) for name in ("stride", "scale_cvg", "max_cvg_len", "min_cvg_len")},
            "obj_norm": param.obj_norm,
            "crop_bboxes": param.crop_bboxes,
            "gridbox_min": param.gridbox_type == param.GRIDBOX_MIN,
            "train": self.training,
            "means": means * 3 if len(means) == 1 else means,
            "sources": list(self.classes),
            "targets": list(self.classes.values()),
        }
        builder.op("DetectNetTransformation", self, inputs, attributes)

    def flops(self) -> int:
        return 32 * math.prod(self.tops[0].shape)
