"""Unpacks CIFAR-10 into a folder of pictures for each class: python pictures.py cifar-10-binary.tar.gz pictures

The archive holds files of records: a byte that numbers the class, then 32 x 32 bytes each of red, green and blue.
"""

import argparse
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

SIDE = 32
CHANNEL = SIDE * SIDE
RECORD = 1 + 3 * CHANNEL
NAMES = "batches.meta.txt"  # the file of the classes' names


def read(archive: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file."""
    with tarfile.open(archive) as files:
        for member in files:
            file = files.extractfile(member)
            if file is not None:
                yield Path(member.name).name, file.read()


def write(records: bytes, names: list[str], folder: Path, written: Counter[Path]) -> int:
    """Writes each record as folder/CLASS/NUMBER.png, and returns how many there are. written: the number of pictures
    that each folder of a class has already."""
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
    try:
        files = dict(read(options.archive))
    except (OSError, tarfile.TarError) as error:
        parser.error(f"{options.archive}: {error}")
    records = sorted(name for name in files if name.endswith(".bin"))
    if NAMES not in files or not records or any(len(files[name]) % RECORD for name in records):
        parser.error(
            f"{options.archive}: expected CIFAR-10's binary version, cifar-10-binary.tar.gz, found {sorted(files)}"
        )
    names = files[NAMES].decode().split()
    written: Counter[Path] = Counter()  # pictures in each folder
    for name in records:
        subset = "test" if name == "test_batch.bin" else "train"
        count = write(files[name], names, options.folder / subset, written)
        print(f"{name}: {count} pictures in {options.folder / subset}")


if __name__ == "__main__":
    main()
