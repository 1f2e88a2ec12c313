"""Writes state dictionaries without PyTorch and reads them again; reads damaged and malicious files."""

from __future__ import annotations

import collections
import io
import json
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.cli import main
from engine.config import parse_net, read_net
from engine.errors import EngineError
from engine.exchange.kinds import KERAS, ONNX, TORCH, kind_of
from engine.exchange.torch_export import export_torch
from engine.exchange.torch_file import read_state, write_state
from engine.exchange.torch_import import import_torch
from engine.weights import write_caffemodel
from tests.exchange import harness
from tests.mpi import REPO

RANDOM = np.random.default_rng(9)
STATE = {
    "conv.weight": RANDOM.normal(size=(4, 3, 2, 2)).astype(np.float32),
    "conv.bias": RANDOM.normal(size=4).astype(np.float32),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
}
NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "bn/scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "PReLU" bottom: "bn" top: "bn" prelu_param { channel_shared: true } }
layer { name: "up" type: "Deconvolution" bottom: "bn" top: "up"
  convolution_param { num_output: 4 kernel_size: 2 group: 2 } }
layer { name: "norm" type: "BN" bottom: "up" top: "norm" }
layer { name: "ip" type: "InnerProduct" bottom: "norm" top: "ip" inner_product_param { num_output: 4 transpose: true } }
layer { name: "bias" type: "Bias" bottom: "ip" top: "bias" }
layer { name: "steps" type: "Input" top: "steps" input_param { shape { dim: 5 dim: 2 dim: 3 } } }
layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 5 dim: 2 } } }
layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "lstm" recurrent_param { num_output: 4 } }
"""


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_what_is_written_is_read(name, tmp_path):
    write_state(tmp_path / name, STATE)
    found = read_state(tmp_path / name)
    assert list(found) == list(STATE)
    for key, values in STATE.items():
        np.testing.assert_array_equal(found[key], values.astype(np.float32))


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_weights_of_a_net_go_out_and_come_back(name, tmp_path):
    config = parse_net(NET, "net.prototxt")
    (tmp_path / "net.prototxt").write_text(NET)
    weights = harness.random_weights(config, tmp_path / "x.caffemodel")
    export_torch(config, weights, tmp_path / name)
    keys = set(read_state(tmp_path / name))
    assert {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"} <= keys
    assert {"lstm.weight_ih_l0", "ip.weight", "bias.bias", "norm.running_var"} <= keys
    import_torch(tmp_path / name, tmp_path / "net.prototxt", tmp_path / "y.caffemodel", onto=True)
    inputs = harness.random_inputs({"x": (2, 3, 6, 5), "steps": (5, 2, 3)}) | {"cont": np.ones((5, 2), np.float32)}
    before = harness.engine_outputs(NET, weights, inputs)
    after = harness.engine_outputs(NET, str(tmp_path / "y.caffemodel"), inputs)
    for top in ("bias", "lstm"):
        harness.assert_close(after[top], before[top], 1e-5)


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("net.prototxt", "cannot be written: it is a file that is read; choose another name"),
        ("x.onnx", "expected a name in .pth, .pt, .bin, .ckpt, .tar, .safetensors for PyTorch, got '.onnx'"),
        ("new", ".safetensors for PyTorch, got a name without a suffix"),
        ("weights.bin", "cannot be written: it is a file that is read; choose another name"),
        ("link.bin", "cannot be written: it is a file that is read; choose another name"),
    ],
)
def test_an_export_leaves_what_it_reads(out, told, tmp_path, capfd):
    net, weights = tmp_path / "net.prototxt", tmp_path / "weights.bin"
    net.write_text(NET)
    harness.random_weights(parse_net(NET, "net.prototxt"), weights)
    (tmp_path / "link.bin").symlink_to(weights)
    before = net.read_bytes(), weights.read_bytes()
    assert main(["export", "--torch", str(net), str(weights), str(tmp_path / out)]) == 1
    assert told in capfd.readouterr().err.splitlines()[-1]
    assert (net.read_bytes(), weights.read_bytes()) == before


def test_an_import_leaves_what_it_reads(tmp_path, capfd):
    net, state = tmp_path / "net.prototxt", tmp_path / "x.pth"
    net.write_text(NET)
    write_state(state, STATE)
    (tmp_path / "link.prototxt").symlink_to(net)
    for weights in (state, tmp_path / "link.prototxt"):
        assert main(["import", str(state), str(net), str(weights), "--onto"]) == 1
        assert "it is a file that is read; choose another name" in capfd.readouterr().err.splitlines()[-1]
    assert net.read_text() == NET and read_state(state)


def write_old(path: Path) -> None:
    """Writes a dictionary of one tensor as PyTorch did before 1.6."""
    write_state(path, {"conv.bias": STATE["conv.bias"]})
    with zipfile.ZipFile(path) as archive:
        state, values = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    path.write_bytes(as_old(state, {"0": (4, values)}))


def as_old(pickled: bytes, storages: dict[str, tuple[int, bytes]]) -> bytes:
    """Returns a file as PyTorch wrote it before 1.6.

    Args:
        pickled: the pickle of the dictionary.
        storages: how many numbers each storage has, and their bytes, by key.
    """
    begin, keys = (pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, list(storages)))
    sizes = pickle.dumps({"little_endian": True, "type_sizes": {"short": 2}}, 2)
    content = b"".join(struct.pack("<q", count) + values for count, values in storages.values())
    return begin + pickle.dumps(1001, 2) + sizes + pickled + keys + content


def test_files_from_before_zip_are_read(tmp_path):
    write_old(tmp_path / "x.pth")
    np.testing.assert_array_equal(read_state(tmp_path / "x.pth")["conv.bias"], STATE["conv.bias"])


def test_bfloat16_and_half_are_read(tmp_path):
    values = np.array([1.5, -2.25, 1024], np.float32)
    brain = (values.view("<u4") >> 16).astype("<u2")
    stored = {"half": ("F16", values.astype("<f2").tobytes()), "brain": ("BF16", brain.tobytes())}
    header, content = {}, b""
    for name, (kind, data) in stored.items():
        header[name] = {"dtype": kind, "shape": [3], "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    for found in read_state(tmp_path / "x.safetensors").values():
        np.testing.assert_array_equal(found, values)


class Harmful:
    """Its pickle says to call a function: it would create the file `marker`."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def as_zip(content: bytes, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return file.getvalue()


@pytest.mark.parametrize("wrap", [as_zip, bytes], ids=["zip", "old"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_pickle_that_would_run_code_does_not(wrap, nested, tmp_path, capsys):
    harmful = Harmful(tmp_path / "ran")
    content = pickle.dumps(collections.OrderedDict(weight=harmful) if nested else harmful, 2)
    (tmp_path / "x.pth").write_bytes(wrap(content))
    assert main(["import", *(str(tmp_path / name) for name in ("x.pth", "net.prototxt", "x.caffemodel"))]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "x.pth: would run code, and is not read: it names " in message
    assert [path.name for path in tmp_path.iterdir()] == ["x.pth"]


def written() -> bytes:
    file = Path("x.pth")
    write_state(file, {"conv.weight": STATE["conv.weight"]})
    return file.read_bytes()


def enlarged(content: bytes) -> bytes:
    """Returns a .pth whose tensor has more values than its storage, which is cut short."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return as_zip(archive.read("archive/data.pkl"), **{"data/0": archive.read("archive/data/0")[:-4]})


def of_one_storage(content: bytes) -> bytes:
    """Returns a .pth in which all tensors have the storage of the first one."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        pickled, values = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    return as_zip(re.sub(rb"X.\0\0\0\d+(?=X\x03\0\0\0cpu)", b"X\x01\0\0\x000", pickled), **{"data/0": values})


def test_tensors_may_share_values_but_not_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.exchange.torch_file._BYTES_MORE", 0)
    values = np.arange(4000, dtype=np.float32)
    for count in (3, 100):
        write_state(tmp_path / "x.pth", {f"x{i}": values + i for i in range(count)})
        (tmp_path / f"{count}.pth").write_bytes(of_one_storage((tmp_path / "x.pth").read_bytes()))
    tied = read_state(tmp_path / "3.pth")
    assert list(tied) == ["x0", "x1", "x2"] and all(np.array_equal(each, values) for each in tied.values())
    with pytest.raises(EngineError, match=r"tensors of 400000 values in a file of [0-9]+ bytes"):
        read_state(tmp_path / "100.pth")


def test_tuples_within_each_other_do_not_end_the_process(tmp_path):
    (tmp_path / "x.pth").write_bytes(as_zip(b"\x80\x02})" + b"\x85q\x00h\x00" * 500_000 + b"Ns."))
    command = [sys.executable, "-m", "engine", "import", "x.pth", "x.prototxt", "x.caffemodel"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert "x.pth: truncated or no state dictionary (more than 100 tuples within each other)" in done.stderr


DOUBLED = b"K\x01" + b"2\x86" * 60  # pairs within pairs, each of one object twice: 2^60 numbers to walk through


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"}" + DOUBLED + b"Ns.", "a tuple of more than 100000 objects"),
        (
            b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n]X\x03\x00\x00\x00cpuK\x01tQ.",
            "by something that is no name",
        ),
    ],
)
def test_nothing_is_walked_through_that_doubles_at_each_level(pickled, message, tmp_path, capsys):
    (tmp_path / "x.pth").write_bytes(as_zip(b"\x80\x02" + pickled))
    assert main(["import", f"{tmp_path}/x.pth", f"{tmp_path}/x.prototxt", f"{tmp_path}/x.caffemodel"]) == 1
    assert message in capsys.readouterr().err


def test_no_text_is_made_of_what_names_a_tensor_or_storage(tmp_path):
    """The names here are a tuple that has one text of a megabyte again and again, and a list that doubles at each
    level."""
    write_state(tmp_path / "x.pth", {"conv.bias": STATE["conv.bias"]})
    with zipfile.ZipFile(tmp_path / "x.pth") as archive:
        state, values = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    long = b"(" + text("x" * (1 << 20)) + b"q\x00" + b"h\x00" * 98_999 + b"t"
    content = as_zip(state.replace(text("conv.bias"), long), **{"data/0": values})
    (tmp_path / "name.pth").write_bytes(content)
    doubled = b"]K\x01a" + b"q\x000]h\x00ah\x00a" * 60
    old = as_old(state, {"0": (4, values)})
    (tmp_path / "key.pth").write_bytes(old.replace(pickle.dumps(["0"], 2), b"\x80\x02]" + doubled + b"a."))
    with pytest.raises(EngineError, match=r"name\.pth: .*\(a tensor or storage that is named by a tuple\)$"):
        read_state(tmp_path / "name.pth")
    with pytest.raises(EngineError, match=r"key\.pth: .*\(a tensor or storage that is named by a list\)$"):
        read_state(tmp_path / "key.pth")


MANY = b"(" + b"".join(b"K%cK\x01\x86" % i for i in range(99)) + b"l"  # pairs


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (b"ctorch\nSize\n", "a shape of 99 axes, expected at most 32"),
        (b"ccollections\nOrderedDict\n", "dictionaries of more items than it has bytes"),
    ],
)
def test_what_stands_in_a_pickle_once_is_not_copied_without_end(what, message, tmp_path):
    pickled = MANY + b"q\x000" + what + b"q\x010(" + b"h\x01h\x00\x85R" * 99 + b"t."
    (tmp_path / "x.pth").write_bytes(as_zip(b"\x80\x02" + pickled))
    with pytest.raises(EngineError, match=message):
        read_state(tmp_path / "x.pth")


def test_versions_of_modules_are_left_out(tmp_path):
    """PyTorch's dictionaries keep them as an attribute, which is ignored."""
    write_state(tmp_path / "x.pth", {"conv.bias": STATE["conv.bias"]})
    with zipfile.ZipFile(tmp_path / "x.pth") as archive:
        pickled, values = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    versions = pickled.removesuffix(b".") + b"}X\x09\0\0\0_metadata}sb."
    (tmp_path / "x.pth").write_bytes(as_zip(versions, **{"data/0": values}))
    assert list(read_state(tmp_path / "x.pth")) == ["conv.bias"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: good[: len(good) // 2],
        lambda good: good[:-1],
        lambda good: b"\x80\x02}q\x00.",
        enlarged,
        lambda good: as_zip(b"\x80\x02}."),
        lambda good: as_zip(b"\x80\x02}r\xff\xff\xff\x7f."),
        lambda good: as_zip(b"\x80\x05\x96\x00\x00\x00\x00\x04\x00\x00\x00."),
    ],
    ids=["empty", "half", "one byte less", "no magic", "storage too small", "no tensors", "huge memo", "huge bytes"],
)
def test_a_damaged_pth_is_one_line(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("y.pth").write_bytes(damage(written()))
    with pytest.raises(EngineError) as error:
        read_state("y.pth")
    assert str(error.value).startswith(("y.pth: truncated or no state dictionary (", "y.pth: has no tensors"))
    assert "\n" not in str(error.value)


def one_tensor(shape: list[int], end: int) -> bytes:
    """Returns the header of a .safetensors whose one tensor has this shape, and bytes 0 to `end`."""
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return struct.pack("<Q", len(header)) + header


def two_tensors(second: int) -> bytes:
    """Returns a .safetensors of two tensors of two values each; second: the byte at which the second begins."""
    begins = {"x": 0, "y": second}
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]} for name, at in begins.items()}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**60),
        struct.pack("<Q", 4) + b"none",
        one_tensor([4], 16),
        one_tensor([2], 16) + bytes(16),
        one_tensor([-1], 0),
        two_tensors(4),
    ],
    ids=["empty", "huge header", "no JSON", "values missing", "shape and values differ", "negative shape", "shared"],
)
def test_a_damaged_safetensors_is_one_line(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(EngineError) as error:
        read_state(tmp_path / "x.safetensors")
    assert "truncated or no state dictionary (" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("conv.bias"), "layer 'conv' (Convolution): there is no 'conv.bias'"),
        (
            lambda state: state.update({"conv.weight": np.zeros((4, 3, 5, 3), np.float32)}),
            "layer 'conv' (Convolution): 'conv.weight' has 4 x 3 x 5 x 3, the net 4 x 3 x 3 x 3",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    weights = harness.random_weights(parse_net(NET, "net.prototxt"), tmp_path / "x.caffemodel")
    export_torch(read_net(tmp_path / "net.prototxt"), weights, tmp_path / "x.pth")
    state = read_state(tmp_path / "x.pth")
    change(state)
    write_state(tmp_path / "x.pth", state)
    with pytest.raises(EngineError) as error:
        import_torch(tmp_path / "x.pth", tmp_path / "net.prototxt", tmp_path / "y.caffemodel", onto=True)
    assert str(error.value) == f"{tmp_path / 'x.pth'}: {message}"


def test_an_unknown_architecture_lists_the_known(tmp_path):
    write_state(tmp_path / "x.pth", {"a.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(EngineError, match=r"not a state dictionary of torchvision's ResNet, DenseNet, .*--onto"):
        import_torch(tmp_path / "x.pth", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"features.0.weight": (2,)}, "'features.0.weight' has the shape (2,)"),
        ({"features.0.weight": (2, 0, 3, 3)}, "'features.0.weight' has the shape (2, 0, 3, 3)"),
        ({"features.0.weight": (2, 3, 3, 3), "features.x.weight": (2,)}, "has no 'classifier.0.weight'"),
        (
            {"features.0.weight": (2, 3, 3, 3), "features.0.bias": (2,), "classifier.0.weight": ()},
            "'classifier.0.weight' has the shape ()",
        ),
    ],
)
def test_an_architecture_whose_weights_are_damaged(state, message, tmp_path):
    tensors = {name: np.zeros(shape, np.float32) for name, shape in {**state, "classifier.6.weight": (2, 2)}.items()}
    write_state(tmp_path / "x.pth", tensors)
    with pytest.raises(EngineError) as error:
        import_torch(tmp_path / "x.pth", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    assert str(error.value).startswith(f"{tmp_path / 'x.pth'}: {message}")


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "before a Scale"])
def test_a_norm_with_a_scale_of_its_own(behind, tmp_path):
    """A BatchNorm with Intel's scale_bias has five blobs and is a module of PyTorch by itself; a Scale that follows it
    is another."""
    net = tmp_path / "net.prototxt"
    net.write_text(
        """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { scale_bias: true } }"""
        + 'layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }' * behind
    )
    weights = harness.random_weights(read_net(net), tmp_path / "x.caffemodel")
    export_torch(read_net(net), weights, tmp_path / "x.pth")
    state = read_state(tmp_path / "x.pth")
    assert {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"} <= set(state)
    assert ("scale.weight" in state) == behind
    import_torch(tmp_path / "x.pth", net, tmp_path / "y.caffemodel", onto=True)
    inputs = harness.random_inputs({"x": (2, 3, 6, 5)})
    first, second = (harness.engine_outputs(net.read_text(), path, inputs)["y"]
                     for path in (weights, str(tmp_path / "y.caffemodel")))  # fmt: skip
    harness.assert_close(second, first)


def test_nothing_is_said_of_layers_that_a_state_does_not_have(tmp_path):
    net = parse_net("""layer { name: "x" type: "Input" top: "x" top: "label"
        input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }""")
    weights = harness.random_weights(net, tmp_path / "x.caffemodel")
    assert export_torch(net, weights, tmp_path / "x.pth") == []


def test_a_file_of_intels_whose_layers_are_of_one_phase(tmp_path):
    """The Scale that takes the last two blobs of a BatchNorm is sought among the layers of phase TEST."""
    bn = 'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "x" include { phase: %s } }'
    net = parse_net(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }'
        + bn % "TRAIN"
        + bn % "TEST"
        + 'layer { name: "scale" type: "Scale" bottom: "x" top: "x" scale_param { bias_term: true } }'
    )
    blobs = [np.full(size, value, np.float32) for value, size in enumerate((3, 3, 1, 3, 3), start=1)]
    write_caffemodel(tmp_path / "x.caffemodel", net.message, {"bn": blobs})
    export_torch(net, str(tmp_path / "x.caffemodel"), tmp_path / "x.pth")
    state = read_state(tmp_path / "x.pth")
    assert (np.ravel(state["bn.weight"]) == 4).all() and (np.ravel(state["bn.bias"]) == 5).all()


@pytest.mark.parametrize("name", ["x.pth.tar", "x.ckpt", "weights", "x.safetensors", "x.onnx"])
@pytest.mark.parametrize("written_as", ["new.pth", "new.safetensors", "old.pth"])
def test_the_first_bytes_tell_the_format_whatever_the_name_is(written_as, name, tmp_path):
    if written_as == "old.pth":
        write_old(tmp_path / written_as)
    else:
        write_state(tmp_path / written_as, {"conv.bias": STATE["conv.bias"]})
    (tmp_path / written_as).rename(tmp_path / name)
    assert kind_of(tmp_path / name) == TORCH
    np.testing.assert_array_equal(read_state(tmp_path / name)["conv.bias"], STATE["conv.bias"])


def test_kinds_of_files(tmp_path):
    def kind(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return kind_of(tmp_path / name)

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model.weights.h5", b"x")
    assert kind("weights", b"\x89HDF\r\n\x1a\nand so on") == KERAS
    assert kind("weights", archive.getvalue()) == KERAS
    assert kind("weights", b"\x08\x0a\x12\x06engine") == ONNX
    assert kind("x.pth", b"") == kind("x.pth", b"PK\x03\x04") == TORCH
    assert kind("x.h5", b"") == kind("x.keras", b"PK\x03\x04") == KERAS
    assert kind("x", b"") == ONNX
    with pytest.raises(EngineError, match="gone: cannot be read: No such file"):
        kind_of(tmp_path / "gone")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("model", ["state_dict", "model_state_dict"])
def test_tensors_that_a_script_keeps_beside_the_model_are_not_the_model(model, old, tmp_path):
    """PyTorch's ImageNet example keeps its best accuracy there, as a tensor; here it is of whole numbers."""
    stored = {"conv.bias": STATE["conv.bias"], "best_acc1": STATE["bn.num_batches_tracked"]}
    states, values = [], {}
    for key, (name, array) in enumerate(stored.items()):
        write_state(tmp_path / "x.pth", {name: array})
        with zipfile.ZipFile(tmp_path / "x.pth") as archive:
            state = archive.read("archive/data.pkl").removeprefix(b"\x80\x02").removesuffix(b".")
        states.append(state.replace(text("0"), text(str(key))))
        values[str(key)] = array.size, array.tobytes()
    best = states[1][states[1].index(text("best_acc1")) : -1]
    pickled = b"\x80\x02}(" + best + text(model) + states[0] + b"u."
    content = as_zip(pickled, **{f"data/{key}": data for key, (_, data) in values.items()})
    (tmp_path / "x.pth.tar").write_bytes(as_old(pickled, values) if old else content)
    found = read_state(tmp_path / "x.pth.tar")
    assert list(found) == ["conv.bias"]
    np.testing.assert_array_equal(found["conv.bias"], STATE["conv.bias"])


def text(name: str) -> bytes:
    return b"X" + struct.pack("<I", len(name)) + name.encode()
