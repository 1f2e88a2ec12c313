import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.boxes import Anchors, overlap, random_boxes, sigmoid, softmax, truth_blob
from tests.layers.harness import error_of, run

SIDE, CLASSES, BIASES = 3, 4, [1.0, 1.5, 2.0, 0.8]
TRUTH = [(0, 1), (0, 2), (1, 4)]  # image and label of each true box; the third image has none
SCALES = {"object_scale": 5, "noobject_scale": 0.7, "class_scale": 1.5, "coord_scale": 2}


def layer(params="", biases=BIASES):
    biases = " ".join(f"biases: {bias}" for bias in biases)
    scales = " ".join(f"{name}: {value}" for name, value in SCALES.items())
    return f"""layer {{ name: "layer" type: "RegionLoss" bottom: "x" bottom: "truth" top: "loss" loss_weight: 2
        region_loss_param {{ side: {SIDE} num_class: {CLASSES} num: 2 {biases} {scales} {params} }} }}"""


def bottoms():
    # a seed of its own: the predicted sizes must choose other anchors than the true boxes do
    random = np.random.default_rng(7)
    truth = [(n, label, box, 0) for (n, label), box in zip(TRUTH, random_boxes(random, len(TRUTH)))]
    x = random.normal(size=(3, 2 * (5 + CLASSES), SIDE, SIDE)).astype(np.float32)
    return {"x": x, "truth": truth_blob(truth)}


def rounded(d):
    return d**2 / 2 if abs(d) < 1 else abs(d) - 0.5


def choose(x, truth, thresh, bias_match):
    """Returns which boxes predict which true box, and which predict background. The gradient takes these as
    constants."""
    grid = Anchors(x, CLASSES, BIASES)
    nothing, chosen = [], {}
    for n in range(len(x)):
        truths = [(int(row[1]) - 1, row[3:7].astype(np.float64)) for row in truth[0, 0] if row[0] == n]
        for place in np.ndindex(2, SIDE, SIDE):
            if all(overlap(grid.box(n, *place), box) <= thresh for _, box in truths):
                nothing.append((n, *place))
        for label, box in truths:
            x_, y_, w, h = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]
            row, column = int(y_ * SIDE), int(x_ * SIDE)
            sizes = (
                grid.sizes
                if bias_match
                else [np.exp(grid.values[n, a, row, column, 2:4]) * grid.sizes[a] for a in range(2)]
            )
            anchor = int(np.argmax([overlap([0, 0, *size], [0, 0, w, h]) for size in sizes]))
            offsets = [
                x_ * SIDE - column,
                y_ * SIDE - row,
                *np.log([w / grid.sizes[anchor][0], h / grid.sizes[anchor][1]]),
            ]
            chosen[(n, anchor, row, column)] = (label, offsets)
    return [place for place in nothing if place not in chosen], chosen


def objective(x, nothing, chosen):
    values = Anchors(x, CLASSES, BIASES).values
    total = sum(SCALES["noobject_scale"] * sigmoid(values[place][4]) ** 2 / 2 for place in nothing)
    for place, (label, offsets) in chosen.items():
        own = values[place]
        placed = [*sigmoid(own[:2]), *own[2:4]]
        total += SCALES["coord_scale"] * sum(rounded(a - b) for a, b in zip(placed, offsets))
        total += SCALES["object_scale"] * (1 - sigmoid(own[4])) ** 4 / 2
        total -= SCALES["class_scale"] * np.log(softmax(own[5:])[label])
    return total


def slopes(x, nothing, chosen, step=1e-5):
    """Returns differences in float64."""
    x, result = x.astype(np.float64), np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(objective(moved, nothing, chosen))
        result[index] = (values[0] - values[1]) / (2 * step)
    return result


@pytest.mark.parametrize("bias_match", [True, False])
@pytest.mark.parametrize("thresh", [0.1, 0.6])
def test_gradient_and_the_number_that_is_shown(thresh, bias_match):
    values = bottoms()
    net = run(layer(f"thresh: {thresh} bias_match: {int(bias_match)}"), **values)
    net.backward()
    expected = slopes(values["x"], *choose(**values, thresh=thresh, bias_match=bias_match))
    np.testing.assert_allclose(net.blobs["x"].diff, 2 * expected / 3, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(net.blobs["loss"].data, (expected**2).sum(), rtol=1e-4)


def test_truth_at_the_border_and_anchors_that_fit_alike():
    """A box whose center is on the last edge belongs to the last pixel. Of two anchors that fit alike the first is
    taken."""
    values = bottoms() | {"truth": truth_blob([(0, 1, (0.9, 0.9, 1.1, 1.1), 0)])}
    net = run(layer("thresh: 0.99", biases=[1, 1, 1, 1]), **values)
    net.backward()
    of_x = net.blobs["x"].diff.reshape(3, 2, 5 + CLASSES, SIDE, SIDE)[:, :, 0]
    assert np.argwhere(of_x).tolist() == [[0, 0, 2, 2]]


def test_rows_of_a_forks_data_layer_and_a_plane_of_other_sides():
    """Rows are (N, 1, M, 5) of class, center, width and height. The plane need not have the sides that `side` says."""
    truth = bottoms()["truth"]
    rows = np.zeros((3, 1, 4, 5), np.float32)
    for i, (n, label, _, x1, y1, x2, y2, _) in enumerate(truth[0, 0, : len(TRUTH)]):
        rows[int(n), 0, i] = [label - 1, (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
    x = np.random.default_rng(8).normal(size=(3, 2 * (5 + CLASSES), 4, 7)).astype(np.float32)
    nets = [run(layer(), x=x, truth=each) for each in (truth, rows)]
    for net in nets:
        net.backward()
    np.testing.assert_allclose(*(net.blobs["loss"].data for net in nets), rtol=1e-5)
    np.testing.assert_allclose(*(net.blobs["x"].diff for net in nets), rtol=1e-4, atol=1e-5)


def test_blocked():
    truth = bottoms()["truth"]
    text = layer().replace('bottom: "x"', 'bottom: "c"').replace(f"num_class: {CLASSES}", "num_class: 11")
    net = run_blocked(text, size=(3, 3, SIDE, SIDE), plain={"truth": truth}, c=32)
    plain = run(text.replace('bottom: "c"', 'bottom: "x"'), x=net.blobs["c"].data, truth=truth)
    np.testing.assert_allclose(net.blobs["loss"].data, plain.blobs["loss"].data, rtol=1e-5)


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        (layer(), {"x": (2, 15, 3, 3)}, "layer 'layer' (RegionLoss): expected predictions ('N', 18, 3, 3), got"),
        (layer(), {"truth": (2, 8)}, "expected ground truth (1, 1, M, 8) or (2, 1, M, 5), got (2, 8)"),
        (layer(biases=[1.08, 2]), {}, "expected 4 biases above 0, width and height of each anchor, got [1.08, 2]"),
        (layer("coords: 5"), {}, "expected coords 4, got 5"),
        (layer("softmax_tree: 't'"), {}, "expected no softmax_tree, which is not supported"),
    ],
)
def test_errors(text, shapes, message):
    assert message in error_of(text, **{"x": (2, 18, 3, 3), "truth": (1, 1, 5, 8), **shapes})
