"""Archives, folders and lists that are damaged or malicious give one DataError, which names file and member."""

import os
import subprocess
import sys
import zipfile

import pytest

from engine.data.convert_imageset import convert_imageset
from engine.data.image_tree import Listed, open_tree, read_list, read_text
from engine.data.registry import open_source
from engine.data.sources.lmdb import LmdbSource
from engine.errors import DataError
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import REPO

CONTENT = os.urandom(50) + bytes(1000)


def make_zip(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def damage(path, **changes):
    """Changes bytes of a zip of one member. `local` counts from the member's header, `central` from its entry in the
    directory."""
    data = bytearray(path.read_bytes())
    begins = {"local": 0, "central": data.index(b"PK\1\2"), "end": data.index(b"PK\5\6")}
    for place, at in changes.items():
        for offset, value in at.items():
            data[begins[place] + offset : begins[place] + offset + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"local": {45: b"\xff" * 15}}, "Error -3 while decompressing data|Bad CRC-32"),
        ({"local": {8: b"\x63"}, "central": {10: b"\x63"}}, "it is packed by method 99, expected deflate or none"),
        ({"local": {6: b"\1"}, "central": {8: b"\1"}}, "File .r/c/a.jpg. is encrypted, password required"),
        ({"central": {8: b"\x20"}}, "compressed patched data"),
        ({"central": {8: b"\x40"}}, "strong encryption"),
        ({"local": {30: b"x"}}, "File name in directory .* and header .* differ"),
        ({"local": {6: b"\0\x08", 30: b"\xff"}}, "'utf-8' codec can't decode"),
        ({"local": {0: b"XX"}}, "Bad magic number for file header"),
        ({"central": {20: b"\0\0"}}, "it ends too early|Overlapped|Bad CRC-32|Error -5"),
        ({"central": {20: b"\3\0"}}, "it ends too early|Overlapped|Bad CRC-32|Error -5"),
        ({"central": {16: b"\0\0\0\0"}}, "Bad CRC-32 for file"),
        ({"central": {24: b"\xff\xff\xff\x7f"}}, "it has 2147483647 bytes, more than 536870912"),
        ({"central": {42: b"\xff\xff\0\0"}}, "Bad magic number|Truncated|it ends too early|unpack requires"),
    ],
)
def test_damaged_members(tmp_path, changes, reason):
    path = make_zip(tmp_path / "x.zip", {"r/c/a.jpg": CONTENT})
    damage(path, **changes)
    tree = open_tree(str(path))
    with pytest.raises(DataError, match=rf"x\.zip: member 'r/c/a.jpg' cannot be read: .*({reason})"):
        tree.read("c/a.jpg")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"central": {0: b"XX"}}, "Bad magic number for central directory"),
        ({"central": {6: b"\xff\0"}}, "zip file version 25.5"),
        ({"central": {8: b"\0\x08", 46: b"\xff"}}, "'utf-8' codec can't decode"),
        ({"central": {20: b"\xff\xff\0\0"}}, "its members have 65535 bytes, the file [0-9]+: they lie in each other"),
        ({"end": {12: b"\xff\xff\xff\x7f"}}, "."),
        ({"end": {0: b"XX"}}, "File is not a zip file"),
    ],
)
def test_damaged_directories(tmp_path, changes, reason):
    path = make_zip(tmp_path / "x.zip", {"r/c/a.jpg": CONTENT})
    damage(path, **changes)
    with pytest.raises(DataError, match=rf"x\.zip: neither a folder nor a zip file that can be read: .*{reason}"):
        open_tree(str(path))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_cannot_be_unpacked_within_a_limit(tmp_path, method):
    """40 bytes of bzip2 can unpack to 46 MB, since zipfile unpacks at least 4096 bytes at a time."""
    tree = open_tree(str(make_zip(tmp_path / "x.zip", {"r/c/a.jpg": CONTENT}, method)))
    with pytest.raises(DataError, match=rf"it is packed by method {method}, expected deflate or none"):
        tree.read("c/a.jpg")


READ = """
import re, sys
from engine.data import image_tree
from engine.errors import DataError
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
image_tree.MAX_BYTES = 1 << 20
tree = image_tree.open_tree(sys.argv[1])
before = peak()
try:
    tree.read("c/a.jpg")
except DataError as error:
    print(error, "megabytes", (peak() - before) // 1024, sep=":")
"""


@pytest.mark.parametrize(
    ("says", "reason"), [(128 << 20, "it has 134217728 bytes, more than 1048576"), (100, "Bad CRC-32 for file")]
)
def test_bombs_are_refused_by_a_limit(tmp_path, says, reason):
    """A member is refused if the directory says that it is large, and also if it is larger than the directory says."""
    path = make_zip(tmp_path / "x.zip", {"r/c/a.jpg": bytes(128 << 20)})
    damage(path, central={24: says.to_bytes(4, "little")})
    done = subprocess.run([sys.executable, "-c", READ, path], cwd=REPO, capture_output=True, text=True, timeout=60)
    message, megabytes = done.stdout.split(":megabytes:")
    assert f"member 'r/c/a.jpg' cannot be read: {reason}" in message and int(megabytes) < 32


def test_large_files_in_folders_are_not_read(tmp_path):
    with open(tmp_path / "a.jpg", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"a\.jpg: cannot be read: it has 1099511627776 bytes, more than 536870912"):
        open_tree(str(tmp_path)).read("a.jpg")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["./"], "has no images in it"),
        (["/", "a/b.jpg"], [("a/b.jpg", 0)]),
        (["./a/1.jpg", "./b/2.jpg"], [("a/1.jpg", 0), ("b/2.jpg", 1)]),
        (["../../x.jpg"], [("../x.jpg", 0)]),  # just a name: no file of this name is written
        (["a/b/c.jpg", "d"], "is too deep for a class folder"),
        (["a/b.jpg", "a"], [("a/b.jpg", 0)]),
        (["top/a/b.jpg", "top/"], [("a/b.jpg", 0)]),
    ],
)
def test_odd_names_in_archives(tmp_path, names, expected):
    path = str(make_zip(tmp_path / "x.zip", dict.fromkeys(names, b"x")))
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            open_source(path)
    else:
        found = [open_source(path).item(number) for number in range(len(expected))]
        assert [(key, datum.label) for key, datum in found] == expected and found[0][1].data == b"x"


def test_what_is_not_in_the_archive(tmp_path):
    path = str(make_zip(tmp_path / "x.zip", {"r/c/a.jpg": b"x"}))
    with pytest.raises(DataError, match=r"x\.zip: member 'r/none' cannot be read: .*no item named 'r/none'"):
        open_tree(path).read("none")
    with pytest.raises(DataError, match=r"net\.prototxt:1:1: .*x\.zip: member 'r/l.txt' cannot be read"):
        read_text(f"{path}/l.txt", "net.prototxt:1:1")


@pytest.mark.parametrize("root", ["a" * 300, "a/" * 2500, "a\0b", "none"])
def test_roots_that_cannot_be(root):
    with pytest.raises(DataError, match="no such folder, zip or tar file"):
        open_tree(root)


@pytest.mark.parametrize(
    "line",
    ["a.jpg --5", "a.jpg " + "1" * 5000, "a\0b.jpg 0", "a.jpg ²", "a.jpg ٣", "a.jpg 2147483648", "5", "a.jpg 1_0"],
)
def test_lines_that_are_no_names_and_labels(tmp_path, line):
    (tmp_path / "l.txt").write_text(f"good.jpg -2147483648\n{line}\n")
    with pytest.raises(DataError, match=r"l\.txt:2: expected `relative/path label`; got "):
        read_list(str(tmp_path / "l.txt"))


def test_labels_that_are_too_large(tmp_path):
    (tmp_path / "l.txt").write_text("a.jpg 2147483648\n")
    with pytest.raises(DataError, match=r"got 'a\.jpg 2147483648'; a label is a whole number of 32 bits"):
        read_list(str(tmp_path / "l.txt"))


def test_labels_behind_tabs(tmp_path):
    (tmp_path / "l.txt").write_text("good one.jpg\t3\nb.jpg \t 4\n")
    assert read_list(str(tmp_path / "l.txt")) == [Listed("good one.jpg", (3,)), Listed("b.jpg", (4,))]
    (tmp_path / "l.txt").write_text("a.jpg\t0\t1\nb.jpg 1\t0.5\n")
    assert [entry.labels for entry in read_list(str(tmp_path / "l.txt"))] == [(0, 1), (1, 0.5)]


def test_names_and_labels(tmp_path):
    (tmp_path / "l.txt").write_text("good one.jpg -2147483648\n\n  b.jpg   007\n")
    assert read_list(str(tmp_path / "l.txt")) == [Listed("good one.jpg", (-(2**31),)), Listed("b.jpg", (7,))]
    (tmp_path / "l.txt").write_bytes(b"\xff\xfe.jpg 0\n")
    with pytest.raises(DataError, match=r"l\.txt: cannot be read: byte 0 is not UTF-8"):
        read_list(str(tmp_path / "l.txt"))


def test_files_whose_names_are_not_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/root/\xff\xfe"
    os.makedirs(folder)
    with open(folder + b"/\xf0.png", "wb") as file:
        file.write(image_bytes(random_pixels(1)))
    convert_imageset(str(tmp_path / "root"), None, str(tmp_path / "db"))
    assert LmdbSource(str(tmp_path / "db")).item(0)[0].startswith("00000000_")
    with open(folder + b"/\xf0.png", "wb") as file:
        file.write(b"no image")
    with pytest.raises(DataError, match=r"root/\\udcff\\udcfe/\\udcf0\.png: cannot decode 8 bytes"):
        convert_imageset(str(tmp_path / "root"), None, str(tmp_path / "db2"))
