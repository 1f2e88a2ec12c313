"""Net surgery: moves the weights of a net for 8 x 8 pixels to a fully convolutional net, for strips of any width.

    python examples/python/train_net.py && python examples/python/net_surgery.py [FOLDER]

An inner product over a 4 x 4 map is a convolution with a kernel of 4 x 4: the same weights in another shape.
"""

import sys

import digits
import numpy as np
from google.protobuf import text_format
from train_net import OUT, trained

import engine.caffe as caffe
from engine.caffe.proto import caffe_pb2


def full_convolution(message):
    """Returns the net with a Convolution in place of every InnerProduct. It has another name, so that no weights are
    loaded into it."""
    result, kernel = caffe_pb2.NetParameter(), 4
    result.CopyFrom(message)
    for layer in result.layer:
        if layer.type == "InnerProduct":
            layer.type, layer.name = "Convolution", f"{layer.name}-conv"
            layer.convolution_param.num_output = layer.inner_product_param.num_output
            layer.convolution_param.kernel_size.append(kernel)
            layer.ClearField("inner_product_param")
            kernel = 1  # for the next one, whose map has one pixel
    return result


def main(folder=OUT):
    folder = trained(folder)
    weights, deploy = str(folder / "digits.caffemodel"), folder / "deploy.prototxt"
    message = text_format.Parse(deploy.read_text(), caffe_pb2.NetParameter())
    (folder / "full_conv.prototxt").write_text(str(full_convolution(message)))

    net = caffe.Net(str(deploy), weights, caffe.TEST)
    full = caffe.Net(str(folder / "full_conv.prototxt"), weights, caffe.TEST)
    for name in ("ip1", "ip2"):
        source, target = net.params[name], full.params[f"{name}-conv"]
        print(f"{name}: {source[0].shape} becomes {target[0].shape}")
        target[0].data.flat = source[0].data.flat
        target[1].data[...] = source[1].data

    images, labels = digits.read("test")
    same = np.allclose(
        net.forward(data=images[:1])["prob"], full.forward(data=images[:1])["prob"][..., 0, 0], atol=1e-5
    )
    print(f"one digit: the same probabilities: {same}")

    # Five digits in a row, each 8 pixels wide: the net gives probabilities of the classes at every second pixel.
    strip = np.concatenate(images[:5], axis=2)[np.newaxis]
    full.blobs["data"].reshape(*strip.shape)
    found = full.forward(data=strip)["prob"].argmax(1)[0, 0]
    print(
        f"a strip of {strip.shape[3]} pixels: {len(found)} results; at the digits {found[::4]}, which are {labels[:5]}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
