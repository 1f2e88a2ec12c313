"""VGG-16 (Simonyan and Zisserman, 2014): configuration D of the paper's table 1, 138,357,544 parameters.

The paper starts from the trained configuration A. Here weights start as He et al. (2015) propose, so that no trained
net is needed. Layers have the names of those in the authors' weights.

    python nets/vgg16.py > nets/vgg16.prototxt
"""

import writer

GROUPS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions); each group ends with a pooling


def body():
    """Returns the net without its scores, and the blob from which they are computed."""
    net = writer.Net("VGG-16", 224, augmentation=writer.MIRROR, scale="")
    x = "data"
    for group, (channels, count) in enumerate(GROUPS, start=1):
        for number in range(1, count + 1):
            x = net.convolution(f"conv{group}_{number}", x, channels, 3, filler='"msra"')
        x = net.max_pool(f"pool{group}", x, 2, 2)
    for number in (6, 7):
        x = net.relu(net.inner_product(f"fc{number}", x, 4096, filler='"gaussian" std: 0.005'))
        x = net.dropout(f"drop{number}", x, 0.5)
    return net, x


def vgg16():
    net, x = body()
    x = net.inner_product("fc8", x, writer.CLASSES, filler='"gaussian" std: 0.01')
    net.loss("loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("vgg16.py", __doc__, vgg16(), batch=32)
