"""Inception-v3 (Szegedy et al., 2015): "Rethinking the Inception architecture", with its auxiliary classifier.

Stem and widths are those of the net that the authors released, which differ from the paper's table 1. It has 27,161,264
parameters, of which 3,326,696 belong to the auxiliary classifier, which serves in training only.

    python nets/inception_v3.py > nets/inception_v3.prototxt
"""

import writer


def chain(net, name, bottom, steps):
    """Adds convolutions in a row. steps: (channels, kernel), padded, or (channels, kernel, stride), without padding."""
    for number, (channels, kernel, *stride) in enumerate(steps):
        pad = 0 if stride else None
        bottom = net.conv_norm(f"{name}_{number}", bottom, channels, kernel, *(stride or [1]), pad=pad)
    return bottom


def stem(net):
    """Adds the layers that turn pictures of 299 x 299 into 192 channels of 35 x 35. Inception-ResNet-v2 has them,
    too."""
    x = chain(net, "stem_a", "data", [(32, 3, 2), (32, 3, 1), (64, 3)])
    x = chain(net, "stem_b", net.max_pool("pool1", x, 3, 2), [(80, 1), (192, 3, 1)])
    return net.max_pool("pool2", x, 3, 2)


def figure_5(net, name, x, projection):
    """Adds a block of the paper's figure 5. projection: channels behind the pooling."""
    tops = [
        chain(net, f"{name}/1x1", x, [(64, 1)]),
        chain(net, f"{name}/5x5", x, [(48, 1), (64, 5)]),
        chain(net, f"{name}/double3x3", x, [(64, 1), (96, 3), (96, 3)]),
        chain(net, f"{name}/proj", net.ave_pool(f"{name}/pool", x, 3, 1, pad=1), [(projection, 1)]),
    ]
    return net.concat(name, tops)


def figure_6(net, name, x, width):
    """Adds a block of the paper's figure 6. width: channels of the inner convolutions."""
    row, column = (1, 7), (7, 1)
    tops = [
        chain(net, f"{name}/1x1", x, [(192, 1)]),
        chain(net, f"{name}/7x7", x, [(width, 1), (width, row), (192, column)]),
        chain(
            net,
            f"{name}/double7x7",
            x,
            [(width, 1), (width, column), (width, row), (width, column), (192, row)],
        ),
        chain(net, f"{name}/proj", net.ave_pool(f"{name}/pool", x, 3, 1, pad=1), [(192, 1)]),
    ]
    return net.concat(name, tops)


def figure_7(net, name, x):
    """Adds a block of the paper's figure 7."""
    middle = chain(net, f"{name}/3x3", x, [(384, 1)])
    double = chain(net, f"{name}/double3x3", x, [(448, 1), (384, 3)])
    tops = [chain(net, f"{name}/1x1", x, [(320, 1)])]
    for branch, source in (("3x3", middle), ("double3x3", double)):
        tops += [net.conv_norm(f"{name}/{branch}_{h}x{w}", source, 384, (h, w)) for h, w in ((1, 3), (3, 1))]
    tops.append(chain(net, f"{name}/proj", net.ave_pool(f"{name}/pool", x, 3, 1, pad=1), [(192, 1)]))
    return net.concat(name, tops)


def auxiliary(net, bottom):
    x = net.conv_norm("aux/conv0", net.ave_pool("aux/pool", bottom, 5, 3), 128, 1)
    x = net.conv_norm("aux/conv1", x, 768, 5, pad=0)
    net.loss("aux/loss", net.inner_product("aux/fc", x, writer.CLASSES), weight=0.4)


def inception_v3():
    net = writer.Net("Inception-v3", 299, short=320, augmentation=writer.WIDE_ASPECT)
    x = stem(net)
    for name, projection in (("mixed_5b", 32), ("mixed_5c", 64), ("mixed_5d", 64)):
        x = figure_5(net, name, x, projection)
    tops = [
        chain(net, "mixed_6a/3x3", x, [(384, 3, 2)]),
        chain(net, "mixed_6a/double3x3", x, [(64, 1), (96, 3), (96, 3, 2)]),
        net.max_pool("mixed_6a/pool", x, 3, 2),
    ]
    x = net.concat("mixed_6a", tops)
    for name, width in (("mixed_6b", 128), ("mixed_6c", 160), ("mixed_6d", 160), ("mixed_6e", 192)):
        x = figure_6(net, name, x, width)
    auxiliary(net, x)
    tops = [
        chain(net, "mixed_7a/3x3", x, [(192, 1), (320, 3, 2)]),
        chain(net, "mixed_7a/7x7", x, [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)]),
        net.max_pool("mixed_7a/pool", x, 3, 2),
    ]
    x = net.concat("mixed_7a", tops)
    for name in ("mixed_7b", "mixed_7c"):
        x = figure_7(net, name, x)
    x = net.dropout("drop", net.global_pool("pool3", x), 0.2)
    x = net.inner_product("fc", x, writer.CLASSES)
    net.loss("loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("inception_v3.py", __doc__, inception_v3(), batch=32)
