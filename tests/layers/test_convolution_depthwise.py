import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import Net, NetOptions
from tests.layers.harness import BLOCK, check_gradients, error_of, make_net, needs_bf16, net_text, set_top_diff
from tests.layers.test_convolution import reference

RANDOM = np.random.default_rng(3)


def layer(params, type="ConvolutionDepthwise"):
    return f"""layer {{ name: "layer" type: "{type}" bottom: "x" top: "y" convolution_param {{ {params}
        kernel_size: 3 pad: 1 weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "uniform" }} }} }}"""


@pytest.mark.parametrize("type", ["ConvolutionDepthwise", "DepthwiseConvolution", "ConvolutionDepthWise"])
@pytest.mark.parametrize("params, outputs", [("", 4), ("num_output: 4 group: 4", 4), ("num_output: 8", 8)])
def test_forward_and_gradients(type, params, outputs):
    x = RANDOM.normal(size=(2, 4, 5, 6)).astype(np.float32)
    text = net_text(layer(params, type), x=x.shape)
    net = make_net(text)
    net.blobs["x"].set(x)
    weights, bias = (tensor.get() for tensor in net.params["layer"])
    assert net.graph.layers[-1].params[0].shape == (outputs, 1, 3, 3)
    expected = reference(x, weights.reshape(outputs, 1, 3, 3), bias, [1, 1], [1, 1], [1, 1], 4)
    np.testing.assert_allclose(net.forward()["y"], expected, atol=1e-5)
    check_gradients(text, {"x": x})


@needs_bf16
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_in_bf16_are_those_of_blocks(stride):
    """For a stride of 2 oneDNN's first choice is a layout in which a channel does not fill a vector. Blocks must be
    chosen all the same."""
    x, found = RANDOM.normal(size=(2, 32, 12, 12)).astype(np.float32), {}
    text = net_text(layer(f"num_output: 32 stride: {stride}"), x=x.shape)
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.blobs["x"].set(x)
        y = net.forward()["y"]
        set_top_diff(net, "y", np.sin(np.arange(y.size, dtype=np.float32)).reshape(y.shape))
        net.backward()
        found[precision] = [y, net.blobs["x"].diff, net.params["layer"][0].diff.get()]
        changes = [change for op in range(len(net.program)) for _, change, *_ in net.program.reorders(op)]
        assert BLOCK < 16 or not any("acdb" in change for change in changes), changes
    for mine, wanted in zip(found["bf16"], found["fp32"], strict=True):
        np.testing.assert_allclose(mine, wanted, atol=0.02 * abs(wanted).max())


def test_errors():
    message = error_of(layer("num_output: 4 group: 2"), x=(1, 4, 5, 6))
    assert "layer 'layer' (ConvolutionDepthwise): expected group 4, the channels of the bottom" in message
    assert "expected group to divide the num_output, 6" in error_of(layer("num_output: 6"), x=(1, 4, 5, 6))


def test_a_config_can_be_built_again_with_other_channels():
    text = 'layer { name: "c" type: "ConvolutionDepthwise" bottom: "x" top: "y" convolution_param { kernel_size: 3 } }'
    config = parse_net(net_text(text, x=(1, 4, 5, 5)), "test.prototxt")
    for channels in (4, 6):
        config.message.layer[0].input_param.shape[0].dim[1] = channels
        assert Net(config, proto.TRAIN, NetOptions()).blobs["y"].shape == (1, channels, 3, 3)
