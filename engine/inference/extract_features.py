"""`engine extract_features`: writes blobs of a trained net, sample by sample, to LMDBs or an .npz."""

from __future__ import annotations

import contextlib
import itertools
import os
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from engine import proto
from engine.comm.world import World
from engine.config import NetConfig
from engine.data.appearing import appearing
from engine.data.feeder import Feeder
from engine.data.lmdb_writer import check_new, new_lmdb
from engine.errors import ConfigError
from engine.files import atomic_write, check_writable
from engine.inference.trained import load
from engine.net import Counters, Net, NetOptions

Progress = Callable[[int, int], None]
_OTHER_FILES = (".npz", ".npy", ".h5", ".hdf5", ".csv", ".txt", ".mat")  # no names that anybody gives an LMDB


def extract_features(
    config: NetConfig,
    weights: Sequence[str],
    blobs: Sequence[str],
    outputs: Sequence[str],
    batches: int,
    progress: Progress | None = None,
) -> dict[str, tuple[int, ...]]:
    """Runs the net's phase TEST over its first `batches` batches; returns blob -> shape of what was written.

    Raises ConfigError, DataError, WeightsError.

    Args:
        weights: files of weights.
        blobs: names of blobs.
        outputs: an .npz for all blobs, which holds (samples, ...) float32 under each blob's name; or an LMDB for each,
            with Datums of float_data under keys 0000000000, 0000000001, ..., as Caffe's tool of this name writes them.
        progress: is called with the numbers of batches done and of all batches.
    """
    archive = outputs[0] if len(outputs) == 1 and outputs[0].endswith(".npz") else None
    if archive is None:
        if len(outputs) != len(blobs):
            raise ConfigError(f"{len(blobs)} blobs for {len(outputs)} LMDBs; name one for each, or a single .npz")
        if len(set(map(os.path.realpath, outputs))) < len(outputs):
            raise ConfigError(f"expected an LMDB for each blob, got {', '.join(outputs)}: one of them twice")
        for output in outputs:
            if output.lower().endswith(_OTHER_FILES):
                raise ConfigError(f"{output}: expected the name of an LMDB for each blob, or a single .npz for all")
            check_new(output)
    else:
        check_writable(archive)
    with contextlib.closing(features(config, weights, blobs, batches, progress=progress)) as found:
        return _write_npz(archive, blobs, found) if archive else _write_lmdbs(outputs, blobs, found)


def features(
    config: NetConfig,
    weights: Sequence[str],
    blobs: Sequence[str],
    batches: int | None,
    seed: int = 1,
    progress: Progress | None = None,
) -> Generator[list[np.ndarray], None, None]:
    """Yields the blobs' values after each batch, which are valid until the next. Raises ConfigError, DataError,
    WeightsError. batches: how many; None: no end."""
    with contextlib.closing(Feeder(config, proto.TEST, seed, World())) as feeder:
        # watched(): layers are not fused and blobs share no memory, so that every blob of the file is there.
        net = Net(config, proto.TEST, NetOptions(seed=seed, shapes_of=feeder.shapes_of, gradients=False).watched())
        load(net, weights)
        there = net.blobs
        known = dict.fromkeys(top for layer in config.message.layer for top in layer.top if top in there)
        for blob in blobs:
            if blob not in known:
                raise ConfigError(f"no blob '{blob}'; known: {', '.join(known)}", config.path)
        views = [there[blob] for blob in blobs]
        feeder.start()
        for batch in itertools.count() if batches is None else range(batches):
            first_sample = feeder.next(net)
            with feeder.naming(f"batch {batch}"):
                net.forward(Counters(batch, first_sample))
            yield [view.data.reshape(view.shape or (1,)) for view in views]
            if progress and batches:
                progress(batch + 1, batches)


def _write_npz(path: str, blobs: Sequence[str], features: Iterator[list[np.ndarray]]) -> dict[str, tuple[int, ...]]:
    found = {
        blob: np.concatenate(values)
        for blob, values in zip(
            blobs, zip(*([v.copy() for v in batch] for batch in features), strict=True), strict=True
        )
    }
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:  # np.savez() takes no array named "file"
        for blob, values in found.items():
            with archive.open(f"{blob}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
    return {blob: values.shape for blob, values in found.items()}


def _write_lmdbs(
    paths: Sequence[str], blobs: Sequence[str], features: Iterator[list[np.ndarray]]
) -> dict[str, tuple[int, ...]]:
    counts, shapes = [0] * len(blobs), [()] * len(blobs)
    with appearing() as begin, contextlib.ExitStack() as stack:
        puts = [stack.enter_context(new_lmdb(path, begin=begin)) for path in paths]
        for batch in features:
            for i, values in enumerate(batch):
                shapes[i] = values.shape[1:]
                for value in values:
                    puts[i](f"{counts[i]:010d}".encode(), _datum(value).SerializeToString())
                    counts[i] += 1
    return {blob: (count, *shape) for blob, count, shape in zip(blobs, counts, shapes, strict=True)}


def _datum(value: np.ndarray):
    channels, height, width = (*value.shape, 1, 1, 1)[:3] if value.ndim <= 3 else (value.size, 1, 1)
    return proto.Datum(channels=channels, height=height, width=width, float_data=value.ravel())
