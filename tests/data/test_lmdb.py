"""The LMDB source: what it reads, and one clear line for what it cannot."""

import os
import threading

import lmdb
import pytest

from engine.data.registry import find_source
from engine.data.sources.lmdb import LmdbSource
from engine.errors import ConfigError, DataError


@pytest.fixture
def hundred(make_lmdb):
    return make_lmdb({f"{i:08d}_x": bytes([i]) * (i * 50) for i in range(1, 101)})


def test_items_come_in_the_order_of_their_keys(hundred):
    source = LmdbSource(str(hundred))
    assert len(source) == 100
    assert [source.item(i) for i in (0, 99, 41)] == [(f"{i:08d}_x", bytes([i]) * (i * 50)) for i in (1, 100, 42)]


def test_nothing_is_written_beside_it(hundred):
    before = os.listdir(hundred)
    LmdbSource(str(hundred)).item(0)
    assert os.listdir(hundred) == before


def test_read_only_files_and_folders(hundred):
    for path in (hundred / "data.mdb", hundred):
        path.chmod(0o555)
    try:
        assert LmdbSource(str(hundred)).item(0)[0] == "00000001_x"
    finally:
        hundred.chmod(0o755)


def test_two_sources_on_one_lmdb(hundred):
    first, second = LmdbSource(str(hundred)), LmdbSource(f"{hundred}/../{hundred.name}")
    assert first.item(3) == second.item(3)


def test_many_threads_read_at_once(hundred):
    source = LmdbSource(str(hundred))
    wrong = []

    def read(offset):
        for i in range(100):
            number = (i + offset) % 100
            if source.item(number) != (f"{number + 1:08d}_x", bytes([number + 1]) * ((number + 1) * 50)):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(13 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_missing(tmp_path):
    with pytest.raises(DataError, match=r"^net:1:2: LMDB not found: .*none"):
        LmdbSource(str(tmp_path / "none"), "net:1:2")
    with pytest.raises(DataError, match="LMDB not found"):
        LmdbSource(str(tmp_path))


@pytest.mark.parametrize("keep", [0.5, 0.99, 0.001])
def test_truncated(hundred, keep):
    path = hundred / "data.mdb"
    os.truncate(path, int(path.stat().st_size * keep))
    with pytest.raises(DataError, match=r"truncated|cannot open LMDB"):
        LmdbSource(str(hundred))


def test_truncated_names_both_sizes(hundred):
    path = hundred / "data.mdb"
    whole = path.stat().st_size
    os.truncate(path, whole // 2)
    with pytest.raises(DataError, match=rf"data.mdb is truncated: {whole // 2} bytes, its header says {whole}"):
        LmdbSource(str(hundred))


@pytest.mark.parametrize("content", [b"", b"hello" * 5000])
def test_no_lmdb(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(DataError, match="cannot open LMDB"):
        LmdbSource(str(tmp_path))


def test_empty(tmp_path):
    lmdb.open(str(tmp_path / "empty"), lock=False).close()
    with pytest.raises(DataError, match="is empty"):
        LmdbSource(str(tmp_path / "empty"))


def test_unknown_backend():
    with pytest.raises(ConfigError, match=r"^net:1:2: backend LMBD is not supported; did you mean 'LMDB'"):
        find_source("LMBD", "net:1:2")
    with pytest.raises(ConfigError, match="known: LMDB"):
        find_source("HDF5")
