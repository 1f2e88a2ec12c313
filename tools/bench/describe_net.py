#!/usr/bin/env python3
"""Writes what PyTorch needs to train a net of engine: its layers, first values and one batch. torch_net.py reads it.

python tools/bench/describe_net.py nets/resnet50.prototxt 32 TRAIN FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from engine.config import read_net  # noqa: E402
from engine.config.phases import PHASES  # noqa: E402
from engine.data.source_shapes import SourceShapes  # noqa: E402
from engine.examine.synthetic import feed_synthetic  # noqa: E402
from engine.graph.build import build  # noqa: E402
from engine.layers.base import Layer  # noqa: E402
from engine.net import Net, NetOptions  # noqa: E402


def describe(model: str, batch: int, phase: str, folder: Path) -> None:
    """Writes arrays.npz and net.json into folder.

    arrays.npz has the inputs by name, and the parameters as LAYER/NUMBER. net.json has the layers of the phase in
    order, the names of the inputs, and what engine computes in float32: the sum of the weighted losses, null if there
    is none, and for TRAIN the length of each parameter's gradient. engine computes this without Dropout, for which each
    program draws other numbers.
    """
    config = read_net(model, [f"layer[data].data_param.batch_size={batch}"])
    shapes_of = SourceShapes(config.message, PHASES[phase], lambda note: None)
    layers = [described(layer) for layer in build(config, PHASES[phase], shapes_of=shapes_of).layers if layer.bottoms]
    for layer in config.message.layer:
        if layer.type == "Dropout":
            layer.dropout_param.dropout_ratio = 0

    def made(name: str, share: Net | None = None) -> Net:
        """Builds the net of a phase and feeds it. share: the net whose parameters it has."""
        shapes_of = SourceShapes(config.message, PHASES[name], lambda note: None)
        net = Net(config, PHASES[name], NetOptions(shapes_of=shapes_of), share=share)
        feed_synthetic(net)
        return net

    net = made("TRAIN")
    for parameter, tensor in net.tensor_of.items():
        if not parameter.statistics and len(parameter.shape) == 1 and parameter.index == 0 and not tensor.get().any():
            tensor.set(np.ones(parameter.shape, np.float32))  # a Scale of 0 would give the layers below no gradient
    net.run_forward()
    if phase == "TEST":  # it needs running statistics, which the forward of TRAIN has made
        net = made("TEST", share=net)
    arrays: dict[str, Any] = {blob.name: values for blob, values in net.fed.items()}
    arrays |= {f"{name}/{i}": tensor.get() for name, own in net.params.items() for i, tensor in enumerate(own)}
    np.savez(folder / "arrays.npz", **arrays)
    net.run_forward()
    losses = [weight * float(values.get().sum()) for values, weight in net.loss_tensors()]
    gradients: dict[str, float] = {}
    if phase == "TRAIN":
        net.backward()
        learned = [(parameter, net.tensor_of[parameter]) for parameter in net.graph.params if parameter.learnable]
        gradients = {f"{p.layer}/{p.index}": float(np.linalg.norm(tensor.diff.get())) for p, tensor in learned}
    told = {
        "layers": layers,
        "inputs": [blob.name for blob in net.inputs],
        "loss": sum(losses) if losses else None,
        "gradients": gradients,
    }
    (folder / "net.json").write_text(json.dumps(told))


def described(layer: Layer) -> dict:
    """Returns a layer's name, type, blobs with their shapes, and loss weights; "param" has the fields of all its
    parameter messages."""
    text = MessageToDict(layer.message, preserving_proto_field_name=True)
    params = [value for name, value in text.items() if name.endswith("_param")]
    return {
        "name": layer.name,
        "type": layer.type,
        "bottoms": [blob.name for blob in layer.bottoms],
        "tops": [blob.name for blob in layer.tops],
        "shapes": [blob.shape for blob in (*layer.bottoms, *layer.tops)],
        "loss_weights": layer.loss_weights,
        "param": {name: value for each in params for name, value in each.items()},
    }


if __name__ == "__main__":
    describe(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
