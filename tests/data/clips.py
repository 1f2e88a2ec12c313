"""Writes video files with known pictures, by PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

HEIGHT, WIDTH = 48, 64
# By file extension: FFmpeg's name of the encoder, and its pixel format.
KINDS = {
    "mp4": ("libx264", "yuv420p"),
    "avi": ("mpeg4", "yuv420p"),
    "mkv": ("ffv1", "bgr0"),  # lossless
    "webm": ("libvpx-vp9", "yuv420p"),
    "mov": ("mjpeg", "yuvj420p"),
    "mpg": ("mpeg2video", "yuv420p"),
    "ts": ("libx264", "yuv420p"),
}
LOSSLESS = KINDS["mkv"]
_OPTIONS = {"libx264": {"crf": "8"}, "libvpx-vp9": {"crf": "8", "b": "0", "cpu-used": "8"}}
RATE = 25  # frames a second


def moving_squares(count: int, height: int = HEIGHT, width: int = WIDTH) -> list[np.ndarray]:
    """Returns frames of (height, width, 3) bytes R, G, B. One square moves to the right and one down, so that their
    places tell the number of a frame."""
    frames = []
    for number in range(count):
        frame = np.full((height, width, 3), 40, np.uint8)
        across, down = 2 * number % (width - 16), 2 * number % (height - 16)
        frame[4:20, across : across + 16] = (230, 60, 30)
        frame[down : down + 16, width - 16 :] = (40, 90, 220)
        frames.append(frame)
    return frames


def greys(count: int, height: int = 16, width: int = 16) -> list[np.ndarray]:
    """Returns frames of one colour: all values of frame f are 5 * f."""
    return [np.full((height, width, 3), 5 * number, np.uint8) for number in range(count)]


def write_clip(
    path: Path,
    frames: Sequence[np.ndarray],
    times: Sequence[float] | None = None,
    container: dict[str, str] | None = None,
    encoder: tuple[str, str] | None = None,
) -> Path:
    """Writes frames as a video file, and returns its path.

    Args:
        times: seconds at which each frame is shown; without them frames follow each other at RATE.
        container: options of the file format.
        encoder: one to use instead of that of KINDS.
    """
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'prototxt-engine[video]'")
    codec, form = encoder or KINDS[path.suffix[1:]]
    with av.open(str(path), "w", container_options=container or {}) as file:
        stream = file.add_stream(codec, rate=RATE, options=_OPTIONS.get(codec, {}))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.time_base, stream.bit_rate = form, Fraction(1, RATE), 8_000_000
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            if times:
                frame.pts, frame.time_base = round(times[number] * 1000), Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def write_sound(path: Path) -> Path:
    """Writes a file with a second of silence and no pictures, and returns its path."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path
