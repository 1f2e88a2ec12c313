import itertools

import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

RANDOM = np.random.default_rng(9)


def layer(kind="CTCLoss", params="", bottoms="x i l", weight=1.0):
    names = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f"""layer {{ name: "layer" type: "{kind}" {names} top: "y" loss_weight: {weight}
        ctc_loss_param {{ {params} }} }}"""


def probability(scores, labels, blank):
    """Tries all paths (T, C) that spell the labels, one by one. Returns the sum of their probabilities, and how often
    each class is taken."""
    softmax = np.exp(scores - scores.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    total, taken = 0.0, np.zeros_like(softmax)
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        spelt = [label for label, _ in itertools.groupby(path) if label != blank]
        if spelt == list(labels):
            each = np.prod(softmax[np.arange(len(path)), path])
            total += each
            taken[np.arange(len(path)), path] += each
    return total, softmax, taken


def reference(scores, times, spelt, blank):
    """Returns the loss, and the gradient of the sum of the sequences' losses."""
    loss, gradient = 0.0, np.zeros_like(scores)
    for n, (time, labels) in enumerate(zip(times, spelt)):
        total, softmax, taken = probability(scores[:time, n], labels, blank) if time else (1, 0, 0)
        if total:
            loss -= np.log(total)
            gradient[:time, n] = softmax - taken / total
    return loss / scores.shape[1], gradient


TIMES, SPELT = [5, 4, 2, 5, 3], [[0, 1], [1, 1], [2], [0, 1, 2], [2, 2]]


def columns(labels, rows, end=-1.0):
    values = np.full((rows, len(labels)), end)
    for n, its in enumerate(labels):
        values[: len(its), n] = its
    return values


def indicators(times, rows):
    values = (np.arange(rows)[:, None] < np.array(times)).astype(float)
    values[0] = 0
    return values


def check(text, blank, x, times=TIMES, spelt=SPELT, **bottoms):
    loss, gradient = reference(x, times, spelt, blank)
    net = run(text, x=x, **bottoms)
    np.testing.assert_allclose(net.blobs["y"].data, loss, rtol=1e-5)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("end", [-1.0, 3.0])
def test_sequences_of_several_lengths(end):
    """Labels beyond a sequence's end are negative or, in some data, the blank."""
    x = RANDOM.normal(size=(5, 5, 4))
    check(layer(), 3, x, i=indicators(TIMES, 5), l=columns(SPELT, 5, end))


def test_a_blank_that_the_text_gives():
    x, spelt = RANDOM.normal(size=(5, 5, 4)), [[0, 3], [3, 3], [2], [0, 3, 2], [2, 2]]
    check(layer(params="blank_index: 1"), 1, x, spelt=spelt, i=indicators(TIMES, 5), l=columns(spelt, 5))


@pytest.mark.parametrize("extra", [(), (1, 1)])
def test_rows_of_labels(extra):
    x, times = 2 * RANDOM.normal(size=(5, 5, 4)), [5] * 5
    for kind, params, blank in [
        ("CtcLoss", "alphabet_size: 4 time_step: 5 blank_label: 3", 3),
        ("CtcLoss", "", 0),
        ("WarpCTCLoss", "", 0),
        ("WarpCTCLoss", "blank_index: 3", 3),
    ]:
        spelt = [[label + (blank == 0) for label in labels] for labels in SPELT]
        labels = columns(spelt, 3, blank).T.reshape(5, 3, *extra)
        check(layer(kind, params, "x l"), blank, x, times, spelt, l=labels)


def test_blanks_between_labels_are_none():
    x = RANDOM.normal(size=(5, 1, 4))
    check(layer("CtcLoss", "", "x l"), 0, x, [5], [[2, 3]], l=np.array([[0, 2, 0, 3]]))


def test_fewer_steps_than_the_scores_have():
    x = RANDOM.normal(size=(5, 2, 3))
    check(layer("CtcLoss", "time_step: 3", "x l"), 0, x, [3, 3], [[1], [2, 1]], l=np.array([[1, 0], [2, 1]]))


def test_labels_from_0_beside_indicators():
    x = RANDOM.normal(size=(5, 5, 4))
    spelt = [[label + 1 for label in labels] for labels in SPELT]
    given = {"i": indicators(TIMES, 5), "l": columns(SPELT, 5)}
    check(layer("WarpCTCLoss"), 0, x, spelt=spelt, **given)
    check(layer("WarpCTCLoss", "blank_index: 3"), 3, x, **given)


def test_lengths():
    x = RANDOM.normal(size=(5, 5, 4))
    numbers = np.array([len(labels) for labels in SPELT])
    text = layer("WarpCTCLoss", "blank_index: 3", "x t n l")
    check(text, 3, x, t=np.array(TIMES), n=numbers, l=columns(SPELT, 4, 0))


def test_sequences_that_are_not_there():
    """A sequence is not there if it has no steps or, with indicators, a single step and no labels."""
    x, spelt = RANDOM.normal(size=(5, 3, 4)), [[0, 1], [], []]
    check(layer(), 3, x, [5, 0, 0], spelt, i=indicators([5, 1, 1], 5), l=columns(spelt, 5))
    text = layer("WarpCTCLoss", "blank_index: 3", "x t n l")
    check(text, 3, x, [5, 0, 3], spelt, t=np.array([5, 0, 3]), n=np.array([2, 0, 0]), l=columns(spelt, 4, 0))


def test_what_no_path_can_spell_adds_nothing():
    x, spelt = RANDOM.normal(size=(3, 2, 4)), [[1, 2, 2], [1, 2]]  # the twos need a blank between them
    check(layer(), 3, x, [0, 3], [[], spelt[1]], i=indicators([3, 3], 3), l=columns(spelt, 3))


def test_gradients():
    x, labels = RANDOM.normal(size=(6, 1, 5)), np.array([[1, 1, 3]])
    text = layer("CtcLoss", "", "x l", weight=0.7)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_long_sequences():
    """The probabilities are too small for a float. With uniform scores the loss follows from the number of paths."""
    steps, classes = 400, 50
    x = np.zeros((steps, 1, classes))
    net = run(layer("CtcLoss", "", "x l"), x=x, l=np.arange(1, 5)[None])
    ways = np.zeros(9)  # number of ways to each place of the path
    ways[:2] = 1
    for _ in range(steps - 1):
        skip = np.where(np.arange(9) % 2 == 1, np.roll(ways, 2), 0)
        skip[:2] = 0
        ways = ways + np.concatenate([[0], ways[:-1]]) + skip
    expected = steps * np.log(classes) - np.log(ways[-2:].sum())
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff.sum(2), 0, atol=1e-4)


def test_labels_count_by_their_whole_part():
    """As in other losses, the fraction of a label is dropped. What is then the blank is no label."""
    x = RANDOM.normal(size=(5, 1, 4))
    check(layer("CtcLoss", "", "x l"), 0, x, [5], [[2, 3]], l=np.array([[2, 0.5, 3.7]]))


def test_scores_of_minus_infinity_add_nothing_where_they_leave_no_path():
    x = RANDOM.normal(size=(5, 3, 4))
    x[:, 1, 2] = x[2, 2, 1] = -np.inf
    spelt = [[1, 2], [1, 2], [1]]
    check(layer("CtcLoss", "", "x l"), 0, x, [5] * 3, spelt, l=columns(spelt, 2, 0).T)


@pytest.mark.parametrize("offset", [-1e5, 1e4, 1e6])
def test_what_is_added_to_all_scores_has_no_effect(offset):
    x = np.float32(RANDOM.normal(size=(5, 5, 4)) + offset).astype(np.float64)
    check(layer(), 3, x, i=indicators(TIMES, 5), l=columns(SPELT, 5))


@pytest.mark.parametrize("labels", [4, 900])
def test_tables_are_in_the_memory_plan(labels):
    """The plan has tables for as many labels as the steps can spell."""
    text = net_text(layer("CtcLoss", "", "x l"), x=(300, 8, 20), l=(8, labels))
    tables = 8 * 300 * (2 * min(labels, 300) + 1) * 8
    assert tables <= make_net(text).program.activation_bytes < tables + 2**20


def test_in_test_nets():
    text = net_text(layer("CtcLoss", "", "x l"), x=(5, 2, 4), l=(2, 2))
    net = make_net(text, proto.TEST)
    x, labels = RANDOM.normal(size=(5, 2, 4)), np.array([[1, 2], [3, 0]])
    net.blobs["x"].set(x)
    net.blobs["l"].set(labels)
    net.forward()
    np.testing.assert_allclose(net.blobs["y"].data, reference(x, [5, 5], [[1, 2], [3]], 0)[0], rtol=1e-5)


@pytest.mark.parametrize("label", [4, -1, np.nan, np.inf, 1e30])
def test_labels_beyond_the_alphabet(label):
    labels = np.array([[1, 0], [2, label]])
    with pytest.raises(DataError, match=r"layer 'layer': sequence 1 has label .*, but labels are in \[0, 4\)"):
        run(layer("CtcLoss", "", "x l"), x=np.zeros((5, 2, 4)), l=labels)


def test_more_labels_than_steps():
    with pytest.raises(DataError, match="layer 'layer': sequence 1 has 3 labels, but 2 steps of time"):
        run(layer(), x=np.zeros((4, 2, 4)), i=indicators([4, 2], 4), l=columns([[0], [0, 1, 2]], 4))


@pytest.mark.parametrize("number", [6, -1, np.nan, 1e30])
def test_lengths_beyond_the_blobs(number):
    text = layer("WarpCTCLoss", "", "x t n l")
    given = {"x": np.zeros((5, 2, 4)), "l": np.ones((4, 2))}
    with pytest.raises(DataError, match=r"sequence 1 is to have .* steps, but its blob has 5"):
        run(text, t=np.array([5, number]), n=np.array([1, 1]), **given)
    with pytest.raises(DataError, match=r"sequence 1 is to have .* labels, but its blob has 4"):
        run(text, t=np.array([5, 5]), n=np.array([1, number]), **given)


def test_errors():
    message = error_of(layer(), x=(5, 2), i=(5, 2), l=(5, 2))
    assert "layer 'layer' (CTCLoss): expected scores (T, N, C), of steps of time, sequences and classes" in message
    assert "expected indicators (5, 2), got (4, 2)" in error_of(layer(), x=(5, 2, 4), i=(4, 2), l=(5, 2))
    assert "expected labels (L, 2), got (5, 3)" in error_of(layer(), x=(5, 2, 4), i=(5, 2), l=(5, 3))
    shapes = {"x": (5, 2, 4), "l": (2, 3)}
    assert "expected labels (2, L), got (3, 3)" in error_of(layer("CtcLoss", "", "x l"), x=(5, 2, 4), l=(3, 3))
    assert "expected a blank in [0, 4)" in error_of(layer("CtcLoss", "blank_label: 4", "x l"), **shapes)
    assert "expected alphabet_size 4" in error_of(layer("CtcLoss", "alphabet_size: 5", "x l"), **shapes)
    assert "expected a time_step from 1 to 5" in error_of(layer("CtcLoss", "time_step: 6", "x l"), **shapes)
    message = error_of(layer("WarpCTCLoss", "", "x t n l"), x=(5, 2, 4), t=(3,), n=(2,), l=(4, 2))
    assert "expected lengths (2,), got (3,)" in message


@pytest.mark.parametrize(
    ("kind", "field", "bottoms"),
    [
        ("CTCLoss", "blank_label: 0", "x i l"),
        ("CTCLoss", "time_step: 5", "x i l"),
        ("WarpCTCLoss", "blank_label: 3", "x l"),
        ("WarpCTCLoss", "alphabet_size: 4", "x l"),
        ("CtcLoss", "blank_index: 3", "x l"),
    ],
)
def test_fields_of_another_type(kind, field, bottoms):
    """They would have no effect, so they are refused."""
    shapes = {"x": (5, 5, 4), "i": (5, 5), "l": (5, 5)}
    message = error_of(layer(kind, field, bottoms), **{name: shapes[name] for name in bottoms.split()})
    assert f"layer 'layer' ({kind}): {field.partition(':')[0]} is of another type; expected blank_" in message


@pytest.mark.parametrize("field", ["ignore_label: 3", "normalization: BATCH_SIZE"])
def test_loss_param(field):
    text = layer("CtcLoss", f"}} loss_param {{ {field}", "x l")
    message = error_of(text, x=(5, 2, 4), l=(2, 3))
    name = field.partition(":")[0]
    assert f"layer 'layer' (CtcLoss): {name}" in message and "has no effect here; take it out of loss_param" in message
