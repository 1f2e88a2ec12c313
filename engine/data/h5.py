"""h5py, which is an extra: HDF5Data and HDF5Output need it."""

from __future__ import annotations

from typing import Any

from engine.errors import DataError


def import_h5py(what: str, where: str | None) -> Any:
    """The module. Raises DataError, which says how to install it."""
    try:
        import h5py
    except ImportError:
        raise DataError(f"{what} needs h5py: pip install engine[hdf5]", where) from None
    return h5py
