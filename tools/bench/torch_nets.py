"""The nets of nets/ as PyTorch modules, layer by layer, for tools/bench/torch_train.py. Only torch is needed.

A module returns a list of (scores, weight of their loss).
"""

import torch
from torch import nn

CLASSES = 1000


class Scores(nn.Module):
    """A net with one classifier."""

    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return [(self.body(x), 1.0)]


def conv_norm(inputs, outputs, kernel, stride=1):
    """Convolution, norm and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        last = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.body = nn.Sequential(conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride), last)
        self.shortcut = nn.Identity()
        if inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def max_pool(kernel, stride, padding=0):
    """Sizes rounded up, as in Caffe."""
    return nn.MaxPool2d(kernel, stride, padding, ceil_mode=True)


def resnet50():
    layers, inputs = [conv_norm(3, 64, 7, 2), max_pool(3, 2)], 64
    for group, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if group and not block else 1))
            inputs = 4 * width
    return Scores(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def conv(inputs, outputs, kernel, stride=1, pad=None, groups=1):
    """Convolution with bias, and ReLU."""
    pad = kernel // 2 if pad is None else pad
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups), nn.ReLU(inplace=True))


def classifier(features):
    hidden = [
        layer for inputs in (features, 4096) for layer in (nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout())
    ]
    return [nn.Flatten(), *hidden, nn.Linear(4096, CLASSES)]


def alexnet():
    def lrn():
        return nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)

    return Scores(
        *(conv(3, 96, 11, 4, 0), lrn(), max_pool(3, 2), conv(96, 256, 5, groups=2), lrn(), max_pool(3, 2)),
        *(conv(256, 384, 3), conv(384, 384, 3, groups=2), conv(384, 256, 3, groups=2), max_pool(3, 2)),
        *classifier(256 * 6 * 6),
    )


def vgg16():
    layers, inputs = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(conv(inputs, width, 3))
            inputs = width
        layers.append(max_pool(2, 2))
    return Scores(*layers, *classifier(512 * 7 * 7))


class Inception(nn.Module):
    def __init__(self, inputs, single, reduce3, wide3, reduce5, wide5, projection):
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv(inputs, single, 1),
                nn.Sequential(conv(inputs, reduce3, 1), conv(reduce3, wide3, 3)),
                nn.Sequential(conv(inputs, reduce5, 1), conv(reduce5, wide5, 5)),
                nn.Sequential(max_pool(3, 1, 1), conv(inputs, projection, 1)),
            ]
        )

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    """With its auxiliary classifiers."""

    def __init__(self):
        super().__init__()

        def lrn():
            return nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)

        self.stem = nn.Sequential(
            *(conv(3, 64, 7, 2), max_pool(3, 2), lrn(), conv(64, 64, 1), conv(64, 192, 3), lrn(), max_pool(3, 2)),
            *(Inception(192, 64, 96, 128, 16, 32, 32), Inception(256, 128, 128, 192, 32, 96, 64), max_pool(3, 2)),
            Inception(480, 192, 96, 208, 16, 48, 64),
        )
        self.middle = nn.Sequential(
            Inception(512, 160, 112, 224, 24, 64, 64),
            Inception(512, 128, 128, 256, 24, 64, 64),
            Inception(512, 112, 144, 288, 32, 64, 64),
        )
        self.end = nn.Sequential(
            *(Inception(528, 256, 160, 320, 32, 128, 128), max_pool(3, 2)),
            *(Inception(832, 256, 160, 320, 32, 128, 128), Inception(832, 384, 192, 384, 48, 128, 128)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, CLASSES)),
        )
        self.auxiliary = nn.ModuleList([self.head(512), self.head(528)])

    @staticmethod
    def head(inputs):
        pool = nn.AvgPool2d(5, 3, ceil_mode=True)
        hidden = nn.Sequential(nn.Flatten(), nn.Linear(128 * 4 * 4, 1024), nn.ReLU(inplace=True), nn.Dropout(0.7))
        return nn.Sequential(pool, conv(inputs, 128, 1), hidden, nn.Linear(1024, CLASSES))

    def forward(self, x):
        first = self.stem(x)
        second = self.middle(first)
        scores = [head(y) for head, y in zip(self.auxiliary, (first, second))]
        return [(scores[0], 0.3), (scores[1], 0.3), (self.end(second), 1.0)]


NETS = {"resnet50": resnet50, "alexnet": alexnet, "vgg16": vgg16, "googlenet": GoogLeNet}
SIZES = {"alexnet": 227}  # side of the pictures, where it is not 224
