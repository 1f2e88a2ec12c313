"""Parameters that several layers share. As in Caffe, such a parameter is one flat array that each layer sees in its own
shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, inputs, make_net, needs_bf16, net_text, set_top_diff

RANDOM = np.random.default_rng(15)
X, IDS = (4, 16, 3, 3), (4,)
INPUTS = {"x": X, "ids": IDS, "rows": (4, 16)}


def layer(name: str, type: str, bottom: str, param: str, mode: str = "", shared: bool = True) -> str:
    """Returns a layer without bias, whose only parameter is called `w` if it is to be shared."""
    spec = f'param {{ name: "w" {mode} }}' if shared else "param { }"
    kind = {"InnerProduct": "inner_product_param", "Embed": "embed_param"}.get(type, "convolution_param")
    return (
        f'layer {{ name: "{name}" type: "{type}" bottom: "{bottom}" top: "{name}" {spec} '
        f'{kind} {{ {param} bias_term: false weight_filler {{ type: "uniform" min: -1 max: 1 }} }} }}\n'
    )


PERMISSIVE = "share_mode: PERMISSIVE"
# By name: the first layer, the second, and their share_mode.
PAIRS: dict[str, Sequence[Any]] = {
    "tied, square": (
        ("InnerProduct", "x", "num_output: 144"),
        ("InnerProduct", "a", "num_output: 144 transpose: true"),
    ),
    "tied": (("InnerProduct", "x", "num_output: 32"), ("InnerProduct", "a", "num_output: 144 transpose: true")),
    "tied, transposed first": (
        ("InnerProduct", "x", "num_output: 32 transpose: true"),
        ("InnerProduct", "a", "num_output: 144"),
    ),
    "turned": (("InnerProduct", "x", "num_output: 3"), ("InnerProduct", "a", "num_output: 144"), PERMISSIVE),
    "transposed and another shape": (
        ("InnerProduct", "x", "num_output: 32 transpose: true"),
        ("InnerProduct", "a", "num_output: 144 transpose: true"),
        PERMISSIVE,
    ),
    "embedded": (("Embed", "ids", "num_output: 32 input_dim: 16"), ("InnerProduct", "a", "num_output: 16")),
    "embedding second": (("InnerProduct", "x", "num_output: 3"), ("Embed", "ids", "num_output: 144 input_dim: 3")),
    "embedding of another shape": (
        ("InnerProduct", "x", "num_output: 3"),
        ("Embed", "ids", "num_output: 48 input_dim: 9"),
        PERMISSIVE,
    ),
    "groups": (
        ("Convolution", "x", "num_output: 8 kernel_size: 1 group: 2"),
        ("Convolution", "a", "num_output: 8 kernel_size: 1"),
    ),
    "groups second": (
        ("Convolution", "x", "num_output: 32 kernel_size: 3 pad: 1"),
        ("Convolution", "a", "num_output: 32 kernel_size: 3 pad: 1 group: 2"),
    ),
    "images and rows": (("InnerProduct", "x", "num_output: 144"), ("InnerProduct", "a", "num_output: 144")),
    "convolution and rows": (
        ("Convolution", "x", "num_output: 32 kernel_size: 3"),
        ("InnerProduct", "x", "num_output: 32"),
        PERMISSIVE,
    ),
    "rows and convolution": (
        ("InnerProduct", "x", "num_output: 16"),
        ("Convolution", "x", "num_output: 16 kernel_size: 3"),
        PERMISSIVE,
    ),
    "kernels and other rows": (
        ("Convolution", "x", "num_output: 16 kernel_size: 3 pad: 1"),
        ("InnerProduct", "rows", "num_output: 144"),
        PERMISSIVE,
    ),
    "rows and other kernels": (
        ("InnerProduct", "rows", "num_output: 144"),
        ("Convolution", "x", "num_output: 16 kernel_size: 3 pad: 1"),
        PERMISSIVE,
    ),
    "kernels of another size": (
        ("Convolution", "x", "num_output: 16 kernel_size: 3 pad: 1"),
        ("Convolution", "a", "num_output: 144 kernel_size: 1"),
        PERMISSIVE,
    ),
    "reversed": (
        ("Convolution", "x", "num_output: 32 kernel_size: 3 group: 2"),
        ("Deconvolution", "a", "num_output: 16 kernel_size: 3 group: 2"),
    ),
}


def pair(kind: str, shared: bool = True) -> str:
    first, second, *modes = PAIRS[kind]
    mode = "".join(modes)
    text = layer("a", *first, mode=mode, shared=shared) + layer("b", *second, mode=mode, shared=shared)
    return net_text(text, **{name: INPUTS[name] for name in INPUTS if any(name == each[1] for each in (first, second))})


def fill(net) -> None:
    generator = np.random.default_rng(3)
    for name, blob in inputs(net).items():
        blob.set(generator.integers(0, 3, IDS) if name == "ids" else generator.uniform(-1, 1, INPUTS[name]))
    tensor = net.params["a"][0]
    tensor.set(generator.uniform(-0.3, 0.3, tensor.shape).astype(np.float32))


@pytest.mark.parametrize("options", [{}, {"plain_parameters": True}, {"accumulate": True}], ids=str)
@pytest.mark.parametrize("kind", PAIRS)
def test_values_and_gradients_are_those_of_two_arrays(kind, options):
    both, apart = make_net(pair(kind), **options), make_net(pair(kind, shared=False), **options)
    for net in (both, apart):
        fill(net)
    flat = both.params["a"][0].get().ravel()
    first, second = apart.params["a"][0], apart.params["b"][0]
    first.set(flat.reshape(first.shape))
    second.set(flat.reshape(second.shape))
    for net in (both, apart):
        net.forward()
        for top in net.outputs():
            set_top_diff(net, top, np.random.default_rng(5).uniform(-1, 1, net.blobs[top].shape))
        net.backward()
    for name in "ab":
        np.testing.assert_allclose(both.blobs[name].data, apart.blobs[name].data, atol=2e-5)
    expected = first.diff.get().ravel() + second.diff.get().ravel()
    np.testing.assert_allclose(both.params["a"][0].diff.get().ravel(), expected, atol=2e-5 * np.abs(expected).max())
    assert np.abs(first.diff.get()).max() > 0.01 and np.abs(second.diff.get()).max() > 0.01
    assert both.tensor_of[both.graph.params[0]].nbytes == 4 * flat.size  # its layout has no padding
    ours = both.weights_by_layer()
    assert [each.shape for each in (ours["a"][0], ours["b"][0])] == [first.shape, second.shape]
    np.testing.assert_array_equal(ours["b"][0].ravel(), flat)


@pytest.mark.parametrize("kind", PAIRS)
def test_nets_that_are_tested_read_them_too(kind):
    """In nets whose parameters are constant, kernels keep copies, which must be made again when the array is written
    to."""
    train = make_net(pair(kind))
    net = make_net(pair(kind), proto.TEST, share=train)
    alone = make_net(pair(kind).replace("force_backward: true", ""), proto.TEST, keep_all=False)
    for number in range(2):
        for each in (net, train, alone):
            fill(each)
        for each in (train, alone):
            tensor = each.params["a"][0]
            tensor.set(tensor.get() * (1 + number))
        expected = train.forward()
        for each in (net, alone):
            for name, values in each.forward().items():
                np.testing.assert_allclose(values, expected[name], atol=2e-5)


@needs_bf16
@pytest.mark.parametrize("kind", [kind for kind in PAIRS if "embed" not in kind])
def test_in_bf16(kind):
    exact, rounded = make_net(pair(kind)), make_net(pair(kind), precision="bf16")
    tops, gradients = [], []
    for net in (exact, rounded):
        fill(net)
        tops.append(net.forward())
        for top in net.outputs():
            set_top_diff(net, top, np.ones(net.blobs[top].shape))
        net.backward()
        gradients.append(net.params["a"][0].diff.get())
    for name, values in tops[0].items():
        np.testing.assert_allclose(tops[1][name], values, atol=0.03 * np.abs(values).max())
    np.testing.assert_allclose(gradients[1], gradients[0], atol=0.03 * np.abs(gradients[0]).max())


def test_a_tied_auto_encoder():
    """Caffe gives these numbers."""
    text = layer("y", "InnerProduct", "x", "num_output: 2")
    text += layer("z", "InnerProduct", "y", "num_output: 2 transpose: true")
    net = make_net(net_text(text, x=(1, 2)))
    net.params["y"][0].set(np.array([[1, 2], [3, 4]], np.float32))
    net.blobs["x"].set(np.array([[1, 10]], np.float32))
    assert net.forward()["z"].tolist() == [[150, 214]]
    assert net.blobs["y"].data.tolist() == [[21, 43]]


def test_gradients_of_a_tied_auto_encoder():
    text = layer("a", "InnerProduct", "x", "num_output: 5")
    text += layer("b", "InnerProduct", "a", "num_output: 7 transpose: true")
    check_gradients(net_text(text, x=(3, 7)), {"x": RANDOM.uniform(-1, 1, (3, 7))})


def test_sharers_that_agree_keep_the_layout_of_the_kernel():
    text = net_text(
        layer("a", "Convolution", "x", "num_output: 16 kernel_size: 3 pad: 1")
        + layer("b", "Convolution", "a", "num_output: 16 kernel_size: 3 pad: 1"),
        x=X,
    )
    alone = make_net(text.replace('name: "w"', ""))
    assert make_net(text).params["a"][0].layout == alone.params["a"][0].layout != "abcd"


def multiplied(first: str, second: str, third: str = "") -> str:
    text = ""
    for name, bottom, spec in (("a", "x", first), ("b", "a", second), ("c", "b", third)):
        one = layer(name, "InnerProduct", bottom, "num_output: 4")
        text += one.replace('name: "w"', f'name: "w" {spec}')
    return text


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (("", "lr_mult: 3"), (3, 1)),
        (("", "", "lr_mult: 0 decay_mult: 0"), (0, 0)),
        (("lr_mult: 2", "decay_mult: 5"), (2, 5)),
        (("lr_mult: 2", "lr_mult: 2"), (2, 1)),
        (("lr_mult: 0", ""), (0, 1)),
    ],
)
def test_multipliers_of_any_sharer_hold(specs, expected):
    net = make_net(net_text(multiplied(*specs), x=(2, 4)))
    assert {(each.lr_mult, each.decay_mult) for each in net.all_params()} == {expected}
    assert (net.params["a"][0].diff is not None) == (expected[0] != 0)


@pytest.mark.parametrize("field", ["lr_mult", "decay_mult"])
def test_multipliers_that_contradict_each_other(field):
    message = error_of(multiplied("", f"{field}: 3", f"{field}: 2"), x=(2, 4))
    assert f"parameter 'w' is shared with layer 'b', whose {field} is 3: expected the same or none, got 2" in message
    assert "test.prototxt:" in message and "layer 'c'" in message


def test_shapes_that_cannot_be_shared():
    text = layer("a", "InnerProduct", "x", "num_output: 3") + layer("b", "InnerProduct", "a", "num_output: 4")
    assert "is shared with layer 'a' but has another shape: expected (3, 4), got (4, 3)" in error_of(text, x=(2, 4))
    text = text.replace('"w"', f'"w" {PERMISSIVE}').replace("num_output: 4", "num_output: 5")
    assert "expected (3, 4), got (5, 3)" in error_of(text, x=(2, 4))
