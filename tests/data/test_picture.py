"""Decoding and resizing in C++ compared with Pillow: crops agree to the bit, resized pictures within rounding."""

import io
import threading
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from engine.data import decode
from engine.data.decode import (
    BOX,
    COLOR,
    CUBIC,
    GRAY,
    LANCZOS,
    LINEAR,
    NEAREST,
    AnyImage,
    Picture,
    UndecodableImage,
    as_array,
    as_pillow,
    decode_bytes,
    open_image,
)
from engine.host import _core
from tests.data.pictures import image_bytes, random_pixels

FILTERS = {
    NEAREST: Image.Resampling.NEAREST,
    BOX: Image.Resampling.BOX,
    LINEAR: Image.Resampling.BILINEAR,
    CUBIC: Image.Resampling.BICUBIC,
    LANCZOS: Image.Resampling.LANCZOS,
}
KINDS = {
    "4:4:4": dict(subsampling=0),
    "4:2:2": dict(subsampling=1),
    "4:2:0": dict(subsampling=2),
    "progressive": dict(progressive=True),
    "restarts": dict(restart_marker_blocks=3),
    "grey": {},
}


def noisy(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Returns pixels with sharp edges, which show if a wrong neighbour is used."""
    random = np.random.RandomState(seed)
    pixels = random_pixels(seed, height, width, channels).astype(int)
    return np.clip(pixels + random.randint(-40, 41, (height, width, 1)), 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]).save(file, "JPEG", quality=92, **options)
    return file.getvalue()


def in_cpp(data: bytes, color: str | None = None) -> Picture:
    picture = open_image(data, color)
    assert picture._header is not None, "Pillow's libjpeg was not found"
    return picture


def by_pillow(data: bytes, color: str | None = None) -> np.ndarray:
    return as_array(decode_bytes(data, color))


def part(picture: Picture, top: int, left: int, height: int, width: int, mirror: bool = False) -> np.ndarray:
    out = np.empty((height, width, len(picture.mode)), np.uint8)
    picture.write((top, left, height, width, mirror), None, 1.0, out)
    return out


@pytest.mark.parametrize("size", [(64, 96), (61, 83), (1, 1), (17, 200), (200, 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_jpegs_are_pillows_bit_for_bit(kind, size):
    data = jpeg(noisy(1, *size, channels=1 if kind == "grey" else 3), **KINDS[kind])
    random = np.random.RandomState(2)
    for color in (None, COLOR, GRAY):
        picture, expected = in_cpp(data, color), by_pillow(data, color)
        assert np.array_equal(picture.pixels(), expected)
        for _ in range(20):
            height, width = random.randint(1, size[0] + 1), random.randint(1, size[1] + 1)
            top, left = random.randint(0, size[0] - height + 1), random.randint(0, size[1] - width + 1)
            want = expected[top : top + height, left : left + width]
            assert np.array_equal(part(picture, top, left, height, width), want), (top, left, height, width)
            assert np.array_equal(part(picture, top, left, height, width, True), want[:, ::-1])


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("size", [(24, 24), (40, 31), (90, 70), (130, 25), (7, 100), (1, 1), (80, 60)])
def test_resizing_is_pillows(resample, size):
    """Values agree within one grey level, and nearly always to the bit. Where one side grows and the other shrinks,
    newer versions of Pillow resize in the other order and clip other overshoots."""
    data = image_bytes(noisy(3, 60, 80), "PNG")
    image = decode_bytes(data, COLOR)
    for box in (None, (0, 0, 80, 60), (3, 5, 71, 44), (10.25, 0.5, 30.75, 59.9)):
        got = open_image(data).resized(size, resample, box).pixels().astype(int)
        difference = np.abs(got - as_array(image.resize(size, FILTERS[resample], box)))
        assert difference.shape == (size[1], size[0], 3)
        assert difference.mean() <= 0.1 or size in ((130, 25), (7, 100))
        assert difference.max() <= 1 or size in ((130, 25), (7, 100))
        assert difference.mean() < 0.5 and (resample != NEAREST or not difference.any())


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_every_instruction_set(kind):
    data = jpeg(noisy(4, 150, 170, channels=1 if kind == "grey" else 3), **KINDS[kind])
    header = _core.jpeg_header(data)
    pixels = by_pillow(data)
    for resample in FILTERS:
        for size in ((64, 48), (33, 41), (211, 170), (5, 300)):
            for channels in (1, 3):
                window = (1, 2, size[1] - 1, size[0] - 3, resample % 2 == 0)
                outs = [np.empty((window[2], window[3], channels), np.uint8) for _ in range(3)]
                how = ((0.5, 1, 160, 149.25), size, resample, window, None, 1.0)
                assert _core.fill_from_jpeg(data, header, *how, outs[0], plain=True)
                assert _core.fill_from_jpeg(data, header, *how, outs[1])
                _core.fill_from_pixels(pixels, *how, outs[2])
                assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("mean", ["none", "channel", "image"])
def test_floats_are_the_pixels_less_the_mean(mean, mirror):
    picture = in_cpp(jpeg(noisy(5, 50, 70))).resized((40, 30), CUBIC)
    random = np.random.RandomState(6)
    less = {"none": None, "channel": random.rand(3), "image": random.rand(3, 30, 40)}[mean]
    less = None if less is None else (255 * less).astype(np.float32)
    out = np.full((3, 20, 25), np.nan, np.float32)
    picture.write((4, 7, 20, 25, mirror), less, 0.25, out)
    pixels = picture.pixels().transpose(2, 0, 1).astype(np.float32)
    expected = (pixels - (0 if less is None else less.reshape(3, *less.shape[1:] or (1, 1)))) * np.float32(0.25)
    expected = expected[:, 4:24, 7:32]
    assert np.array_equal(out, expected[:, :, ::-1] if mirror else expected)


def test_large_jpegs_are_decoded_smaller():
    """JPEGs are decoded at a smaller scale if that leaves the filter at least 2.5 times to shrink. The result is within
    half a grey level on average; the box filter does not use it."""
    smooth = random_pixels(7, 900, 1200).astype(int)
    pixels = np.clip(smooth + np.random.RandomState(8).randint(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
    data = jpeg(pixels)
    image = decode_bytes(data)
    for resample, times in ((LINEAR, 5), (CUBIC, 6.5), (LANCZOS, 10.5), (CUBIC, 20.5), (BOX, 8), (CUBIC, 4.9)):
        size = (int(1200 / times), int(900 / times))
        got = in_cpp(data).resized(size, resample).pixels().astype(int)
        difference = np.abs(got - as_array(image.resize(size, FILTERS[resample])))
        small = times >= 5 and resample != BOX
        assert (difference.max() > 1) == small and difference.mean() < (0.5 if small else 0.05), (resample, times)


def test_steps_upon_steps():
    data = jpeg(noisy(9, 60, 90))
    twice = in_cpp(data).resized((50, 40), LINEAR).resized((20, 30), LINEAR, (5, 5, 45, 35))
    image = as_pillow(in_cpp(data).resized((50, 40), LINEAR))
    assert (
        np.abs(
            twice.pixels() - as_array(image.resize((20, 30), Image.Resampling.BILINEAR, (5, 5, 45, 35))).astype(int)
        ).max()
        <= 1
    )
    grey = in_cpp(data).resized((50, 40), LINEAR).coloured(GRAY)
    assert np.array_equal(grey.pixels(), as_array(image.convert("L")))


def test_what_only_pillow_decodes_is_left_to_it():
    rgb = noisy(10, 40, 50)
    cmyk, exif = io.BytesIO(), io.BytesIO()
    Image.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG")
    tags = Image.Exif()
    tags[0x0112] = 6  # orientation, which Pillow and Caffe ignore
    Image.fromarray(rgb).save(exif, "JPEG", exif=tags)
    assert _core.jpeg_header(cmyk.getvalue()) is None and _core.jpeg_header(image_bytes(rgb)) is None
    for data in (cmyk.getvalue(), exif.getvalue(), image_bytes(rgb)):
        assert np.array_equal(open_image(data, COLOR).pixels(), by_pillow(data, COLOR))
        assert np.array_equal(open_image(data).pixels(), by_pillow(data))


def test_without_the_library_pillow_decodes_all(monkeypatch):
    class WithoutJpegs:
        fill_from_pixels, jpeg_scans = _core.fill_from_pixels, _core.jpeg_scans

        @staticmethod
        def jpeg_header(data: bytes) -> None:
            return None

    data = jpeg(noisy(11, 40, 50))
    expected = in_cpp(data).resized((20, 20), CUBIC).pixels()
    monkeypatch.setattr(decode, "_decoder", lambda: WithoutJpegs)
    assert np.array_equal(open_image(data).resized((20, 20), CUBIC).pixels(), expected)


def test_a_note_where_pillow_decodes_jpegs_that_c_could(monkeypatch):
    assert decode.slow_jpegs() == "" and decode.jpeg_decoder().startswith("libjpeg-turbo")

    class Without:
        @staticmethod
        def load_jpeg_library(path: str) -> str:
            return "it has no jpeg_std_error"

        @staticmethod
        def jpeg_header(data: bytes) -> None:
            return None

    monkeypatch.setattr("engine.host._core.load_jpeg_library", Without.load_jpeg_library)
    monkeypatch.setattr("engine.host._core.jpeg_header", Without.jpeg_header)
    monkeypatch.setattr(decode, "_lack", "")
    monkeypatch.setattr(decode, "_slowed", False)
    decode._decoder.cache_clear()
    try:
        open_image(image_bytes(noisy(1, 9, 9)))
        assert decode.slow_jpegs() == ""  # a PNG
        open_image(jpeg(noisy(1, 9, 9)))
        note = decode.slow_jpegs()
        assert note.startswith("JPEGs are decoded by Pillow") and "(it has no jpeg_std_error)" in note
        assert decode.jpeg_decoder() == "Pillow, as a whole and slower: it has no jpeg_std_error"
    finally:
        monkeypatch.undo()
        decode._decoder.cache_clear()
        decode._decoder()


@pytest.mark.parametrize("name", ["libm.so.6", "/no/such/library.so"])
def test_a_library_without_jpegs(name):
    assert _core.load_jpeg_library(name) != ""
    assert in_cpp(jpeg(noisy(12, 20, 20))).pixels().shape == (20, 20, 3)  # the library that was loaded before stays


def outcome(make: Callable[[bytes], AnyImage], data: bytes) -> str | np.ndarray:
    try:
        return as_array(make(data))
    except UndecodableImage as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_jpegs_end_as_with_pillow(kind):
    """JPEGs that are cut off or have a changed byte give the same message, or the same pixels, as with Pillow."""
    data = jpeg(noisy(13, 61, 83, channels=1 if kind == "grey" else 3), **KINDS[kind])
    random = np.random.RandomState(14)
    broken = [data[:length] for length in (2, 3, 20, len(data) // 3, len(data) // 2, len(data) - 40, len(data) - 1)]
    for at in random.randint(0, len(data), 60):
        changed = bytearray(data)
        changed[at] ^= 1 << random.randint(8)
        broken.append(bytes(changed))
    refused = 0
    for each in broken:
        expected, got = outcome(decode_bytes, each), outcome(open_image, each)
        assert type(expected) is type(got)
        assert np.array_equal(expected, got) if isinstance(got, np.ndarray) else expected == got
        refused += isinstance(got, str)
    assert refused >= 5


def without(data: bytes, marker: int) -> bytes:
    """Returns a JPEG without its segments of one kind."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


def test_no_table_outlives_its_picture():
    """A file without Huffman tables, such as a frame of MJPEG, uses the standard ones. A file without quantisation
    tables, or whose byte that names one is changed, is damaged. Tables of the thread's last picture must not serve."""
    pixels, other = noisy(18, 96, 128), jpeg(noisy(19, 90, 70), optimize=True)
    data = jpeg(pixels)
    usual, expected = without(data, 0xC4), by_pillow(data)
    renamed = bytearray(data)
    renamed[renamed.rindex(b"\xff\xdb") + 4] ^= 2
    for top, height in ((0, 96), (0, 8), (40, 24), (88, 8)):
        in_cpp(other).pixels()
        assert np.array_equal(part(in_cpp(usual), top, 10, height, 100), expected[top : top + height, 10:110])
    for damaged in (without(data, 0xDB), bytes(renamed)):
        in_cpp(other).pixels()
        assert outcome(open_image, damaged) == outcome(decode_bytes, damaged)
        assert "cannot decode" in str(outcome(open_image, damaged))


def test_what_is_cut_off_below_the_part_is_missed():
    data = jpeg(noisy(15, 200, 200))
    top = open_image(data[: len(data) // 2])
    with pytest.raises(UndecodableImage, match=r"cannot decode \d+ bytes as an image: image file is truncated"):
        part(top, 0, 0, 8, 8)


def test_limits_hold_before_anything_is_decoded(monkeypatch):
    data = jpeg(noisy(16, 40, 50), progressive=True)
    monkeypatch.setattr(decode, "MAX_SCANNED", 40 * 50 * 5)
    with pytest.raises(UndecodableImage, match=r"cannot decode .* it has 10 scans of 50 x 40 pixels"):
        open_image(data)
    data = jpeg(noisy(16, 40, 50))
    scan = data.index(b"\xff\xda")
    with pytest.raises(UndecodableImage, match=r"cannot decode .* it has 6 scans of 50 x 40 pixels"):
        open_image(data[:scan] + 6 * data[scan:-2] + b"\xff\xd9")
    for inside in (b"\xff\xe1\0\x0c" + 5 * b"\xff\xda", b""):  # scans within metadata, and after the end of the picture
        assert open_image(data[:scan] + inside + data[scan:] + 9 * b"\xff\xda\0\2").size == (50, 40)
    large = bytearray(data)
    at = large.index(b"\xff\xc0") + 5
    large[at : at + 4] = b"\xff\x00\xff\x00"
    with pytest.raises(UndecodableImage, match=r"cannot decode .* it has 65280 x 65280 pixels"):
        open_image(bytes(large))
    with pytest.raises(UndecodableImage, match="it would be resized by way of 20000 x 40000 pixels"):
        Picture(np.empty((40000, 1, 1), np.uint8), GRAY, (1, 40000)).resized((20000, 10), LINEAR)


def test_threads_share_nothing():
    files = [jpeg(noisy(seed, 40 + 7 * seed, 90 - 5 * seed)) for seed in range(8)]
    expected = [in_cpp(data).resized((30, 30), CUBIC).pixels() for data in files]
    wrong = []

    def work(begin: int) -> None:
        for turn in range(40):
            n = (begin + turn) % len(files)
            if not np.array_equal(in_cpp(files[n]).resized((30, 30), CUBIC).pixels(), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"box": (0, 0, 51, 40)}, "box must lie inside"),
        ({"box": (float("nan"), 0, 50, 40)}, "box must lie inside"),
        ({"window": (0, 0, 41, 10, False)}, "window must lie inside"),
        ({"window": (-1, 0, 10, 10, False)}, "window must lie inside"),
        ({"window": (1, 0, 2**31 - 1, 10, False)}, "window must lie inside"),
        ({"window": (0, 1, 10, 2**31 - 1, False)}, "window must lie inside"),
        ({"out": np.empty((3, 9, 10), np.float32)}, "out must have the window's size"),
        ({"out": np.empty((2, 10, 10), np.float32)}, "1 or 3 channels"),
        ({"out": np.empty((3, 10, 10), np.float64)}, "float32 or uint8"),
        ({"out": np.empty((3, 10, 20), np.float32)[:, :, ::2]}, "dense"),
        ({"mean": np.zeros(2, np.float32)}, "mean must be"),
        ({"size": (0, 40), "window": (0, 0, 10, 0, False)}, "window must lie inside"),
        ({"filter": 9}, "filter"),
    ],
)
def test_the_extension_checks_what_it_is_told(changed, words):
    data = jpeg(noisy(17, 40, 50))
    told = {"box": (0, 0, 50, 40), "size": (50, 40), "filter": CUBIC, "window": (0, 0, 10, 10, False), "mean": None}
    told |= {"scale": 1.0, "out": np.empty((3, 10, 10), np.float32)} | changed
    with pytest.raises(ValueError, match=words):
        _core.fill_from_jpeg(data, _core.jpeg_header(data), **told)
    with pytest.raises(ValueError, match=words):
        _core.fill_from_pixels(np.zeros((40, 50, 3), np.uint8), **told)


@pytest.mark.parametrize(
    "window", [(-1, 0, 4, 4), (0, 5, 4, 4), (1, 0, 2**31 - 1, 4), (0, 1, 4, 2**31 - 1), (0, 0, -1, -1)]
)
def test_a_window_outside_of_the_pixels_is_refused(window):
    pixels = np.zeros((8, 8, 1), np.uint8)
    with pytest.raises(ValueError, match="crop window must lie inside"):
        _core.transform_image(pixels, *window, False, None, 1.0, np.empty(16, np.float32))
