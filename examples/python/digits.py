"""Reads the pictures of examples/digits into arrays, for the scripts beside this file."""

from pathlib import Path

import lmdb
import numpy as np

from engine import caffe
from engine.proto import caffe_pb2

DIGITS = Path(__file__).resolve().parents[1] / "digits"


def read(subset):
    """Returns images (n, 1, 8, 8), float32 in [0, 1], and labels (n,). subset: "train" or "test"."""
    images, labels = [], []
    with lmdb.open(str(DIGITS / f"digits_{subset}_lmdb"), readonly=True, lock=False) as env, env.begin() as transaction:
        for _, value in transaction.cursor():
            datum = caffe_pb2.Datum.FromString(value)
            images.append(caffe.io.datum_to_array(datum) / np.float32(16))
            labels.append(datum.label)
    return np.array(images), np.array(labels)
