"""Makes HDF5 files for HDF5Data from a text, for the nets of this folder.

    python examples/text/to_hdf5.py examples/text/book.txt text
    python examples/text/to_hdf5.py examples/text/book.txt blanks --blanks

A row is a piece of `--steps` bytes of the text. It has `text`, the bytes; `cont`, which is 0 where a stream begins and
1 elsewhere; and `next`, the byte that follows each, which is to be predicted. The text is cut into `--streams` streams,
and batch b holds piece b of every stream, so that the states of an LSTM go on from batch to batch. So `--streams` must
be the global batch, ranks x batch_size, and the rows must not be shuffled.

With --blanks, blanks and line ends are taken out of the text, and every row is a stream of its own. `blank`, in place
of `next`, is 1 for a byte that a blank followed. The last tenth of the text is for testing.
"""

import argparse
import sys
from pathlib import Path

import h5py
import numpy as np


def following(text, streams, steps):
    """Returns the datasets text, cont and next, each (pieces x streams, steps)."""
    pieces = (len(text) - 1) // (streams * steps)
    length = pieces * steps

    def rows(of):
        return of[: streams * length].reshape(streams, pieces, steps).swapaxes(0, 1).reshape(-1, steps)

    cont = np.ones((pieces, streams, steps), np.float32)
    cont[0, :, 0] = 0
    return {"text": rows(text[:-1]), "cont": cont.reshape(-1, steps), "next": rows(text[1:])}


def blanks(text, streams, steps):
    """Returns the datasets text, cont and blank, each (pieces, steps); pieces is a multiple of streams."""
    is_blank = np.isin(text, list(b" \n\t\r"))
    kept = np.flatnonzero(~is_blank[:-1])
    pieces = len(kept) // (streams * steps) * streams
    kept = kept[: pieces * steps].reshape(-1, steps)
    cont = np.ones(kept.shape, np.float32)
    cont[:, 0] = 0
    return {"text": text[kept], "cont": cont, "blank": is_blank[kept + 1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the text, in any encoding: the nets read bytes")
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--streams", type=int, default=16, help="ranks x batch_size (default: 16)")
    parser.add_argument("--steps", type=int, default=32, help="bytes of a row (default: 32)")
    parser.add_argument("--blanks", action="store_true", help="for blanks.prototxt")
    options = parser.parse_args()
    if options.streams < 1 or options.steps < 1:
        parser.error("--streams and --steps: expected numbers above 0")
    try:
        text = np.frombuffer(options.text.read_bytes(), np.uint8)
    except OSError as error:
        sys.exit(f"{options.text}: cannot be read: {error.strerror}")
    cut = len(text) - len(text) // 10
    for subset, content in (("train", text[:cut]), ("test", text[cut:])):
        datasets = (blanks if options.blanks else following)(content, options.streams, options.steps)
        if not len(datasets["text"]):
            wanted = options.streams * options.steps
            sys.exit(f"{options.text}: is too short: its part for {subset} has no {wanted} bytes; give fewer --streams")
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / f"{subset}.h5"
        with h5py.File(path, "w") as file:
            for name, rows in datasets.items():
                file[name] = rows.astype(np.float32)
        (options.folder / f"{subset}.txt").write_text(f"{path}\n")
        print(f"{len(datasets['text'])} rows of {options.steps} bytes in {path}")


if __name__ == "__main__":
    main()
