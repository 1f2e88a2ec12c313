"""ImageData: reads the image files of a list."""

import zipfile
from itertools import islice

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import open_data, shapes_without_data
from engine.data.decode import as_array
from engine.errors import ConfigError, DataError
from tests.data.pictures import bgr, random_pixels, raw_datum


def layer_of(text: str, transform: str = "") -> proto.LayerParameter:
    layer = proto.LayerParameter(name="data", type="ImageData")
    return text_format.Parse(f"image_data_param {{ {text} }} transform_param {{ {transform} }}", layer)


@pytest.fixture
def listed(image_folder, tmp_path):
    """Makes the twelve images and their list, whose lines are bee/0.png 1 and so on."""
    lines = [f"{name}/{i}.png {label}" for label, name in enumerate(["ant", "bee", "cat"]) for i in range(4)]
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    return f'source: "{tmp_path}/list.txt" root_folder: "{image_folder}/" batch_size: 5'


def test_pictures_and_labels_in_the_order_of_the_list(listed):
    source = open_data(layer_of(listed), proto.TEST)
    assert (source.size, source.shapes) == (12, ((3, 12, 16), ()))
    with source.batches(5) as batches:
        first, second = ([array.copy() for array in batch.arrays["data"]] for batch in islice(batches, 2))
    for i in range(5):
        assert np.array_equal(first[0][i], bgr(random_pixels(10 * (i // 4) + i % 4)))
    assert first[1].tolist() == [0, 0, 0, 0, 1] and second[1].tolist() == [1, 1, 1, 2, 2]


def test_ranks_share_one_shuffled_order(listed):
    def keys(rank, ranks, batch):
        with open_data(layer_of(listed + " shuffle: true"), proto.TRAIN, seed=3).batches(batch, rank, ranks) as batches:
            return [key for each in islice(batches, 4) for key in each.keys]

    alone, parts = keys(0, 1, 6), [keys(rank, 2, 3) for rank in range(2)]
    assert sorted(alone[:12]) == sorted(alone[12:]) and alone[:12] != alone[12:]
    merged = [key for k in range(4) for part in parts for key in part[3 * k : 3 * k + 3]]
    assert merged == alone and alone != sorted(alone)


def test_resize_grey_and_transforms(listed, image_folder):
    source = open_data(layer_of(listed + " new_height: 10 new_width: 8 is_color: false", "crop_size: 6"), proto.TEST)
    assert source.shapes[0] == (1, 6, 6)
    with source.batches(1) as batches:
        data = batches.next().arrays["data"][0]
    image = Image.open(image_folder / "ant/0.png").convert("L").resize((8, 10), Image.Resampling.BILINEAR)
    assert np.abs(data[0, 0] - as_array(image)[2:8, 1:7, 0]).max() <= 1


def test_rand_skip_begins_later_in_training_only(listed):
    def first(phase):
        with open_data(layer_of(listed + " rand_skip: 9"), phase, seed=5).batches(1) as batches:
            return batches.next().keys[0]

    assert first(proto.TEST) == "ant/0.png" != first(proto.TRAIN)


def test_shapes_without_the_list():
    assert shapes_without_data(layer_of("new_height: 10 new_width: 8")) == ((3, 10, 8), ())
    assert shapes_without_data(layer_of("is_color: false", "crop_size: 7")) == ((1, 7, 7), ())
    with pytest.raises(ConfigError, match=r"the size of the images is unknown"):
        shapes_without_data(layer_of(""))


def test_a_damaged_member_of_a_zip_is_skipped(image_folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("0.png", "1.png"):
            archive.write(image_folder / "cat" / name, name)
    content = bytearray((tmp_path / "x.zip").read_bytes())
    content[100] ^= 1
    (tmp_path / "x.zip").write_bytes(content)
    (tmp_path / "list.txt").write_text("0.png 3\n1.png 4\n")
    layer = layer_of(f'source: "{tmp_path}/list.txt" root_folder: "{tmp_path}/x.zip" batch_size: 2')
    with pytest.raises(DataError, match=r"x.zip: member '0.png' cannot be read: Bad CRC-32"):
        open_data(layer, proto.TEST)
    with open_data(layer, proto.TEST, skip_bad_images=True).batches(2) as batches:
        assert batches.next().arrays["data"][1].tolist() == [4, 4]
    (tmp_path / "list.txt").write_text("2.png 3\n1.png 4\n")
    with pytest.raises(DataError, match=r"x.zip: member '2.png' cannot be read: .*no item named"):
        open_data(layer, proto.TEST, skip_bad_images=True)


def test_a_list_within_a_zip(image_folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(image_folder / "bee/1.png", "set/pictures/1.png")
        archive.writestr("set/labels.txt", "pictures/1.png 7\n")
    text = f'source: "{tmp_path}/x.zip/set/labels.txt" root_folder: "{tmp_path}/x.zip/set" batch_size: 1'
    with open_data(layer_of(text), proto.TEST).batches(1) as batches:
        data, label = batches.next().arrays["data"]
        assert np.array_equal(data[0], bgr(random_pixels(11))) and label.tolist() == [7]
    folders = open_data(layer_of(f'source: "{tmp_path}/x.zip/set" batch_size: 1'), proto.TEST)
    assert folders.reader.classes == ["pictures"]


def test_a_database_with_a_damaged_item(make_lmdb):
    datum = raw_datum(random_pixels(0))
    text = f'source: "{make_lmdb({"a": datum, "b": datum[:-5]})}" batch_size: 2'
    with open_data(layer_of(text), proto.TEST).batches(2) as batches:
        with pytest.raises(DataError, match="key 'b': not a Datum"):
            batches.next()
    with open_data(layer_of(text), proto.TEST, skip_bad_images=True).batches(2) as batches:
        assert batches.next().keys == ["a", "a"]


def test_what_cannot_be_read(listed, image_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"image_data_param.source is missing"):
        open_data(layer_of(""), proto.TEST)
    with pytest.raises(ConfigError, match=r"need each other; got 5 and 0"):
        open_data(layer_of(listed + " new_height: 5"), proto.TEST)
    with pytest.raises(ConfigError, match=r"new_height and new_width: .* got 100000 x 100000"):
        open_data(layer_of(listed + " new_height: 100000 new_width: 100000"), proto.TEST)
    wanted = "byte 0 is not UTF-8; expected a text file of lines `relative/path label`$"
    with pytest.raises(DataError, match=wanted):
        open_data(layer_of(f'source: "{image_folder}/ant/2.png"'), proto.TEST)
    with pytest.raises(DataError, match=r"the root folder is put in front as it is: end it with a '/'$"):
        open_data(layer_of(listed.replace('images/"', 'images"')), proto.TEST)
    with pytest.raises(DataError, match=r"none.txt"):
        open_data(layer_of('source: "none.txt"'), proto.TEST)
    (image_folder / "ant/2.png").write_bytes(b"no image")
    with open_data(layer_of(listed), proto.TEST).batches(4) as batches:
        with pytest.raises(DataError, match=r"list.txt: key 'ant/2.png': cannot decode 8 bytes"):
            batches.next()
    skipping = open_data(layer_of(listed), proto.TEST, skip_bad_images=True)
    with skipping.batches(4) as batches:
        assert batches.next().keys[2] == "ant/3.png" and list(skipping.skipped) == [2]
    (image_folder / "ant/3.png").unlink()
    with open_data(layer_of(listed), proto.TEST, skip_bad_images=True).batches(4) as batches:
        with pytest.raises(DataError, match=r"list.txt: .*ant/3.png: cannot be read: No such file"):
            batches.next()
