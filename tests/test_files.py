"""Reading and writing whole files, and what they say that cannot be."""

import os

import pytest

from engine.errors import DataError, EngineError
from engine.files import is_regular, read_bytes, read_text


def test_what_is_there_is_read(tmp_path):
    (tmp_path / "a").write_text("grün\n")
    assert read_text(tmp_path / "a") == "grün\n" and read_bytes(tmp_path / "a") == "grün\n".encode()
    assert is_regular(tmp_path / "a") and not is_regular(tmp_path) and not is_regular("a\0b")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "cannot be read: No such file or directory"),
        ("folder", "cannot be read: Is a directory"),
        ("pipe", "cannot be read: it is no regular file"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read: embedded null byte"),
        ("latin1", "cannot be read: byte 1 is not UTF-8"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin1").write_bytes(b"a\xe4")
    path = os.path.join(tmp_path, name)
    with pytest.raises(EngineError, match=words):
        read_text(path)
    with pytest.raises(DataError, match=r"list\.txt:3: .*cannot be read"):
        read_text(path, DataError, "list.txt:3")
