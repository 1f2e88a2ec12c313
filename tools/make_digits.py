"""Makes the LMDBs of examples/digits/ from the handwritten digits that scikit-learn ships.

These are 1,797 grey pictures of 8 x 8 pixels with values 0 to 16, stored as raw Datums. Every fifth picture of each
class goes to the test set (360), the others to the training set (1,437). Nothing is random: the result is always the
same.

    pip install scikit-learn
    python tools/make_digits.py [FOLDER]     (examples/digits if omitted)
"""

import shutil
import sys
import tempfile
from pathlib import Path

import lmdb
import numpy as np
from sklearn.datasets import load_digits

from engine import proto

FOLDER = Path(__file__).resolve().parent.parent / "examples/digits"
MAP_SIZE = 8 << 20  # bytes; far more than the data need


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns indices (training, test) into labels, each in ascending order. Both have the classes in the same
    proportions."""
    by_class = np.argsort(labels, kind="stable")
    test = np.sort(by_class[::5])
    return np.setdiff1d(np.arange(len(labels)), test), test


def write_lmdb(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes images (n, 8, 8) and labels (n,) as a compacted LMDB without a lock file. Replaces the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment = lmdb.open(scratch, map_size=MAP_SIZE, writemap=False)
        with environment.begin(write=True) as transaction:
            for index, (image, label) in enumerate(zip(images, labels)):
                height, width = image.shape
                datum = proto.Datum(channels=1, height=height, width=width, data=image.tobytes(), label=int(label))
                transaction.put(b"%08d" % index, datum.SerializeToString(), append=True)
        environment.copy(str(folder), compact=True)
        environment.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    digits = load_digits()
    assert not isinstance(digits, tuple)  # it would be one with return_X_y=True
    images = digits.images.astype(np.uint8)  # (1797, 8, 8), 0..16
    for name, chosen in zip(("digits_train_lmdb", "digits_test_lmdb"), split(digits.target)):
        write_lmdb(folder / name, images[chosen], digits.target[chosen])
        size = sum(file.stat().st_size for file in (folder / name).iterdir())
        print(f"{folder / name}: {len(chosen)} images, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
