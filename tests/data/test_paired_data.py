"""The pair rule: pictures and their masks or labels, from lists and sources, go through the same steps. Also the layers
of other forks for such pairs."""

import os
import tarfile
import zipfile

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import batch_size_of, open_data, shapes_without_data
from engine.data.mean import write_mean
from engine.errors import ConfigError, DataError
from tests.data.pictures import random_pixels

STEPS = [
    "",
    "crop_size: 7 mirror: true",
    "expand_param { max_expand_ratio: 2 } resize_param { height: 32 width: 40 interp_mode: NEAREST } mirror: true",
    "crop_size: 7 mirror: true center_crop: true",
    "pad: 3 crop_size: 12 mirror: true",
    "resize_param { height: 9 width: 30 interp_mode: NEAREST } crop_size: 8 mirror: true",
    "resize_param { height: 30 width: 30 resize_mode: FIT_LARGE_SIZE_AND_PAD interp_mode: NEAREST } mirror: true",
    "resize_param { prob: 0.5 height: 24 width: 32 interp_mode: NEAREST interp_mode: NEAREST } crop_size: 8",
    "random_resize_param { min_size: 14 max_size: 20 resize_param { interp_mode: NEAREST } } crop_size: 12",
    "random_aspect_ratio_param { aspect_ratio_change: 0.8 resize_param { interp_mode: NEAREST } } crop_size: 8 "
    "mirror: true",
]


@pytest.fixture
def pairs(tmp_path):
    """Makes six grey pictures that are their own masks (classes 0 to 254, none of them IGNORED), and their list."""
    for number in range(6):
        pixels = np.minimum(random_pixels(number, 12, 16, 1)[:, :, 0], 254)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(tmp_path / f"{number}.mask.png")
    (tmp_path / "list.txt").write_text("".join(f"{n}.png {n}.mask.png\n" for n in range(6)))
    return tmp_path


def layer(kind, text, transform="", tops=2):
    message = proto.LayerParameter(name="data", type=kind, top=["data", "label", "more"][:tops])
    return text_format.Parse(f"{text} transform_param {{ {transform} }}", message)


def first(message, phase=proto.TRAIN, size=6, **options):
    source = open_data(message, phase, **options)
    with source.batches(size) as batches:
        found = [array.copy() for array in next(batches).arrays["data"]]
    assert [array.shape[1:] for array in found] == list(source.shapes)
    return found


def image_data(folder, text=""):
    return f'image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}/" batch_size: 6 {text} }}'


@pytest.mark.parametrize("steps", STEPS)
def test_masks_share_all_that_moves_pixels(pairs, steps):
    """Each picture is its own mask, so the two must stay equal except for padding, which is 0 in the one and IGNORED in
    the other."""
    for seed in (1, 2):
        picture, mask = first(layer("ImageData", image_data(pairs, "is_color: false"), steps), seed=seed)
        assert picture.shape == mask.shape
        padded = mask == 255
        assert np.array_equal(picture[~padded], mask[~padded]) and not picture[padded].any()
        assert padded.any() == ("pad" in steps.lower() or "expand" in steps)


def test_pictures_of_lists_have_the_channels_that_are_forced(pairs):
    for text, transform, channels in (("", "force_gray: true", 1), ("is_color: false", "force_color: true", 3)):
        message = layer("ImageData", image_data(pairs, text), f"{transform} crop_size: 7")
        assert first(message)[0].shape == (6, channels, 7, 7) and shapes_without_data(message)[0] == (channels, 7, 7)


def test_masks_go_with_pictures_whose_colours_change(pairs):
    text = "crop_size: 7 mirror: true lighting_param { } noise_param { inverse: true prob: 0.5 } distort_param { }"
    plain = first(layer("ImageData", image_data(pairs, "is_color: false"), "crop_size: 7 mirror: true"))
    picture, mask = first(layer("ImageData", image_data(pairs, "is_color: false"), text))
    assert np.array_equal(mask, plain[1]) and np.array_equal(mask, plain[0])
    turned = [np.array_equal(255 - each, before) for each, before in zip(picture, plain[0], strict=True)]
    kept = [np.array_equal(each, before) for each, before in zip(picture, plain[0], strict=True)]
    assert 0 < sum(turned) < 6 and sum(turned) + sum(kept) == 6


def test_steps_that_are_not_made_for_masks(pairs):
    mix = "mix_param { mixup_alpha: 1 num_classes: 3 }"
    still = ("erase_ratio: 0.5", "multi_scale: true crop_size: 8", "vertical_stretch_lower: 0.9 crop_size: 8")
    for step in (*still, mix, "rand_augment_param { }"):
        with pytest.raises(ConfigError, match=r"transform_param.\w+ does not go with masks: take it out"):
            first(layer("ImageData", image_data(pairs), step))
    assert first(layer("ImageData", image_data(pairs), mix), proto.TEST)[1].shape == (6, 1, 12, 16), "in TRAIN only"


def test_masks_are_not_changed_in_value(pairs):
    plain = first(layer("ImageData", image_data(pairs)), proto.TEST)
    changed = first(layer("ImageData", image_data(pairs), "mean_value: 7 scale: 0.5"), proto.TEST)
    assert np.array_equal(plain[1], changed[1]) and np.array_equal((plain[0] - 7) * 0.5, changed[0])


def test_the_same_pairs_from_a_tar_and_a_zip(pairs):
    with tarfile.open(pairs / "x.tar", "w") as tar, zipfile.ZipFile(pairs / "x.zip", "w") as archive:
        for name in sorted(os.listdir(pairs)):
            if name.endswith(".png"):
                tar.add(pairs / name, name)
                archive.write(pairs / name, name)
    expected = first(layer("ImageData", image_data(pairs, "is_color: false shuffle: true"), STEPS[1]))
    for name in ("x.tar", "x.zip"):
        message = layer("Data", f'data_param {{ source: "{pairs}/{name}" batch_size: 6 shuffle: true }}', STEPS[1])
        assert all(np.array_equal(a, b) for a, b in zip(first(message), expected, strict=True))
        root = image_data(pairs, "is_color: false shuffle: true").replace(
            f'folder: "{pairs}/', f'folder: "{pairs}/{name}/'
        )
        assert all(
            np.array_equal(a, b) for a, b in zip(first(layer("ImageData", root, STEPS[1])), expected, strict=True)
        )


def test_two_layers_of_as_many_items_are_pairs(pairs):
    """DIGITS writes pictures and masks to two databases."""
    for kind in ("picture", "mask"):
        lines = (f"{n}.{'mask.' * (kind == 'mask')}png 0\n" for n in range(6))
        (pairs / f"{kind}.txt").write_text("".join(lines))
    found = [
        first(
            layer(
                "ImageData",
                image_data(pairs, "is_color: false shuffle: true").replace("list.txt", f"{kind}.txt"),
                STEPS[1],
            )
        )[0]
        for kind in ("picture", "mask")
    ]
    assert np.array_equal(*found)


def test_masks_with_palettes_are_numbers_of_colours(pairs):
    image = Image.fromarray(np.full((12, 16), 3, np.uint8))
    image.putpalette([0] * 9 + [200, 100, 50])
    image.save(pairs / "0.mask.png")
    assert (first(layer("ImageData", image_data(pairs)))[1][0] == 3).all()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Image.new("L", (15, 12)), r"key '0.png': expected a mask of 12 x 16 \(h x w\), as the picture; got 12 x 15"),
        (Image.new("RGB", (16, 12)), r"as a mask: expected a mask of one channel or with a palette, got mode RGB"),
        (Image.fromarray(np.full((12, 16), 700, np.uint16)), r"a mask has classes 0 to 255, got 700"),
    ],
)
def test_what_is_no_mask(pairs, mask, message):
    mask.save(pairs / "0.mask.png")
    with pytest.raises(DataError, match=message):
        first(layer("ImageData", image_data(pairs)))


# Lists


def test_several_labels(pairs):
    (pairs / "list.txt").write_text("".join(f"{n}.png {n} 0 {n / 2} -1e1\n" for n in range(6)))
    labels = first(layer("ImageData", image_data(pairs)))[1]
    assert labels.tolist() == [[n, 0, n / 2, -10] for n in range(6)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.png 1", "list.txt:2: expected 2 labels, as on the first line; got '1.png 1'"),
        ("1.png 1.mask.png", "list.txt:2: expected 2 labels, as on the first line"),
        ("1.png", "list.txt:2: expected `relative/path label`; got '1.png'"),
        ("1.png 1 1e999", "list.txt:2: expected `relative/path label`"),
        ("2", "list.txt:2: expected `relative/path label`"),
    ],
)
def test_lines_that_do_not_fit(pairs, line, message):
    (pairs / "list.txt").write_text(f"0.png 1 2\n{line}\n")
    with pytest.raises(DataError, match=message):
        open_data(layer("ImageData", image_data(pairs)), proto.TEST)


def test_image_data_of_class_folders(image_folder):
    message = layer("ImageData", f'image_data_param {{ source: "{image_folder}" batch_size: 12 }}')
    assert first(message, proto.TEST, 12)[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4


# ImageSegData


def seg(folder, text="label_type: PIXEL", transform="", tops=3):
    return layer("ImageSegData", image_data(folder, f"is_color: false {text}"), transform, tops)


def test_image_seg_data(pairs):
    picture, mask, sizes = first(seg(pairs, transform="crop_size: 9 mirror: true"))
    assert np.array_equal(picture, mask) and sizes.tolist() == [[[[9, 9]]]] * 6
    assert first(seg(pairs))[2].tolist() == [[[[12, 16]]]] * 6


def test_image_seg_data_pads_what_is_smaller_than_the_crop(pairs):
    text = "label_type: PIXEL ignore_label: 250"
    picture, mask, sizes = first(seg(pairs, text, "crop_size: 20 mean_value: 30"), proto.TEST)
    assert np.array_equal(picture[:, :, :12, :16] + 30, mask[:, :, :12, :16]) and sizes[0].ravel().tolist() == [12, 16]
    outside = np.ones((20, 20), bool)
    outside[:12, :16] = False
    assert (mask[:, 0, outside] == 250).all() and (picture[:, 0, outside] == 0).all()


def test_image_seg_data_without_masks(pairs):
    (pairs / "list.txt").write_text("".join(f"{n}.png\n" for n in range(6)))
    assert (first(seg(pairs, "label_type: NONE ignore_label: 9"))[1] == 9).all()
    with pytest.raises(DataError, match=r"list.txt:1: expected `relative/path label`"):
        first(seg(pairs))
    (pairs / "list.txt").write_text("".join(f"{n}.png {n}\n" for n in range(6)))
    assert first(seg(pairs, ""))[1][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"key '0.png': it has no mask: label_type PIXEL expects lines"):
        first(seg(pairs))


def test_image_seg_data_refuses(pairs):
    with pytest.raises(ConfigError, match="takes no mean_file; give mean_value"):
        first(seg(pairs, transform='mean_file: "x"'))
    with pytest.raises(ConfigError, match="ignore_label: expected 0 to 255, got -1"):
        first(seg(pairs, "ignore_label: -1"))
    (pairs / "list.txt").write_text("0.png 256\n")
    with pytest.raises(DataError, match="label_type IMAGE expects one label of 0 to 255, got 256"):
        first(seg(pairs, ""))


# DenseImageData, SegData, ImageLabelmapData


def test_dense_image_data(pairs):
    text = f'source: "{pairs}/list.txt" root_folder: "{pairs}/" batch_size: 6 is_color: false'
    dense = layer("DenseImageData", f"dense_image_data_param {{ {text} mirror: true crop_height: 8 crop_width: 10 }}")
    (a, mask_a), (b, mask_b) = first(dense, proto.TEST), first(dense, proto.TEST, seed=2)
    assert a.shape == (6, 1, 8, 10) and np.array_equal(a, mask_a) and np.array_equal(b, mask_b)
    assert not np.array_equal(a, b), "random in TEST, too"
    with pytest.raises(ConfigError, match="crop_height and crop_width need each other; got 8 and 0"):
        first(layer("DenseImageData", f"dense_image_data_param {{ {text} crop_height: 8 }}"))


def test_masks_divided_as_for_enet(pairs):
    """Of a mask of 12 x 16, every third pixel of every third row is left."""
    text = f'source: "{pairs}/list.txt" root_folder: "{pairs}/" batch_size: 6 is_color: false'
    dense = layer("DenseImageData", f"dense_image_data_param {{ {text} mirror: true label_divide_factor: 3 }}")
    picture, mask = first(dense)
    assert mask.shape == (6, 1, 4, 5) and np.array_equal(mask, picture[:, :, ::3, :15:3])
    unread = 'source: "/nowhere" new_height: 12 new_width: 17 label_divide_factor: 3'
    assert shapes_without_data(layer("DenseImageData", f"dense_image_data_param {{ {unread} }}"), None)[:2] == (
        (3, 12, 17),
        (1, 4, 5),
    )
    for factor, words in (
        (0, "expected 1 or more, got 0"),
        (13, "expected at most the picture's sides, 12 x 16, got 13"),
    ):
        with pytest.raises(ConfigError, match=f"label_divide_factor: {words}"):
            first(layer("DenseImageData", f"dense_image_data_param {{ {text} label_divide_factor: {factor} }}"))


def test_seg_data(pairs):
    text = f'seg_data_param {{ source: "{pairs}/list.txt" root_dir: "{pairs}/" shuffle: true }}'
    picture, mask = first(layer("SegData", text, "stride: 5 force_gray: true mirror: true"), size=1)
    assert picture.shape == (1, 1, 10, 15) and np.array_equal(picture, mask)
    assert first(layer("SegData", text, "stride: 5"), size=1)[0].shape == (1, 3, 10, 15)
    with pytest.raises(ConfigError, match="balance is not supported"):
        first(layer("SegData", text.replace("shuffle", "balance")))


def test_image_labelmap_data(pairs):
    text = image_data(pairs, "is_color: false")
    picture, mask = first(layer("ImageLabelmapData", text, "crop_size: 9 mirror: true"))
    assert np.array_equal(mask, picture > 127) and 0 < mask.mean() < 1


@pytest.mark.parametrize("kind", ["ImageSegData", "ImageLabelmapData"])
def test_shapes_without_the_list(kind):
    message = layer(kind, 'image_data_param { source: "none" batch_size: 2 }', "crop_size: 33")
    assert shapes_without_data(message)[:2] == ((3, 33, 33), (1, 33, 33))


# VideoData


@pytest.fixture
def videos(tmp_path):
    """Makes two videos of 9 and 2 frames. Frame f begins with the grey value 20 * f, its y file with one more."""
    for folder, frames in (("long", 9), ("short", 2)):
        (tmp_path / folder).mkdir()
        for frame in range(1, frames + 1):
            value = np.tile(np.uint8(20 * frame) + np.arange(6, dtype=np.uint8), (5, 1))
            Image.fromarray(np.stack([value] * 3, 2)).save(tmp_path / folder / f"image_{frame:04d}.png")
            for axis, more in (("x", 0), ("y", 1)):
                Image.fromarray(value + np.uint8(more)).save(tmp_path / folder / f"flow_{axis}_{frame:04d}.png")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/long 9 3\n")
    return tmp_path


def video(folder, text, transform=""):
    return layer("VideoData", f'video_data_param {{ source: "{folder}/list.txt" batch_size: 1 {text} }}', transform)


RGB = 'modality: RGB name_pattern: "image_%04d.png" num_segments: 3'
FLOW = 'name_pattern: "flow_%c_%04d.png" new_length: 2'


def test_videos_in_test_take_the_middles(videos):
    data, label = first(video(videos, RGB), proto.TEST, 1)
    assert data.shape == (1, 9, 5, 6) and label.tolist() == [3]
    # the first of 3 frames is (3 - 1 + 1) // 2 into each third
    assert data[0, :, 0, 0].tolist() == [40] * 3 + [100] * 3 + [160] * 3
    data, _ = first(video(videos, FLOW), proto.TEST, 1)
    assert data[0, :, 0, 0].tolist() == [100, 101, 120, 121]  # frames 5 and 6: (9 - 2 + 1) // 2 = 4 before them


def test_videos_in_training_take_random_places_of_each_part(videos):
    source = open_data(video(videos, RGB), proto.TRAIN, seed=4)
    with source.batches(1) as batches:
        frames = np.array([next(batches).arrays["data"][0][0, ::3, 0, 0] // 20 for _ in range(40)]).astype(int)
    assert [set(column.tolist()) for column in frames.T] == [{1, 2, 3}, {4, 5, 6}, {7, 8, 9}]


def test_frames_have_the_channels_that_are_forced(videos):
    for text, transform, channels in ((RGB, "force_gray: true", 3), (f"{RGB} grayscale: true", "force_color: true", 9)):
        message = video(videos, text, f"{transform} crop_size: 4")
        assert first(message, size=1)[0].shape == (1, channels, 4, 4)
        assert shapes_without_data(message)[0] == (channels, 4, 4)
    with pytest.raises(ConfigError, match=r"force_color: a picture of a flow, x or y, has one channel"):
        first(video(videos, FLOW, "force_color: true"))


def test_webcams_have_their_batch_size_in_data_param():
    """SSD's layers of this type have no list. Nets with one can be checked but not run."""
    text = "data_param { batch_size: 3 } transform_param { resize_param { height: 30 width: 40 } } video_data_param { }"
    webcam = text_format.Parse(text, proto.LayerParameter(name="data", type="VideoData", top=["data"]))
    assert batch_size_of(webcam) == 3 and shapes_without_data(webcam)[0] == (3, 30, 40)
    with pytest.raises(ConfigError, match=r"VideoData reads lists of frames: .* cameras are not read"):
        open_data(webcam, proto.TEST)
    webcam.video_data_param.batch_size = 4
    assert batch_size_of(webcam) == 4
    webcam.ClearField("video_data_param")
    webcam.ClearField("data_param")
    with pytest.raises(ConfigError, match=r"expected a video_data_param.batch_size above 0, got 0"):
        batch_size_of(webcam)


def test_a_mirrored_flow_runs_the_other_way(videos):
    """Pixel i of a row is i more than the first: a mirrored row descends, and the x component of flow changes its
    sign."""
    transform = "mirror: true is_flow: true mean_value: 10 scale: 0.5"
    check_mirrored_flow(videos, "", transform)


def test_a_flow_is_cut_as_tsn_does(videos):
    text = "crop_size: 3 fix_crop: true more_fix_crop: true multi_scale: true scale_ratios: 1 scale_ratios: 0.6"
    check_mirrored_flow(videos, text, f"{text} mirror: true is_flow: true mean_value: 10 scale: 0.5")


def check_mirrored_flow(videos, still, transform):
    """Checks that frames are mirrored as flow is. `still` is text that both layers have, with mirroring and without."""
    source = open_data(video(videos, FLOW, still), proto.TRAIN)
    moved = open_data(video(videos, FLOW, transform), proto.TRAIN)
    seen = set()
    with source.batches(1) as plain, moved.batches(1) as turned:
        for _ in range(12):
            a, b = (next(each).arrays["data"][0][0].copy() for each in (plain, turned))
            mirrored = not np.array_equal((a - 10) * 0.5, b)
            seen.add(mirrored)
            if mirrored:
                a = a[:, :, ::-1].copy()
                a[::2] = 255 - a[::2]
            assert np.array_equal((a - 10) * 0.5, b)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            RGB.replace("num_segments: 3", "num_segments: 0"),
            "expected 1 to 10000 frames, got num_segments 0 x new_length 1",
        ),
        (RGB.replace("_%04d", ""), "name_pattern: expected one such as image_%04d.jpg, got 'image.png'"),
        (RGB.replace("RGB", "FLOW"), "name_pattern: expected one such as flow_%c_%04d.jpg, got 'image_%04d.png'"),
        (RGB + " new_height: 4", "new_height and new_width need each other; got 4 and 0"),
        (RGB + " encoded: true", "encoded is not supported"),
    ],
)
def test_videos_that_cannot_be(videos, text, message):
    with pytest.raises(ConfigError, match=message):
        first(video(videos, text))


def test_videos_that_cannot_be_read(videos):
    (videos / "list.txt").write_text(f"{videos}/short 2 0\n{videos}/short 0 0\n")
    with pytest.raises(DataError, match=r"list.txt:2: expected `folder frames label`"):
        first(video(videos, RGB))
    (videos / "list.txt").write_text(f"{videos}/long 90 0\n")
    with pytest.raises(DataError, match=r"list.txt: .*long/image_\d+.png: cannot be read: No such file"):
        first(video(videos, RGB), size=1)
    with pytest.raises(ConfigError, match=r"VideoData reads lists of frames: set video_data_param.source"):
        first(layer("VideoData", "video_data_param { video_type: WEBCAM }"))


CLIP = 'use_image: true modality: RGB name_pattern: "image_%04d.png" new_length: 3'


def clip(folder, text="", transform="", line="long 2 3"):
    """Returns a layer for C3D's clips, whose list has one line: folder, first frame or number of frames, label."""
    (folder / "list.txt").write_text(line + "\n")
    return video(folder, f'{CLIP} root_folder: "{folder}/" {text}', transform)


def test_clips_begin_where_the_list_says(videos):
    data, label = first(clip(videos), size=1)
    assert data.shape == (1, 3, 3, 5, 6) and label.tolist() == [3]
    assert data[0, :, :, 0, 0].tolist() == [[40, 60, 80]] * 3
    data, _ = first(clip(videos, "sampling_rate: 2 new_height: 4 new_width: 9"), proto.TEST, 1)
    assert data.shape == (1, 3, 3, 4, 9) and data[0, 1, :, 0, 0].tolist() == [40, 80, 120]


def test_clips_begin_anywhere_with_jitter(videos):
    """With jitter, the second number of a line is the number of frames."""
    message = clip(videos, "use_temporal_jitter: true sampling_rate: 2", line="long 9 3")
    with open_data(message, proto.TRAIN).batches(1) as batches:
        begins = {int(next(batches).arrays["data"][0][0, 0, 0, 0, 0]) // 20 for _ in range(60)}
    assert begins == {1, 2, 3, 4}
    assert first(message, proto.TEST, 1)[0][0, 0, :, 0, 0].tolist() == [20, 60, 100]
    with pytest.raises(DataError, match="it has 5 frames, fewer than new_length x sampling_rate, 6"):
        first(clip(videos, "use_temporal_jitter: true sampling_rate: 2", line="long 5 3"), size=1)


def test_clips_are_cut_and_mirrored_as_one(videos):
    data, _ = first(clip(videos, "", "crop_size: 4 mirror: true"), size=1)
    steps = np.diff(data[0], axis=-1)
    assert data.shape == (1, 3, 3, 4, 4) and (steps == steps.flat[0]).all() and abs(steps.flat[0]) == 1
    assert (np.diff(data[0], axis=1) == 20).all()


def test_means_of_clips(videos):
    plain, _ = first(clip(videos), proto.TEST, 1)
    less, _ = first(clip(videos, "", "mean_value: 1 mean_value: 2 mean_value: 3 scale: 2"), proto.TEST, 1)
    np.testing.assert_array_equal(less, (plain - np.float32([1, 2, 3]).reshape(3, 1, 1, 1)) * 2)
    less, _ = first(clip(videos, "", "mean_value: 5"), proto.TEST, 1)
    np.testing.assert_array_equal(less, plain - 5)
    volume = np.arange(3 * 3 * 5 * 6, dtype=np.float32).reshape(1, 3, 3, 5, 6)
    of_today = proto.BlobProto(shape={"dim": volume.shape}, data=volume.ravel()).SerializeToString()
    # C3D's blob has the length in field 3
    of_c3d = bytes([8, 1, 16, 3, 24, 3, 32, 5, 40, 6, 50, 0xB8, 8]) + volume.tobytes()
    for content in (of_today, of_c3d):
        (videos / "mean").write_bytes(content)
        less, _ = first(clip(videos, "", f'mean_file: "{videos}/mean"'), proto.TEST, 1)
        np.testing.assert_array_equal(less, plain - volume)
    with pytest.raises(DataError, match="expected an image of 9 x 5 x 6, as mean_file"):
        first(clip(videos, "new_height: 4 new_width: 4", f'mean_file: "{videos}/mean"'), size=1)


def test_the_mean_of_a_frame_is_that_of_each(videos):
    plain, _ = first(clip(videos), proto.TEST, 1)
    frame = np.arange(3 * 5 * 6, dtype=np.float32).reshape(3, 5, 6)
    write_mean(videos / "mean", frame)
    mean = f'mean_file: "{videos}/mean"'
    less, _ = first(clip(videos, "", mean), proto.TEST, 1)
    np.testing.assert_array_equal(less, plain - frame[:, None])
    with pytest.raises(DataError, match="expected an image of 9 x 5 x 6, as mean_file") as caught:
        first(clip(videos, "new_height: 4 new_width: 4", mean), size=1)
    # compute_image_mean does not read lists of clips, so it is not suggested
    assert "compute_image_mean" not in str(caught.value)


@pytest.mark.parametrize(("grayscale", "values", "wanted"), [("", 2, "1 or 3"), ("grayscale: true", 3, "1")])
def test_mean_values_of_clips_are_one_for_each_channel_of_a_frame(videos, grayscale, values, wanted):
    message = f"expected {wanted} mean_value, one for each channel of a frame, got {values}"
    with pytest.raises(ConfigError, match=message):
        first(clip(videos, grayscale, "mean_value: 1 " * values), size=1)


def test_clips_without_their_data(videos):
    message = clip(videos, "new_height: 8 new_width: 9")
    message.video_data_param.source = "none"
    assert shapes_without_data(message)[0] == (3, 3, 8, 9)
    message.transform_param.crop_size = 4
    message.video_data_param.use_image = False  # it cannot be run, but its shape is known
    assert shapes_without_data(message)[0] == (3, 3, 4, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("use_image: false", "VideoData reads no video files: with use_image: true it reads folders of frames"),
        ("sampling_rate: 0", "C3D's clips take a new_length, num_segments 1 and a sampling_rate of 1 to 10000"),
        ("num_segments: 2", "C3D's clips take a new_length, num_segments 1"),
    ],
)
def test_clips_that_cannot_be(videos, text, message):
    layer = clip(videos)
    text_format.Merge(text, layer.video_data_param)
    with pytest.raises(ConfigError, match=message):
        first(layer)
    layer = clip(videos)
    layer.video_data_param.ClearField("new_length")
    with pytest.raises(ConfigError, match="C3D's clips take a new_length"):
        first(layer)


def test_lists_of_clips_that_cannot_be_read(videos):
    with pytest.raises(DataError, match=r"list.txt:1: expected `folder first-frame label`; got 'long -1 3'"):
        first(clip(videos, line="long -1 3"))
    with pytest.raises(DataError, match=r"list.txt:1: expected `folder frames label`; got 'long 0 3'"):
        first(clip(videos, "use_temporal_jitter: true", line="long 0 3"))
    with pytest.raises(DataError, match=r"long/image_0010.png: cannot be read: No such file"):
        first(clip(videos, line="long 8 3"), size=1)


def test_image_seg_data_of_several_scales(pairs):
    """The pictures have 12 x 16 pixels. The third top says how much of the crop a picture fills."""
    text = image_data(pairs, "label_type: PIXEL")
    message = layer("ImageSegData", text, "crop_size: 14 scale_factors: 0.5 scale_factors: 1", tops=3)
    found = [first(message, seed=seed) for seed in range(4)]
    assert {tuple(size) for _, _, sizes in found for size in sizes.reshape(-1, 2)} == {(6, 8), (12, 14)}
    for images, masks, sizes in found:
        for image, mask, (height, width) in zip(images, masks, sizes.reshape(-1, 2).astype(int), strict=True):
            assert (mask[0, height:] == 255).all() and (mask[0, :, width:] == 255).all()
            if height == 12:
                np.testing.assert_array_equal(image[0, :height, :width], mask[0, :height, :width])
    in_test = first(message, proto.TEST)[2].reshape(-1, 2)
    assert {tuple(size) for size in in_test} == {(12, 14)}


@pytest.mark.parametrize("transform", ["scale_factors: 0 crop_size: 5", "scale_factors: 0.5"])
def test_image_seg_data_refuses_scales(pairs, transform):
    with pytest.raises(ConfigError, match="scale_factors"):
        first(layer("ImageSegData", image_data(pairs, "label_type: PIXEL"), transform, tops=3))


@pytest.mark.parametrize(
    "transform", ["fix_crop: true crop_size: 5", "img_rand_resize_lower: 5 img_rand_resize_upper: 9"]
)
def test_what_is_for_pictures_without_masks(pairs, transform):
    with pytest.raises(ConfigError, match="does not go with masks"):
        first(layer("ImageSegData", image_data(pairs, "label_type: PIXEL"), transform, tops=3))
