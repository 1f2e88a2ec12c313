"""Exports each layer type to ONNX: ONNX Runtime has to compute the same, also for twice the batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from engine.config import parse_net
from engine.exchange.onnx_export import export_onnx
from engine.exchange.onnx_import import import_onnx
from engine.exchange.to_onnx.registry import exported_types
from tests.exchange import harness
from tests.layers.harness import net_text

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.2, 2, shape).astype(np.float32)


class Case(NamedTuple):
    layer: str  # its type, then the text of its fields
    bottoms: tuple[np.ndarray, ...]
    tops: int = 1
    grows: bool = True  # it can be computed for twice the batch, too


IMAGES = normal(2, 6, 9, 8)
ROWS = normal(3, 10)
STEPS = normal(5, 3, 4)
CONT = np.array([[1, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]], np.float32)


def pooling(fields: str, *shape: int) -> Case:
    return Case(f"Pooling pooling_param {{ {fields} }}", (normal(*(shape or (2, 3, 9, 8))),))


CASES = [
    Case("AbsVal", (IMAGES,)),
    Case("ArgMax argmax_param { top_k: 3 axis: 1 }", (IMAGES,)),
    Case("ArgMax argmax_param { top_k: 3 out_max_val: true }", (IMAGES,)),
    Case("ArgMax argmax_param { axis: -1 out_max_val: true }", (ROWS,)),
    Case("ArgMax", (np.round(ROWS),)),  # equal values
    Case("Axpy", (normal(2, 6, 1, 1), IMAGES, normal(2, 6, 9, 8))),
    Case("Axpy", (normal(2, 6), IMAGES, normal(2, 6, 9, 8))),
    Case("BatchNorm batch_norm_param { eps: 0.01 }", (IMAGES,)),
    Case("BatchNorm batch_norm_param { use_global_stats: false }", (IMAGES,), grows=False),
    Case("BatchNorm", (ROWS,)),
    Case("BatchNorm batch_norm_param { scale_bias: true }", (IMAGES,)),
    Case("BatchNorm batch_norm_param { scale_bias: true use_global_stats: false }", (IMAGES,), grows=False),
    Case("BatchReindex", (ROWS, np.array([2, 0, 0, 1], np.float32)), grows=False),
    Case("Bias", (IMAGES,)),
    Case("Bias bias_param { axis: 0 }", (IMAGES, normal(2, 6))),
    Case("BN", (IMAGES,)),
    Case("BN bn_param { bn_mode: INFERENCE }", (IMAGES,)),
    Case("BN bn_param { bn_mode: LEARN }", (IMAGES,), grows=False),
    Case("BNLL", (IMAGES,)),
    Case("Clip clip_param { min: -0.5 max: 0.7 }", (IMAGES,)),
    Case("Concat", (IMAGES, normal(2, 3, 9, 8))),
    Case("Concat concat_param { axis: 0 }", (ROWS, ROWS)),
    Case("Convolution convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 }", (IMAGES,)),
    Case("Convolution convolution_param { num_output: 4 kernel_h: 1 kernel_w: 3 pad_w: 1 bias_term: false "
         "dilation: 1 dilation: 2 }", (IMAGES,)),
    Case("Convolution convolution_param { num_output: 4 kernel_size: 3 relu: true negative_slope: 0.1 }", (IMAGES,)),
    Case("Convolution convolution_param { num_output: 2 kernel_size: 2 }", (normal(2, 3, 4, 5, 6),)),
    Case("DepthwiseConvolution convolution_param { kernel_size: 3 }", (IMAGES,)),
    Case("Crop crop_param { axis: 2 offset: 2 offset: 1 }", (IMAGES, normal(2, 1, 4, 5))),
    Case("Crop crop_param { axis: 1 offset: 1 }", (IMAGES, normal(2, 2, 8, 7))),
    Case("Deconvolution convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 group: 2 }", (IMAGES,)),
    Case("Deconvolution convolution_param { num_output: 6 kernel_size: 3 group: 6 bias_term: false }", (IMAGES,)),
    Case("Dropout", (IMAGES,)),
    Case("Dropout dropout_param { scale_train: false dropout_ratio: 0.4 }", (IMAGES,)),
    Case("Eltwise", (IMAGES, normal(2, 6, 9, 8), IMAGES)),
    Case("Eltwise eltwise_param { coeff: 1 coeff: -0.5 }", (IMAGES, normal(2, 6, 9, 8))),
    Case("Eltwise eltwise_param { operation: PROD }", (IMAGES, normal(2, 6, 9, 8))),
    Case("Eltwise eltwise_param { operation: MAX }", (IMAGES, normal(2, 6, 9, 8), normal(2, 6, 9, 8))),
    Case("ELU elu_param { alpha: 0.3 }", (IMAGES,)),
    Case("ELU elu_param { alpha: 1.6733 lambda: 1.0507 }", (IMAGES,)),
    Case("Embed embed_param { num_output: 4 input_dim: 7 }", (np.array([[0, 6, 3], [2, 2, 5]], np.float32),)),
    Case("Exp exp_param { base: 2 scale: 0.5 shift: 1 }", (IMAGES,)),
    Case("Exp", (IMAGES,)),
    Case("Exp exp_param { base: 2 scale: 0.5 shift: 1 }", (normal(),), grows=False),
    Case("Flatten", (IMAGES,)),
    Case("Flatten flatten_param { axis: 2 }", (IMAGES,)),
    Case("Flatten flatten_param { axis: 0 end_axis: 1 }", (IMAGES,)),
    Case("Im2col convolution_param { kernel_size: 3 stride: 2 pad: 1 }", (IMAGES,)),
    Case("InnerProduct inner_product_param { num_output: 5 }", (IMAGES,)),
    Case("InnerProduct inner_product_param { num_output: 5 transpose: true bias_term: false }", (ROWS,)),
    Case("InnerProduct inner_product_param { num_output: 5 axis: 2 }", (IMAGES,)),
    Case("InnerProduct inner_product_param { num_output: 5 axis: -1 transpose: true }", (STEPS,)),
    Case("InnerProduct inner_product_param { num_output: 5 normalize: true bias_term: false }", (IMAGES,)),
    Case("Interp interp_param { height: 13 width: 5 }", (IMAGES,)),
    Case("Interp interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }", (IMAGES,)),
    Case("Interp interp_param { shrink_factor: 3 }", (IMAGES,)),
    Case("Log log_param { base: 10 scale: 2 shift: 1 }", (positive(2, 3, 4),)),
    Case("LRN lrn_param { local_size: 3 alpha: 0.7 beta: 0.6 k: 1.5 }", (IMAGES,)),
    Case("LRN lrn_param { local_size: 3 alpha: 0.7 beta: 0.6 norm_region: WITHIN_CHANNEL }", (IMAGES,)),
    Case("LSTM recurrent_param { num_output: 4 }", (STEPS, CONT)),
    Case("LSTM recurrent_param { num_output: 4 }", (normal(5, 3, 2, 2), CONT, normal(3, 2)), grows=False),
    Case("LSTM recurrent_param { num_output: 4 expose_hidden: true }",
         (STEPS, CONT, normal(1, 3, 4), normal(1, 3, 4)), tops=3),
    Case("MVN", (IMAGES,)),
    Case("MVN mvn_param { across_channels: true eps: 0.1 }", (IMAGES,)),
    Case("MVN mvn_param { normalize_variance: false }", (IMAGES,)),
    Case("MVN", (ROWS,)),
    Case("Normalize", (IMAGES,)),
    Case("Normalize norm_param {}", (IMAGES,)),
    Case("Normalize normalize_param { normalize_type: 'L1' }", (IMAGES,)),
    Case("Normalize", (IMAGES,), tops=2),
    Case("Normalize norm_param { across_spatial: false channel_shared: false }", (IMAGES,)),
    Case("Parameter parameter_param { shape { dim: 3 dim: 4 } }", ()),
    Case("Permute permute_param { order: 0 order: 2 order: 3 order: 1 }", (IMAGES,)),
    Case("Permute permute_param { order: 1 }", (ROWS,)),
    pooling("kernel_size: 3 stride: 2"),
    pooling("kernel_size: 3 stride: 2 pad: 1"),
    pooling("kernel_size: 2 stride: 2 pad: 1"),  # the last window would start in the padding
    pooling("kernel_size: 3 stride: 2 round_mode: FLOOR", 2, 3, 8, 8),
    pooling("kernel_size: 2 stride: 3"),
    pooling("pool: AVE kernel_size: 3 stride: 2"),
    pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1"),
    pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1", 2, 3, 7, 8),
    pooling("pool: AVE kernel_size: 5 stride: 3 pad: 1", 2, 3, 6, 9),  # windows reach beyond the padding
    pooling("pool: AVE kernel_size: 3 pad: 1 avg_include_pad: false"),
    pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR"),
    pooling("pool: AVE global_pooling: true"),
    pooling("pool: MAX global_pooling: true"),
    pooling("kernel_h: 1 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1"),
    pooling("pool: AVE kernel_size: 2 stride: 2", 2, 3, 5, 4, 7),
    Case("Power power_param { power: 2 scale: -0.5 shift: 0.3 }", (IMAGES,)),
    Case("Power power_param { scale: 3 }", (IMAGES,)),
    Case("Power", (IMAGES,)),
    Case("Power power_param { power: 2 scale: -0.5 shift: 0.3 }", (normal(),), grows=False),
    Case("PReLU", (IMAGES,)),
    Case("PReLU prelu_param { channel_shared: true }", (IMAGES,)),
    Case("PriorBox prior_box_param { min_size: 4 max_size: 9 aspect_ratio: 2 flip: true clip: true variance: 0.1 "
         "variance: 0.1 variance: 0.2 variance: 0.2 }", (IMAGES, normal(2, 3, 32, 40))),
    Case("Reduction reduction_param { axis: 1 operation: MEAN coeff: 2 }", (IMAGES,)),
    Case("Reduction reduction_param { axis: 2 operation: ASUM }", (IMAGES,)),
    Case("Reduction reduction_param { axis: 1 operation: SUMSQ }", (IMAGES,)),
    Case("Reduction reduction_param { coeff: 3 }", (ROWS,), grows=False),  # to a number
    Case("ReLU", (IMAGES,)),
    Case("ReLU relu_param { negative_slope: 0.2 }", (IMAGES,)),
    Case("ReLU6", (5 * IMAGES,)),
    Case("Reorg reorg_param { stride: 2 }", (normal(2, 8, 6, 4),)),
    Case("Reorg reorg_param { stride: 2 reverse: true }", (normal(2, 8, 6, 4),)),
    Case("Reshape reshape_param { shape { dim: 0 dim: -1 dim: 4 } }", (IMAGES,)),
    Case("Reshape reshape_param { shape { dim: -1 dim: 4 } }", (IMAGES,)),
    Case("Reshape reshape_param { shape { dim: 2 dim: -1 } }", (IMAGES,)),
    Case("RNN recurrent_param { num_output: 4 }", (STEPS, CONT)),
    Case("RNN recurrent_param { num_output: 4 expose_hidden: true }", (STEPS, CONT, normal(1, 3, 4)), tops=2),
    Case("ROIPooling roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }",
         (IMAGES, np.array([[0, 0, 0, 13, 11], [1, 2, 4, 9, 15], [1, 6, 6, 8, 8]], np.float32)), grows=False),
    Case("Scale scale_param { bias_term: true }", (IMAGES,)),
    Case("Scale scale_param { axis: 2 num_axes: -1 }", (IMAGES,)),
    Case("Scale scale_param { axis: 0 bias_term: true }", (IMAGES, normal(2, 6)), grows=False),
    Case("Scale scale_param { axis: 0 }", (IMAGES, normal(2, 6))),
    Case("ShuffleChannel shuffle_channel_param { group: 3 }", (IMAGES,)),
    Case("Sigmoid", (IMAGES,)),
    Case("Slice slice_param { slice_point: 1 slice_point: 4 }", (IMAGES,), tops=3),
    Case("Slice slice_param { axis: 0 }", (normal(4, 3),), tops=2),
    Case("Softmax", (IMAGES,)),
    Case("Softmax softmax_param { axis: -1 }", (IMAGES,)),
    Case("GradientScaler", (IMAGES, ROWS), tops=2, grows=False),
    Case("SpatialDropout", (IMAGES,)),
    Case("Split", (IMAGES,), tops=2),
    Case("SPP spp_param { pyramid_height: 3 }", (normal(2, 3, 9, 8),)),
    Case("SPP spp_param { pyramid_height: 2 pool: AVE }", (normal(2, 3, 7, 9),)),
    Case("Swish swish_param { beta: 1.5 }", (IMAGES,)),
    Case("Upsample upsample_param { scale_h: 2 scale_w: 3 }", (IMAGES,)),
    Case("TanH", (IMAGES,)),
    Case("Threshold threshold_param { threshold: 0.3 }", (IMAGES,)),
    Case("Tile tile_param { axis: 2 tiles: 3 }", (IMAGES,)),
]  # fmt: skip

# The beginnings of cases that cannot be imported again, since no layer computes the operators they are written with.
ONE_WAY = ("LSTM", "RNN", "Pooling pooling_param { kernel_size: 2 stride: 3 }")

# Types that need no case, since a type with a case has the same function.
SYNONYMS = {"ConvolutionDepthwise", "ConvolutionDepthWise", "Cast"}


def text_of(case: Case, batch: int = 1) -> str:
    kind, _, fields = case.layer.partition(" ")
    names = [f"x{i}" for i in range(len(case.bottoms))]
    shapes = {name: x.shape for name, x in zip(names, twice(case, batch).values())}
    blobs = [f'bottom: "{name}"' for name in names] + [f'top: "y{i}"' for i in range(case.tops)]
    return net_text(f'layer {{ name: "y" type: "{kind}" {" ".join(blobs)} {fields} }}', **shapes)


def twice(case: Case, times: int) -> dict[str, np.ndarray]:
    """Returns the bottoms by name. Those that have the batch of the first are repeated `times` times along it."""
    first = case.bottoms[0].shape[:1] if case.bottoms else ()
    return {
        f"x{i}": np.concatenate([x] * times) if x.shape[:1] == first != () else x for i, x in enumerate(case.bottoms)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.layer[:60])
def test_onnx_runtime_computes_the_same(case, tmp_path):
    harness.runtime()
    text = text_of(case)
    weights = harness.random_weights(parse_net(text, "net.prototxt"), tmp_path / "x.caffemodel")
    export_onnx(parse_net(text, "net.prototxt"), weights, tmp_path / "x.onnx")
    for times in (1, 2) if case.grows and case.bottoms else (1,):
        inputs = twice(case, times)
        expected = harness.engine_outputs(text_of(case, times), weights, inputs)
        read = {each.name for each in harness.session(tmp_path / "x.onnx").get_inputs()}
        found = harness.onnx_outputs(tmp_path / "x.onnx", {name: x for name, x in inputs.items() if name in read})
        assert set(found) == {f"y{i}" for i in range(case.tops)}
        for name, values in found.items():
            harness.assert_close(values, expected[name])
    if not case.layer.startswith(ONE_WAY):
        expected = harness.engine_outputs(text_of(case), weights, twice(case, 1))
        check_import(tmp_path, twice(case, 1), expected)


def check_import(folder, inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Imports the model again, and checks that it computes what is expected."""
    first = (next(iter(inputs.values())).shape or (1,))[0] if inputs else 1
    is_open = any("batch" in each.shape[:1] for each in harness.session(folder / "x.onnx").get_inputs())
    batch_size = first if is_open else None
    import_onnx(folder / "x.onnx", folder / "back.prototxt", folder / "back.caffemodel", batch_size=batch_size)
    text = (folder / "back.prototxt").read_text()
    read = {name: x for name, x in inputs.items() if f'top: "{name}"' in text}
    found = harness.engine_outputs(text, str(folder / "back.caffemodel"), read)
    for name in (name for name in expected if name.startswith("y")):
        harness.assert_close(found[name], expected[name])


def test_every_type_that_is_written_is_tested():
    assert set(exported_types()) - SYNONYMS == {case.layer.split()[0] for case in CASES}
