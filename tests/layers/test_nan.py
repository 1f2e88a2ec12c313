"""NaN stays NaN, as in Caffe, so that the loss shows when training has diverged."""

import ctypes

import numpy as np
import pytest

from engine import proto
from engine.net import PASSES
from tests.layers.harness import make_net, needs_bf16, net_text, passes_on

NAN, ALL = float("nan"), slice(None)
X = (2, 16, 8, 8)
RANDOM = np.random.default_rng(4)


def layer(name: str, type: str, bottom: str = "x", more: str = "") -> str:
    return f'layer {{ name: "{name}" type: "{type}" bottom: "{bottom}" top: "{name}" {more} }}\n'


def weighted(type: str, param: str) -> str:
    name = "inner_product_param" if type == "InnerProduct" else "convolution_param"
    return layer("c", type, "x", f'{name} {{ num_output: 32 {param} weight_filler {{ type: "xavier" }} }}')


WEIGHTED = {
    "3x3": weighted("Convolution", "kernel_size: 3 pad: 1"),
    "1x1": weighted("Convolution", "kernel_size: 1"),
    "groups": weighted("Convolution", "kernel_size: 3 group: 16"),
    "rows": weighted("InnerProduct", ""),
}
PRECISIONS = ["float32", pytest.param("bf16", marks=needs_bf16)]
NORMALISED = layer("b", "BatchNorm", "c") + layer("s", "Scale", "b", "scale_param { bias_term: true }")
AFTER = {"BatchNorm": NORMALISED, "": ""}
SUM = 'layer { name: "e" type: "Eltwise" bottom: "a" bottom: "x" top: "e" }'


def top_of(text: str, x: np.ndarray, phase: int = proto.TRAIN, weights: float | None = None, **options) -> np.ndarray:
    """Returns the last top of a net. `weights`: a value for all weights of its layer `c`."""
    net = make_net(net_text(text, x=x.shape), phase, **options)
    net.blobs["x"].set(x)
    if weights is not None:
        net.params["c"][0].set(np.full(net.params["c"][0].shape, weights, np.float32))
    net.forward()
    (top,) = net.outputs().values()
    return top


def poisoned(shape=X, at=(1, 3, 4, 5)) -> np.ndarray:
    x = RANDOM.uniform(-1, 1, shape).astype(np.float32)
    x[at] = NAN
    return x


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
@pytest.mark.parametrize("between", AFTER)
@pytest.mark.parametrize("kind", WEIGHTED)
def test_weights_that_are_nan_show_behind_a_relu(kind, between, phase, precision):
    """The ReLU may be fused into the kernel or a layer of its own."""
    text = WEIGHTED[kind] + AFTER[between] + layer("r", "ReLU", "s" if between else "c")
    if between and kind == "rows":
        pytest.skip("nets normalise channels of pictures")
    x = RANDOM.uniform(-1, 1, X).astype(np.float32)
    for passes in (PASSES, PASSES - {"fuse"}):
        top = top_of(text, x, phase, NAN, keep_all=False, passes=passes, precision=precision)
        assert np.isnan(top).all(), passes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_winograd(precision):
    text = weighted("Convolution", "kernel_size: 3 pad: 1") + layer("r", "ReLU", "c")
    x = RANDOM.uniform(-1, 1, (4, 32, 32, 32)).astype(np.float32)
    assert np.isnan(top_of(text, x, weights=NAN, keep_all=False, precision=precision)).all()


GLOBAL = "batch_norm_param { use_global_stats: true }"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "text",
    [
        layer("r", "ReLU"),
        layer("r", "ReLU", "x", "relu_param { negative_slope: 0.1 }"),
        layer("a", "Power") + SUM + layer("r", "ReLU", "e"),
        *(layer("n", "BatchNorm", "x", GLOBAL) + layer("r", type, "n") for type in ("ReLU", "ReLU6")),
        *(layer("r", type) for type in ("ReLU6", "PReLU", "ELU", "TanH", "Sigmoid", "Swish")),
    ],
)
def test_a_value_that_is_nan_stays_alone(text, precision):
    x = poisoned()
    np.testing.assert_array_equal(np.isnan(top_of(text, x, keep_all=False, precision=precision)), np.isnan(x))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bottom", ["x", "c"])
def test_a_relu_gives_zeros_all_the_same(bottom, precision):
    """The zeros must be exact, since the gradient or a Power layer may depend on it. Their sign is the same as in
    Caffe."""
    text = WEIGHTED["3x3"] if bottom == "c" else ""
    text += layer("r", "ReLU", bottom)
    scale = 1e30
    x = (scale * RANDOM.uniform(-1, 1, X)).astype(np.float32)
    net = make_net(net_text(text, x=X), keep_all=False, precision=precision)
    for _ in range(2):  # the second time in threads that flush denormal numbers
        net.blobs["x"].set(x)
        net.forward()
    top = net.outputs()["r"]
    assert (top == 0).mean() > 0.3 and not np.signbit(top).any() and top[top > 0].min() > 1e20
    later = make_net(net_text(layer("r", "ReLU"), x=X))  # built in a thread that flushes them
    later.blobs["x"].set(poisoned())
    assert np.isnan(later.forward()["r"]).sum() == 1


def test_a_relu_gives_zeros_after_another_library_has_taken_back_the_flushing_of_denormals():
    """ONNX Runtime does so. A negative number times the ReLU's slope would then be a denormal number with a
    gradient."""
    libm = ctypes.CDLL("libm.so.6")
    environment = ctypes.create_string_buffer(32)  # fenv_t of x86-64, whose last word controls SSE
    net = make_net(net_text(layer("r", "ReLU"), x=X))
    x = RANDOM.uniform(-1, 1, X).astype(np.float32)
    for _ in range(2):
        libm.fegetenv(environment)
        environment[28:32] = (0x1F80).to_bytes(4, "little")
        libm.fesetenv(environment)
        net.blobs["x"].set(x)
        np.testing.assert_array_equal(net.forward()["r"], np.maximum(x, 0))


def pooled(x: np.ndarray) -> np.ndarray:
    """Returns Caffe's maxima over windows of 2 x 2: from -FLT_MAX on, each value that is greater than the maximum
    before it."""
    n, c, h, w = x.shape
    best = np.full((n, c, h // 2, w // 2), np.finfo(np.float32).min, np.float32)
    for i in (0, 1):
        for j in (0, 1):
            window = x[:, :, i::2, j::2]
            best = np.where(window > best, window, best)
    return best


def test_maxima_over_windows_are_those_of_caffe():
    x = poisoned()
    x[0, 0, 2:4, 4:6] = NAN  # a whole window
    top = top_of(layer("p", "Pooling", "x", "pooling_param { kernel_size: 2 stride: 2 }"), x)
    np.testing.assert_array_equal(top, pooled(x))


@pytest.mark.parametrize("place", ["own", "first", "last"])
@pytest.mark.parametrize("classes", [3, 1000])
@pytest.mark.parametrize("space", [(), (3, 5)])
def test_a_score_of_any_class_makes_the_loss_nan(classes, place, space):
    text = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "t" top: "loss" top: "p" }'
    shape = (4, classes, *space)
    net = make_net(net_text(text, x=shape, t=(4, *space)))
    x = RANDOM.normal(size=shape).astype(np.float32)
    x[(1, {"own": 1, "first": 0, "last": -1}[place], *(0 for _ in space))] = NAN
    net.blobs["x"].set(x)
    net.blobs["t"].set(np.ones((4, *space)))
    tops = net.forward()
    assert np.isnan(tops["loss"])
    bad = np.isnan(tops["p"])
    assert bad.sum() == classes and bad[(1, ALL, *(0 for _ in space))].all()
    net.backward()
    diff = net.blobs["x"].diff
    assert diff is not None and np.isnan(diff).sum() == classes


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX512_CORE_BF16"])
def test_on_other_processors(isa):
    """Other processors have other kernels."""
    assert passes_on(isa, __file__, "relu and float32 or class")
