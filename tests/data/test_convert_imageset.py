"""convert_imageset and compute_image_mean: from files to LMDBs and mean images, whole or not at all."""

import re
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from engine import proto
from engine.data.compute_image_mean import compute_image_mean
from engine.data.convert_imageset import convert_imageset
from engine.data.mean import read_mean
from engine.data.sources.lmdb import LmdbSource
from engine.errors import ConfigError, DataError
from tests.data.pictures import bgr, image_bytes, png, random_pixels, raw_datum


def items(path):
    source = LmdbSource(str(path))
    found = [source.item(i) for i in range(len(source))]
    return {key: proto.Datum.FromString(value) for key, value in found}


def leftovers(folder):
    return [path.name for path in folder.iterdir() if "partial" in path.name]


def test_class_folders(image_folder, tmp_path):
    calls = []
    report = convert_imageset(str(image_folder), None, str(tmp_path / "db"), progress=lambda *args: calls.append(args))
    assert report.images == 12 and not report.skipped and calls[-1] == (12, 12)
    found = items(tmp_path / "db")
    assert list(found)[:5] == [f"{i:08d}_ant/{i}.png" for i in range(4)] + ["00000004_bee/0.png"]
    assert [datum.label for datum in found.values()] == [0] * 4 + [1] * 4 + [2] * 4
    datum = found["00000005_bee/1.png"]
    assert (datum.channels, datum.height, datum.width, datum.encoded) == (3, 12, 16, False)
    pixels = np.frombuffer(datum.data, np.uint8).reshape(3, 12, 16)
    assert np.array_equal(pixels, bgr(random_pixels(11)))
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == ["data.mdb"]


def test_list_with_spaces_in_names(image_folder, tmp_path):
    shutil.copy(image_folder / "ant/0.png", image_folder / "my ant.png")
    (tmp_path / "list.txt").write_text("my ant.png 7\n\ncat/1.png -1\n")
    convert_imageset(str(image_folder), str(tmp_path / "list.txt"), str(tmp_path / "db"))
    assert [(key, datum.label) for key, datum in items(tmp_path / "db").items()] == [
        ("00000000_my ant.png", 7),
        ("00000001_cat/1.png", -1),
    ]


@pytest.mark.parametrize("inside", ["", "/set/train", "/set/train/"])
def test_zip(image_folder, tmp_path, inside):
    top = "set/train/" if inside else "train/"
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in sorted(image_folder.rglob("*.png")):
            archive.write(path, top + path.relative_to(image_folder).as_posix())
        if inside:
            archive.writestr("set/test/dog/0.png", image_bytes(random_pixels(1)))
    convert_imageset(str(tmp_path / "images.zip") + inside, None, str(tmp_path / "zipped"))
    convert_imageset(str(image_folder), None, str(tmp_path / "plain"))
    assert items(tmp_path / "zipped") == items(tmp_path / "plain")


def test_list_inside_a_zip(image_folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.write(image_folder / "ant/0.png", "set/a.png")
        archive.writestr("set/labels.txt", "a.png 5\n")
    zipped = str(tmp_path / "images.zip")
    convert_imageset(zipped, f"{zipped}/set/labels.txt", str(tmp_path / "db"))
    assert [(key, datum.label) for key, datum in items(tmp_path / "db").items()] == [("00000000_a.png", 5)]


def test_shuffle_is_seeded(image_folder, tmp_path):
    orders = []
    for number, seed in enumerate([1, 1, 2]):
        convert_imageset(str(image_folder), None, str(tmp_path / f"db{number}"), shuffle=True, seed=seed)
        orders.append([key[9:] for key in items(tmp_path / f"db{number}")])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) != orders[0]


def test_resize_and_gray(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), resize_height=6, resize_width=5, gray=True)
    datum = next(iter(items(tmp_path / "db").values()))
    assert (datum.channels, datum.height, datum.width) == (1, 6, 5)
    expected = Image.fromarray(random_pixels(0)).convert("L").resize((5, 6), Image.Resampling.BILINEAR)
    assert datum.data == expected.tobytes()


def test_encoded_keeps_the_bytes_of_files_that_fit(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), encoded=True)
    datum = items(tmp_path / "db")["00000001_ant/1.png"]
    assert datum.encoded and datum.data == (image_folder / "ant/1.png").read_bytes()


def test_encoded_makes_new_bytes_where_they_do_not_fit(image_folder, tmp_path, open_layer):
    (image_folder / "ant/0.png").write_bytes(image_bytes(random_pixels(0, channels=1)))
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), encoded=True)
    assert open_layer(tmp_path / "db").shapes[0] == (3, 12, 16)
    convert_imageset(
        str(image_folder), None, str(tmp_path / "jpg"), encode_type="jpg", resize_height=20, resize_width=20
    )
    assert all(datum.data[:2] == b"\xff\xd8" for datum in items(tmp_path / "jpg").values())
    assert open_layer(tmp_path / "jpg").shapes[0] == (3, 20, 20)


def test_an_existing_database_is_not_touched(image_folder, tmp_path):
    (tmp_path / "db").mkdir()
    (tmp_path / "db/mine").write_text("precious")
    with pytest.raises(DataError, match="db exists already; remove it"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    assert (tmp_path / "db/mine").read_text() == "precious"


def test_undecodable_image(image_folder, tmp_path):
    (image_folder / "bee/2.png").write_bytes(image_bytes(random_pixels(0))[:60])
    with pytest.raises(DataError, match=r"images/bee/2.png: cannot decode 60 bytes"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)
    report = convert_imageset(str(image_folder), None, str(tmp_path / "db"), skip_bad_images=True)
    assert report.images == 11 and list(report.skipped) == ["bee/2.png"]
    assert len(items(tmp_path / "db")) == 11


def test_interruption_leaves_nothing(image_folder, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), progress=interrupt)
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)


def test_wrong_input(image_folder, tmp_path):
    def message(root, list_file=None, **options):
        with pytest.raises(DataError) as caught:
            convert_imageset(str(root), list_file and str(list_file), str(tmp_path / "db"), **options)
        assert not (tmp_path / "db").exists() and not leftovers(tmp_path)
        return str(caught.value)

    assert "no such folder or zip file" in message(tmp_path / "none")
    assert "neither a folder nor a zip" in message(image_folder / "ant/0.png")
    assert f"did you mean {tmp_path}/images?" in message(tmp_path)
    assert "is in no class folder" in message(image_folder / "ant")
    (tmp_path / "hollow").mkdir()
    assert "has no images" in message(tmp_path / "hollow")
    assert "need each other; got 3 and 0" in message(image_folder, resize_height=3)
    assert "encode_type 'gif' is not known" in message(image_folder, encode_type="gif")
    assert "none.txt: cannot be read: No such file" in message(image_folder, tmp_path / "none.txt")
    list_file = tmp_path / "list.txt"
    for line, expected in {
        "ant/0.png": "list.txt:2: expected `relative/path label`; got 'ant/0.png'",
        "ant/0.png x": "list.txt:2: expected",
        "ant/none.png 3": "ant/none.png: cannot be read: No such file",
        "ant/0.png 3000000000": "list.txt:2: expected",
    }.items():
        list_file.write_text(f"ant/1.png 0\n{line}\n")
        assert re.search(expected, message(image_folder, list_file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize_height": -1, "resize_width": -1}, "expected sides of 1 to 65500 pixels, .* got -1 x -1"),
        ({"resize_height": 5, "resize_width": -1}, "got 5 x -1"),
        ({"resize_height": 100000, "resize_width": 100000}, "67108864 pixels at most; got 100000 x 100000"),
        ({"shuffle": True, "seed": -1}, "seed: expected 0 to 4294967295, got -1"),
        ({"shuffle": True, "seed": 2**70}, "seed: expected 0"),
    ],
)
def test_numbers_that_cannot_be_used(image_folder, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), **options)
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)


def test_pictures_that_are_too_large_can_be_skipped(image_folder, tmp_path):
    (image_folder / "bee/2.png").write_bytes(png(10000, 10000))
    with pytest.raises(DataError, match=r"images/bee/2.png: cannot decode .* it has 10000 x 10000 pixels"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    report = convert_imageset(str(image_folder), None, str(tmp_path / "db"), skip_bad_images=True)
    assert report.images == 11 and list(report.skipped) == ["bee/2.png"]


def test_mean_image(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    convert_imageset(str(image_folder), None, str(tmp_path / "encoded"), encoded=True)
    expected = np.mean(
        [bgr(random_pixels(10 * label + i)) for label in range(3) for i in range(4)], axis=0, dtype=float
    )
    for name in ("db", "encoded"):
        mean = compute_image_mean(str(tmp_path / name), str(tmp_path / "mean.binaryproto"))
        assert np.allclose(mean, expected, rtol=1e-6)
        assert np.array_equal(read_mean(str(tmp_path / "mean.binaryproto")), mean)
    blob = proto.BlobProto.FromString((tmp_path / "mean.binaryproto").read_bytes())
    assert (blob.num, blob.channels, blob.height, blob.width, len(blob.data)) == (1, 3, 12, 16, 576)


def test_mean_of_images_that_differ_in_size(make_lmdb, tmp_path):
    path = make_lmdb({"a": raw_datum(random_pixels(1)), "b": raw_datum(random_pixels(1, 11, 16))})
    with pytest.raises(DataError, match=r"key 'b': image of 11 x 16 x 3 .* the others are of 12 x 16 x 3"):
        compute_image_mean(str(path), str(tmp_path / "mean"))
    assert not (tmp_path / "mean").exists()
