"""WindowData: reads windows of pictures, from a list in R-CNN's format."""

import tracemalloc

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import open_data
from engine.data.mean import write_mean
from engine.data.window_file import Window, read_windows
from engine.errors import ConfigError, DataError
from tests.data.pictures import bgr, random_pixels

LIST = """# 0
a.png
3
12
16
3
5 0.9 2 3 9 10
7 0.6 0 0 15 11
0 0.1 4 4 7 7
# 1
b.png
3
12
16
1
0 0.45 1 1 2 2
"""


@pytest.fixture
def pictures(tmp_path):
    for number, name in enumerate("ab"):
        Image.fromarray(random_pixels(number)).save(tmp_path / f"{name}.png")
    (tmp_path / "windows.txt").write_text(LIST)
    return tmp_path


def layer_of(folder, window="", transform="crop_size: 8"):
    layer = proto.LayerParameter(name="data", type="WindowData", top=["data", "label"])
    text = f'source: "{folder}/windows.txt" root_folder: "{folder}/" batch_size: 8 {window}'
    return text_format.Parse(f"window_data_param {{ {text} }} transform_param {{ {transform} }}", layer)


def first_batch(layer, **options):
    with open_data(layer, proto.TRAIN, **options).batches(8) as batches:
        batch = batches.next()
        return batch.arrays["data"][0].copy(), batch.arrays["data"][1].tolist(), batch.keys


def stretched(box, size):
    """Returns a part of a.png (left, top, right, bottom), resized."""
    image = Image.fromarray(random_pixels(0)).resize((size, size), Image.Resampling.BILINEAR, box)
    return bgr(np.asarray(image))


def only_window(folder, line, window="", transform="crop_size: 8"):
    """Returns the one foreground window of a list with this line only."""
    (folder / "windows.txt").write_text(f"# 0\na.png\n3\n12\n16\n1\n{line}\n")
    return first_batch(layer_of(folder, "fg_fraction: 1 " + window, transform))[0][0]


def test_rank_and_ranks_in_the_path(pictures):
    (pictures / "windows.txt").rename(pictures / "windows_1_of_2.txt")
    layer = layer_of(pictures)
    layer.window_data_param.source = f"{pictures}/windows_%#_of_%*.txt"
    source = open_data(layer, proto.TRAIN, rank=1, ranks=2)
    assert source.reader.size == 4 and source.reader.owners == (1,)
    with pytest.raises(DataError, match=r"windows_0_of_2\.txt: "):
        open_data(layer, proto.TRAIN, rank=0, ranks=2)


def test_the_list(pictures):
    paths, windows = read_windows(str(pictures / "windows.txt"), "x/", None)
    assert paths == ["x/a.png", "x/b.png"]
    assert windows[0] == Window(0, 5, np.float32(0.9), (2, 3, 9, 10)) and windows[-1].picture == 1 and len(windows) == 4


def test_a_long_list_takes_little_memory(tmp_path):
    """Lists of R-CNN have ten million lines. A line takes 32 bytes besides the text."""
    text = "# 0\na.png\n3\n12\n16\n10000\n" + "5 0.9 2 3 9 10\n" * 10_000
    (tmp_path / "windows.txt").write_text(text)
    tracemalloc.start()
    _, windows = read_windows(str(tmp_path / "windows.txt"), "", None)
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(windows) == 10_000 and held < 50 * 10_000 and most < held + 4 * len(text)


def test_a_batch_is_background_then_foreground(pictures):
    data, labels, keys = first_batch(layer_of(pictures, "fg_fraction: 0.5 fg_threshold: 0.5 bg_threshold: 0.4"))
    assert labels[:4] == [0] * 4 and set(labels[4:]) <= {5, 7}
    assert all("(4, 4, 7, 7)" in key for key in keys[:4])  # the other window overlaps too much to be background
    again = first_batch(layer_of(pictures, "fg_fraction: 0.5 fg_threshold: 0.5 bg_threshold: 0.4"))
    assert np.array_equal(data, again[0]) and keys == again[2]
    other = first_batch(layer_of(pictures), seed=2)
    assert keys != other[2]


@pytest.mark.parametrize("threshold", np.arange(1, 20) / 20)
def test_an_overlap_of_the_threshold_is_foreground(pictures, threshold):
    """As in Caffe, which compares in float32. A threshold such as 0.6 has a float32 above its double."""
    head, lines = "# 0\na.png\n3\n12\n16\n", f"5 {threshold} 2 3 9 10\n"
    below = np.nextafter(np.float32(threshold), np.float32(0))
    (pictures / "windows.txt").write_text(f"{head}2\n{lines}6 {below:.9g} 2 3 9 10\n")
    text = f"fg_fraction: 0.5 fg_threshold: {threshold} bg_threshold: {threshold}"
    _, labels, _ = first_batch(layer_of(pictures, text))
    assert labels == [0] * 4 + [5] * 4


def test_a_window_of_the_crops_size_is_cut_out(pictures):
    """As in Caffe, the scale in transform_param is ignored, not that in window_data_param."""
    values = bgr(random_pixels(0))[:, 3:11, 2:10]
    got = only_window(pictures, "5 0.9 2 3 9 10", "scale: 0.5", "crop_size: 8 mean_value: 7 scale: 3")
    np.testing.assert_array_equal(got, (values - 7) * 0.5)


def test_the_middle_of_a_mean_file(pictures):
    mean = np.random.RandomState(0).rand(3, 12, 14).astype(np.float32)
    write_mean(str(pictures / "mean"), mean)
    got = only_window(pictures, "5 0.9 2 3 9 10", transform=f'crop_size: 8 mean_file: "{pictures}/mean"')
    np.testing.assert_allclose(got, bgr(random_pixels(0))[:, 3:11, 2:10] - mean[:, 2:10, 3:11], rtol=1e-6)


def test_context_outside_of_the_picture_is_zero(pictures):
    """Of 4 x 4 pixels at the corner, the result has 2 rows and columns of context. R-CNN counts both ends after
    stretching, so 9 pixels become 8."""
    got = only_window(pictures, "5 0.9 0 0 3 3", "context_pad: 2")
    assert (got[:, :2] == 0).all() and (got[:, :, :2] == 0).all()
    np.testing.assert_array_equal(got[:, 2:, 2:], stretched((0, 0, 7, 7), 6))


def test_a_square_keeps_the_aspect_ratio(pictures):
    got = only_window(pictures, "5 0.9 4 4 11 7", 'crop_mode: "square"')
    np.testing.assert_array_equal(got, stretched((4, 2, 13, 11), 8))


def test_mirrored_windows(pictures):
    (pictures / "windows.txt").write_text("# 0\na.png\n3\n12\n16\n1\n5 0.9 0 0 3 3\n")
    data, _, _ = first_batch(layer_of(pictures, "fg_fraction: 1 context_pad: 2", "crop_size: 8 mirror: true"))
    plain = only_window(pictures, "5 0.9 0 0 3 3", "context_pad: 2")
    mirrored = [np.array_equal(each, plain[:, :, ::-1]) for each in data]
    assert any(mirrored) and not all(mirrored)
    assert all(m or np.array_equal(each, plain) for each, m in zip(data, mirrored))


def test_mirrored_windows_are_rounded_from_the_other_side(pictures):
    """As in Caffe. 5 pixels beyond the right edge, at half size, become 3 columns, but 4 on the left become 2."""
    Image.fromarray(random_pixels(0)[:, :11]).save(pictures / "a.png")
    (pictures / "windows.txt").write_text("# 0\na.png\n3\n12\n11\n1\n5 0.9 0 0 10 10\n")
    layer = layer_of(pictures, "fg_fraction: 1 context_pad: 2", "crop_size: 10 mirror: true")
    shown = {tuple(np.flatnonzero(each.any((0, 1))).tolist()) for each in first_batch(layer)[0]}
    assert shown == {(2, 3, 4, 5, 6, 7), (3, 4, 5, 6, 7, 8)}


@pytest.mark.parametrize(
    "batch_size, fraction, too_small", [(3, 0.25, True), (4, 0.25, False), (3, 0, False), (3, 2e-38, True)]
)
def test_a_batch_that_is_too_small_for_foreground_windows(pictures, caplog, batch_size, fraction, too_small):
    layer = layer_of(pictures, f"fg_fraction: {fraction}")
    layer.window_data_param.batch_size = batch_size
    open_data(layer, proto.TRAIN)
    warned = "of a rank's batch of 3 is no foreground window: make batch_size larger, or set fg_fraction: 0"
    assert (warned in caplog.text) == too_small == bool(caplog.messages)


def test_what_cannot_be_used(pictures):
    with pytest.raises(ConfigError, match=r"a crop_size above twice the context_pad, got 8"):
        open_data(layer_of(pictures, "context_pad: 4"), proto.TRAIN)
    with pytest.raises(ConfigError, match=r"crop_mode: expected warp or square, got 'round'"):
        open_data(layer_of(pictures, 'crop_mode: "round"'), proto.TRAIN)
    with pytest.raises(DataError, match=r"takes 2 foreground and 6 background windows; the file has 0 and 4"):
        open_data(layer_of(pictures, "fg_threshold: 0.95 bg_threshold: 0.95"), proto.TRAIN)
    (pictures / "windows.txt").write_text(LIST.replace("0 0.1 4 4 7 7\n", ""))
    with pytest.raises(DataError, match=r"windows.txt:9: expected `class overlap x1 y1 x2 y2`, got '# 1'"):
        open_data(layer_of(pictures), proto.TRAIN)
    with pytest.raises(DataError, match=r"a.png: window .* lies outside of the picture of 16 x 12"):
        only_window(pictures, "5 0.9 20 20 30 30")
    with pytest.raises(ConfigError, match=r"fg_fraction: expected 0 to 1, got nan"):
        open_data(layer_of(pictures, "fg_fraction: nan"), proto.TRAIN)
    with pytest.raises(ConfigError, match=r"crop_size: expected sides of 1 to 65500 pixels.* got 70000 x 70000"):
        open_data(layer_of(pictures, transform="crop_size: 70000"), proto.TRAIN)


@pytest.mark.parametrize("field", ["bgr2rgb: true", "flow: true", "mix_param { mixup_alpha: 1 }", "scale_factors: 2"])
def test_what_no_layer_of_pictures_ignores(pictures, field):
    name = field.split()[0].rstrip(":")
    with pytest.raises(ConfigError, match=f"transform_param.{name} is (not supported|read by)"):
        open_data(layer_of(pictures, transform=f"crop_size: 8 {field}"), proto.TRAIN)


def test_pictures_that_are_skipped(pictures):
    """Another window of the same kind replaces each window of a skipped picture."""
    plain, labels, keys = first_batch(layer_of(pictures))
    (pictures / "b.png").write_bytes(b"no image")
    layer = layer_of(pictures)
    with pytest.raises(DataError, match=r"windows.txt: .*b.png: cannot decode 8 bytes"):
        first_batch(layer)
    source = open_data(layer, proto.TRAIN, skip_bad_images=True)
    with source.batches(8) as batches:
        batch = batches.next()
        replaced = ["b.png" in key for key in keys]
        assert any(replaced) and not any("b.png" in key for key in batch.keys)
        assert batch.arrays["data"][1].tolist() == labels
        for now, before, other in zip(batch.arrays["data"][0], plain, replaced, strict=True):
            assert other != np.array_equal(now, before)
    assert [path for path, _ in source.skipped.values()] == [f"{pictures}/b.png"]
    (pictures / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"windows.txt: none of the pictures of its 2 foreground windows can be dec"):
        first_batch(layer_of(pictures, "fg_fraction: 1"), skip_bad_images=True)


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        (2, "a\0.png", "the path of a picture"),
        (3, "\u0663", "a picture's channels"),
        (4, "1" * 5000, "a picture's height"),
        (6, "-1", "a picture's number of windows"),
        (6, str(2**40), "a picture's number of windows"),
        (7, "5 nan 2 3 9 10", "`class overlap x1 y1 x2 y2`"),
        (7, "5 1e400 2 3 9 10", "`class overlap x1 y1 x2 y2`"),
        (7, f"{10**30} 0.9 2 3 9 10", "`class overlap x1 y1 x2 y2`"),
        (7, f"5 0.9 2 3 {10**400} 10", "`class overlap x1 y1 x2 y2`"),
        (7, f"5 0.9 2 3 9 {10**18}", "`class overlap x1 y1 x2 y2`"),
        (7, "5 0.9 2 3 1 10", "`class overlap x1 y1 x2 y2`"),
    ],
)
def test_lines_that_cannot_be_used(pictures, line, text, expected):
    lines = LIST.splitlines()
    lines[line - 1] = text
    (pictures / "windows.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=rf"windows.txt:{line}: expected {expected}, got "):
        open_data(layer_of(pictures), proto.TRAIN)


def test_windows_of_any_size(pictures):
    """The window reaches far beyond the picture, which takes up one pixel of it."""
    far = 2**31 - 1
    for window in ("", 'crop_mode: "square"', "context_pad: 3"):
        assert np.isfinite(only_window(pictures, f"5 0.9 0 0 {far} {far}", window)).all()


def test_pictures_that_cannot_be_read(pictures):
    (pictures / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"windows.txt: .*a.png: cannot decode 8 bytes"):
        only_window(pictures, "5 0.9 2 3 9 10")
    (pictures / "a.png").unlink()
    with pytest.raises(DataError, match=r"windows.txt: .*a.png: cannot be read: No such file"):
        only_window(pictures, "5 0.9 2 3 9 10")


def test_the_number_of_foreground_windows_is_caffe_s(pictures):
    """Caffe multiplies in float32, which gives 18 of 20 at 0.9; a double would give 17."""
    layer = layer_of(pictures, "fg_fraction: 0.9 fg_threshold: 0.5 bg_threshold: 0.5")
    layer.window_data_param.batch_size = 20
    with open_data(layer, proto.TRAIN).batches(20) as batches:
        labels = batches.next().arrays["data"][1]
    assert (labels > 0).sum() == 18
