"""`engine preview`: the sheet of a batch's pictures, with pixels as they were, labels, boxes and masks."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data.mean import write_mean
from engine.errors import ConfigError
from engine.examine import preview as module
from engine.examine.preview import Shown, preview
from tests.data.conftest import image_folder, make_lmdb  # noqa: F401
from tests.data.pictures import random_pixels, raw_datum
from tests.data.test_annotated_data import BOXES, annotated
from tests.verbs.test_cli import engine

TRANSFORM = "transform_param { mean_value: 100 mean_value: 110 mean_value: 120 scale: 0.5 }"


def shown(text, monkeypatch, count=4, phase=proto.TEST) -> list[Shown]:
    """Runs preview(); returns what its sheet is made of."""
    found: list[Shown] = []
    original = module._sheet
    monkeypatch.setattr(module, "_sheet", lambda samples: found.extend(samples) or original(samples))
    preview(parse_net(text), phase, World(), 1, count)
    return found


def test_pictures_are_the_pixels_before_mean_and_scale(make_lmdb, monkeypatch):  # noqa: F811
    pixels = [random_pixels(n, 120, 150) for n in range(3)]
    source = make_lmdb({f"{n}": raw_datum(pixels[n], n) for n in range(3)})
    (source / "labels.txt").write_text("ant\nbee\n")
    data = f'data_param {{ source: "{source}" batch_size: 2 }}'
    net = f'layer {{ name: "d" type: "Data" top: "x" top: "y" {TRANSFORM} {data} }}'
    found = shown(net, monkeypatch, 3)
    for n, each in enumerate(found):
        assert np.array_equal(np.asarray(each.image), pixels[n])
    assert [each.lines for each in found] == [["0 ant", "0"], ["1 bee", "1"], ["2", "2"]]


def test_pixels_of_layers_that_have_a_scale_or_mean_of_their_own(tmp_path, monkeypatch):
    pixels = random_pixels(1, 120, 150)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "windows").write_text("# 0\na.png\n3\n120\n150\n1\n1 0.9 20 4 131 115\n")
    window = f'source: "{tmp_path}/windows" root_folder: "{tmp_path}/" batch_size: 1 fg_fraction: 1 scale: 0.01'
    net = f"""layer {{ name: "d" type: "WindowData" top: "x" top: "y" window_data_param {{ {window} }}
        transform_param {{ crop_size: 112 mean_value: 100 }} }}"""
    assert np.array_equal(np.asarray(shown(net, monkeypatch, 1)[0].image), pixels[4:116, 20:132])
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "mask.png")
    (tmp_path / "list").write_text("a.png mask.png\n")
    write_mean(str(tmp_path / "mean"), np.full((3, 120, 150), 100, np.float32))
    dense = f'source: "{tmp_path}/list" root_folder: "{tmp_path}/" batch_size: 1 mean_file: "{tmp_path}/mean"'
    net = f'layer {{ name: "d" type: "DenseImageData" top: "x" top: "y" dense_image_data_param {{ {dense} }} }}'
    assert np.array_equal(np.asarray(shown(net, monkeypatch, 1)[0].image)[:, :150], pixels)


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_no_picture_is_shown_twice(phase, image_folder: Path, monkeypatch):  # noqa: F811
    net = f'layer {{ name: "d" type: "Data" top: "x" data_param {{ source: "{image_folder}" batch_size: 5 }} }}'
    keys = [each.lines[-1] for each in shown(net, monkeypatch, 32, phase)]
    assert len(keys) == 12


def test_small_pictures_are_enlarged_and_large_ones_shrunk(make_lmdb, monkeypatch):  # noqa: F811
    for side, wanted in ((28, 112), (600, 320)):
        source = make_lmdb({"0": raw_datum(random_pixels(1, side, side, 1))}, f"{side}")
        net = f'layer {{ name: "d" type: "Data" top: "x" data_param {{ source: "{source}" batch_size: 1 }} }}'
        assert shown(net, monkeypatch, 1)[0].image.size == (wanted, wanted)


def test_boxes_are_drawn_where_they_are(make_lmdb, monkeypatch):  # noqa: F811
    source = make_lmdb({"a": annotated(1, BOXES[:1]), "b": annotated(2, BOXES[:0])})
    net = f"""layer {{ name: "d" type: "AnnotatedData" top: "x" top: "y"
      data_param {{ source: "{source}" batch_size: 2 }}
      transform_param {{ resize_param {{ height: 120 width: 160 }} }} }}"""
    one, other = shown(net, monkeypatch, 2)
    assert one.lines[0] == "1 box" and other.lines[0] == "0 boxes"
    drawn = np.argwhere((np.asarray(one.image) == module._colour(3)).all(axis=2))
    y1, x1, y2, x2 = (*drawn.min(axis=0), *drawn.max(axis=0))
    assert np.allclose([x1 / 159, y1 / 119, x2 / 159, y2 / 119], BOXES[0, 2:6], atol=0.02)


def test_masks_stand_beside_their_pictures(tmp_path, monkeypatch):
    mask = np.zeros((120, 130), np.uint8)
    mask[:, 60:] = 5
    Image.fromarray(random_pixels(1, 120, 130)).save(tmp_path / "a.png")
    Image.fromarray(mask).save(tmp_path / "m.png")
    (tmp_path / "list").write_text("a.png m.png\n")
    net = f"""layer {{ name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param {{ source: "{tmp_path}/list" root_folder: "{tmp_path}/" }} }}"""
    (each,) = shown(net, monkeypatch, 1)
    assert each.image.size == (130 + 2 + 130, 120) and each.lines[0] == "classes 0, 5"
    assert each.image.getpixel((132 + 10, 5)) == (0, 0, 0) and each.image.getpixel((132 + 90, 5)) == module._colour(5)


@pytest.mark.parametrize("size", [2, 8])
def test_pictures_that_another_layer_reads_after_the_first(tmp_path, monkeypatch, size):
    """The first layer has no pictures. The keys belong to the pictures, and are as many."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["f"] = np.zeros((9, 3), np.float32)
    (tmp_path / "h5").write_text(f"{tmp_path}/a.h5\n")
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(random_pixels(1, 120, 130)).save(tmp_path / name)
    (tmp_path / "list").write_text("a.png 1\nb.png 0\nc.png 1\n")
    net = f"""layer {{ name: "f" type: "HDF5Data" top: "f"
      hdf5_data_param {{ source: "{tmp_path}/h5" batch_size: {size} }} }}
    layer {{ name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param {{ source: "{tmp_path}/list" root_folder: "{tmp_path}/" batch_size: 2 }} }}"""
    found = shown(net, monkeypatch, 3)
    assert [each.lines for each in found] == [["1", "a.png"], ["0", "b.png"], ["1", "c.png"]]


def test_distributions_and_several_labels():
    text = module._label_text
    assert text(np.array([0, 0.25, 0.75, 0]), ["a", "b", "c"]) == "2 c 75%, 1 b 25%"
    assert text(np.array([1.0, 0, 1]), []) == "1 0 1" and text(np.array([3.0]), []) == "3"


def test_labels_that_are_no_finite_numbers(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((3, 3, 12, 16), np.float32), np.array([np.nan, np.inf, 1], np.float32)
    (tmp_path / "list").write_text(f"{tmp_path}/a.h5\n")
    net = f"""layer {{ name: "d" type: "HDF5Data" top: "x" top: "y"
      hdf5_data_param {{ source: "{tmp_path}/list" batch_size: 3 }} }}"""
    assert [each.lines[0] for each in shown(net, monkeypatch, 3)] == ["nan", "inf", "1"]


def test_boxes_that_cannot_be_drawn(tmp_path, monkeypatch):
    """Any number may stand in a file of HDF5Data."""
    nan, inf = float("nan"), float("inf")
    good = [0, 1, 0, 0.25, 0.25, 0.75, 0.75, 0]
    bad = [[*good[:n], value, *good[n + 1 :]] for n in (1, 3, 4, 5, 6) for value in (nan, inf, -inf)]
    bad += [[0, 1, 0, 0.75, 0.25, 0.25, 0.75, 0], [0, 1, 0, 0.25, 0.75, 0.75, 0.25, 0]]
    vast = [0, 1, 0, -1e30, -1e30, 1e30, 1e30, 0]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((4, 1, 120, 120), np.float32)
        for name, rows in {"y": [good, *bad, vast], "z": [good] * (len(bad) + 2)}.items():
            file[name] = np.broadcast_to(np.array(rows, np.float32), (4, 1, len(rows), 8))
    (tmp_path / "list").write_text(f"{tmp_path}/a.h5\n")

    def first(boxes):
        return shown(
            f"""layer {{ name: "d" type: "HDF5Data" top: "x" top: "{boxes}"
            hdf5_data_param {{ source: "{tmp_path}/list" batch_size: 1 }} }}""",
            monkeypatch,
            1,
        )[0]

    found, expected = first("y"), first("z")
    assert found.lines[0] == f"{len(bad) + 2} boxes, {len(bad)} of them with corners in the wrong order, or not finite"
    assert expected.lines[0] == f"{len(bad) + 2} boxes"
    assert np.array_equal(np.asarray(found.image)[20:100, 20:100], np.asarray(expected.image)[20:100, 20:100])


def test_frames_and_pairs_stand_side_by_side():
    assert module._as_image(np.zeros((6, 5, 4), np.uint8)).size == (8, 5)
    pair = np.stack([np.full((5, 4), 1, np.uint8), np.full((5, 4), 2, np.uint8)])
    assert np.asarray(module._as_image(pair)).tolist() == [[1] * 4 + [2] * 4] * 5


def test_nets_without_pictures():
    deployed = 'layer { name: "d" type: "Input" top: "x" input_param { shape { dim: 1 } } }'
    with pytest.raises(
        ConfigError, match=r"the net has no data layer in phase TEST; is it in the other, or deployed\?"
    ):
        preview(parse_net(deployed), proto.TEST, World(), 1, 4)


def test_the_verb(image_folder: Path, tmp_path):  # noqa: F811
    net = tmp_path / "net.prototxt"
    net.write_text(
        f'layer {{ name: "d" type: "Data" top: "x" top: "y" data_param {{ source: "{image_folder}" batch_size: 4 }} }}'
    )
    done = engine("preview", net, tmp_path / "x.png", "--count", 6)
    assert done.returncode == 0 and "layer 'd' (Data): x 4 x 3 x 12 x 16, y 4" in done.stderr
    assert Image.open(tmp_path / "x.png").format == "PNG" and "Wrote the first 6 samples to " in done.stderr
    # The data have no more.
    assert "Wrote the first 12 samples to " in engine("preview", net, tmp_path / "x.png").stderr
    for target, words in ((tmp_path / "x.gif", "ends in .png or .jpg"), ("/no/x.png", "/no/x.png")):
        bad = engine("preview", net, target)
        assert bad.returncode == 1 and words in bad.stderr and bad.stderr.count("\n") == 1
