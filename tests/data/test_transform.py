"""Transforms compared with NumPy, in Caffe's order: crop, mirror, mean, scale."""

import io

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data.decode import (
    BOX,
    CUBIC,
    NEAREST,
    ImageError,
    UndecodableImage,
    as_array,
    as_picture,
    decode,
    parse_datum,
)
from engine.data.geometry import make_stretch
from engine.data.keyed_random import KeyedRandom
from engine.data.mean import write_mean
from engine.data.transform import Transformer, crop_shape
from engine.errors import ConfigError, DataError
from tests.data.pictures import bgr, encoded_datum, image_bytes, random_pixels, raw_datum

RANDOM = KeyedRandom(1, 0, 0)


def make(text: str, phase: int = proto.TEST) -> Transformer:
    return Transformer(text_format.Parse(text, proto.TransformationParameter()), phase, "net.prototxt:3:1")


def shape(transformer: Transformer, datum) -> tuple[int, int, int]:
    return transformer.shape(decode(datum, transformer.color))


def apply(transformer: Transformer, datum, random=None) -> np.ndarray:
    image = decode(datum, transformer.color)
    out = np.full(transformer.shape(image), np.nan, np.float32)
    transformer.apply(image, random or KeyedRandom(1, 0, 0), out)
    return out


@pytest.fixture(params=["raw", "png"])
def datum(request):
    pixels = random_pixels(5)
    return parse_datum(raw_datum(pixels) if request.param == "raw" else encoded_datum(pixels))


def test_channels_come_as_bgr(datum):
    assert np.array_equal(apply(make(""), datum), bgr(random_pixels(5)))


def test_jpeg_is_decoded_to_bgr():
    pixels = random_pixels(5, 32, 32)
    difference = apply(make(""), parse_datum(encoded_datum(pixels, "JPEG"))) - bgr(pixels)
    assert np.abs(difference).mean() < 6


def test_centre_crop_mean_values_and_scale(datum):
    got = apply(make("crop_size: 7 scale: 0.5 mean_value: 10 mean_value: 20 mean_value: 30 mirror: true"), datum)
    mean = np.array([10, 20, 30], np.float32).reshape(3, 1, 1)
    assert np.array_equal(got, (bgr(random_pixels(5))[:, 2:9, 4:11] - mean) * np.float32(0.5))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("raw", [True, False])
def test_pad_puts_black_pixels_around_the_picture(raw, channels):
    pixels = random_pixels(5, 6, 9, channels)
    picture = parse_datum(raw_datum(pixels) if raw else encoded_datum(pixels))
    wanted = np.pad(bgr(pixels), [(0, 0), (3, 3), (3, 3)]) - 7
    assert np.array_equal(apply(make("pad: 3 mean_value: 7"), picture), wanted)
    # the centre is the picture itself
    assert np.array_equal(apply(make("pad: 3 crop_h: 6 crop_w: 9"), picture), bgr(pixels))


def test_crops_of_a_padded_picture_begin_everywhere():
    pixels = random_pixels(5, 8, 8)
    transformer, picture = make("pad: 2 crop_size: 8", proto.TRAIN), parse_datum(raw_datum(pixels))
    wide, found = np.pad(bgr(pixels), [(0, 0), (2, 2), (2, 2)]), set()
    for index in range(300):
        got = apply(transformer, picture, KeyedRandom(1, 0, index))
        found.add(next((y, x) for y in range(5) for x in range(5) if np.array_equal(wide[:, y:, x:][:, :8, :8], got)))
    assert len(found) == 25


def test_one_mean_value_serves_all_channels(datum):
    assert np.array_equal(apply(make("mean_value: 7"), datum), bgr(random_pixels(5)) - 7)


def test_mean_file_is_cropped_with_the_image(datum, tmp_path):
    mean = np.random.RandomState(0).rand(3, 12, 16).astype(np.float32) * 255
    write_mean(str(tmp_path / "mean.binaryproto"), mean)
    got = apply(make(f'crop_size: 8 scale: 0.1 mean_file: "{tmp_path}/mean.binaryproto"'), datum)
    assert np.array_equal(got, ((bgr(random_pixels(5)) - mean) * np.float32(0.1))[:, 2:10, 4:12])


def test_random_crop_and_mirror_are_uniform_over_all_windows(datum):
    pixels = bgr(random_pixels(5))
    transformer = make("crop_h: 10 crop_w: 14 mirror: true", proto.TRAIN)
    seen = {}
    for index in range(600):
        got = apply(transformer, datum, KeyedRandom(1, 0, index)).tobytes()
        seen[got] = seen.get(got, 0) + 1
    windows = {
        np.ascontiguousarray(pixels[:, top : top + 10, left : left + 14][:, :, ::step]).tobytes()
        for top in range(3)
        for left in range(3)
        for step in (1, -1)
    }
    assert set(seen) == windows
    assert min(seen.values()) > 10


def test_mirror_keeps_the_mean_where_it_was(datum, tmp_path):
    mean = np.random.RandomState(0).rand(3, 12, 16).astype(np.float32) * 255
    write_mean(str(tmp_path / "mean.binaryproto"), mean)
    transformer = make(f'mirror: true mean_file: "{tmp_path}/mean.binaryproto"', proto.TRAIN)
    plain = bgr(random_pixels(5)) - mean
    results = [apply(transformer, datum, KeyedRandom(1, 0, index)) for index in range(40)]
    mirrored = [np.array_equal(result, plain[:, :, ::-1]) for result in results]
    assert all(flip or np.array_equal(result, plain) for flip, result in zip(mirrored, results))
    assert 5 < sum(mirrored) < 35


def test_float_data():
    values = np.random.RandomState(0).randn(2, 5, 6).astype(np.float32)
    datum = proto.Datum(channels=2, height=5, width=6, float_data=values.ravel())
    assert np.array_equal(apply(make("crop_size: 3 scale: 2"), datum), values[:, 1:4, 1:4] * 2)


@pytest.mark.parametrize("force", ["force_color: true", "force_gray: true"])
@pytest.mark.parametrize("as_datum", [encoded_datum, raw_datum])
def test_forced_colours(force, as_datum):
    channels = 3 if "color" in force else 1
    gray = random_pixels(6, channels=1)
    assert shape(make(force), parse_datum(as_datum(random_pixels(5)))) == (channels, 12, 16)
    assert np.array_equal(apply(make(force), parse_datum(as_datum(gray))), np.repeat(bgr(gray), channels, axis=0))


def test_grey_image_stays_grey_unless_forced():
    assert shape(make(""), parse_datum(encoded_datum(random_pixels(6, channels=1)))) == (1, 12, 16)


def test_sixteen_bits_are_scaled_not_clipped():
    file = io.BytesIO()
    Image.fromarray((np.arange(64, dtype=np.uint16) << 10).reshape(8, 8)).save(file, "PNG")
    got = apply(make(""), proto.Datum(data=file.getvalue(), encoded=True))
    assert np.array_equal(got[0].ravel(), np.arange(64) * 4)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("resize_param { height: 6 width: 6 }", (3, 6, 6)),
        ("resize_param { height: 6 width: 6 resize_mode: FIT_SMALL_SIZE }", (3, 6, 8)),
        ("resize_param { height: 20 width: 6 resize_mode: FIT_SMALL_SIZE }", (3, 20, 26)),
        ("resize_param { height: 8 width: 8 resize_mode: FIT_LARGE_SIZE_AND_PAD }", (3, 8, 8)),
        ("random_resize_param { min_size: 24 max_size: 24 }", (3, 24, 32)),
        ("random_resize_param { min_size: 24 max_size: 24 } crop_size: 20", (3, 20, 20)),
        ("random_aspect_ratio_param { } crop_size: 9", (3, 9, 9)),
        ("random_aspect_ratio_param { max_attempt: 0 } crop_h: 6 crop_w: 9", (3, 6, 9)),
    ],
)
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_sizes_after_resizing(text, shape, phase, datum):
    assert apply(make(text, phase), datum).shape == shape


def test_resize_is_pillows(datum):
    expected = Image.fromarray(random_pixels(5)).resize((7, 9), Image.Resampling.BICUBIC)
    got = apply(make("resize_param { height: 9 width: 7 interp_mode: CUBIC }"), datum)
    assert np.array_equal(got, bgr(np.asarray(expected)))


def test_padding(datum):
    base = "height: 16 width: 16 resize_mode: FIT_LARGE_SIZE_AND_PAD"
    inner = bgr(random_pixels(5))
    constant = apply(make(f"resize_param {{ {base} pad_value: 1 pad_value: 2 pad_value: 3 }}"), datum)
    assert np.array_equal(constant[:, 2:14], inner)
    assert [set(constant[c, [0, 1, 14, 15]].ravel()) for c in range(3)] == [{1}, {2}, {3}]
    nearest = apply(make(f"resize_param {{ {base} pad_mode: REPEAT_NEAREST }}"), datum)
    assert np.array_equal(nearest, np.pad(inner, ((0, 0), (2, 2), (0, 0)), mode="edge"))
    mirrored = apply(make(f"resize_param {{ {base} pad_mode: MIRRORED }}"), datum)
    assert np.array_equal(mirrored, np.pad(inner, ((0, 0), (2, 2), (0, 0)), mode="reflect"))


def test_interpolation_is_chosen_at_random(datum):
    transformer = make("resize_param { height: 5 width: 5 interp_mode: LINEAR interp_mode: NEAREST interp_mode: AREA }")
    results = {apply(transformer, datum, KeyedRandom(1, 0, index)).tobytes() for index in range(40)}
    assert len(results) == 3


def test_resize_with_a_probability(datum):
    transformer = make("resize_param { height: 24 width: 32 prob: 0.5 } crop_size: 12")
    results = {apply(transformer, datum, KeyedRandom(1, 0, index)).tobytes() for index in range(20)}
    assert len(results) == 2


def test_random_resize_stays_in_its_range():
    """The size is drawn for the shorter side; the longer one follows."""
    datum = parse_datum(raw_datum(random_pixels(5)))
    transformer = make("random_resize_param { min_size: 4 max_size: 6 }")
    sizes = {as_array(transformer._prepare(decode(datum), KeyedRandom(1, 0, index))).shape for index in range(60)}
    assert sizes == {(4, 5, 3), (5, 6, 3), (6, 8, 3)}


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("min_size: 15", {(15, 20, 3), (16, 21, 3)}),
        ("max_size: 13", {(12, 16, 3), (13, 17, 3)}),
        ("max_size: 4", {(4, 5, 3)}),
        ("min_size: 4 max_size: 4", {(4, 5, 3)}),
        ("min_size: 17", {(17, 22, 3)}),
        ("", {(12, 16, 3), (13, 17, 3), (14, 18, 3), (15, 20, 3), (16, 21, 3)}),
    ],
)
def test_random_resize_without_a_limit(text, sizes):
    """As in Intel's Caffe, a missing min_size is the picture's shorter side, and a missing max_size its longer one. If
    the limit that is given is beyond that, it is both."""
    datum = parse_datum(raw_datum(random_pixels(5)))
    transformer = make(f"random_resize_param {{ {text} }}")
    found = {as_array(transformer._prepare(decode(datum), KeyedRandom(1, 0, index))).shape for index in range(80)}
    assert found == sizes


def test_random_aspect_ratio_cuts_parts_of_the_given_area_and_shape():
    """The image's values are their own coordinates, so that the result shows which part was cut."""
    y, x = np.mgrid[0:200, 0:200].astype(np.uint8)
    datum = parse_datum(raw_datum(np.stack([y, x, x], axis=2)))
    transformer = make(
        "crop_size: 50 random_aspect_ratio_param { min_area_ratio: 0.1 max_area_ratio: 0.5 aspect_ratio_change: 0.75 }",
        proto.TRAIN,
    )
    ratios, areas = [], []
    for index in range(200):
        got = apply(transformer, datum, KeyedRandom(1, 0, index))
        width, height = (np.ptp(got[0]) / 49 * 50, np.ptp(got[2]) / 49 * 50)
        ratios.append(height / width)
        areas.append(height * width / 40000)
    assert 0.09 < min(areas) < 0.13 and 0.45 < max(areas) < 0.52
    assert 0.53 < min(ratios) < 0.65 and 1.55 < max(ratios) < 1.9  # c / (1 / c) for c up to 4/3: 1.78


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop_h: 3", "crop_h and crop_w need each other"),
        ("force_color: true force_gray: true", "exclude each other"),
        ('mean_file: "x" mean_value: 3', "exclude each other"),
        ("flow: true", "transform_param.flow is not supported"),
        ("pad: 1025", "transform_param.pad: expected 0 to 1024, got 1025"),
        ('pad: 4 mean_file: "mean"', "pad and mean_file exclude each other"),
        ("resize_param { height: 3 }", "height and width; got 3 x 0"),
        (
            "resize_param { height: 3 width: 3 resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: [1, 2] }",
            "1 or 3 pad_value",
        ),
        ("random_resize_param { min_size: 9 max_size: 4 }", "min_size <= max_size <= 65500; got 9 and 4"),
        ("random_aspect_ratio_param { }", "needs crop_size"),
        ("resize_param { height: 100000 width: 1 }", "resize_param: expected sides of 1 to 65500.*; got 100000 x 1"),
        ("resize_param { height: 60000 width: 60000 }", "67108864 pixels at most; got 60000 x 60000"),
        ("random_resize_param { min_size: 9 max_size: 70000 }", "max_size <= 65500; got 9 and 70000"),
        ("crop_size: 20000 random_aspect_ratio_param { }", "crop_size: expected sides .* got 20000 x 20000"),
        (
            "crop_size: 3 random_aspect_ratio_param { max_attempt: 4000000000 }",
            r"max_attempt: expected 0 to 10000, got 4000000000",
        ),
        ("crop_size: 3 random_aspect_ratio_param { max_area_ratio: inf }", "max_area_ratio; got 0.5 and inf"),
        ("crop_size: 3 random_aspect_ratio_param { aspect_ratio_change: nan }", "expected 0.01 to 100, got nan"),
        (
            "resize_param { height: 3 width: 3 resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: 256 }",
            "pad_value: expected 0 to 255, got 256",
        ),
        (
            "crop_size: 3 random_aspect_ratio_param { min_area_ratio: 2 }",
            "min_area_ratio <= max_area_ratio; got 2 and 1",
        ),
        (
            "crop_size: 3 random_aspect_ratio_param { aspect_ratio_change: 0 }",
            "aspect_ratio_change: expected 0.01 to 100, got 0",
        ),
    ],
)
def test_parameters_that_cannot_be_used(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(text)
    assert str(caught.value).startswith("net.prototxt:3:1: ") and "\n" not in str(caught.value)


def test_missing_and_damaged_mean_files(tmp_path):
    with pytest.raises(DataError, match=r"net.prototxt:3:1: mean_file /none: cannot be read: No such file"):
        make('mean_file: "/none"')
    path = tmp_path / "mean.binaryproto"
    write_mean(str(path), np.zeros((3, 4, 4), np.float32))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="truncated"):
        make(f'mean_file: "{path}"')


def test_mean_file_of_another_size(tmp_path):
    path = tmp_path / "mean.binaryproto"
    write_mean(str(path), np.zeros((3, 12, 15), np.float32))
    with pytest.raises(ImageError, match=r"3 x 12 x 15, as mean_file .*; got 3 x 12 x 16.*, or give mean_value"):
        shape(make(f'mean_file: "{path}"'), parse_datum(raw_datum(random_pixels(5))))


def test_images_that_do_not_fit():
    datum = parse_datum(raw_datum(random_pixels(5)))
    with pytest.raises(ImageError, match="3 x 12 x 16 is smaller than the crop of 13 x 13"):
        shape(make("crop_size: 13"), datum)
    with pytest.raises(
        ImageError, match="expected an image of 3 x 12 x 15, like the first one; got 3 x 12 x 16; set crop"
    ):
        make("").apply(decode(datum), RANDOM, np.empty((3, 12, 15), np.float32))
    with pytest.raises(ImageError, match=r"expected an image of 1 x 12 x 16.* set force_color"):
        make("").apply(decode(datum), RANDOM, np.empty((1, 12, 16), np.float32))
    with pytest.raises(ImageError, match="2 mean_value fields for an image of 3 channels"):
        shape(make("mean_value: 1 mean_value: 2"), datum)
    with pytest.raises(ImageError, match="2 float32 channels cannot be resized"):
        floats = proto.Datum(channels=2, height=1, width=2, float_data=[1, 2, 3, 4])
        shape(make("resize_param { height: 3 width: 3 }"), floats)


def test_undecodable():
    whole = image_bytes(random_pixels(5, 40, 40), "JPEG")
    for data in (b"", b"not an image", whole[: len(whole) // 2]):
        with pytest.raises(UndecodableImage, match=f"cannot decode {len(data)} bytes"):
            shape(make(""), proto.Datum(data=data, encoded=True))
    with pytest.raises(UndecodableImage, match=r"3 x 4 x 4 .* holds 47 numbers instead of 48"):
        shape(make(""), proto.Datum(channels=3, height=4, width=4, data=bytes(47)))
    for sides in ((12, -1, -1), (-3, 4, -4), (2**31 - 1, 2**31 - 1, 2**31 - 1), (0, 4, 4)):
        datum = proto.Datum(data=bytes(48), **dict(zip(("channels", "height", "width"), sides, strict=True)))
        with pytest.raises(UndecodableImage, match=f"{sides[0]} x {sides[1]} x {sides[2]} .* holds 48 numbers instead"):
            shape(make(""), datum)
    with pytest.raises(UndecodableImage, match="not a Datum"):
        parse_datum(b"\xff\xff\xff")


# Of other forks


def many(text, pixels, count=200, phase=proto.TRAIN):
    transformer, datum = make(text, phase), parse_datum(raw_datum(pixels))
    return [apply(transformer, datum, KeyedRandom(1, 0, i)) for i in range(count)]


def test_random_aspect_ratio_reaches_every_pixel():
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, 2)
    text = "min_area_ratio: 0.0625 max_area_ratio: 0.0625 aspect_ratio_change: 1 resize_param { interp_mode: NEAREST }"
    got = many(f"crop_size: 2 random_aspect_ratio_param {{ {text} }}", pixels)
    assert {each.tobytes() for each in got} == {np.full((3, 2, 2), i, np.float32).tobytes() for i in range(16)}


def test_a_centre_crop_in_training():
    pixels = random_pixels(5)
    expected = apply(make("crop_size: 7"), parse_datum(raw_datum(pixels)))
    assert all(np.array_equal(each, expected) for each in many("crop_size: 7 center_crop: true", pixels, 20))


def sizes(text, height, width, count=300):
    """Returns the sizes of images that NVIDIA's random resize makes."""
    param = text_format.Parse(text, proto.TransformationParameter())
    step = make_stretch(param, *crop_shape(param), None)
    image = as_picture(Image.new("RGB", (width, height)))
    return [step(image, KeyedRandom(1, 0, i)).size[::-1] for i in range(count)]


def test_random_size_of_nvidia():
    got = sizes("img_rand_resize_lower: 10 img_rand_resize_upper: 14", 20, 40)
    assert {h for h, _ in got} == set(range(10, 15)) and all(w == 2 * h for h, w in got)


def test_random_ratio_of_nvidia():
    got = sizes(
        "img_rand_resize_lower: 10 img_rand_resize_upper: 10 rand_resize_ratio_lower: 1 rand_resize_ratio_upper: 2",
        20,
        20,
    )
    assert {min(size) for size in got} == {10} and {max(size) for size in got} == set(range(10, 21))
    assert any(h > w for h, w in got) and any(w > h for h, w in got)


def test_stretches_of_nvidia_keep_the_crop_and_do_not_enlarge():
    text = "vertical_stretch_lower: 0.5 vertical_stretch_upper: 2 crop_size: 12"
    got = sizes(text, 20, 30)
    assert {w for _, w in got} == {30} and min(got)[0] == 12 and max(got)[0] == 20
    assert max(sizes(text + " allow_upscale: true", 20, 30))[0] > 35


def test_horizontal_stretches_of_nvidia():
    got = sizes("horizontal_stretch_lower: 0.5 horizontal_stretch_upper: 0.8", 20, 30)
    assert {h for h, _ in got} == {20} and {w for _, w in got} == set(range(15, 25))


@pytest.mark.parametrize("sides", ["crop_size: 8", "crop_h: 8 crop_w: 14", "crop_h: 14 crop_w: 8"])
@pytest.mark.parametrize("field", ["img_rand_resize", "vertical_stretch", "horizontal_stretch"])
def test_random_size_ends_in_a_crop(field, sides):
    param = text_format.Parse(sides, proto.TransformationParameter())
    lower, upper = (8, 11) if field == "img_rand_resize" else (0.3, 0.9)
    text = f"{field}_lower: {lower} {field}_upper: {upper} {sides}"
    assert {each.shape for each in many(text, random_pixels(5, 20, 16), 20)} == {(3, *crop_shape(param))}


@pytest.mark.parametrize(("algorithm", "resample"), [("NEAREST", NEAREST), ("CUBIC", CUBIC), ("AREA", BOX)])
@pytest.mark.parametrize(("direction", "factor"), [("down", 0.5), ("up", 1.5)])
def test_interpolation_of_nvidia(direction, factor, algorithm, resample):
    text = f"""horizontal_stretch_lower: {factor} horizontal_stretch_upper: {factor} allow_upscale: true
        interpolation_algo_{direction}: INTER_{algorithm}"""
    step = make_stretch(text_format.Parse(text, proto.TransformationParameter()), 0, 0, None)
    image = as_picture(Image.fromarray(random_pixels(5, 20, 16)))
    expected = as_array(image.resized((round(16 * factor), 20), resample))
    np.testing.assert_array_equal(as_array(step(image, RANDOM)), expected)


def test_fixed_crops():
    pixels = random_pixels(5, 20, 24)
    whole = apply(make(""), parse_datum(raw_datum(pixels)))
    corners = [(0, 0), (0, 16), (12, 0), (12, 16), (6, 8)]
    middles = [(0, 8), (12, 8), (6, 0), (6, 16), (3, 4), (3, 12), (9, 4), (9, 12)]
    for text, places in (("", corners), ("more_fix_crop: true", corners + middles)):
        expected = {whole[:, y : y + 8, x : x + 8].tobytes() for y, x in places}
        assert {each.tobytes() for each in many(f"crop_size: 8 fix_crop: true {text}", pixels)} == expected
    expected = apply(make("crop_size: 8"), parse_datum(raw_datum(pixels)))
    assert np.array_equal(apply(make("crop_size: 8 fix_crop: true"), parse_datum(raw_datum(pixels))), expected)  # TEST


@pytest.mark.parametrize("channels", [9, 10])
def test_frames_of_a_stack_are_cut_alike(channels):
    """TSN cuts a stack of pictures or of flow as if each frame were cut alone."""
    pixels = random_pixels(5, 20, 24)[:, :, :1].repeat(channels, 2) + np.arange(channels, dtype=np.uint8)
    text = "crop_size: 8 mirror: true multi_scale: true fix_crop: true resize_param { height: 15 width: 14 }"
    stacks = many(text, pixels, 20)
    each = 1 if channels % 3 else 3
    for end in range(channels, 0, -each):  # many() reverses the channels
        frames = many(text, pixels[:, :, end - each : end], 20)
        np.testing.assert_array_equal([stack[channels - end :][:each] for stack in stacks], frames)
    assert len({stack.tobytes() for stack in stacks}) > 10


def test_crops_of_several_sizes():
    """In a ramp, the difference between the ends of a crop tells how much of the picture it shows."""
    ramp = np.broadcast_to(np.arange(0, 240, 4, dtype=np.uint8)[:, None, None], (60, 70, 3)).copy()
    text = "crop_size: 20 multi_scale: true scale_ratios: 1 scale_ratios: 0.5 max_distort: %d fix_crop: true"
    for distort, pairs in ((0, 2), (1, 4)):
        got = many(text % distort, ramp, 100)
        spans = {round(float(each[0, -1, 0] - each[0, 0, 0]) / 10) for each in got}
        assert spans == {23, 11}  # 60 or 30 of the 60 rows, the shorter side
        widths = many(text % distort, ramp.transpose(1, 0, 2).copy(), 100)
        both = {
            (round(float(a[0, -1, 0] - a[0, 0, 0]) / 10), round(float(b[0, 0, -1] - b[0, 0, 0]) / 10))
            for a, b in zip(got, widths, strict=True)
        }
        assert len(both) == pairs


def test_random_erasing():
    pixels = np.full((20, 20, 3), 255, np.uint8)
    text = "erase_ratio: 0.5 scale_min: 0.1 scale_max: 0.2 aspect_min: 0.5 aspect_max: 2"
    shares = [(each != 255).any(0).mean() for each in many(text, pixels)]
    erased = [share for share in shares if share]
    assert 70 < len(erased) < 130 and 0.05 < min(erased) and max(erased) < 0.25
    assert not any((each != 255).any() for each in many(text, pixels, 20, proto.TEST))


@pytest.mark.parametrize(
    "text, words",
    [
        ("img_rand_resize_upper: 5", "img_rand_resize_lower and _upper: expected 0 < lower <= upper"),
        ("vertical_stretch_lower: 3", "vertical_stretch_lower and _upper: expected 0 <= lower <= upper; got 3, 1"),
        ("fix_crop: true", "fix_crop and multi_scale need crop_size"),
        ("multi_scale: true crop_size: 3 scale_ratios: 2", "scale_ratios: expected 0.01 to 1, got 2"),
        ("erase_ratio: 2", "erase_ratio: expected 0 to 1, got 2"),
        ("erase_ratio: 1 scale_min: 0.5", "scale_min and scale_max: expected a range in 0 to 1, got 0.5 to 0.4"),
        ("is_flow: true", "transform_param.is_flow is read by VideoData only"),
        ("scale_factors: 0.5 crop_size: 3", "transform_param.scale_factors is read by ImageSegData only"),
    ],
)
def test_fields_of_forks_that_do_not_fit(text, words):
    with pytest.raises(ConfigError, match=words):
        make(text, proto.TRAIN)
