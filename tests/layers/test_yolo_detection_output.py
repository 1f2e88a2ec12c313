import numpy as np
import pytest

from engine import proto
from tests.layers.blocked import run_blocked
from tests.layers.boxes import overlap, sigmoid, softmax
from tests.layers.harness import PRECISIONS, error_of, make_net, net_text, run

CLASSES = 4
SIZES = {"a": (3, 5), "b": (6, 10)}  # the two planes of a picture of 96 rows and 160 columns
ANCHORS = [(10, 14), (23, 27), (37, 58), (81, 82), (135, 69)]
BIASES = [side for anchor in ANCHORS for side in anchor]
MASK, SCALES = [3, 4, 0, 1], [32, 16]
V2 = [1.0, 1.5, 2.0, 0.8]  # width and height of two anchors


def numbers(name, values):
    return " ".join(f"{name}: {value}" for value in values)


def v3(params="", mask=MASK, scales=SCALES, groups=2, biases=BIASES, classes=CLASSES, bottoms="ab"):
    text = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f"""layer {{ name: "layer" type: "Yolov3DetectionOutput" {text} top: "y"
        yolov3_detection_output_param {{ num_classes: {classes} num_box: 2 mask_group_num: {groups}
            {numbers("mask", mask)} {numbers("anchors_scale", scales)} {numbers("biases", biases)} {params} }} }}"""


def v2(params="", biases=V2, bottoms="ab"):
    text = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f"""layer {{ name: "layer" type: "YoloDetectionOutput" {text} top: "y" yolo_detection_output_param {{
        num_classes: {CLASSES} num_box: 2 {numbers("biases", biases)} {params} }} }}"""


def bottoms(images=3, classes=CLASSES):
    """Returns predictions as of a trained net: few boxes hold an object, their neighbours hold the same object, and the
    last image has none."""
    random = np.random.default_rng(4)
    planes = {}
    for name, (height, width) in SIZES.items():
        x = random.normal(0, 0.5, (images, 2, 5 + classes, height, width))
        x[:, :, 4] -= 5
        for image in range(images - 1):
            for _ in range(3):
                row, column, c = random.integers(height - 1), random.integers(width - 1), random.integers(classes)
                x[image, :, 4, row : row + 2, column : column + 2] += 7
                x[image, :, 5 + c, row : row + 2, column : column + 2] += 4
        planes[name] = x.reshape(images, -1, height, width).astype(np.float32)
    return planes


def reference(planes, kind, least=0.01, nms=0.45, classes=CLASSES):
    """Computes the layer as the fork does, but for each image alone. Each class of a box is a candidate, and candidates
    of all classes suppress each other."""
    rows = []
    for n in range(len(planes["a"])):
        found = []
        for plane, x in enumerate(planes.values()):
            height, width = x.shape[2:]
            values = x[n].astype(np.float64).reshape(2, 5 + classes, height, width)
            for anchor, row, column in np.ndindex(2, height, width):
                own = values[anchor, :, row, column]
                if kind == "v2":
                    size = np.array(V2[2 * anchor : 2 * anchor + 2]) / [width, height]
                    p = softmax(own[5:])
                else:
                    size = np.array(ANCHORS[MASK[2 * plane + anchor]]) / SCALES[plane] / [width, height]
                    p = sigmoid(own[5:])
                center = (np.array([column, row]) + sigmoid(own[:2])) / [width, height]
                half = np.exp(own[2:4]) * size / 2
                for c in range(classes) if kind == "v3" else [p.argmax()]:
                    score = sigmoid(own[4]) * p[c]
                    if score > least:
                        found.append((score, c + 1, np.concatenate([center - half, center + half])))
        kept = []
        for score, label, box in sorted(found, key=lambda each: -each[0]):
            if all(overlap(box, other) < nms for _, _, other in kept):
                kept.append((score, label, box))
        rows += [(n, label, score, *box) for score, label, box in kept]
    return np.array(rows)


def found_in(net):
    rows = net.blobs["y"].data[0, 0]
    count = np.count_nonzero(rows[:, 0] >= 0)
    assert (rows[count:] == -1).all()
    return rows[:count]


@pytest.mark.parametrize("kind, layer", [("v2", v2), ("v3", v3)])
@pytest.mark.parametrize("least, nms", [(0.01, 0.45), (0.3, 0.2), (0, 1), (0.01, 0)])
def test_forward(kind, layer, least, nms):
    planes = bottoms()
    net = run(layer(f"confidence_threshold: {least} nms_threshold: {nms}"), proto.TEST, **planes)
    assert net.blobs["y"].shape == (1, 1, 3 * 2 * (15 + 60), 7)
    expected = reference(planes, kind, least, min(nms, 1 - 1e-9))  # the classes of one box have an overlap of 1
    assert 0 in (least, nms) or 4 < len(expected) < 150  # some candidates are suppressed
    np.testing.assert_allclose(found_in(net), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind, layer", [("v2", v2), ("v3", v3)])
def test_defaults(kind, layer):
    planes = bottoms()
    np.testing.assert_allclose(found_in(run(layer(), proto.TEST, **planes)), reference(planes, kind), 1e-4, 1e-5)


def test_one_plane():
    planes = {"a": bottoms()["a"]}
    net = run(v3(mask=MASK[:2], scales=[32], groups=1, bottoms="a"), proto.TEST, **planes)
    np.testing.assert_allclose(found_in(net), reference(planes, "v3"), rtol=1e-4, atol=1e-5)
    net = run(v2(bottoms="a"), proto.TEST, **planes)
    np.testing.assert_allclose(found_in(net), reference(planes, "v2"), rtol=1e-4, atol=1e-5)


def test_a_confidence_of_the_threshold():
    """It is found by the second version's rule but not by the third's."""
    x = np.full((1, 2, 5 + CLASSES, 1, 1), -100, np.float32)
    x[0, 0, :6] = [[[0]], [[0]], [[0]], [[0]], [[0]], [[100]]]
    x = x.reshape(1, -1, 1, 1)
    params = "confidence_threshold: 0.5"
    one = found_in(run(v2(params, bottoms="a"), proto.TEST, a=x))
    np.testing.assert_allclose(one, [[0, 1, 0.5, 0, -0.25, 1, 1.25]])
    none = run(v3(params, mask=[0, 1], scales=[32], groups=1, bottoms="a"), proto.TEST, a=x)
    assert len(found_in(none)) == 0


@pytest.mark.parametrize("layer", [v2, v3])
def test_nan_and_huge_numbers(layer):
    """A box whose confidence is NaN is not found, and one whose place is NaN suppresses no other. The rest stays the
    same."""
    planes = bottoms(images=2)
    before = found_in(run(layer("nms_threshold: 1"), proto.TEST, **planes))
    x = planes["b"].reshape(2, 2, 5 + CLASSES, 6, 10)
    x[1, 0, 4, 0, 0] = np.nan
    x[1, 0, 5:, 0, 1] = np.nan
    x[1, 1, 5:, 0, 1] = -np.inf
    x[1, 0, 4:6, 0, 2], x[1, 0, 2, 0, 2] = 1e30, 1e30  # in the whole row, and the rest of the image with it
    x[1, 0, 4:6, 0, 3], x[1, 0, 0, 0, 3] = 1e30, np.nan
    x[1, 0, 4, 0, 4] = -1e30
    after = found_in(run(layer("nms_threshold: 1"), proto.TEST, **planes))
    odd = ~np.isfinite(after).all(1)
    assert odd.sum() == 2
    np.testing.assert_array_equal(after[odd][:, :3], [[1, 1, 1]] * 2)
    np.testing.assert_array_equal(after[~odd][:, :3], before[: len(after) - 2][:, :3])


def test_a_class_that_is_nan():
    """With sigmoids the other classes still count. In a softmax one NaN makes all NaN."""
    x = np.zeros((1, 5 + CLASSES), np.float32)
    x[0, 4:] = [3, np.nan, 1, 2, 0]
    x = np.tile(x, 2).reshape(1, -1, 1, 1)
    found = found_in(run(v3(mask=[0, 1], scales=[32], groups=1, bottoms="a"), proto.TEST, a=x))
    np.testing.assert_allclose(found[:, 1:3], [[3, sigmoid(3.0) * sigmoid(2.0)]] * len(found), rtol=1e-6)
    assert len(found_in(run(v2(bottoms="a"), proto.TEST, a=x))) == 0


@pytest.mark.parametrize("layer, classes", [(v2, CLASSES), (v3, CLASSES), (v3, 11)])
def test_blocked(layer, classes):
    text = layer("confidence_threshold: 0.2") if layer is v2 else v3("confidence_threshold: 0.2", classes=classes)
    text = text.replace('bottom: "a"', 'bottom: "c"').replace('bottom: "b"', 'bottom: "d"')
    channels = 2 * (5 + classes)
    net = run_blocked(text, proto.TEST, size=(2, 3, 6, 10), c=channels, d=channels, passes=frozenset())
    plain = run(text, proto.TEST, c=net.blobs["c"].data, d=net.blobs["d"].data)
    assert len(found_in(net)) > 4
    np.testing.assert_array_equal(net.blobs["y"].data, plain.blobs["y"].data)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision(precision):
    """The tops of a bf16 net are decoded in float32."""
    planes = bottoms()
    before = "".join(
        f"""layer {{ name: "{name}" type: "Convolution" bottom: "x{name}" top: "{name}"
            convolution_param {{ num_output: 18 kernel_size: 1 bias_term: false }} }}"""
        for name in planes
    )
    text = net_text(before + v3("confidence_threshold: 0.2"), **{f"x{name}": x.shape for name, x in planes.items()})
    net = make_net(text, proto.TEST, precision=precision)
    for name, x in planes.items():
        net.params[name][0].set(np.eye(18, dtype=np.float32).reshape(18, 18, 1, 1))
        net.blobs[f"x{name}"].set(x)
    net.forward()
    rounded = {name: net.blobs[name].data for name in planes}
    np.testing.assert_allclose(found_in(net), reference(rounded, "v3", 0.2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        (v3(), {"a": (2, 17, 3, 5)}, "layer 'layer' (Yolov3DetectionOutput): expected predictions (2, 18, H, W), got"),
        (v3(), {"b": (1, 18, 6, 10)}, "expected predictions (2, 18, H, W), got (1, 18, 6, 10)"),
        (v2(), {"a": (2, 18, 15)}, "layer 'layer' (YoloDetectionOutput): expected predictions (2, 18, H, W), got"),
        (v3(groups=3), {}, "expected mask_group_num to be the number of bottoms, 2, got 3"),
        (v3(mask=[0, 1, 2]), {}, "expected 4 numbers as mask, num_box for each bottom, got [0, 1, 2]"),
        (v3(mask=[0, 1, 2, 5]), {}, "expected numbers of the 5 biases as mask, got [0, 1, 2, 5]"),
        (v3(scales=[32]), {}, "expected an anchors_scale above 0 for each bottom, got [32]"),
        (v3(scales=[32, 0]), {}, "expected an anchors_scale above 0 for each bottom, got [32, 0]"),
        (v3(biases=[1, 2, 3]), {}, "expected biases above 0, a width and a height of each, got [1, 2, 3]"),
        (v2(biases=[1, -2, 3, 4]), {}, "expected biases above 0, a width and a height of each"),
        (v2(biases=[1, 2]), {}, "expected 4 biases, two for each box, got [1, 2]"),
        (v2("coords: 5"), {}, "expected coords 4, got 5"),
        (v2("nms_threshold: 1.5"), {}, "expected nms_threshold from 0 to 1, got 1.5"),
        (v3("nms_threshold: -0.1"), {}, "expected nms_threshold from 0 to 1, got -0.1"),
        (v2().replace("num_classes: 4", ""), {}, "num_classes is missing"),
        (v2().replace("num_box: 2", "num_box: 0"), {}, "expected num_classes and num_box of at least 1, got 4 and 0"),
    ],
)
def test_errors(text, shapes, message):
    assert message in error_of(text, proto.TEST, **{"a": (2, 18, 3, 5), "b": (2, 18, 6, 10), **shapes})
