"""Each change of a crop's bytes is compared with NumPy, and with Pillow if Pillow has it."""

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from engine.data import retouch as names
from engine.data.decode import ImageError, as_array
from engine.data.retouch import retouch
from tests.data.test_picture import noisy

MOVED = (0.9137, 0.3071, -4.13, -0.2113, 1.1177, 5.219)


def changed(pixels, *change):
    result = np.array(pixels)
    retouch(result, [change])
    return result


def whole(values):
    """Rounds values and limits them to those of bytes."""
    return np.clip(np.floor(values + 0.5), 0, 255)


def luma(p):
    """Returns the brightness of (h, w, 3) blue, green and red as Pillow computes it."""
    p = p.astype(int)
    return (p[..., 2] * 19595 + p[..., 1] * 38470 + p[..., 0] * 7471 + 0x8000) >> 16 if p.shape[2] == 3 else p[..., 0]


def neighbours(p, mode):
    """Returns the picture moved by -1 to 1 rows and columns, as [dy][dx]."""
    wide = np.pad(p.astype(int), [(1, 1), (1, 1), (0, 0)], mode=mode)
    return [[wide[y : y + p.shape[0], x : x + p.shape[1]] for x in range(3)] for y in range(3)]


def sharpened(p, factor):
    around = neighbours(p, "edge")
    mean = (sum(sum(row) for row in around) + 4 * p.astype(int) + 6) // 13
    result = whole(mean + factor * (p - mean))
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        result[edge] = p[edge]
    return result


def blurred(p):
    weights = np.exp(-(np.arange(-3, 4) ** 2) / 4.5)
    weights /= weights.sum()
    wide = np.pad(p.astype(float), [(3, 3), (3, 3), (0, 0)], mode="reflect")
    rows = sum(w * wide[:, k : k + p.shape[1]] for k, w in enumerate(weights))
    return sum(w * rows[k : k + p.shape[0]] for k, w in enumerate(weights))


def eroded(p):
    around = neighbours(p, "edge")
    return np.minimum.reduce([around[0][1], around[1][0], around[1][1], around[1][2], around[2][1]])


def in_hsv(p, change):
    """Returns pixels after change(h, s, v) of each, in colorsys's units."""
    result = np.empty(p.shape)
    for at in np.ndindex(p.shape[:2]):
        blue, green, red = (float(value) / 255 for value in p[at])
        result[at] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(red, green, blue)))[::-1]
    return result * 255


def equal_light(p):
    light = luma(p)
    counts = np.bincount(light.ravel(), minlength=256)
    first = light.min()
    table = np.rint((np.cumsum(counts) - counts[first]) * 255 / (light.size - counts[first]))
    return np.clip(p + (table[light] - light)[..., None], 0, 255)


SHARES = [
    ("LINEAR", (0.7, 20), lambda p: np.clip(np.rint(0.7 * p + 20), 0, 255)),
    ("LINEAR", (-1, 255), lambda p: 255 - p.astype(int)),
    ("STEPS", (64,), lambda p: p // 64 * 64 + 32),
    ("BITS", (3,), lambda p: p & 0xE0),
    ("SOLARIZE", (100,), lambda p: np.where(p >= 100, 255 - p, p)),
    ("CONTRAST", (1.4,), lambda p: np.clip(np.rint((m := int(luma(p).mean() + 0.5)) + 1.4 * (p - float(m))), 0, 255)),
    ("COLOUR", (0.3,), lambda p: whole((m := luma(p)[..., None]) + 0.3 * (p - m.astype(float)))),
    ("COLOUR", (1.8,), lambda p: whole((m := luma(p)[..., None]) + 1.8 * (p - m.astype(float)))),
    ("SHARPNESS", (1.9,), lambda p: sharpened(p, 1.9)),
    ("SHARPNESS", (0.1,), lambda p: sharpened(p, 0.1)),
    ("EQUALIZE_LIGHT", (), equal_light),
    ("BLUR", (), blurred),
    ("ERODE", (), eroded),
    ("SATURATION", (0.5,), lambda p: in_hsv(p, lambda h, s, v: (h, s / 2, v))),
    ("SATURATION", (1.7,), lambda p: in_hsv(p, lambda h, s, v: (h, min(1, 1.7 * s), v))),
    ("HUE", (40,), lambda p: in_hsv(p, lambda h, s, v: (h + 40 / 360, s, v))),
    ("HUE", (-100,), lambda p: in_hsv(p, lambda h, s, v: ((h - 100 / 360) % 1, s, v))),
    ("ORDER", (2, 0, 1), lambda p: p[..., [2, 0, 1]]),
    ("AFFINE", (1, 0, 3, 0, 1, -2), lambda p: np.pad(p, [(2, 0), (0, 3), (0, 0)])[:-2, 3:]),
    ("AFFINE", (0, 1, 0, 1, 0, 0), lambda p: p.transpose(1, 0, 2)),
]


@pytest.mark.parametrize("name, numbers, reference", SHARES)
def test_changes_are_those_of_numpy(name, numbers, reference):
    pixels = noisy(3, 23, 23)
    pixels[0, :3] = [[0, 0, 0], [255, 255, 255], [9, 9, 200]]
    got, wanted = changed(pixels, getattr(names, name), *numbers).astype(float), reference(pixels)
    assert not np.array_equal(got, pixels)
    # One level of difference: two weights of the blur are whole 256ths, and floats of colours come near halves.
    assert np.abs(got - wanted).max() <= (1 if name in ("BLUR", "SATURATION", "HUE", "COLOUR", "SHARPNESS") else 0)
    assert np.abs(got - wanted).mean() < 0.6


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "name, numbers, reference",
    [
        ("AUTOCONTRAST", (), ImageOps.autocontrast),
        ("EQUALIZE", (), ImageOps.equalize),
        ("BITS", (5,), lambda image: ImageOps.posterize(image, 5)),
        ("SOLARIZE", (77,), lambda image: ImageOps.solarize(image, 77)),
        ("CONTRAST", (0.6,), lambda image: ImageEnhance.Contrast(image).enhance(0.6)),
        ("COLOUR", (1.5,), lambda image: ImageEnhance.Color(image).enhance(1.5)),
        ("SHARPNESS", (1.5,), lambda image: ImageEnhance.Sharpness(image).enhance(1.5)),
        ("LINEAR", (1.3, 0), lambda image: ImageEnhance.Brightness(image).enhance(1.3)),
        (
            "AFFINE",
            MOVED,
            lambda image: image.transform(image.size, Image.Transform.AFFINE, MOVED, Image.Resampling.NEAREST),
        ),
    ],
)
def test_changes_are_pillows_to_one_level(name, numbers, reference, channels):
    pixels = noisy(4, 30, 41, channels) // 2 + 30
    image = names.as_pillow(pixels)
    got, wanted = changed(pixels, getattr(names, name), *numbers).astype(int), as_array(reference(image)).astype(int)
    differs = np.abs(got - wanted).max(axis=2)
    assert (differs > 1).mean() <= (0.01 if name == "AFFINE" else 0)  # Pillow rounds coordinates in another way


def test_grey_pictures_keep_their_lack_of_colours():
    pixels = noisy(5, 9, 11, 1)
    for change in (names.HUE, names.SATURATION, names.COLOUR, names.ORDER, names.HSV):
        assert np.array_equal(changed(pixels, change, 0), pixels)


def test_hsv_is_opencvs():
    pixels = np.array([[[0, 0, 255], [0, 255, 0], [255, 0, 0], [60, 60, 60], [0, 128, 255], [200, 100, 100]]], np.uint8)
    wanted = [[0, 255, 255], [60, 255, 255], [120, 255, 255], [0, 0, 60], [15, 255, 255], [120, 128, 200]]
    assert changed(pixels, names.HSV)[0].tolist() == wanted


def test_dots():
    pixels = np.full((40, 50, 3), 7, np.uint8)
    spotted = changed(pixels, names.DOTS, 0.1, 5, 1, 2, 3)
    dots = (spotted != 7).any(axis=2)
    assert 150 < dots.sum() <= 200 and set(map(tuple, spotted[dots])) == {(1, 2, 3)}
    assert len(set(np.nonzero(dots)[0])) == 40
    assert not np.array_equal(changed(pixels, names.DOTS, 0.1, 6, 1, 2, 3), spotted)
    assert set(np.unique(changed(pixels, names.DOTS, 0.1, 5, -1))) == {0, 7, 255}


def test_compression():
    pixels = noisy(6, 24, 24)
    worse, better = (np.abs(changed(pixels, names.JPEG, q).astype(int) - pixels).mean() for q in (5, 95))
    assert 0 < better < worse / 2


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 1), (2, 2)])
def test_small_pictures(size):
    """Each change is applied to pictures of few pixels, where a read beyond the edge is likely. The sanitizers run it,
    too."""
    for change in range(18):
        got = changed(noisy(1, *size), change, 1, 2, 3)
        assert got.shape == (*size, 3)


def test_several_changes_follow_each_other():
    pixels = noisy(7, 12, 12)
    both = np.array(pixels)
    retouch(both, [(names.LINEAR, 1, 30), (names.JPEG, 50), (names.HUE, 20)])
    steps = changed(changed(changed(pixels, names.LINEAR, 1, 30), names.JPEG, 50), names.HUE, 20)
    assert np.array_equal(both, steps) and not np.array_equal(both, pixels)


@pytest.mark.parametrize("pixels", [np.zeros((3, 3, 2), np.uint8), np.zeros((3, 3, 3), np.float32)])
def test_what_has_no_colours(pixels):
    with pytest.raises(ImageError, match="cannot be resized or change its colours; that takes 1 or 3 channels"):
        retouch(pixels, [(names.LINEAR, 1, 1)])
