"""Makes volumes of noise with a ball, a shell or both in them, and a label for every voxel.

    python examples/volumes/make_volumes.py volumes

writes volumes/train.h5 and test.h5, with datasets `volume` (n, 1, 16, 16, 16) and `label` (n, 16, 16, 16), which is 0
for nothing, 1 for a ball and 2 for a shell; and train.txt and test.txt, the lists of files that HDF5Data reads.
"""

import argparse
import sys
from pathlib import Path

import h5py
import numpy as np

SIDE = 16


def volumes(count, draw):
    """Returns (volumes, labels). The inside of a shell is empty. Where ball and shell meet, a voxel belongs to the
    shell."""
    axes = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"))  # (3, SIDE, SIDE, SIDE)
    labels = np.zeros((count, SIDE, SIDE, SIDE), np.float32)
    for label in labels:
        kind = draw.integers(1, 4)  # ball, shell, both
        for shape in (1, 2):
            size, centre = draw.uniform(3, 4.5), draw.uniform(4, SIDE - 5, (3, 1, 1, 1))
            away = np.sqrt(((axes - centre) ** 2).sum(0))
            inside = away <= size if shape == 1 else np.abs(away - size) <= 0.8
            if kind & shape:
                label[inside] = shape
    bright = (labels > 0) * draw.uniform(0.8, 1.2, (count, 1, 1, 1))
    noisy = bright + draw.normal(0, 0.3, labels.shape)
    return noisy[:, None].astype(np.float32), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--train", type=int, default=200, help="volumes to train with (default: 200)")
    parser.add_argument("--test", type=int, default=40, help="volumes to test with (default: 40)")
    options = parser.parse_args()
    if options.train < 1 or options.test < 1:
        parser.error("--train and --test: expected numbers above 0")
    draw = np.random.default_rng(1)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for subset, count in (("train", options.train), ("test", options.test)):
            path = options.folder / f"{subset}.h5"
            with h5py.File(path, "w") as file:
                file["volume"], file["label"] = volumes(count, draw)
            (options.folder / f"{subset}.txt").write_text(f"{path}\n")
            print(f"{count} volumes in {path}")
    except OSError as error:
        sys.exit(f"{options.folder}: cannot be written: {error}")


if __name__ == "__main__":
    main()
