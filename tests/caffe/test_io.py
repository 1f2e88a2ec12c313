"""caffe.io: images, the Transformer, and arrays in messages."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from engine.caffe import io
from engine.errors import ConfigError, DataError
from engine.proto import caffe_pb2

RNG = np.random.default_rng(3)


def test_load_image(tmp_path):
    pixels = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "color.png")
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "grey.png")
    color = io.load_image(tmp_path / "color.png")
    assert color.dtype == np.float32
    np.testing.assert_allclose(color, pixels / 255, rtol=1e-6)
    grey = io.load_image(str(tmp_path / "color.png"), color=False)
    assert grey.shape == (5, 7, 1)
    np.testing.assert_allclose(grey[:, :, 0], color @ [0.2125, 0.7154, 0.0721], rtol=1e-5)
    np.testing.assert_allclose(io.load_image(tmp_path / "grey.png"), pixels[:, :, :1].repeat(3, 2) / 255, rtol=1e-6)
    (tmp_path / "broken.png").write_bytes(b"nothing")
    for name in ("broken.png", "missing.png"):
        for error in (DataError, OSError):  # the error is both: Caffe's scripts catch OSError
            with pytest.raises(error, match=rf"{name}: cannot read the image: \S"):
                io.load_image(tmp_path / name)


@pytest.mark.parametrize("kind", ["png", "tif", "pgm", "big.tif"])
def test_load_image_keeps_16_bits(kind, tmp_path):
    """X-rays and maps of depth have such pixels, for instance 4096 levels in the lower 12 bits."""
    grey = np.arange(64 * 64).astype(np.uint16).reshape(64, 64)
    grey[0, 0] = 65535
    path = tmp_path / f"grey.{kind}"
    if kind == "big.tif":
        Image.frombytes("I;16B", (64, 64), grey.astype(">u2").tobytes()).save(path)
    else:
        Image.fromarray(grey).save(path)
    expected = (grey / 65535).astype(np.float32)[:, :, np.newaxis]
    one = io.load_image(path, color=False)
    assert one.dtype == np.float32 and one.max() == 1
    np.testing.assert_allclose(one, expected, rtol=1e-6)
    np.testing.assert_array_equal(io.load_image(path), one.repeat(3, axis=2))


class Stream:
    """A stream that cannot be rewound, such as an answer from the web."""

    def __init__(self, data: bytes):
        self._data = data

    def read(self) -> bytes:
        return self._data


def test_load_image_from_an_open_file(tmp_path):
    """BVLC's web_demo passes an open file, and programs may have a picture in memory."""
    path = tmp_path / "color.png"
    Image.fromarray(RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(path)
    expected = io.load_image(path)
    with open(path, "rb") as file:
        np.testing.assert_array_equal(io.load_image(file), expected)
        np.testing.assert_array_equal(io.load_image(file), expected)  # once more, though the file stands at its end
    np.testing.assert_array_equal(io.load_image(BytesIO(path.read_bytes())), expected)
    np.testing.assert_array_equal(io.load_image(Stream(path.read_bytes())), expected)
    with pytest.raises(OSError, match="the open file: cannot read the image: cannot decode 7 bytes"):
        io.load_image(BytesIO(b"nothing"))
    path.write_bytes(b"nothing")
    with open(path, "rb") as file, pytest.raises(OSError, match=r"color.png: cannot read the image: \S"):
        io.load_image(file)


def linear(old: int, new: int) -> np.ndarray:
    """Returns (new, old): the weights of the old pixels for each new one. Its centre lies between two old centres;
    beyond the last centre it has the value of the edge."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, np.newaxis] - np.arange(old)))


def test_resize_is_linear():
    image = RNG.normal(size=(6, 9, 4)).astype(np.float32)
    for rows, columns in ((12, 5), (3, 9), (7, 20)):
        expected = np.einsum("ri,sj,ijc->rsc", linear(6, rows), linear(9, columns), image)
        np.testing.assert_allclose(io.resize_image(image, (rows, columns)), expected, atol=1e-5)
    np.testing.assert_array_equal(io.resize_image(image, (12, 18), interp_order=0), image.repeat(2, 0).repeat(2, 1))
    with pytest.raises(ValueError, match="interp_order"):
        io.resize_image(image, (2, 2), 3)


def test_oversample():
    image = np.arange(5 * 6, dtype=np.float32).reshape(5, 6, 1)
    crops = io.oversample([image, -image], (3, 4))
    assert crops.shape == (20, 3, 4, 1)
    corners = [crops[i, 0, 0, 0] for i in range(5)]
    assert corners == [0, 2, 12, 14, 7]
    np.testing.assert_array_equal(crops[5:10], crops[:5, :, ::-1])
    np.testing.assert_array_equal(crops[10:], -crops[:10])


def transformer(shape=(1, 3, 4, 5)):
    result = io.Transformer({"data": shape})
    result.set_transpose("data", (2, 0, 1))
    result.set_channel_swap("data", (2, 1, 0))
    result.set_raw_scale("data", 255)
    result.set_mean("data", np.array([10, 20, 30]))
    result.set_input_scale("data", 0.5)
    return result


def test_preprocess_and_back():
    image = RNG.random((4, 5, 3), dtype=np.float32)
    ours = transformer().preprocess("data", image)
    expected = (image[:, :, ::-1] * 255 - [10, 20, 30]) * 0.5
    np.testing.assert_allclose(ours, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(transformer().deprocess("data", ours), image, atol=1e-6)
    larger = transformer().preprocess("data", np.ones((8, 10, 3)))
    np.testing.assert_allclose(larger[:, 0, 0], [122.5, 117.5, 112.5])


def test_grey_images_come_back():
    grey = io.Transformer({"data": (1, 1, 4, 4)})
    grey.set_transpose("data", (2, 0, 1))
    image = RNG.random((4, 4, 1), dtype=np.float32)
    np.testing.assert_array_equal(grey.deprocess("data", grey.preprocess("data", image)), image)


def test_mean_images_are_resized():
    each = transformer()
    each.set_mean("data", np.full((3, 8, 8), 7))
    assert each.mean["data"].shape == (3, 4, 5)
    np.testing.assert_allclose(each.mean["data"], 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.set_raw_scale("image", 2),
        lambda t: t.set_mean("data", np.zeros(2)),
        lambda t: t.set_channel_swap("data", (0, 1)),
        lambda t: t.set_transpose("data", (0, 1, 2, 3)),
        lambda t: t.preprocess("image", np.zeros((4, 5, 3))),
    ],
)
def test_settings_that_do_not_fit(call):
    with pytest.raises(ConfigError, match="input"):
        call(transformer())


def test_blobprotos():
    array = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    blob = io.array_to_blobproto(array, diff=2 * array)
    np.testing.assert_array_equal(io.blobproto_to_array(blob), array)
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), 2 * array)
    old = caffe_pb2.BlobProto(num=1, channels=2, height=3, width=4, data=array.ravel())
    assert io.blobproto_to_array(old).shape == (1, 2, 3, 4)
    content = bytes([8, 1, 16, 2, 24, 2, 32, 3, 40, 2, 50, 96]) + array.tobytes()  # C3D's blob, which has a length
    clip = io.blobproto_to_array(caffe_pb2.BlobProto.FromString(content))
    np.testing.assert_array_equal(clip, array.reshape(1, 2, 2, 3, 2))
    text = io.arraylist_to_blobprotovector_str([array, array[0]])
    assert io.arraylist_to_blobprotovecor_str([array, array[0]]) == text
    for ours, expected in zip(io.blobprotovector_str_to_arraylist(text), [array, array[0]]):
        np.testing.assert_array_equal(ours, expected)


def test_datums():
    pixels = RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8)
    datum = io.array_to_datum(pixels, 7)
    assert (datum.channels, datum.height, datum.width, datum.label) == (3, 4, 5, 7)
    np.testing.assert_array_equal(io.datum_to_array(datum), pixels)
    floats = pixels / np.float32(3)
    np.testing.assert_allclose(io.datum_to_array(io.array_to_datum(floats)), floats)
    with pytest.raises(ValueError, match="channels, height, width"):
        io.array_to_datum(pixels[0])
