"""Limits of a picture's size and of the parameters of its augmentation: what exceeds them is a mistake or an attack."""

from __future__ import annotations

from engine.errors import ConfigError

MAX_SIDE = 65500  # pixels: the most that a JPEG can have
MAX_PIXELS = 1 << 26  # 8192 x 8192; ImageNet's largest picture has 17 million
MAX_SCANNED = 16 * MAX_PIXELS  # pixels in all scans of a JPEG, 7 s of work; a progressive one usually has 10 scans
MAX_BYTES = 8 * MAX_PIXELS  # of a picture's file: the largest picture of 4 channels of 16 bits, without compression
MAX_TRIALS = 10_000  # trials to find a part of a picture: a second of work if all fail


def fits(width: int, height: int) -> bool:
    """Returns whether a picture of this size may be made."""
    return 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS


def check_size(height: int, width: int, name: str, where: str | None) -> None:
    """Raises ConfigError if parameters ask for pictures that are too large. name: of the parameters."""
    if not fits(width, height):
        raise ConfigError(
            f"{name}: expected sides of 1 to {MAX_SIDE} pixels, and {MAX_PIXELS} pixels at most; "
            f"got {height} x {width}",
            where,
        )


def check_within(low: float, value: float, high: float, name: str, where: str | None) -> None:
    """Raises ConfigError if a parameter is below `low`, above `high` or NaN."""
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected {_text(low)} to {_text(high)}, got {_text(value)}", where)


def check_range(low: float, least: float, most: float, high: float, name: str, where: str | None) -> None:
    """Raises ConfigError unless low <= least <= most <= high, for two parameters that bound what is drawn."""
    if not low <= least <= most <= high:
        raise ConfigError(f"{name}: expected a range in {low:g} to {high:g}, got {least:g} to {most:g}", where)


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
