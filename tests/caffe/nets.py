"""Nets that several tests of the Python interface use."""

from tests.solver.harness import digits_net

DEPLOY = """
name: "small"
force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

TRAINED = """
name: "trained"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 5 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "fixed" type: "InnerProduct" bottom: "ip" top: "fixed" param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fixed" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fixed" bottom: "label" top: "accuracy" include { phase: TEST } }
"""

# with BatchNorm, which has running sums
NORMED = digits_net().replace(
    'layer { name: "relu"', 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" } layer { name: "relu"'
)


def write(folder, text, name="net.prototxt"):
    path = folder / name
    path.write_text(text)
    return str(path)
