"""Files are read and written whole, and numbers in them that cannot be are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import DataError, EngineError
from engine.files import atomic_write, check_writable, is_regular, read_bytes, read_text


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


def test_devices_and_pipes_are_written_into(tmp_path):
    """They are not replaced by a new file: root could replace even /dev/null."""
    pipe, name = tmp_path / "pipe", tmp_path / "to_pipe"
    os.mkfifo(pipe)
    name.symlink_to(pipe)
    for path in (pipe, name):
        reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
        check_writable(path)
        with atomic_write(path) as file:
            file.write(b"whole")
        assert reader.communicate(timeout=60)[0] == b"whole"
    assert pipe.is_fifo() and name.is_symlink()
    with atomic_write("/dev/null") as file:
        file.write(b"x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(EngineError, match="/dev/full: cannot be written: No space"), atomic_write("/dev/full") as file:
        file.write(b"x")
    assert Path("/dev/full").is_char_device()


def test_an_open_file_is_written_by_its_name(tmp_path):
    program = "from engine.files import atomic_write\nwith atomic_write('/dev/stdout') as file: file.write(b'whole')"
    with open(tmp_path / "out", "wb") as out:
        assert subprocess.run([sys.executable, "-c", program], stdout=out).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert Path("/dev/stdout").is_symlink()
