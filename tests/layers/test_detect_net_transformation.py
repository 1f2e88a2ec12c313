import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from tests.layers.harness import error_of, inputs, make_net, net_text

RANDOM = np.random.default_rng(13)
NEVER = "crop_prob: 0 scale_prob: 0 flip_prob: 0 rotation_prob: 0 hue_rotation_prob: 0 desaturation_prob: 0"
SIZE = "stride: 8 image_size_x: 96 image_size_y: 64"
CLASSES = "object_class { src: 1 dst: 0 } object_class { src: 7 dst: 1 }"
BOXES = [[10, 12, 30, 20, 1], [50, 30, 60, 25, 7], [4, 40, 12, 12, 5]]


def layer(truth=f"{SIZE} {CLASSES}", augmentation=NEVER, mean="mean_value: 127"):
    blobs = 'bottom: "data" bottom: "label" top: "pictures" top: "grid"'
    return (
        f'layer {{ name: "layer" type: "DetectNetTransformation" {blobs} transform_param {{ {mean} }} '
        f"detectnet_groundtruth_param {{ {truth} }} detectnet_augmentation_param {{ {augmentation} }} }}"
    )


def labels_of(*boxes_of_images):
    labels = np.zeros((len(boxes_of_images), 1, 6, 16), np.float32)
    for label, boxes in zip(labels[:, 0], boxes_of_images):
        label[0, :2] = len(boxes), 16
        for row, (x, y, width, height, number) in zip(label[1:], boxes):
            row[:6] = x, y, width, height, 0, number
    return labels


def run(text, images, labels, phase=proto.TRAIN, iteration=0):
    net = make_net(net_text(text, data=images.shape, label=labels.shape), phase)
    inputs(net)["data"].set(images)
    inputs(net)["label"].set(labels)
    net.forward((iteration, 0, None))
    return net.blobs["pictures"].data, net.blobs["grid"].data


def grid_of(boxes, scale=0.5, most=50, least=None, classes=None, obj_norm=False, crop=True):
    """Returns the grid of a plane of 64 x 96 pixels, in squares of 8."""
    height, width, stride, classes = 64, 96, 8, classes or {1: 0, 7: 1}
    rows, columns = height // stride, width // stride
    grid = np.zeros((8 + max(classes.values()) + 1, rows, columns))
    for x, y, w, h, number in boxes:
        x2, y2 = x + w, y + h
        if crop:
            x, y, x2, y2 = max(x, 0), max(y, 0), min(x2, width), min(y2, height)
        if number not in classes or x2 <= x or y2 <= y:
            continue
        wholes = (x2 - x, y2 - y)
        size = [min(most, scale * whole) for whole in wholes]
        if least is not None:
            size = [min(whole, max(least, scale * whole)) for whole in wholes]
        center = (x + x2) / 2, (y + y2) / 2
        left, top = (c - s / 2 for c, s in zip(center, size))
        right, bottom = left + size[0], top + size[1]
        for row, column in np.ndindex(rows, columns):
            gx, gy = column * stride, row * stride
            if min(right, gx + stride) - max(left, gx) <= 1e-6 or min(bottom, gy + stride) - max(top, gy) <= 1e-6:
                continue
            norm = max(0 if obj_norm else 1, stride**2 / (size[0] * size[1]))
            grid[:8, row, column] = 1, x - gx, y - gy, x2 - gx, y2 - gy, 1 / (x2 - x), 1 / (y2 - y), norm
            grid[8:, row, column] = np.arange(grid.shape[0] - 8) == classes[number]
    return grid


def pictures(count=2):
    return RANDOM.uniform(0, 255, (count, 3, 64, 96)).astype(np.float32)


@pytest.mark.parametrize(
    "truth, options",
    [
        (CLASSES, {}),
        ("", {"classes": {1: 0}}),
        (f"{CLASSES} max_cvg_len: 9 scale_cvg: 0.8", {"most": 9, "scale": 0.8}),
        (f"{CLASSES} gridbox_type: GRIDBOX_MIN min_cvg_len: 18", {"least": 18}),
        (f"{CLASSES} obj_norm: true", {"obj_norm": True}),
        (f"{CLASSES} crop_bboxes: false", {"crop": False}),
    ],
)
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_grid(truth, options, phase):
    images, others = pictures(), [[-10, 50, 40, 40, 1]]
    found, grid = run(layer(f"{SIZE} {truth}"), images, labels_of(BOXES, others), phase)
    np.testing.assert_allclose(found, images - 127, rtol=1e-4, atol=1e-3)
    for picture, boxes in zip(grid, (BOXES, others), strict=True):
        np.testing.assert_allclose(picture, grid_of(boxes, **options), rtol=1e-4, atol=1e-4)


def cubic(size, wanted):
    """Returns the weights (wanted, size) of cubic convolution with a = -3/4. Beyond the border, its pixels are
    repeated."""
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        place = (i + 0.5) * size / wanted - 0.5
        for at in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            d = abs(place - at)
            near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            weights[i, np.clip(at, 0, size - 1)] += near if d <= 1 else far
    return weights


def test_pictures_of_a_test_are_resized():
    images = RANDOM.uniform(0, 255, (1, 3, 32, 40)).astype(np.float32)
    found, grid = run(layer(mean=""), images, labels_of([[5, 6, 15, 10, 1]]), proto.TEST)
    np.testing.assert_allclose(found, cubic(32, 64) @ images @ cubic(40, 96).T, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(grid[0], grid_of([[12, 12, 36, 20, 1]]), rtol=1e-4, atol=1e-4)


def test_flip():
    images = pictures(1)
    found, grid = run(layer(augmentation=NEVER.replace("flip_prob: 0", "flip_prob: 1")), images, labels_of(BOXES))
    np.testing.assert_allclose(found, images[..., ::-1] - 127, rtol=1e-4, atol=1e-3)
    flipped = [[96 - x - w - 1, y, w, h, number] for x, y, w, h, number in BOXES]
    np.testing.assert_allclose(grid[0], grid_of(flipped), rtol=1e-4, atol=1e-4)


def test_scale_and_the_middle():
    """The picture has half the size and is surrounded by zeros."""
    images = np.full((1, 3, 64, 96), 200, np.float32)
    shrunk = NEVER.replace("scale_prob: 0", "scale_prob: 1 scale_min: 0.5 scale_max: 0.5")
    found, grid = run(layer(augmentation=shrunk), images, labels_of(BOXES))
    expected = np.zeros((3, 64, 96))
    expected[:, 16:48, 24:72] = 73
    np.testing.assert_allclose(found[0], expected, atol=1e-2)
    moved = [[x / 2 + 24, y / 2 + 16, w / 2, h / 2, number] for x, y, w, h, number in BOXES]
    np.testing.assert_allclose(grid[0], grid_of(moved), rtol=1e-4, atol=1e-4)


def test_rotation_moves_boxes_with_their_pixels():
    images, augmentation = np.zeros((1, 3, 64, 96), np.float32), NEVER.replace("rotation_prob: 0", "rotation_prob: 1")
    images[0, :, 20:31, 60:71] = 255  # a square around (65, 25)
    found, grid = run(
        layer(augmentation=augmentation + " max_rotate_degree: 40", mean=""),
        images,
        labels_of([[60, 20, 10, 10, 1]]),
    )
    rows, columns = np.nonzero(found[0, 0] > 128)
    row, column = np.argwhere(grid[0, 0])[0]
    x1, y1, x2, y2 = grid[0, 1:5, row, column] + np.array([column, row, column, row]) * 8
    assert abs((x1 + x2) / 2 - columns.mean()) < 1.5 and abs((y1 + y2) / 2 - rows.mean()) < 1.5
    assert abs(columns.mean() - 65) + abs(rows.mean() - 25) > 1  # it has moved


def test_colours():
    """Red turned by 120 degrees becomes green. Without saturation, all channels have the value of the largest."""
    images = np.zeros((1, 3, 64, 96), np.float32)
    images[0, 2] = 200
    turned = NEVER.replace("hue_rotation_prob: 0", "hue_rotation_prob: 1 hue_rotation: 180")
    found, _ = run(layer(augmentation=turned, mean=""), images, labels_of(BOXES))
    assert abs(found[0].max() - 200) < 0.1 and abs(found[0].min()) < 0.1 and np.ptp(found[0], (1, 2)).max() < 0.1
    assert found[0, 2, 0, 0] < 199 or found[0, 0, 0, 0] > 1 or found[0, 1, 0, 0] > 1
    grey = NEVER.replace("desaturation_prob: 0", "desaturation_prob: 1 desaturation_max: 1")
    found, _ = run(layer(augmentation=grey, mean=""), images, labels_of(BOXES))
    np.testing.assert_allclose(found[0, 0], found[0, 1], atol=1e-2)
    assert 1 < found[0, 0, 0, 0] <= 200 and abs(found[0, 2, 0, 0] - 200) < 0.1


def test_chance_is_a_function_of_iteration_and_sample():
    images, labels = np.repeat(pictures(1), 2, 0), labels_of(BOXES, BOXES)
    text = layer(augmentation="shift_x: 8 shift_y: 8 rotation_prob: 1 max_rotate_degree: 5")
    first, again, later = (run(text, images, labels, iteration=i) for i in (0, 0, 1))
    for found, same, other in zip(first, again, later, strict=True):
        np.testing.assert_array_equal(found, same)
        assert (found != other).any() and (found[0] != found[1]).any() and np.isfinite(found).all()


@pytest.mark.parametrize("header", [(7, 16), (-1, 16), (1, 14), (np.nan, 16)])
def test_labels_that_are_something_else(header):
    labels = labels_of(BOXES)
    labels[0, 0, 0, :2] = header
    with pytest.raises(
        DataError, match="sample 0 has labels that are not DetectNet's: expected the number of boxes, 16"
    ):
        run(layer(), pictures(1), labels)


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        (layer(), {"data": (2, 1, 64, 96)}, "expected images (N, 3, H, W), got (2, 1, 64, 96)"),
        (layer(), {"label": (2, 1, 6, 15)}, "expected labels of rows of 16 numbers for 2 images, got (2, 1, 6, 15)"),
        (layer("stride: 0"), {}, "expected stride, image_size_x and image_size_y of at least 1"),
        (layer(f"{SIZE} scale_cvg: 0"), {}, "expected scale_cvg above 0, got 0"),
        (layer(augmentation="flip_prob: 2"), {}, "expected flip_prob between 0 and 1, got 2"),
        (layer(augmentation="scale_min: 2"), {}, "expected scale_min above 0 and at most scale_max, got 2 and 1"),
        (layer(mean='mean_file: "a"'), {}, "expected transform_param with mean_value, once or three times"),
    ],
)
def test_errors(text, shapes, message):
    assert message in error_of(text, **{"data": (2, 3, 64, 96), "label": (2, 1, 6, 16), **shapes})
