"""The same pictures give the same batches from every source, and damage is told in one line."""

import errno
import gzip
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from itertools import islice
from pathlib import Path

import lmdb
import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import index, open_data
from engine.data.example import record, serialise
from engine.data.registry import open_source, recognised
from engine.data.shards import Shards
from engine.data.tar_file import list_tar
from engine.errors import ConfigError, DataError
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import REPO

MAGIC = struct.pack("<I", 0xCED7230A)


# Writers. Each is another program, or follows the description of the format.


def items_of(folder: Path):
    """Returns (name, bytes, label) of each picture in class folders."""
    classes = sorted(path.name for path in folder.iterdir())
    return [
        (f"{name}/{path.name}", path.read_bytes(), label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
    ]


def make_zip(folder, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, _ in reversed(items_of(folder)):
            archive.writestr(name, content)


def make_tar(folder, path):
    subprocess.run(["tar", "cf", path, "-C", folder, "."], check=True)


def make_webdataset(folder, path):
    """Writes three shards by the format's description, in which the files of a sample follow each other."""
    items = items_of(folder)
    for shard in range(3):
        with tarfile.open(str(path).replace("{0..2}", str(shard)), "w") as tar:
            for number in range(shard * 4, shard * 4 + 4):
                _, content, label = items[number]
                for extension, data in (("png", content), ("cls", f"{label}\n".encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def make_tar_of_tars(folder, path):
    """Writes a tar of a tar for each class, as ILSVRC2012_img_train.tar is."""
    with tarfile.open(path, "w") as outer:
        for name in sorted(os.listdir(folder)):
            subprocess.run(["tar", "cf", f"{path}.{name}", "-C", folder / name, *os.listdir(folder / name)], check=True)
            outer.add(f"{path}.{name}", f"{name}.tar")
            os.remove(f"{path}.{name}")


def make_tfrecord(folder, path):
    tfrecord = pytest.importorskip("tfrecord")
    items = items_of(folder)
    for shard in range(2):
        writer = tfrecord.TFRecordWriter(str(path).replace("?", str(shard)))
        for name, content, label in items[shard * 6 : (None, 6)[shard == 0]]:
            writer.write(
                {
                    "image/encoded": (content, "byte"),
                    "image/class/label": (label, "int"),
                    "image/filename": (name.encode(), "byte"),
                }
            )
        writer.close()


def rec(content: bytes) -> bytes:
    """Returns one record of RecordIO. The content must not have the magic number in it."""
    return MAGIC + struct.pack("<I", len(content)) + content + bytes(-len(content) % 4)


def make_rec(folder, path, with_index=True):
    offsets, out = [], b""
    for number, (_, content, label) in enumerate(items_of(folder)):
        offsets.append(len(out))
        assert MAGIC not in content
        out += rec(struct.pack("<IfQQ", 0, label, number, 0) + content)
    Path(path).write_bytes(out)
    if with_index:
        Path(path).with_suffix(".idx").write_text("".join(f"{i}\t{offset}\n" for i, offset in enumerate(offsets)))


def make_leveldb(folder, path):
    plyvel = pytest.importorskip("plyvel")
    with plyvel.DB(str(path), create_if_missing=True) as db:
        for number, (name, content, label) in enumerate(items_of(folder)):
            datum = proto.Datum(encoded=True, data=content, label=label)
            db.put(f"{number:08d}_{name}".encode(), datum.SerializeToString())


def make_lmdb(folder, path):
    with lmdb.open(str(path), map_size=1 << 28, lock=False) as environment, environment.begin(write=True) as out:
        for number, (name, content, label) in enumerate(items_of(folder)):
            datum = proto.Datum(encoded=True, data=content, label=label)
            out.put(f"{number:08d}_{name}".encode(), datum.SerializeToString())


MAKERS = {
    "folder": ("FOLDER", "images", None),
    "zip": ("ZIP", "a.zip", make_zip),
    "tar": ("TAR", "a.tar", make_tar),
    "webdataset": ("TAR", "w-{0..2}.tar", make_webdataset),
    "tar of tars": ("TAR", "ILSVRC.tar", make_tar_of_tars),
    "tfrecord": ("TFRECORD", "train-?.tfrecord", make_tfrecord),
    "recordio": ("RECORDIO", "a.rec", make_rec),
    "recordio without .idx": ("RECORDIO", "b.rec", lambda folder, path: make_rec(folder, path, False)),
    "leveldb": ("LEVELDB", "ldb", make_leveldb),
    "lmdb": ("LMDB", "db", make_lmdb),
}


@pytest.fixture
def made(image_folder, tmp_path):
    def make(name):
        _, path, maker = MAKERS[name]
        if maker:
            maker(image_folder, tmp_path / path)
        return f"{tmp_path}/{path}"

    return make


def layer(source, text="", transform="", kind="Data") -> proto.LayerParameter:
    message = proto.LayerParameter(name="data", type=kind, top=["data", "label"])
    return text_format.Parse(f'data_param {{ source: "{source}" {text} }} transform_param {{ {transform} }}', message)


def batches(source, count, batch_size, rank=0, ranks=1, start=0, **options):
    """Returns (data, label) of the first batches, of a layer in which everything is random."""
    message = layer(source, "shuffle: true", "crop_size: 8 mirror: true mean_value: 7")
    data = open_data(message, proto.TRAIN, seed=3, rank=rank, ranks=ranks, **options)
    with data.batches(batch_size, rank, ranks, start) as found:
        return [[array.copy() for array in batch.arrays["data"]] for batch in islice(found, count)]


def joined(parts):
    return [np.concatenate(arrays) for arrays in zip(*parts)]


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_pictures_give_the_same_batches(made, name):
    """With 1 and with 4 ranks, from the beginning and from the middle of the second epoch on."""
    expected = joined(batches(made("lmdb"), 5, 8))
    source = made(name) if name != "lmdb" else str(made("folder")).replace("images", "db")
    assert recognised(source) == MAKERS[name][0]
    for got in (
        joined(batches(source, 5, 8)),
        joined([part for parts in zip(*(batches(source, 5, 2, rank, 4) for rank in range(4))) for part in parts]),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    resumed = joined(batches(source, 2, 8, start=19))
    assert all(np.array_equal(a, b[19:35]) for a, b in zip(resumed, expected, strict=True))
    assert sorted(set(expected[1].tolist())) == [0, 1, 2]


@pytest.mark.parametrize("name", MAKERS)
def test_skipped_pictures_are_counted(made, name, image_folder):
    (image_folder / "bee/1.png").write_bytes(b"no picture")
    source = open_data(layer(made(name)), proto.TEST, skip_bad_images=True)
    with source.batches(12) as found:
        assert next(found).arrays["data"][1].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(source.skipped) == 1 and "cannot decode 10 bytes" in next(iter(source.skipped.values()))[1]


@pytest.mark.parametrize("name", ["zip", "tfrecord"])
def test_items_with_wrong_checksums_are_skipped_and_counted(made, name):
    pytest.importorskip("tfrecord")
    path = made(name)
    first = path.replace("?", "0")
    before = b"ant/0.png" if name == "zip" else b"\x89PNG"
    at = Path(first).read_bytes().index(before) + 60  # in the first picture
    damaged(first, at, bytes([Path(first).read_bytes()[at] ^ 255]))
    with pytest.raises(DataError, match=r"train-0.tfrecord\[0\]\) has a wrong checksum|member 'ant/0.png' cannot be"):
        open_data(layer(path), proto.TEST)
    source = open_data(layer(path), proto.TEST, skip_bad_images=True)
    labels = [0, *[0] * 3, *[1] * 4, *[2] * 4]
    with source.batches(12) as found:
        assert next(found).arrays["data"][1].tolist() == labels  # the second picture takes the first one's place
    ((key, _),) = source.skipped.values()
    assert key in ("ant/0.png", "train-0.tfrecord[0]")


@pytest.mark.parametrize("name", ["folder", "zip", "tar", "tar of tars"])
def test_classes_are_known_where_folders_name_them(made, name):
    assert open_source(made(name)).classes == ["ant", "bee", "cat"]


# What tells a source from others


def test_a_type_that_is_said_wrongly(made):
    for name, backend in (("tar", "LMDB"), ("leveldb", "LMDB"), ("lmdb", "LEVELDB"), ("zip", "TFRECORD")):
        found = MAKERS[name][0]
        with pytest.raises(DataError, match=rf"is no {backend}, but of type {found}: set backend: {found}, or leave"):
            open_data(layer(made(name), f"backend: {backend}"), proto.TEST)


def test_what_is_no_source(tmp_path):
    (tmp_path / "x.bin").write_bytes(os.urandom(2000))
    with pytest.raises(DataError, match=r"x.bin: not a source of any known type; known: FOLDER, LEVELDB, LMDB, "):
        open_source(str(tmp_path / "x.bin"))
    with pytest.raises(DataError, match=r"none: no such file or folder"):
        open_source(str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"no file is named .*w-\*.tar"):
        open_source(str(tmp_path / "w-*.tar"))
    with pytest.raises(DataError, match=r"w-1.tar: no such file"):
        open_source(str(tmp_path / "w-{1..2}.tar"))
    with pytest.raises(DataError, match=r"expected \{first..last\} of 1 to 100000 files, got \{1..99999999\}"):
        open_source(str(tmp_path / "w-{1..99999999}.tar"))
    with pytest.raises(DataError, match=r"stands for more than 100000 files"):
        open_source(str(tmp_path / "w-{1..400}{1..400}.tar"))


@pytest.mark.parametrize("name", ["lmdb", "leveldb", "recordio"])
def test_sources_without_fields(made, name):
    with pytest.raises(ConfigError, match=r"has no fields: take out data_param.field"):
        open_data(layer(made(name), 'field: "jpg"'), proto.TEST)


def test_boxes_are_in_databases_only(made):
    with pytest.raises(ConfigError, match=r"AnnotatedData reads AnnotatedDatums, from an LMDB or LevelDB"):
        open_data(layer(made("tar"), kind="AnnotatedData"), proto.TEST)


# Several labels, masks, fields


def wds(path, samples):
    with tarfile.open(path, "w") as tar:
        for key, files in samples.items():
            for extension, data in files.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


def first(message, phase=proto.TEST, size=2, **options):
    with open_data(message, phase, **options).batches(size) as found:
        return [array.copy() for array in next(found).arrays["data"]]


PNG = image_bytes(random_pixels(1))
MASK = image_bytes(random_pixels(2, channels=1))


def test_several_labels_of_a_tar(tmp_path):
    path = wds(tmp_path / "x.tar", {"a": {"png": PNG, "cls": b"1 0 2.5"}, "b": {"png": PNG, "cls": b"0 0 -1"}})
    assert first(layer(path))[1].tolist() == [[1, 0, 2.5], [0, 0, -1]]


def test_samples_of_a_zip_come_as_those_of_a_folder(tmp_path):
    """The order of the files in the zip does not matter."""
    names = ["b.png", "a.png", "in/a.n/x.png", "in/a.png", "in-a.cls", "in/a.cls", "in-a.png", "a.cls"]
    names += ["in/a.n/x.cls", "b.cls"]
    (tmp_path / "folder/in/a.n").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for number, name in enumerate(names):
            content = PNG if name.endswith("png") else str(number).encode()
            archive.writestr(name, content)
            (tmp_path / "folder" / name).write_bytes(content)

    def samples(path):
        source = open_source(str(path))
        return [(key, datum.label) for key, datum in map(source.item, range(len(source)))]

    expected = [("a.png", 7), ("b.png", 9), ("in-a.png", 4), ("in/a.png", 5), ("in/a.n/x.png", 8)]
    assert samples(tmp_path / "x.zip") == samples(tmp_path / "folder") == expected


def test_fields_of_a_tar(tmp_path):
    sample = {"png": PNG, "small.png": image_bytes(random_pixels(3, 4, 5)), "cls": b"1", "age": b"40"}
    path = wds(tmp_path / "x.tar", {"a": sample, "b": sample})
    data, label = first(layer(path, 'field: "small.png" field: "age"'))
    assert data.shape == (2, 3, 4, 5) and label.tolist() == [40, 40]
    assert first(layer(path, 'field: "png" field: "age" field: "cls"'))[1].tolist() == [[40, 1]] * 2
    with pytest.raises(DataError, match=r"x.tar has no samples of jpg in it"):
        first(layer(path, 'field: "jpg"'))


def test_labels_of_a_tar_that_are_none(tmp_path):
    for samples, message in (
        ({"a": {"png": PNG, "cls": b"one"}}, r"a.cls: expected a label, or several, as numbers; got b'one'"),
        ({"a": {"png": PNG, "cls": b"1"}, "b": {"png": PNG}}, r"sample 'b': expected 1 labels, as .*; got 0"),
        ({"a": {"png": PNG, "cls": b"1"}, "b": {"cls": b"1"}}, r"sample 'b' has no picture; it has cls"),
        ({"a": {"png": PNG, "mask.png": MASK}, "b": {"png": PNG}}, r"sample 'b': expected mask, as .*; got none"),
        ({"README": {"txt": b"hello"}}, r"x.tar has no images in it"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(wds(tmp_path / "x.tar", samples))


def test_fields_and_several_labels_of_a_tfrecord(tmp_path):
    features = {"photo": PNG, "tags": [1.0, 0.5], "seg": MASK, "id": [7]}
    (tmp_path / "x.tfrecord").write_bytes(record(serialise(features)) * 2)
    path = tmp_path / "x.tfrecord"
    assert first(layer(path, 'field: "photo" field: "tags"'))[1].tolist() == [[1, 0.5]] * 2
    assert first(layer(path, 'field: "photo" field: "seg"'))[1].shape == (2, 1, 12, 16)
    assert first(layer(path, 'field: "photo" field: "id" field: "tags"'))[1].tolist() == [[7, 1, 0.5]] * 2
    named = {"image/encoded": PNG, "image/class/label": [3], "label": [4], "mask": MASK}
    (tmp_path / "z.tfrecord").write_bytes(record(serialise(named)) * 2)
    _, mask, label = first(layer(tmp_path / "z.tfrecord"))
    assert mask.shape == (2, 1, 12, 16) and label.tolist() == [3, 3]
    with pytest.raises(
        DataError, match=r"x.tfrecord\[0\] has no feature 'image/encoded'; it has id, photo, seg, tags; n"
    ):
        open_data(layer(path), proto.TEST)
    (tmp_path / "y.tfrecord").write_bytes(record(serialise({"image/encoded": PNG, "id": [7]})) * 2)
    with pytest.raises(
        DataError, match=r"y.tfrecord\[0\] has neither a label \('image/class/label'\) nor a mask; it has id, "
    ):
        open_data(layer(tmp_path / "y.tfrecord"), proto.TEST)
    with pytest.raises(DataError, match=r"\[0\] has no feature 'tag'"):
        open_data(layer(path, 'field: "photo" field: "tag"'), proto.TEST)
    with pytest.raises(DataError, match=r"\[0\]: expected the bytes of one image file, got a feature of numbers"):
        open_data(layer(path, 'field: "tags" field: "tags"'), proto.TEST)


def test_records_of_recordio_in_parts_and_with_several_labels(tmp_path):
    """MXNet 1.9.1 wrote these bytes. The first record has 3 labels and a payload with the magic number in it three
    times, twice in a row. The second has one label."""
    (tmp_path / "x.rec").write_bytes(
        bytes.fromhex(
            "0a23d7ce280000200300000000000000000000000000000000000000000000000000803f000000000000c03f61626364"
            "0a23d7ce000000400a23d7ce0800006078797a0a23d7ce710a23d7ce18000020000000000000e040000000000000000000"
            "000000000000000a23d7ce0900006068656c6c6f0a23d7ce000000"
        )
    )
    source = open_source(str(tmp_path / "x.rec"))
    first, second = (source.item(i)[1] for i in range(len(source)))
    assert (first.data, list(first.labels)) == (b"abcd" + MAGIC + MAGIC + b"xyz" + MAGIC + b"q", [1, 0, 1.5])
    assert (second.data, second.label) == (MAGIC + b"hello" + MAGIC, 7)


# Damage


def damaged(path, at, content=b"\xff"):
    data = bytearray(Path(path).read_bytes())
    at = at if at >= 0 else len(data) + at
    data[at : at + len(content)] = content
    Path(path).write_bytes(data)


def cut(path, less):
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-less])


def message_of(source):
    with pytest.raises(DataError) as caught:
        opened = open_source(str(source))
        for number in range(len(opened)):
            opened.item(number)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_tfrecords(made, tmp_path):
    pytest.importorskip("tfrecord")
    path = made("tfrecord").replace("?", "1")
    cut(path, 5)
    assert "train-1.tfrecord: it ends within the record at byte " in message_of(tmp_path / "train-?.tfrecord")
    damaged(path, 40)
    cut(path, 1000)
    path = made("tfrecord").replace("?", "0")
    damaged(path, 60)
    assert "the record at byte 0 (train-0.tfrecord[0]) has a wrong checksum" in message_of(path)
    made("tfrecord")
    length = struct.unpack("<Q", Path(path).read_bytes()[:8])[0]
    damaged(path, 16 + length)
    assert f"the length of the record at byte {16 + length} has a wrong checksum" in message_of(path)
    Path(path).write_bytes(gzip.compress(b"x" * 100))
    with pytest.raises(DataError, match=r"the record at byte 0 has a wrong checksum; it is packed by gzip: unpack it"):
        open_data(layer(path, "backend: TFRECORD"), proto.TEST)
    Path(path).write_bytes(record(b"\xff\xff"))
    assert "(train-0.tfrecord[0]) is no Example" in message_of(path)


def test_damaged_recordio(made):
    path = made("recordio without .idx")
    size = os.path.getsize(path)
    cut(path, 8)
    assert "it ends within the record at byte" in message_of(path)
    made("recordio without .idx")
    second = 8 + struct.unpack("<I", Path(path).read_bytes()[4:8])[0]
    second += -second % 4
    damaged(path, second)
    assert f"no record begins at byte {second}: the file is damaged" in message_of(path)
    made("recordio without .idx")
    damaged(path, second + 8, struct.pack("<I", 1 << 30))
    assert f"the record at byte {second} says 1073741824 labels" in message_of(path)
    assert os.path.getsize(path) == size


def test_an_idx_that_is_not_of_its_rec(made):
    path = made("recordio")
    listed = Path(path).with_suffix(".idx")
    lines = listed.read_text().splitlines()
    listed.write_text("\n".join(lines[:-1]))
    assert "a.idx is not of this file: its last record does not end where the file does" in message_of(path)
    listed.write_text("\n".join([*lines[:3], "3\t1"]))
    assert "a.idx:4 leads to no record of it, got '3\\t1'" in message_of(path)


def test_damaged_tars(made, tmp_path):
    path = made("tar")
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2 + 100])
    assert "truncated" in message_of(path) or "cut off" in message_of(path)
    at = whole.index(b"./bee/")
    for end in (at, at + 100):  # at the end of a member, and within a header
        Path(path).write_bytes(whole[:end])
        assert "it ends without the zeros that end a tar: it is truncated; copy it again" in message_of(path)
    Path(path).write_bytes(whole)
    damaged(path, at + 124, b"7")
    assert f"it is a damaged tar: the header at byte {at} has a wrong checksum" in message_of(path)
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(whole))
    assert "a.tar.gz: it is packed by gzip, so that no member can be read alone; unpack it" in message_of(packed)
    (tmp_path / "no.tar").write_bytes(b"x" * 2000)
    assert "no.tar: it is no tar: the header at byte 0 has a wrong checksum" in message_of(tmp_path / "no.tar")
    (tmp_path / "hollow.tar").write_bytes(bytes(10240))
    assert "has no images in it" in message_of(tmp_path / "hollow.tar")


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar", "v7", "posix"])
def test_names_of_all_kinds_of_tars(image_folder, tmp_path, form):
    # a name of a v7 tar has 99 bytes, of ustar 155 and 100
    deep, long = {"v7": (40, 30), "ustar": (90, 80)}.get(form, (180, 150))
    deep = "d" * deep
    os.rename(image_folder / "cat", image_folder / deep)
    os.rename(image_folder / deep / "0.png", image_folder / deep / ("n" * long + "ä.png"))
    subprocess.run(["tar", "cf", tmp_path / "x.tar", f"--format={form}", "-C", tmp_path, "images"], check=True)
    tar, folder = open_source(str(tmp_path / "x.tar")), open_source(str(image_folder))
    assert [tar.item(i) for i in range(12)] == [folder.item(i) for i in range(12)]


def test_a_pax_header_is_read_in_linear_time(tmp_path):
    """If the million bytes were copied for each of its records, it would take a minute."""
    records = b"6 a=b\n" * 170_000 + b"12 path=c/a\n"
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    member = tarfile.TarInfo("x")
    content = header.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
    (tmp_path / "x.tar").write_bytes(content + member.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    begin = time.thread_time()
    (found,) = list_tar(Shards([str(tmp_path / "x.tar")], None), 0)
    assert found.name == "c/a" and time.thread_time() - begin < 5


def test_sparse_members_are_refused(image_folder, tmp_path):
    with open(image_folder / "ant/0.png", "ab") as file:
        file.truncate(1 << 20)
    for form in ("gnu", "pax"):
        command = ["tar", "cSf", tmp_path / "x.tar", f"--format={form}", "-C", image_folder, "ant"]
        subprocess.run(command, check=True)
        assert "is a sparse file; make the tar without --sparse" in message_of(tmp_path / "x.tar")


def test_links_in_tars(image_folder, tmp_path):
    """A hard link gives the same file once more. If the file is not in the tar, an error asks for it."""
    os.link(image_folder / "ant/0.png", image_folder / "cat/z.png")
    long = "n" * 150
    os.link(image_folder / "ant/1.png", image_folder / f"cat/{long}1.png")
    os.link(image_folder / f"cat/{long}1.png", image_folder / f"cat/{long}2.png")
    for form in ("gnu", "pax"):
        command = ["tar", "cf", tmp_path / "x.tar", f"--format={form}", "--sort=name", "-C", image_folder, "."]
        subprocess.run(command, check=True)
        tar, folder = open_source(str(tmp_path / "x.tar")), open_source(str(image_folder))
        assert [tar.item(i) for i in range(15)] == [folder.item(i) for i in range(15)] and len(tar) == 15
    subprocess.run(["tar", "--delete", "-f", tmp_path / "x.tar", "./ant/0.png"], check=True)
    assert (
        "x.tar: its member 'cat/z.png' is a hard link to 'ant/0.png', which does not lie before it; make the tar wi"
        in (message_of(tmp_path / "x.tar"))
    )
    (image_folder / "cat/README").symlink_to("0.png")
    make_tar(image_folder, tmp_path / "x.tar")
    assert len(open_source(str(tmp_path / "x.tar"))) == 15
    (image_folder / "cat/link.png").symlink_to("0.png")
    make_tar(image_folder, tmp_path / "x.tar")
    assert "'cat/link.png' is a symbolic link to '0.png'; make the tar with --dereference" in (
        message_of(tmp_path / "x.tar")
    )


def test_pictures_of_one_name_in_several_tars(image_folder, tmp_path):
    """Class folders that are divided among shards may number their pictures anew in each. Within one tar, the last file
    of a name counts."""
    for shard in range(2):
        make_tar(image_folder, tmp_path / f"x-{shard}.tar")
        for path in image_folder.rglob("*.png"):
            Image.new("L", (20, 20), shard).save(path)
    subprocess.run(["tar", "rf", tmp_path / "x-0.tar", "-C", image_folder, "./ant/0.png"], check=True)
    source = open_source(str(tmp_path / "x-{0..1}.tar"))
    assert len(source) == 24
    (first, a), (second, b), (_, c) = (source.item(i) for i in range(3))
    assert first == second == "ant/0.png" and a.label == b.label == 0 and a.data != b.data != c.data


def test_pictures_of_one_name_in_inner_tars(image_folder, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as outer:
        for part in ("a", "b"):
            make_tar(image_folder, tmp_path / f"{part}.tar")
            outer.add(tmp_path / f"{part}.tar", f"{part}/class.tar")
    assert len(open_source(str(tmp_path / "x.tar"))) == 24


def test_sizes_in_pax_headers_that_are_none(tmp_path):
    for size in ("9" * 5000, "x"):
        with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("a/b.png")
            member.pax_headers["size"] = size
            tar.addfile(member)
        assert "x.tar: it is a damaged tar: the pax header at byte 0 has no size" in message_of(tmp_path / "x.tar")


def test_damaged_zips(made):
    path = made("zip")
    damaged(path, 60)
    assert "cannot be read: " in message_of(path)
    whole = Path(path).read_bytes()
    cut(path, 30)
    assert "a.zip: it has no directory at its end, as a zip has: it is truncated; copy it again" in message_of(path)
    Path(path).write_bytes(whole[: len(whole) // 3])
    assert "it is truncated; copy it again" in message_of_backend(path, "ZIP")
    at = whole.index(b"PK\1\2")
    Path(path).write_bytes(whole[:at] + bytes(20) + whole[at + 20 :])
    assert "no zip file that can be read" in message_of(path)
    made("zip")
    data = Path(path).read_bytes()
    damaged(path, data.index(b"PK\1\2") + 20, b"\xff\xff\xff\0")
    assert "a.zip: no zip file that can be read: its members have " in message_of(path)
    damaged(path, data.index(b"PK\1\2") + 20, data[data.index(b"PK\1\2") + 20 :][:4])
    damaged(path, data.index(b"PK\1\2") + 10, b"\x63\0")
    assert "it is packed by method 99, expected deflate or none" in message_of(path)
    with pytest.raises(DataError, match=r"a.zip: it has no folder none"):
        open_source(made("zip") + "/none")


@pytest.mark.parametrize(
    "field, words", [(24, r"has 9223372036854775813 bytes"), (42, r"is at byte 92233720368547758\d\d")]
)
def test_members_of_a_zip_beyond_any_file(made, field, words):
    """The 64 bits of zip64 have no sign, and may exceed the size of any file.

    Args:
        field: where in the directory entry the 32 bits of the number are.
    """
    path = Path(made("zip"))
    data = bytearray(path.read_bytes())
    member, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    extra = struct.pack("<HHQ", 1, 8, 2**63 + 5)
    data[end + 12 : end + 16] = struct.pack("<I", end - member + len(extra))
    data[member + field : member + field + 4] = b"\xff" * 4
    data[member + 30 : member + 32] = struct.pack("<H", len(extra))
    at = member + 46 + int.from_bytes(data[member + 28 : member + 30], "little")
    data[at:at] = extra
    path.write_bytes(data)
    assert re.search(r"a.zip: member 'cat/3.png' is at byte .* bytes: damaged\?", message_of(path))
    assert re.search(words, message_of(path))


def message_of_backend(path, backend):
    with pytest.raises(DataError) as caught:
        open_data(layer(path, f"backend: {backend}"), proto.TEST)
    return str(caught.value)


def test_damaged_leveldbs(made):
    path = Path(made("leveldb"))
    logs = list(path.glob("*.log"))
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    source = open_source(str(path))
    assert len(source) == 12 and {each.name: each.read_bytes() for each in path.iterdir()} == before
    del source
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    assert f"cannot open LevelDB {path}: " in message_of(path)
    assert logs


def test_a_leveldb_is_only_read(tmp_path):
    """LevelDB turns the log of a writer that was killed into a table. Files in the folder may already have the table's
    number; they must stay."""
    plyvel = pytest.importorskip("plyvel")
    path = tmp_path / "ldb"
    with plyvel.DB(str(path), create_if_missing=True, write_buffer_size=1 << 16) as db:
        for number in range(500):
            db.put(f"{number:08d}".encode(), os.urandom(500))
    assert any(log.stat().st_size for log in path.glob("*.log"))
    last = max(int(file.stem) for file in path.iterdir() if file.stem.isdigit())
    for number in range(last + 1, last + 20):
        (path / f"{number:06d}.ldb").write_text("mine")
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    assert len(open_source(str(path))) == 500
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST", ".log", ".ldb"])
def test_leveldbs_of_links(tmp_path, name):
    plyvel = pytest.importorskip("plyvel")
    path = tmp_path / "ldb"
    with plyvel.DB(str(path), create_if_missing=True) as db:
        db.put(b"a", b"b")
    with plyvel.DB(str(path)) as db:  # opening it turns the log into a table
        db.put(b"c", b"d")
    (file,) = (each for each in path.iterdir() if name in each.name)
    if name == "CURRENT":
        file.write_text("../../../../../../../../dev/zero\n")
        assert f"cannot open LevelDB {path}: CURRENT names no manifest" in message_of(path)
    (tmp_path / "mine").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "mine" if name in ("CURRENT", ".ldb") else "/dev/zero")
    assert f"cannot open LevelDB {path}: {file.name} is no regular file" in message_of(path)


def test_a_leveldb_whose_log_would_fill_the_disk(made):
    path = Path(made("leveldb"))
    os.truncate(next(path.glob("*.log")), 1 << 40)
    assert "its logs and its manifest have 1099511627" in message_of(path)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("name", ["lmdb", "leveldb"])
def test_a_database_that_was_replaced_while_one_is_open(made, image_folder, monkeypatch, name, listed):
    """A script opens a net, converts anew under the same name, and opens another net, all in one process."""
    monkeypatch.setattr(index, "SMALLEST", 1)
    path = made(name)
    before = open_source(path)
    if listed:
        assert before.item(11)[0] == "00000011_cat/3.png"
    shutil.rmtree(path)
    shutil.rmtree(image_folder / "bee")
    made(name)
    if name == "lmdb":  # an open LMDB still reads the removed file
        assert before.item(11)[0] == "00000011_cat/3.png"
    after = open_source(path)
    assert [after.item(number)[0] for number in range(len(after))] == [
        f"{number:08d}_{kind}/{number % 4}.png" for number, kind in enumerate(["ant"] * 4 + ["cat"] * 4)
    ]


def test_two_processes_read_one_leveldb(made):
    path = made("leveldb")
    source = open_source(path)
    code = f"from engine.data.registry import open_source; print(len(open_source({path!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=60)
    assert (done.stdout, len(source)) == ("12\n", 12)


def test_folders_that_are_none(tmp_path, image_folder):
    (tmp_path / "hollow").mkdir()
    assert "hollow has no images in it" in message_of(tmp_path / "hollow")
    (image_folder / "x.png").write_bytes(PNG)
    assert "x.png is in no class folder" in message_of(image_folder)
    assert "name the pictures and their labels in a list (ImageData, with this as its root_folder)" in message_of(
        image_folder
    )
    (image_folder / "x.png").unlink()
    assert f"is too deep for a class folder; did you mean {tmp_path}/images?" in message_of(tmp_path)


def test_folders_within_themselves(image_folder):
    expected = len(open_source(str(image_folder)))
    for name in ("here", "again"):
        (image_folder / "bee" / name).symlink_to(".")
        (image_folder / "bee" / f"{name}_root").symlink_to("..")
    assert len(open_source(str(image_folder))) == expected


def test_folders_that_are_met_again_and_again(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        for name in "ab":
            (tmp_path / f"{number}" / name).symlink_to(f"../{number + 1}")
    (tmp_path / "30").mkdir()
    with pytest.raises(DataError, match=r"links lead here more than 100 times; take some out"):
        open_source(str(tmp_path / "0"))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_read(image_folder):
    (image_folder / "bee").chmod(0)
    assert "bee: cannot be read: Permission denied" in message_of(image_folder)


@pytest.mark.parametrize("name", ["folder", "zip", "tar", "webdataset", "tfrecord", "recordio"])
def test_a_source_that_shrinks_during_the_run(made, name):
    """If listed items are gone, the run ends with an error that names the file."""
    path = made(name)
    data = open_data(layer(path), proto.TEST)
    files = (
        [*Path(path).rglob("*.png")]
        if name == "folder"
        else [*Path(path).parent.glob(Path(path).name.replace("{0..2}", "?"))]
    )
    for file in files:
        if name == "folder":
            file.unlink()
        else:
            os.truncate(file, 100)
    with data.batches(12) as found, pytest.raises(DataError, match=r"cannot be read|it ends at|truncated"):
        next(found)


# The index


@pytest.fixture
def large(monkeypatch):
    """Keeps an index for even the smallest source."""
    monkeypatch.setattr(index, "SMALLEST", 1)


@pytest.mark.parametrize("name", MAKERS)
def test_an_index_is_kept_and_made_anew_when_the_source_changes(made, name, large, cache, image_folder):
    def keys():
        source = open_source(path)
        return [source.item(i)[0] for i in range(len(source))]

    path = made(name)
    before = keys()
    files = {file: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert len(files) == 1 and keys() == before
    assert {file: file.stat().st_mtime_ns for file in cache.iterdir()} == files
    extra = image_folder / "cat/9.png"
    extra.write_bytes(PNG)
    if name == "webdataset":
        wds(path.replace("{0..2}", "2"), {"x": {"png": PNG, "cls": b"1"}})
    else:
        made(name)
    after = keys()
    assert after != before and len(after) == (9 if name == "webdataset" else 13)


def test_labels_beside_pictures_are_read_anew_when_they_change(tmp_path, large, cache):
    (tmp_path / "a/deep/er").mkdir(parents=True)
    for name in ("a/x", "a/deep/er/y"):
        (tmp_path / f"{name}.png").write_bytes(PNG)
        (tmp_path / f"{name}.cls").write_text("1")

    def labels():
        source = open_source(str(tmp_path / "a"))
        return [source.item(number)[1].label for number in range(len(source))]

    assert labels() == [1, 1]
    (file,) = cache.iterdir()
    kept = file.stat().st_mtime_ns
    assert labels() == [1, 1] and file.stat().st_mtime_ns == kept
    (tmp_path / "a/deep/er/y.cls").write_text("27")
    assert labels() == [1, 27]
    for extension, content in (("png", PNG), ("cls", b"3")):
        (tmp_path / f"a/deep/er/z.{extension}").write_bytes(content)
    assert labels() == [1, 27, 3]


def test_an_index_that_is_damaged_is_made_anew(made, large, cache):
    path = made("tar")
    open_source(path)
    (file,) = cache.iterdir()
    magic, line, rest = file.read_bytes().split(b"\n", 2)
    head = json.loads(line)
    wrong = [{"columns": []}, {"columns": {"keys": ["u1", [1 << 70], 0]}}, {"facts": 5}, {"facts": {"inner": ["x"]}}]
    heads = [b"[" * 100_000, *(json.dumps({**head, **each}).encode() for each in wrong)]
    contents = [b"", magic + b"\n", magic + b"\n{}\n", file.read_bytes()[:-9], os.urandom(400)]
    for content in (*contents, *(b"\n".join((magic, each, rest)) for each in heads)):
        file.write_bytes(content)
        assert len(open_source(path)) == 12
    assert file.stat().st_size > 1000


def test_an_index_beside_the_data_is_not_read_where_there_is_a_cache(made, large, monkeypatch):
    def size(items):
        return len(index.open_index(path, "test", [path], lambda: index.Index({"x": np.arange(items)})).columns["x"])

    path = made("tar")
    with monkeypatch.context() as without:
        without.setattr(index, "cache_folder", lambda: None)
        assert [size(5), size(6)] == [5, 5]
        assert index._place(path, "test", [path]).parent == Path(path).parent
    assert [size(7), size(8)] == [7, 7]


def test_where_indexes_are(made, large, tmp_path, monkeypatch):
    path = made("tar")
    monkeypatch.delenv("ENGINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    open_source(path)
    assert [file.name.split(".")[:2] for file in (tmp_path / "xdg/engine").iterdir()] == [["a", "tar"]]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made below a file
    open_source(path)
    assert len(list(tmp_path.glob(".a.tar.*.index"))) == 1


def test_one_process_builds_and_the_others_wait(made, large, monkeypatch):
    path, builds, release = made("tar"), [], threading.Event()

    def build():
        builds.append(1)
        release.wait(10)
        return index.Index({"x": np.arange(5)})

    def open_index():
        found.append(index.open_index(path, "test", [path], build).columns["x"].tolist())

    found = []
    threads = [threading.Thread(target=open_index) for _ in range(4)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join()
    assert builds == [1] and found == [[0, 1, 2, 3, 4]] * 4


def test_the_wait_for_another_process_ends(made, large, monkeypatch):
    from engine.data import host_lock

    path = made("tar")
    monkeypatch.setattr(host_lock, "PATIENCE", 0.2)
    with host_lock.host_lock(f"index of {index._place(path, 'test', [path])}", "listing"):
        with pytest.raises(DataError, match=r"another process of this host has been listing .*a.tar for 0.2 s without"):
            index.open_index(path, "test", [path], lambda: index.Index({}))


def test_where_nothing_can_be_locked_everybody_is_let_in(made, large, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    assert len(open_source(made("tar"))) == 12


def test_those_who_wait_see_that_a_source_is_listed(made, large, monkeypatch):
    from engine.data import host_lock

    path, found, begun = made("tar"), [], threading.Event()
    monkeypatch.setattr(host_lock, "PATIENCE", 0.8)
    monkeypatch.setattr(host_lock, "_TELL_EVERY", 1)

    def build():
        begun.set()
        for _ in host_lock.watched(range(10)):
            time.sleep(0.1)
        return index.Index({"x": np.arange(5)})

    def open_index():
        found.append(index.open_index(path, "test", [path], build).columns["x"].tolist())

    builder = threading.Thread(target=open_index)
    builder.start()
    begun.wait()
    open_index()
    builder.join()
    assert found == [[0, 1, 2, 3, 4]] * 2
