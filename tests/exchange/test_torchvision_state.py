"""Imports dictionaries with the names and kernels of torchvision's classifiers, of few channels, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError
from engine.exchange.torch_file import write_state
from engine.exchange.torch_import import import_torch
from engine.weights import read_caffemodel

N = 4  # the channels of nearly every layer


class State(dict[str, np.ndarray]):
    """A state dictionary of ones. Methods add the tensors of torchvision's modules."""

    def put(self, name: str, *shape: int) -> None:
        self[name] = np.ones(shape, np.float32)

    def conv(self, name: str, h: int = 1, w: int = 0, *, c: int = N, bias: bool = False) -> None:
        self.put(f"{name}.weight", N, c, h, w or h)
        if bias:
            self.put(f"{name}.bias", N)

    def norm(self, name: str, c: int = N) -> None:
        for each in ("weight", "bias", "running_mean", "running_var"):
            self.put(f"{name}.{each}", c)
        self[f"{name}.num_batches_tracked"] = np.array(3, np.int64)

    def both(self, conv: str, norm: str, h: int = 1, w: int = 0, *, c: int = N) -> None:
        self.conv(conv, h, w, c=c)
        self.norm(norm)

    def basic(self, name: str, h: int = 1, w: int = 0, *, c: int = N) -> None:
        self.both(f"{name}.conv", f"{name}.bn", h, w, c=c)

    def linear(self, name: str, inputs: int) -> None:
        self.put(f"{name}.weight", N, inputs)
        self.put(f"{name}.bias", N)


def resnet(deep: bool = False) -> State:
    """Returns a ResNet of basic blocks, or if `deep` one of bottlenecks whose second convolution has groups, as
    ResNeXt's."""
    state = State()
    state.both("conv1", "bn1", 7, c=3)
    for group in range(1, 5):
        for block in range(2):
            name = f"layer{group}.{block}"
            for i, (kernel, c) in enumerate(((1, N), (3, N // 2), (1, N)) if deep else ((3, N), (3, N)), start=1):
                state.both(f"{name}.conv{i}", f"{name}.bn{i}", kernel, c=c)
            if group > 1 and block == 0:
                state.both(f"{name}.downsample.0", f"{name}.downsample.1")
    state.linear("fc", N)
    return state


def vgg(normed: bool = False) -> State:
    """Returns a VGG-11; normed: with BatchNorms."""
    state, number, c = State(), 0, 3
    for convs in (1, 1, 2, 2, 2):
        for _ in range(convs):
            state.conv(f"features.{number}", 3, c=c, bias=True)
            if normed:
                state.norm(f"features.{number + 1}")
            number, c = number + 2 + normed, N
        number += 1
    for layer, inputs in ((0, N * 49), (3, N), (6, N)):
        state.linear(f"classifier.{layer}", inputs)
    return state


def densenet() -> State:
    state, c = State(), N
    state.both("features.conv0", "features.norm0", 7, c=3)
    for block in range(1, 5):
        for layer in range(1, 3):
            name = f"features.denseblock{block}.denselayer{layer}"
            state.norm(f"{name}.norm1", c)
            state.both(f"{name}.conv1", f"{name}.norm2", c=c)
            state.conv(f"{name}.conv2", 3)
            c += N
        if block < 4:
            state.norm(f"features.transition{block}.norm", c)
            state.conv(f"features.transition{block}.conv", c=c)
            c = N
    state.norm("features.norm5", c)
    state.linear("classifier", c)
    return state


def googlenet() -> State:
    state, c = State(), N
    state.basic("conv1", 7, c=3)
    state.basic("conv2")
    state.basic("conv3", 3)
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        for branch, kernel, inputs in (("1", 1, c), ("2.0", 1, c), ("2.1", 3, N), ("3.0", 1, c), ("3.1", 3, N),
                                       ("4.1", 1, c)):  # fmt: skip
            state.basic(f"inception{name}.branch{branch}", kernel, c=inputs)
        c = 4 * N
    state.linear("fc", c)
    for name in ("aux1", "aux2"):
        state.basic(f"{name}.conv", c=c)
        state.linear(f"{name}.fc1", 2048)
        state.linear(f"{name}.fc2", N)
    return state


# Inception-v3's blocks: the kernel of each convolution, with a "c" if it reads the block's input; how many convolutions
# the block's output consists of; and whether the pooled input is part of it, too.
INCEPTION = {
    "5b 5c 5d": ({"1x1": "1c", "5x5_1": "1c", "5x5_2": "5", "3x3dbl_1": "1c", "3x3dbl_2": "3", "3x3dbl_3": "3",
                  "_pool": "1c"}, 4, False),
    "6a": ({"3x3": "3c", "3x3dbl_1": "1c", "3x3dbl_2": "3", "3x3dbl_3": "3"}, 2, True),
    "6b 6c 6d 6e": ({"1x1": "1c", "7x7_1": "1c", "7x7_2": "1 7", "7x7_3": "7 1", "7x7dbl_1": "1c", "7x7dbl_2": "7 1",
                     "7x7dbl_3": "1 7", "7x7dbl_4": "7 1", "7x7dbl_5": "1 7", "_pool": "1c"}, 4, False),
    "7a": ({"3x3_1": "1c", "3x3_2": "3", "7x7x3_1": "1c", "7x7x3_2": "1 7", "7x7x3_3": "7 1", "7x7x3_4": "3"}, 2, True),
    "7b 7c": ({"1x1": "1c", "3x3_1": "1c", "3x3_2a": "1 3", "3x3_2b": "3 1", "3x3dbl_1": "1c", "3x3dbl_2": "3",
               "3x3dbl_3a": "1 3", "3x3dbl_3b": "3 1", "_pool": "1c"}, 6, False),
}  # fmt: skip


def inception_v3() -> State:
    state, c = State(), N
    for name, kernel in (("1a_3x3", 3), ("2a_3x3", 3), ("2b_3x3", 3), ("3b_1x1", 1), ("4a_3x3", 3)):
        state.basic(f"Conv2d_{name}", kernel, c=3 if name == "1a_3x3" else N)
    for names, (branches, ends, passes) in INCEPTION.items():
        for name in names.split():
            for branch, kernel in branches.items():
                sides = map(int, kernel.removesuffix("c").split())
                state.basic(f"Mixed_{name}.branch{branch}", *sides, c=c if kernel.endswith("c") else N)
            c = ends * N + (c if passes else 0)
    state.basic("AuxLogits.conv0", c=c)
    state.basic("AuxLogits.conv1", 5)
    state.linear("AuxLogits.fc", N)
    state.linear("fc", c)
    return state


def mobilenet_v2() -> State:
    state = State()
    state.both("features.0.0", "features.0.1", 3, c=3)
    for block in range(1, 18):
        name, depthwise = f"features.{block}.conv", int(block > 1)
        if depthwise:
            state.both(f"{name}.0.0", f"{name}.0.1")
        state.both(f"{name}.{depthwise}.0", f"{name}.{depthwise}.1", 3, c=1)
        state.both(f"{name}.{depthwise + 1}", f"{name}.{depthwise + 2}")
    state.both("features.18.0", "features.18.1")
    state.linear("classifier.1", N)
    return state


STATES: dict[str, Callable[[], State]] = {
    "resnet": resnet,
    "resnext": lambda: resnet(deep=True),
    "vgg": vgg,
    "vgg_bn": lambda: vgg(normed=True),
    "densenet": densenet,
    "googlenet": googlenet,
    "inception_v3": inception_v3,
    "mobilenet_v2": mobilenet_v2,
}


def imported(state: State, folder: Path, **options) -> list[str]:
    write_state(folder / "x.pth", state)
    return import_torch(folder / "x.pth", folder / "x.prototxt", folder / "x.caffemodel", **options)


@pytest.mark.parametrize("name", STATES)
def test_all_tensors_but_those_of_auxiliary_classifiers_have_a_place(name, tmp_path):
    state = STATES[name]()
    notes = imported(state, tmp_path)
    auxiliary = {each for each in state if each.startswith(("aux", "Aux"))}
    assert len(notes) == bool(auxiliary) and all("auxiliary classifiers" in note for note in notes)
    counted = [each for each in state if each not in auxiliary and not each.endswith("num_batches_tracked")]
    norms = sum(each.endswith("running_mean") for each in counted)  # a BatchNorm's third blob is no tensor
    assert sum(map(len, read_caffemodel(tmp_path / "x.caffemodel").values())) == len(counted) + norms


def test_a_dictionary_from_before_batches_were_counted(tmp_path):
    state = State({name: each for name, each in resnet().items() if not name.endswith("num_batches_tracked")})
    assert imported(state, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "changed", "shape", "message"),
    [
        ("resnet", "layer1.0.se.fc1.weight", (2, 4), "ResNet has no place for 'layer1.0.se.fc1.weight' (2 x 4)"),
        ("resnet", "layer2.3.bn1.bias", (4,), "ResNet has no place for 'layer2.3.bn1.bias' (4)"),
        ("resnet", "aux1.weight", (4,), "ResNet has no place for 'aux1.weight' (4)"),
        ("resnet", "conv1.weight", (4, 3, 3, 3),
         "'conv1.weight' has the shape (4, 3, 3, 3), expected for ResNet (any, 3, 7, 7)"),
        ("resnet", "layer1.0.conv1.weight", (4, 2, 3, 3),
         "'layer1.0.conv1.weight' has the shape (4, 2, 3, 3), expected for ResNet (any, 4, 3, 3)"),
        ("resnext", "layer1.0.conv2.weight", (4, 3, 3, 3),
         "'layer1.0.conv2.weight' has the shape (4, 3, 3, 3), for groups of 3 of 4 channels"),
        ("resnet", "layer1.0.bn1.running_mean", (5,),
         "'layer1.0.bn1.running_mean' has the shape (5,), expected for ResNet (4)"),
        ("resnet", "fc.bias", (5,), "'fc.bias' has the shape (5,), expected for ResNet (4)"),
        ("vgg", "features.3.weight", (4, 4, 5, 5),
         "'features.3.weight' has the shape (4, 4, 5, 5), expected for VGG (any, 4, 3, 3)"),
        ("inception_v3", "Conv2d_1a_3x3.conv.weight", (4, 3, 1, 1),
         "'Conv2d_1a_3x3.conv.weight' has the shape (4, 3, 1, 1), expected for Inception-v3 (any, 3, 3, 3)"),
        ("mobilenet_v2", "features.19.0.weight", (4, 4, 1, 1),
         "MobileNet-v2 has no place for 'features.19.0.weight' (4 x 4 x 1 x 1)"),
        ("mobilenet_v2", "features.2.conv.1.0.weight", (4, 4, 3, 3),
         "'features.2.conv.1.0.weight' has the shape (4, 4, 3, 3), expected for MobileNet-v2 (any, 1, 3, 3)"),
        ("densenet", "features.denseblock2.denselayer9.conv2.weight", (4, 4, 3, 3),
         "DenseNet has no place for 'features.denseblock2.denselayer9.conv2.weight' (4 x 4 x 3 x 3)"),
    ],
)  # fmt: skip
def test_another_net_s_tensors_are_named(name, changed, shape, message, tmp_path):
    state = STATES[name]()
    state.put(changed, *shape)
    with pytest.raises(EngineError) as error:
        imported(state, tmp_path)
    assert str(error.value) == f"{tmp_path / 'x.pth'}: {message}"
    assert [path.name for path in tmp_path.iterdir()] == ["x.pth"]


def test_a_mobilenet_of_fewer_blocks_has_its_strides_elsewhere(tmp_path):
    state = State({name: each for name, each in mobilenet_v2().items() if not name.startswith("features.17.")})
    with pytest.raises(EngineError, match=r"has no 'features\.17\.conv\.0\.0\.weight', which its architecture needs"):
        imported(state, tmp_path)


def test_of_many_tensors_without_a_place_the_first_are_named(tmp_path):
    state = resnet()
    for number in range(8):
        state.put(f"more{number}.weight", 2)
    with pytest.raises(EngineError, match=r"'more0\.weight' \(2\), .*'more4\.weight' \(2\) and 3 more$"):
        imported(state, tmp_path)


def test_a_net_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "x.prototxt").write_text("mine")
    with pytest.raises(EngineError, match=r"x\.prototxt: exists already; .*--onto"):
        imported(resnet(), tmp_path)
    assert (tmp_path / "x.prototxt").read_text() == "mine" and not (tmp_path / "x.caffemodel").exists()


def test_what_a_net_with_the_same_names_has_no_layer_for_is_told(tmp_path):
    """A net without the classifier takes the other weights, and a note tells. A bias that its layers have no place for
    is an error."""
    state = resnet()
    imported(state, tmp_path)
    text = (tmp_path / "x.prototxt").read_text()
    begin = text.index("layer {", text.index('name: "avgpool"') - 20)
    (tmp_path / "x.prototxt").write_text(text[:begin])
    assert imported(state, tmp_path, onto=True) == [f"left out, for {tmp_path / 'x.prototxt'} has no such layer: fc"]
    assert "fc" not in read_caffemodel(tmp_path / "x.caffemodel")
    state.put("layer1.0.conv1.bias", N)
    with pytest.raises(EngineError, match=r"have no place for 'layer1\.0\.conv1\.bias' \(4\)$"):
        imported(state, tmp_path, onto=True)
