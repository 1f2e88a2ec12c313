"""Mixed precision: which layers run in bf16, and that these compute what float32 gives, within the rounding of bf16."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.graph.build import build
from engine.net import Net, NetOptions, prepare
from engine.weights import read_caffemodel, write_caffemodel
from tests.graph.test_passes import NETS, randomise
from tests.layers.harness import inputs, make_net, needs_bf16, net_text, set_top_diff

CHAIN = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 16 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "pool" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv" type: "Convolution" bottom: "p" top: "c" convolution_param { num_output: 16 kernel_size: 3 } }
layer { name: "sigmoid" type: "Sigmoid" bottom: "c" top: "c" }
layer { name: "reverse" type: "Reverse" bottom: "c" top: "d" }
layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_casts_stand_only_where_the_precision_changes():
    graph = prepare(build(parse_net(CHAIN, "chain.prototxt"), proto.TRAIN), precision="bf16")
    found = [layer.type if layer.type != "Cast" else f"to bf16: {layer.to_bf16}" for layer in graph.layers]
    down, up = "to bf16: True", "to bf16: False"
    chain = ["Pooling", down, "Convolution", "Sigmoid", up, "Reverse", down, "InnerProduct", "SoftmaxWithLoss"]
    assert [each for each in found if each != "Input"] == chain
    assert "Cast" not in [layer.type for layer in prepare(build(parse_net(CHAIN, "x"), proto.TRAIN)).layers]


SEQUENCE = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 8 } } }
layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 5 } }
layer { name: "gru" type: "GRU" bottom: "h" bottom: "cont" top: "h2" recurrent_param { num_output: 5 } }
layer { name: "ip" type: "InnerProduct" bottom: "h2" top: "y" inner_product_param { num_output: 5 axis: 2 } }
"""


STATIC = """
layer { name: "z" type: "Input" top: "z" input_param { shape { dim: 3 dim: 6 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 5 axis: 2 } }
layer { name: "s" type: "InnerProduct" bottom: "z" top: "s" inner_product_param { num_output: 5 } }
layer { name: "lstm" type: "LSTM" bottom: "a" bottom: "cont" bottom: "s" top: "h" recurrent_param { num_output: 5 } }
"""


def test_a_product_writes_what_its_reader_takes():
    """An LSTM takes x in bf16, but x_static, which all steps see, in float32. The product that makes x_static therefore
    writes float32."""
    inputs = "".join(SEQUENCE.splitlines(keepends=True)[1:3])
    graph = prepare(build(parse_net(inputs + STATIC, "static.prototxt"), proto.TRAIN), precision="bf16")
    assert [layer.name for layer in graph.layers if layer.type != "Input"] == ["x_a_bf16", "a", "z_s_bf16", "s", "lstm"]
    assert [layer.name for layer in graph.layers if layer.widens] == ["s"]


@needs_bf16
def test_sequences_are_cast_row_by_row():
    """cont and the states stay float32, and no sequence gets the layout of images."""
    net = Net(parse_net(SEQUENCE, "sequence.prototxt"), proto.TRAIN, NetOptions(precision="bf16"))
    found = [kind for kind in net.builder.type_of_op if kind != "Split"]
    product = ["Cast", "View", "InnerProduct"]
    assert found == [*product, "LSTM", *product, "GRU", *product, "View"]
    dtypes = {layer.name: net.builder.tensors[layer.tops[0]].dtype for layer in net.graph.layers}
    assert (dtypes["cont"], dtypes["lstm"], dtypes["gru"], dtypes["ip"]) == ("f32", "f32", "f32", "f32")


def gradients(name: str, precision: str) -> dict[str, np.ndarray]:
    make, shapes = NETS[name]
    net = Net(make(), proto.TRAIN, NetOptions(precision=precision, shapes_of=lambda layer, where: shapes))
    randomise(net)
    net.run_forward()
    found = {layer.name: net.blobs[top].data for layer, top, _ in net.losses()}
    net.backward()
    for placed in net.parameters:
        assert placed.tensor.dtype == "f32" and placed.tensor.diff.dtype == "f32"
        found[placed.name] = placed.tensor.diff.get()
    return found


# A bf16 value is exact to 2^-8. Each layer adds its own rounding, and more of it is left where values cancel: deeper
# nets differ more.
TOLERANCE = {"branches": 0.02, "cifar10": 0.05, "resnet50": 0.25}


@needs_bf16
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_float32_within_rounding(name):
    exact, rounded = gradients(name, "fp32"), gradients(name, "bf16")
    error = sum(np.linalg.norm(rounded[what] - values) ** 2 for what, values in exact.items())
    assert error <= TOLERANCE[name] ** 2 * sum(np.linalg.norm(values) ** 2 for values in exact.values())
    again = gradients(name, "bf16")
    assert [what for what in exact if again[what].tobytes() != rounded[what].tobytes()] == []


# Each is a layer, or a few that belong together, between a convolution and an inner product.
ALONE = {
    "ReLU": 'layer { name: "l" type: "ReLU" bottom: "a" top: "b" relu_param { negative_slope: 0.1 } }',
    "Sigmoid": 'layer { name: "l" type: "Sigmoid" bottom: "a" top: "b" }',
    "TanH": 'layer { name: "l" type: "TanH" bottom: "a" top: "b" }',
    "Clip": 'layer { name: "l" type: "Clip" bottom: "a" top: "b" clip_param { min: -0.5 max: 0.8 } }',
    "ELU": 'layer { name: "l" type: "ELU" bottom: "a" top: "b" elu_param { alpha: 0.7 } }',
    "PReLU": 'layer { name: "l" type: "PReLU" bottom: "a" top: "b" }',
    "ReLU6": 'layer { name: "l" type: "ReLU6" bottom: "a" top: "b" }',
    "Swish": 'layer { name: "l" type: "Swish" bottom: "a" top: "b" swish_param { beta: 1.5 } }',
    "Permute": 'layer { name: "l" type: "Permute" bottom: "a" top: "b" permute_param { order: 0 order: 2 order: 3 } }',
    "Reorg": """layer { name: "c" type: "Convolution" bottom: "a" top: "c" convolution_param { num_output: 8
          kernel_size: 1 weight_filler { type: "msra" } } }
        layer { name: "l" type: "Reorg" bottom: "c" top: "b" reorg_param { stride: 2 reverse: true } }""",
    "ShuffleChannel": """layer { name: "l" type: "ShuffleChannel" bottom: "a" top: "b"
        shuffle_channel_param { group: 2 } }""",
    "Pooling MAX": """layer { name: "l" type: "Pooling" bottom: "a" top: "b"
        pooling_param { kernel_size: 3 stride: 2 } }""",
    "Pooling AVE": """layer { name: "l" type: "Pooling" bottom: "a" top: "b"
        pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }""",
    "LRN": 'layer { name: "l" type: "LRN" bottom: "a" top: "b" lrn_param { alpha: 0.5 } }',
    "Dropout": 'layer { name: "l" type: "Dropout" bottom: "a" top: "b" }',
    "BatchNorm": 'layer { name: "l" type: "BatchNorm" bottom: "a" top: "b" }',
    "Scale": 'layer { name: "l" type: "Scale" bottom: "a" top: "b" scale_param { bias_term: true } }',
    "Scale of pixels": """layer { name: "l" type: "Scale" bottom: "a" top: "b"
        scale_param { axis: 2 num_axes: 2 bias_term: true } }""",
    "Scale by a bottom": """layer { name: "m" type: "Pooling" bottom: "a" top: "m"
          pooling_param { pool: AVE global_pooling: true } }
        layer { name: "f" type: "Flatten" bottom: "m" top: "f" }
        layer { name: "l" type: "Scale" bottom: "a" bottom: "f" top: "b" scale_param { axis: 0 } }""",
    "Axpy": """layer { name: "m" type: "Pooling" bottom: "a" top: "m"
          pooling_param { pool: AVE global_pooling: true } }
        layer { name: "g" type: "Sigmoid" bottom: "m" top: "g" }
        layer { name: "s" type: "TanH" bottom: "a" top: "s" }
        layer { name: "l" type: "Axpy" bottom: "g" bottom: "a" bottom: "s" top: "b" }""",
    "Bias": 'layer { name: "l" type: "Bias" bottom: "a" top: "b" }',
    "MVN": 'layer { name: "l" type: "MVN" bottom: "a" top: "b" }',
    "MVN across channels": 'layer { name: "l" type: "MVN" bottom: "a" top: "b" mvn_param { across_channels: true } }',
    "Normalize": """layer { name: "l" type: "Normalize" bottom: "a" top: "b"
        norm_param { across_spatial: false channel_shared: false scale_filler { type: "constant" value: 3 } } }""",
    "Normalize across space": 'layer { name: "l" type: "Normalize" bottom: "a" top: "b" norm_param { } }',
    "SpatialDropout": 'layer { name: "l" type: "SpatialDropout" bottom: "a" top: "b" }',
    "Dropout that does not scale": """layer { name: "l" type: "Dropout" bottom: "a" top: "b"
        dropout_param { scale_train: false } }""",
    "Eltwise SUM": """layer { name: "s" type: "TanH" bottom: "a" top: "s" }
        layer { name: "l" type: "Eltwise" bottom: "a" bottom: "s" top: "b" eltwise_param { coeff: 1 coeff: -0.5 } }
        layer { name: "r" type: "ReLU" bottom: "b" top: "b" }""",
    "Eltwise PROD": """layer { name: "s" type: "Sigmoid" bottom: "a" top: "s" }
        layer { name: "l" type: "Eltwise" bottom: "a" bottom: "s" top: "b" eltwise_param { operation: PROD } }""",
    "Eltwise MAX": """layer { name: "s" type: "Sigmoid" bottom: "a" top: "s" }
        layer { name: "l" type: "Eltwise" bottom: "a" bottom: "s" top: "b" eltwise_param { operation: MAX } }""",
    "Concat and Slice": """layer { name: "l" type: "Slice" bottom: "a" top: "s" top: "t"
          slice_param { slice_point: 5 } }
        layer { name: "m" type: "Concat" bottom: "t" bottom: "s" top: "b" }""",
    "residual": """layer { name: "n" type: "BatchNorm" bottom: "a" top: "n" }
        layer { name: "l" type: "Eltwise" bottom: "n" bottom: "a" top: "b" }
        layer { name: "r" type: "ReLU" bottom: "b" top: "b" }""",
}
# Rounding moves some values across a kink, which changes their gradients.
KINKS = ("ReLU", "Clip", "ELU", "PReLU", "ReLU6", "Pooling MAX", "Eltwise MAX", "Eltwise SUM", "residual")
AROUND = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 dim: 5 dim: 7 dim: 6 } } }
layer { name: "t" type: "Input" top: "target" input_param { shape { dim: 3 dim: 4 } } }
layer { name: "first" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: %d kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
%s
layer { name: "last" type: "InnerProduct" bottom: "b" top: "y"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "target" top: "loss" }
"""


@pytest.mark.parametrize("kind", ALONE)
def test_no_layer_is_left_out(kind):
    graph = prepare(build(parse_net(AROUND % (16, ALONE[kind]), "alone"), proto.TRAIN), precision="bf16")
    assert [layer.name for layer in graph.layers if layer.type == "Cast"] == ["x_first_bf16"]


@needs_bf16
@pytest.mark.parametrize("channels", [16, 10])
@pytest.mark.parametrize("kind", ALONE)
def test_every_layer_within_a_few_roundings(kind, channels):
    found = []
    for precision in ("fp32", "bf16"):
        net = Net(parse_net(AROUND % (channels, ALONE[kind]), "alone"), proto.TRAIN, NetOptions(precision=precision))
        randomise(net)
        net.run_forward()
        net.backward()
        found.append({placed.name: placed.tensor.diff.get() for placed in net.parameters})
        found[-1]["loss"] = net.blobs["loss"].data
    for what, values in found[0].items():
        size = np.linalg.norm(found[0]["first[0]" if what == "first[1]" else what])
        assert np.linalg.norm(found[1][what] - values) <= (0.1 if kind in KINKS else 0.02) * size, what


# Layers that move numbers, or add few of them. With small whole numbers they are exact in bf16, too.
MOVING = {
    "Tile of channels": 'type: "Tile" tile_param { tiles: 3 }',
    "Tile of samples": 'type: "Tile" tile_param { axis: 0 tiles: 2 }',
    "Tile of rows": 'type: "Tile" tile_param { axis: 2 tiles: 2 }',
    "Crop": 'type: "Crop" bottom: "size" crop_param { axis: 2 offset: 1 }',
    "Crop of channels": 'type: "Crop" bottom: "size" crop_param { axis: 1 offset: 1 }',
    "Upsample": 'type: "Upsample"',
    "Upsample by 3 and 5": 'type: "Upsample" upsample_param { scale_h: 3 scale_w: 5 }',
    "Interp": 'type: "Interp" interp_param { zoom_factor: 2 }',
    "Resample": 'type: "Resample" resample_param { type: NEAREST height: 9 width: 17 antialias: false }',
    "BatchReindex": 'type: "BatchReindex" bottom: "rows"',
    "Filter": 'type: "Filter" bottom: "chosen"',
    "Reduction, everything": 'type: "Reduction"',
    "Reduction of samples": 'type: "Reduction" reduction_param { axis: 1 operation: MEAN coeff: 0.5 }',
    "Reduction of planes": 'type: "Reduction" reduction_param { axis: 2 operation: ASUM }',
    "Reduction of squares": 'type: "Reduction" reduction_param { axis: 1 operation: SUMSQ }',
    "ShuffleChannel": 'type: "ShuffleChannel" shuffle_channel_param { group: 2 }',
    "Permute": 'type: "Permute" permute_param { order: 0 order: 2 order: 3 }',
    "Reorg": 'type: "Reorg" reorg_param { stride: 2 reverse: true }',
}


@needs_bf16
@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize("kind", MOVING)
def test_what_moves_numbers_is_exact(kind, channels):
    """The layer is behind a convolution with identity weights, whose top has a blocked layout. Its last block of
    channels may have padding."""
    shapes = {"x": (4, channels, 6, 34), "size": (1, channels - 3, 4, 5), "rows": (6,), "chosen": (4,)}
    text = net_text(
        f"""layer {{ name: "c" type: "Convolution" bottom: "x" top: "c"
          convolution_param {{ num_output: {channels} kernel_size: 1 bias_term: false }} }}
        layer {{ name: "l" bottom: "c" top: "y" {MOVING[kind]} }}""",
        **{name: shape for name, shape in shapes.items() if name == "x" or f'"{name}"' in MOVING[kind]},
    )
    draw, found = np.random.default_rng(3), []
    values = {name: draw.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    values |= {"rows": np.array([2, 0, 2, 3, 2, 0], np.float32), "chosen": np.array([1, 0, 0, 1], np.float32)}
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.params["c"][0].set(np.eye(channels, dtype=np.float32)[..., None, None])
        for name, blob in inputs(net).items():
            blob.set(values[name])
        y = net.forward()["y"]
        set_top_diff(net, "y", np.random.default_rng(4).integers(-3, 4, y.shape).astype(np.float32))
        net.backward()
        found.append((y, net.blobs["c"].diff, inputs(net)["x"].diff))
    assert [net.builder.tensors[blob].dtype for blob in net.graph.layers[-1].bottoms[:1]] == ["bf16"]
    for exact, rounded in zip(*found, strict=True):
        if "MEAN" not in MOVING[kind]:
            np.testing.assert_array_equal(rounded, exact)
        else:
            np.testing.assert_allclose(rounded, exact, rtol=2**-8)


@needs_bf16
@pytest.mark.parametrize("channels", [1, 3, 20])
def test_what_a_loss_reads_becomes_rows_in_one_step(channels):
    """The result is exact, since bf16 holds small whole numbers and their quarters."""
    text = net_text(
        f"""layer {{ name: "c" type: "Convolution" bottom: "x" top: "c"
          convolution_param {{ num_output: {channels} kernel_size: 1 bias_term: false }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "c" bottom: "t" top: "loss" }}""",
        **dict.fromkeys("xt", (4, channels, 5, 7)),
    )
    draw, found = np.random.default_rng(3), []
    values = {name: draw.integers(-3, 4, (4, channels, 5, 7)).astype(np.float32) for name in "xt"}
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.params["c"][0].set(np.eye(channels, dtype=np.float32)[..., None, None])
        for name, blob in inputs(net).items():
            blob.set(values[name])
        loss = net.forward()["loss"]
        net.backward()
        found.append((loss, inputs(net)["x"].diff))
    assert net.builder.type_of_op.count("Cast") == 2 and "Plain" not in net.builder.type_of_op
    for exact, rounded in zip(*found, strict=True):
        np.testing.assert_array_equal(rounded, exact)


@needs_bf16
@pytest.mark.parametrize("channels", [16, 3])
def test_scores_that_a_loss_reads_are_interpolated_to_float32(channels):
    text = net_text(
        f"""layer {{ name: "c" type: "Convolution" bottom: "x" top: "c"
          convolution_param {{ num_output: {channels} kernel_size: 1 bias_term: false }} }}
        layer {{ name: "l" type: "Interp" bottom: "c" top: "y" interp_param {{ zoom_factor: 3 }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }}""",
        x=(4, channels, 5, 7),
        t=(4, channels, 13, 19),
    )
    draw, found = np.random.default_rng(3), []
    values = {
        name: draw.integers(-3, 4, blob.shape).astype(np.float32) for name, blob in inputs(make_net(text)).items()
    }
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.params["c"][0].set(np.eye(channels, dtype=np.float32)[..., None, None])
        for name, blob in inputs(net).items():
            blob.set(values[name])
        net.forward()
        net.backward()
        found.append((net.blobs["y"].data, inputs(net)["x"].diff))
    assert net.blobs["y"].tensor.dtype == "f32" and net.blobs["c"].tensor.dtype == "bf16"
    np.testing.assert_array_equal(found[1][0], found[0][0])  # thirds, which bf16 would round
    np.testing.assert_allclose(found[1][1], found[0][1], atol=2**-8 * np.abs(found[0][1]).max())


@needs_bf16
def test_only_the_shape_of_a_crops_second_bottom_is_read():
    """The bottom is therefore not cast."""
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 16 kernel_size: 1 } }
    layer { name: "crop" type: "Crop" bottom: "%s" bottom: "%s" top: "y" crop_param { axis: 2 } }
    layer { name: "end" type: "%s" bottom: "y" top: "z" %s }"""
    end = "Convolution", "convolution_param { num_output: 16 kernel_size: 1 }"
    for x, size, layer in (("c", "x", end), ("x", "c", ("Power", ""))):
        graph = prepare(build(parse_net(text % (x, size, *layer), "crop"), proto.TRAIN), precision="bf16")
        crop = next(each for each in graph.layers if each.type == "Crop")
        assert not [each for each in graph.layers if each.type == "Cast" and each.tops[0] in crop.bottoms]


@needs_bf16
def test_labels_beside_samples_stay_float32():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
    layer { name: "s" type: "Input" top: "s" input_param { shape { dim: 4 } } top: "l" }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 5 } }
    layer { name: "r" type: "ReLU" bottom: "a" top: "a" }
    layer { name: "f" type: "Filter" bottom: "a" bottom: "l" bottom: "s" top: "b" top: "m" }"""
    net = make_net(text, precision="bf16")
    net.blobs["l"].set(np.array([1001, 2, 3, 4], np.float32))
    net.blobs["s"].set(np.ones(4, np.float32))
    assert net.forward()["m"][0] == 1001


@needs_bf16
def test_files_hold_float32_and_serve_both(tmp_path):
    make, shapes = NETS["cifar10"]
    nets = {
        p: Net(make(), proto.TRAIN, NetOptions(precision=p, seed=3, shapes_of=lambda m, w: shapes))
        for p in ("bf16", "fp32")
    }
    path = tmp_path / "net.caffemodel"
    for source, target in (("bf16", "fp32"), ("fp32", "bf16")):
        weights = nets[source].weights_by_layer()
        write_caffemodel(path, nets[source].message, weights)
        assert nets[target].load_weights(read_caffemodel(path), str(path)) == []
        for layer, blobs in nets[target].weights_by_layer().items():
            for ours, theirs in zip(blobs, weights[layer], strict=True):
                assert ours.tobytes() == theirs.tobytes()


@needs_bf16
def test_scores_that_only_float32_layers_read_are_float32():
    """If they were rounded to bf16, a fiftieth of these scores would tie with the label's, which Accuracy counts
    against the label."""
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 400 dim: 64 } } }
    layer { name: "l" type: "Input" top: "l" input_param { shape { dim: 400 } } }
    layer { name: "score" type: "InnerProduct" bottom: "x" top: "score" inner_product_param { num_output: 200
      weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "l" top: "loss" }
    layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "l" top: "accuracy" }
    layer { name: "best" type: "ArgMax" bottom: "score" top: "best" }"""
    nets = [Net(parse_net(text), proto.TRAIN, NetOptions(precision=precision)) for precision in ("fp32", "bf16")]
    x = np.random.default_rng(3).standard_normal((400, 64)).astype(np.float32)
    gradients = []
    for net in nets:
        net.blobs["x"].set(x)
        net.blobs["l"].set(np.zeros(400, np.float32))
        labels = net.forward()["best"].ravel()  # labels that this precision predicts
        net.blobs["l"].set(labels)
        assert net.forward()["accuracy"] == 1
        net.blobs["l"].set(np.arange(400, dtype=np.float32) % 200)
        net.forward()
        net.backward()
        gradients.append([each.diff.get() for each in net.params["score"]])
    assert [layer.type for layer in nets[1].graph.layers].count("Cast") == 1  # the Cast of x
    for fp32, bf16 in zip(*gradients, strict=True):
        np.testing.assert_allclose(bf16, fp32, atol=0.02 * np.abs(fp32).max())
