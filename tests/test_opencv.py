"""OpenCV, which reads Caffe's files, computes the same from our caffemodels and prototxt."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net, read_net
from engine.config.upgrade_files import upgrade_net_text
from engine.net import Net
from engine.weights import write_caffemodel
from tests.mpi import REPO

cv2 = pytest.importorskip("cv2")
if not hasattr(cv2.dnn, "readNetFromCaffe"):
    pytest.skip("this OpenCV does not read Caffe's files", allow_module_level=True)

INPUT = """name: "%s"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: %d dim: %d } } }
"""
NOT_DEPLOYED = ("Data", "SoftmaxWithLoss", "Accuracy")


def deployed(name: str, size: int) -> str:
    """Returns a net of nets/ without its data and losses, on pictures of size x size."""
    net = read_net(REPO / f"nets/{name}.prototxt").message
    layers = [layer for layer in net.layer if layer.type not in NOT_DEPLOYED]
    layers = [layer for layer in layers if not any(rule.phase == proto.TRAIN for rule in layer.include)]
    text = str(proto.NetParameter(layer=layers))
    return INPUT % (name, size, size) + text


def mobilenet() -> str:
    """Returns a small MobileNet v1: depthwise and pointwise convolutions, each with BatchNorm, Scale and ReLU."""
    layers, bottom = [INPUT % ("mobilenet", 32, 32)], "data"
    plan = [
        ("conv1", 8, 3, 2, 1),
        ("dw2", 8, 3, 1, 8),
        ("pw2", 16, 1, 1, 1),
        ("dw3", 16, 3, 2, 16),
        ("pw3", 24, 1, 1, 1),
    ]
    for name, channels, kernel, stride, group in plan:
        layers.append(
            f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ '
            f"num_output: {channels} bias_term: false kernel_size: {kernel} stride: {stride} pad: {kernel // 2} "
            f'group: {group} weight_filler {{ type: "msra" }} }} }} '
            f'layer {{ name: "{name}/bn" type: "BatchNorm" bottom: "{name}" top: "{name}" }} '
            f'layer {{ name: "{name}/scale" type: "Scale" bottom: "{name}" top: "{name}" '
            "scale_param { bias_term: true } } "
            f'layer {{ name: "{name}/relu" type: "ReLU" bottom: "{name}" top: "{name}" }}'
        )
        bottom = name
    return "\n".join(layers) + (
        f'layer {{ name: "pool" type: "Pooling" bottom: "{bottom}" top: "pool" '
        "pooling_param { pool: AVE global_pooling: true } } "
        'layer { name: "fc" type: "Convolution" bottom: "pool" top: "fc" '
        'convolution_param { num_output: 10 kernel_size: 1 weight_filler { type: "msra" } } } '
        'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }'
    )


def randomise(net: Net, random: np.random.Generator) -> dict[str, list[np.ndarray]]:
    """Returns weights with statistics, scales and biases as training may leave them; in a new net they are 0 and 1."""
    types = {layer.name: layer.type for layer in net.message.layer}
    weights = net.weights_by_layer()
    for name, blobs in weights.items():
        if types[name] == "BatchNorm":
            blobs[0][:] = 3 * random.normal(0, 0.2, blobs[0].shape)
            blobs[1][:] = 3 * random.uniform(0.5, 1.5, blobs[1].shape)
            blobs[2][:] = 3  # the factor that the other two are divided by
        else:
            for blob in blobs:
                if blob.ndim == 1:
                    blob[:] = random.uniform(-0.5, 1, blob.shape)
    return weights


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "mobilenet"])
def test_opencv_computes_the_same(name, tmp_path):
    random = np.random.default_rng(4)
    text = mobilenet() if name == "mobilenet" else deployed(name, 96)
    (tmp_path / "text").write_text(text)
    upgrade_net_text(str(tmp_path / "text"), str(tmp_path / "deploy.prototxt"))
    net = Net(parse_net(text), proto.TEST)
    weights = randomise(net, random)
    net.load_weights(weights, "random")
    write_caffemodel(tmp_path / "x.caffemodel", net.message, weights)
    pictures = random.normal(size=net.blobs["data"].shape).astype(np.float32)
    net.blobs["data"].set(pictures)
    ours = net.forward()

    theirs = cv2.dnn.readNetFromCaffe(str(tmp_path / "deploy.prototxt"), str(tmp_path / "x.caffemodel"))
    theirs.setInput(pictures)
    names = list(ours)
    for output, values in zip(names, theirs.forward(names), strict=True):
        assert np.abs(ours[output]).max() > 1e-2
        error = np.abs(ours[output].ravel() - values.ravel()).max() / np.abs(ours[output]).max()
        assert error < 1e-4, (output, error)
