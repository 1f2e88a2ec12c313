"""Which files are decoded and which are refused, by format, size and damage."""

import io
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import EpsImagePlugin, Image, features

from engine import proto
from engine.data import open_data
from engine.data.decode import COLOR, FORMATS, UndecodableImage, canvas, decode_bytes, decode_mask, resized
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_PIXELS, MAX_SIDE
from engine.data.transform import Transformer
from tests.data.pictures import image_bytes, png, random_pixels
from tests.mpi import REPO

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(hello) show\nshowpage\n%%EOF\n"
TOO_LARGE = f"at most {MAX_SIDE} on a side and {MAX_PIXELS} in all"


@pytest.mark.parametrize("kind", sorted(set(FORMATS.values())))
def test_formats_that_are_meant(kind):
    if kind == "WEBP" and not features.check("webp"):
        pytest.skip("Pillow was built without WebP")
    pixels = random_pixels(1, 32, 32)
    got = np.asarray(decode_bytes(image_bytes(pixels, kind), COLOR)).astype(int)
    assert got.shape == (32, 32, 3) and np.abs(got - pixels).mean() < 16  # a GIF has 256 colours


@pytest.mark.parametrize("kind", ["PCX", "TGA", "ICO", "SGI", "DDS", "IM", "PDF", "EPS"])
def test_other_formats_are_refused(kind):
    with pytest.raises(UndecodableImage, match=r"^cannot decode \d+ bytes as an image: cannot identify image file$"):
        decode_bytes(image_bytes(random_pixels(1), kind))


def test_a_picture_starts_no_other_program(tmp_path, monkeypatch):
    fake = tmp_path / "gs"
    fake.write_text('#!/bin/sh\necho started >> "$GS_LOG"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GS_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # makes Pillow forget whether it found the program
    with pytest.raises(UndecodableImage, match="cannot identify image file"):
        decode_bytes(EPS)
    assert not (tmp_path / "log").exists()
    with pytest.raises(OSError):  # with Pillow itself, which starts the program
        Image.open(io.BytesIO(EPS)).load()
    assert (tmp_path / "log").exists()


def test_pictures_are_made_in_one_module():
    """engine/data/decode.py alone knows the formats and enforces the limits. Contact sheets are only written, not
    read."""
    found = {
        path.relative_to(REPO).as_posix()
        for path in (REPO / "engine").rglob("*.py")
        if re.search(r"\bImage\.(open|new)\(|\b(image|picture|original)\.resize\(", path.read_text())
    }
    assert found == {"engine/data/decode.py", "engine/examine/preview.py", "engine/examine/generate.py"}
    assert "Image.open(" not in (REPO / "engine/examine/preview.py").read_text()
    text = (REPO / "engine/data/decode.py").read_text()
    assert set(re.findall(r"Image\.open\(.*\)", text)) == {"Image.open(io.BytesIO(data), formats=_FORMATS)"}


@pytest.mark.parametrize("size", [(13300, 13300), (1, MAX_SIDE + 1), (MAX_SIDE + 1, 1), (2**31 - 1, 2**31 - 1)])
def test_large_pictures_are_refused_before_they_are_decoded(size):
    with pytest.raises(UndecodableImage) as caught:
        decode_bytes(png(*size))
    large = size[0] * size[1] > 2 * Image.MAX_IMAGE_PIXELS  # the limit of Pillow itself
    assert ("exceeds limit" if large else f"it has {size[0]} x {size[1]} pixels; {TOO_LARGE}") in str(caught.value)


def test_a_picture_of_many_strips_is_refused_at_once():
    """Of this TIFF of 120 bytes Pillow would make 9.7 million rows."""
    tags = {256: 17, 257: 9699340, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 17}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    with pytest.raises(UndecodableImage, match="it has 17 x 9699340 pixels"):
        decode_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4))


def test_progressive_jpegs_of_many_scans():
    """These 10 KB would take 7 s to decode."""
    file = io.BytesIO()
    Image.new("L", (2000, 2000)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data[data.rindex(b"\xff\xc4") : -2]  # a Huffman table and a scan
    assert decode_bytes(data[:-2] + 2 * last + b"\xff\xd9").size == (2000, 2000)
    with pytest.raises(UndecodableImage, match=r"it has 306 scans of 2000 x 2000 pixels"):
        decode_bytes(data[:-2] + 300 * last + b"\xff\xd9")


@pytest.mark.parametrize(
    ("file", "classes"),
    [
        (png(4, 1, b"\0\x1b", bits=2), [0, 1, 2, 3]),
        (png(4, 1, b"\0\x01\xef", bits=4), [0, 1, 14, 15]),
        (png(3, 1, b"\0\0\0\0\x01\0\xff", bits=16), [0, 1, 255]),
        (b"P5 4 1 20\n\0\1\x13\x14", [0, 1, 19, 20]),
        (b"P2 4 1 20\n0 1 19 20\n", [0, 1, 19, 20]),
        (b"P5 3 1 300\n\0\0\0\1\0\xff", [0, 1, 255]),
    ],
)
def test_classes_are_the_numbers_in_the_file(file, classes):
    """A mask's classes are not stretched to 255, as Pillow does with pictures of few bits."""
    assert np.asarray(decode_mask(file)).tolist() == [classes]


@pytest.mark.parametrize("value", [-3, 300])
def test_classes_that_are_no_bytes_are_refused(value):
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), value, np.int32)).save(file, "TIFF")
    with pytest.raises(UndecodableImage, match=f"as a mask: a mask has classes 0 to 255, got {value}$"):
        decode_mask(file.getvalue())


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_without_a_known_range_are_refused(kind):
    """Conversion to bytes would make pictures with values from 0 to 1 black."""
    file = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=kind).reshape(16, 16)).save(file, "TIFF")
    words = "integers of 32 bits or with a sign" if kind == np.int32 else "floats"
    with pytest.raises(UndecodableImage, match=rf"as an image: its pixels are {words}, of which nobody knows what is"):
        decode_bytes(file.getvalue())


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_pixels_of_16_bits_become_bytes(kind):
    pixels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    assert np.array_equal(np.asarray(decode_bytes(file.getvalue())), pixels >> 8)


@pytest.mark.parametrize("decoder", [decode_bytes, decode_mask])
def test_other_jpegs_of_many_scans(decoder):
    """A file that is not progressive needs at most one scan for each channel. 1 MB of scan headers would take hours."""
    file = io.BytesIO()
    Image.new("L", (8192, 8192)).save(file, "JPEG")
    data = file.getvalue()
    scan = data.index(b"\xff\xda")
    with pytest.raises(UndecodableImage, match=r"it has 100001 scans of 8192 x 8192 pixels"):
        decoder(data[:scan] + 100_000 * data[scan : scan + 10] + data[scan:])


def test_the_largest_picture():
    assert decode_bytes(png(MAX_SIDE, 1, bytes(MAX_SIDE + 1))).size == (MAX_SIDE, 1)


def test_colours_that_cannot_be_converted(monkeypatch):
    """Older versions of Pillow read a TIFF in LAB, but cannot convert it to RGB."""

    def fail(*_):
        raise ValueError("conversion from LAB to RGB not supported")

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(UndecodableImage, match=r"cannot decode .* conversion from LAB to RGB not supported"):
        decode_bytes(image_bytes(random_pixels(1, channels=1)), COLOR)


def test_pillow_warns_of_nothing(tmp_path):
    (tmp_path / "large.png").write_bytes(png(10000, 10000))
    program = "import sys; from engine.data.decode import decode_bytes; decode_bytes(open(sys.argv[1], 'rb').read())"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "large.png"], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert "it has 10000 x 10000 pixels" in done.stderr and "Warning" not in done.stderr


def test_resizing_is_limited():
    image = Image.new("L", (4, 60000))
    assert resized(image, (8, 8), Image.Resampling.BILINEAR).size == (8, 8)
    for size, words in {
        (70000, 1): "it would be resized to 70000 x 1 pixels",
        (9000, 9000): "it would be resized to 9000 x 9000 pixels",
        (0, 4): "it would be resized to 0 x 4 pixels",
        # 480 MB in between, for a result of 200,000 pixels
        (2000, 100): "it would be resized by way of 2000 x 60000 pixels",
    }.items():
        with pytest.raises(UndecodableImage, match=f"^{words}; {TOO_LARGE}"):
            resized(image, size, Image.Resampling.BILINEAR)
    with pytest.raises(UndecodableImage, match="it would be put on a canvas of 70000 x 70000 pixels"):
        canvas("L", (70000, 70000), 0)


@pytest.mark.parametrize(
    "text",
    [
        "resize_param { height: 256 width: 256 resize_mode: FIT_SMALL_SIZE }",
        "random_resize_param { min_size: 256 max_size: 256 }",
        "crop_size: 256 random_aspect_ratio_param { max_attempt: 0 }",
    ],
)
def test_a_thin_picture_does_not_become_a_large_one(text):
    transformer = Transformer(text_format.Parse(text, proto.TransformationParameter()), proto.TRAIN)
    image = decode_bytes(png(1, 20000, bytes(2 * 20000)))
    with pytest.raises(UndecodableImage, match="it would be resized to 256 x 5120000 pixels"):
        transformer.apply(image, KeyedRandom(1, 0, 0), np.empty((1, 256, 256), np.float32))


def test_pictures_that_are_too_large_can_be_skipped(tmp_path):
    (tmp_path / "thin.png").write_bytes(png(1, 20000, bytes(2 * 20000)))
    (tmp_path / "large.png").write_bytes(png(10000, 10000))
    (tmp_path / "good.png").write_bytes(image_bytes(random_pixels(1)))
    (tmp_path / "list.txt").write_text("good.png 0\nthin.png 1\nlarge.png 2\n")
    resize = "resize_param { height: 64 width: 64 resize_mode: FIT_SMALL_SIZE } crop_size: 64"
    text = f"""type: "ImageData" image_data_param {{ source: "{tmp_path}/list.txt" root_folder: "{tmp_path}/" }}
               transform_param {{ {resize} }}"""
    layer = text_format.Parse(text, proto.LayerParameter())
    source = open_data(layer, proto.TEST, skip_bad_images=True)
    with source.batches(3) as batches:
        assert batches.next().keys == ["good.png"] * 3
    assert [key for key, _ in source.skipped.values()] == ["thin.png", "large.png"]
