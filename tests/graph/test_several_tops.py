"""Gradients where only some tops of a layer lead to a loss, or a layer reads a loss or a blob with a loss_weight. They
are compared with differences of the loss, in a net without force_backward."""

import numpy as np
import pytest

from engine.config import parse_net
from engine.net import Counters, Net, NetOptions

RANDOM = np.random.default_rng(8)
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 }'


def given(**shapes: tuple[int, ...]) -> str:
    text = ""
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {dim}" for dim in shape)
        text += f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'
    return text


def layer(name: str, type: str, bottoms: str, tops: str, more: str = "") -> str:
    blobs = [f'bottom: "{each}"' for each in bottoms.split()] + [f'top: "{each}"' for each in tops.split()]
    return f'layer {{ name: "{name}" type: "{type}" {" ".join(blobs)} {more} }}\n'


def ip(name: str, bottom: str, outputs: int = 5, more: str = "") -> str:
    return layer(
        name, "InnerProduct", bottom, name, f"{more} inner_product_param {{ num_output: {outputs} {FILLERS} }}"
    )


def conv(name: str, bottoms: str, tops: str, more: str = "", type: str = "Convolution") -> str:
    param = f"convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 {FILLERS} {more} }}"
    return layer(name, type, bottoms, tops, param)


def euclid(bottom: str, target: str = "t", more: str = "") -> str:
    return layer("loss", "EuclideanLoss", f"{bottom} {target}", "loss", more)


def built(text: str, **options) -> Net:
    net = Net(parse_net(text), options=NetOptions(**options))
    for blob in net.inputs:
        values = RANDOM.normal(size=blob.shape)
        if blob.name in ("select", "cont"):
            values = np.ones(blob.shape) * (np.arange(len(values)) % 3 != 1 if blob.name == "select" else 1)
        net.blobs[blob.name].set(values.astype(np.float32))
    return net


def total(net: Net) -> float:
    net.forward()
    return sum(weight * float(tensor.get().astype(np.float64).sum()) for tensor, weight in net.loss_tensors())


def check(text: str, idle: str = "") -> None:
    """Checks the gradients of all parameters. Those of the layers in `idle` must be 0."""
    net, step = built(text), 1e-2
    net.forward()
    net.backward()
    found = {(name, i): t.diff.get() for name, params in net.params.items() for i, t in enumerate(params)}
    for (name, i), diff in found.items():
        tensor = net.params[name][i]
        values, wanted = tensor.get(), np.zeros(diff.size)
        for at in range(diff.size):
            moved = np.tile(values.ravel(), (2, 1))
            moved[0, at] += step
            moved[1, at] -= step
            losses = []
            for each in moved:
                tensor.set(each)
                losses.append(total(net))
            wanted[at] = (losses[0] - losses[1]) / (2 * step)
        tensor.set(values.ravel())
        if name in idle.split():
            assert not diff.any(), name
        else:
            assert np.abs(wanted).max() > 1e-3, name
            np.testing.assert_allclose(diff.ravel(), wanted, atol=5e-3 * np.abs(wanted).max(), err_msg=f"{name}[{i}]")


PICTURES = given(x=(2, 3, 5, 5), z=(2, 3, 5, 5), t=(2, 4, 5, 5))
ROWS = given(x=(6, 3), z=(6, 3), t=(6, 2), select=(6,))
SILENT = layer("silence", "Silence", "second", "")


@pytest.mark.parametrize("type", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("more", ["", "relu: true negative_slope: 0.3"])
@pytest.mark.parametrize("reader", [SILENT, ""])
def test_convolutions_of_pairs(type, more, reader):
    both = conv("a", "x", "a") + conv("b", "z", "b") + conv("pairs", "a b", "first second", more, type)
    check(PICTURES + both + reader + euclid("first"), idle="b")


@pytest.mark.parametrize(
    ("type", "more"),
    [("Filter", ""), ("Gather", ""), ("Scatter", ""), ("Mean", "mean_param { operation: SUBTRACT value: 3 }")],
)
def test_other_layers_of_pairs(type, more):
    if type == "Mean":
        text = PICTURES + conv("a", "x", "a") + conv("b", "z", "b")
    else:
        text = ROWS + ip("a", "x", 2) + ip("b", "z", 2)
    bottoms = "a b select" if type == "Filter" else "a b"
    check(text + layer("pairs", type, bottoms, "first second", more) + SILENT + euclid("first"), idle="b")


def test_the_last_state_of_a_recurrent_layer():
    """Only the last state leads to the loss, as in an encoder, and the sequence of tops does not."""
    inputs = given(x=(4, 2, 3), cont=(4, 2), h=(1, 2, 3), t=(1, 2, 3))
    more = f"recurrent_param {{ num_output: 3 expose_hidden: true {FILLERS} }}"
    net = built(inputs + layer("rnn", "RNN", "x cont h", "second state", more) + SILENT + euclid("state"))
    net.forward()
    net.backward()
    moved = [bool(each.diff.get().any()) for each in net.params["rnn"]]
    assert moved == [True, True, True, False, False]  # not those from the state to the top sequence


def test_a_length_whose_gradient_does_not_count():
    text = given(x=(6, 3), t=(6, 1)) + ip("a", "x", 4) + layer("unit", "Normalize", "a", "second length")
    check(text + SILENT + ip("b", "length", 1) + euclid("b"), idle="a")


def test_statistics_of_a_batch_lead_nowhere():
    more = 'bn_param { scale_filler { type: "constant" value: 1 } shift_filler { type: "constant" } }'
    text = given(x=(4, 3, 2, 2), t=(1, 2)) + conv("a", "x", "a") + layer("bn", "BN", "a", "second mean", more)
    check(text + SILENT + ip("b", "mean", 2) + euclid("b"), idle="a bn")


def test_centers_learn():
    """The "gradient" of the centers is how far CenterLoss moves them. It is no derivative, so check() cannot compare
    it."""
    text = given(x=(6, 3), label=(6,)) + ip("a", "x", 4)
    more = 'center_loss_param { num_output: 3 center_filler { type: "xavier" } }'
    net = built(text + layer("centers", "CenterLoss", "a label", "loss", more))
    net.blobs["label"].set(np.array([0, 1, 1, 0, 1, 1], np.float32))
    net.forward()
    net.backward()
    moves = net.params["centers"][0].diff.get()
    assert moves[0].any() and moves[1].any() and not moves[2].any()
    assert net.params["a"][0].diff.get().any()


def test_a_weighted_blob_that_is_read_on():
    """As in Caffe, the weight goes to a top of a Split."""
    text = given(x=(6, 3), t=(6, 2), c=(6, 4)) + ip("a", "x", 4, "loss_weight: 0.25") + ip("b", "a", 2) + euclid("b")
    check(text)
    check(text + layer("more", "EuclideanLoss", "a c", "more"))  # with two readers there is a Split already


def test_a_weighted_blob_that_the_text_splits():
    """The build must not change the text's layers, since another net may be built of them."""
    text = given(x=(6, 3), t=(6, 2)) + ip("a", "x", 2, "loss_weight: 0.25") + layer("both", "Split", "a", "p q")
    text += euclid("p") + layer("more", "EuclideanLoss", "q t", "more")
    check(text)
    config = parse_net(text)
    assert [sorted(Net(config).outputs()) for _ in range(2)] == [["loss", "more"]] * 2


def test_a_loss_that_is_read_on():
    """The loss may be weighed by a learned uncertainty, for instance. Its gradient is then what the readers send."""
    text = given(x=(6, 3), t=(6, 2)) + ip("a", "x", 2)
    power = layer("half", "Power", "loss", "half", "loss_weight: 1 power_param { power: 0.5 scale: 3 }")
    check(text + euclid("a") + power)
    check(text + euclid("a", more="loss_weight: 0") + power)
    check(text + euclid("a", more="loss_weight: 0.7") + power)


@pytest.mark.parametrize(
    ("type", "more"),
    [
        ("SoftmaxWithLoss", ""),
        ("SigmoidCrossEntropyLoss", ""),
        ("HingeLoss", "hinge_loss_param { norm: L2 }"),
        ("MultinomialLogisticLoss", ""),
        ("L1Loss", ""),
        ("SmoothL1Loss", ""),
        ("DiceLoss", ""),
    ],
)
def test_every_kind_of_loss_takes_what_its_reader_sends(type, more):
    shape = (6, 4) if type in ("SigmoidCrossEntropyLoss", "L1Loss", "SmoothL1Loss", "DiceLoss") else (6,)
    text = given(x=(6, 3), label=shape) + ip("a", "x", 4)
    nets = []
    for reader in ("", layer("twice", "Power", "loss", "twice", "loss_weight: 1 power_param { scale: 2 }")):
        net = built(text + layer("loss", type, "a label", "loss", more) + reader)
        net.blobs["x"].set(np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3))
        net.blobs["label"].set((np.arange(np.prod(shape)) % 2).astype(np.float32).reshape(shape))
        net.forward()
        net.backward()
        nets.append(net)
    plain, read = (net.params["a"][0].diff.get() for net in nets)
    assert plain.any()
    np.testing.assert_allclose(read, 2 * plain, rtol=1e-6)


def test_probabilities_of_a_loss_that_are_read_on():
    """As in Caffe, SoftmaxWithLoss ignores the gradient of its second top."""
    text = given(x=(6, 3), label=(6,), t=(6, 2)) + ip("a", "x", 4)
    text += layer("softmax", "SoftmaxWithLoss", "a label", "cost probabilities")
    alone, both = built(text), built(text + ip("b", "probabilities", 2) + euclid("b"))
    for net in (alone, both):
        for name in ("x", "label"):
            net.blobs[name].set(np.arange(np.prod(net.blobs[name].shape)) % 4 if name == "x" else np.arange(6) % 4)
        net.forward()
        net.backward()
    assert np.array_equal(alone.params["a"][0].diff.get(), both.params["a"][0].diff.get())
    assert both.params["b"][0].diff.get().any()


def test_propagate_down_true_asks_for_a_gradient():
    """The gradient of the input shows, for instance, which pixels a score depends on."""
    text = given(x=(6, 3), t=(6, 2)) + ip("a", "x", 2, "{}") + euclid("a")
    assert built(text.replace("{}", "")).blobs["x"].diff is None
    net = built(text.replace("{}", "propagate_down: true"), keep_all=True)
    net.forward()
    net.backward()
    slope = (net.blobs["a"].data - net.blobs["t"].data) / 6
    np.testing.assert_allclose(net.blobs["x"].diff, slope @ net.params["a"][0].get(), rtol=1e-4, atol=1e-6)


def test_regions_of_two_ranks_drop_other_elements():
    """The rows are regions: several for each sample, or a number that is no multiple of that of samples."""
    param = "dropout_param { dropout_ratio: 0.5 }"
    for rows in (8, 7):
        net = built(given(x=(2, 3), r=(rows, 64)) + layer("drop", "Dropout", "r", "kept", param))
        net.blobs["r"].set(np.ones((rows, 64), np.float32))
        masks = [net.forward(Counters(0, first))["kept"].copy() for first in (0, 2)]  # two ranks of two samples each
        kept = np.concatenate(masks)
        assert len({row.tobytes() for row in kept}) == 2 * rows
    one = built(given(x=(4, 3), r=(16, 64)) + layer("drop", "Dropout", "r", "kept", param))
    one.blobs["r"].set(np.ones((16, 64), np.float32))
    two = built(given(x=(2, 3), r=(8, 64)) + layer("drop", "Dropout", "r", "kept", param))
    two.blobs["r"].set(np.ones((8, 64), np.float32))
    halves = [two.forward(Counters(0, first))["kept"].copy() for first in (0, 2)]
    assert np.array_equal(one.forward(Counters(0, 0))["kept"], np.concatenate(halves))
