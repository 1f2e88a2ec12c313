"""Tests layers on blobs in the kernels' own layouts, which a convolution in front of the layer makes."""

from __future__ import annotations

import numpy as np

from engine import proto
from engine.net import PASSES, Net
from tests.layers.harness import make_net, net_text, set_top_diff

CONVOLUTION = """layer {{ name: "{name}" type: "Convolution" bottom: "x" top: "{name}" convolution_param {{
    num_output: {channels} kernel_size: 1 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}"""


def run_blocked(
    layer: str,
    phase: int = proto.TRAIN,
    size=(2, 3, 5, 6),
    plain=None,
    passes=PASSES,
    precision="fp32",
    **channels: int,
) -> Net:
    """Returns a net in which convolutions make a blob for each of `channels`, by name, for the text of a layer. It has
    run forward and backward; outputs have random gradients.

    Also checks that the convolutions' blobs are blocked, and that results and gradients of parameters stay the same
    when the memory plan may reuse memory (without `keep_all`).

    Args:
        plain: values of further inputs, by name.
    """
    generator = np.random.default_rng(5)
    inputs = {"x": generator.normal(size=size).astype(np.float32), **(plain or {})}
    text = "".join(CONVOLUTION.format(name=name, channels=count) for name, count in channels.items()) + layer
    text = net_text(text, **{name: values.shape for name, values in inputs.items()})
    options = {"passes": passes, "precision": precision}
    nets = [_run(text, phase, inputs, keep_all=keep_all, **options) for keep_all in (True, False)]
    for name in channels:
        assert not nets[0].blobs[name].tensor.is_plain
    _same_results(*nets)
    return nets[0]


def _run(text: str, phase: int, inputs: dict[str, np.ndarray], **options) -> Net:
    net = make_net(text, phase, **options)
    for name, values in inputs.items():
        net.blobs[name].set(values)
    generator = np.random.default_rng(6)
    for name, values in net.forward().items():
        gradient = generator.normal(size=values.shape)
        if net.blobs[name].diff is not None:
            set_top_diff(net, name, gradient)
    net.backward()
    return net


def _same_results(kept: Net, planned: Net) -> None:
    for name, values in kept.outputs().items():
        np.testing.assert_array_equal(planned.outputs()[name], values, err_msg=name)
    for layer, tensors in kept.params.items():
        for ours, theirs in zip(tensors, planned.params[layer], strict=True):
            if ours.diff is not None:
                np.testing.assert_array_equal(theirs.diff.get(), ours.diff.get(), err_msg=f"gradient of {layer}")
