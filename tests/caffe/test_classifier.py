"""Classifier and Detector, on a net whose result is the mean of each channel."""

import numpy as np
import pytest
from PIL import Image

import engine.caffe as caffe
from engine.errors import ConfigError, EngineError
from tests.caffe.nets import write

MEANS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 4 dim: 4 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip" inner_product_param { num_output: 3 } }
"""


@pytest.fixture
def files(tmp_path):
    model, weights = write(tmp_path, MEANS), str(tmp_path / "means.caffemodel")
    net = caffe.Net(model, caffe.TEST)
    net.params["ip"][0].data[...] = np.eye(3)
    net.save(weights)
    return model, weights


@pytest.fixture
def image():
    return np.random.default_rng(1).random((6, 8, 3), dtype=np.float32)


def test_classifier(files, image):
    classifier = caffe.Classifier(*files, image_dims=(6, 8), raw_scale=255, channel_swap=(2, 1, 0), mean=np.ones(3))
    centre = classifier.predict([image, 0 * image, image], oversample=False)
    expected = 255 * image[1:5, 2:6].mean((0, 1))[::-1] - 1
    np.testing.assert_allclose(centre, [expected, [-1, -1, -1], expected], rtol=1e-5)
    crops = caffe.io.oversample([image], (4, 4))
    np.testing.assert_allclose(classifier.predict([image])[0], 255 * crops.mean((0, 1, 2))[::-1] - 1, rtol=1e-5)
    assert caffe.Classifier(*files).image_dims == (4, 4)


def test_detector(files, image, tmp_path):
    path = str(tmp_path / "image.png")
    Image.fromarray((255 * image).astype(np.uint8)).save(path)
    pixels = caffe.io.load_image(path)
    detector = caffe.Detector(*files)
    windows = [(1, 2, 5, 6), (0, 0, 4, 4)]
    found = detector.detect_windows([(path, windows)])
    assert [each["filename"] for each in found] == [path] * 2
    for each, (top, left, bottom, right) in zip(found, windows):
        assert each["window"] == (top, left, bottom, right)
        np.testing.assert_allclose(each["prediction"], pixels[top:bottom, left:right].mean((0, 1)), rtol=1e-5)
    assert detector.detect_windows([]) == []


def test_context_around_a_window(files):
    detector = caffe.Detector(*files, context_pad=1, mean=np.full(3, 0.25))
    image = np.ones((40, 40, 3), np.float32)
    np.testing.assert_allclose(detector.crop(image, (10, 10, 19, 19)), np.ones((4, 4, 3)))  # all of it inside the image
    corner = detector.crop(image, (0, 0, 9, 9))
    np.testing.assert_allclose(corner[0], 0.25)  # above the image, where there is the mean
    np.testing.assert_allclose(corner[:, 0], 0.25)
    np.testing.assert_allclose(corner[1:, 1:], 1)


def test_selective_search_is_refused(tmp_path):
    model = write(tmp_path, MEANS)
    weights = str(tmp_path / "means.caffemodel")
    caffe.Net(model, caffe.TEST).save(weights)
    with pytest.raises(EngineError, match=r"a program for MATLAB, .* give them to detect_windows"):
        caffe.Detector(model, weights).detect_selective_search(["x.jpg"])


@pytest.mark.parametrize("kind", [caffe.Classifier, caffe.Detector])
def test_a_net_that_is_fed_otherwise_is_refused(tmp_path, kind):
    shape = "shape { dim: 4 dim: 3 dim: 4 dim: 4 }"
    model = write(
        tmp_path,
        MEANS.replace("Input", "DummyData").replace(f"input_param {{ {shape} }}", f"dummy_data_param {{ {shape} }}"),
    )
    weights = str(tmp_path / "means.caffemodel")
    net = caffe.Net(model, caffe.TEST)
    net.save(weights)
    with pytest.raises(
        ConfigError, match=r"net.prototxt: its data comes from 'data' \(DummyData\); expected a net for"
    ):
        kind(model, weights)
    with pytest.raises(
        ValueError, match=r"no Input layer to take data: it is fed by 'data' \(DummyData\); call forward"
    ):
        net.forward(data=np.zeros((4, 3, 4, 4)))
