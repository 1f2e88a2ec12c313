"""Inception-ResNet-v2 (Szegedy et al., 2016), as the authors released it: 55,843,464 parameters.

Where the paper has the stem of Inception-v4, the release has the stem of Inception-v3 and one of its blocks. Only the
convolutions that end a block have biases.

    python nets/inception_resnet_v2.py > nets/inception_resnet_v2.prototxt
"""

import writer
from inception_v3 import chain, stem

# The branches of a block. Each is a list of convolutions, (channels, kernel).
BLOCK_35 = [[(32, 1)], [(32, 1), (32, 3)], [(32, 1), (48, 3), (64, 3)]]
BLOCK_17 = [[(192, 1)], [(128, 1), (160, (1, 7)), (192, (7, 1))]]
BLOCK_8 = [[(192, 1)], [(192, 1), (224, (1, 3)), (256, (3, 1))]]


def branches(net, name, x, rows):
    """Adds branches on the blob x, and returns their tops."""
    return [chain(net, f"{name}/branch{number}", x, steps) for number, steps in enumerate(rows)]


def residual(net, name, x, channels, rows, scale, relu=True):
    """Adds a residual block: x + scale * branches, to which a linear 1 x 1 convolution gives the `channels` of x.

    rows: the branches. relu: whether a ReLU ends the block."""
    mixed = net.concat(f"{name}/mixed", branches(net, name, x, rows))
    up = net.linear(f"{name}/up", mixed, channels, 1, bias=True)
    x = net.add(name, "Eltwise", f"{x} {up}", f"eltwise_param {{ coeff: 1 coeff: {scale:g} }}")
    return net.relu(x) if relu else x


def reduction(net, name, x, rows):
    """Adds a block that halves the sides: branches beside a max-pooling."""
    return net.concat(name, [*branches(net, name, x, rows), net.max_pool(f"{name}/pool", x, 3, 2)])


def inception_resnet_v2():
    net = writer.Net("Inception-ResNet-v2", 299, short=320)
    x = stem(net)
    tops = branches(net, "mixed_5b", x, [[(96, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]])
    tops.append(chain(net, "mixed_5b/proj", net.ave_pool("mixed_5b/pool", x, 3, 1, pad=1), [(64, 1)]))
    x = net.concat("mixed_5b", tops)
    for number in range(1, 11):
        x = residual(net, f"block35_{number}", x, 320, BLOCK_35, 0.17)
    x = reduction(net, "mixed_6a", x, [[(384, 3, 2)], [(256, 1), (256, 3), (384, 3, 2)]])
    for number in range(1, 21):
        x = residual(net, f"block17_{number}", x, 1088, BLOCK_17, 0.1)
    rows = [[(256, 1), (384, 3, 2)], [(256, 1), (288, 3, 2)], [(256, 1), (288, 3), (320, 3, 2)]]
    x = reduction(net, "mixed_7a", x, rows)
    for number in range(1, 10):
        x = residual(net, f"block8_{number}", x, 2080, BLOCK_8, 0.2)
    x = residual(net, "block8_10", x, 2080, BLOCK_8, 1, relu=False)
    x = net.global_pool("pool", net.conv_norm("conv_7b", x, 1536, 1))
    x = net.inner_product("fc", net.dropout("drop", x, 0.2), writer.CLASSES)
    net.loss("loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("inception_resnet_v2.py", __doc__, inception_resnet_v2(), batch=32)
