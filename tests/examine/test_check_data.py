"""`engine check DB` decodes everything and lists what is broken."""

import json
import subprocess

import numpy as np
import pytest
from PIL import Image

from engine.cli import main
from engine.data.convert_imageset import Output, convert_imageset
from engine.examine.check_data import is_data
from tests.data.conftest import make_lmdb  # noqa: F401
from tests.data.pictures import encoded_datum, image_bytes, random_pixels


@pytest.fixture
def folder(tmp_path):
    """Returns a folder of two classes with three pictures each."""
    for label, name in enumerate("ab"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(random_pixels(number + 3 * label)).save(tmp_path / f"images/{name}/{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize("name", ["images", "x.tar", "x.tfrecord", "x_lmdb"])
def test_what_is_whole(folder, tmp_path, capsys, name):
    if name != "images":
        convert_imageset(str(folder), None, str(tmp_path / name), Output(encoded=True))
    assert main(["check", str(tmp_path / name)]) == 0
    kind = {"images": "FOLDER", "x.tar": "TAR", "x.tfrecord": "TFRECORD", "x_lmdb": "LMDB"}[name]
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / name}: {kind}, 6 items: 3 x 12 x 16 (6)",
        "labels: 2 classes, 0 to 1, 3 to 3 items each",
        "broken items: 0",
    ]


def test_what_is_broken(folder, tmp_path, capsys):
    (folder / "a/1.png").write_bytes(b"no picture")
    (folder / "b/2.png").write_bytes(image_bytes(random_pixels(1))[:-30])
    assert main(["check", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:16] for line in lines[2:]] == ["broken: 'a/1.png", "broken: 'b/2.png", "broken items: 2"]
    assert main(["check", "--json", str(folder)]) == 1
    assert [each["key"] for each in json.loads(capsys.readouterr().out)["broken"]] == ["a/1.png", "b/2.png"]


def test_an_item_that_is_no_annotated_datum(make_lmdb, capsys):  # noqa: F811
    """A Datum without pixels may be an AnnotatedDatum."""
    path = make_lmdb({"a": encoded_datum(random_pixels(0), "PNG", 1), "b": b"\x0a\x02\xff\xff"})
    assert main(["check", str(path)]) == 1
    broken, count = capsys.readouterr().out.splitlines()[-2:]
    assert broken.startswith("broken: 'b': not an AnnotatedDatum: ") and count == "broken items: 1"


def test_broken_items_of_one_name_are_counted_each(folder, tmp_path, capsys):
    (folder / "a/1.png").write_bytes(b"no picture")
    for number in range(2):
        subprocess.run(["tar", "cf", tmp_path / f"x-{number}.tar", "-C", folder, "."], check=True)
    assert main(["check", f"{tmp_path}/x-{{0,1}}.tar"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "broken items: 2"


def test_broken_data_beside_a_net(folder, tmp_path, capsys):
    """The report is one JSON document, and broken data set the status, too."""
    (folder / "a/1.png").write_bytes(b"no picture")
    net = tmp_path / "net.prototxt"
    net.write_text('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }')
    for more, key in (["--run"], "runs"), ([], "files"):
        assert main(["check", str(folder), str(net), "--json", *more]) == 1
        found = json.loads(capsys.readouterr().out)
        assert len(found["data"]) == len(found[key]) == 1
    assert main(["check", str(folder), str(folder), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["data"]) == 2


def test_a_mask_of_another_size(folder, tmp_path, capsys):
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(folder / "m.png")
    (tmp_path / "list.txt").write_text("a/0.png m.png\n")
    import tarfile

    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(folder / "a/0.png", "0.png")
        tar.add(folder / "m.png", "0.mask.png")
    assert main(["check", str(tmp_path / "x.tar")]) == 1
    assert "broken: '0.png': expected a mask of 12 x 16 (h x w), as the picture; got 3 x 3" in capsys.readouterr().out


def test_what_is_data(folder, tmp_path):
    (tmp_path / "net.prototxt").write_text("")
    assert is_data(str(folder)) and not is_data(str(tmp_path)) and not is_data(str(tmp_path / "net.prototxt"))
