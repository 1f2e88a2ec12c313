"""Makes clips of digits that bounce within 16 x 16 pixels: python examples/adversarial/moving_digits.py FOLDER

FOLDER/train gets clips of digits of the training set, FOLDER/test of the test set: for each clip a folder of
image_0001.png, ... FOLDER/train.txt and FOLDER/test.txt are the lists of clips that VideoData reads. `engine
convert_video` makes such folders and lists from video files.
"""

import argparse
import sys
from pathlib import Path

import lmdb
import numpy as np
from PIL import Image

from engine import proto

SIDE, DIGIT, FRAMES = 16, 8, 16
DIGITS = Path(__file__).resolve().parent.parent / "digits"


def digits(name: str) -> list[np.ndarray]:
    """Returns the pictures of an LMDB: 8 x 8 pixels with values 0 to 255."""
    with lmdb.open(str(DIGITS / name), readonly=True, lock=False) as environment, environment.begin() as values:
        found = [np.frombuffer(proto.Datum.FromString(value).data, np.uint8) for _, value in values.cursor()]
    return [np.minimum(16 * each.reshape(DIGIT, DIGIT).astype(int), 255).astype(np.uint8) for each in found]


def clip(digit: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    """Returns frames in which the digit moves by one or two pixels at a time, and turns round at the border."""
    room = SIDE - DIGIT
    place, step = generator.integers(0, room + 1, 2), generator.choice([-2, -1, 1, 2], 2)
    frames = []
    for _ in range(FRAMES):
        frame = np.zeros((SIDE, SIDE), np.uint8)
        y, x = place
        frame[y : y + DIGIT, x : x + DIGIT] = digit
        frames.append(frame)
        step = np.where((place + step < 0) | (place + step > room), -step, step)
        place = place + step
    return frames


def write(folder: Path, subset: str, count: int, generator: np.random.Generator) -> None:
    """Writes `count` clips, and their list. subset: "train" or "test"."""
    pictures, lines = digits(f"digits_{subset}_lmdb"), []
    for number in range(count):
        frames = folder / subset / f"{number:04}"
        frames.mkdir(parents=True, exist_ok=True)
        for frame, pixels in enumerate(clip(pictures[number % len(pictures)], generator), start=1):
            Image.fromarray(pixels).save(frames / f"image_{frame:04}.png")
        lines.append(f"{frames.absolute()} {FRAMES} 0\n")
    (folder / f"{subset}.txt").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes clips of moving digits.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=400, help="for training; a quarter as many for tests")
    options = parser.parse_args()
    if options.clips < 4:
        parser.error(f"--clips: expected 4 or more, got {options.clips}")
    generator = np.random.default_rng(1)
    try:
        write(options.folder, "train", options.clips, generator)
        write(options.folder, "test", options.clips // 4, generator)
    except OSError as error:
        sys.exit(f"{options.folder}: cannot be written: {error}")


if __name__ == "__main__":
    main()
