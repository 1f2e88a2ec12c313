#!/usr/bin/env python3
"""Writes public nets that nets/ does not have, to be measured: small ones, nets with groups, nets that enlarge planes.

python tools/bench/public_nets.py mobilenet > mobilenet.prototxt
"""

import sys
from pathlib import Path

WRITTEN = Path(__file__).resolve().parent.parent.parent / "nets"
sys.path.insert(0, str(WRITTEN))

import writer  # noqa: E402

SIDE = 224


class Net(writer.Net):
    """A net, with layers that the nets in nets/ do not need."""

    def grouped(self, name, bottom, channels, kernel, stride=1, group=1):
        """Adds a convolution in groups, with nothing behind it."""
        body = f"""\
convolution_param {{
    num_output: {channels} {self._window(kernel, stride, None)} group: {group} bias_term: false
    weight_filler {{ type: "msra" }}
}}"""
        return self.add(name, "Convolution", bottom, body)

    def norm_alone(self, name, blob):
        """Adds BatchNorm and Scale, in place."""
        self.add(f"{name}/bn", "BatchNorm", blob, "batch_norm_param { moving_average_fraction: 0.95 }", blob)
        return self.add(f"{name}/scale", "Scale", blob, f"{writer.UNDECAYED}\nscale_param {{ bias_term: true }}", blob)

    def leaky(self, name, bottom, channels, kernel, stride=1):
        """Adds a convolution, a norm and a ReLU of slope 0.1 below 0, as in Darknet."""
        x = self.norm_alone(name, self.linear(name, bottom, channels, kernel, stride))
        return self.add(f"{name}/relu", "ReLU", x, "relu_param { negative_slope: 0.1 }", x)

    def sum(self, name, x, y):
        return self.add(name, "Eltwise", f"{x} {y}")

    def classified(self, x):
        """Adds the global mean, the scores and the loss. Returns the net."""
        self.loss("loss", self.inner_product("fc", self.global_pool("pool", x), writer.CLASSES))
        return self


def mobilenet():
    """Returns MobileNet (Howard et al., 2017): table 1."""
    net = Net("MobileNet", SIDE)
    x = net.conv_norm("conv1", "data", 32, 3, 2)
    widths = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    widths += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    for number, (before, after, stride) in enumerate(widths, 2):
        x = net.norm(f"conv{number}/dw", net.grouped(f"conv{number}/dw", x, before, 3, stride, before))
        x = net.conv_norm(f"conv{number}/sep", x, after, 1)
    return net.classified(x)


def mobilenet_v2():
    """Returns MobileNetV2 (Sandler et al., 2018): table 2."""
    net = Net("MobileNetV2", SIDE)

    def relu6(blob):
        return net.add(f"{blob}/relu6", "ReLU6", blob, top=blob)

    x, before = relu6(net.norm_alone("conv1", net.linear("conv1", "data", 32, 3, 2))), 32
    table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (expansion, after, blocks, stride) in enumerate(table, 2):
        for block in range(1, blocks + 1):
            name, wide, step = f"conv{stage}_{block}", expansion * before, stride if block == 1 else 1
            y = x
            if expansion > 1:
                y = relu6(net.norm_alone(f"{name}/expand", net.linear(f"{name}/expand", y, wide, 1)))
            y = relu6(net.norm_alone(f"{name}/dw", net.grouped(f"{name}/dw", y, wide, 3, step, wide)))
            y = net.norm_alone(f"{name}/linear", net.linear(f"{name}/linear", y, after, 1))
            x = net.sum(name, x, y) if step == 1 and before == after else y
            before = after
    return net.classified(relu6(net.norm_alone("conv9", net.linear("conv9", x, 1280, 1))))


def squeezenet():
    """Returns SqueezeNet 1.1 (Iandola et al., 2016)."""
    net = Net("SqueezeNet 1.1", SIDE)
    x = net.convolution("conv1", "data", 64, 3, 2)
    for number, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        if number in (2, 4, 6):
            x = net.max_pool(f"pool{number}", x, 3, 2)
        squeezed = net.convolution(f"fire{number}/squeeze", x, width, 1)
        x = net.concat(
            f"fire{number}",
            [net.convolution(f"fire{number}/expand{side}", squeezed, 4 * width, side) for side in (1, 3)],
        )
    x = net.convolution("conv10", net.dropout("drop9", x, 0.5), writer.CLASSES, 1)
    net.loss("loss", net.global_pool("pool10", x))
    return net


def shufflenet():
    """Returns ShuffleNet 1x with 3 groups (Zhang et al., 2017): table 1."""
    net, groups = Net("ShuffleNet", SIDE), 3
    x = net.max_pool("pool1", net.conv_norm("conv1", "data", 24, 3, 2), 3, 2)
    before = 24
    for stage, (width, blocks) in enumerate(((240, 4), (480, 8), (960, 4)), 2):
        for block in range(1, blocks + 1):
            name, stride = f"conv{stage}_{block}", 2 if block == 1 else 1
            inner, outer = width // 4, width - before if stride == 2 else width
            first = 1 if stage == 2 and block == 1 else groups
            y = net.norm(f"{name}/1", net.grouped(f"{name}/1", x, inner, 1, 1, first))
            y = net.add(f"{name}/shuffle", "ShuffleChannel", y, f"shuffle_channel_param {{ group: {groups} }}")
            y = net.norm_alone(f"{name}/2", net.grouped(f"{name}/2", y, inner, 3, stride, inner))
            y = net.norm_alone(f"{name}/3", net.grouped(f"{name}/3", y, outer, 1, 1, groups))
            if stride == 2:
                x = net.relu(net.concat(name, [net.ave_pool(f"{name}/pool", x, 3, 2), y]))
            else:
                x = net.relu(net.sum(name, x, y))
            before = width
    return net.classified(x)


def _bottlenecks(net, groups, wider, attention):
    """Returns a net with the four stages of a ResNet-50.

    wider: how many times the usual width the blocks have inside. attention: whether blocks scale their channels, as in
    SENet."""
    x = net.max_pool("pool1", net.conv_norm("conv1", "data", 64, 7, 2), 3, 2)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(1, blocks + 1):
            name, stride = f"conv{stage}_{block}", 2 if stage > 2 and block == 1 else 1
            inner, outer = wider * width, 4 * width
            y = net.conv_norm(f"{name}/1", x, inner, 1)
            y = net.norm(f"{name}/2", net.grouped(f"{name}/2", y, inner, 3, stride, groups))
            y = net.norm_alone(f"{name}/3", net.linear(f"{name}/3", y, outer, 1))
            if block == 1:
                x = net.norm_alone(f"{name}/shortcut", net.linear(f"{name}/shortcut", x, outer, 1, stride))
            if attention:
                a = net.relu(net.linear(f"{name}/down", net.global_pool(f"{name}/mean", y), outer // 16, 1, bias=True))
                a = net.linear(f"{name}/up", a, outer, 1, bias=True)
                a = net.add(f"{name}/gate", "Sigmoid", a, top=a)
                x = net.add(name, "Axpy", f"{a} {y} {x}")
            else:
                x = net.sum(name, x, y)
            net.relu(x)
    return net.classified(x)


def resnext50():
    """Returns ResNeXt-50 with 32 groups of 4 (Xie et al., 2016): table 1."""
    return _bottlenecks(Net("ResNeXt-50", SIDE), groups=32, wider=2, attention=False)


def se_resnet50():
    """Returns SE-ResNet-50 (Hu et al., 2017): table 1."""
    return _bottlenecks(Net("SE-ResNet-50", SIDE), groups=1, wider=1, attention=True)


def unet():
    """Returns U-Net (Ronneberger et al., 2015): figure 1, with padding. The data have no classes of pixels, so the
    scores are averaged over the plane."""
    net, x, skipped = Net("U-Net", SIDE), "data", []

    def twice(name, x, width):
        for i in (1, 2):
            x = net.convolution(f"{name}/{i}", x, width, 3)
        return x

    for level, width in enumerate((64, 128, 256, 512)):
        skipped.append(x := twice(f"down{level}", x, width))
        x = net.max_pool(f"pool{level}", x, 2, 2)
    x = twice("bottom", x, 1024)
    for level in (3, 2, 1, 0):
        width = 64 << level
        body = f"""\
convolution_param {{
    num_output: {width} kernel_size: 2 stride: 2
    weight_filler {{ type: "msra" }}
}}"""
        x = net.add(f"enlarged{level}", "Deconvolution", x, body)
        x = twice(f"up{level}", net.concat(f"joined{level}", [skipped[level], x]), width)
    net.loss("loss", net.global_pool("mean", net.linear("scores", x, 21, 1, bias=True)))
    return net


def yolov3():
    """Returns YOLOv3 (Redmon and Farhadi, 2018): Darknet-53 and three heads. The data have no boxes, so the heads are
    averaged over their planes."""
    net, outputs, planes = Net("YOLOv3", SIDE), 255, []
    x = net.leaky("conv0", "data", 32, 3)
    for stage, blocks in enumerate((1, 2, 8, 8, 4)):
        width = 64 << stage
        x = net.leaky(f"down{stage}", x, width, 3, 2)
        for block in range(blocks):
            name = f"block{stage}_{block}"
            y = net.leaky(f"{name}/2", net.leaky(f"{name}/1", x, width // 2, 1), width, 3)
            x = net.sum(name, x, y)
        planes.append(x)
    heads = []
    for level, width in ((4, 512), (3, 256), (2, 128)):
        for i in range(5):
            x = net.leaky(f"head{level}/{i}", x, width * (1 + i % 2), 3 if i % 2 else 1)
        y = net.linear(f"head{level}/boxes", net.leaky(f"head{level}/5", x, 2 * width, 3), outputs, 1, bias=True)
        heads.append(net.global_pool(f"head{level}/mean", y))
        if level > 2:
            x = net.leaky(f"head{level}/narrow", x, width // 2, 1)
            x = net.add(f"head{level}/larger", "Upsample", x, "upsample_param { scale: 2 }")
            x = net.concat(f"head{level}/joined", [x, planes[level - 1]])
    net.loss("loss", net.inner_product("fc", net.concat("heads", heads), writer.CLASSES))
    return net


NETS = {
    net.__name__: net for net in (mobilenet, mobilenet_v2, squeezenet, shufflenet, resnext50, se_resnet50, unet, yolov3)
}


def text_of(name, batch=32):
    """Returns a net's prototxt, for training and testing on pictures of ImageNet."""
    return NETS[name]().text(batch, writer.DATA)


def model_of(net: str, folder: Path) -> Path:
    """Returns the path of a net's prototxt. net: a file, or a name in nets/ or in this module, whose net is written
    into the folder."""
    if net not in NETS:
        return Path(net).resolve() if net.endswith(".prototxt") else WRITTEN / f"{net}.prototxt"
    (model := folder / f"{net}.prototxt").write_text(text_of(net))
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NETS:
        raise SystemExit(f"usage: public_nets.py NET > FILE\nnets: {', '.join(NETS)}")
    print(text_of(sys.argv[1]), end="")
