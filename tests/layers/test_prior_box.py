import numpy as np
import pytest

from tests.layers.harness import error_of, run

IMAGES = np.zeros((2, 3, 30, 60), np.float32)


def layer(params, images=True):
    bottoms = 'bottom: "x"' + (' bottom: "data"' if images else "")
    return f'layer {{ name: "layer" type: "PriorBox" {bottoms} top: "y" prior_box_param {{ {params} }} }}'


def reference(height, width, sizes, image, step, offset=0.5):
    """Returns the boxes in pixels of the image, for each pixel of the blob. `sizes`: (width, height) of the boxes
    around it."""
    boxes = []
    for row in range(height):
        for column in range(width):
            x, y = (column + offset) * step[1], (row + offset) * step[0]
            for w, h in sizes:
                corners = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
                boxes.append(np.array(corners) / [image[1], image[0], image[1], image[0]])
    return np.array(boxes)


@pytest.mark.parametrize(
    "params, sizes, step, offset",
    [
        ("min_size: 8", [(8, 8)], (10, 15), 0.5),
        ("min_size: 8.9 max_size: 18.5", [(8, 8), (12, 12)], (10, 15), 0.5),
        ("min_size: 6 aspect_ratio: 4 aspect_ratio: 4", [(6, 6), (12, 3), (3, 12)], (10, 15), 0.5),
        ("min_size: 6 aspect_ratio: 4 aspect_ratio: 1 flip: false step: 7", [(6, 6), (12, 3)], (7, 7), 0.5),
        ("min_size: 4 min_size: 8 max_size: 9 max_size: 18 aspect_ratio: 4 step_h: 3 step_w: 5 offset: 0",
         [(4, 4), (6, 6), (8, 2), (2, 8), (8, 8), (12, 12), (16, 4), (4, 16)], (3, 5), 0),
    ],
)  # fmt: skip
def test_boxes(params, sizes, step, offset):
    y = run(layer(params), x=np.zeros((2, 7, 3, 4), np.float32), data=IMAGES).blobs["y"].data
    expected = reference(3, 4, sizes, (30, 60), step, offset)
    assert y.shape == (1, 2, expected.size)
    np.testing.assert_allclose(y[0, 0], expected.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y[0, 1], np.float32(0.1))


def test_clip_and_variances_and_the_size_of_images_from_the_text():
    text = layer(
        "min_size: 20 clip: true img_h: 30 img_w: 60 " + "".join(f"variance: {v} " for v in (1, 2, 3, 4)), False
    )
    y = run(text, x=np.zeros((1, 1, 3, 4), np.float32)).blobs["y"].data
    expected = reference(3, 4, [(20, 20)], (30, 60), (10, 15)).clip(0, 1)
    np.testing.assert_allclose(y[0, 0], expected.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y[0, 1].reshape(-1, 4), np.tile([1, 2, 3, 4], (12, 1)))


@pytest.mark.parametrize(
    "params, message",
    [
        ("", "layer 'layer' (PriorBox): expected at least one min_size, of 1 or more, got []"),
        ("min_size: 8 max_size: 6", "expected each max_size above its min_size, got [6.0] for [8.0]"),
        ("min_size: 8 max_size: 9 max_size: 10", "expected a max_size for each min_size, 1, got 2"),
        ("min_size: 8 variance: 0.1 variance: 0.2", "expected 1 or 4 values of variance, above 0"),
        ("min_size: 8", "expected a second bottom, the images, or img_size"),
        ("min_size: 8 img_h: 3", "expected either img_size or both img_h and img_w"),
        ("min_size: 8 img_size: 0", "expected img_size above 0, got (0, 0)"),
        ("min_size: 8 img_size: 30 step_h: 3 step_w: 3 step: 3", "expected either step or both step_h and step_w"),
        (
            "min_size: 1e38 aspect_ratio: 2e-38 img_size: 1",
            "layer 'layer' (PriorBox): its parameters cannot be computed with: ",
        ),
        ("min_size: 8 img_size: 1 step: 3e38 offset: 3e38", "its parameters cannot be computed with: overflow"),
        ("min_size: 8 " + "aspect_ratio: 2 " * 1001, "expected 1000 aspect_ratio at most, got 1001"),
    ],
)
def test_errors(params, message):
    assert message in error_of(layer(params, images=False), x=(1, 2, 3, 4))
