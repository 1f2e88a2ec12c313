"""coco_results.json has the detections of a DetectionOutput, with the names and sizes of the pictures."""

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.errors import ConfigError, DataError
from engine.inference.coco_results import CocoResults
from engine.inference.judges import Judges
from tests.layers.harness import make_net, net_text

LAYER = """layer {{ name: "found" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "y"
  detection_output_param {{ num_classes: 3 keep_top_k: 5 confidence_threshold: 0.1 nms_param {{ nms_threshold: 0.5 }}
    save_output_param {{ {} }} }} }}"""
SIZES = "7 100 200\n3 10 20\nyork 1000 2000\n"
LABELS = 'item { name: "90" label: 1 } item { name: "tooth brush" label: 2 }'


@pytest.fixture
def param(tmp_path):
    """Writes the files that a save_output_param names; returns its fields."""
    (tmp_path / "name_size.txt").write_text(SIZES)
    (tmp_path / "labelmap.prototxt").write_text(LABELS)
    return (
        f'output_format: "COCO" name_size_file: "{tmp_path}/name_size.txt" '
        f'label_map_file: "{tmp_path}/labelmap.prototxt"'
    )


def detector(param):
    """Returns a net, after a forward, that has found class 1 at the first prior of both pictures, and class 2 at the
    second prior of the second picture."""
    shapes = {"loc": (2, 8), "conf": (2, 6), "prior": (1, 2, 8)}
    net = make_net(net_text(LAYER.format(param), **shapes), proto.TEST)
    corners, variances = [0, 0, 0.5, 0.5, 0.5, 0.25, 1.25, 0.75], [1] * 8  # the second box goes beyond the picture
    net.blobs["prior"].set(np.array([[corners, variances]], np.float32))
    net.blobs["loc"].set(np.zeros((2, 8), np.float32))
    net.blobs["conf"].set(np.array([[0, 0.5, 0, 0, 0, 0], [0, 0.75, 0, 0, 0, 0.25]], np.float32))
    net.forward()
    return net


def test_rows_become_coco_s_results(param):
    net = detector(param)
    found = CocoResults(net, print)
    assert found.any
    found.watch(net, ["00000001_b.png", "00000000_a.png"])  # in another order than in name_size.txt
    found.gather(World())
    assert found.results == [
        {"image_id": 3, "category_id": 90, "bbox": [0, 0, 10, 5], "score": 0.5},
        {"image_id": 7, "category_id": 90, "bbox": [0, 0, 100, 50], "score": 0.75},
        {"image_id": 7, "category_id": 2, "bbox": [100, 25, 150, 50], "score": 0.25},
    ]
    found = CocoResults(net, print)
    found.watch(net, ["00000002_york", "00000002_york"])
    assert {each["image_id"] for each in found.results} == {"york"}


def test_a_report_takes_them_in(param):
    net = detector(param)
    judges = Judges(net, print)
    assert judges.any
    judges.watch(net, 2, ["00000001_b.png", "00000000_a.png"])
    assert judges.gather(World()) == [] and judges.samples == 2
    assert [each["image_id"] for each in judges.results.results] == [3, 7, 7]


@pytest.mark.parametrize("param", ["", 'output_format: "VOC" output_directory: "/tmp/x"'])
def test_other_nets_have_none(param):
    assert not CocoResults(detector(param), print).any


@pytest.mark.parametrize("keys", [[], ["a.png", "b.png"], ["00000003_a", "00000000_a"], ["-1_a", "-1_b"]])
def test_a_key_of_no_picture(param, keys):
    net = detector(param)
    with pytest.raises(DataError, match=r"is of no picture of .*name_size\.txt, which has 3"):
        CocoResults(net, print).watch(net, keys)


@pytest.mark.parametrize(
    "file, text, said",
    [
        ("name_size.txt", "7 100\n", r"name_size\.txt:1: expected `name height width`, got '7 100'"),
        ("name_size.txt", "7 100 0\n", r"name_size\.txt:1: expected `name height width`"),
        ("name_size.txt", "7 1 2\n\n7 x 2\n", r"name_size\.txt:3: expected `name height width`, got '7 x 2'"),
        ("labelmap.prototxt", "net: 1", r"labelmap\.prototxt: expected a label map"),
    ],
)
def test_files_that_cannot_be_used(param, tmp_path, file, text, said):
    net = detector(param)
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=said):
        CocoResults(net, print)


def test_files_that_are_not_here(param, tmp_path):
    """The nets that SSD provides name files in a folder that few people have."""
    notes = []
    (tmp_path / "name_size.txt").unlink()
    for text in (param, 'output_format: "COCO"'):
        net = detector(text)
        found = CocoResults(net, notes.append)
        found.watch(net, ["00000000_a", "00000001_b"])
        assert not found.any and not found.results
    assert "name_size.txt is not here; coco_results.json is left out" in notes[0]
    assert notes[1].startswith("Layer found, save_output_param: it names no name_size_file")
