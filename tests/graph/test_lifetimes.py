"""What an op reads in backward is still in memory then. The memory plan reuses only memory that no op needs any
more."""

import numpy as np
import pytest

from engine import proto
from engine.net import PASSES
from tests.layers.harness import PRECISIONS, inputs, make_net, net_text, set_top_diff

X, CHANNELS, STAGES = (2, 16, 9, 8), 16, 3
CONVOLUTION = """layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
    num_output: {channels} kernel_size: 1 bias_term: {bias} weight_filler {{ type: "xavier" }} }} }}\n"""
FILLED = 'weight_filler { type: "xavier" }'
TWO = 'bottom: "a{i}" bottom: "b{i}"'
RELU = ' layer {{ name: "relu{i}" type: "ReLU" bottom: "y{i}" top: "y{i}" }}'
NORM = 'layer {{ name: "n{i}" type: "BatchNorm" bottom: "a{i}" top: "%s{i}" }}'
SUM = 'layer {{ name: "e{i}" type: "Eltwise" bottom: "%s{i}" bottom: "b{i}" top: "y{i}" eltwise_param {{ %s }} }}'


def one(type: str, params: str = "", bottoms: str = 'bottom: "a{i}"') -> str:
    params = params.replace("{", "{{").replace("}", "}}")
    return f'layer {{{{ name: "l{{i}}" type: "{type}" {bottoms} top: "y{{i}}" {params} }}}}'


# A layer that needs neither its bottom nor its top in backward.
MEANS = """layer {{ name: "m{i}" type: "Pooling" bottom: "y{i}" top: "m{i}" pooling_param {{
    pool: AVE kernel_size: 3 pad: 1 }} }}\n"""
GATE = """layer {{ name: "g{i}" type: "Pooling" bottom: "b{i}" top: "g{i}" pooling_param {{
    pool: AVE global_pooling: true }} }} layer {{ name: "s{i}" type: "Flatten" bottom: "g{i}" top: "s{i}" }} """
# What each stage computes of its convolutions a and b, as blob y.
LAYERS = {
    **{name: one(name) for name in ("AbsVal", "BNLL", "ELU", "PReLU", "ReLU", "Sigmoid", "Swish", "TanH", "Softmax")},
    "power": one("Power", "power_param { power: 2 shift: 3 }"),
    "exp": one("Exp", "exp_param { scale: 0.1 }"),
    "dropout": one("Dropout"),
    "activation behind a convolution": one(
        "Convolution", f"convolution_param {{ num_output: 16 kernel_size: 3 {FILLED} }}"
    )
    + RELU,
    "deconvolution": one("Deconvolution", f"convolution_param {{ num_output: 5 kernel_size: 2 {FILLED} }}"),
    "inner product": one("InnerProduct", f"inner_product_param {{ num_output: 7 axis: 3 {FILLED} }}"),
    "product": one("Eltwise", "eltwise_param { operation: PROD }", TWO),
    "maximum": one("Eltwise", "eltwise_param { operation: MAX }", TWO),
    "sum": SUM % ("a", "coeff: 2 coeff: 1"),
    "sum and ReLU": SUM % ("a", "coeff: 2 coeff: -1") + RELU,
    "scale": one("Scale", "scale_param { bias_term: true }"),
    "scale by a blob": one("Scale", "scale_param { axis: 0 }", TWO),
    "scale of channels": GATE + one("Scale", "scale_param { axis: 0 }", 'bottom: "a{i}" bottom: "s{i}"'),
    "bias": one("Bias", "bias_param { axis: 0 }", TWO),
    "norm": NORM % "y",
    "norm and ReLU": NORM % "y" + RELU,
    "norm and sum": NORM % "n" + SUM % ("n", ""),
    "norm, sum and ReLU": NORM % "n" + SUM % ("n", "") + RELU,
    "LRN": one("LRN", "lrn_param { local_size: 5 }"),
    "LRN by kernels of our own": one("LRN", "lrn_param { local_size: 7 }"),
    "LRN within": one("LRN", "lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }"),
    "MAX": one("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 }"),
    "AVE": one("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }"),
    "concat": one("Concat", "", TWO),
    "concat on another axis": one("Concat", "concat_param { axis: 2 }", TWO),
    "slice": 'layer {{ name: "l{i}" type: "Slice" bottom: "a{i}" top: "y{i}" top: "z{i}" }}',
    "crop": one("Crop", "crop_param { axis: 2 offset: 1 }", 'bottom: "a{i}" bottom: "window{i}"'),
    "interp": one("Interp", "interp_param { zoom_factor: 2 }"),
    "MVN": one("MVN"),
    "norms of pixels": one("Normalize"),
}


def results(text: str, **options) -> dict[str, np.ndarray]:
    net = make_net(text, proto.TRAIN, keep_all=False, **options)
    generator = np.random.default_rng(4)
    for tensors in net.params.values():
        for tensor in tensors:
            tensor.set(tensor.get() + generator.uniform(0, 0.1, tensor.shape).astype(np.float32))
    inputs(net)["x"].set(generator.normal(size=X).astype(np.float32))
    for _ in range(2):
        found = dict(net.forward())
        for name in found:
            if net.blobs[name].diff is not None:
                set_top_diff(net, name, np.random.default_rng(5).normal(size=found[name].shape))
        net.backward()
    for name, tensors in net.params.items():
        found |= {f"{name}[{i}]": each.diff.get() for i, each in enumerate(tensors) if each.diff is not None}
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_is_overwritten_while_somebody_needs_it(layer, precision):
    text, bottom = "", "x"
    for i in range(STAGES):
        for name in "ab" if '"b{i}"' in LAYERS[layer] else "a":
            text += CONVOLUTION.format(name=f"{name}{i}", bottom=bottom, channels=CHANNELS, bias="true")
        text, bottom = text + LAYERS[layer].format(i=i) + MEANS.format(i=i), f"m{i}"
    text += CONVOLUTION.format(name="last", bottom=bottom, channels=3, bias="false")
    windows = {f"window{i}": (2, CHANNELS, 8 - i, 7 - i) for i in range(STAGES) if "window" in text}
    text = net_text(text, x=X, **windows)
    planned, apart = (
        results(text, precision=precision, passes=passes) for passes in (PASSES, PASSES - {"memory_plan"})
    )
    assert any("a0" in name for name in apart)
    for name, values in apart.items():
        np.testing.assert_array_equal(planned[name], values, err_msg=name)
