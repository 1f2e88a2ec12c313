"""The cases of layers.py: single layers, each beside PyTorch's ops that compute the same. Shapes are from public
nets."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """A layer to time.

    layer: its text, without name, bottoms and top.
    op: the same as an expression in PyTorch. x, y, z are the bottoms, p the parameters, F is torch.nn.functional.
    shapes: of the bottoms.
    classes: the number of classes, of which the last bottom has labels; 0 if it has none.
    positive: whether the values of the first bottom are above 0.
    random: whether the layer draws random numbers, so that tops differ.
    gradient: whether it has a backward.
    """

    layer: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    classes: int = 0
    positive: bool = False
    random: bool = False
    gradient: bool = True

    @property
    def learns(self) -> tuple[bool, ...]:
        """Whether each bottom gets a gradient."""
        return tuple(i < len(self.shapes) - bool(self.classes) for i in range(len(self.shapes)))

    @property
    def follows_convolution(self) -> bool:
        """Whether the layer can be timed behind convolutions: its first bottom has planes and gets a gradient."""
        return len(self.shapes[0]) == 4 and self.learns[0] and self.gradient

    def bottoms(self) -> list[np.ndarray]:
        """Returns values for the bottoms, the same each time."""
        draw = np.random.default_rng(1)
        values = [draw.standard_normal(shape, np.float32) for shape in self.shapes]
        if self.positive:
            values[0] = np.abs(values[0]) + np.float32(0.1)
        if self.classes:
            values[-1] = draw.integers(0, self.classes, self.shapes[-1]).astype(np.float32)
        return values


# Shapes of blobs of ResNet; those in CASES are also from AlexNet, GoogLeNet, LeNet, DeepLab, C3D, MobileNet and DCGAN.
PLANES = (32, 64, 56, 56)
LARGE = (32, 64, 112, 112)


def of_one(layer: str, op: str, shape: tuple[int, ...] = PLANES, **more) -> Case:
    return Case(layer, op, (shape,), **more)


def of_two(layer: str, op: str) -> Case:
    return Case(layer, op, (PLANES, PLANES))


def weighted(kind: str, param: str, op: str, *shape: int) -> Case:
    return Case(f'type: "{kind}" convolution_param {{ {param} }}', op, (shape,))


def text_of(case: Case, behind_convolutions: bool) -> str:
    """Returns the text of a net with Input layers, and a convolution behind each if wanted, and the case's layer."""
    text, bottoms = "force_backward: true\n", ""
    for i, (shape, learns) in enumerate(zip(case.shapes, case.learns, strict=True)):
        dims = " ".join(f"dim: {dim}" for dim in shape)
        text += f'layer {{ name: "b{i}" type: "Input" top: "b{i}" input_param {{ shape {{ {dims} }} }} }}\n'
        if behind_convolutions and learns and len(shape) == 4:
            param = f"num_output: {shape[1]} kernel_size: 1 bias_term: false"
            text += f'layer {{ name: "c{i}" type: "Convolution" bottom: "b{i}" top: "c{i}" '
            text += f"convolution_param {{ {param} }} }}\n"
            bottoms += f'bottom: "c{i}" '
        else:
            bottoms += f'bottom: "b{i}" '
    weight = "loss_weight: 1" if case.gradient and "Loss" not in case.layer else ""
    return text + f'layer {{ name: "layer" {bottoms} top: "top" {case.layer} {weight} }}\n'


CASES = {
    "ReLU": of_one('type: "ReLU"', "F.relu(x)"),
    "ReLU, leaky": of_one('type: "ReLU" relu_param { negative_slope: 0.1 }', "F.leaky_relu(x, 0.1)"),
    "PReLU": of_one('type: "PReLU"', "F.prelu(x, p[0])"),
    "ELU": of_one('type: "ELU"', "F.elu(x)"),
    "Sigmoid": of_one('type: "Sigmoid"', "torch.sigmoid(x)"),
    "TanH": of_one('type: "TanH"', "torch.tanh(x)"),
    "Swish": of_one('type: "Swish"', "F.silu(x)"),
    "BNLL": of_one('type: "BNLL"', "F.softplus(x)"),
    "ReLU6": of_one('type: "ReLU6"', "F.relu6(x)"),
    "AbsVal": of_one('type: "AbsVal"', "torch.abs(x)"),
    "Exp": of_one('type: "Exp"', "torch.exp(x)"),
    "Log": of_one('type: "Log"', "torch.log(x)", positive=True),
    "Power, a square": of_one('type: "Power" power_param { power: 2 }', "x**2"),
    "Power, linear": of_one('type: "Power" power_param { scale: 2 shift: 1 }', "2 * x + 1"),
    "Power of 0.75": of_one('type: "Power" power_param { power: 0.75 }', "x**0.75", positive=True),
    "Clip": of_one('type: "Clip" clip_param { min: -1 max: 1 }', "torch.clamp(x, -1, 1)"),
    "Dropout": of_one('type: "Dropout"', "F.dropout(x, 0.5)", random=True),
    "BatchNorm": of_one('type: "BatchNorm"', "F.batch_norm(x, None, None, training=True)"),
    "Scale": of_one(
        'type: "Scale" scale_param { bias_term: true }', "x * p[0].view(1, -1, 1, 1) + p[1].view(1, -1, 1, 1)"
    ),
    "Bias": of_one('type: "Bias"', "x + p[0].view(1, -1, 1, 1)"),
    "MVN": of_one('type: "MVN"', "F.instance_norm(x)"),
    "Normalize": of_one(
        'type: "Normalize" norm_param { across_spatial: false channel_shared: false }',
        "F.normalize(x, dim=1) * p[0].view(1, -1, 1, 1)",
        (8, 512, 38, 38),
    ),
    "LRN": of_one(
        'type: "LRN" lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }',
        "F.local_response_norm(x, 5)",
        (32, 96, 27, 27),
    ),
    "LRN within channels": of_one(
        'type: "LRN" lrn_param { local_size: 3 alpha: 0.00005 beta: 0.75 norm_region: WITHIN_CHANNEL }',
        "x * (1 + 0.00005 * F.avg_pool2d(x**2, 3, 1, 1)) ** -0.75",
        (100, 32, 16, 16),
    ),
    "Pooling, maximum of 3 x 3": of_one(
        'type: "Pooling" pooling_param { pool: MAX kernel_size: 3 stride: 2 }',
        "F.max_pool2d(x, 3, 2, ceil_mode=True)",
        LARGE,
    ),
    "Pooling, maximum of 2 x 2": of_one(
        'type: "Pooling" pooling_param { pool: MAX kernel_size: 2 stride: 2 }', "F.max_pool2d(x, 2, 2)", LARGE
    ),
    "Pooling, mean of 3 x 3": of_one(
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 1 }',
        "F.avg_pool2d(x, 3, 1)",
        (32, 192, 28, 28),
    ),
    "Pooling, global mean": of_one(
        'type: "Pooling" pooling_param { pool: AVE global_pooling: true }',
        "F.adaptive_avg_pool2d(x, 1)",
        (32, 2048, 7, 7),
    ),
    "Pooling, maximum of 2 x 2 x 2": of_one(
        f'type: "Pooling" pooling_param {{ pool: MAX {"kernel_size: 2 stride: 2 " * 3} }}',
        "F.max_pool3d(x, 2, 2)",
        (4, 64, 8, 56, 56),
    ),
    "Softmax": of_one('type: "Softmax"', "torch.softmax(x, 1)", (256, 1000)),
    "Softmax of pixels": of_one('type: "Softmax"', "torch.softmax(x, 1)", (8, 21, 128, 128)),
    "SoftmaxWithLoss": Case(
        'type: "SoftmaxWithLoss"', "F.cross_entropy(x, y.long())", ((256, 1000), (256,)), classes=1000
    ),
    "SoftmaxWithLoss of pixels": Case(
        'type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }',
        "F.cross_entropy(x, y[:, 0].long(), ignore_index=255)",
        ((8, 21, 256, 256), (8, 1, 256, 256)),
        classes=21,
    ),
    "SigmoidCrossEntropyLoss": Case(
        'type: "SigmoidCrossEntropyLoss"',
        "F.binary_cross_entropy_with_logits(x, y, reduction='sum') / 32",
        ((32, 1, 256, 256), (32, 1, 256, 256)),
        classes=2,
    ),
    "EuclideanLoss": Case(
        'type: "EuclideanLoss"', "F.mse_loss(x, y, reduction='sum') / 64", ((32, 3, 128, 128), (32, 3, 128, 128))
    ),
    "SmoothL1Loss": Case(
        'type: "SmoothL1Loss"', "F.smooth_l1_loss(x, y, reduction='sum') / 128", ((128, 84), (128, 84))
    ),
    "HingeLoss": Case(
        'type: "HingeLoss"',
        "torch.relu(1 + x * (1 - 2 * F.one_hot(y.long(), 1000))).sum() / 256",
        ((256, 1000), (256,)),
        classes=1000,
    ),
    "Eltwise, sum": of_two('type: "Eltwise"', "x + y"),
    "Eltwise, product": of_two('type: "Eltwise" eltwise_param { operation: PROD }', "x * y"),
    "Eltwise, maximum": of_two('type: "Eltwise" eltwise_param { operation: MAX }', "torch.maximum(x, y)"),
    "Axpy": Case('type: "Axpy"', "torch.addcmul(z, x, y)", ((32, 64, 1, 1), PLANES, PLANES)),
    "Concat": of_two('type: "Concat"', "torch.cat((x, y), 1)"),
    "Tile": of_one('type: "Tile" tile_param { axis: 1 tiles: 4 }', "x.repeat(1, 4, 1, 1)", (32, 16, 56, 56)),
    "Reduction": of_one('type: "Reduction" reduction_param { axis: 1 }', "x.sum((1, 2, 3))"),
    "Crop": Case(
        'type: "Crop" crop_param { axis: 2 offset: 4 }',
        "x[:, :, 4:260, 4:260].contiguous()",
        ((8, 21, 264, 264), (1, 1, 256, 256)),
        classes=2,
    ),
    "Permute": of_one(
        'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }',
        "x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)",
    ),
    "ShuffleChannel": of_one('type: "ShuffleChannel" shuffle_channel_param { group: 4 }', "F.channel_shuffle(x, 4)"),
    "ArgMax of pixels": of_one(
        'type: "ArgMax" argmax_param { axis: 1 }',
        "x.argmax(1, keepdim=True).float()",
        (8, 21, 256, 256),
        gradient=False,
    ),
    "Interp": of_one(
        'type: "Interp" interp_param { zoom_factor: 2 }',
        "F.interpolate(x, (65, 65), mode='bilinear', align_corners=True)",
        (8, 64, 33, 33),
    ),
    "Upsample": of_one(
        'type: "Upsample" upsample_param { scale: 2 }', "F.interpolate(x, scale_factor=2)", (8, 256, 26, 26)
    ),
    "Im2col": of_one(
        'type: "Im2col" convolution_param { kernel_size: 3 pad: 1 }',
        "F.unfold(x, 3, padding=1).view(8, -1, 56, 56)",
        (8, 64, 56, 56),
    ),
    "BatchReindex": Case(
        'type: "BatchReindex"', "x.index_select(0, y.long())", ((128, 64, 14, 14), (128,)), classes=128
    ),
    "Embed": Case(
        'type: "Embed" embed_param { input_dim: 10000 num_output: 512 }',
        "F.embedding(x.long(), p[0]) + p[1]",
        ((20, 64),),
        classes=10000,
    ),
    "InnerProduct": of_one(
        'type: "InnerProduct" inner_product_param { num_output: 4096 }', "F.linear(x, p[0], p[1])", (32, 9216)
    ),
    "InnerProduct, small": of_one(
        'type: "InnerProduct" inner_product_param { num_output: 500 }', "F.linear(x, p[0], p[1])", (64, 800)
    ),
    "Convolution, 3 x 3": weighted(
        "Convolution", "num_output: 64 kernel_size: 3 pad: 1", "F.conv2d(x, p[0], p[1], padding=1)", *PLANES
    ),
    "Convolution, 5 x 5": weighted(
        "Convolution",
        "num_output: 256 kernel_size: 5 pad: 2 group: 2",
        "F.conv2d(x, p[0], p[1], padding=2, groups=2)",
        *(32, 96, 27, 27),
    ),
    "Convolution, 1 x 1": weighted(
        "Convolution", "num_output: 64 kernel_size: 1", "F.conv2d(x, p[0], p[1])", 32, 256, 56, 56
    ),
    "Convolution of 3 channels": weighted(
        "Convolution",
        "num_output: 64 kernel_size: 7 stride: 2 pad: 3",
        "F.conv2d(x, p[0], p[1], stride=2, padding=3)",
        *(32, 3, 224, 224),
    ),
    "Convolution of 20 channels": weighted(
        "Convolution", "num_output: 50 kernel_size: 5", "F.conv2d(x, p[0], p[1])", 64, 20, 12, 12
    ),
    "Convolution, 32 groups": weighted(
        "Convolution",
        "num_output: 256 kernel_size: 3 pad: 1 group: 32",
        "F.conv2d(x, p[0], p[1], padding=1, groups=32)",
        *(16, 256, 28, 28),
    ),
    "Convolution, depthwise": weighted(
        "Convolution",
        "num_output: 144 kernel_size: 3 pad: 1 group: 144",
        "F.conv2d(x, p[0], p[1], padding=1, groups=144)",
        *(16, 144, 56, 56),
    ),
    "Convolution, dilated": weighted(
        "Convolution",
        "num_output: 256 kernel_size: 3 pad: 4 dilation: 4",
        "F.conv2d(x, p[0], p[1], padding=4, dilation=4)",
        *(4, 256, 41, 41),
    ),
    "Convolution, 1 x 7": weighted(
        "Convolution",
        "num_output: 128 kernel_h: 1 kernel_w: 7 pad_h: 0 pad_w: 3",
        "F.conv2d(x, p[0], p[1], padding=(0, 3))",
        *(16, 128, 17, 17),
    ),
    "Convolution, 3 x 3 x 3": weighted(
        "Convolution",
        "num_output: 128 " + "kernel_size: 3 pad: 1 " * 3,
        "F.conv3d(x, p[0], p[1], padding=1)",
        *(2, 64, 8, 56, 56),
    ),
    "Convolution, 3": weighted(
        "Convolution", "num_output: 128 kernel_size: 3 pad: 1", "F.conv1d(x, p[0], p[1], padding=1)", 32, 128, 512
    ),
    "Deconvolution": weighted(
        "Deconvolution",
        "num_output: 128 kernel_size: 4 stride: 2 pad: 1",
        "F.conv_transpose2d(x, p[0], p[1], stride=2, padding=1)",
        *(32, 256, 16, 16),
    ),
    "Deconvolution, depthwise": weighted(
        "Deconvolution",
        "num_output: 21 group: 21 kernel_size: 16 stride: 8 bias_term: false",
        "F.conv_transpose2d(x, p[0], stride=8, groups=21)",
        *(4, 21, 34, 34),
    ),
    "Deconvolution of one pixel": weighted(
        "Deconvolution",
        "num_output: 512 kernel_size: 4 bias_term: false",
        "F.conv_transpose2d(x, p[0])",
        *(64, 100, 1, 1),
    ),
}
