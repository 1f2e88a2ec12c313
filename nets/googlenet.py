"""GoogLeNet (Szegedy et al., 2014): table 1 of "Going deeper with convolutions", with its two auxiliary classifiers.

It has 13,378,280 parameters, of which 6,379,728 belong to the auxiliary classifiers, which serve in training only.
Layers have the names of those in Caffe's weights, and pictures are cropped and mirrored as for these, without the
paper's changes of shape.

    python nets/googlenet.py > nets/googlenet.prototxt
"""

import writer

# Block -> channels of its convolutions: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
BIAS = 0.2


def inception(net, block, bottom):
    name = f"inception_{block}"
    single, reduce3, wide3, reduce5, wide5, projection = INCEPTION[block]

    def convolution(suffix, source, channels, kernel):
        return net.convolution(f"{name}/{suffix}", source, channels, kernel, bias=BIAS)

    tops = [
        convolution("1x1", bottom, single, 1),
        convolution("3x3", convolution("3x3_reduce", bottom, reduce3, 1), wide3, 3),
        convolution("5x5", convolution("5x5_reduce", bottom, reduce5, 1), wide5, 5),
        convolution("pool_proj", net.max_pool(f"{name}/pool", bottom, 3, 1, pad=1), projection, 1),
    ]
    return net.concat(f"{name}/output", tops)


def auxiliary(net, name, bottom):
    x = net.convolution(f"{name}/conv", net.ave_pool(f"{name}/ave_pool", bottom, 5, 3), 128, 1, bias=BIAS)
    x = net.dropout(f"{name}/drop_fc", net.relu(net.inner_product(f"{name}/fc", x, 1024, bias=BIAS)), 0.7)
    net.loss(f"{name}/loss", net.inner_product(f"{name}/classifier", x, writer.CLASSES), weight=0.3)


def googlenet():
    net = writer.Net("GoogLeNet", 224, augmentation=writer.MIRROR, scale="")
    x = net.convolution("conv1/7x7_s2", "data", 64, 7, stride=2, bias=BIAS)
    x = net.lrn("pool1/norm1", net.max_pool("pool1/3x3_s2", x, 3, 2))
    x = net.convolution("conv2/3x3_reduce", x, 64, 1, bias=BIAS)
    x = net.lrn("conv2/norm2", net.convolution("conv2/3x3", x, 192, 3, bias=BIAS))
    x = net.max_pool("pool2/3x3_s2", x, 3, 2)
    for block in INCEPTION:
        x = inception(net, block, x)
        if block in ("3b", "4e"):
            x = net.max_pool(f"pool{block[0]}/3x3_s2", x, 3, 2)
        if block in ("4a", "4d"):
            auxiliary(net, {"4a": "loss1", "4d": "loss2"}[block], x)
    x = net.dropout("pool5/drop_7x7_s1", net.global_pool("pool5/7x7_s1", x), 0.4)
    x = net.inner_product("loss3/classifier", x, writer.CLASSES)
    net.loss("loss3/loss3", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("googlenet.py", __doc__, googlenet(), batch=32)
