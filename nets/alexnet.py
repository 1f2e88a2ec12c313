"""AlexNet (Krizhevsky, Sutskever, Hinton, 2012): five convolutions, three of them in two groups, three classifiers.

The paper's two towers are one net here, with 60,965,224 parameters. As in Caffe, normalisation comes before pooling,
there is no colour augmentation, and biases that do not start at 0 start at 0.1. Layers have the names of those in
Caffe's weights.

    python nets/alexnet.py > nets/alexnet.prototxt
"""

import writer

NARROW = '"gaussian" std: 0.01'


def alexnet():
    net = writer.Net("AlexNet", 227, augmentation=writer.MIRROR, scale="")
    x = net.convolution("conv1", "data", 96, 11, stride=4, pad=0, filler=NARROW)
    x = net.max_pool("pool1", net.lrn("norm1", x), 3, 2)
    x = net.convolution("conv2", x, 256, 5, group=2, bias=0.1, filler=NARROW)
    x = net.max_pool("pool2", net.lrn("norm2", x), 3, 2)
    x = net.convolution("conv3", x, 384, 3, filler=NARROW)
    x = net.convolution("conv4", x, 384, 3, group=2, bias=0.1, filler=NARROW)
    x = net.convolution("conv5", x, 256, 3, group=2, bias=0.1, filler=NARROW)
    x = net.max_pool("pool5", x, 3, 2)
    for number in (6, 7):
        x = net.relu(net.inner_product(f"fc{number}", x, 4096, bias=0.1, filler='"gaussian" std: 0.005'))
        x = net.dropout(f"drop{number}", x, 0.5)
    x = net.inner_product("fc8", x, writer.CLASSES, filler=NARROW)
    net.loss("loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("alexnet.py", __doc__, alexnet(), batch=32)
