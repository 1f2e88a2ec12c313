"""Unpacks CIFAR-10 into a folder of pictures for each class: python pictures.py cifar-10-binary.tar.gz pictures

The archive holds files of records: a byte that numbers the class, then 32 x 32 bytes each of red, green and blue.
"""

import argparse
import tarfile
from collections import Counter
from pathlib import Path

from PIL import Image

SIDE = 32
CHANNEL = SIDE * SIDE
RECORD = 1 + 3 * CHANNEL


def write(records: bytes, names: list[str], folder: Path, written: Counter[Path]) -> int:
    """Writes each record as folder/CLASS/NUMBER.png, from 0 in each class; returns how many records there are."""
    starts = range(0, len(records), RECORD)
    for start in starts:
        target = folder / names[records[start]]
        target.mkdir(parents=True, exist_ok=True)
        path = target / f"{written[target]:04}.png"
        written[target] += 1
        begins = (start + 1 + channel * CHANNEL for channel in range(3))
        channels = [Image.frombytes("L", (SIDE, SIDE), records[begin : begin + CHANNEL]) for begin in begins]
        Image.merge("RGB", channels).save(path, compress_level=1)
    return len(starts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Unpacks CIFAR-10 into class folders.")
    parser.add_argument("archive", help="cifar-10-binary.tar.gz")
    parser.add_argument("folder", type=Path, help="where to write train/CLASS/ and test/CLASS/")
    options = parser.parse_args()
    with tarfile.open(options.archive) as archive:
        files = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        names = files["batches.meta.txt"].read().decode().split()
        written: Counter[Path] = Counter()  # pictures in each folder
        for name in sorted(name for name in files if name.endswith(".bin")):
            part = "test" if name == "test_batch.bin" else "train"
            count = write(files[name].read(), names, options.folder / part, written)
            print(f"{name}: {count} pictures in {options.folder / part}")


if __name__ == "__main__":
    main()
