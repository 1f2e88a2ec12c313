"""Inception-v2, or BN-Inception (Ioffe and Szegedy, 2015): figure 5 of "Batch Normalization", with auxiliary losses.

It has 16,075,832 parameters, of which 4,880,848 belong to the auxiliary classifiers, which serve in training only.
Where the figure's columns do not add up to its output sizes (4c, 4d), the sizes count. Layers have the names of those
in Caffe's weights.

    python nets/inception_v2.py > nets/inception_v2.prototxt
"""

import writer

# Block -> channels of its convolutions: 1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool projection. Blocks
# with 0 for the first and the last have stride 2, and their pooling has no projection.
INCEPTION = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 96),
    "4d": (96, 128, 192, 160, 192, 96),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


def inception(net, block, bottom):
    name = f"inception_{block}"
    single, reduce, wide, double_reduce, double, projection = INCEPTION[block]
    stride = 1 if single else 2
    tops = [net.conv_norm(f"{name}/1x1", bottom, single, 1)] if single else []
    x = net.conv_norm(f"{name}/3x3_reduce", bottom, reduce, 1)
    tops.append(net.conv_norm(f"{name}/3x3", x, wide, 3, stride))
    x = net.conv_norm(f"{name}/double3x3_reduce", bottom, double_reduce, 1)
    x = net.conv_norm(f"{name}/double3x3a", x, double, 3)
    tops.append(net.conv_norm(f"{name}/double3x3b", x, double, 3, stride))
    if not single:
        tops.append(net.max_pool(f"{name}/pool", bottom, 3, 2))
    else:
        pool = net.max_pool if block == "5b" else net.ave_pool
        tops.append(net.conv_norm(f"{name}/pool_proj", pool(f"{name}/pool", bottom, 3, 1, pad=1), projection, 1))
    return net.concat(f"{name}/output", tops)


def auxiliary(net, name, pool, bottom):
    x = net.conv_norm(f"{name}/conv", net.ave_pool(pool, bottom, 5, 3), 128, 1)
    x = net.norm(f"{name}/fc", net.inner_product(f"{name}/fc", x, 1024, bias=None))
    net.loss(f"{name}/loss", net.inner_product(f"{name}/classifier", x, writer.CLASSES), weight=0.3)


def inception_v2():
    net = writer.Net("Inception-v2", 224)
    x = net.max_pool("pool1/3x3_s2", net.conv_norm("conv1/7x7_s2", "data", 64, 7, stride=2), 3, 2)
    x = net.conv_norm("conv2/3x3", net.conv_norm("conv2/3x3_reduce", x, 64, 1), 192, 3)
    x = net.max_pool("pool2/3x3_s2", x, 3, 2)
    for block in INCEPTION:
        x = inception(net, block, x)
        if block == "3c":
            auxiliary(net, "loss1", "pool3/5x5_s3", x)
        if block == "4e":
            auxiliary(net, "loss2", "pool4/5x5_s3", x)
    x = net.inner_product("loss3/classifier", net.global_pool("pool5/7x7_s1", x), writer.CLASSES)
    net.loss("loss3/loss", x)
    net.accuracy(x)
    return net


if __name__ == "__main__":
    writer.write("inception_v2.py", __doc__, inception_v2(), batch=32)
