"""Builds random nets with bad parameters and steps them on odd numbers; reads data layers with bad parameters.

An input is a prototxt. Its first line may be a comment that says how to run it: words of WAYS, and a number for its
data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from random import Random

import numpy as np
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.config import parse_net
from engine.data.mean import write_mean
from engine.errors import EngineError
from engine.graph.build import build
from engine.net import Counters, Net, NetOptions
from tests.fuzz import seeds
from tests.fuzz.mutate import FLOATS, change_field, text_of
from tests.fuzz.target import Run, read_data, target

WAYS = ("TEST", "bf16", "keep_all", "plain", "accumulate")
MOST_VALUES, MOST_FLOPS = 3_000_000, 1_000_000_000  # of a net that is run
ODD = np.array([np.nan, np.inf, -np.inf, 0, 1, 3e38, -3e38, 1e10, 2**31, 2**24, -1, 1e-45], np.float32)
DIMS = [1, 1, 2, 3, 4, 5, 7, 8, 16, 17]


def parsed(data: bytes, message):
    """Returns (the message that an input holds, the words of its first line), or None if it holds no such message."""
    head = re.match(rb"#([ \w]*)\n", data)
    try:
        return text_format.Parse(data, message), head[1].decode().split() if head else []
    except (text_format.ParseError, UnicodeDecodeError, ValueError):
        return None, []


def shown(message, words: Sequence[str]) -> bytes:
    return f"# {' '.join(words)}\n".encode() + text_of(message)


# Nets


def mutate_net(data: bytes, random: Random, corpus: Sequence[bytes]) -> bytes:
    """Changes layers' parameters, blobs and shapes, gives the net other data, and sometimes another way to run."""
    net, words = parsed(data, proto.NetParameter())
    if net is None or not net.layer:
        return random.choice(corpus)
    for _ in range(random.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        if net.layer:
            change_layer(net, random)
    ways = [way for way in WAYS if (way in words) != (random.random() < 0.1)]
    return shown(net, [*ways, str(random.randrange(1 << 30))])


def change_layer(net: proto.NetParameter, random: Random) -> None:
    layer = random.choice(net.layer)
    params = [field.name for field, _ in layer.ListFields() if field.name.endswith("_param")]
    kind = random.random()
    if layer.type == "Input" and layer.input_param.shape:
        change_shape(random.choice(layer.input_param.shape).dim, random)
    elif params and kind < 0.8:
        change_field(getattr(layer, random.choice(params)), random)
    elif kind < 0.84 and layer.bottom:
        del layer.bottom[random.randrange(len(layer.bottom))]
    elif kind < 0.88:
        layer.bottom.append(random.choice([top for each in net.layer for top in each.top] or ["x"]))
    elif kind < 0.90:
        layer.top.append("extra")
    elif kind < 0.93:
        layer.loss_weight.append(random.choice(FLOATS))
    elif kind < 0.96:
        layer.propagate_down.append(random.random() < 0.5)
    elif kind < 0.97:
        net.layer.remove(layer)
    else:
        change_field(layer, random)


def change_shape(dims, random: Random) -> None:
    kind = random.random()
    if len(dims) and kind < 0.8:
        dims[random.randrange(len(dims))] = random.choice([0, -1, 2**31, 2**33] if kind < 0.05 else DIMS)
    elif len(dims) and kind < 0.9:
        del dims[random.randrange(len(dims))]
    else:
        dims.append(random.choice(DIMS))


@target(1000, mutate_net)
def nets(folder: Path) -> Run:
    def run(data: bytes) -> None:
        _, words = parsed(data, proto.NetParameter())
        config = parse_net(data.decode(errors="replace"), "net.prototxt")
        phase = proto.TEST if "TEST" in words else proto.TRAIN
        graph = build(config, phase)
        values = sum(prod(top.shape) for layer in graph.layers for top in layer.tops)
        if values + sum(each.count for each in graph.all_params) > MOST_VALUES:
            raise EngineError("too large to be run here")
        if sum(layer.flops() for layer in graph.layers) > MOST_FLOPS:
            raise EngineError("too much work to be run here")
        options = NetOptions(precision="bf16" if "bf16" in words else "fp32", accumulate="accumulate" in words)
        options = options.replace(keep_all="keep_all" in words)
        net = Net(config, phase, options.watched().plain() if "plain" in words else options)
        generator = np.random.RandomState(sum(int(word) for word in words if word.isdecimal()) % 2**32)
        for step in range(2):
            for blob in net.inputs:
                net.feed(blob, odd_values(blob.shape, generator))
            net.forward(Counters(step, 2 * step))
            if net.has_backward:
                net.backward()

    return run


def odd_values(shape: Sequence[int], random: np.random.RandomState) -> np.ndarray:
    """Returns numbers that layers expect, such as labels or images, or numbers that none expects, or a mix of few of
    these with the former."""
    kind = random.randint(12)
    if kind < 4:
        values = random.standard_normal(shape)
    elif kind < 8:
        values = random.randint(0, random.choice([2, 3, 10, 100]), shape)
    elif kind == 8:
        values = random.randint(-3, 3, shape)
    elif kind == 9:
        values = random.standard_normal(shape) * 10.0 ** random.randint(-30, 38)
    else:
        return random.choice(ODD, shape).reshape(shape)
    values = np.array(values, np.float32).reshape(shape)
    if random.rand() < 0.2 and values.size:
        values.flat[random.randint(values.size)] = random.choice(ODD)
    return values


# Data layers

SIZES = [(12, 17), (16, 16), (1, 1), (1, 50), (50, 1), (33, 8), (2, 2), (1, 3000)]
BIG = 3000  # largest side in pixels of pictures that are made here; larger ones are allowed, but slow


def mutate_data(data: bytes, random: Random, corpus: Sequence[bytes]) -> bytes:
    """Changes parameters of a data layer, but not what it reads."""
    layer, words = parsed(data, proto.LayerParameter())
    if layer is None:
        return random.choice(corpus)
    for _ in range(random.choice([1, 1, 2, 3, 4])):
        names = [field.name for field, _ in layer.ListFields() if field.name.endswith("_param")] + ["transform_param"]
        param = getattr(layer, random.choice(names))
        kept = {field.name: value for field, value in param.ListFields() if field.name in KEPT}
        change_field(param, random)
        for name, value in kept.items():
            setattr(param, name, value)
    return shown(layer, [way for way in words if way == "TEST"] if random.random() < 0.8 else ["TEST"])


KEPT = ("source", "backend", "root_folder", "mean_file")


def make_sources(folder: Path) -> None:
    """Makes sources: a.mdb has pictures of one size, b.mdb of several, a_boxes.mdb and b_boxes.mdb have boxes; also
    list.txt, windows.txt and mean."""
    random = np.random.RandomState(0)
    windows = ""
    for number, (height, width) in enumerate(SIZES):
        Image.fromarray(random.randint(0, 255, (height, width, 3), np.uint8)).save(folder / f"{number}.png")
        boxes = f"1 0.8 0 0 {width - 1} {height - 1}\n0 0.1 0 0 {2 * width} {2 * height}\n"
        windows += f"# {number}\n{number}.png\n3\n{height}\n{width}\n2\n{boxes}"
    (folder / "windows.txt").write_text(windows)
    (folder / "list.txt").write_text("".join(f"{number}.png {number}\n" for number in range(len(SIZES))))
    raw = proto.Datum(channels=3, height=12, width=17, data=random.bytes(12 * 17 * 3), label=1)
    pictures = [(folder / f"{number}.png").read_bytes() for number in range(len(SIZES))]
    encoded = [proto.Datum(encoded=True, data=picture, label=2) for picture in pictures]
    for name, items in {"a": [raw, encoded[0], raw], "b": encoded}.items():
        seeds.write_lmdb(folder / f"{name}.mdb", [item.SerializeToString() for item in items])
        seeds.write_lmdb(folder / f"{name}_boxes.mdb", [with_boxes(item, random) for item in items])
    write_mean(str(folder / "mean"), np.zeros((3, 12, 17), np.float32))


def with_boxes(datum: proto.Datum, random: np.random.RandomState) -> bytes:
    annotated = proto.AnnotatedDatum(type=0)
    annotated.datum.CopyFrom(datum)
    for number in range(random.randint(4)):
        box = annotated.annotation_group.add(group_label=number).annotation.add(instance_id=number).bbox
        corners = map(float, random.choice([0, 0.1, 0.5, 0.9, 1, -0.5, 1.5], 4))
        box.xmin, box.ymin, box.xmax, box.ymax = corners
    return annotated.SerializeToString()


@target(300, mutate_data)
def data_layers(folder: Path) -> Run:
    make_sources(folder)

    def run(data: bytes) -> None:
        layer, words = parsed(data.replace(b"FOLDER", str(folder).encode()), proto.LayerParameter())
        if layer is None:
            raise EngineError("no layer")
        transform, memory, images = layer.transform_param, layer.memory_data_param, layer.image_data_param
        resize = transform.resize_param
        sides = [transform.crop_size, transform.crop_h, transform.crop_w, resize.height, resize.width]
        sides += [images.new_height, images.new_width, memory.height, memory.width, memory.channels]
        if max(sides) > BIG:
            raise EngineError("too large to be read here")
        read_data(layer, proto.TEST if "TEST" in words else proto.TRAIN, epochs=(0, 1))

    return run
