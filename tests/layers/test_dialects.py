"""Compares options that forks of Caffe add to layers of BVLC's with NumPy."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.config.intels_norms import upgrade_intels_norms
from engine.errors import ConfigError
from engine.layers.fillers import fill, keyed_generator
from engine.net import Net
from engine.weights.intel import separated
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(33)
SHAPE = (4, 3, 5, 6)


CONVOLUTION = """layer { name: "conv" type: "Convolution" bottom: "x" top: "x2"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "gaussian" } } }"""


def layer(type, params, bottoms=("x",), top="y"):
    bottoms = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "layer" type: "{type}" {bottoms} top: "{top}" {params} }}'


def sample(shape=SHAPE):
    return RANDOM.normal(1, 2, size=shape).astype(np.float32)


# NVIDIA's BatchNorm with scale and shift

FILLERS = 'scale_filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "uniform" }'
NORM = layer("BatchNorm", f"batch_norm_param {{ scale_bias: true {FILLERS} eps: 1e-3 }}")


def test_scale_within_batch_norm():
    x = sample()
    net = run(NORM, x=x)
    *_, factor, scale, shift = (tensor.get() for tensor in net.params["layer"])
    assert factor.shape == (1,) and len(set(scale)) == 3
    centred = x - x.mean((0, 2, 3), keepdims=True, dtype=np.float64)
    normalised = centred / np.sqrt(x.var((0, 2, 3), keepdims=True, dtype=np.float64) + 1e-3)
    expected = normalised * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(net.blobs["y"].data, expected, atol=1e-4)
    check_gradients(net_text(NORM, x=SHAPE), {"x": x})


@pytest.mark.parametrize(
    "params, scale, shift",
    [
        ("scale_bias: true", 1, 0),
        ("scale_filler { value: 3 }", 3, 0),
        ("bias_filler { value: 2 }", 1, 2),
        ("scale_filler { value: 3 } bias_filler { value: 2 }", 3, 2),
    ],
)
def test_blobs_of_batch_norm(params, scale, shift):
    net = make_net(net_text(layer("BatchNorm", f"batch_norm_param {{ {params} }}"), x=SHAPE))
    *statistics, ours, theirs = [tensor.get() for tensor in net.params["layer"]]
    assert len(statistics) == 3 and (ours == scale).all() and (theirs == shift).all()


# Intel's BatchNorm, with scale and shift by default where its own kernels compute it

SCALE = layer("Scale", "scale_param { bias_term: true }", ["y"], "z").replace('"layer"', '"scale"')
STATISTICS = "param { lr_mult: 0 } " * 3


@pytest.mark.parametrize(
    "net, params, more, scale",
    [
        ("", "engine: MKLDNN", "", 1),
        ("", "engine: MKL2017", "", 1),
        ('engine: "MKL2017"', "", "", 1),
        ("", "filler { value: 3 } bias_filler { value: 2 }", "", 3),
        ("", "use_weight_bias: true", "", 1),
        ("", "", "", None),
        ("", "engine: CAFFE use_weight_bias: true", "", None),
        ('engine: "MKLDNN"', "engine: CAFFE", "", None),
        ('engine: "MKLDNN:CPU"', "", "", 1),
        ('engine: "MKLDNN"', "engine: DEFAULT", "", 1),
        ("", '} engine: "MKLDNN" batch_norm_param {', "", 1),
        ("", '} engine: "MKL2017:CPU,FPGA" batch_norm_param {', "", 1),
        ('engine: "MKLDNN"', '} engine: "CAFFE" batch_norm_param {', "", None),
        ('engine: "MKLDNN"', 'engine: DEFAULT } engine: "CAFFE" batch_norm_param {', "", None),
        ("", 'engine: CAFFE use_weight_bias: true } engine: "MKLDNN" batch_norm_param {', "", None),
        ("", "engine: MKLDNN use_weight_bias: false", "", None),
        ("", "engine: MKLDNN } " + STATISTICS + "batch_norm_param {", "", None),
        ("", "engine: MKLDNN filler { value: 3 }", SCALE, None),
    ],
)
def test_scale_and_shift_of_intels_norms(net, params, more, scale):
    text = net_text(layer("BatchNorm", f"batch_norm_param {{ {params} }}") + more, x=SHAPE)
    blobs = [tensor.get() for tensor in make_net(net + text).params["layer"]]
    assert len(blobs) == (5 if scale else 3)
    assert not scale or (blobs[3] == scale).all()


IN_PLACE = layer("BatchNorm", "include { phase: %s }", ["y"]).replace('"layer"', '"norm"')
SILENCE = 'layer { name: "silence" type: "Silence" bottom: "y" include { phase: TEST } }'


@pytest.mark.parametrize(
    "between, blobs",
    [
        (IN_PLACE % "TRAIN" + IN_PLACE % "TEST" + SCALE, 3),
        (layer("BatchNorm", "", ["y"]).replace('"layer"', '"norm"') + SILENCE + SCALE, 3),
        (IN_PLACE % "TRAIN" + IN_PLACE % "TEST", 5),
        (IN_PLACE % "TRAIN" + IN_PLACE % "TEST" + SCALE.replace('"z"', '"z" include { phase: TEST }'), 3),
    ],
)
def test_intels_norms_look_for_a_scale_by_phase(between, blobs):
    """Intel's fork looks for the Scale after it has removed the layers of the other phase. Here both phases have the
    same blobs nevertheless."""
    text = 'engine: "MKLDNN"' + net_text(CONVOLUTION.replace('"x2"', '"y"') + between, x=SHAPE)
    train, test = (make_net(text, phase) for phase in (proto.TRAIN, proto.TEST))
    assert len(train.params["norm"]) == len(test.params["norm"]) == blobs
    saved = {name: [tensor.get() for tensor in tensors] for name, tensors in train.params.items()}
    test.load_weights(saved, "file")


def test_intels_norms_are_told_once_and_stay():
    norm = layer("BatchNorm", "batch_norm_param { engine: MKLDNN filler { value: 3 } }")
    config = parse_net(norm + norm.replace('"y"', '"z"').replace('"layer"', '"second"'))
    assert config.notes[0].endswith("scale and shift are BatchNorm's own, as in Intel's Caffe: layer and 1 more")
    before = proto.NetParameter.FromString(config.message.SerializeToString())
    assert upgrade_intels_norms(config.message, [None, None]) == [] and config.message == before


@pytest.mark.parametrize(
    "overrides, blobs",
    [
        (["layer[layer].batch_norm_param.use_weight_bias=false"], 3),
        (["layer[layer].batch_norm_param.engine=CAFFE"], 3),
        (["engine=CAFFE"], 3),
        (["engine=CAFFE", "layer[layer].batch_norm_param.use_weight_bias=true", "engine=MKLDNN"], 5),
        (["name=x"], 5),
    ],
)
@pytest.mark.parametrize("bias_term", ["", "bias_term: false"])
def test_overrides_say_whether_norms_are_intels(overrides, blobs, bias_term):
    net = net_text(layer("BatchNorm", f"batch_norm_param {{ {bias_term} }}"), x=SHAPE)
    if bias_term and blobs == 5:
        with pytest.raises(ConfigError, match="expected scale and shift, or use_weight_bias: false"):
            parse_net('engine: "MKLDNN"' + net, "net", overrides)
        return
    config = parse_net('engine: "MKLDNN"' + net, "net", overrides)
    assert len(Net(config).params["layer"]) == blobs
    assert len(config.notes) == (blobs == 5)


def test_intels_norm_with_scale_alone():
    error = error_of(net_text(layer("BatchNorm", "batch_norm_param { engine: MKLDNN bias_term: false }"), x=SHAPE))
    assert "bias_term: false: expected scale and shift, or use_weight_bias: false" in error


def test_batch_norm_with_scale_is_folded_into_a_convolution():
    text = net_text(CONVOLUTION + NORM.replace('bottom: "x"', 'bottom: "x2"'), x=SHAPE)
    x, values = sample(), [RANDOM.uniform(0.5, 2, 3).astype(np.float32) for _ in range(5)]
    values[2] = np.ones(1, np.float32)
    tops = []
    for keep_all in (True, False):
        net = make_net(text, proto.TEST, keep_all=keep_all)
        for tensor, value in zip(net.params["layer"], values, strict=True):
            tensor.set(value)
        net.blobs["x"].set(x)
        tops.append(net.forward()["y"].copy())
    np.testing.assert_allclose(*tops, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("params", ["scale_bias: true", "scale_filler { }", "bias_filler { }"])
def test_files_of_five_blobs_stay_together(params):
    net = parse_net(f'layer {{ name: "norm" type: "BatchNorm" top: "y" batch_norm_param {{ {params} }} }}').message
    blobs = {"norm": [np.zeros(3)] * 5}
    assert separated(list(net.layer), blobs, "file") == blobs


# SegNet's and R-FCN's Dropout


def dropout(params):
    return layer("Dropout", f"dropout_param {{ dropout_ratio: 0.25 {params} }}")


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_dropout_that_is_scaled_at_test(phase):
    x = RANDOM.uniform(1, 2, (20, 50)).astype(np.float32)
    net = run(dropout("scale_train: false"), phase, x=x)
    y = net.blobs["y"].data
    if phase == proto.TEST:
        np.testing.assert_allclose(y, 0.75 * x, rtol=1e-6)
        return
    assert 0.1 < (y == 0).mean() < 0.4
    np.testing.assert_allclose(y, np.where(y == 0, 0, x), rtol=1e-6)
    set_top_diff(net, "y", x)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, y, rtol=1e-6)


def test_dropout_at_test():
    x = RANDOM.uniform(1, 2, (20, 50)).astype(np.float32)
    y = run(dropout("sample_weights_test: true"), proto.TEST, x=x).blobs["y"].data
    assert 0.1 < (y == 0).mean() < 0.4
    np.testing.assert_allclose(y, np.where(y == 0, 0, x / 0.75), rtol=1e-6)


# NVIDIA's ELU

SELU = layer("ELU", "elu_param { alpha: 1.6733 lambda: 1.0507 }")


def test_selu():
    x = sample()
    expected = 1.0507 * np.where(x > 0, x, 1.6733 * np.expm1(np.minimum(x, 0).astype(np.float64)))
    np.testing.assert_allclose(run(SELU, x=x).blobs["y"].data, expected, rtol=1e-5, atol=1e-6)
    check_gradients(net_text(SELU, x=SHAPE), {"x": np.where(abs(x) < 0.1, 1, x)})


def test_selu_after_a_convolution():
    """The convolution takes over an ELU, but not this one, which has a factor."""
    text, x = net_text(CONVOLUTION + SELU.replace('bottom: "x"', 'bottom: "x2"'), x=SHAPE), sample()
    tops = []
    for keep_all in (True, False):
        net = make_net(text, proto.TEST, keep_all=keep_all)
        net.blobs["x"].set(x)
        tops.append(net.forward()["y"].copy())
    np.testing.assert_allclose(*tops, rtol=1e-5, atol=1e-5)


# SegNet's and happynear's weights of classes

WEIGHTS = [0.5, 0, 2, 1.5]
SEGNETS = f"loss_param {{ weight_by_label_freqs: true ignore_label: 3 class_weighting: {WEIGHTS} }}"
HAPPYNEARS = f"loss_param {{ ignore_label: 3 }} softmax_param {{ class_weight: {WEIGHTS} }}"


def loss(params):
    return layer("SoftmaxWithLoss", params, ("x", "l"))


@pytest.mark.parametrize("params", [SEGNETS, HAPPYNEARS])
def test_weights_of_classes(params):
    x = RANDOM.normal(size=(3, 4, 2, 5)).astype(np.float32)
    labels = RANDOM.integers(0, 4, (3, 2, 5)).astype(np.float32)
    labels.flat[:4] = range(4)
    logs = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
    own = np.take_along_axis(logs, labels[:, None].astype(int), 1)[:, 0]
    counts = labels != 3
    expected = -(own * np.take(WEIGHTS, labels.astype(int)) * counts).sum() / counts.sum()
    assert run(loss(params), x=x, l=labels).blobs["y"].data == pytest.approx(expected, rel=1e-5)
    check_gradients(net_text(loss(params), x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_weights_of_classes_that_are_switched_off():
    text = f"loss_param {{ class_weighting: {WEIGHTS} weight_by_label_freqs: false }}"
    x, labels = RANDOM.normal(size=(3, 4)), np.array([0, 2, 3])
    switched, plain = (run(loss(params), x=x, l=labels).blobs["y"].data for params in (text, ""))
    np.testing.assert_array_equal(switched, plain)


@pytest.mark.parametrize(
    "params, words",
    [
        ("loss_param { weight_by_label_freqs: true }", "weight_by_label_freqs needs class_weighting"),
        (f"loss_param {{ class_weighting: {WEIGHTS} }}", "needs weight_by_label_freqs: true; add that or take it out"),
        (f"{SEGNETS} softmax_param {{ class_weight: {WEIGHTS} }}", "class_weighting or class_weight, got both"),
        ("softmax_param { class_weight: 1 }", "expected a weight for each of 4 classes, got 1"),
        ("softmax_param { class_weight: [1, 2, 3, -1] }", "expected weights of classes of 0 or more, got -1"),
    ],
)
def test_wrong_weights_of_classes(params, words):
    assert words in error_of(loss(params), x=(3, 4), l=(3,))


# Others


def test_accuracy_of_distances():
    text = layer("Accuracy", "accuracy_param { min_is_better: true }", ("x", "l"))
    x = np.array([[3, 1, 2], [1, 3, 2], [2, 3, 1]], np.float32)
    assert run(text, proto.TEST, x=x, l=np.array([1, 1, 2], np.float32)).blobs["y"].data == pytest.approx(2 / 3)


def test_parameter_with_a_filler():
    text = layer("Parameter", "parameter_param { shape { dim: 5 dim: 4 } blob_filler { value: 3 } }", ())
    assert (make_net(text).params["layer"][0].get() == 3).all()


def values(shape, **fields):
    return fill(shape, proto.FillerParameter(**fields), keyed_generator(1, "layer", 0))


def test_diagonal():
    drawn = values((3, 4, 1, 1), type="diagonal", diag_val=[2, 3])[..., 0, 0]
    np.testing.assert_array_equal(drawn, [[2, 0, 0, 0], [0, 3, 0, 0], [0, 0, 3, 0]])
    np.testing.assert_array_equal(values((2, 2), type="diagonal"), np.eye(2))


def test_diagonal_that_does_not_fit():
    from engine.errors import ConfigError

    with pytest.raises(ConfigError, match="filler 'diagonal': expected at least 2 axes, the first two no shorter than"):
        values((2, 4), type="diagonal", diag_val=[1, 2, 3])


def test_ball():
    drawn = values((30, 7, 2), type="gaussian_unitball")
    np.testing.assert_allclose((drawn**2).sum((1, 2)), 1, rtol=1e-5)
    assert drawn.min() < -0.3 and drawn.max() > 0.3


def test_bounds_of_a_scale_must_be_in_order():
    assert "expected min_value up to max_value, got 2 and 1" in error_of(
        layer("Scale", "scale_param { min_value: 2 max_value: 1 }"), x=SHAPE
    )


# C3D's layers of clips

CLIPS = "force_backward: true input: 'x' input_dim: [2, 3, 4, 6, 7]"
OF_C3D = """layers { name: "c" type: CONVOLUTION3D bottom: "x" top: "c" convolution_param { num_output: 5 kernel_size: 3
    kernel_depth: 2 pad: 1 temporal_pad: 1 weight_filler { type: "xavier" } } }
  layers { name: "p" type: POOLING3D bottom: "c" top: "p" pooling_param { pool: %s kernel_size: 2 kernel_depth: 3
    stride: 2 temporal_stride: 3 } }
  layers { name: "d" type: DECONVOLUTION3D bottom: "p" top: "y" convolution_param { num_output: 2 kernel_size: 4
    kernel_depth: 1 stride: 2 temporal_stride: 2 weight_filler { type: "xavier" } } }"""
TODAY = """layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 5
    kernel_size: [2, 3, 3] pad: 1 weight_filler { type: "xavier" } } }
  layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: %s kernel_size_3d: [3, 2, 2]
    stride_3d: [3, 2, 2] } }
  layer { name: "d" type: "Deconvolution" bottom: "p" top: "y" convolution_param { num_output: 2
    kernel_size: [1, 4, 4] stride: 2 weight_filler { type: "xavier" } } }"""


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_layers_of_c3d_are_those_of_today(pool):
    x, found = sample((2, 3, 4, 6, 7)), []
    for text in (OF_C3D, TODAY):
        net = make_net(f"{CLIPS} {text % pool}")
        net.blobs["x"].set(x)
        net.forward()
        y = net.blobs["y"].data
        assert y.shape == (2, 2, 3, 8, 10)
        set_top_diff(net, "y", np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape))
        net.backward()
        gradients = [tensor.diff.get() for name in "cd" for tensor in net.params[name]]
        found.append([net.blobs[name].data for name in "cpy"] + [net.blobs["x"].diff, *gradients])
    for ours, theirs in zip(*found, strict=True):
        assert np.any(ours)
        np.testing.assert_array_equal(ours, theirs)
    c, p = found[0][:2]  # windows of 3 x 2 x 2; the last ones of 5 frames and 7 columns are cut
    assert c.shape == (2, 5, 5, 6, 7) and p.shape == (2, 5, 2, 3, 4)
    reduced = {"MAX": np.max, "AVE": np.mean}[pool]
    for t, h, w in np.ndindex(2, 3, 4):
        window = c[:, :, 3 * t : 3 * t + 3, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2]
        np.testing.assert_allclose(p[:, :, t, h, w], reduced(window, axis=(2, 3, 4)), rtol=1e-5, atol=1e-6)
