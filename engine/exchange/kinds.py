"""Tells from a file's first bytes which framework wrote it: names end in whatever their owners like (.pth.tar, .ckpt,
.bin)."""

from __future__ import annotations

import os
import zipfile

from engine.errors import WeightsError
from engine.exchange.torch_file import PICKLE, ZIP, is_safetensors
from engine.files import opened
from engine.weights.files import HDF5_SIGNATURE

TORCH, KERAS, ONNX = "PyTorch", "Keras", "ONNX"
KERAS_WEIGHTS = "model.weights.h5"  # the member of a .keras archive
SUFFIXES = {
    TORCH: (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors"),
    KERAS: (".h5", ".hdf5", ".keras"),
    ONNX: (".onnx",),
}


def kind_of(path: str | os.PathLike) -> str:
    """Returns TORCH, KERAS or ONNX: by the first bytes, or, where these say nothing, as those of ONNX, by the suffix.

    Raises WeightsError for a file that cannot be read.
    """
    with opened(path, WeightsError) as file:
        begin = file.read(len(HDF5_SIGNATURE))
        if begin == HDF5_SIGNATURE:
            return KERAS
        if is_safetensors(file) or begin.startswith(PICKLE):
            return TORCH
        if begin.startswith(ZIP):
            file.seek(0)
            try:
                with zipfile.ZipFile(file) as archive:
                    names = archive.namelist()
            except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
                names = []  # the reader of the file will say what is wrong
            if any(name.endswith("/data.pkl") for name in names):
                return TORCH
            if KERAS_WEIGHTS in names:
                return KERAS
    suffix = os.path.splitext(path)[1]
    return next((kind for kind, suffixes in SUFFIXES.items() if suffix in suffixes), ONNX)
