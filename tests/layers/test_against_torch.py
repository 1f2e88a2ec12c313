"""PyTorch in float64 computes the same as layers do, forward and backward by autograd. Only for layers whose operation
PyTorch has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from engine import proto
from tests.layers.harness import inputs, make_net, net_text, set_top_diff

torch = pytest.importorskip("torch")
F = torch.nn.functional

RANDOM = np.random.default_rng(21)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.2, 2, shape).astype(np.float32)


def whole(high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, high, shape).astype(np.float32)


class Case(NamedTuple):
    layer: str  # type and fields
    bottoms: tuple[np.ndarray, ...]
    reference: object  # function of bottoms and params, which returns a tensor or a tuple of them
    phase: int = proto.TRAIN
    tops: int = 1


IMAGES = normal(2, 6, 9, 8)
WEIGHTS = "weight_filler { type: 'gaussian' std: 0.3 } bias_filler { type: 'gaussian' std: 0.3 }"


def convolution(params: str, *shape: int, **options) -> Case:
    function = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]
    layer = f"Convolution convolution_param {{ {params} {WEIGHTS} }}"
    return Case(layer, (normal(*shape),), lambda x, *params: function(x, *params, **options))


def deconvolution(params: str, *shape: int, **options) -> Case:
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(shape) - 3]
    layer = f"Deconvolution convolution_param {{ {params} {WEIGHTS} }}"
    return Case(layer, (normal(*shape),), lambda x, *params: function(x, *params, **options))


def pooling(params: str, function, *shape: int, **options) -> Case:
    return Case(f"Pooling pooling_param {{ {params} }}", (normal(*shape),), lambda x: function(x, **options))


WITH_WEIGHTS = [
    convolution("num_output: 5 kernel_size: 3 stride: 2 pad: 1", 2, 3, 11, stride=2, padding=1),
    convolution("num_output: 16 kernel_size: 3 pad: 1", 2, 3, 9, 8, padding=1),
    convolution("num_output: 16 kernel_size: 1 bias_term: false", 2, 32, 5, 6),
    convolution("num_output: 8 kernel_size: 3 group: 2", 2, 6, 9, 8, groups=2),
    convolution("num_output: 12 kernel_size: 3 group: 6 pad: 1", 2, 6, 9, 8, groups=6, padding=1),
    convolution("num_output: 4 kernel_size: 3 dilation: 2 dilation: 3 pad: 2", 2, 3, 9, 8, dilation=(2, 3), padding=2),
    convolution("num_output: 4 kernel_h: 1 kernel_w: 7 pad_w: 3 stride_h: 2 stride_w: 1", 2, 3, 9, 8, padding=(0, 3),
                stride=(2, 1)),
    convolution("num_output: 4 kernel_size: 2 stride: 1 stride: 2 stride: 1", 2, 3, 4, 5, 6, stride=(1, 2, 1)),
    Case(f"DepthwiseConvolution convolution_param {{ kernel_size: 3 pad: 1 {WEIGHTS} }}", (IMAGES,),
         lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=6)),
    deconvolution("num_output: 5 kernel_size: 4 stride: 2 pad: 1", 2, 3, 7, 6, stride=2, padding=1),
    deconvolution("num_output: 6 kernel_size: 4 stride: 2 group: 6 pad: 1 bias_term: false", 2, 6, 5, 4, stride=2,
                  padding=1, groups=6),
    deconvolution("num_output: 4 kernel_size: 3 group: 2 dilation: 2", 2, 6, 5, 4, groups=2, dilation=2),
    deconvolution("num_output: 3 kernel_size: 2 stride: 2", 2, 4, 3, 4, 3, stride=2),
    Case(f"InnerProduct inner_product_param {{ num_output: 7 {WEIGHTS} }}", (IMAGES,),
         lambda x, w, b: F.linear(x.flatten(1), w, b)),
    Case(f"InnerProduct inner_product_param {{ num_output: 7 axis: 2 transpose: true {WEIGHTS} }}", (normal(3, 4, 5),),
         lambda x, w, b: F.linear(x, w.T, b)),
    Case(f"Embed embed_param {{ num_output: 4 input_dim: 7 {WEIGHTS} }}", (whole(7, 3, 5),),
         lambda x, w, b: F.embedding(x.long(), w) + b),
    Case("PReLU", (IMAGES,), F.prelu),
    Case("PReLU prelu_param { channel_shared: true }", (IMAGES,), lambda x, w: F.prelu(x, w.reshape(1))),
    Case("Scale scale_param { bias_term: true }", (IMAGES,), lambda x, w, b: x * w[:, None, None] + b[:, None, None]),
    Case("Bias bias_param { axis: 2 num_axes: -1 }", (IMAGES,), torch.add),
]  # fmt: skip


def lstm(x, cont, of_x, bias, of_h):
    """Computes an LSTM. PyTorch has its gates in the order i, f, g, o."""
    of_x, bias, of_h = (torch.cat([each.chunk(4)[i] for i in (0, 1, 3, 2)]) for each in (of_x, bias, of_h))
    first = torch.zeros(1, 3, 4, dtype=x.dtype)
    params = [of_x, of_h, bias, torch.zeros_like(bias)]
    return torch.lstm(x, (first, first), params, True, 1, 0.0, True, False, False)[0]


def rnn(x, cont, of_x, bias, of_h, of_top, top_bias):
    first, params = torch.zeros(1, 3, 4, dtype=x.dtype), [of_x, of_h, bias, torch.zeros_like(bias)]
    hidden = torch.rnn_tanh(x, first, params, True, 1, 0.0, True, False, False)[0]
    return torch.tanh(F.linear(hidden, of_top, top_bias))


SEQUENCES = (normal(5, 3, 2), np.repeat(np.float32([[0], [1], [1], [1], [1]]), 3, axis=1))
RECURRENT = [
    Case("LSTM recurrent_param { num_output: 4 }", SEQUENCES, lstm),
    Case("RNN recurrent_param { num_output: 4 }", SEQUENCES, rnn),
]


def running(mean, variance, factor):
    return (mean / factor).detach(), (variance / factor).detach()


NORMS_AND_POOLS = [
    Case("BatchNorm batch_norm_param { eps: 0.01 }", (IMAGES,),
         lambda x, *sums: F.batch_norm(x, None, None, training=True, eps=0.01)),
    Case("BatchNorm", (IMAGES,),
         lambda x, *sums: F.batch_norm(x, *running(*sums), eps=1e-5), proto.TEST),
    Case("LRN lrn_param { local_size: 5 alpha: 0.5 beta: 0.6 k: 2 }", (normal(2, 16, 4, 5),),
         lambda x: F.local_response_norm(x, 5, 0.5, 0.6, 2)),
    Case("LRN lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", (IMAGES,),
         lambda x: x * (1 + 0.5 * F.avg_pool2d(x * x, 3, 1, 1)) ** -0.75),
    Case("MVN", (IMAGES,), lambda x: F.instance_norm(x, eps=1e-12)),
    Case("MVN mvn_param { across_channels: true }", (IMAGES,), lambda x: F.layer_norm(x, x.shape[1:], eps=1e-12)),
    Case("Normalize norm_param { across_spatial: false }", (IMAGES,), lambda x, scale: scale * F.normalize(x, dim=1)),
    Case("BN bn_param { eps: 0.01 }", (IMAGES,),
         lambda x, w, b, *running: F.batch_norm(x, None, None, w.flatten(), b.flatten(), training=True, eps=0.01)),
    pooling("kernel_size: 3 stride: 2", F.max_pool2d, 2, 6, 9, 8, kernel_size=3, stride=2, ceil_mode=True),
    pooling("kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR", F.max_pool2d, 2, 16, 9, 8, kernel_size=3, stride=2,
            padding=1),
    pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1", F.avg_pool2d, 2, 6, 8, 9, kernel_size=3, stride=2, padding=1,
            ceil_mode=True),
    pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1 avg_include_pad: false", F.avg_pool2d, 2, 6, 9, 9,
            kernel_size=3, stride=2, padding=1, count_include_pad=False),
    pooling("pool: AVE global_pooling: true", F.adaptive_avg_pool2d, 2, 6, 9, 8, output_size=1),
    pooling("kernel_size: 2 stride: 2", F.max_pool3d, 2, 3, 4, 6, 4, kernel_size=2),
    Case("SPP spp_param { pyramid_height: 3 }", (normal(2, 3, 8, 4),),
         lambda x: torch.cat([F.adaptive_max_pool2d(x, side).flatten(1) for side in (1, 2, 4)], 1)),
    Case("Im2col convolution_param { kernel_size: 3 pad: 1 stride: 2 }", (normal(2, 3, 9, 7),),
         lambda x: F.unfold(x, 3, padding=1, stride=2).reshape(2, 27, 5, 4)),
    Case("Interp interp_param { height: 17 width: 5 }", (IMAGES,),
         lambda x: F.interpolate(x, (17, 5), mode="bilinear", align_corners=True)),
]  # fmt: skip

FUNCTIONS = {
    "AbsVal": torch.abs,
    "BNLL": F.softplus,
    "Clip clip_param { min: -0.5 max: 0.8 }": lambda x: torch.clamp(x, -0.5, 0.8),
    "ELU elu_param { alpha: 0.3 }": lambda x: F.elu(x, 0.3),
    "Exp exp_param { base: 2 scale: 0.5 }": lambda x: torch.exp2(0.5 * x),
    "Log log_param { base: 10 shift: 9 }": lambda x: torch.log10(x + 9),
    "Power power_param { power: 3 scale: 0.5 shift: 1 }": lambda x: (1 + 0.5 * x) ** 3,
    "ReLU": torch.relu,
    "ReLU relu_param { negative_slope: 0.1 }": lambda x: F.leaky_relu(x, 0.1),
    "ReLU6": F.relu6,
    "Sigmoid": torch.sigmoid,
    "Swish": F.silu,
    "TanH": torch.tanh,
    "Threshold threshold_param { threshold: 0.3 }": lambda x: (x > 0.3).double(),
    "Softmax": lambda x: F.softmax(x, 1),
    "Softmax softmax_param { axis: -1 }": lambda x: F.softmax(x, -1),
    "ArgMax argmax_param { axis: 1 }": lambda x: x.argmax(1, keepdim=True).double(),
    "Flatten": lambda x: x.flatten(1),
    "Reshape reshape_param { shape { dim: 0 dim: -1 dim: 4 } }": lambda x: x.reshape(2, -1, 4),
    "Permute permute_param { order: 0 order: 2 order: 3 order: 1 }": lambda x: x.permute(0, 2, 3, 1),
    "Tile tile_param { axis: 1 tiles: 3 }": lambda x: x.tile(1, 3, 1, 1),
    "ShuffleChannel shuffle_channel_param { group: 3 }": lambda x: torch.channel_shuffle(x, 3),
    "Reduction reduction_param { operation: SUM axis: 1 coeff: 0.5 }": lambda x: 0.5 * x.sum((1, 2, 3)),
    "Reduction reduction_param { operation: MEAN axis: 2 }": lambda x: x.mean((2, 3)),
    "Reduction reduction_param { operation: ASUM axis: 3 }": lambda x: x.norm(p=1, dim=3),
    "Reduction reduction_param { operation: SUMSQ }": lambda x: x.square().sum(),
}

OF_SEVERAL = [
    Case("Eltwise eltwise_param { coeff: 1 coeff: -0.5 }", (IMAGES, normal(*IMAGES.shape)), lambda x, y: x - 0.5 * y),
    Case("Eltwise eltwise_param { operation: PROD }", (IMAGES, normal(*IMAGES.shape)), torch.mul),
    Case("Eltwise eltwise_param { operation: MAX }", (IMAGES, normal(*IMAGES.shape)), torch.maximum),
    Case("Scale scale_param { axis: 0 }", (IMAGES, normal(2, 6)), lambda x, w: x * w[:, :, None, None]),
    Case("Axpy", (normal(2, 6, 1, 1), IMAGES, normal(*IMAGES.shape)), lambda a, x, y: torch.addcmul(y, a, x)),
    Case("Concat", (IMAGES, normal(2, 5, 9, 8)), lambda x, y: torch.cat((x, y), 1)),
    Case("Slice slice_param { axis: 1 slice_point: 2 }", (IMAGES,), lambda x: torch.split(x, (2, 4), 1), tops=2),
    Case("Crop crop_param { axis: 2 offset: 1 offset: 3 }", (IMAGES, normal(1, 1, 6, 4)),
         lambda x, like: x[:, :, 1:7, 3:7]),
    Case("BatchReindex", (IMAGES, np.array([1, 0, 1], np.float32)), lambda x, rows: x.index_select(0, rows.long())),
    Case("SpatialTransformer st_param { output_H: 7 output_W: 5 }", (IMAGES, normal(2, 6)),
         lambda x, theta: transformed(x, theta, 7, 5)),
    Case("Filter", (normal(4, 3), np.array([1, 0, 1, 1], np.float32)),
         lambda x, chosen: F.pad(x[chosen != 0], (0, 0, 0, 1))),
]  # fmt: skip


def transformed(x, theta, height, width):
    """Computes a SpatialTransformer. PyTorch has columns before rows, and -1 and 1 are the outer borders of the first
    and the last pixel."""
    rows = (2 * torch.arange(height, dtype=x.dtype) / height - 1).reshape(-1, 1).expand(height, width)
    columns = (2 * torch.arange(width, dtype=x.dtype) / width - 1).expand(height, width)
    places = torch.stack([rows, columns, torch.ones_like(rows)], -1) @ theta.reshape(-1, 1, 2, 3).transpose(-1, -2)
    half = torch.tensor([1 / x.shape[3], 1 / x.shape[2]], dtype=x.dtype)
    return F.grid_sample(x, places.flip(-1) + half, align_corners=False)


SCORES, LABELS = normal(6, 5), whole(5, 6)
MAPS, LABEL_MAPS = normal(2, 5, 4, 3), whole(5, 2, 4, 3)
SIGNS = 2.0 * np.eye(5)[LABELS.astype(int)] - 1

TEXT = np.array([[3, 3, 1, 0], [5, 0, 0, 0], [1, 2, 6, 2], [4, 4, 4, 0]], np.float32)
STARTS = (np.arange(12)[:, None] < np.array([12, 12, 9, 6])).astype(np.float32)


def spelt(x, labels, times=(12,) * 4):
    """Returns the mean of the sequences' losses with the gradient of their sum, as forks of Caffe have it."""
    counts = (labels > 0).sum(1)
    losses = F.ctc_loss(F.log_softmax(x, 2), labels.long(), torch.tensor(times), counts, reduction="none")
    return losses.sum() - (losses.sum() - losses.mean()).detach()


def hinge(squared: bool):
    """Returns a hinge loss. PyTorch's takes distances; the scores times the signs of the labels are such."""

    def loss(x, labels):
        terms = F.hinge_embedding_loss(x * torch.from_numpy(SIGNS), torch.tensor(-1.0), margin=1, reduction="none")
        return (terms**2 if squared else terms).sum() / len(x)

    return loss


LOSSES = [
    Case("SoftmaxWithLoss", (SCORES, LABELS), lambda x, t: F.cross_entropy(x, t.long())),
    Case("SoftmaxWithLoss loss_param { ignore_label: 2 }", (MAPS, LABEL_MAPS),
         lambda x, t: F.cross_entropy(x, t.long(), ignore_index=2)),
    Case("SoftmaxWithLoss loss_param { label_smoothing: 0.1 }", (SCORES, LABELS),
         lambda x, t: F.cross_entropy(x, t.long(), label_smoothing=0.1)),
    Case("MultinomialLogisticLoss", (positive(6, 5), LABELS), lambda p, t: F.nll_loss(p.log(), t.long())),
    Case("InfogainLoss", (SCORES, LABELS, positive(5, 5)), lambda x, t, h: F.cross_entropy(x, h[t.long()])),
    Case("SigmoidCrossEntropyLoss", (MAPS, whole(2, 2, 5, 4, 3)),
         lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="sum") / 2),
    Case("EuclideanLoss", (SCORES, normal(6, 5)), lambda x, t: F.mse_loss(x, t, reduction="sum") / 12),
    Case("L1Loss", (SCORES, normal(6, 5)), lambda x, t: F.l1_loss(x, t, reduction="sum") / 6),
    Case("SmoothL1Loss smooth_l1_loss_param { sigma: 2 }", (SCORES, normal(6, 5)),
         lambda x, t: F.smooth_l1_loss(x, t, beta=0.25, reduction="sum") / 6),
    Case("HingeLoss", (SCORES, LABELS), hinge(squared=False)),
    Case("HingeLoss hinge_loss_param { norm: L2 }", (SCORES, LABELS), hinge(squared=True)),
    Case("CtcLoss", (normal(12, 4, 7), TEXT), lambda x, t: spelt(x, t)),
    Case("CTCLoss", (normal(12, 4, 7), STARTS, np.where(TEXT > 0, TEXT - 1, -1).T),
         lambda x, starts, t: spelt(x.roll(1, 2), t.T + 1, [12, 12, 9, 6])),
    Case("ContrastiveLoss contrastive_loss_param { margin: 3 }", (SCORES, normal(6, 5), whole(2, 6)),
         lambda a, b, same: contrastive(F.pairwise_distance(a, b, eps=0), same)),
]  # fmt: skip


def contrastive(distance, same):
    return (same * distance**2 + (1 - same) * F.relu(3 - distance) ** 2).sum() / (2 * len(same))


CASES = [*WITH_WEIGHTS, *RECURRENT, *NORMS_AND_POOLS, *OF_SEVERAL, *LOSSES]
CASES += [Case(layer, (2 * IMAGES,), function) for layer, function in FUNCTIONS.items()]


def text_of(case: Case) -> str:
    kind, _, fields = case.layer.partition(" ")
    ends = [f'bottom: "x{i}"' for i in range(len(case.bottoms))] + [f'top: "y{i}"' for i in range(case.tops)]
    layer = f'layer {{ name: "layer" type: "{kind}" {" ".join(ends)} {fields} }}'
    return net_text(layer, **{f"x{i}": values.shape for i, values in enumerate(case.bottoms)})


def same(what: str, ours: np.ndarray, theirs) -> None:
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, what
    size = max(1.0, np.abs(theirs).max(initial=0))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * size, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.layer[:60])
def test_layer(case):
    net = make_net(text_of(case), case.phase)
    bottoms, params = inputs(net), net.params.get("layer", [])
    for i, values in enumerate(case.bottoms):
        bottoms[f"x{i}"].set(values)
    for tensor in params:
        tensor.set(positive(*tensor.get().shape) if case.layer.startswith("BatchNorm") else normal(*tensor.get().shape))
    known = [torch.tensor(values.astype(np.float64), requires_grad=True) for values in case.bottoms]
    known += [torch.tensor(tensor.get().astype(np.float64), requires_grad=True) for tensor in params]

    net.forward()
    expected = case.reference(*known)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(expected) == case.tops
    for i, value in enumerate(expected):
        same(f"top {i}", net.blobs[f"y{i}"].data, value)

    if not expected[0].requires_grad:
        return
    given = [torch.from_numpy(RANDOM.normal(size=tuple(value.shape))) for value in expected]
    if net.losses():
        given = [torch.tensor(1.0, dtype=torch.float64)]
    else:
        for i, value in enumerate(given):
            set_top_diff(net, f"y{i}", value.numpy().astype(np.float32))
    net.backward()
    torch.autograd.backward(expected, given)
    ours = [blob.diff for blob in bottoms.values()]
    ours += [tensor.diff.get() if tensor.diff is not None else None for tensor in params]
    assert any(gradient is not None for gradient in ours)
    for i, (gradient, tensor) in enumerate(zip(ours, known)):
        if gradient is not None:
            wanted = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            same(f"gradient of {'bottom' if i < len(case.bottoms) else 'param'} {i}", gradient, wanted)


def test_running_statistics():
    """After one batch the sums hold its mean and its unbiased variance."""
    net = make_net(net_text('layer { name: "layer" type: "BatchNorm" bottom: "x" top: "y" }', x=IMAGES.shape))
    net.blobs["x"].set(IMAGES)
    net.forward()
    mean, variance, factor = (tensor.get() for tensor in net.params["layer"])
    wanted = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    F.batch_norm(torch.from_numpy(IMAGES.astype(np.float64)), *wanted, training=True, momentum=1)
    same("mean", mean / factor, wanted[0])
    same("variance", variance / factor, wanted[1])
