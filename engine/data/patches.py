"""SSD's data augmentation: expand_param puts an image on a larger canvas, batch_sampler cuts random patches out of it.

How patches are drawn is described in "SSD: Single Shot MultiBox Detector" (2.2, data augmentation; 3.6, expansion).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from engine.data.boxes import COLUMNS, WHOLE, Patch, make_emit, overlaps, seen_from
from engine.data.decode import COLOR, GRAY, Picture, as_picture, as_pillow, canvas, resized
from engine.data.geometry import Step
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_PIXELS, MAX_SIDE, MAX_TRIALS, check_range, check_within

if TYPE_CHECKING:
    from engine.proto import AnnotatedDataParameter, BatchSampler, SampleConstraint, Sampler, TransformationParameter

Augment = Callable[[Image.Image, np.ndarray, KeyedRandom], tuple[Image.Image, np.ndarray]]

_NEARLY_NOTHING = 0.01  # an expansion by less is left out


def make_expand(param: TransformationParameter, where: str | None) -> Augment:
    """Returns the function of expand_param: it puts a picture and its boxes on a canvas of the mean's colour, whose
    sides are up to max_expand_ratio times as long. Raises ConfigError."""
    expand = param.expand_param
    check_within(1, expand.max_expand_ratio, 16, "expand_param.max_expand_ratio", where)
    check_within(0, expand.prob, 1, "expand_param.prob", where)
    for value in param.mean_value:
        check_within(0, value, 255, "mean_value, the colour around an expanded picture", where)
    means = [round(value) for value in reversed(param.mean_value)] or [0]
    colours = {GRAY: means[-1], COLOR: tuple(means * 3)[:3]}

    def apply(image: Image.Image, boxes: np.ndarray, random: KeyedRandom) -> tuple[Image.Image, np.ndarray]:
        if random.uniform(0, 1) > expand.prob or expand.max_expand_ratio - 1 < _NEARLY_NOTHING:
            return image, boxes
        ratio = random.uniform(1, expand.max_expand_ratio)
        image = _for_canvas(image, ratio)
        width, height = int(image.width * ratio), int(image.height * ratio)
        left, top = random.integer(0, width - image.width), random.integer(0, height - image.height)
        expanded = canvas(image.mode, (width, height), colours[image.mode])
        expanded.paste(image, (left, top))
        patch = (
            *(-left / image.width, -top / image.height),
            *((width - left) / image.width, (height - top) / image.height),
        )
        return expanded, seen_from(patch, boxes)

    return apply


def _for_canvas(image: Image.Image, ratio: float) -> Image.Image:
    """Returns the picture, made smaller if a canvas of `ratio` times its sides would be too large. The nearest pixel is
    taken, because the picture may be a mask."""
    width, height = image.width * ratio, image.height * ratio
    shrink = min(math.sqrt(MAX_PIXELS / (width * height)), MAX_SIDE / width, MAX_SIDE / height)
    if shrink >= 1:
        return image
    size = max(1, int(image.width * shrink)), max(1, int(image.height * shrink))
    return resized(image, size, Image.Resampling.NEAREST)


def expand_picture(param: TransformationParameter, where: str | None) -> Step:
    """Returns the function of expand_param for a picture without boxes. Raises ConfigError."""
    expand, boxes = make_expand(param, where), np.empty((0, COLUMNS), np.float32)

    def step(image: Picture, random: KeyedRandom) -> Picture:
        return as_picture(expand(as_pillow(image), boxes, random)[0])

    return step


def make_patches(
    param: AnnotatedDataParameter, transform: TransformationParameter, where: str | None = None
) -> Augment:
    """Returns a function that cuts a random patch out of a picture, with the boxes that emit_constraint lets it keep.

    The patch is any of those that the batch_samplers find; without batch_samplers, it is one by yolo_data_jitter. If
    they find none, the picture stays as it is. Raises ConfigError."""
    emit = make_emit(transform.emit_constraint if transform.HasField("emit_constraint") else None)
    samplers = [_make_sampler(sampler, where) for sampler in param.batch_sampler]
    if not samplers:
        samplers = [_make_jitter(param.yolo_data_jitter, where)]

    def apply(image: Image.Image, boxes: np.ndarray, random: KeyedRandom) -> tuple[Image.Image, np.ndarray]:
        patches = [patch for sampler in samplers for patch in sampler(boxes, random)]
        if not patches:
            return image, boxes
        patch = patches[random.integer(0, len(patches) - 1)]
        if patch == WHOLE:
            return image, boxes
        left, top = int(patch[0] * image.width), int(patch[1] * image.height)
        width = max(1, int((patch[2] - patch[0]) * image.width))
        height = max(1, int((patch[3] - patch[1]) * image.height))
        return image.crop((left, top, left + width, top + height)), seen_from(patch, boxes[emit(patch, boxes)])

    return apply


def _make_sampler(param: BatchSampler, where: str | None) -> Callable[[np.ndarray, KeyedRandom], Sequence[Patch]]:
    """Returns a function that draws, in max_trials trials, up to max_sample patches that overlap with some box as
    sample_constraint asks. Raises ConfigError."""
    drawn = param.sampler
    check_within(0, param.max_trials, MAX_TRIALS, "batch_sampler.max_trials", where)
    check_range(0.001, drawn.min_scale, drawn.max_scale, 1, "sampler.min_scale and max_scale", where)
    check_range(
        *(0.001, drawn.min_aspect_ratio, drawn.max_aspect_ratio, 1000),
        *("sampler.min_aspect_ratio and max_aspect_ratio", where),
    )
    satisfies = _make_constraint(param.sample_constraint if param.HasField("sample_constraint") else None)

    def sample(boxes: np.ndarray, random: KeyedRandom) -> Sequence[Patch]:
        found: list[Patch] = []
        for _ in range(param.max_trials):
            if param.HasField("max_sample") and len(found) >= param.max_sample:
                break
            patch = _draw(param.sampler, random)
            if satisfies(patch, boxes):
                found.append(patch)
        return found

    return sample


def _make_jitter(jitter: float, where: str | None) -> Callable[[np.ndarray, KeyedRandom], Sequence[Patch]]:
    """Returns a function that draws one patch, whose sides are shorter than the picture's by up to `jitter` of these.
    Raises ConfigError."""
    check_within(0, jitter, 0.999, "annotated_data_param.yolo_data_jitter", where)

    def sample(boxes: np.ndarray, random: KeyedRandom) -> Sequence[Patch]:
        width, height = random.uniform(1 - jitter, 1), random.uniform(1 - jitter, 1)
        left, top = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
        return [(left, top, left + width, top + height)]

    return sample


def _draw(param: Sampler, random: KeyedRandom) -> Patch:
    """Of random area and shape, somewhere in the picture."""
    scale = random.uniform(param.min_scale, param.max_scale)
    low, high = max(param.min_aspect_ratio, scale * scale), min(param.max_aspect_ratio, 1 / (scale * scale))
    stretch = math.sqrt(random.uniform(low, high))
    width, height = min(1.0, scale * stretch), min(1.0, scale / stretch)
    left, top = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
    return left, top, left + width, top + height


def _make_constraint(param: SampleConstraint | None) -> Callable[[Patch, np.ndarray], bool]:
    names = ("jaccard_overlap", "sample_coverage", "object_coverage")  # in the order of overlaps()
    limits = []
    for index, name in enumerate(names):
        low, high = f"min_{name}", f"max_{name}"
        if param is not None and (param.HasField(low) or param.HasField(high)):
            most = getattr(param, high) if param.HasField(high) else math.inf
            limits.append((index, getattr(param, low) if param.HasField(low) else -math.inf, most))
    if not limits:
        return lambda patch, boxes: True

    def satisfies(patch: Patch, boxes: np.ndarray) -> bool:
        shared = overlaps(patch, boxes)
        return bool(np.logical_and.reduce([(low <= shared[i]) & (shared[i] <= most) for i, low, most in limits]).any())

    return satisfies
