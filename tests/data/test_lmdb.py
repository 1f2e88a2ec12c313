"""The LMDB source: what it reads, and the one line that it raises for what it cannot read."""

import os
import struct
import subprocess
import sys
import threading

import lmdb
import pytest

from engine.data.index import Index
from engine.data.registry import find_source
from engine.data.sources.lmdb import LmdbSource
from engine.errors import ConfigError, DataError
from tests.csrc.test_fault import DEFERRED
from tests.mpi import REPO


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
    with pytest.raises(ConfigError, match="known: FOLDER, LEVELDB, LMDB, RECORDIO, TAR, TFRECORD, ZIP"):
        find_source("HDF5")


# Damage. An LMDB consists of pages of 4096 bytes. The first two are headers of the file, of which the newer one is
# used.

PAGE = 4096
FLAGS, LOWER, NODES = 10, 12, 16  # in a page: its kind, the end of its list of nodes, and the list itself
LEAF, BRANCH = 2, 1


def pages(path, kind: int) -> list[int]:
    """Returns where the file's pages of a kind begin."""
    content = path.read_bytes()
    return [at for at in range(2 * PAGE, len(content), PAGE) if content[at + FLAGS] == kind]


def overwrite(path, *places: tuple[int, bytes]) -> None:
    with open(path, "r+b") as file:
        for at, content in places:
            file.seek(at)
            file.write(content)


def headers(at: int, content: bytes) -> list[tuple[int, bytes]]:
    """Returns changes that put the content into both headers of the file."""
    return [(page + 16 + at, content) for page in (0, PAGE)]


PAGE_SIZE, ENTRIES = 24, 104  # in a header, within the records of both trees, of 48 bytes each


@pytest.mark.parametrize("number", [1 << 31, 1 << 63, (1 << 64) - 1])
def test_a_header_with_more_items_than_fit(hundred, number):
    overwrite(hundred / "data.mdb", *headers(ENTRIES, number.to_bytes(8, "little")))
    with pytest.raises(DataError, match=rf"^net:1:2: LMDB .* is damaged: its header says {number} items, in \d+ bytes"):
        LmdbSource(str(hundred), "net:1:2")


@pytest.mark.parametrize("number, found", [(99, "more than the 99"), (101, "100 of the 101")])
def test_a_tree_with_another_number_of_items(hundred, number, found):
    overwrite(hundred / "data.mdb", *headers(ENTRIES, number.to_bytes(8, "little")))
    source = LmdbSource(str(hundred), "net:1:2")
    for _ in range(2):
        with pytest.raises(DataError, match=rf"^net:1:2: LMDB .* is damaged: its tree has {found} items"):
            source.item(0)


def test_a_tree_that_goes_round_in_circles(hundred):
    path = hundred / "data.mdb"
    first, second = pages(path, LEAF)[:2]
    content = path.read_bytes()
    overwrite(path, (second, content[first : first + PAGE]))
    with pytest.raises(DataError, match=r"LMDB .* is damaged: its tree has|tree leads nowhere|cannot list"):
        for i in range(100):
            LmdbSource(str(hundred)).item(i)


def test_an_item_that_the_tree_does_not_find(hundred, monkeypatch):
    source = LmdbSource(str(hundred), "net:1:2")
    index = Index({})
    index.add_names("keys", (key.replace(b"00000042_x", b"00000042_y") for key in source._list_keys()))
    source._keys = index.names("keys")
    with pytest.raises(DataError, match=r"^net:1:2: LMDB .*: key '00000042_y': its tree leads nowhere"):
        source.item(41)
    assert source.item(40)[0] == "00000041_x"


def read_all(path) -> tuple[int, str]:
    """Reads every item in another process, and returns its exit status and its messages."""
    program = f"""
import resource
from engine.data.sources.lmdb import LmdbSource
from engine.errors import DataError
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    source = LmdbSource({str(path)!r}, "net:1:2")
    for i in range(len(source)):
        source.item(i)
except DataError as error:
    raise SystemExit(f"engine: {{error}}")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("kind", [LEAF, BRANCH])
@pytest.mark.parametrize("fill", [0, 255])
def test_pages_that_are_none(hundred, kind, fill):
    path = hundred / "data.mdb"
    overwrite(path, *[(at, bytes([fill] * PAGE)) for at in pages(path, kind)[:2]])
    status, said = read_all(hundred)
    assert status == 1 and said.startswith("engine: net:1:2: ") and str(hundred) in said and said.count("\n") == 1


FAULT = "the file is damaged, or has been cut off; copy it again\n"


@DEFERRED
def test_what_the_library_asserts(hundred):
    path = hundred / "data.mdb"
    overwrite(path, (pages(path, LEAF)[1] + FLAGS, bytes(2)))
    assert read_all(hundred) == (1, f"engine: net:1:2: LMDB {hundred}: {FAULT}")


def test_values_longer_than_the_file(hundred):
    path = hundred / "data.mdb"
    content = bytearray(path.read_bytes())
    for page in pages(path, LEAF):
        nodes = content[page + NODES : page + int.from_bytes(content[page + LOWER : page + LOWER + 2], "little")]
        for place in struct.unpack(f"<{len(nodes) // 2}H", nodes):
            if content[page + place + 4] & 1:  # a value in pages of its own, whose size stands here
                content[page + place : page + place + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    assert read_all(hundred) == (1, f"engine: net:1:2: LMDB {hundred}: key '00000041_x': {FAULT}")


def test_a_page_size_of_nothing(hundred):
    overwrite(hundred / "data.mdb", *headers(PAGE_SIZE, bytes(4)))
    status, said = read_all(hundred)
    assert status == 1 and said.startswith("engine: net:1:2: ") and said.count("\n") == 1


def test_cut_off_while_it_is_read(hundred):
    program = f"""
import os
from engine.data.sources.lmdb import LmdbSource
source = LmdbSource({str(hundred)!r}, "net:1:2")
source.item(0)
os.truncate({str(hundred / "data.mdb")!r}, 8 * {PAGE})
for i in range(len(source)):
    source.item(i)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"engine: net:1:2: LMDB {hundred}: key '000000")
    assert done.stderr.endswith(f"_x': {FAULT}")


def test_no_memory_for_an_item(hundred, monkeypatch):
    source = LmdbSource(str(hundred), "net:1:2")
    source.item(0)

    class Environment:
        def begin(self):
            raise MemoryError

    monkeypatch.setattr(source, "_environment", Environment())
    with pytest.raises(DataError, match=r"^net:1:2: LMDB .*: key '00000005_x': it is too large for the memory that is"):
        source.item(4)
