"""`engine import` of ONNX: models as other tools write them, against ONNX Runtime; damaged and malicious files."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from engine.cli import main
from engine.config import parse_net
from engine.errors import EngineError
from engine.exchange.from_onnx.registry import imported_operators
from engine.exchange.onnx_export import export_onnx
from engine.exchange.onnx_import import import_onnx
from tests.exchange import harness
from tests.exchange.test_onnx_nets import deployed, shrunk

onnx = pytest.importorskip("onnx")
helper = onnx.helper
RANDOM = np.random.default_rng(6)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes):
    return helper.make_node(op, inputs.split(","), outputs.split(","), **attributes)


def model(nodes, shapes: dict, outputs: str = "y", opset: int = 17, **constants):
    """Makes a model of nodes.

    Args:
        shapes: of inputs, by name; a name in place of a number leaves an axis open.
        outputs: their names, with commas between them.
        constants: the initializers.
    """
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    tensors = [onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name=y) for y in outputs.split(",")], tensors)
    for output in graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, None))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(made, shapes: dict, folder, **options) -> str:
    """Imports a model and checks that engine computes what ONNX Runtime does, on inputs of these shapes; returns the
    prototxt."""
    harness.runtime()
    onnx.save(made, folder / "x.onnx")
    (folder / "x.prototxt").unlink(missing_ok=True)
    import_onnx(folder / "x.onnx", folder / "x.prototxt", folder / "x.caffemodel", **options)
    inputs = harness.random_inputs(shapes)
    text = (folder / "x.prototxt").read_text()
    found = harness.engine_outputs(text, str(folder / "x.caffemodel"), inputs)
    for name, values in harness.onnx_outputs(folder / "x.onnx", inputs).items():
        harness.assert_close(found[name], values.astype(np.float32))
    return text


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SHAPE = (2, 4, 7, 6)
NONE = ints()
W = normal(4, 4, 3, 3)
# Name -> (nodes from x to y, constants).
CASES = {
    "SAME_UPPER": ([node("Conv", "x,w", "y", strides=[2, 2], auto_pad="SAME_UPPER")], {"w": W}),
    "SAME_LOWER": ([node("Conv", "x,w", "y", strides=[2, 2], auto_pad="SAME_LOWER")], {"w": W}),
    "asymmetric": ([node("Conv", "x,w", "y", pads=[0, 2, 1, 0], strides=[2, 1])], {"w": W}),
    "asymmetric, dilated": ([node("Conv", "x,w", "y", pads=[0, 2, 2, 0], dilations=[2, 2])], {"w": W}),
    "Pad before Conv": (
        [node("Pad", "x,p", "a"), node("Conv", "a,w", "y", strides=[2, 2])],
        {"w": W, "p": ints(0, 0, 0, 1, 0, 0, 1, 1)},
    ),
    "Pad before MaxPool": (
        [node("Pad", "x,p", "a"), node("MaxPool", "a", "y", kernel_shape=[3, 3], strides=[2, 2])],
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "ReduceSum of no axes": ([node("ReduceSum", "x,a", "y")], {"a": NONE}),
    "ReduceSum of no axes, which are none": ([node("ReduceSum", "x,a", "y", noop_with_empty_axes=1)], {"a": NONE}),
    "Min of anything": ([node("Min", "x,a", "y")], {"a": np.float32(np.inf)}),
    "MaxPool SAME": ([node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")], {}),
    "MaxPool SAME, stride 1": ([node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], {}),
    "MaxPool begins early": ([node("MaxPool", "x", "y", kernel_shape=[3, 3], pads=[2, 1, 0, 0])], {}),
    "AveragePool SAME": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")],
        {},
    ),
    "AveragePool uneven": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 2], pads=[0, 0, 1, 1], count_include_pad=1)],
        {},
    ),
    "AveragePool ceil": ([node("AveragePool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], {}),
    **{
        f"AveragePool with gaps, {name}": (
            [node("AveragePool", "x", "y", kernel_shape=[1, 2], strides=[3, 4], **attributes)], {}
        )
        for name, attributes in {
            "floor": {},
            "ceil": {"ceil_mode": 1},
            "padded": {"pads": [0, 1, 0, 0]},
            "padded, ceil": {"pads": [0, 1, 0, 1], "ceil_mode": 1},
            "counted": {"pads": [0, 1, 0, 1], "ceil_mode": 1, "count_include_pad": 1},
        }.items()
    },
    "MaxPool with gaps": ([node("MaxPool", "x", "y", kernel_shape=[1, 2], strides=[3, 4], ceil_mode=1)], {}),
    "ConvTranspose, output_padding": (
        [node("ConvTranspose", "x,w", "y", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])],
        {"w": W},
    ),
    "ConvTranspose, uneven": ([node("ConvTranspose", "x,w", "y", strides=[2, 2], pads=[0, 1, 1, 0])], {"w": W}),
    "channels last": (
        [
            node("Transpose", "x", "a", perm=[0, 3, 1, 2]),
            node("Conv", "a,w", "b", auto_pad="SAME_UPPER"),
            node("Transpose", "b", "c", perm=[0, 2, 3, 1]),
            node("Add", "c,k", "y"),
        ],
        {"w": normal(5, 6, 3, 3), "k": normal(5)},
    ),
    "squeeze and excite": (
        [
            node("ReduceMean", "x", "a", axes=[2, 3], keepdims=1),
            node("Conv", "a,w", "b"),
            node("HardSigmoid", "b", "c", alpha=0.2, beta=0.5),
            node("Mul", "c,x", "y"),
        ],
        {"w": normal(4, 4, 1, 1)},
    ),
    "broadcast over channels": (
        [node("ReduceMean", "x", "a", axes=[1], keepdims=1), node("Sub", "x,a", "y")],
        {},
    ),
    "MatMul and Add": (
        [node("Reshape", "x,s", "a"), node("MatMul", "a,w", "b"), node("Add", "b,k", "y")],
        {"s": ints(0, -1), "w": normal(168, 5), "k": normal(5)},
    ),
    "shape arithmetic": (
        [
            node("Shape", "x", "a"),
            node("Gather", "a,zero", "b"),
            node("Unsqueeze", "b,axes", "c"),
            node("Concat", "c,rest", "d", axis=0),
            node("Reshape", "x,d", "y"),
        ],
        {"zero": np.int64(0), "axes": ints(0), "rest": ints(4, -1)},
    ),
    "Clip, one side": ([node("Clip", "x,low", "y")], {"low": np.float32(-0.3)}),
    "ReLU6": ([node("Clip", "x,low,high", "y")], {"low": np.float32(0), "high": np.float32(6)}),
    "hard swish": ([node("HardSwish", "x", "y")], {}),
    "x * sigmoid(x)": ([node("Sigmoid", "x", "a"), node("Mul", "x,a", "y")], {}),
    "1 - x / 3": (
        [node("Div", "x,three", "a"), node("Sub", "one,a", "y")],
        {"three": np.float32(3), "one": np.float32(1)},
    ),
    "x / x": ([node("Exp", "x", "a"), node("Div", "x,a", "y")], {}),
    "Min and Max": ([node("Neg", "x", "a"), node("Min", "x,a", "b"), node("Max", "b,k", "y")], {"k": np.float32(-1)}),
    "Slice": (
        [node("Slice", "x,b,e,a", "y")],
        {"b": ints(1, -3), "e": ints(3, 9999), "a": ints(1, 3)},
    ),
    "Split, one unread": ([node("Split", "x,s", "a,b,y", axis=1)], {"s": ints(1, 1, 2)}),
    "Squeeze": ([node("GlobalMaxPool", "x", "a"), node("Squeeze", "a,d", "y")], {"d": ints(2, 3)}),
    "ReduceMean of rows": ([node("ReduceMean", "x", "y", axes=[1, 2], keepdims=0)], {}),
    "ReduceL2": ([node("ReduceL2", "x", "y", axes=[1], keepdims=1)], {}),
    "ReduceMin": ([node("ReduceMin", "x", "y", axes=[3], keepdims=0)], {}),
    "nearest": (
        [node("Resize", "x,,f", "y", nearest_mode="floor", coordinate_transformation_mode="asymmetric")],
        {"f": np.array([1, 1, 2, 3], np.float32)},
    ),
    "bilinear, corners": (
        [node("Resize", "x,,,s", "y", mode="linear", coordinate_transformation_mode="align_corners")],
        {"s": ints(2, 4, 13, 9)},
    ),
    "InstanceNormalization": (
        [node("InstanceNormalization", "x,s,b", "y", epsilon=0.1)],
        {"s": normal(4), "b": normal(4)},
    ),
    "LayerNormalization": ([node("LayerNormalization", "x,s", "y", axis=2, epsilon=0.1)], {"s": normal(7, 6)}),
    "SpaceToDepth": (
        [node("Pad", "x,p", "a"), node("SpaceToDepth", "a", "y", blocksize=2)],
        {"p": ints(0, 0, 0, 0, 0, 0, 1, 0)},
    ),
    "DepthToSpace CRD": ([node("DepthToSpace", "x", "y", blocksize=2, mode="CRD")], {}),
    "LogSoftmax": ([node("LogSoftmax", "x", "y", axis=-1)], {}),
    "Selu": ([node("Selu", "x", "y")], {}),
    "Expand": (
        [node("ReduceMax", "x", "a", axes=[2], keepdims=1), node("Expand", "a,s", "y")],
        {"s": ints(2, 4, 3, 6)},
    ),
    "a constant as large as the data": ([node("Mul", "x,k", "y")], {"k": normal(7, 6)}),
    "ArgMax": ([node("ArgMax", "x", "a", axis=1, keepdims=0), node("Cast", "a", "y", to=1)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_engine_computes_what_onnx_runtime_does(name, tmp_path):
    nodes, constants = CASES[name]
    check(model(nodes, {"x": SHAPE}, **constants), {"x": SHAPE}, tmp_path)


def test_most_operators_are_tried():
    """Each is tried here, or on the way back in test_onnx_layers.py."""
    here = {each.op_type for nodes, _ in CASES.values() for each in nodes}
    assert len(imported_operators()) > 60 and here & set(imported_operators())


def test_softmax_of_old_models_goes_over_all_that_follows(tmp_path):
    made = model([node("Softmax", "x", "y", axis=1)], {"x": SHAPE}, opset=11)
    check(made, {"x": SHAPE}, tmp_path)


@pytest.mark.parametrize("what", ["constant", "blob", "constants"])
@pytest.mark.parametrize(
    ("op", "numpy"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)]
)
def test_the_axis_of_arithmetic_before_opset_7(op, numpy, what, tmp_path):
    """Every axis of x but the first has as many values as b, so NumPy would broadcast b along the last one. (ONNX
    Runtime begins with opset 7, so NumPy computes what is expected.)"""
    k, b = normal(2, 4, 4, 4), np.float32([1, 2, 4, 8])
    nodes, shapes, constants = [node(op, "x,b", "y", axis=1, broadcast=1)], {"x": k.shape}, {"b": b}
    if what == "blob":
        nodes, shapes, constants = [node("Abs", "v", "b"), *nodes], {**shapes, "v": (4,)}, {}
    if what == "constants":
        nodes, constants = [node(op, "k,b", "w", axis=1, broadcast=1), node("Add", "x,w", "y")], {"k": k, "b": b}
    onnx.save(model(nodes, shapes, opset=6, **constants), tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs(shapes)
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)["y"]
    x, b = inputs["x"], (np.abs(inputs["v"]) if what == "blob" else b)[:, np.newaxis, np.newaxis]
    harness.assert_close(found, x + numpy(k, b) if what == "constants" else numpy(x, b))


def test_an_axis_along_which_the_second_does_not_lie(tmp_path):
    made = model([node("Add", "x,b", "y", axis=1, broadcast=1)], {"x": SHAPE}, opset=6, b=normal(6))
    assert "node 'y' (Add) makes no sense ((6,) along (2, 4, 7, 6), from axis 1 on)" in refused(tmp_path, made)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "told"), [(3, False), (5, True)])
def test_same_pads_nothing_where_strides_leave_places_out(stride, told, auto_pad, tmp_path):
    """ONNX's own evaluator does so, too. ONNX Runtime cuts places off, and a note tells of that."""
    from onnx.reference import ReferenceEvaluator

    shape = (2, 4, 3 * stride, 2 * stride)
    made = model(
        [node("Conv", "x,w", "y", strides=[stride] * 2, auto_pad=auto_pad)], {"x": shape}, w=normal(4, 4, 1, 1)
    )
    onnx.save(made, tmp_path / "x.onnx")
    notes = import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    assert [f"{auto_pad} pads nothing where strides [5, 5] end within" in note for note in notes] == [True] * told
    inputs = harness.random_inputs({"x": shape})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)["y"]
    harness.assert_close(found, np.asarray(ReferenceEvaluator(made).run(None, inputs)[0]))
    if not told:
        harness.assert_close(found, harness.onnx_outputs(tmp_path / "x.onnx", inputs)["y"])


def test_an_open_batch_is_one_or_as_asked(tmp_path):
    made = model([node("Relu", "x", "y")], {"x": ["N", 3, 4, 5]})
    assert "dim: 1\n" in check(made, {"x": (1, 3, 4, 5)}, tmp_path)
    assert "dim: 6\n" in check(made, {"x": (6, 3, 4, 5)}, tmp_path, batch_size=6)


def test_other_open_axes_have_to_be_given(tmp_path, capsys):
    onnx.save(model([node("Relu", "x", "y")], {"x": ["N", 3, "H", "W"]}), tmp_path / "x.onnx")
    files = [str(tmp_path / name) for name in ("x.onnx", "x.prototxt", "x.caffemodel")]
    assert main(["import", *files]) == 1
    assert "input 'x' has the shape ['N', 3, 'H', 'W'], with more than its batch open; give it, as with --shape" in (
        capsys.readouterr().err
    )
    assert main(["import", *files, "--shape", "x=1,3,8,9"]) == 0


def test_a_bias_joins_its_layer_and_a_shared_value_does_not(tmp_path):
    nodes = [node("MatMul", "x,w", "a"), node("Add", "a,k", "b"), node("Add", "a,b", "y")]
    text = check(model(nodes, {"x": (2, 5)}, w=normal(5, 3), k=normal(3)), {"x": (2, 5)}, tmp_path)
    assert 'type: "Bias"' in text
    text = check(model(nodes[:2], {"x": (2, 5)}, outputs="b", w=normal(5, 3), k=normal(3)), {"x": (2, 5)}, tmp_path)
    assert 'type: "Bias"' not in text and text.count("layer {") == 2


def test_external_data_beside_the_model_is_read(tmp_path):
    made = model([node("MatMul", "x,w", "y")], {"x": (2, 50)}, w=normal(50, 30))
    onnx.save(made, tmp_path / "x.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs({"x": (2, 50)})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)
    harness.assert_close(found["y"], inputs["x"] @ onnx.numpy_helper.to_array(made.graph.initializer[0], str(tmp_path)))


@pytest.mark.parametrize("op", ["Identity", "Dropout"])
def test_a_bias_does_not_join_a_layer_that_is_read_under_another_name(op, tmp_path):
    nodes = [node("MatMul", "x,w", "a"), node(op, "a", "b"), node("Add", "b,k", "c"), node("Sub", "c,a", "y")]
    check(model(nodes, {"x": (2, 6)}, w=normal(6, 5), k=normal(5)), {"x": (2, 6)}, tmp_path)


def test_an_output_that_is_left_out_is_no_value(tmp_path):
    nodes = [node("Split", "x", ",a", axis=1, num_outputs=2), node("Clip", "a,,high", "y")]
    onnx.save(model(nodes, {"x": SHAPE}, opset=18, high=np.float32(0.5)), tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs({"x": SHAPE})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)
    harness.assert_close(found["y"], np.minimum(inputs["x"][:, 2:], 0.5))


@pytest.mark.parametrize(
    ("nodes", "of", "shape"),
    [
        ([node("LayerNormalization", "x,s", "y", epsilon=0.1)], 6, (1, 7, 6)),
        ([node("InstanceNormalization", "x,s,s", "y", epsilon=0.1)], 4, (1, 4, 7, 6)),
    ],
    ids=["layer", "instance"],
)
def test_samples_of_a_larger_batch_are_not_normalised_together(nodes, of, shape, tmp_path):
    text = check(model(nodes, {"x": shape}, s=normal(of)), {"x": shape}, tmp_path)
    larger = text.replace("dim: 1", "dim: 8", 1)  # of the Input
    with pytest.raises(EngineError, match=r"y/reshape.*Reshape"):
        harness.engine_outputs(larger, str(tmp_path / "x.caffemodel"), harness.random_inputs({"x": (8, *shape[1:])}))


def test_a_cast_to_whole_numbers_is_told_of_unless_they_are(tmp_path):
    def notes(*nodes) -> list[str]:
        onnx.save(model([*nodes, node("Cast", "a", "b", to=7), node("Cast", "b", "y", to=1)], {"x": SHAPE}),
                  tmp_path / "x.onnx")  # fmt: skip
        (tmp_path / "x.prototxt").unlink(missing_ok=True)
        return import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")

    assert notes(node("Relu", "x", "a")) == [
        "node 'b' (Cast): no layer cuts off fractions; expected whole numbers of its input"
    ]
    assert notes(node("ArgMax", "x", "a", axis=1)) == []


# Bad input


def refused(folder, made) -> str:
    """Returns the error of one line with which a model, or a file of bytes, is refused, without the file's name. Checks
    that nothing is written."""
    if isinstance(made, bytes):
        (folder / "x.onnx").write_bytes(made)
    else:
        (folder / "x.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(EngineError) as error:
        import_onnx(folder / "x.onnx", folder / "x.prototxt", folder / "x.caffemodel")
    assert not (folder / "x.prototxt").exists() and not (folder / "x.caffemodel").exists()
    line = str(error.value)
    assert "\n" not in line and line.startswith(f"{folder / 'x.onnx'}: ")
    return line.removeprefix(f"{folder / 'x.onnx'}: ")


def good():
    return model([node("MatMul", "x,w", "y")], {"x": (2, 50)}, w=normal(50, 30))


@pytest.mark.parametrize("keep", [0, 1, 40, 0.5, -1])
def test_a_truncated_model(keep, tmp_path):
    content = good().SerializeToString()
    kept = content[: int(keep * len(content))] if isinstance(keep, float) else content[:keep]
    assert refused(tmp_path, kept).startswith("truncated or not an ONNX model (")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.graph.node[0], "the name of a NodeProto is not UTF-8 (b'"),
        (lambda made: made.graph.node[0].attribute.add(), "the name of a AttributeProto is not UTF-8 (b'"),
        (lambda made: made.graph.initializer[0], "the name of a TensorProto is not UTF-8 (b'"),
        (lambda made: made.graph.input[0], "the name of a ValueInfoProto is not UTF-8 (b'"),
        (lambda made: made.graph.output[0], "the name of a ValueInfoProto is not UTF-8 (b'"),
        (
            lambda made: made.graph.node[0].attribute.add(name="body").g.node.add(),
            "the name of a NodeProto is not UTF-8 (b'",
        ),
        (lambda made: made.graph, "the name of a GraphProto is not UTF-8 (b'"),
    ],
)
def test_a_name_that_is_not_utf8(change, message, tmp_path):
    made = good()
    change(made).name = "replaced"
    line = refused(tmp_path, made.SerializeToString().replace(b"replaced", b"repl\xff\xfe\n\0"))
    assert line.startswith(message)
    made.graph.node[0].input[0] = "replaced"
    assert "is not UTF-8" in refused(tmp_path, made.SerializeToString().replace(b"replaced", b"repl\xff\xfe\n\0"))


def test_models_are_read_in_linear_time(tmp_path):
    """Thousands of nodes of one name, of biases, of whole numbers and of outputs take seconds, not minutes."""
    count = 3000
    nodes = [node("ArgMax", "x", "w0", axis=1)]
    for i in range(count):
        nodes.append(node("Relu", f"r{i - 1}" if i else "x", f"r{i}", name="same"))
        nodes.append(node("Cast", f"w{i}", f"w{i + 1}", to=7))
        nodes += [node("MatMul", "x,w", f"m{i}"), node("Add", f"m{i},k", f"y{i}")]
    made = model(nodes, {"x": (1, 4)}, outputs=",".join(f"y{i}" for i in range(count)), w=normal(4, 4), k=normal(4))
    onnx.save(made, tmp_path / "x.onnx")
    begin = time.thread_time()
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    assert time.thread_time() - begin < 30


def test_all_unknown_operators_are_named_at_once(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Frobnicate", ["a"], ["b"], name="first", domain="com.example"),
        helper.make_node("Frobnicate", ["b"], ["c"], name="second", domain="com.example"),
        helper.make_node("NonZero", ["a"], ["d"], name="third"),
        helper.make_node("Resize", ["a", "", "f"], ["y"], name="fourth", mode="cubic"),
    ]
    made = model(nodes, {"x": SHAPE}, f=np.array([1, 1, 2, 2], np.float32))
    assert refused(tmp_path, made) == (
        "no layer computes com.example.Frobnicate (node 'first' (Frobnicate)); NonZero (node 'third' (NonZero)); "
        "Resize (node 'fourth' (Resize): mode cubic, half_pixel, by [2.0, 2.0]: expected align_corners, or whole "
        "factors of nearest pixels)"
    )


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "link", "..", "", "a/../../x"])
def test_external_data_outside_of_the_folder_is_refused(location, tmp_path):
    os.symlink("/etc/passwd", tmp_path / "link")
    made = good()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert refused(tmp_path, made) == (
        f"tensor 'w' has external data outside of the model's folder, '{location}', which is refused"
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"location": "gone.bin"}, "tensor 'w': "),
        (
            {"location": "short.bin", "offset": "2", "length": "6000"},
            "tensor 'w' has 6000 bytes from 2 on in 'short.bin'",
        ),
        ({"location": "short.bin", "offset": "-1"}, "tensor 'w' has "),
        ({"location": "short.bin", "offset": "x"}, "tensor 'w' says nonsense of its external data"),
        ({"location": "short.bin"}, "tensor 'w' cannot be read ("),
    ],
)
def test_external_data_that_is_missing_or_short(place, message, tmp_path):
    (tmp_path / "short.bin").write_bytes(bytes(100))
    made = good()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    assert refused(tmp_path, made).startswith(message)


def test_tensors_share_external_data_but_not_without_end(tmp_path):
    (tmp_path / "w").write_bytes(np.ones(4, "f").tobytes())
    made = model([node("Mul", "x,w0", "y")], {"x": (4,)}, **{f"w{i}": np.ones(4, "f") for i in range(5)})
    for tensor in made.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w")
    assert refused(tmp_path, made) == "tensor 'w4' shares its bytes of 'w' with too many others"
    del made.graph.initializer[4]
    onnx.save(made, tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: model([node("Relu", "z", "y")], {"x": SHAPE}), "node 'y' (Relu) reads 'z', which nothing before"),
        (lambda: model([node("Relu", "x", "z")], {"x": SHAPE}), "output 'y' is made by no node"),
        (lambda: model([node("Conv", "x,w", "y")], {"x": SHAPE}, w=normal(4, 3, 3, 3)), "node 'y' (Conv): layer 'y/"),
        (lambda: model([node("Conv", "x,x", "y")], {"x": SHAPE}), "no layer computes Conv (node 'y' (Conv): weights"),
        (lambda: model([node("Reshape", "x,s", "y")], {"x": SHAPE}, s=ints(5, 5)), "node 'y' (Reshape): "),
        (lambda: model([node("Relu", "", "y")], {"x": SHAPE}), "no layer computes Relu (node 'y' (Relu): an input"),
        (lambda: model([node("Conv", "x", "y")], {"x": SHAPE}), "node 'y' (Conv) makes no sense ("),
        (
            lambda: model(
                [node("ConstantOfShape", "s", "a"), node("Add", "x,a", "y")], {"x": SHAPE}, s=ints(1 << 20, 1 << 20)
            ),
            "no layer computes ConstantOfShape (node 'a' (ConstantOfShape): a constant of too many values)",
        ),
        (
            lambda: model([node("Add", "r,c", "a"), node("Add", "x,a", "y")], {"x": SHAPE},
                          r=ints(*range(1 << 14)), c=np.zeros((1 << 14, 1), np.int64)),
            "no layer computes Add (node 'a' (Add): a constant of too many values)",
        ),
        (
            lambda: model([node("Resize", "x,,s", "y")], {"x": (1, 2, 3, 3)}, s=np.array([1, 1, 3.3, 3.3], np.float32)),
            "no layer computes Resize (node 'y' (Resize): mode nearest, half_pixel, by [3.29",
        ),
        (
            lambda: model([node("Resize", "x,,s", "y", mode="linear", antialias=1,
                                coordinate_transformation_mode="align_corners")],
                          {"x": SHAPE}, opset=18, s=np.array([1, 1, 0.5, 0.5], np.float32)),
            "no layer computes Resize (node 'y' (Resize): antialias)",
        ),
        (lambda: model([node("Identity", "t", "y")], {"x": SHAPE}, t=np.array(["a"], object)), "output 'y' is a const"),
        (
            lambda: model([node("Gemm", "x,w,c", "y")], {"x": (2, 3)}, w=normal(3, 4), c=normal(2, 4)),
            "no layer computes Gemm (node 'y' (Gemm): biases for each row)",
        ),
        (
            lambda: model([node("Relu", "v", "a"), node("Pad", "x,p,a", "y")], {"x": SHAPE, "v": (1,)},
                          p=ints(0, 0, 1, 1, 0, 0, 1, 1)),
            "no layer computes Pad (node 'y' (Pad): a filling that is not a constant here)",
        ),
    ],
)  # fmt: skip
def test_models_that_make_no_sense(made, message, tmp_path):
    assert refused(tmp_path, made()).startswith(message)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("ConstantOfShape", "large", "y")], "a constant of too many values"),
        ([node("Expand", "one,large", "y")], "a constant of too many values"),
        ([node("Tile", "k,large", "y")], "a constant of too many values"),
        ([node("Range", "zero,far,one", "y")], "a constant of too many values"),
        ([node("Range", "zero,far,zero", "y")], "of constants, division by zero"),
        ([node("Pad", "k,ends", "y")], "a constant of too many values"),
        ([node("OneHot", "k,far,k", "y")], "a constant of too many values"),
        ([node("Gather", "k,zero", "y", axis=3)], "of constants, axis 3 of 1"),
        ([node("MatMul", "row,column", "a"), node("MatMul", "column,row", "y")], "a constant of too many values"),
        ([node("Gemm", "column,row", "y")], "a constant of too many values"),
        ([node("Gemm", "column,dot,row", "y")], "a constant of too many values"),
        ([node("Gemm", "k,k", "y")], "of constants, not enough values to unpack"),
        ([node("LogSoftmax", "k", "y", axis=1)], "of constants, "),
        ([node("DequantizeLinear", "bytes,twos", "y", block_size=1 << 40)], "a constant of too many values"),
        ([node("DequantizeLinear", "bytes,twos", "y", axis=0)], "scales of another number than the 1 places of axis 0"),
        ([node("DequantizeLinear", "bytes,two", "y", output_dtype=8)], "a cast to texts"),
        ([node("Unsqueeze", "k,twice", "y")], "of constants, axes [0, 0], one of them twice"),
        ([node("Squeeze", "k,one", "y")], "of constants, axis 1 of 1"),
        ([node("Transpose", "k", "y", perm=[1, 1])], "of constants, "),
        ([node("Split", "k", "y", num_outputs=1 << 31)], "of constants, 2147483648 parts for 1 outputs"),
        ([node("Cast", "k", "y", to=8)], "a cast to texts"),
        ([node("Resize", "k,,k", "y")], "a blob of 1 axes"),
    ],
)
def test_constants_that_are_not_computed(nodes, message, tmp_path):
    constants = {"k": ints(1, 2), "large": ints(1 << 20, 1 << 20), "far": np.int64(1 << 40), "zero": np.int64(0)}
    constants |= {"one": np.int64(1), "twice": ints(0, 0), "ends": ints(0, 1 << 40), "row": np.ones((1, 1 << 14), "f")}
    constants |= {"column": np.ones((1 << 14, 1), "f"), "dot": np.ones((1, 1), "f")}
    constants |= {"bytes": np.ones((1, 2), np.int8), "twos": np.ones(2, "f"), "two": np.float32(2)}
    made = model([*nodes, node("Relu", "x", "z")], {"x": SHAPE}, opset=18, **constants)
    assert message in refused(tmp_path, made)


def test_the_data_of_an_attribute_lies_in_the_folder_too(tmp_path):
    def made(op: str, location: str):
        value = onnx.numpy_helper.from_array(np.float32([7]), "v")
        value.ClearField("raw_data")
        value.data_location = onnx.TensorProto.EXTERNAL
        value.external_data.add(key="location", value=location)
        nodes = [node(op, *(("s", "a") if op != "Constant" else (",", "a")), value=value), node("Mul", "x,a", "y")]
        if op == "Constant":
            del nodes[0].input[:]
        return model(nodes, {"x": (4,)}, s=ints(4))

    for op in ("Constant", "ConstantOfShape"):
        assert "outside of the model's folder" in refused(tmp_path, made(op, "../seven"))
    assert "Neg (node 'a' (Neg): of constants, with 'value')" in refused(tmp_path, made("Neg", "../seven"))
    (tmp_path / "seven").write_bytes(np.float32([7]).tobytes())
    onnx.save(made("ConstantOfShape", "seven"), tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs({"x": (4,)})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)
    harness.assert_close(found["y"], 7 * inputs["x"])


def test_many_constants_are_not_too_many_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.exchange.from_onnx.registry._MOST_IN_ALL", 1 << 20)
    nodes = [node("ConstantOfShape", "s", f"c{i}") for i in range(40)]
    made = model([*nodes, node("Relu", "x", "y")], {"x": SHAPE}, s=ints(1 << 15))
    message = "no layer computes ConstantOfShape (node 'c32' (ConstantOfShape): constants of too many values in all)"
    assert refused(tmp_path, made) == message


QUANTISED = {"q": RANDOM.integers(-128, 128, (5, 6)).astype(np.int8)}
SCALES, ZEROS = RANDOM.uniform(0.5, 2, 6).astype(np.float32), np.arange(6, dtype=np.int8)
BLOCKS = {"s": RANDOM.uniform(0.5, 2, (5, 3)).astype(np.float32), "z": np.zeros((5, 3), np.int8)}
V = normal(5, 6)
FOLDED = {  # operator -> (its attributes, its inputs by name, a function that computes its output)
    "DequantizeLinear": ({}, {**QUANTISED, "s": np.float32(0.5)}, lambda q, s: q * s),
    "DequantizeLinear by columns": (
        {},
        {**QUANTISED, "s": SCALES, "z": ZEROS},
        lambda q, s, z: (q - z.astype("f")) * s,
    ),
    "DequantizeLinear by blocks": ({"block_size": 2}, {**QUANTISED, **BLOCKS}, lambda q, s, z: q * s.repeat(2, 1)),
    "LogSoftmax": ({}, {"v": V}, lambda v: np.log(np.exp(v) / np.exp(v).sum(1, keepdims=True))),
    "Softplus": ({}, {"v": V}, lambda v: np.log1p(np.exp(v))),
    "Elu": ({"alpha": 0.5}, {"v": V}, lambda v: np.where(v > 0, v, 0.5 * np.expm1(v))),
    "LeakyRelu": ({"alpha": 0.5}, {"v": V}, lambda v: np.where(v > 0, v, 0.5 * v)),
    "HardSigmoid": ({"alpha": 0.3}, {"v": V}, lambda v: np.clip(0.3 * v + 0.5, 0, 1)),
    "Gemm": (
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
        {"a": V.T, "b": normal(6, 6), "c": normal(6)},
        lambda a, b, c: 0.5 * a.T @ b.T + 2 * c,
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_operators_on_constants_make_weights(name, tmp_path):
    attributes, constants, formula = FOLDED[name]
    nodes = [node(name.split()[0], ",".join(constants), "w", **attributes), node("MatMul", "x,w", "y")]
    opset = 21 if "blocks" in name else 13
    onnx.save(model(nodes, {"x": (2, 5)}, opset=opset, **constants), tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    text, inputs = (tmp_path / "x.prototxt").read_text(), harness.random_inputs({"x": (2, 5)})
    assert text.count("layer {") == 2
    found = harness.engine_outputs(text, str(tmp_path / "x.caffemodel"), inputs)["y"]
    harness.assert_close(found, inputs["x"] @ formula(*constants.values()).astype(np.float32))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_a_softmax_of_constants_before_opset_13_is_along_axis_1(name, tmp_path):
    made = model([node(name, "k", "w"), node("Add", "x,w", "y")], {"x": (2, 3, 1)}, opset=11, k=normal(2, 3, 1))
    onnx.save(made, tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs({"x": (2, 3, 1)})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)["y"]
    k = onnx.numpy_helper.to_array(made.graph.initializer[0])
    softmax = np.exp(k) / np.exp(k).sum(1, keepdims=True)
    harness.assert_close(found, inputs["x"] + (softmax if name == "Softmax" else np.log(softmax)))


def test_weights_that_layers_make_of_constants_are_refused_by_their_name(tmp_path):
    made = model([node("Selu", "k", "w"), node("MatMul", "x,w", "y")], {"x": (2, 5)}, k=V)
    assert "(MatMul): matrices on the right that are not constants here)" in refused(tmp_path, made)


def test_products_of_constants_are_as_large_as_their_results(tmp_path, monkeypatch):
    """A matrix with rows of 2,304 values is multiplied by a vector from either side. The budget counts the values of
    the result, and has a limit of its own for multiply-adds."""
    w, v = normal(256, 2304), normal(2304)
    nodes = [node("MatMul", "w,v", "a"), node("MatMul", "v,t", "b"), node("Add", "x,a", "c"), node("Add", "c,b", "y")]
    made = model(nodes, {"x": (2, 256)}, w=w, v=v, t=w.T)
    onnx.save(made, tmp_path / "x.onnx")
    import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    inputs = harness.random_inputs({"x": (2, 256)})
    found = harness.engine_outputs((tmp_path / "x.prototxt").read_text(), str(tmp_path / "x.caffemodel"), inputs)
    harness.assert_close(found["y"], inputs["x"] + 2 * (w @ v))
    for name in ("x.prototxt", "x.caffemodel"):
        (tmp_path / name).unlink()
    monkeypatch.setattr("engine.exchange.from_onnx.registry._MOST_MULTIPLY_ADDS", 256 * 2304)
    message = "no layer computes MatMul (node 'b' (MatMul): products of constants of too many multiply-adds in all)"
    assert refused(tmp_path, made) == message


POOLED = {"kernel_shape": [3, 3]}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("MaxPool", "x", "y", **POOLED, pads=[1 << 40] * 4)], "pads"),
        ([node("MaxPool", "x", "y", **POOLED, strides=[0, 1])], "strides [0, 1], exp"),
        ([node("MaxPool", "x", "y", **POOLED, strides=[-1, 1])], "strides [-1, 1], "),
        ([node("MaxPool", "x", "y", **POOLED, dilations=[0, 1])], "dilations [0, 1]"),
        ([node("MaxPool", "x", "y", kernel_shape=[3])], "kernel_shape [3], expected 2"),
        ([node("MaxPool", "x", "y", strides=[1, 1])], "no kernel_shape)"),
        ([node("MaxPool", "x", "y", **POOLED, pads=[1, 1])], "pads [1, 1], expected 4"),
        (
            [node("MaxPool", "x", "y", kernel_shape=[1 << 40, 1])],
            "kernel_shape [1099511627776, 1]: expected 1048576 at most)",
        ),
        (
            [node("MaxPool", "x", "y", kernel_shape=[1, 1], pads=[1 << 20, 0, 0, 0])],
            "1048583 windows along an axis: expected 1048576 at most)",
        ),
        (
            [node("AveragePool", "x", "y", kernel_shape=[1 << 20, 1 << 20], pads=[1, 1, (1 << 20) - 2, (1 << 20) - 2])],
            "a constant of too many values)",
        ),
        (
            [node("AveragePool", "x", "y", kernel_shape=[1, 1], pads=[3, 0, 0, 0])],
            "a window that lies within the padding)",
        ),
        ([node("Conv", "x,w", "y", pads=[1 << 40, 0, 0, 0])], "pads [1099511"),
        (
            [node("Conv", "x,w", "y", pads=[1 << 20, 1 << 20, 0, 0])],
            "a constant of too many values)",
        ),
        (
            [node("ConvTranspose", "x,w", "y", output_padding=[1 << 19, 1 << 19])],
            "a constant of too many values)",
        ),
        ([node("ConvTranspose", "x,w", "y", output_padding=[1])], "output_padd"),
        ([node("Split", "x", "y", axis=1, num_outputs=2**31)], "2147483648 p"),
        ([node("Split", "x", "y", axis=1, num_outputs=0)], "0 parts of an "),
        ([node("Split", "x", "y", axis=1, num_outputs=4)], "4 parts for 1 outputs)"),
        ([node("Split", "x", "y", axis=4)], "axis 4 of 4)"),
        ([node("Unsqueeze", "x,twice", "y")], "axes [0, 0], one of them twice)"),
        ([node("Unsqueeze", "x,same", "y")], "axes [1, 1], one of them twice)"),
        ([node("Unsqueeze", "x,seven", "y")], "axis 7 of 5)"),
        ([node("Squeeze", "x,seven", "y")], "axis 7 of 4)"),
        ([node("Squeeze", "x,twice", "y")], "axes [0, 0], one of them twice)"),
        ([node("Transpose", "x", "y", perm=[0, 1, 1, 3])], "perm [0, 1, 1, 3] of 4"),
        ([node("Transpose", "x", "y", perm=[0, 1, 2])], "perm [0, 1, 2] of 4 axes)"),
        ([node("ReduceSum", "x,twice", "y")], "axes [0, 0], one of them twice)"),
        ([node("ReduceSum", "x,seven", "y")], "axis 7 of 4)"),
        ([node("Softmax", "x", "y", axis=4)], "axis 4 of 4)"),
        ([node("Gather", "x,seven", "y")], "a place outside of an axis of 2)"),
        ([node("Pad", "x,far", "y")], "pads [0, 0, 1099511627776, 0, 0, 0, 0, 0]"),
        (
            [node("Resize", "x,,by", "y", nearest_mode="floor", coordinate_transformation_mode="asymmetric")],
            "a constant of too many values)",
        ),
    ],
)  # fmt: skip
def test_windows_and_axes_that_cannot_be(nodes, message, tmp_path):
    constants = {"twice": ints(0, 0), "same": ints(1, -5), "seven": ints(7), "far": ints(0, 0, 1 << 40, 0, 0, 0, 0, 0)}
    by = np.array([1, 1, 1e5, 1e5], np.float32)
    assert message in refused(tmp_path, model(nodes, {"x": SHAPE}, opset=18, w=W, by=by, **constants))


def test_constants_do_not_become_too_many_in_all(tmp_path, monkeypatch):
    """Each of many nodes enlarges weights of a few bytes by its padding."""
    monkeypatch.setattr("engine.exchange.from_onnx.registry._MOST_IN_ALL", 1 << 20)
    nodes = [node("Conv", "x,w", f"y{i}", pads=[99, 99, 0, 0]) for i in range(9)]
    made = model([*nodes, node("Relu", "x", "y")], {"x": SHAPE}, w=np.ones((4, 4, 1, 1), np.float32))
    message = "no layer computes Conv (node 'y3' (Conv): constants of too many values in all)"
    assert refused(tmp_path, made) == message


def function(number: int, *calls: str):
    """Makes the function f<number> of domain d, which calls Relu, or functions of that domain, one after the other."""
    nodes = [
        node(call, f"v{i}", f"v{i + 1}", **({} if call == "Relu" else {"domain": "d"})) for i, call in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    return helper.make_function("d", f"f{number}", ["v0"], [f"v{len(calls)}"], nodes, opsets)


def with_functions(functions, **attributes):
    """Makes a model that calls the last of the functions."""
    made = model([node(functions[-1].name, "x", "y", domain="d", **attributes)], {"x": SHAPE})
    made.opset_import.append(helper.make_opsetid("d", 1))
    made.functions.extend(functions)
    return made


def test_functions_are_written_out(tmp_path):
    net = check(with_functions([function(0, "Relu", "Relu"), function(1, "f0", "f0")]), {"x": SHAPE}, tmp_path)
    assert net.count("ReLU") == 4


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: [function(0, "Relu"), *(function(i, *[f"f{i - 1}"] * 2) for i in range(1, 20))],
         "with its functions written out it would have 1572863 nodes and attributes"),
        (lambda: [function(0, "f1"), function(1, "f0")], "its functions call themselves, or each other more than 100"),
        (lambda: [function(0, "Relu"), *(function(i, f"f{i - 1}") for i in range(1, 200))],
         "its functions call themselves, or each other more than 100 deep"),
        (lambda: [function(0, "Relu"), function(0, "Relu")], "two of its functions have one name"),
    ],
)  # fmt: skip
def test_functions_without_end(made, message, tmp_path):
    assert refused(tmp_path, with_functions(made())).startswith(message)


def test_the_attributes_of_a_call_are_not_multiplied_without_end(tmp_path):
    """Each node of the function may refer to them, and so get a copy."""
    functions = [function(0, *["Relu"] * 10_000)]
    large = with_functions(functions, table="x" * 80_000)
    assert "would have 10002 nodes and attributes, 800" in refused(tmp_path, large)
    graph = with_functions(functions, body=model([node("Relu", "x", "y")], {"x": SHAPE}).graph)
    assert refused(tmp_path, graph) == "a call of its function 'f0' has a graph as an attribute"


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.onnx").write_bytes(good().SerializeToString())
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    assert main(["import", *(str(tmp_path / name) for name in ("x.onnx", "x.prototxt", "x.caffemodel"))]) == 1
    assert "ONNX files need the onnx package: pip install prototxt-engine[onnx]" in capsys.readouterr().err


def test_nothing_is_overwritten_when_the_model_is_refused(tmp_path):
    for name in ("x.prototxt", "x.caffemodel"):
        Path(tmp_path / name).write_text("kept")
    (tmp_path / "x.onnx").write_bytes(b"\xff" * 20)
    with pytest.raises(EngineError):
        import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    assert (tmp_path / "x.prototxt").read_text() == (tmp_path / "x.caffemodel").read_text() == "kept"


def test_shapes_and_batches_that_no_input_takes_are_refused(tmp_path, capsys):
    onnx.save(model([node("Relu", "x", "y")], {"x": (2, 3)}), tmp_path / "x.onnx")
    files = [str(tmp_path / name) for name in ("x.onnx", "x.prototxt", "x.caffemodel")]
    assert main(["import", *files, "--shape", "z=2,3"]) == 1
    assert capsys.readouterr().err == f"engine: {files[0]}: --shape z: no such input; known: x\n"
    assert main(["import", *files, "--batch_size", "4"]) == 1
    assert "--batch_size: without effect, for no input leaves its batch open" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cifar10", "googlenet"])
def test_weights_go_onto_a_net_whose_layers_have_other_names(name, tmp_path):
    harness.runtime()
    text, shapes = deployed(shrunk(name), 2)
    weights = harness.random_weights(parse_net(text), tmp_path / "x.caffemodel")
    export_onnx(parse_net(text), weights, tmp_path / "x.onnx")
    renamed = re.sub(r'name: "', 'name: "other_', text)
    (tmp_path / "net.prototxt").write_text(renamed)
    files = [str(tmp_path / name) for name in ("x.onnx", "net.prototxt", "y.caffemodel")]
    assert main(["import", *files, "--onto", "--batch_size", "2"]) == 0
    inputs = harness.random_inputs(shapes)
    before = harness.engine_outputs(text, weights, inputs)
    after = harness.engine_outputs(renamed, files[2], inputs)
    for blob in harness.onnx_outputs(files[0], inputs):
        harness.assert_close(after[blob], before[blob])


def test_a_net_that_computes_something_else_takes_no_weights(tmp_path):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
    layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "y" type: "InnerProduct" bottom: "p" top: "y" inner_product_param { num_output: 4 } }"""
    weights = harness.random_weights(parse_net(text), tmp_path / "x.caffemodel")
    export_onnx(parse_net(text), weights, tmp_path / "x.onnx")
    (tmp_path / "net.prototxt").write_text(text.replace("kernel_size: 2", "pool: AVE kernel_size: 2"))
    with pytest.raises(EngineError, match=r"differs from .*net\.prototxt in what that net's layer 'p' \(Pooling\)"):
        import_onnx(tmp_path / "x.onnx", tmp_path / "net.prototxt", tmp_path / "y.caffemodel", onto=True)


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_older_enlargements_repeat_pixels(op, opset, tmp_path):
    """Operators of these opsets, as in YOLOv3 and from older tf2onnx, have no nearest_mode."""
    made = model([node(op, "x,f", "y", mode="nearest")], {"x": (1, 2, 3, 4)}, opset=opset, f=np.float32([1, 1, 2, 2]))
    check(made, {"x": (1, 2, 3, 4)}, tmp_path)


def test_a_size_that_keeps_the_aspect_ratio_is_refused(tmp_path):
    attributes = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    nodes = [node("Resize", "x,,,s", "y", keep_aspect_ratio_policy="not_larger", **attributes)]
    onnx.save(model(nodes, {"x": (1, 2, 2, 4)}, opset=19, s=ints(1, 2, 4, 8)), tmp_path / "x.onnx")
    with pytest.raises(EngineError, match="keep_aspect_ratio_policy not_larger"):
        import_onnx(tmp_path / "x.onnx", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")


@pytest.mark.parametrize("operation", ["SUM", "MAX", "PROD"])
def test_weights_do_not_go_onto_a_net_with_another_operation(operation, tmp_path):
    weights = {name: normal(2, 3, 1, 1) for name in ("wa", "wb")}
    nodes = [node("Conv", "x,wa", "a"), node("Conv", "x,wb", "b"), node("Mul", "a,b", "y")]
    onnx.save(model(nodes, {"x": (1, 3, 4, 4)}, **weights), tmp_path / "x.onnx")
    conv = 'type: "Convolution" bottom: "x" convolution_param { num_output: 2 kernel_size: 1 bias_term: false }'
    (tmp_path / "net.prototxt").write_text(f"""
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 3 dim: 4 dim: 4 }} }} }}
    layer {{ name: "p" top: "p" {conv} }} layer {{ name: "q" top: "q" {conv} }}
    layer {{ name: "e" type: "Eltwise" bottom: "p" bottom: "q" top: "e"
      eltwise_param {{ operation: {operation} }} }}""")
    files = tmp_path / "x.onnx", tmp_path / "net.prototxt", tmp_path / "y.caffemodel"
    if operation == "PROD":
        import_onnx(*files, onto=True)
    else:
        with pytest.raises(EngineError, match=r"differs from .* 'e' .Eltwise. computes"):
            import_onnx(*files, onto=True)
