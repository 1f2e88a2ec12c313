"""Layers of which some parameters learn and others do not."""

import numpy as np
import pytest

from engine import proto
from tests.layers import sequences
from tests.layers.harness import PRECISIONS, inputs, make_net, net_text

FILLER = 'weight_filler { type: "xavier" }'
LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
X = (2, 32, 5, 6)
LAYERS = {  # type: (its parameters, bottom, top, number of parameters)
    "convolution": (
        "Convolution",
        f"convolution_param {{ num_output: 32 kernel_size: 3 {FILLER} }}",
        X,
        (2, 32, 3, 4),
        2,
    ),
    "deconvolution": (
        "Deconvolution",
        f"convolution_param {{ num_output: 4 kernel_size: 2 {FILLER} }}",
        X,
        (2, 4, 6, 7),
        2,
    ),
    "inner product": ("InnerProduct", f"inner_product_param {{ num_output: 4 {FILLER} }}", X, (2, 4), 2),
    "many rows": ("InnerProduct", f"inner_product_param {{ num_output: 4 {FILLER} }}", (1100, 8), (1100, 4), 2),
    "scale": ("Scale", "scale_param { bias_term: true }", X, X, 2),
}
RECURRENT = {"LSTM": 3, "RNN": 5, "GRU": 5}  # and one more with a static input


def gradients(text: str, values: dict[str, np.ndarray], frozen: set[int], count: int, **options):
    """Returns the gradients of all parameters, None for those that are frozen."""
    params = " ".join(f"param {{ lr_mult: {int(i not in frozen)} }}" for i in range(count))
    text = text.replace('name: "layer"', f'name: "layer" {params}')
    shapes = {name: array.shape for name, array in values.items()}
    net = make_net(net_text(text + LOSS, **shapes).replace("force_backward: true", ""), proto.TRAIN, **options)
    generator = np.random.default_rng(1)
    assert len(net.params["layer"]) == count
    for tensor in net.params["layer"]:
        tensor.set(generator.normal(size=tensor.shape).astype(np.float32))
    for name, array in values.items():
        inputs(net)[name].set(array)
    net.forward()
    net.backward()
    return [tensor.diff.get() if tensor.diff is not None else None for tensor in net.params["layer"]]


def check(text: str, values: dict[str, np.ndarray], count: int, **options) -> None:
    expected = gradients(text, values, set(), count, **options)
    for i in range(count):
        for frozen in ({i}, set(range(count)) - {i}):
            found = gradients(text, values, frozen, count, **options)
            for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                assert (ours is None) == (k in frozen)
                if ours is not None:
                    np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5, err_msg=f"{k} without {frozen}")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_others_learn_as_ever(name, precision):
    kind, params, shape, top, count = LAYERS[name]
    generator = np.random.default_rng(2)
    values = {"x": generator.normal(size=shape).astype(np.float32), "t": generator.normal(size=top)}
    check(f'layer {{ name: "layer" type: "{kind}" bottom: "x" top: "y" {params} }}', values, count, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("names", ["x cont", "x cont s"])
def test_of_sequences(names, kind, precision):
    values = sequences.values(names)
    values["t"] = np.zeros((*values["cont"].shape, sequences.UNITS))
    check(sequences.layer(kind, names), values, RECURRENT[kind] + ("s" in values), precision=precision)
