"""Files of weights and states: those that Caffe wrote, our own read back, damaged files, and a full disk."""

import errno
import io
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from engine import files, proto
from engine.config import parse_net
from engine.errors import EngineError, WeightsError
from engine.files import atomic_write
from engine.net import Net
from engine.weights import (
    SolverState,
    read_caffemodel,
    read_solverstate,
    write_caffemodel,
    write_solverstate,
)
from engine.weights.protobuf import fits_protobuf
from tests.mpi import REPO
from tests.shared import SHARED, needs_shared

FILES = SHARED / "golden" / "files"
HISTORIES = {"adam": 2, "adadelta": 2}  # sets of history; the other rules have 1


@pytest.fixture
def net():
    net = proto.NetParameter(name="tiny")
    net.layer.add(name="data", type="Input", top=["data"])
    net.layer.add(name="inception/1x1", type="Convolution").convolution_param.num_output = 3
    net.layer.add(name="scalar", type="Scale")
    return net


@pytest.fixture
def blobs():
    random = np.random.default_rng(1)
    return {
        "inception/1x1": [
            random.normal(size=(3, 2, 1, 1)).astype(np.float32),
            random.normal(size=3).astype(np.float32),
        ],
        "scalar": [np.array(2.5, np.float32)],
    }


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for name in ours:
        for a, b in zip(ours[name], theirs[name], strict=True):
            assert a.dtype == np.float32 and a.shape == b.shape and a.flags.writeable
            np.testing.assert_array_equal(a, b)


# ---- what Caffe wrote


@needs_shared("golden/files")
@pytest.mark.parametrize("name", sorted(path.name.split("_iter_")[0] for path in FILES.glob("*.caffemodel")))
def test_files_of_caffe(name, tmp_path):
    model = read_caffemodel(FILES / f"{name}_iter_10.caffemodel")
    after = np.load(SHARED / "golden" / "solvers" / f"{name}.npz")
    expected = sorted(key for key in after.files if key.startswith("after10_"))
    assert expected == sorted(f"after10_{layer}_{i}" for layer in model for i in range(len(model[layer])))
    for layer, arrays in model.items():
        for index, array in enumerate(arrays):
            np.testing.assert_array_equal(array, after[f"after10_{layer}_{index}"])
    state = read_solverstate(FILES / f"{name}_iter_10.solverstate")
    assert state.iteration == 10 and state.learned_net.endswith(f"{name}_iter_10.caffemodel")
    shapes = [array.shape for arrays in model.values() for array in arrays]
    assert [array.shape for array in state.history] == shapes * HISTORIES.get(name, 1)
    assert (state.ranks, state.last_rate, state.recent_loss) == (None, None, [])
    # What is written again is what Caffe wrote, with two fields of Intel's fork.
    write_solverstate(tmp_path / "x", state)
    ours = proto.SolverState.FromString((tmp_path / "x").read_bytes())
    ours.ClearField("minimum_loss")
    ours.ClearField("iter_last_event")
    assert ours == proto.SolverState.FromString((FILES / f"{name}_iter_10.solverstate").read_bytes())


@needs_shared("golden/files")
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_files_of_caffe_go_through_hdf5(name, tmp_path):
    pytest.importorskip("h5py")
    model, state = (FILES / f"{name}_iter_10.{kind}" for kind in ("caffemodel", "solverstate"))
    net = proto.NetParameter.FromString(model.read_bytes())
    write_caffemodel(tmp_path / "x.caffemodel.h5", net, read_caffemodel(model))
    assert_same(read_caffemodel(tmp_path / "x.caffemodel.h5"), read_caffemodel(model))
    write_solverstate(tmp_path / "x.solverstate.h5", read_solverstate(state))
    back, before = read_solverstate(tmp_path / "x.solverstate.h5"), read_solverstate(state)
    assert_same({"history": back.history}, {"history": before.history})
    back.history = before.history = []
    assert back == before


def test_hdf5_without_the_blobs_that_another_layer_owns(tmp_path, net, blobs):
    """Caffe leaves these blobs out of HDF5 files."""
    h5py = pytest.importorskip("h5py")
    write_caffemodel(path := tmp_path / "x.h5", net, blobs)
    with h5py.File(path, "r+") as file:
        del file["data/inception/1x1/0"], file["data/scalar/0"]
    read = read_caffemodel(path)
    assert list(read) == ["inception/1x1"] and read["inception/1x1"][0] is None
    np.testing.assert_array_equal(read["inception/1x1"][1], blobs["inception/1x1"][1])


def two_layers(tmp_path, shared, stored):
    """Returns a net whose layer b shares some blobs with a, and an HDF5 file of it. The values are all 9.

    Args:
        shared: indices of the shared blobs.
        stored: the values in the file, by (layer, index).
    """
    h5py = pytest.importorskip("h5py")
    fill = 'weight_filler { type: "constant" value: 9 } bias_filler { type: "constant" value: 9 }'
    params = " ".join(f'param {{ name: "{name}" }}' if i in shared else "param {}" for i, name in enumerate("wb"))
    text = 'layer { name: "d" type: "Input" top: "d" input_param { shape { dim: 1 dim: 3 } } }' + "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "d" top: "{name}" {params} '
        f"inner_product_param {{ num_output: 2 {fill} }} }}"
        for name in "ab"
    )
    with h5py.File(path := tmp_path / "x.h5", "w") as file:
        for name in "ab":
            file.create_group(f"data/{name}")
        for (name, index), value in stored.items():
            file[f"data/{name}/{index}"] = np.full(((2, 3), (2,))[index], value, np.float32)
    return Net(parse_net(text, "net"), proto.TEST), str(path)


WHOLE = {("a", 0): 1, ("a", 1): 2, ("b", 0): 3, ("b", 1): 4}


@pytest.mark.parametrize("shared", [{0}, {1}, {0, 1}], ids=["weights", "biases", "all"])
def test_a_net_takes_hdf5_without_the_blobs_that_another_layer_owns(tmp_path, shared):
    stored = {key: value for key, value in WHOLE.items() if key[0] == "a" or key[1] not in shared}
    net, path = two_layers(tmp_path, shared, stored)
    assert net.load_weights(read_caffemodel(path), path) == []
    expected = {key: WHOLE["a", key[1]] if key[1] in shared else value for key, value in WHOLE.items()}
    assert {
        (layer, i): blob.ravel()[0] for layer, blobs in net.weights_by_layer().items() for i, blob in enumerate(blobs)
    } == expected


@pytest.mark.parametrize(
    ("shared", "lacking", "expected"),
    [
        (set(), ("b", 0), "x.h5: layer 'b', blob 0: the file does not have it"),
        (set(), ("b", 1), "x.h5: layer 'b': the file has 1 blobs, the net 2"),
        ({0}, ("b", 1), "x.h5: layer 'b': the file has 1 blobs, the net 2"),
        ({0, 1}, ("a", 1), "x.h5: layer 'a': the file has 1 blobs, the net 2"),
    ],
)
def test_a_net_refuses_hdf5_without_blobs_of_its_own(tmp_path, shared, lacking, expected):
    net, path = two_layers(tmp_path, shared, {key: value for key, value in WHOLE.items() if key != lacking})
    with pytest.raises(WeightsError, match=expected):
        net.load_weights(read_caffemodel(path), path)
    assert all((blob == 9).all() for blobs in net.weights_by_layer().values() for blob in blobs)


def test_layers_that_a_file_lacks_have_parameters_of_their_own(tmp_path):
    net, path = two_layers(tmp_path, {0, 1}, {})
    assert net.load_weights(read_caffemodel(path), path) == ["a"]


# ---- ours and back


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_layers_of_one_name(tmp_path, suffix, net, blobs):
    """For example an InnerProduct and its ReLU. For each layer of a file Caffe looks up the first layer of that name in
    its net, and expects that layer's blobs."""
    if suffix:
        pytest.importorskip("h5py")
    net.layer.add(name="scalar", type="ReLU")
    write_caffemodel(path := tmp_path / f"x.caffemodel{suffix}", net, blobs)
    assert_same(read_caffemodel(path), blobs)
    if not suffix:
        stored = proto.NetParameter.FromString(path.read_bytes())
        assert [len(layer.blobs) for layer in stored.layer] == [0, 2, 1, 1]


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_caffemodel_round_trip(tmp_path, net, blobs, suffix):
    if suffix:
        pytest.importorskip("h5py")
    path = tmp_path / f"x.caffemodel{suffix}"
    write_caffemodel(path, net, blobs)
    assert_same(read_caffemodel(path), blobs)
    assert os.listdir(tmp_path) == [path.name]
    net.layer[2].blobs.add(data=[7])  # blobs in the net's text are not what was learned
    write_caffemodel(path, net, {})
    assert read_caffemodel(path) == {}


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_names_that_hdf5_takes_for_other_paths(tmp_path, suffix):
    """Names from ONNX begin with a slash, for instance."""
    if suffix:
        pytest.importorskip("h5py")
    names = ["/conv1/Conv", "conv1/Conv", "a//b", "a/b", ".", "./a", "a", "a/", "", "0", "/", "..", "ä/", "%2Fa"]
    net, blobs = proto.NetParameter(), {}
    for index, name in enumerate(names):
        net.layer.add(name=name, type="Scale")
        blobs[name] = [np.full(2, index, np.float32)]
    write_caffemodel(path := tmp_path / f"x.caffemodel{suffix}", net, blobs)
    read = read_caffemodel(path)
    assert_same({name: read.pop(name) for name in names}, blobs)
    assert read == {}


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_solverstate_round_trip(tmp_path, suffix):
    if suffix:
        pytest.importorskip("h5py")
    path = tmp_path / f"x.solverstate{suffix}"
    history = [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.float32([1, 2])]
    state = SolverState(7, "/a/x_iter_7.caffemodel", history, 3, 0.5, 5, 2**40, 4, 2**33 + 1, [1 / 3, 0.1], 0.1)
    state.global_batch, state.digest, state.test_samples, state.ema = 64, "12ab", [0, 2**40], 0.75
    state.begun_from, state.max_iter, state.max_epoch = "34cd", 900, 2.5
    state.kernels, state.tuned = "avx2", '{"servers": 2}'
    state.best_value, state.best_iteration, state.best_goal = 0.7, 6, "highest accuracy of test net #0"
    state.stopping_value, state.tests_without_gain, state.stopping_goal = 0.1, 0, "lowest loss of test net #1"
    state.last_judged, state.kept_snapshots = 5, [3, 6]
    assert all(value != getattr(SolverState(), name) for name, value in vars(state).items()), "a field is not tested"
    write_solverstate(path, state)
    back = read_solverstate(path)
    for a, b in zip(back.history, history, strict=True):
        np.testing.assert_array_equal(a, b)
    back.history = state.history = []
    assert back == state


def test_layout_of_hdf5_files(tmp_path, net, blobs):
    h5py = pytest.importorskip("h5py")
    write_caffemodel(tmp_path / "x.caffemodel.h5", net, {"scalar": blobs["scalar"]})
    write_solverstate(tmp_path / "x.solverstate.h5", SolverState(7, "net", [np.zeros(2)]))
    with h5py.File(tmp_path / "x.caffemodel.h5") as file:
        assert file["data/scalar/0"].dtype == np.float32
    with h5py.File(tmp_path / "x.solverstate.h5") as file:
        assert file["iter"].shape == (1,) and file["iter"].dtype == np.int32
        assert file["learned_net"].dtype.itemsize == 4  # counts the zero byte at its end
        assert list(file["history"]) == ["0"]


def virtual_dataset(path, change) -> None:
    """Writes a file whose weights lie in another file, then changes it. `change` takes the file's bytes from the heap's
    entry on."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((2,), np.float32)
        layout[:] = h5py.VirtualSource("other.h5", "x", (2,))
        file.create_group("data/conv").create_virtual_dataset("0", layout)
    content = bytearray(path.read_bytes())
    change(memoryview(content)[content.index(b"GCOL") + 16 :])
    path.write_bytes(content)


def test_hdf5_that_is_searched_without_end(tmp_path):
    """libhdf5 finds the names of a virtual dataset's sources by their lengths, and never ends where a length is 0."""
    path = tmp_path / "x.caffemodel.h5"

    def change(entry):
        entry[:16] = bytes(16)

    virtual_dataset(path, change)
    command = [sys.executable, "-c", f"from engine.weights import read_caffemodel; read_caffemodel({str(path)!r})"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    line = f"engine: HDF5 file {path}: the file is damaged, or has been cut off; copy it again\n"
    assert (done.returncode, done.stderr) == (1, line)


TAKEN = """
import resource
from engine.errors import EngineError
from engine.weights import read_caffemodel
before = resource.getrlimit(resource.RLIMIT_DATA)
try:
    read_caffemodel({path!r})
except EngineError as error:
    print(error)
assert resource.getrlimit(resource.RLIMIT_DATA) == before
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # not its parent's
"""


def test_hdf5_that_asks_for_gigabytes(tmp_path):
    """libhdf5 allocates memory for as many sources of a virtual dataset as the file says."""
    path = tmp_path / "x.caffemodel.h5"

    def change(entry):
        entry[17:25] = (10_000_000).to_bytes(8, "little")

    virtual_dataset(path, change)
    command = [sys.executable, "-c", TAKEN.format(path=str(path))]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    error, kilobytes = done.stdout.splitlines()
    assert error.startswith(f"{path}: truncated or not a caffemodel (") and int(kilobytes) < 1_500_000, done.stderr


def test_hdf5_without_h5py(tmp_path, net, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(EngineError, match=r"x.h5: HDF5 files .*need h5py, which cannot be imported"):
        write_caffemodel(tmp_path / "x.h5", net, {})


def test_large_blobs_are_quick(tmp_path, net):
    array = np.zeros((3, 2_000_000), np.float32)
    write_caffemodel(tmp_path / "x", net, {"scalar": [array]})
    assert read_caffemodel(tmp_path / "x")["scalar"][0].shape == array.shape


# ---- older writers


def test_v1_and_v0_files(tmp_path):
    old = proto.NetParameter()
    old.layers.add(name="ip", type=14).blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    v0 = old.layers.add()
    v0.layer.name = "conv"
    v0.layer.blobs.add(data=[1, 2])
    (tmp_path / "x").write_bytes(old.SerializeToString())
    blobs = read_caffemodel(tmp_path / "x")
    assert blobs["ip"][0].shape == (1, 1, 2, 3)
    assert blobs["ip"][0].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert blobs["conv"][0].tolist() == [1, 2]


def field(number, content):
    """Returns a field of a message, whose content is a number or bytes."""
    if isinstance(content, int):
        return bytes([number << 3, *varint(content)])
    return bytes([number << 3 | 2, *varint(len(content))]) + content


def varint(number):
    return [number] if number < 128 else [number & 127 | 128, *varint(number >> 7)]


def c3d_blob(values, *shape):
    """Returns a blob as C3D writes it: fields 1 to 6 are num, channels, length, height, width and the values."""
    axes = b"".join(field(number, size) for number, size in enumerate(shape, 1))
    return axes + field(6, np.asarray(values, "<f4").tobytes())


def test_files_of_c3d(tmp_path):
    """C3D's blobs have a length, and always five axes."""
    layers = {
        "conv": [c3d_blob(range(2 * 3 * 4 * 2 * 2), 2, 3, 4, 2, 2), c3d_blob([7, 8], 1, 1, 1, 1, 2)],
        "ip": [c3d_blob(range(3 * 200), 1, 1, 1, 3, 200)],
        "old": [c3d_blob(range(6), 1, 1, 0, 2, 3)],
    }
    content = b"".join(
        field(2, field(4, name.encode()) + field(5, 30) + b"".join(field(6, blob) for blob in blobs))
        for name, blobs in layers.items()
    )
    (tmp_path / "x").write_bytes(content)
    blobs = read_caffemodel(tmp_path / "x")
    assert blobs["conv"][0].shape == (2, 3, 4, 2, 2) and blobs["conv"][0].ravel().tolist() == list(range(96))
    assert blobs["conv"][1].shape == (1, 1, 1, 1, 2) and blobs["conv"][1].ravel().tolist() == [7, 8]
    assert blobs["ip"][0].shape == (1, 1, 1, 3, 200) and blobs["old"][0].shape == (1, 1, 1, 2, 3)
    text = """input: "x" input: "x2" input_dim: [1, 3, 4, 21, 11, 1, 2, 4, 5, 5]
    layers { name: "conv" type: CONVOLUTION3D bottom: "x" top: "c" convolution_param {
        num_output: 2 kernel_size: 2 kernel_depth: 4 } }
    layers { name: "ip" type: INNER_PRODUCT bottom: "x2" top: "y" inner_product_param {
        num_output: 3 bias_term: false } }"""
    net = Net(parse_net(text), proto.TEST)
    net.load_weights(blobs, "x")
    for name in ("conv", "ip"):
        for tensor, blob in zip(net.params[name], blobs[name], strict=True):
            np.testing.assert_array_equal(tensor.get().ravel(), blob.ravel())


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (c3d_blob(range(7), 1, 2, 2, 2, 1), "7 values for the shape 1 x 2 x 2 x 2 x 1"),
        (c3d_blob(range(2), 1, 2, 1, 1, 2**31), "the shape 1 x 2 x 1 x 1 x 2147483648, expected"),
    ],
)
def test_files_of_c3d_that_cannot_be(tmp_path, blob, message):
    (tmp_path / "x").write_bytes(field(2, field(4, b"conv") + field(6, blob)))
    with pytest.raises(WeightsError, match=f"layer 'conv', blob 0: {message}"):
        read_caffemodel(tmp_path / "x")


def test_doubles_and_values_that_are_not_packed(tmp_path):
    net = proto.NetParameter()
    layer = net.layer.add(name="a")
    layer.blobs.add(shape={"dim": [2]}, double_data=[0.5, 0.25])
    content = net.SerializeToString()
    blob = b"\x3a\x03\x0a\x01\x02" + b"\x2d" + np.float32(1).tobytes() + b"\x2d" + np.float32(2).tobytes()
    layer = b"\x0a\x01b" + b"\x3a" + bytes([len(blob)]) + blob
    content += b"\xa2\x06" + bytes([len(layer)]) + layer
    (tmp_path / "x").write_bytes(content)
    blobs = read_caffemodel(tmp_path / "x")
    assert blobs["a"][0].tolist() == [0.5, 0.25]
    assert blobs["b"][0].tolist() == [1, 2]


def test_a_file_of_another_fork_with_a_clashing_field(tmp_path):
    """In Intel's fork field 148 is a message without `min` and `max`, which ClipParameter requires here."""
    layer = b"\x0a\x01b" + b"\x3a\x06\x2a\x04" + np.float32(1).tobytes() + b"\xa2\x09\x05\x0d" + np.float32(3).tobytes()
    (tmp_path / "x").write_bytes(b"\xa2\x06" + bytes([len(layer)]) + layer)
    assert read_caffemodel(tmp_path / "x")["b"][0].tolist() == [1]


# ---- damage


def test_names_that_are_not_utf8(tmp_path):
    """Caffe writes paths and names as they are."""
    state = b"\x08\x03\x12\x09/tmp/\xe9.cm"  # iter 3, learned_net in Latin-1
    (tmp_path / "x.solverstate").write_bytes(state)
    assert read_solverstate(tmp_path / "x.solverstate").learned_net == os.fsdecode(b"/tmp/\xe9.cm")
    layer = b"\xa2\x06\x0f\x0a\x01\xe9\x3a\x0a\x3a\x02\x0a\x00\x2a\x04\0\0\0\0"
    (tmp_path / "x.caffemodel").write_bytes(layer)
    assert list(read_caffemodel(tmp_path / "x.caffemodel")) == ["\udce9"]


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_truncated_files(tmp_path, net, blobs, suffix):
    if suffix:
        pytest.importorskip("h5py")
    path = tmp_path / f"x{suffix}"
    write_caffemodel(path, net, blobs)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WeightsError, match="truncated or not a caffemodel") as caught:
        read_caffemodel(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    write_solverstate(path, SolverState(3, "x", [np.ones(9)]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WeightsError, match="truncated or not a solverstate"):
        read_solverstate(path)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_caffemodel, b"\xa2\x06\x00" * 200_001),
        (read_caffemodel, b"\xa2\x06\x80\xea\x30" + b"\x3a\x00" * 400_000),
        (read_caffemodel, b"\x0b" + b"\x12\x00" * 200_001 + b"\x0c"),
        (read_solverstate, b"\x08\x01" + b"\x1a\x00" * 200_001),
    ],
    ids=["layers", "blobs of a layer", "layers in a group", "history"],
)
def test_few_bytes_that_stand_for_very_many_messages(tmp_path, read, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(WeightsError, match=r"x: not a \w+: it has more than 200000 layers, blobs and the like"):
        read(tmp_path / "x")


def test_files_that_are_something_else(tmp_path, net, blobs):
    path = tmp_path / "x"
    for content in (b"", b'name: "a text"\n'):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="truncated or not a caffemodel"):
            read_caffemodel(path)
    write_caffemodel(path, net, blobs)
    with pytest.raises(WeightsError, match="not a solverstate"):
        read_solverstate(path)
    with pytest.raises(WeightsError, match=r"missing: cannot be read: No such file"):
        read_caffemodel(tmp_path / "missing")
    with pytest.raises(WeightsError, match="layers that are not in the net: x"):
        write_caffemodel(path, net, {"x": []})


def test_blob_whose_values_are_not_those_of_its_shape(tmp_path):
    net = proto.NetParameter()
    net.layer.add(name="a").blobs.add(shape={"dim": [2, 3]}, data=[1, 2])
    (tmp_path / "x").write_bytes(net.SerializeToString())
    with pytest.raises(WeightsError, match="x: layer 'a', blob 0: 2 values for the shape 2 x 3"):
        read_caffemodel(tmp_path / "x")


@pytest.mark.parametrize(
    ("shape", "count", "words"),
    [
        ([-1, -5], 5, "the shape -1 x -5, expected no negative axis"),
        ([-2, -2], 4, "the shape -2 x -2, expected no negative axis"),
        ([0, 2**62], 0, "the shape 0 x 4611686018427387904, expected no negative axis and fewer than 2"),
        ([2**16, 2**16], 0, "the shape 65536 x 65536, expected no negative axis and fewer than 2"),
        ([2**16, 2**15], 0, "the shape 65536 x 32768, expected no negative axis and fewer than 2"),
        ([2**31, 0], 0, "the shape 2147483648 x 0, expected no negative axis and fewer than 2"),
        ([2**31 - 1], 1, "1 values for the shape 2147483647"),
        ([1] * 70, 1, "a shape of 70 axes, expected at most 32"),
    ],
)
def test_shapes_that_no_blob_has(tmp_path, shape, count, words):
    net = proto.NetParameter()
    net.layer.add(name="a").blobs.add(shape={"dim": shape}, data=[1] * count)
    (tmp_path / "x").write_bytes(net.SerializeToString())
    with pytest.raises(WeightsError, match=f"x: layer 'a', blob 0: {words}"):
        read_caffemodel(tmp_path / "x")
    state = proto.SolverState(iter=3)
    state.history.add(shape={"dim": shape}, data=[1] * count)
    (tmp_path / "x").write_bytes(state.SerializeToString())
    with pytest.raises(WeightsError, match=f"x: history 0: {words}"):
        read_solverstate(tmp_path / "x")


def test_values_that_are_half_a_float(tmp_path):
    net = proto.raw.NetParameter()
    blob = net.layer.add(name="a").blobs.add(shape={"dim": [2]})
    blob.data.append(b"12345")
    (tmp_path / "x").write_bytes(net.SerializeToString())
    with pytest.raises(WeightsError, match="x: layer 'a', blob 0: its values are no whole number of floats"):
        read_caffemodel(tmp_path / "x")


@pytest.mark.parametrize("name, value", [("iter", -8), ("samples_seen", -8), ("ranks", -8), ("global_batch", 2**31)])
def test_numbers_that_no_state_has(tmp_path, name, value):
    (tmp_path / "x").write_bytes(proto.SolverState(**{"iter": 3, name: value}).SerializeToString())
    with pytest.raises(WeightsError, match=rf"x: \w+ {value}, expected [01] to [0-9]+"):
        read_solverstate(tmp_path / "x")


def test_what_fits_into_a_message():
    """A message has at most 2^31 - 1 bytes. A value takes 4, and the rest of a blob at most 128."""
    assert fits_protobuf(2**29 - 33, 1, 3) and not fits_protobuf(2**29 - 33, 1, 4)
    assert fits_protobuf(0, 2**24 - 1) and not fits_protobuf(0, 2**24)
    net = proto.NetParameter()
    net.layer.add(name="a").blobs.add(shape={"dim": [1] * 31 + [2**31 - 1]}, data=[1])
    assert net.ByteSize() <= 4 + 128


def test_a_state_of_nothing_but_its_iteration(tmp_path):
    (tmp_path / "x").write_bytes(proto.SolverState(iter=3).SerializeToString())
    state = read_solverstate(tmp_path / "x")
    assert (state.iteration, state.learned_net, state.history) == (3, "", [])
    assert (state.current_step, state.minimum_loss, state.iter_last_event) == (0, 1e38, 0)


@pytest.mark.parametrize("read", [read_caffemodel, read_solverstate])
def test_what_is_no_file(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "pipe", "no regular file"), ("/dev/zero", "no regular file"), ("a\0b", "null")):
        with pytest.raises(WeightsError, match=f"cannot be read: .*{words}"):
            read(path)
    with pytest.raises(WeightsError, match="File name too long"):
        read("a" * 5000)


def test_a_file_that_no_message_can_be(tmp_path):
    """It is refused before it is read into memory: a sparse file may have any size."""
    with open(tmp_path / "x", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(WeightsError, match="not a caffemodel: 1099511627776 bytes, a message has at most"):
        read_caffemodel(tmp_path / "x")


def test_memory_that_is_not_there(tmp_path, net, blobs, monkeypatch):
    def read(blob):
        raise MemoryError

    write_caffemodel(path := tmp_path / "x", net, blobs)
    monkeypatch.setattr("engine.weights.protobuf.blob_array", read)
    with pytest.raises(WeightsError, match="x: cannot be read: it is too large for the memory that is left"):
        read_caffemodel(path)


# ---- writing whole or not at all


class _FullDisk(io.FileIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk(tmp_path, net, blobs, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    monkeypatch.setattr(files, "open", lambda name, mode: _FullDisk(name, "x"), raising=False)
    with pytest.raises(EngineError, match="x: cannot be written: No space left on device"):
        write_caffemodel(path, net, blobs)
    assert os.listdir(tmp_path) == ["x"] and path.read_bytes() == b"old"


def test_hdf5_on_a_full_disk(tmp_path, net):
    """h5py raises a RuntimeError for it when it closes the file."""
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(EngineError, match=r"x\.h5: cannot be written: .*File too large"):
            write_caffemodel(path, net, {"scalar": [np.ones(1 << 16, np.float32)]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["x.h5"] and path.read_bytes() == b"old"


def test_missing_folder_and_an_error_of_the_caller(tmp_path):
    with (
        pytest.raises(EngineError, match="cannot be written: No such file or directory"),
        atomic_write(tmp_path / "a/b"),
    ):
        pass
    with pytest.raises(KeyError), atomic_write(tmp_path / "x") as file:
        file.write(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(WeightsError, match="cannot be read: Is a directory"):
        read_caffemodel(tmp_path)


# ---- what NVIDIA's Caffe writes


def raw_file(path, type_, values, dims=(2, 3)):
    net = proto.NetParameter()
    blob = net.layer.add(name="a", type="InnerProduct").blobs.add(raw_data_type=type_, raw_data=values)
    blob.shape.dim.extend(dims)
    path.write_bytes(net.SerializeToString())
    return path


@pytest.mark.parametrize("type_, dtype", [(proto.FLOAT16, "<f2"), (proto.FLOAT, "<f4"), (proto.DOUBLE, "<f8")])
def test_blobs_of_raw_bytes(tmp_path, type_, dtype):
    values = np.arange(6, dtype=dtype).reshape(2, 3) / 4
    blobs = read_caffemodel(raw_file(tmp_path / "raw.caffemodel", type_, values.tobytes()))
    assert_same(blobs, {"a": [values.astype(np.float32)]})


@pytest.mark.parametrize(
    "type_, size, words", [(proto.FLOAT16, 11, "5 values for the shape 2 x 3"), (proto.INT, 24, "values of type 3")]
)
def test_wrong_raw_bytes(tmp_path, type_, size, words):
    with pytest.raises(WeightsError, match=f"layer 'a', blob 0: {words}"):
        read_caffemodel(raw_file(tmp_path / "raw.caffemodel", type_, bytes(size)))
