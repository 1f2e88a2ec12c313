"""`engine generate` draws a grid of pictures that a net makes."""

import numpy as np
import pytest
from PIL import Image

from engine.cli import main
from engine.config import parse_net
from engine.weights import write_caffemodel

NET = """
layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param {
  shape { dim: 2 dim: 3 dim: 4 dim: 5 } data_filler { type: "uniform" min: -1 } per_sample: true } }
layer { name: "scale" type: "Scale" bottom: "noise" top: "made" }
layer { name: "clip" type: "Reshape" bottom: "noise" top: "clip"
  reshape_param { shape { dim: 2 dim: 1 dim: 3 dim: 4 dim: 5 } } }
layer { name: "flat" type: "Flatten" bottom: "noise" top: "flat" }
"""


@pytest.fixture
def draw(tmp_path, capfd):
    """Returns a function that runs `engine generate`, and returns the picture, or stderr if it fails."""
    (tmp_path / "net.prototxt").write_text(NET)
    weights = tmp_path / "net.caffemodel"
    write_caffemodel(weights, parse_net(NET).message, {"scale": [np.ones(3, np.float32)]})

    def draw(blobs, *options):
        out = tmp_path / "out.png"
        code = main(["generate", str(weights), str(tmp_path / "net.prototxt"), blobs, str(out), *options])
        return np.asarray(Image.open(out)) if code == 0 else capfd.readouterr().err

    return draw


def test_a_grid_of_samples_in_red_green_and_blue(draw):
    sheet = draw("made", "--count", "4")
    assert sheet.shape == (8 * (2 * (4 + 2) + 2), 8 * (2 * (5 + 2) + 2), 3)
    small = sheet[::8, ::8]
    pictures = [small[y : y + 4, x : x + 5] for y in (2, 8) for x in (2, 9)]
    assert len({each.tobytes() for each in pictures}) == 4  # those of the second batch, too, are not the same
    assert np.all(small[:2] == 255) and np.all(small[6:8] == 255)
    blue = draw("made", "--count", "4", "--set", "layer[noise].dummy_data_param.data_filler[0].max=-1")
    assert not blue[16, 16].any()  # every value is below 0, which is black


def test_frames_of_several_blobs_stand_beside_each_other(draw):
    sheet = draw("clip,made", "--count", "1")[::8, ::8]
    assert sheet.shape == (4 + 4, 4 * 5 + 4, 3)
    frames, colours = sheet[2:6, 2:17].reshape(4, 3, 5, 3), sheet[2:6, 17:22]
    # Channels are in the order B, G, R.
    np.testing.assert_array_equal(frames[:, ::-1, :, 0].transpose(0, 2, 1), colours)


@pytest.mark.parametrize(
    "blobs, options, message",
    [
        ("mad", (), "no blob 'mad'; known: noise, made, clip, flat"),
        ("flat", (), "blob 'flat' holds no pictures: expected 1 or 3 channels of rows, got 2 x 60"),
    ],
)
def test_what_is_no_picture(draw, blobs, options, message):
    assert message in draw(blobs, *options)


def test_a_range_that_is_none(draw):
    assert "expected two numbers, the lower first, such as -1,1; got '1,-1'" in draw("made", "--range=1,-1")
