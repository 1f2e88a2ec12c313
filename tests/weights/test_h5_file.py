"""HDF5 files that nobody vouches for: only the file itself is read, and only sizes that it can hold."""

import os

import numpy as np
import pytest

from engine.errors import WeightsError
from engine.weights import read_caffemodel, read_solverstate, write_caffemodel
from engine.weights.h5_file import H5File

h5py = pytest.importorskip("h5py")


def linked_rows(file, kind: str) -> None:
    """Makes data/ip/0 a way to `secret` or to `other.h5` instead of a dataset of the file."""
    folder = os.path.dirname(file.filename)
    group = file.create_group("data/ip")
    if kind == "external storage":
        group.create_dataset("0", (2, 4), "f4", external=[(f"{folder}/secret", 0, 32)])
    elif kind == "an external link":
        group["0"] = h5py.ExternalLink(f"{folder}/other.h5", "/x")
    elif kind == "a soft link":
        file["x"] = np.zeros((2, 4), np.float32)
        group["0"] = h5py.SoftLink("/x")
    else:
        layout = h5py.VirtualLayout((2, 4), "f4")
        layout[...] = h5py.VirtualSource(f"{folder}/other.h5", "x", (2, 4))
        group.create_virtual_dataset("0", layout)


@pytest.mark.parametrize("kind", ["external storage", "an external link", "a soft link", "a virtual dataset"])
def test_what_lies_elsewhere_is_not_read(tmp_path, kind):
    (tmp_path / "secret").write_bytes(bytes(32))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros((2, 4), np.float32)
    with h5py.File(path := tmp_path / "x.caffemodel.h5", "w") as file:
        linked_rows(file, kind)
    words = "lies in another file, which is not read" if "link" not in kind else "is a link, which is not followed"
    with pytest.raises(WeightsError, match=rf"truncated or not a caffemodel \('data/ip/0' {words}"):
        read_caffemodel(path)
    with H5File(h5py, path, WeightsError) as file, pytest.raises(WeightsError, match=words):
        file.rows("data/ip/0", 0)


def cycle(file):
    group = file.create_group("data/a")
    group["b"] = file["data"]


def doubled(file):
    """Makes 32 groups, with 2^32 paths to the last of them."""
    group = file.create_group("data")
    for _ in range(30):
        inner = group.create_group("a")
        group["b"] = inner
        group = inner


def empty_gigabytes(file):
    zeros = {"chunks": (1024, 1024), "compression": "gzip", "dtype": "f4"}
    file.create_dataset("data/ip/0", shape=(1 << 15, 1 << 15), **zeros)


def many_links_to_one(file):
    file["data/ip/0"] = np.zeros(1 << 20, np.float32)
    for index in range(1, 400):
        file[f"data/ip/{index}"] = file["data/ip/0"]


def a_large_string(file):
    file.create_group("data")
    file.create_dataset("data/ip/0", (), "S2000000000")


MODELS = {
    "a blob of a name": (lambda file: file.__setitem__("data/ip/weights", 1.0), "has a blob 'weights', expected 0"),
    "a blob of 9 digits": (lambda file: file.__setitem__("data/ip/999999999", 1.0), "has a blob '999999999'"),
    "a negative blob": (lambda file: file.__setitem__("data/ip/-1", 1.0), "has a blob '-1'"),
    "text": (lambda file: file.__setitem__("data/ip/0", "text"), "'data/ip/0' does not hold numbers"),
    "complex numbers": (lambda file: file.__setitem__("data/ip/0", 1j), "'data/ip/0' does not hold numbers"),
    "a type": (lambda file: file.__setitem__("data/ip/0", np.dtype("f4")), "'data/ip/0' is no dataset"),
    "nothing": (lambda file: file.__setitem__("data/ip/0", h5py.Empty("f")), "'data/ip/0' is no dataset, or an empty"),
    "data that is a number": (lambda file: file.__setitem__("data", 1.0), "'data' is no group"),
    "no data": (lambda file: None, "it has no 'data'"),
    "a dangling link": (lambda file: file.__setitem__("data", h5py.SoftLink("/nowhere")), "'data' is a link"),
    "a cycle": (cycle, "group 'data/a/b' lies in the file twice"),
    "doubled groups": (doubled, "lies in the file twice"),
    "deep groups": (lambda file: file.create_group("data" + "/a" * 40), "more than 32 groups within each other"),
    "gigabytes of nothing": (empty_gigabytes, "'data/ip/0' is far larger than the file"),
    "terabytes": (
        lambda file: file.create_dataset("data/ip/0", (1 << 20, 1 << 20), "f4"),
        "the shape 1048576 x 1048576",
    ),
    "one dataset many times": (many_links_to_one, "is far larger than the file"),
    "a large string": (a_large_string, "does not hold numbers"),
    "a name that is no UTF-8": (
        lambda file: file.create_group(b"data/\xff"),
        r"it has no 'data/\\xff'",
    ),
}


@pytest.mark.parametrize("what", MODELS)
def test_caffemodels_that_are_refused(tmp_path, what):
    make, words = MODELS[what]
    with h5py.File(path := tmp_path / "x.caffemodel.h5", "w") as file:
        make(file)
    with pytest.raises(WeightsError, match=words) as error:
        read_caffemodel(path)
    assert str(error.value).startswith(f"{path}: truncated or not a caffemodel (") and "\n" not in str(error.value)


def test_compressed_weights_are_read(tmp_path):
    values = np.random.default_rng(1).normal(size=(64, 50)).astype(np.float64)
    with h5py.File(path := tmp_path / "x.caffemodel.h5", "w") as file:
        file.create_dataset("data/a/b/0", data=values, compression="gzip")
        file["data/a/b/1"] = np.arange(3, dtype=">i2")
    blobs = read_caffemodel(path)
    assert list(blobs) == ["a/b"] and blobs["a/b"][1].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(blobs["a/b"][0], values.astype(np.float32))


STATES = {
    "no iter": ({}, "it has no 'iter'"),
    "iter is text": ({"iter": "x"}, "'iter' does not hold numbers"),
    "iter is empty": ({"iter": np.zeros(0, np.int32)}, "'iter' is no whole number"),
    "iter is a fraction": ({"iter": 0.5}, "'iter' is no whole number"),
    "iter is negative": ({"iter": -3}, "iteration -3"),
    "learned_net is a number": ({"iter": 3, "learned_net": 5}, "'learned_net' is no string"),
    "learned_net is elsewhere": ({"iter": 3, "learned_net": h5py.SoftLink("/nowhere")}, "'learned_net' is a link"),
    "learned_net is no UTF-8": ({"iter": 3, "learned_net": np.bytes_(b"\xff")}, "can't decode byte 0xff"),
    "recent_loss is a number": ({"iter": 3, "recent_loss": 5}, "'recent_loss' is no list"),
    "last_rate is a list": ({"iter": 3, "last_rate": [0.5, 0.5]}, "'last_rate' holds 2 numbers, expected one"),
    "ranks is 0": ({"iter": 3, "ranks": 0}, "ranks 0"),
    "history is a number": ({"iter": 3, "history": 3}, "'history' is no group"),
    "history of other names": ({"iter": 3, "history/1": [1.0]}, "it has no 'history/0'"),
    "a group in the history": ({"iter": 3, "history/0/0": [1.0]}, "'history/0' is no dataset"),
}


@pytest.mark.parametrize("what", STATES)
def test_solverstates_that_are_refused(tmp_path, what):
    members, words = STATES[what]
    with h5py.File(path := tmp_path / "x.solverstate.h5", "w") as file:
        for name, value in members.items():
            file[name] = value
        if "history" not in file:
            file.create_group("history")
    with pytest.raises(WeightsError, match=words) as error:
        read_solverstate(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_rows_are_mapped_where_they_lie_in_one_piece(tmp_path):
    with h5py.File(path := tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(12, dtype=np.float32).reshape(4, 3)
        file.create_dataset("b", data=np.arange(4), compression="gzip")
        file.create_dataset("c", (2, 1 << 14, 1 << 14), "f4", chunks=(1, 1 << 10, 1 << 10), compression="gzip")
        file.create_dataset("d", (2, 1 << 20, 1 << 20), "f4", chunks=(1, 1 << 10, 1 << 10), compression="gzip")
        file["e"] = 1.0
    with H5File(h5py, path, WeightsError) as file:
        assert file.names() == list("abcde") and file.has("a") and not file.has("x")
        rows = file.rows("a", 1 << 20)
        assert isinstance(rows.base, np.memmap) and type(rows) is np.ndarray and rows[2].tolist() == [6, 7, 8]
        assert type(chunked := file.rows("b", 1 << 20)) is np.ndarray
        for name, words in (("c", "a row of 'c' is far larger"), ("d", "the shape"), ("e", "expected rows")):
            with pytest.raises(WeightsError, match=words):
                file.rows(name, 1 << 20)
    assert rows[3].tolist() == [9, 10, 11] and chunked[3] == 3  # this works after the file is closed


def test_rows_of_chunks_that_memory_does_not_hold(tmp_path):
    """The cache must hold two rows of chunks, which is more than HDF5's own megabyte."""
    values = np.random.RandomState(1).randint(0, 9, (16, 300, 300)).astype(np.float32)
    with h5py.File(path := tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/a", data=values, chunks=(4, 150, 300), compression="gzip")
    for free, cache in ((2 * values.nbytes - 1, values.nbytes // 4 - 1), (values.nbytes, values.nbytes // 8)):
        with H5File(h5py, path, WeightsError) as file:
            rows = file.rows("group/a", free)
            assert isinstance(rows, h5py.Dataset) and np.array_equal(rows[9], values[9])
            assert rows.id.get_access_plist().get_chunk_cache()[1] == cache


def test_any_byte_may_be_damaged(tmp_path):
    """Whichever byte is changed, reading raises a WeightsError or nothing."""
    from engine import proto

    net = proto.NetParameter()
    net.layer.add(name="a")
    write_caffemodel(path := tmp_path / "x.caffemodel.h5", net, {"a": [np.ones((2, 3), np.float32)]})
    whole, refused = path.read_bytes(), 0
    for position in range(0, len(whole), 13):
        content = bytearray(whole)
        content[position] ^= 0x55
        path.write_bytes(content)
        try:
            read_caffemodel(path)
        except WeightsError:
            refused += 1
    assert refused > 10
