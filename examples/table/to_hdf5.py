"""Makes HDF5 files for HDF5Data from a table in CSV: a line of names, then numbers. The last column is the one to
predict.

    python examples/table/to_hdf5.py gas.csv table

writes table/train.h5 and test.h5, with datasets `inputs` (rows, columns - 1) and `target` (rows, 1), the lists
train.txt and test.txt, and scales.json. Every column is scaled to mean 0 and deviation 1 over the training rows;
scales.json has the mean and the deviation that it had. A tenth of the rows, chosen at random, is for testing.
"""

import argparse
import json
import sys
from pathlib import Path

import h5py
import numpy as np


def read(path):
    """Returns (names, rows). Ends with a message if the file is no table of numbers."""
    try:
        lines = Path(path).read_text().splitlines()
        names = lines[0].split(",")
        rows = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:] if line.strip()])
        if rows.ndim != 2 or rows.shape[1] != len(names) or len(names) < 2 or len(rows) < 20:
            raise ValueError(f"expected 20 rows or more of {len(names)} numbers")
        if not np.isfinite(rows).all():
            raise ValueError("there are numbers that are not finite")
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"{path}: is no table of numbers: {error}")
    return names, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="the CSV")
    parser.add_argument("folder", type=Path, help="where to write")
    options = parser.parse_args()
    names, rows = read(options.table)
    order = np.random.default_rng(1).permutation(len(rows))
    subsets = {"test": rows[order[: len(rows) // 10]], "train": rows[order[len(rows) // 10 :]]}
    mean, deviation = subsets["train"].mean(0), subsets["train"].std(0)
    if not deviation.all():
        sys.exit(f"{options.table}: column '{names[int(deviation.argmin())]}' is the same in all rows; take it out")
    options.folder.mkdir(parents=True, exist_ok=True)
    for subset, values in subsets.items():
        path = options.folder / f"{subset}.h5"
        scaled = ((values - mean) / deviation).astype(np.float32)
        with h5py.File(path, "w") as file:
            file["inputs"], file["target"] = scaled[:, :-1], scaled[:, -1:]
        (options.folder / f"{subset}.txt").write_text(f"{path}\n")
        print(f"{len(values)} rows in {path}")
    scales = {name: {"mean": a, "deviation": b} for name, a, b in zip(names, mean.tolist(), deviation.tolist())}
    (options.folder / "scales.json").write_text(json.dumps(scales, indent=1))


if __name__ == "__main__":
    main()
