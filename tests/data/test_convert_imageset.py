"""convert_imageset and compute_image_mean: turn files into LMDBs and mean images, which are written whole or not at
all."""

import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from engine import proto
from engine.data.compute_image_mean import compute_image_mean
from engine.data.convert_imageset import Output, convert_imageset
from engine.data.decode import as_array, decode
from engine.data.lmdb_writer import new_lmdb
from engine.data.mean import read_mean
from engine.data.registry import open_source
from engine.data.sources.folder import FolderSource
from engine.data.sources.lmdb import LmdbSource
from engine.errors import ConfigError, DataError, EngineError
from tests.data.pictures import bgr, image_bytes, png, random_pixels, raw_datum
from tests.mpi import REPO


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
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == ["data.mdb", "labels.txt"]
    assert (tmp_path / "db/labels.txt").read_text() == "ant\nbee\ncat\n"


def test_sizes_that_differ_are_told_where_asked(image_folder, tmp_path):
    Image.new("RGB", (5, 4)).save(image_folder / "cat/odd.png")
    with pytest.raises(DataError, match=r"cat/odd.png: differs in size .*\(3, 4, 5\), \(3, 12, 16\)"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), check_size=True)
    assert not (tmp_path / "db").exists()
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(height=8, width=8), check_size=True)


@pytest.mark.parametrize(("name", "kind"), [("db", ""), ("db", "jpg"), ("x.tar", "jpg"), ("x.tfrecord", "")])
def test_sizes_of_image_files_are_compared_too(name, kind, image_folder, tmp_path):
    Image.new("RGB", (5, 4)).save(image_folder / "cat/odd.png")
    root, db = str(image_folder), str(tmp_path / name)
    with pytest.raises(DataError, match=r"cat/odd.png: differs in size .*\(3, 4, 5\), \(3, 12, 16\)"):
        convert_imageset(root, None, db, Output(encoded=True, encode_type=kind), check_size=True)
    assert not os.path.exists(db)
    convert_imageset(root, None, db, Output(height=8, width=8, encoded=True, encode_type=kind), check_size=True)


def test_each_image_file_is_decoded_once(image_folder, tmp_path, monkeypatch):
    opened, original = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *args, **kwargs: opened.append(1) or original(*args, **kwargs))
    report = convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(encoded=True), check_size=True)
    assert len(opened) == report.images


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
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(6, 5, gray=True))
    datum = next(iter(items(tmp_path / "db").values()))
    assert (datum.channels, datum.height, datum.width) == (1, 6, 5)
    expected = Image.fromarray(random_pixels(0)).convert("L").resize((5, 6), Image.Resampling.BILINEAR)
    assert datum.data == expected.tobytes()


def test_encoded_keeps_the_bytes_of_files_that_fit(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(encoded=True))
    datum = items(tmp_path / "db")["00000001_ant/1.png"]
    assert datum.encoded and datum.data == (image_folder / "ant/1.png").read_bytes()


def test_encoded_makes_new_bytes_where_they_do_not_fit(image_folder, tmp_path, open_layer):
    (image_folder / "ant/0.png").write_bytes(image_bytes(random_pixels(0, channels=1)))
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(encoded=True))
    assert open_layer(tmp_path / "db").shapes[0] == (3, 12, 16)
    convert_imageset(str(image_folder), None, str(tmp_path / "jpg"), Output(20, 20, encode_type="jpg"))
    assert all(datum.data[:2] == b"\xff\xd8" for datum in items(tmp_path / "jpg").values())
    assert open_layer(tmp_path / "jpg").shapes[0] == (3, 20, 20)


@pytest.mark.parametrize("name", ["x.tar", "x.tfrecord", "x_lmdb"])
def test_of_two_conversions_to_one_name_the_first_stays(image_folder, tmp_path, name):
    def convert_again(done, total):
        if done == total:
            convert_imageset(str(image_folder / "cat"), str(tmp_path / "one.txt"), str(tmp_path / name))

    (tmp_path / "one.txt").write_text("0.png 7\n")
    with pytest.raises(DataError, match=f"cannot write .*{name}: (File exists|Directory not empty)"):
        convert_imageset(str(image_folder), None, str(tmp_path / name), progress=convert_again)
    assert [label for label, *_ in pictures_of(tmp_path / name)] == [7] and not leftovers(tmp_path)


def test_a_file_system_without_links(image_folder, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    convert_imageset(str(image_folder), None, str(tmp_path / "x.tar"))
    assert len(open_source(str(tmp_path / "x.tar"))) == 12 and not leftovers(tmp_path)


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
    assert report.images == 11 and [name for name, _ in report.skipped] == ["bee/2.png"]
    assert len(items(tmp_path / "db")) == 11


def test_damaged_items_are_left_out(make_lmdb, tmp_path):
    datum = raw_datum(random_pixels(0))
    source = str(make_lmdb({"a": datum, "b": datum[:-5], "c": datum}))
    with pytest.raises(DataError, match="key 'b': not a Datum"):
        convert_imageset(source, None, str(tmp_path / "db"))
    report = convert_imageset(source, None, str(tmp_path / "db"), skip_bad_images=True)
    assert report.images == 2 and [name for name, _ in report.skipped] == ["b"]


def test_skipped_pictures_of_one_name_are_counted_each(image_folder, tmp_path):
    (image_folder / "cat/3.png").write_bytes(b"no picture")
    for number in range(2):
        subprocess.run(["tar", "cf", tmp_path / f"x-{number}.tar", "-C", image_folder, "."], check=True)
    report = convert_imageset(f"{tmp_path}/x-{{0,1}}.tar", None, str(tmp_path / "db"), skip_bad_images=True)
    assert report.images == 22 and [name for name, _ in report.skipped] == ["cat/3.png"] * 2


@pytest.mark.parametrize("bad", ["cat/3.png", "ant/0.png"], ids=["the last one", "the first one"])
def test_the_end_is_told_where_pictures_are_left_out(image_folder, tmp_path, monkeypatch, bad):
    monkeypatch.setattr(sys.modules[convert_imageset.__module__], "_TELL_EVERY", 5)
    (image_folder / bad).write_bytes(b"no picture")
    told = []
    convert_imageset(
        str(image_folder),
        None,
        str(tmp_path / "db"),
        skip_bad_images=True,
        progress=lambda *at: told.append(at),
    )
    assert told == [(5, 12), (10, 12), (12, 12)]


def test_only_undecodable_images(image_folder, tmp_path):
    for path in image_folder.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="images: none of its 12 pictures can be decoded"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), skip_bad_images=True)
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)


def test_work_of_another_process_stays(image_folder, tmp_path):
    """The partial LMDB belongs to a process in another container that has the same number as this one."""
    other = tmp_path / f".db.{os.getpid()}.partial"
    other.mkdir()
    convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    assert other.exists() and len(items(tmp_path / "db")) == 12


def test_interruption_leaves_nothing(image_folder, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), progress=interrupt)
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)


ENDED = """
import os, signal, sys
from {module} import {function}

signal.signal({number}, signal.SIG_DFL)  # the tests may run under nohup
def end(*_):
    for _ in range(2):  # as timeout sends it
        os.kill(os.getpid(), {number})

{function}({arguments}, progress=end)
"""


def assert_ended_without_a_trace(folder, number, module, arguments):
    """Runs a conversion into `folder`, ends it by a signal, and checks that it left nothing."""
    program = ENDED.format(module=f"engine.data.{module}", function=module, number=int(number), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["db", "x.tar"])
def test_a_signal_that_ends_it_leaves_nothing(image_folder, tmp_path, name, number):
    (tmp_path / "out").mkdir()
    arguments = f"{str(image_folder)!r}, None, {str(tmp_path / 'out' / name)!r}"
    assert_ended_without_a_trace(tmp_path / "out", number, "convert_imageset", arguments)


@pytest.mark.parametrize("last", ["x_lmdb", "x_lmdb_val", "x.tar", "x_val.tar"])
def test_a_failure_at_the_end_leaves_nothing(image_folder, tmp_path, monkeypatch, last):
    """Neither the training set nor the part set aside stays, whichever of them cannot get its name."""

    def unless_last(give_name):
        def give(path, name):
            if os.path.basename(name) == last:
                raise OSError(errno.ENOSPC, "No space left on device")
            give_name(path, name)

        return give

    for function in ("link", "rename"):
        monkeypatch.setattr(os, function, unless_last(getattr(os, function)))
    with pytest.raises(DataError, match=f"cannot write .*/{last}: No space left on device"):
        convert_imageset(str(image_folder), None, f"{tmp_path}/{last.replace('_val', '')}", val_fraction=0.25)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize(("fraction", "name"), [(0.01, "db_val"), (0.99, "db")])
def test_no_part_may_be_empty(image_folder, tmp_path, fraction, name):
    with pytest.raises(DataError, match=f"val_fraction {fraction} of 12 pictures leaves none for {tmp_path}/{name}$"):
        convert_imageset(str(image_folder), None, f"{tmp_path}/db", val_fraction=fraction)


def test_no_part_may_be_all_undecodable(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, f"{tmp_path}/a", val_fraction=0.1)
    (key,) = items(tmp_path / "a_val")
    (image_folder / key[9:]).write_bytes(b"no picture")
    with pytest.raises(DataError, match=f"images: none of the pictures for {tmp_path}/b_val can be decoded"):
        convert_imageset(str(image_folder), None, f"{tmp_path}/b", val_fraction=0.1, skip_bad_images=True)
    assert not (tmp_path / "b").exists()


def test_large_labels_stay_in_a_tar(image_folder, tmp_path):
    (tmp_path / "list.txt").write_text("ant/0.png 2147483647\nbee/0.png -1234567891\n")
    convert_imageset(str(image_folder), str(tmp_path / "list.txt"), str(tmp_path / "x.tar"))
    assert [label for label, *_ in pictures_of(tmp_path / "x.tar")] == [2147483647, -1234567891]


def test_keys_that_do_not_ascend(tmp_path):
    with pytest.raises(DataError, match="key 'a' is not above the one before it"), new_lmdb(f"{tmp_path}/x") as put:
        put(b"b", b"")
        put(b"a", b"")
    assert not list(tmp_path.iterdir())


def test_wrong_input(image_folder, tmp_path):
    def message(root, list_file=None, **options):
        with pytest.raises(DataError) as caught:
            convert_imageset(str(root), list_file and str(list_file), str(tmp_path / "db"), Output(**options))
        assert not (tmp_path / "db").exists() and not leftovers(tmp_path)
        return str(caught.value)

    assert "none: no such file or folder" in message(tmp_path / "none")
    assert "0.png: not a source of any known type" in message(image_folder / "ant/0.png")
    assert f"did you mean {tmp_path}/images?" in message(tmp_path)
    assert "is in no class folder" in message(image_folder / "ant")
    (tmp_path / "hollow").mkdir()
    assert "has no images" in message(tmp_path / "hollow")
    assert "need each other; got 3 and 0" in message(image_folder, height=3)
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
        ({"height": -1, "width": -1}, "expected sides of 1 to 65500 pixels, .* got -1 x -1"),
        ({"height": 5, "width": -1}, "got 5 x -1"),
        ({"height": 100000, "width": 100000}, "67108864 pixels at most; got 100000 x 100000"),
        ({"shuffle": True, "seed": -1}, "seed: expected 0 to 4294967295, got -1"),
        ({"shuffle": True, "seed": 2**70}, "seed: expected 0"),
    ],
)
def test_numbers_that_cannot_be_used(image_folder, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        sizes = {key: value for key, value in options.items() if key in ("height", "width")}
        rest = {key: value for key, value in options.items() if key not in sizes}
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(**sizes), **rest)
    assert not (tmp_path / "db").exists() and not leftovers(tmp_path)


def test_pictures_that_are_too_large_can_be_skipped(image_folder, tmp_path):
    (image_folder / "bee/2.png").write_bytes(png(10000, 10000))
    with pytest.raises(DataError, match=r"images/bee/2.png: cannot decode .* it has 10000 x 10000 pixels"):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    report = convert_imageset(str(image_folder), None, str(tmp_path / "db"), skip_bad_images=True)
    assert report.images == 11 and [name for name, _ in report.skipped] == ["bee/2.png"]


def test_mean_image(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    convert_imageset(str(image_folder), None, str(tmp_path / "encoded"), Output(encoded=True))
    expected = np.mean(
        [bgr(random_pixels(10 * label + i)) for label in range(3) for i in range(4)], axis=0, dtype=float
    )
    for name in ("db", "encoded"):
        mean = compute_image_mean(str(tmp_path / name), str(tmp_path / "mean.binaryproto"))
        assert np.allclose(mean, expected, rtol=1e-6)
        assert np.array_equal(read_mean(str(tmp_path / "mean.binaryproto")), mean)
    blob = proto.BlobProto.FromString((tmp_path / "mean.binaryproto").read_bytes())
    assert (blob.num, blob.channels, blob.height, blob.width, len(blob.data)) == (1, 3, 12, 16, 576)


def test_a_mean_that_cannot_be_written_is_told_before(tmp_path):
    with pytest.raises(EngineError, match="cannot be written: there is no folder"):
        compute_image_mean(str(tmp_path / "not read"), str(tmp_path / "none/mean.binaryproto"))


def test_a_mean_leaves_what_it_reads(image_folder, tmp_path):
    source = tmp_path / "x.tar"
    convert_imageset(str(image_folder), None, str(source))
    before = source.read_bytes()
    with pytest.raises(EngineError, match=r"x\.tar: cannot be written: it is a file that is read"):
        compute_image_mean(str(source), str(source))
    assert source.read_bytes() == before


@pytest.mark.parametrize("name, file", [("db", "db/data.mdb"), ("images", "images/bee/2.png"), ("?.tar", "y.tar")])
def test_a_mean_leaves_each_file_that_it_reads(image_folder, tmp_path, name, file):
    convert_imageset(str(image_folder), None, str(tmp_path / "db"))
    for each in ("x.tar", "y.tar"):
        convert_imageset(str(image_folder), None, str(tmp_path / each))
    before = (tmp_path / file).read_bytes()
    with pytest.raises(EngineError, match=f"{file}: cannot be written: it is a file that is read"):
        compute_image_mean(str(tmp_path / name), str(tmp_path / file))
    assert (tmp_path / file).read_bytes() == before


def test_a_mean_of_a_new_name_looks_at_no_file_for_it(image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(FolderSource, "files_of", lambda *_: pytest.fail("each file was looked for"))
    compute_image_mean(str(image_folder), str(tmp_path / "mean.binaryproto"))


def test_mean_of_images_that_differ_in_size(make_lmdb, tmp_path):
    path = make_lmdb({"a": raw_datum(random_pixels(1)), "b": raw_datum(random_pixels(1, 11, 16))})
    with pytest.raises(DataError, match=r"key 'b': image of 11 x 16 x 3 .* the others are of 12 x 16 x 3"):
        compute_image_mean(str(path), str(tmp_path / "mean"))
    assert not (tmp_path / "mean").exists()


# Other sources, other outputs


def pictures_of(path):
    """Returns (label, labels, mask, pixels) of each of a source's items, decoded."""
    source = open_source(str(path))
    found = []
    for number in range(len(source)):
        _, stored = source.item(number)
        datum = proto.Datum.FromString(stored) if isinstance(stored, bytes) else stored
        found.append((datum.label, list(datum.labels), datum.mask, as_array(decode(datum))))
    return found


def same(a, b):
    return len(a) == len(b) and all(x[:3] == y[:3] and np.array_equal(x[3], y[3]) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["x.tar", "x.tfrecord", "x_lmdb"])
def test_from_any_source_to_any_other(image_folder, tmp_path, name):
    done = convert_imageset(str(image_folder), None, str(tmp_path / name), Output(encoded=True), shuffle=True)
    assert (done.images, done.outputs) == (12, {str(tmp_path / name): 12})
    assert done.table() == [f"class {label} {each}: 4 images" for label, each in enumerate(["ant", "bee", "cat"])]
    first = pictures_of(tmp_path / name)
    for other in ("y.tar", "y.tfrecord", "y_lmdb", "raw_lmdb"):
        convert_imageset(str(tmp_path / name), None, str(tmp_path / other), Output(encoded=other[0] == "y"))
        assert same(pictures_of(tmp_path / other), first)
    assert sorted(label for label, *_ in first) == [0] * 4 + [1] * 4 + [2] * 4 != [label for label, *_ in first]


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_shards(image_folder, tmp_path, kind):
    convert_imageset(str(image_folder), None, str(tmp_path / f"all.{kind}"))
    done = convert_imageset(str(image_folder), None, str(tmp_path / f"x.{kind}"), shards=5)
    (source,) = done.outputs
    assert (source, done.outputs[source]) == (str(tmp_path / f"x-{{000000..000004}}.{kind}"), 12)
    assert len(open_source(source)) == 12
    names = [f"x-00000{number}.{kind}" for number in range(5)]
    assert sorted(path.name for path in tmp_path.glob(f"x*.{kind}")) == names
    assert [len(open_source(str(tmp_path / name))) for name in names] == [3, 2, 3, 2, 2]
    assert same(pictures_of(tmp_path / f"x-{{000000..000004}}.{kind}"), pictures_of(tmp_path / f"all.{kind}"))
    assert (tmp_path / "x.labels.txt").read_text() == "ant\nbee\ncat\n" and not leftovers(tmp_path)
    with pytest.raises(DataError, match=rf"x-000002.{kind} exists already"):
        for other in (0, 1, 3, 4):
            (tmp_path / names[other]).unlink()
        convert_imageset(str(image_folder), None, str(tmp_path / f"x.{kind}"), shards=5)


def test_programs_of_others_read_what_is_written(image_folder, tmp_path):
    convert_imageset(str(image_folder), None, str(tmp_path / "x.tar"))
    listed = subprocess.run(["tar", "tf", tmp_path / "x.tar"], capture_output=True, text=True, check=True).stdout
    assert listed.split()[:4] == ["00000000.png", "00000000.cls", "00000001.png", "00000001.cls"]
    loader = pytest.importorskip("tfrecord.reader")
    convert_imageset(str(image_folder), None, str(tmp_path / "y.tfrecord"))
    found = list(loader.tfrecord_loader(str(tmp_path / "y.tfrecord"), None))
    assert [int(each["image/class/label"][0]) for each in found] == [0] * 4 + [1] * 4 + [2] * 4
    assert bytes(found[5]["image/encoded"]) == (image_folder / "bee/1.png").read_bytes()
    assert bytes(found[5]["image/filename"]) == b"bee/1.png" and bytes(found[5]["image/class/text"]) == b"bee"


@pytest.mark.parametrize("name", ["x.tar", "x.tfrecord", "x_lmdb"])
def test_masks_and_several_labels(image_folder, tmp_path, name):
    mask = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)
    Image.fromarray(mask).save(image_folder / "mask.png")
    (tmp_path / "list.txt").write_text("ant/0.png mask.png\nbee/0.png mask.png\n")
    convert_imageset(str(image_folder), str(tmp_path / "list.txt"), str(tmp_path / name), Output(shorter_side=6))
    for label, labels, content, pixels in pictures_of(tmp_path / name):
        found = np.asarray(Image.open(io.BytesIO(content)))
        assert (label, labels, pixels.shape) == (0, [], (6, 8, 3))
        assert np.array_equal(found, mask[1::2, 1::2])
    (tmp_path / "list.txt").write_text("ant/0.png 1 0 2.5\nbee/0.png 0 0 1\n")
    convert_imageset(str(image_folder), str(tmp_path / "list.txt"), str(tmp_path / f"l{name}"))
    assert [labels for _, labels, *_ in pictures_of(tmp_path / f"l{name}")] == [[1, 0, 2.5], [0, 0, 1]]


def test_sizes(image_folder, tmp_path):
    for number, (output, size) in enumerate(
        {
            Output(shorter_side=6): (6, 8),
            Output(shorter_side=24): (24, 32),
            Output(max_side=8): (6, 8),
            Output(max_side=20): (12, 16),
            Output(shorter_side=24, max_side=30): (22, 30),
        }.items()
    ):
        convert_imageset(str(image_folder), None, str(tmp_path / str(number)), output)
        assert {pixels.shape[:2] for *_, pixels in pictures_of(tmp_path / str(number))} == {size}


def test_quality(image_folder, tmp_path):
    sizes = []
    for quality in (30, 95):
        output = Output(encode_type="jpg", quality=quality)
        convert_imageset(str(image_folder), None, str(tmp_path / str(quality)), output)
        sizes.append(sum(len(datum.data) for datum in items(tmp_path / str(quality)).values()))
    assert sizes[0] < 0.95 * sizes[1]


@pytest.mark.parametrize("name", ["x_lmdb", "x.tar"])
def test_a_part_is_set_aside(image_folder, tmp_path, name):
    options = {"val_fraction": 0.25, "shuffle": True}
    done = convert_imageset(str(image_folder), None, str(tmp_path / name), **options)
    assert list(done.outputs.values()) == [9, 3] and all(" + " in line for line in done.table())
    val = str(tmp_path / ("x_lmdb_val" if name == "x_lmdb" else "x_val.tar"))
    both = pictures_of(tmp_path / name) + pictures_of(val)
    whole = pictures_of(image_folder)
    assert sorted(each[3].tobytes() for each in both) == sorted(each[3].tobytes() for each in whole)
    convert_imageset(str(image_folder), None, str(tmp_path / f"again{name}"), **options)
    assert same(pictures_of(tmp_path / f"again{name}"), pictures_of(tmp_path / name))


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        (Output(shorter_side=5, height=5, width=5), {}, "shorter_side and resize_height exclude each other"),
        (Output(shorter_side=9, max_side=8), {}, "max_side 8 is less than shorter_side 9"),
        (Output(quality=101), {}, "quality: expected 1 to 100, got 101"),
        (Output(), {"shards": 3}, "shards are of a tar or TFRecord"),
        (Output(), {"val_fraction": 1.0}, "val_fraction: expected 0 to 0.99, got 1"),
    ],
)
def test_options_that_cannot_be(image_folder, tmp_path, output, options, message):
    with pytest.raises(ConfigError, match=message):
        convert_imageset(str(image_folder), None, str(tmp_path / "db"), output, **options)


@pytest.mark.parametrize("name", ["x.tar", "x.tfrecord", "x_lmdb"])
def test_nothing_is_left_where_a_picture_is_bad(image_folder, tmp_path, name):
    (image_folder / "cat/3.png").write_bytes(b"no picture")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"cat/3.png: cannot decode 10 bytes"):
        convert_imageset(str(image_folder), None, str(tmp_path / name), val_fraction=0.5)
    assert sorted(tmp_path.iterdir()) == before
