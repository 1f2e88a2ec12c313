"""Convolutions by Winograd's algorithm compute what oneDNN's kernels compute, forward and backward."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.host import _core
from engine.layers import convolution, kernels
from engine.net import PASSES, Net, NetOptions
from engine.net.measure import Trial
from tests.layers.harness import error_of, inputs, make_net, needs_bf16, net_text, set_top_diff

pytestmark = pytest.mark.skipif(not _core.winograd_lanes("f32"), reason="this processor has no AVX2")

RELU = ' layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
NORM = ' layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" }'
SUM = ' layer { name: "sum" type: "Eltwise" bottom: "y" bottom: "z" top: "s" }'

CASES = {  # By name: the shape of x, and the arguments of conv().
    "whole tiles": ((2, 32, 8, 8), dict(outputs=48)),
    "parts of tiles": ((3, 64, 7, 9), dict(outputs=32)),
    "groups": ((2, 96, 13, 13), dict(outputs=64, group=2)),
    "no padding": ((1, 64, 14, 15), dict(outputs=64, pad=0)),
    "wide padding": ((2, 32, 6, 6), dict(outputs=32, pad=2)),
    "several chunks": ((11, 128, 20, 20), dict(outputs=64)),
    "several chunks and groups": ((11, 128, 20, 20), dict(outputs=128, group=2)),
    "5 x 5": ((2, 32, 8, 12), dict(outputs=48, kernel=5, pad=2)),
    "5 x 5, groups and parts of tiles": ((3, 96, 13, 11), dict(outputs=64, kernel=5, pad=2, group=2)),
    "5 x 5, no padding": ((2, 32, 14, 15), dict(outputs=32, kernel=5, pad=0)),
    "5 x 5, little padding": ((2, 32, 9, 8), dict(outputs=32, kernel=5, pad=1)),
    "5 x 5, wide padding": ((2, 16, 5, 6), dict(outputs=32, kernel=5, pad=4)),
    "5 x 5, several chunks": ((11, 128, 20, 20), dict(outputs=64, kernel=5, pad=2)),
}


def conv(
    outputs: int, algorithm: str = "auto", kernel: int = 3, pad: int = 1, group: int = 1, bias: bool = True
) -> str:
    return f"""layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {{
        num_output: {outputs} kernel_size: {kernel} pad: {pad} group: {group} bias_term: {str(bias).lower()}
        conv_algorithm: "{algorithm}" weight_filler {{ type: "msra" }} bias_filler {{ type: "uniform" }} }} }}"""


TOLERANCE = 5e-6  # of the norm; oneDNN's direct kernels are within 3e-7


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(convolution, "FEWEST_TILES", 1)


def close(values: np.ndarray, expected: np.ndarray) -> bool:
    return np.linalg.norm(values - expected) <= TOLERANCE * np.linalg.norm(expected)


def results(algorithm: str, case: str, behind: str = "", bias: bool = True, passes: int = 1) -> dict[str, np.ndarray]:
    """Returns the top and the gradients after `passes` backward passes, which accumulate."""
    shape, what = CASES[case]
    text = conv(algorithm=algorithm, bias=bias, **what)
    net = make_net(net_text(text + behind, x=shape), proto.TRAIN, accumulate=passes > 1)
    assert ("winograd" in net.program.implementation(0)) == (algorithm != "direct")
    generator = np.random.default_rng(3)
    inputs(net)["x"].set(generator.standard_normal(shape, np.float32))
    y = net.forward()["y"]
    set_top_diff(net, "y", generator.standard_normal(y.shape, np.float32))
    net.program.zero_gradients()
    for _ in range(passes):
        net.program.backward()
    found = {"y": y, "dx": inputs(net)["x"].diff}
    return found | {placed.name: placed.tensor.diff.get() for placed in net.parameters}


@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients(case):
    expected = results("direct", case)
    for what, values in results("winograd", case).items():
        assert close(values, expected[what]), what


@pytest.mark.parametrize(("kernel", "blocks", "size", "by_winograd"), [
    (3, 2, 8, True), (3, 1, 8, False), (5, 1, 8, True), (5, 1, 6, True), (5, 1, 5, False), (3, 2, 5, False),
])  # fmt: skip
def test_the_rule(kernel, blocks, size, by_winograd):
    """Measurements say: it pays if tiles are at least half full, with two blocks of channels or, for kernels of 5 x 5,
    one."""
    shape = (2, blocks * _core.winograd_lanes("f32"), size, size)
    net = make_net(net_text(conv(32, kernel=kernel, pad=kernel // 2), x=shape), proto.TRAIN)
    (op,) = net.builder.asked
    assert op.choice == (dict.fromkeys(kernels.PASSES, "winograd") if by_winograd else {})


RULE = [(8, 64, 3), (8, 32, 2), (8, 16, 0), (7, 64, 1), (6, 64, 0), (14, 480, 3), (14, 448, 1), (7, 480, 3)]


@needs_bf16
@pytest.mark.parametrize(("size", "channels", "passes"), RULE)
def test_the_rule_in_bf16(size, channels, passes):
    """Measured on processors without AMX. With whole tiles and many channels all passes use it; with very many, tiles
    need only be mostly whole. With fewer channels, the gradient of weights does, and forward if tiles are whole. The
    remaining gradients of weights use the kernel of pairs."""
    text = conv(64)
    net = make_net(net_text(text, x=(2, channels, size, size)), proto.TRAIN, precision="bf16")
    (op,) = net.builder.asked
    of_winograd = [(), (kernels.WEIGHTS,), (kernels.FORWARD, kernels.WEIGHTS), kernels.PASSES][passes]
    expected = {kernels.WEIGHTS: "pairs"} | dict.fromkeys(of_winograd, "winograd")
    assert op.choice == ({} if _core.has_amx() else expected)


PAIRS = [(1, 32, 32, True), (1, 16, 64, False), (1, 64, 16, False), (3, 16, 64, True), (3, 64, 48, False)]


@needs_bf16
@pytest.mark.parametrize(("kernel", "channels", "outputs", "pays"), PAIRS)
def test_the_rule_for_pairs(kernel, channels, outputs, pays):
    """Measurements say: it does not pay if few products share what the kernel prepares."""
    text = conv(outputs, kernel=kernel)
    net = make_net(net_text(text, x=(2, channels, 5, 5)), proto.TRAIN, precision="bf16")
    (op,) = net.builder.asked
    assert op.choice == ({kernels.WEIGHTS: "pairs"} if pays and not _core.has_amx() else {})


def test_relu_without_bias():
    found, expected = (results(algorithm, "whole tiles", RELU, bias=False) for algorithm in ("auto", "direct"))
    assert close(found["y"], expected["y"])
    wrong = (found["y"] > 0) != (expected["y"] > 0)  # where the result is rounding alone, its sign is arbitrary
    assert wrong.mean() < 1e-4
    if not wrong.any():
        assert all(close(found[what], values) for what, values in expected.items())


@pytest.mark.parametrize("activation", ['type: "ELU" elu_param { alpha: 0.5 }', 'type: "TanH"', 'type: "ReLU6"'])
def test_other_activations(activation):
    behind = f' layer {{ name: "f" bottom: "y" top: "y" {activation} }}'
    found, expected = (results(algorithm, "parts of tiles", behind) for algorithm in ("auto", "direct"))
    assert close(found["y"], expected["y"])
    if "ReLU6" not in activation:  # at the kinks of ReLU6 rounding may decide the gradient
        assert all(close(found[what], values) for what, values in expected.items())


def test_relu_leaves_what_is_no_number():
    shape, what = CASES["whole tiles"]
    text = conv(**what) + RELU
    net = make_net(net_text(text, x=shape))
    inputs(net)["x"].set(np.full(shape, np.nan, np.float32))
    assert np.isnan(net.forward()["y"]).all()
    assert net.program.first_nonfinite() == "conv"


def test_gradients_add_up():
    twice, once = results("winograd", "several chunks", passes=2), results("winograd", "several chunks")
    for name in ("conv[0]", "conv[1]"):
        np.testing.assert_allclose(twice[name], 2 * once[name], rtol=1e-5, atol=1e-4)


def test_sums_over_large_planes():
    text = conv(16, "winograd")
    net = make_net(net_text(text, x=(1, 32, 256, 256)), proto.TRAIN)
    net.forward()
    set_top_diff(net, "y", np.full((1, 16, 256, 256), 0.1))
    net.backward()
    np.testing.assert_allclose(net.params["conv"][1].diff.get(), np.float32(0.1) * 65536.0, rtol=1e-5)


def test_nothing_depends_on_what_was_computed_before():
    """The last chunk of tiles is short. The memory behind it holds values of other layers, which must not matter."""
    first, again = results("winograd", "several chunks"), results("winograd", "several chunks")
    assert all(first[what].tobytes() == again[what].tobytes() for what in first)


@pytest.mark.parametrize("behind", ["", NORM, NORM + RELU, NORM + SUM + RELU.replace('"y"', '"s"')])
def test_nets_that_are_only_tested(behind):
    shape, what = CASES["groups"]
    y = (shape[0], what["outputs"], *shape[2:])
    text = conv(**what) + behind
    config = parse_net(net_text(text, x=shape, z=y).replace("force_backward: true\n", ""), "test.prototxt")
    net, plain = Net(config, proto.TEST), Net(config, proto.TEST, NetOptions(passes=PASSES - {"constant", "fuse"}))
    for seed in (1, 2):  # the second time with new weights
        generator = np.random.default_rng(seed)
        for blob in net.inputs:
            values = generator.standard_normal(blob.shape, np.float32)
            net.feed(blob, values)
            plain.feed(next(other for other in plain.inputs if other.name == blob.name), values)
        weights = {
            layer: [generator.uniform(0.5, 2, blob.shape).astype(np.float32) for blob in blobs]
            for layer, blobs in net.weights_by_layer().items()
        }
        for each in (net, plain):
            each.load_weights(weights, "test")
        expected = plain.forward()
        for name, values in net.forward().items():
            assert close(values, expected[name]), name


@needs_bf16
def test_results_in_bf16_are_the_nearest():
    """Sums are in float32 and rounded once. The numbers here are exact in both precisions."""
    text, found = conv(32, "winograd"), []
    x = np.random.default_rng(3).integers(-3, 4, (2, 32, 8, 8)).astype(np.float32)
    for precision in ("fp32", "bf16"):
        net = make_net(net_text(text, x=x.shape), precision=precision)
        assert "winograd" in " ".join(net.program.implementation(op) for op in range(len(net.program)))
        inputs(net)["x"].set(x)
        found.append(net.forward()["y"])
    exact, rounded = found
    step = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)  # distance of neighbouring bf16 numbers
    assert (np.abs(rounded - exact) <= 0.501 * step).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [("pad: 1", "pad_h: 1 pad_w: 2"), ("pad: 1", "pad: 3"), ("pad: 1", "pad: 1 dilation: 2"), ("put: 32", "put: 36")],
)
def test_where_it_cannot_be_had(old, new):
    """If it is asked for all the same, for instance by a table from another machine, other kernels compute the pass."""
    text = conv(32).replace(old, new)
    (asked,) = make_net(net_text(text, x=(2, 32, 9, 8)), proto.TRAIN).builder.asked
    with pytest.raises(ValueError, match="winograd"):
        Trial(asked, {kernels.FORWARD: "winograd"}, dx=False, dw=False)
    found = []
    for kernel in ("winograd", "direct"):
        choices = {asked.key: dict.fromkeys(kernels.PASSES, kernel)}
        net = make_net(net_text(text, x=(2, 32, 9, 8)), proto.TRAIN, kernels=choices)
        generator = np.random.default_rng(3)
        inputs(net)["x"].set(generator.standard_normal((2, 32, 9, 8), np.float32))
        net.params["conv"][0].set(generator.standard_normal(net.params["conv"][0].shape, np.float32))
        y = net.forward()["y"]
        set_top_diff(net, "y", generator.standard_normal(y.shape, np.float32))
        net.backward()
        found.append([y, inputs(net)["x"].diff, *(each.diff.get() for each in net.params["conv"])])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_what_is_convolved_is_added():
    """The sum must not be written over the convolution's source, since later tiles read pixels that earlier ones would
    overwrite."""
    first = conv(32, "direct").replace("conv", "first", 1)
    text = first.replace('"y"', '"z"') + conv(32, "winograd")
    text = text.replace('"x" top: "y"', '"z" top: "y"') + SUM + RELU.replace('"y"', '"s"')
    text += ' layer { name: "top" type: "Pooling" bottom: "s" top: "top" pooling_param { pool: AVE kernel_size: 2 } }'
    shape = (11, 32, 20, 20)  # several chunks of tiles
    config = parse_net(net_text(text, x=shape).replace("force_backward: true\n", ""), "test.prototxt")
    net, plain = Net(config, proto.TEST), Net(config, proto.TEST, NetOptions(passes=PASSES - {"fuse", "memory_plan"}))
    values = np.random.default_rng(3).standard_normal(shape, np.float32)
    for each in (net, plain):
        each.feed(each.inputs[0], values)
    assert net.builder.type_of_op.count("EltwiseSum") == 0
    assert close(net.forward()["top"], plain.forward()["top"])


def test_weights_that_training_has_changed():
    """A test net keeps transformed weights, and must transform them again when training has changed them."""
    shape, what = CASES["groups"]
    text = conv(algorithm="winograd", bias=False, **what)
    config = parse_net(net_text(text, x=shape).replace("force_backward: true\n", ""), "test.prototxt")
    train = Net(config, proto.TRAIN)
    net = Net(config, proto.TEST, share=train)
    net.feed(net.inputs[0], np.random.default_rng(3).standard_normal(shape, np.float32))
    before = net.forward()["y"].copy()
    np.frombuffer(train.weights, np.float32)[:] *= 2
    net.program.parameters_changed()
    assert close(net.forward()["y"], 2 * before)


def test_an_unknown_algorithm_is_refused():
    text = conv(32, "fft")
    assert "conv_algorithm auto, direct or winograd, got 'fft'" in error_of(text, x=(1, 32, 8, 8))
