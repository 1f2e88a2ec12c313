"""AnnotatedData: SSD's augmentations, of pictures together with their boxes."""

import math

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data import open_data, shapes_without_data
from engine.data.boxes import make_emit, overlaps, seen_from
from engine.data.decode import as_array
from engine.data.distort import make_distort
from engine.data.feeder import Feeder
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_PIXELS, fits
from engine.data.patches import make_expand, make_patches
from engine.data.readers.annotated import MAX_BOXES
from engine.data.retouch import retouch
from engine.errors import ConfigError, DataError
from engine.net import Net, NetOptions
from tests.data.pictures import bgr, random_pixels, raw_datum

RESIZE = "resize_param { height: 12 width: 16 }"
# class, instance, x1, y1, x2, y2, difficult
BOXES = np.array([[3, 0, 0.25, 0.25, 0.5, 0.75, 0], [3, 1, 0.0, 0.0, 1.0, 1.0, 1], [7, 0, 0.9, 0.9, 1.0, 1.0, 0]])
BOXES = BOXES.astype(np.float32)


def annotated(seed: int, boxes: np.ndarray) -> bytes:
    """Serialises an AnnotatedDatum of random_pixels(seed) with these boxes."""
    datum = proto.Datum.FromString(raw_datum(random_pixels(seed)))
    message = proto.AnnotatedDatum(datum=datum, type=proto.AnnotatedDatum.BBOX)
    for row in boxes.tolist():
        group = message.annotation_group.add(group_label=int(row[0]))
        annotation = group.annotation.add(instance_id=int(row[1]))
        for name, value in zip(("xmin", "ymin", "xmax", "ymax"), row[2:6]):
            setattr(annotation.bbox, name, value)
        annotation.bbox.difficult = bool(row[6])
    return message.SerializeToString()


@pytest.fixture
def database(make_lmdb):
    """Makes an LMDB of three pictures: one with three boxes, one with none, one with one."""
    return make_lmdb({f"{i}": annotated(i, BOXES[:count]) for i, count in enumerate((3, 0, 1))})


def layer_of(source, transform=RESIZE, more="") -> proto.LayerParameter:
    layer = proto.LayerParameter(name="data", type="AnnotatedData", top=["data", "label"])
    text = f'data_param {{ source: "{source}" batch_size: 3 }} transform_param {{ {transform} }} {more}'
    return text_format.Parse(text, layer)


def batch_of(layer, phase=proto.TRAIN):
    source = open_data(layer, phase)
    with source.batches(3) as batches:
        data, label = batches.next().arrays["data"]
        return data.copy(), label


def test_boxes_of_a_batch_stand_one_after_the_other(database):
    data, label = batch_of(layer_of(database))
    assert label.shape == (1, 1, 3 * MAX_BOXES, 8)
    np.testing.assert_allclose(label[0, 0, :3], np.hstack([np.zeros((3, 1)), BOXES]), rtol=1e-6)
    np.testing.assert_allclose(label[0, 0, 3], [2, *BOXES[0]], rtol=1e-6)
    assert (label[0, 0, 4:] == -1).all()
    assert np.array_equal(data[1], bgr(random_pixels(1)))


def test_the_fullest_picture_of_wider_face(make_lmdb):
    crowd = make_lmdb({"0": annotated(0, np.repeat(BOXES[:1], 1968, axis=0))}, "crowd")
    _, label = batch_of(layer_of(crowd))
    assert (label[0, 0, :, 0] >= 0).sum() == 3 * 1968


def test_mirrored_pictures_have_mirrored_boxes(database):
    seen = set()
    for seed in range(8):
        source = open_data(layer_of(database, RESIZE + " mirror: true"), proto.TRAIN, seed=seed)
        with source.batches(3) as batches:
            data, label = batches.next().arrays["data"]
        flipped = not np.array_equal(data[0], bgr(random_pixels(0)))
        seen.add(flipped)
        expected = [0.5, 0.25, 0.75, 0.75] if flipped else [0.25, 0.25, 0.5, 0.75]
        np.testing.assert_allclose(label[0, 0, 0, 3:7], expected, rtol=1e-6)
    assert seen == {True, False}


def test_a_crop_cuts_boxes(database):
    _, label = batch_of(layer_of(database, RESIZE + " crop_h: 6 crop_w: 8"), proto.TEST)  # phase TEST crops the middle
    np.testing.assert_allclose(label[0, 0, 0], [0, 3, 0, 0, 0, 0.5, 1, 0], atol=1e-6)
    np.testing.assert_allclose(label[0, 0, 1, 3:7], [0, 0, 1, 1])
    assert label[0, 0, 2, 0] == 2  # the box in the corner is gone


def test_a_crop_keeps_what_emit_constraint_lets_it(database):
    emit = "emit_constraint { emit_type: MIN_OVERLAP emit_overlap: 0.5 }"
    _, label = batch_of(layer_of(database, RESIZE + " crop_h: 6 crop_w: 8 " + emit), proto.TEST)
    np.testing.assert_allclose(label[0, 0, 0], [0, 3, 0, 0, 0, 0.5, 1, 0], atol=1e-6)
    assert label[0, 0, 1, 0] == 2  # a quarter of the second picture's only box is in the crop


def test_difficult_boxes_of_yolo(database):
    for more, kept in (("", [0, 2]), ("train_diffcult: true", [0, 1, 2])):
        more = f"annotated_data_param {{ yolo_data_type: 1 yolo_data_jitter: 0 {more} }}"
        _, label = batch_of(layer_of(database, RESIZE, more))
        rows = label[0, 0][label[0, 0, :, 0] == 0]
        np.testing.assert_allclose(rows[:, 1:], BOXES[kept], rtol=1e-6)


def test_patches_of_yolo():
    """Each side is shorter than the picture's by up to yolo_data_jitter, independently of the other; patches lie
    anywhere in it."""
    param = proto.AnnotatedDataParameter(yolo_data_type=1, yolo_data_jitter=0.4)
    cut = make_patches(param, proto.TransformationParameter())
    image, whole = Image.fromarray(np.zeros((1000, 500, 3), np.uint8)), BOXES[1:2]
    found = []
    for sample in range(300):
        patch, boxes = cut(image, whole, KeyedRandom(1, 0, sample))
        assert len(boxes) == 1
        found.append((patch.width / 500, patch.height / 1000))
    sides = np.array(found)
    assert sides.min() >= 0.598 and sides.max() <= 1
    np.testing.assert_allclose(sides.mean(0), 0.8, atol=0.03)
    assert abs(np.corrcoef(sides.T)[0, 1]) < 0.2


def test_a_resize_of_several_is_made_always(database):
    data, _ = batch_of(layer_of(database, "resize_param { height: 6 width: 8 prob: 0.1 }"))
    assert data.shape == (3, 3, 6, 8)


def test_a_net_reads_it(database):
    layer = 'layer { name: "d" type: "AnnotatedData" top: "data" top: "label" '
    text = f'{layer} data_param {{ source: "{database}" batch_size: 2 }} transform_param {{ {RESIZE} }} }}'
    config = parse_net(text)
    feeder = Feeder(config, proto.TEST, 1, World())
    net = Net(config, proto.TEST, NetOptions(shapes_of=feeder.shapes_of))
    feeder.start()
    feeder.next(net)
    assert net.forward()["label"][0, 0, :3, 1].tolist() == [3, 3, 7]
    feeder.close()


def test_shapes_without_data():
    assert shapes_without_data(layer_of("/none")) == ((3, 12, 16), (MAX_BOXES, 8))


def test_what_cannot_be_used(database, make_lmdb):
    with pytest.raises(ConfigError, match="FIT_SMALL_SIZE: AnnotatedData supports WARP only"):
        open_data(layer_of(database, "resize_param { height: 3 width: 3 resize_mode: FIT_SMALL_SIZE }"), proto.TRAIN)
    crowd = make_lmdb({"0": annotated(0, np.repeat(BOXES, 683, axis=0))}, "crowd")
    with pytest.raises(DataError, match="key '0': the picture has 2049 boxes, at most 2048 are held"):
        open_data(layer_of(crowd), proto.TRAIN)
    plain = make_lmdb({"0": raw_datum(random_pixels(0))}, "plain")
    for message in (layer_of(plain), proto.LayerParameter(name="data", type="Data")):
        message.data_param.source = str(plain if message.type == "AnnotatedData" else database)
        with pytest.raises(DataError, match=r'is read by type: "AnnotatedData", one of Datums by type: "Data"'):
            open_data(message, proto.TRAIN)
    with pytest.raises(DataError, match="not an AnnotatedDatum"):
        open_data(layer_of(make_lmdb({"0": b"\xff\xff"}, "bad")), proto.TRAIN)


@pytest.mark.parametrize(
    ("transform", "more", "message"),
    [
        ("expand_param { max_expand_ratio: nan }", "", "expand_param.max_expand_ratio: expected 1 to 16, got nan"),
        ("expand_param { max_expand_ratio: 0.5 }", "", "expand_param.max_expand_ratio: expected 1 to 16, got 0.5"),
        ("expand_param { max_expand_ratio: 1e30 }", "", "expand_param.max_expand_ratio: expected 1 to 16, got 1e+30"),
        ("expand_param { prob: nan }", "", "expand_param.prob: expected 0 to 1, got nan"),
        ("expand_param { } mean_value: nan", "", "an expanded picture: expected 0 to 255, got nan"),
        ("expand_param { } mean_value: 3e38", "", "an expanded picture: expected 0 to 255, got 3e+38"),
        ("distort_param { hue_prob: 2 }", "", "distort_param.hue_prob: expected 0 to 1, got 2"),
        ("distort_param { hue_delta: nan }", "", "distort_param.hue_delta: expected 0 to 180, got nan"),
        ("distort_param { hue_delta: inf }", "", "distort_param.hue_delta: expected 0 to 180, got inf"),
        ("distort_param { brightness_delta: -1 }", "", "distort_param.brightness_delta: expected 0 to 255, got -1"),
        ("distort_param { contrast_prob: 1 contrast_lower: nan }", "", "contrast_upper: expected a range in 0 to 1000"),
        ("distort_param { saturation_prob: 1 saturation_lower: 2 }", "", "saturation_upper: .* got 2 to 0"),
        ("", "max_trials: 4000000000", "batch_sampler.max_trials: expected 0 to 10000, got 4000000000"),
        ("", "sampler { min_scale: 0 }", "max_scale: expected a range in 0.001 to 1, got 0 to 1"),
        ("", "sampler { max_scale: 1.5 }", "max_scale: expected a range in 0.001 to 1, got 1 to 1.5"),
        ("", "sampler { min_scale: nan }", "max_scale: expected a range in 0.001 to 1, got nan to 1"),
        ("", "sampler { min_aspect_ratio: 3 }", "max_aspect_ratio: .* got 3 to 1"),
        ("", "sampler { max_aspect_ratio: inf }", "max_aspect_ratio: .* got 1 to inf"),
    ],
)
def test_augmentation_that_cannot_be_made(database, transform, more, message):
    more = f"annotated_data_param {{ batch_sampler {{ {more} }} }}" if more else ""
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")) as caught:
        open_data(layer_of(database, f"{RESIZE} {transform}", more), proto.TRAIN, where="net.prototxt:1:1")
    assert str(caught.value).startswith("net.prototxt:1:1: ")


def test_probabilities_of_a_size(database):
    message = layer_of(database, "resize_param { height: 6 width: 8 prob: 7 }")
    for message.type in ("AnnotatedData", "Data"):
        with pytest.raises(ConfigError, match=r"resize_param.prob: expected 0 to 1, got 7"):
            open_data(message, proto.TRAIN)


@pytest.mark.parametrize(
    "field",
    [
        "crop_size: 4 random_aspect_ratio_param { }",
        "pad: 2",
        "crop_size: 4 fix_crop: true",
        "crop_size: 4 multi_scale: true",
        "rand_augment_param { }",
    ],
)
def test_steps_that_boxes_do_not_follow(database, field):
    name = field.split("4 ")[-1].split()[0].rstrip(":")
    message = f"transform_param.{name}: boxes do not follow it; take it out of AnnotatedData"
    with pytest.raises(ConfigError, match=message):
        open_data(layer_of(database, f"{RESIZE} {field}"), proto.TRAIN)


def test_bounds_of_what_is_never_done_are_not_checked():
    make_distort(text_format.Parse("contrast_lower: 0.5 saturation_lower: 0.5", proto.DistortionParameter()))


def test_pictures_of_no_size(make_lmdb):
    message = proto.AnnotatedDatum.FromString(annotated(0, BOXES))
    message.datum.height, message.datum.width = -message.datum.height, -message.datum.width
    with pytest.raises(DataError, match=r"key '0': Datum of 3 x -12 x -16 .* holds 576 numbers instead of 0"):
        open_data(layer_of(make_lmdb({"0": message.SerializeToString()})), proto.TRAIN)


def test_overlaps():
    over_union, of_patch, of_box = overlaps((0.0, 0.0, 0.5, 1.0), BOXES)
    np.testing.assert_allclose(over_union, [0.25, 0.5, 0], rtol=1e-6)
    np.testing.assert_allclose(of_patch, [0.25, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(of_box, [1, 0.5, 0], rtol=1e-6)


def test_emit_constraints():
    def kept(text, patch):
        param = text_format.Parse(text, proto.EmitConstraint()) if text is not None else None
        return make_emit(param)(patch, BOXES).tolist()

    assert kept(None, (0, 0, 0.1, 0.1)) == [True] * 3
    assert kept("emit_type: CENTER", (0.4, 0, 1, 0.9)) == [False, True, False]
    assert kept("emit_type: MIN_OVERLAP emit_overlap: 0.3", (0, 0, 0.4, 1)) == [True, True, False]


def test_boxes_seen_from_a_patch():
    boxes = seen_from((0.25, 0.5, 0.75, 1.0), BOXES)
    np.testing.assert_allclose(boxes[:, 2:6], [[0, 0, 0.5, 0.5], [0, 0, 1, 1]], rtol=1e-6)


def picture() -> Image.Image:
    return Image.fromarray(random_pixels(3, 40, 60))


def test_patches_satisfy_their_constraint():
    param = text_format.Parse(
        """batch_sampler { sampler { min_scale: 0.3 max_scale: 0.9 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }
           sample_constraint { min_jaccard_overlap: 0.4 } max_sample: 1 max_trials: 50 }""",
        proto.AnnotatedDataParameter(),
    )
    step = make_patches(param, proto.TransformationParameter(emit_constraint=proto.EmitConstraint()))
    sizes = set()
    for seed in range(40):
        image, boxes = step(picture(), BOXES[:1], KeyedRandom(seed, 0, 0))
        sizes.add(image.size)
        if image.size == (60, 40):
            continue  # no patch was found
        area = np.prod(boxes[:, 4:6] - boxes[:, 2:4], axis=1)
        assert len(boxes) == 1 and area[0] >= 0.4 - 0.05  # patches have whole pixels
        ratio = image.width / 60 / (image.height / 40)
        assert 0.45 < ratio < 2.2
    assert len(sizes) > 10


def test_the_picture_itself_is_a_patch_too():
    param = text_format.Parse("batch_sampler { max_sample: 1 max_trials: 1 }", proto.AnnotatedDataParameter())
    image, boxes = make_patches(param, proto.TransformationParameter())(picture(), BOXES, KeyedRandom(1, 0, 0))
    assert image.size == (60, 40) and np.array_equal(boxes, BOXES)


def test_expansion_keeps_the_picture_and_its_boxes():
    param = text_format.Parse(
        "mean_value: 1 mean_value: 2 mean_value: 3 expand_param { max_expand_ratio: 3 }",
        proto.TransformationParameter(),
    )
    image, boxes = make_expand(param, None)(picture(), BOXES[:2], KeyedRandom(4, 0, 0))
    assert image.width > 60 and image.height > 40
    x1, y1, x2, y2 = boxes[1, 2:6] * np.tile(image.size, 2)
    whole = image.crop(tuple(round(float(edge)) for edge in (x1, y1, x2, y2)))
    assert np.array_equal(as_array(whole), as_array(picture()))
    outside = as_array(image)[0, 0] if y1 >= 1 or x1 >= 1 else as_array(image)[-1, -1]
    assert outside.tolist() == [1, 2, 3]
    never = text_format.Parse("expand_param { prob: 0 max_expand_ratio: 3 }", proto.TransformationParameter())
    assert make_expand(never, None)(picture(), BOXES, KeyedRandom(4, 0, 0))[0].size == (60, 40)


@pytest.mark.parametrize("size", [(3000, 2000), (60000, 2)])
def test_what_no_canvas_could_hold_is_shrunk(size):
    param = text_format.Parse("expand_param { max_expand_ratio: 16 }", proto.TransformationParameter())
    image, boxes = make_expand(param, None)(Image.new("L", size, 9), BOXES[1:2], KeyedRandom(4, 0, 0))
    assert fits(*image.size) and (image.width > 65000 or image.width * image.height > 0.99 * MAX_PIXELS)
    x1, y1, x2, y2 = boxes[0, 2:6] * np.tile(image.size, 2)  # the box of the whole picture
    assert image.getbbox() == (round(x1), round(y1), round(x2), round(y2))


def distorted(text, seed):
    pixels = np.array(as_array(picture()))
    draw = make_distort(text_format.Parse(text, proto.DistortionParameter()))
    retouch(pixels, draw(KeyedRandom(seed, 0, 0), 0, 0))
    return pixels.astype(int)


@pytest.mark.parametrize(
    "text, same",
    [
        ("", "pixels"),
        ("hue_prob: 1 hue_delta: 18", "value"),
        ("saturation_prob: 1 saturation_lower: 0.5 saturation_upper: 1.5", "value"),
        ("random_order_prob: 1", "sum"),
    ],
)
def test_distortions_keep_what_they_do_not_change(text, same):
    before = as_array(picture()).astype(int)
    after = [distorted(text, seed) for seed in range(6)]
    changed = any(not np.array_equal(each, before) for each in after)
    assert changed == (same != "pixels")
    for each in after:
        if same == "value":
            assert np.abs(each.max(axis=2) - before.max(axis=2)).max() <= 2
        elif same == "sum":
            assert np.array_equal(each.sum(axis=2), before.sum(axis=2))


def test_brightness_and_contrast():
    before = as_array(picture()).astype(int)
    shifts = {int(np.median(distorted("brightness_prob: 1 brightness_delta: 32", n) - before)) for n in range(20)}
    assert len(shifts) > 10 and -32 <= min(shifts) < 0 < max(shifts) <= 32
    halved = distorted("contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 0.5", 1)
    assert np.array_equal(halved, np.rint(before / 2)) and math.isclose(halved.max(), 128, abs_tol=20)
