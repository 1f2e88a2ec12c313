"""DenseNet-121 (Huang et al., 2016): table 1 of "Densely connected convolutional networks", 7,978,856 parameters.

It has bottleneck layers, a growth rate of 32, and transitions that halve the channels. Norm and ReLU come before each
convolution.

    python nets/densenet121.py > nets/densenet121.prototxt
"""

import writer

BLOCKS = (6, 12, 24, 16)  # layers of each dense block
GROWTH = 32
BOTTLENECK = 4 * GROWTH


def dense_layer(net, name, bottom):
    """Adds a layer of a dense block. Its top has the bottom's channels and GROWTH more."""
    x = net.norm(f"{name}/x1", bottom, top=f"{name}/x1")
    x = net.conv_norm(f"{name}/conv1", x, BOTTLENECK, 1)
    return net.concat(name, [bottom, net.linear(f"{name}/conv2", x, GROWTH, 3)])


def body():
    """Returns the net without its scores, and the blob from which they are computed."""
    net = writer.Net("DenseNet-121", 224)
    channels = 64
    x = net.max_pool("pool1", net.conv_norm("conv1", "data", channels, 7, stride=2), 3, 2)
    for number, layers in enumerate(BLOCKS, start=2):
        for index in range(1, layers + 1):
            x = dense_layer(net, f"conv{number}_{index}", x)
        channels += GROWTH * layers
        x = net.norm(f"conv{number}_out", x)
        if number < len(BLOCKS) + 1:
            channels //= 2
            x = net.ave_pool(f"pool{number}", net.linear(f"conv{number}_half", x, channels, 1), 2, 2)
    return net, net.global_pool("pool5", x)


def densenet121():
    net, x = body()
    x = net.inner_product("fc", x, writer.CLASSES)
    net.loss("loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("densenet121.py", __doc__, densenet121(), batch=32)
