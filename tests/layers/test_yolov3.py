from functools import partial

import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.boxes import overlap, random_boxes, sigmoid, truth_blob
from tests.layers.harness import PRECISIONS, error_of, make_net, net_text, run

HEIGHT, WIDTH, CLASSES, SCALE = 3, 5, 4, 32
BIASES, MASK = [10, 14, 30, 25, 60, 33, 50, 45], [1, 3]
SCALES = {"object_scale": 5, "noobject_scale": 0.7, "class_scale": 1.5, "coord_scale": 2}
# image and label of each true box; the third image has none
LABELS = [(0, 1), (0, 2), (0, 4), (0, 3), (1, 4), (1, 1), (1, 3), (1, 2), (1, 2)]


def layer(params="", biases=BIASES, mask=MASK, x="x", classes=CLASSES):
    scales = " ".join(f"{name}: {value}" for name, value in SCALES.items())
    numbers = " ".join([*(f"biases: {bias}" for bias in biases), *(f"mask: {number}" for number in mask)])
    return f"""layer {{ name: "layer" type: "Yolov3" bottom: "{x}" bottom: "truth" top: "loss" loss_weight: 2
        yolov3_param {{ num_class: {classes} num: 2 anchors_scale: {SCALE} {scales} {numbers} {params} }} }}"""


def bottoms():
    random = np.random.default_rng(2)
    boxes = random_boxes(random, len(LABELS))
    boxes[5] = boxes[4] + np.float32(0.01)  # the same pixel and anchor, as where one object has two names
    x = random.normal(size=(3, 2 * (5 + CLASSES), HEIGHT, WIDTH)).astype(np.float32)
    return {"x": x, "truth": truth_blob([(n, label, box, 0) for (n, label), box in zip(LABELS, boxes)])}


def centered(truth, images=3, most=6):
    """Returns the same rows as the fork's data layer makes them."""
    rows, counts = np.zeros((images, 1, most, 5), np.float32), [0] * images
    for n, label, _, x1, y1, x2, y2, _ in truth[0, 0][truth[0, 0, :, 0] >= 0]:
        rows[int(n), 0, counts[int(n)]] = [label - 1, (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        counts[int(n)] += 1
    return rows


def apart(x):
    """Returns the predictions as (N, anchors, rows, columns, 5 + classes)."""
    return np.moveaxis(x.astype(np.float64).reshape(len(x), 2, 5 + CLASSES, HEIGHT, WIDTH), 2, -1)


SIZES = np.array(BIASES).reshape(-1, 2) / SCALE / [WIDTH, HEIGHT]  # as fractions of the image


def choose(x, truth, thresh):
    """Returns which boxes hold no object, and what the others hold. The gradient takes these as constants."""
    values, nothing, chosen = apart(x), [], {}
    for n in range(len(x)):
        truths = [(int(row[1]) - 1, row[3:7].astype(np.float64)) for row in truth[0, 0] if row[0] == n]
        for place in np.ndindex(2, HEIGHT, WIDTH):
            anchor, row, column = place
            own = values[(n, *place)]
            center = np.array([column + sigmoid(own[0]), row + sigmoid(own[1])]) / [WIDTH, HEIGHT]
            half = np.exp(own[2:4]) * SIZES[MASK[anchor]] / 2
            if all(overlap(np.concatenate([center - half, center + half]), box) <= thresh for _, box in truths):
                nothing.append((n, *place))
        for label, box in truths:
            x_, y_, w, h = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]
            best = int(np.argmax([overlap([0, 0, *size], [0, 0, w, h]) for size in SIZES]))
            if best not in MASK:
                continue
            row, column = int(y_ * HEIGHT), int(x_ * WIDTH)
            place = (n, MASK.index(best), row, column)
            offsets = [x_ * WIDTH - column, y_ * HEIGHT - row, *np.log(np.array([w, h]) / SIZES[best])]
            labels = chosen[place][0] if place in chosen else []
            chosen[place] = ([*labels, label], offsets, 2 - w * h)
    return [place for place in nothing if place not in chosen], chosen


def entropy(p, wanted):
    return -(wanted * np.log(p) + (1 - wanted) * np.log(1 - p))


def square(p, wanted):
    return (p - wanted) ** 2 / 2


def objective(x, nothing, chosen, squared, weights, boxes=True):
    """Returns the function whose derivative the layer's gradient is.

    Args:
        weights: of the classes of each chosen box.
        boxes: whether the terms of x, y, w and h count.
    """
    values, distance = apart(x), square if squared else entropy
    total = sum(distance(sigmoid(values[place][4]), 0) for place in nothing)
    for place, (labels, offsets, area) in chosen.items():
        own = values[place]
        scale = SCALES["coord_scale"] * area * boxes
        total += scale * sum(distance(sigmoid(own[i]), offsets[i]) for i in range(2))
        total += scale * sum(square(own[i], offsets[i]) for i in (2, 3))
        total += (SCALES["object_scale"] if squared else 1) * distance(sigmoid(own[4]), 1)
        for c, p in enumerate(sigmoid(own[5:])):
            # If a box has a second truth, only its class counts, and only once.
            weight = 1 if c in labels[1:] else SCALES["class_scale"] * weights[place]
            total += weight * distance(p, float(c in labels))
    return total


def slopes(function, x, step=1e-5):
    """Returns differences in float64."""
    x, result = x.astype(np.float64), np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(function(moved))
        result[index] = (values[0] - values[1]) / (2 * step)
    return result


@pytest.mark.parametrize("focal", [False, True])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("thresh", [0.1, 0.6])
def test_gradient_and_the_number_that_is_shown(thresh, squared, focal):
    values = bottoms()
    params = f"thresh: {thresh} use_logic_gradient: {str(squared).lower()} use_focal_loss: {str(focal).lower()}"
    net = run(layer(params), **values)
    net.backward()
    nothing, chosen = choose(**values, thresh=thresh)
    assert len(chosen) == 6  # the other true boxes have anchors of other planes
    assert any(len(labels) == 2 for labels, *_ in chosen.values())
    weights = dict.fromkeys(chosen, 1.0)
    if focal:
        for place, (labels, *_) in chosen.items():
            p = sigmoid(apart(values["x"])[place][5 + labels[0]])
            weights[place] = -0.5 * (1 - p) * (2 * p * np.log(p) + p - 1)
    expected = slopes(lambda x: objective(x, nothing, chosen, squared, weights), values["x"])
    np.testing.assert_allclose(net.blobs["x"].diff, 2 * expected / 3, rtol=1e-3, atol=1e-5)
    p = sigmoid(apart(values["x"]))
    inner = p * (1 - p) if squared else np.ones_like(p)
    inner[..., 2:4] = 1
    np.testing.assert_allclose(net.blobs["loss"].data, ((apart(expected) / inner) ** 2).sum() / 3, rtol=1e-3)


def hull(a, b):
    """Returns the area of the smallest box around two boxes x1, y1, x2, y2."""
    return (np.maximum(a[2:], b[2:]) - np.minimum(a[:2], b[:2])).prod()


def areas(a, b):
    return (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()


def cover(box, truth, enclosed):
    """Returns the overlap as the fork differentiates it, without a limit to the intersection, or GIOU."""
    shared = (np.minimum(box[2:], truth[2:]) - np.maximum(box[:2], truth[:2])).prod()
    union = areas(box, truth) - shared
    return shared / union - enclosed * (1 - union / hull(box, truth))


def claims(x, truth):
    """Yields (the place of a box, its four numbers, its edges, those of the truth) for each truth of this plane's
    anchors."""
    for row in truth[0, 0][truth[0, 0, :, 0] >= 0].astype(np.float64):
        box = row[3:7]
        best = int(np.argmax([overlap([0, 0, *size], [0, 0, *(box[2:] - box[:2])]) for size in SIZES]))
        if best not in MASK:
            continue
        pixel = ((box[:2] + box[2:]) / 2 * [WIDTH, HEIGHT]).astype(int)  # its column and its row
        place = (int(row[0]), MASK.index(best), pixel[1], pixel[0])
        own = x[place][:4]
        center, half = (pixel + sigmoid(own[:2])) / [WIDTH, HEIGHT], np.exp(own[2:]) * SIZES[best] / 2
        yield place, own, np.concatenate([center - half, center + half]), box


@pytest.mark.parametrize("kind", ["IOU", "GIOU"])
def test_overlaps(kind):
    values = bottoms()
    # the boxes of one image become small, and one of them lies apart from its truth
    values["x"][0, [2, 3, 11, 12]] -= 3
    net = run(layer(f"thresh: 0.6 iou_loss: {kind} iou_normalizer: 0.75"), **values)
    net.backward()
    nothing, chosen = choose(**values, thresh=0.6)
    weights = dict.fromkeys(chosen, 1.0)
    others = slopes(lambda x: objective(x, nothing, chosen, False, weights, boxes=False), values["x"])
    total, expected, seen = (others**2).sum(), apart(others), set()
    for place, own, box, truth in claims(apart(values["x"]), values["truth"]):
        left, top, right, bottom = slopes(partial(cover, truth=truth, enclosed=kind == "GIOU"), box)
        across, down = (right - left) / 2 * np.exp(own[2]), (bottom - top) / 2 * np.exp(own[3])
        expected[place][:4] = -0.75 * np.array([left + right, top + bottom, across, down])
        shared = overlap(box, truth)
        union = areas(box, truth) / (1 + shared)
        total += 0.75 * (1 - shared + 1 - union / hull(box, truth))
        seen.add(shared > 0)
    assert seen == {True, False}
    wanted = np.moveaxis(expected, -1, 2).reshape(values["x"].shape)
    np.testing.assert_allclose(net.blobs["x"].diff, 2 * wanted / 3, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(net.blobs["loss"].data, total / 3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["IOU", "GIOU"])
def test_overlaps_of_boxes_whose_areas_are_beyond_float32(kind):
    """Such boxes cover their truths, which are nothing beside them, so there is no slope."""
    found = []
    for logarithm in (20, 45, 85):
        values = bottoms()
        values["x"].reshape(3, 2, 5 + CLASSES, HEIGHT, WIDTH)[:, :, 2:4] = logarithm
        net = run(layer(f"iou_loss: {kind}"), **values)
        net.backward()
        assert np.abs(apart(net.blobs["x"].diff)[..., :4]).max() < 1e-6
        found.append((float(net.blobs["loss"].data), net.blobs["x"].diff.copy()))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        np.testing.assert_allclose(gradient, found[0][1], atol=1e-6)


def test_rows_of_the_forks_data_layer():
    values = bottoms()
    nets = [run(layer(), **values), run(layer(), x=values["x"], truth=centered(values["truth"]))]
    for net in nets:
        net.backward()
    np.testing.assert_allclose(*(net.blobs["loss"].data for net in nets), rtol=1e-5)
    np.testing.assert_allclose(*(net.blobs["x"].diff for net in nets), rtol=1e-4, atol=1e-5)
    assert net.blobs["truth"].diff is None or not net.blobs["truth"].diff.any()


def test_what_is_no_truth():
    """A true box without width or height, in either form, or of an image that is not in the batch."""
    x = bottoms()["x"]
    alone = run(layer(), x=x, truth=truth_blob([]))
    rows = [(0, 1, (0.2, 0.2, 0.2, 0.5), 0), (0, 1, (0.2, 0.2, 0.5, 0.2), 0), (7, 1, (0.2, 0.2, 0.5, 0.5), 0)]
    with_nan = np.full((3, 1, 2, 5), 0.3, np.float32)
    with_nan[:, 0, :, 3:] = [[np.nan, 0.3], [0.3, 0]]
    for truth in (truth_blob(rows), with_nan):
        net = run(layer(), x=x, truth=truth)
        net.backward()
        np.testing.assert_array_equal(net.blobs["loss"].data, alone.blobs["loss"].data)
        assert np.isfinite(net.blobs["x"].diff).all()


def test_truth_at_the_border():
    """A box whose center is on the last edge belongs to the last pixel."""
    net = run(layer(), x=bottoms()["x"], truth=truth_blob([(0, 1, (0.75, 0.75, 1.25, 1.25), 0)]))
    net.backward()
    of_x = apart(net.blobs["x"].diff)[..., 0]
    assert np.argwhere(of_x).tolist() == [[0, 1, HEIGHT - 1, WIDTH - 1]]


def test_nan_and_huge_numbers_stay_where_they_are():
    values = bottoms()
    before = run(layer(), **values)
    before.backward()
    x = values["x"].reshape(3, 2, 5 + CLASSES, HEIGHT, WIDTH)
    x[2, 0, 4, 0, 0], x[2, 1, 2, 0, 1], x[2, 1, 4, 2, 2] = np.nan, 1e30, -1e30
    after = run(layer(), **values)
    after.backward()
    gradient = after.blobs["x"].diff
    assert np.isnan(gradient).sum() == 1
    changed = gradient != before.blobs["x"].diff
    assert np.argwhere(changed.reshape(x.shape)).tolist() == [[2, 0, 4, 0, 0], [2, 1, 4, 2, 2]]


@pytest.mark.parametrize("classes", [11, 3])
def test_blocked(classes):
    truth = bottoms()["truth"]
    truth[0, 0, :, 1] = np.minimum(truth[0, 0, :, 1], 3)
    text, channels = layer(x="c", classes=classes), 2 * (5 + classes)
    net = run_blocked(text, size=(3, 3, HEIGHT, WIDTH), plain={"truth": truth}, c=channels)
    plain = run(text.replace('bottom: "c"', 'bottom: "x"'), x=net.blobs["c"].data, truth=truth)
    plain.backward()
    np.testing.assert_allclose(net.blobs["loss"].data, plain.blobs["loss"].data, rtol=1e-5)
    expected = plain.blobs["x"].diff * net.blobs["loss"].diff / 2  # run_blocked gives outputs random gradients
    np.testing.assert_allclose(net.blobs["c"].diff, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision(precision):
    """The loss of a bf16 net is computed in float32."""
    values = bottoms()
    before = """layer { name: "c" type: "Convolution" bottom: "x" top: "c"
        convolution_param { num_output: 18 kernel_size: 1 bias_term: false } }"""
    text = net_text(before + layer(x="c"), **{name: value.shape for name, value in values.items()})
    net = make_net(text, precision=precision)
    net.params["c"][0].set(np.eye(18, dtype=np.float32).reshape(18, 18, 1, 1))
    for name, value in values.items():
        net.blobs[name].set(value)
    net.forward()
    net.backward()
    plain = run(layer(), x=net.blobs["c"].data, truth=values["truth"])
    plain.backward()
    np.testing.assert_allclose(net.blobs["loss"].data, plain.blobs["loss"].data, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["x"].diff, plain.blobs["x"].diff, rtol=0.01, atol=0.01)


def test_labels_out_of_range():
    x = bottoms()["x"]
    with pytest.raises(Exception, match=r"row 1 of the ground truth has label 5, expected one of \[0, 5\)"):
        run(layer(), x=x, truth=truth_blob([(0, 1, (0.2, 0.2, 0.5, 0.5), 0), (1, 5, (0.2, 0.2, 0.5, 0.5), 0)]))
    truth = np.zeros((3, 1, 2, 5), np.float32)
    truth[2, 0, 1] = [4, 0.5, 0.5, 0.2, 0.2]
    with pytest.raises(Exception, match=r"row 1 of the ground truth of image 2 has label 4, expected one of \[0, 4\)"):
        run(layer(), x=x, truth=truth)


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        (layer(), {"x": (2, 15, 3, 3)}, "layer 'layer' (Yolov3): expected predictions ('N', 18, 3, 3), got"),
        (layer(), {"x": (2, 18, 9)}, "expected predictions ('N', 18, 'H', 'W'), got (2, 18, 9)"),
        (layer(), {"truth": (2, 8)}, "expected ground truth (1, 1, M, 8) or (2, 1, M, 5), got (2, 8)"),
        (layer(), {"truth": (1, 1, 5, 5)}, "(1, 1, M, 8) or (2, 1, M, 5), got (1, 1, 5, 5)"),
        (layer(biases=[1.08, 2, 3]), {}, "above 0, a width and a height of each, got [1.08, 2, 3]"),
        (layer(biases=[]), {}, "expected biases above 0, a width and a height of each"),
        (layer(mask=[0]), {}, "expected 2 numbers of the 4 biases as mask, got [0]"),
        (layer(mask=[0, 4]), {}, "expected 2 numbers of the 4 biases as mask, got [0, 4]"),
        (layer().replace("anchors_scale: 32", "anchors_scale: 0"), {}, "expected anchors_scale above 0, got 0"),
        (layer("iou_loss: GIOU use_logic_gradient: true"), {}, "expected iou_loss: MSE with use_logic_gradient; with"),
    ],
)
def test_errors(text, shapes, message):
    assert message in error_of(text, **{"x": (2, 18, 3, 3), "truth": (1, 1, 5, 8), **shapes})
