"""`engine generate`: draws what a net makes as a grid of pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from engine.config import NetConfig
from engine.errors import ConfigError, shape_text
from engine.inference.extract_features import features

# Pixels between pictures; the side up to which smaller pictures are enlarged; how many times they are at most.
GAP, SIDE, ENLARGED = 2, 64, 8
PAPER = 255


def generate(
    config: NetConfig,
    weights: Sequence[str],
    blobs: Sequence[str],
    count: int,
    span: tuple[float, float],
    seed: int = 1,
) -> Image.Image:
    """Runs the net in phase TEST until `count` samples are there, and returns a sheet of them. Raises ConfigError,
    DataError, WeightsError.

    Args:
        weights: files of weights.
        blobs: names of blobs (N, c, h, w), or (N, c, t, h, w) for t frames, where c is 1 or 3 (B, G, R). Their pictures
            of one sample stand beside each other.
        span: the values that are drawn black and white.
        seed: of the net's random numbers.
    """
    samples: list[np.ndarray] = []
    for batch in features(config, weights, blobs, None, seed):
        frames = [_frames(values, blob, config) for blob, values in zip(blobs, batch, strict=True)]
        if len({each.shape[2:] for each in frames}) > 1:
            shapes = ", ".join(
                f"'{blob}' {shape_text(values.shape)}" for blob, values in zip(blobs, batch, strict=True)
            )
            raise ConfigError(f"expected blobs with pictures of one size, got {shapes}", config.path)
        samples += list(np.concatenate(frames, axis=1))
        if len(samples) >= count:
            break
    low, high = span
    pixels = np.clip((np.stack(samples[:count]) - low) / (high - low), 0, 1)
    return _sheet((255 * pixels + 0.5).astype(np.uint8))


def _frames(values: np.ndarray, blob: str, config: NetConfig) -> np.ndarray:
    """Returns a blob as (N, frames, h, w, 3) in the order R, G, B. Raises ConfigError if it holds no pictures."""
    if values.ndim == 4:
        values = values[:, :, None]
    if values.ndim != 5 or values.shape[1] not in (1, 3):
        got = shape_text(values.shape)
        raise ConfigError(f"blob '{blob}' holds no pictures: expected 1 or 3 channels of rows, got {got}", config.path)
    colours = np.repeat(values, 3, axis=1) if values.shape[1] == 1 else values[:, ::-1]
    return colours.transpose(0, 2, 3, 4, 1)


def _sheet(samples: np.ndarray) -> Image.Image:
    """Returns a sheet, about a square, with the frames of a sample in a row. samples: uint8 (N, frames, h, w, 3)."""
    count, frames, height, width, _ = samples.shape
    scale = max(1, min(ENLARGED, SIDE // max(height, width)))
    columns = max(1, round((count / frames) ** 0.5)) if frames > 1 else int(np.ceil(count**0.5))
    rows = -(-count // columns)
    across, down = frames * width + GAP, height + GAP
    sheet = np.full((rows * down + GAP, columns * across + GAP, 3), PAPER, np.uint8)
    for number, sample in enumerate(samples):
        y, x = GAP + number // columns * down, GAP + number % columns * across
        sheet[y : y + height, x : x + frames * width] = sample.transpose(1, 0, 2, 3).reshape(height, -1, 3)
    image = Image.fromarray(sheet)
    return image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST)
