"""MultiLabelImageData: pictures with several numbers, and faces turned upright."""

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.data import open_data, shapes_without_data
from engine.errors import ConfigError, DataError

SIZE = 60
FACE = "face_transform: true face_point_num: 5 new_height: 40 new_width: 40"
POINTS = np.array([[20, 24], [40, 24], [30, 34], [22, 44], [38, 44]])  # eyes, nose, mouth


def layer_of(text, transform=""):
    layer = proto.LayerParameter(name="data", type="MultiLabelImageData")
    return text_format.Parse(f"image_data_param {{ batch_size: 1 {text} }} transform_param {{ {transform} }}", layer)


def numbers_of(points, *more):
    return " ".join(str(each) for each in (*np.ravel(points), *more))


@pytest.fixture
def listed(tmp_path):
    """Draws a grey ramp of 60 x 60 pixels, 100 + x + y. Returns a function that writes its list, with points and more
    numbers, and returns the layer's fields."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    Image.fromarray((100 + rows + columns).astype(np.uint8)).convert("RGB").save(tmp_path / "a.png")

    def write(points=POINTS, more=(1, 7)):
        (tmp_path / "list.txt").write_text(f"a.png {numbers_of(points, *more)}\n" * 2)
        return f'source: "{tmp_path}/list.txt" root_folder: "{tmp_path}/"'

    return write


def read(layer, count=1, phase=proto.TRAIN, seed=0):
    with open_data(layer, phase, seed=seed).batches(1) as batches:
        found = [[array.copy() for array in batches.next().arrays["data"]] for _ in range(count)]
    return [(data[0], label[0]) for data, label in found]


def test_numbers_without_faces(listed):
    source = open_data(layer_of(listed()), proto.TEST)
    assert source.shapes == ((3, SIZE, SIZE), (12,))
    [(data, label)] = read(layer_of(listed()))
    assert data[0, 3, 5] == 108 and label.tolist() == [*POINTS.ravel(), 1, 7]


def test_a_face_comes_to_the_middle(listed):
    """Without random steps the eyes come to the middle, and the way from eyes to mouth becomes a quarter of the
    height."""
    [(data, label)] = read(layer_of(f"{listed()} {FACE}"))
    scale = 40 / (2 * 2 * 20)
    np.testing.assert_allclose(label[:10].reshape(5, 2), (POINTS - [30, 24]) * scale, atol=1e-5)
    assert label[10:].tolist() == [1, 7] and data.shape == (3, 40, 40)
    rows, columns = np.mgrid[:40, :40]
    x, y = (columns - 20) / scale + 30, (rows - 20) / scale + 24
    within = (x >= 0) & (x <= SIZE - 1) & (y >= 0) & (y <= SIZE - 1)
    assert within.mean() > 0.4
    np.testing.assert_allclose(data[0][within], (100 + x + y)[within], atol=1)
    outside = (x < -1) | (x > SIZE) | (y < -1) | (y > SIZE)
    assert outside.any() and (data[0][outside] == 128).all()


RANDOM = (
    "max_random_shift: 3 max_rotate_angle: 20 max_shear_ratio: 0.1 max_aspect_ratio: 0.1 min_random_scale: 0.8 "
    "max_random_scale: 1.2 face_mirror: true"
)


def value_of(point):
    return 100 + point.sum()


def value_at(plane, x, y):
    """Returns the value at a point between four pixels."""
    left, top = int(np.floor(x)), int(np.floor(y))
    columns = np.array([left + 1 - x, x - left])
    return np.array([top + 1 - y, y - top]) @ plane[top : top + 2, left : left + 2] @ columns


@pytest.mark.parametrize("size", [(1, 60), (60, 1), (1, 1)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_picture_one_pixel_high_or_wide(listed, tmp_path, size, mode):
    source = listed()
    Image.new(mode, size, 50 if mode == "L" else (50, 60, 70)).save(tmp_path / "a.png")
    [(data, _)] = read(layer_of(f"{source} {FACE}", "force_gray: true" if mode == "L" else ""))
    colours = {tuple(pixel) for pixel in data.reshape(len(data), -1).T.astype(int)}
    assert colours & {(70, 60, 50), (50,)} and len(colours) > 1


def test_points_move_with_the_picture(listed):
    """At a moved point the picture has the value that the ramp had at the original point. In a mirrored picture, left
    and right points change places."""
    found = read(layer_of(f"{listed()} {FACE} {RANDOM}"), 30)
    mirrored = 0
    for data, label in found:
        points = label[:10].reshape(5, 2)
        values = [value_at(data[0], *point) for point in points + 20]
        flipped = abs(values[0] - value_of(POINTS[1])) < abs(values[0] - value_of(POINTS[0]))
        mirrored += flipped
        named = POINTS[[1, 0, 2, 4, 3]] if flipped else POINTS
        np.testing.assert_allclose(values, [value_of(point) for point in named], atol=1.5)
        assert np.abs(points).max() <= 0.45 * 40 + 1e-4 and points[0, 0] < points[1, 0]
    assert 5 < mirrored < 25
    again = read(layer_of(f"{listed()} {FACE} {RANDOM}"), 30)
    assert all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(found, again, strict=True))
    assert len({tuple(label) for _, label in found}) > 20


def test_transform_comes_after(listed):
    [(data, _)] = read(layer_of(f"{listed()} {FACE}", "mean_value: 128 crop_size: 10"), phase=proto.TEST)
    [(whole, _)] = read(layer_of(f"{listed()} {FACE}"), phase=proto.TEST)
    np.testing.assert_array_equal(data, whole[:, 15:25, 15:25] - 128)


@pytest.mark.parametrize(
    "text, words",
    [
        (FACE.replace("face_point_num: 5", "face_point_num: 4"), "expected face_point_num of at least 5, got 4"),
        ("face_transform: true face_point_num: 5", "face_transform needs new_height and new_width"),
        (f"{FACE} max_aspect_ratio: 1", "expected max_aspect_ratio below 1, got 1"),
        (f"{FACE} max_rotate_angle: -3", "expected max_rotate_angle of at least 0, got -3"),
        (f"{FACE} min_random_scale: 2", "at most max_random_scale, got 2 and 1"),
        (f"{FACE} min_random_scale: 0", "expected min_random_scale above 0"),
    ],
)
def test_wrong_numbers(listed, text, words):
    with pytest.raises(ConfigError, match=words):
        open_data(layer_of(f"{listed()} {text}"), proto.TRAIN)


def test_what_is_no_face(listed):
    few = listed(POINTS[:4], ())
    with pytest.raises(DataError, match="expected 10 numbers or more, x and y of each point; got 8"):
        open_data(layer_of(f"{few} {FACE}"), proto.TRAIN)
    flat = listed(np.full((5, 2), 30), ())
    with pytest.raises(DataError, match="the middle of its eyes is that of its mouth"):
        open_data(layer_of(f"{flat} {FACE}"), proto.TRAIN)


def test_only_the_list_tells_how_many_numbers():
    with pytest.raises(ConfigError, match=r"only its list, l\.txt, tells how many numbers a picture has"):
        shapes_without_data(layer_of('source: "l.txt" new_height: 4 new_width: 4'))
