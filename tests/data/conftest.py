"""Small data sets for the tests of engine/data: real image files, converted to real LMDBs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import open_data
from engine.data.data_source import DataSource
from tests.data.pictures import random_pixels


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the user's cache folder, which is empty at the beginning of each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ENGINE_CACHE", str(folder))
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Makes three classes of 4 PNG images of 3 x 12 x 16. An image's pixels are random_pixels(10 * label + number)."""
    root = tmp_path / "images"
    for label, name in enumerate(["ant", "bee", "cat"]):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(random_pixels(10 * label + number)).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def make_lmdb(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    """Returns a function that writes {key: serialised Datum} as an LMDB, and returns its path."""

    def make(items: dict[str, bytes], name: str = "lmdb") -> Path:
        with lmdb.open(str(tmp_path / name), map_size=1 << 28, lock=False) as environment:
            with environment.begin(write=True) as transaction:
                for key, value in items.items():
                    transaction.put(key.encode(), value)
        return tmp_path / name

    return make


@pytest.fixture
def open_layer() -> Callable[..., DataSource]:
    """Returns a function that opens a Data layer, given its source, and the rest of data_param and transform_param as
    text."""

    def opened(
        source: object, transform: str = "", data: str = "", phase: int = proto.TEST, **options: object
    ) -> DataSource:
        layer = proto.LayerParameter(name="data", type="Data")
        text_format.Parse(f'transform_param {{ {transform} }} data_param {{ source: "{source}" {data} }}', layer)
        return open_data(layer, phase, **options)

    return opened
