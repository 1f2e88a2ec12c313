"""HDF5Data: reads the rows of datasets."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data import open_data
from engine.data.feeder import Feeder
from engine.data.readers import hdf5
from engine.errors import ConfigError, DataError
from engine.net import Net, NetOptions
from tests.mpi import REPO
from tests.solver.harness import solve

h5py = pytest.importorskip("h5py")

ROWS = {"a": 7, "b": 4}


def layer_of(source, rest: str = "", tops=("data", "target", "label")) -> proto.LayerParameter:
    layer = proto.LayerParameter(name="data", type="HDF5Data", top=tops)
    return text_format.Parse(f'hdf5_data_param {{ source: "{source}" batch_size: 3 {rest} }}', layer)


@pytest.fixture
def listed(tmp_path):
    """Makes two files of 7 and 4 rows, whose rows have their own number in each value. One dataset is compressed, one
    has integers."""
    begin = 0
    for name, count in ROWS.items():
        numbers = np.arange(begin, begin + count)
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data"] = np.broadcast_to(numbers.reshape(-1, 1, 1, 1), (count, 2, 3, 4)).astype(np.float32)
            file.create_dataset("target", data=numbers.reshape(-1, 1).astype(np.float64), compression="gzip")
            file["label"] = numbers
        begin += count
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path}/{name}.h5\n" for name in ROWS))
    return tmp_path / "list.txt"


def test_rows_of_all_files_one_after_the_other(listed):
    source = open_data(layer_of(listed), proto.TRAIN)
    assert (source.size, source.shapes) == (11, ((2, 3, 4), (1,), ()))
    found = []
    with source.batches(3, threads=2) as batches:
        for batch in islice(batches, 5):
            data, target, label = batch.arrays["data"]
            assert data.dtype == target.dtype == label.dtype == np.float32
            assert (data == label.reshape(3, 1, 1, 1)).all() and np.array_equal(target[:, 0], label)
            found += label.tolist()
    assert found == [i % 11 for i in range(15)]


def test_shuffled_epochs_hold_every_row_once(listed):
    with open_data(layer_of(listed, "shuffle: true"), proto.TRAIN).epoch(4) as batches:
        labels = [label for batch in batches for label in batch.arrays["data"][2].tolist()]
    assert sorted(labels) == list(range(11)) != labels


def test_chunks_are_read_once_or_a_shuffled_training_is_warned(listed, tmp_path, monkeypatch, caplog):
    source = open_data(layer_of(listed, "shuffle: true", tops=["target"]), proto.TRAIN)
    held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert source.size == 11 and f"{tmp_path}/a.h5" not in held and not caplog.messages
    monkeypatch.setattr(hdf5, "free_memory", lambda: 0)
    open_data(layer_of(listed), proto.TRAIN)
    assert not caplog.messages
    with open_data(layer_of(listed, "shuffle: true"), proto.TRAIN).epoch(11) as batches:
        assert sorted(next(batches).arrays["data"][1].ravel()) == list(range(11))
    assert f"shuffle takes rows of {tmp_path}/a.h5 and 1 more in any order" in caplog.text


def test_a_net_reads_it(listed):
    text = f"""layer {{ name: "data" type: "HDF5Data" top: "label" top: "data"
      hdf5_data_param {{ source: "{listed}" batch_size: 2 }} }}"""
    config = parse_net(text)
    feeder = Feeder(config, proto.TEST, 1, World())
    net = Net(config, proto.TEST, NetOptions(shapes_of=feeder.shapes_of))
    feeder.start(6)
    feeder.next(net)
    assert net.forward()["label"].tolist() == [6, 7] and net.outputs()["data"].shape == (2, 2, 3, 4)
    feeder.close()


def put_elsewhere(file) -> None:
    file.create_dataset("other", (7, 4), "f4", external=[(file.filename, 0, 112)])


@pytest.mark.parametrize(
    "tops, change, reason",
    [
        (("data", "none"), None, "has no dataset 'none'; it has data, label, target"),
        (("data",), lambda file: file.__setitem__("data2", 1), None),
        (("data", "odd"), lambda file: file.__setitem__("odd", np.zeros(3)), "as many rows .* got data 7, odd 3"),
        (("text",), lambda file: file.__setitem__("text", ["x"] * 7), "'text' does not hold numbers"),
        (("group",), lambda file: file.create_group("group"), "'group' is no dataset"),
        (("type",), lambda file: file.__setitem__("type", np.dtype("f4")), "'type' is no dataset"),
        (("link",), lambda file: file.__setitem__("link", h5py.SoftLink("/data")), "'link' is a link, which is not"),
        (("gone",), lambda file: file.__setitem__("gone", h5py.SoftLink("/nowhere")), "'gone' is a link"),
        (("empty",), lambda file: file.__setitem__("empty", h5py.Empty("f")), "'empty' is no dataset, or an empty one"),
        (
            ("hole",),
            lambda file: file.create_dataset("hole", (7, 0, 3), "f4"),
            "rows of 0 x 3 in 'hole', which",
        ),
        (("other",), put_elsewhere, "'other' lies in another file, which is not read"),
        (("none",), lambda file: file.create_group(b"\xff"), r"it has data, label, target, \\xff"),
    ],
)
def test_datasets_that_do_not_fit(listed, tmp_path, tops, change, reason):
    with h5py.File(tmp_path / "a.h5", "a") as file:
        if change:
            change(file)
    if reason is None:
        open_data(layer_of(listed, tops=tops), proto.TEST)
        return
    with pytest.raises(DataError, match=reason):
        open_data(layer_of(listed, tops=tops), proto.TEST)


def test_files_that_cannot_be_read(listed, tmp_path):
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["data"] = np.zeros((2, 5))
    (tmp_path / "other.txt").write_text(f"{tmp_path}/a.h5\n{tmp_path}/c.h5\n")
    with pytest.raises(DataError, match=r"c.h5: expected rows of 2 x 3 x 4 in 'data', as in .*a.h5, got 5"):
        open_data(layer_of(tmp_path / "other.txt", tops=["data"]), proto.TEST)
    (tmp_path / "c.h5").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"other.txt: cannot read .*c.h5"):
        open_data(layer_of(tmp_path / "other.txt", tops=["data"]), proto.TEST)
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(DataError, match=r"list.txt: cannot read .*a.h5"):
        open_data(layer_of(listed), proto.TEST)
    wanted = "; expected a text file with the path of an HDF5 file on each line"
    with pytest.raises(DataError, match=f"b.h5: cannot be read: byte 0 is not UTF-8{wanted}$"):
        open_data(layer_of(tmp_path / "b.h5"), proto.TEST)
    with pytest.raises(DataError, match=f"{tmp_path}: is a folder{wanted}$"):
        open_data(layer_of(tmp_path), proto.TEST)
    with pytest.raises(DataError, match=r"nowhere: cannot be read: No such file"):
        open_data(layer_of("nowhere"), proto.TEST)


def test_a_file_that_is_cut_off_while_it_is_read(listed, tmp_path):
    """Rows that are mapped into memory must not end the process by a signal."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"], file["label"] = np.zeros((100, 8, 16, 16), np.float32), np.zeros(100, np.float32)
    listed.write_text(f"{tmp_path}/a.h5\n")
    program = f"""
import os
from google.protobuf import text_format
from engine import proto
from engine.data import open_data
layer = proto.LayerParameter(name="data", type="HDF5Data", top=["data", "label"])
text_format.Parse('hdf5_data_param {{ source: "{listed}" batch_size: 5 }}', layer)
with open_data(layer, proto.TEST, where="net:3:1").batches(5, threads=1) as batches:
    batches.next()
    os.truncate({str(tmp_path / "a.h5")!r}, 8192)
    for _ in range(20):
        batches.next()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"engine: net:3:1: HDF5Data: key '{tmp_path}/a.h5[")
    assert done.stderr.endswith("]': the file is damaged, or has been cut off; copy it again\n")


def test_what_ranks_compare(listed):
    source = open_data(layer_of(listed), proto.TRAIN)
    assert source.identity() == "11 rows, by file 7, 4"


def test_without_h5py(listed, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match="HDF5Data needs h5py, which cannot be imported"):
        open_data(layer_of(listed), proto.TEST)


def test_a_solver_learns_from_it(tmp_path):
    """The net learns a linear map of 4 numbers to 2."""
    random = np.random.RandomState(0)
    x, w = random.randn(64, 4).astype(np.float32), random.randn(4, 2).astype(np.float32)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"], file["y"] = x, x @ w
    (tmp_path / "list.txt").write_text(f"{tmp_path}/rows.h5\n")
    net = f"""layer {{ name: "data" type: "HDF5Data" top: "x" top: "y"
        hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 16 shuffle: true }} }}
      layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {{ num_output: 2 }} }}
      layer {{ name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }}"""
    solver = solve("base_lr: 0.1 max_iter: 200", net)
    np.testing.assert_allclose(solver.net.weights_by_layer()["ip"][0], w.T, atol=1e-3)


# transform_param


@pytest.fixture
def pictures(tmp_path):
    """Makes pictures of bytes and of floats that are their own masks, masks of two shapes, and vectors."""
    numbers = np.random.RandomState(1).randint(0, 255, (6, 1, 12, 16))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["bytes"], file["floats"] = numbers.astype(np.uint8), numbers.astype(np.float32)
        file["mask"], file["flat"] = numbers.astype(np.int64), numbers[:, 0].astype(np.float32)
        file["vector"], file["wide"] = numbers[:, 0, 0, :5].astype(np.float32), numbers[:, :, :4].astype(np.float32)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/x.h5\n")
    return tmp_path / "list.txt"


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_transforms_and_the_pair_rule(pictures, kind):
    layer = layer_of(pictures, "shuffle: true", (kind, "mask", "flat", "vector", "wide"))
    text_format.Parse("crop_size: 8 mirror: true scale: 0.5 mean_value: 3", layer.transform_param)
    source = open_data(layer, proto.TRAIN, seed=3)
    assert source.shapes == ((1, 8, 8), (1, 8, 8), (8, 8), (5,), (1, 4, 16))
    seen = []
    with source.batches(3) as batches:
        for _ in range(4):
            data, mask, flat, vector, wide = (array.copy() for array in next(batches).arrays["data"])
            assert np.array_equal(data, (mask - 3) * 0.5) and np.array_equal(mask[:, 0], flat)
            assert np.array_equal(vector, wide[:, 0, 0, :5])
            seen.append(data)
    assert not np.array_equal(np.sort(seen[0], axis=None), np.sort(seen[2], axis=None)), "another epoch, other crops"


def test_only_bytes_are_resized(pictures):
    layer = layer_of(pictures, tops=("bytes", "vector"))
    text_format.Parse("resize_param { height: 24 width: 32 }", layer.transform_param)
    source = open_data(layer, proto.TRAIN)
    assert source.shapes[0] == (1, 24, 32)
    with source.batches(6) as batches:
        data = next(batches).arrays["data"][0]
    with h5py.File(pictures.with_name("x.h5")) as file:
        np.testing.assert_allclose(data.mean((1, 2, 3)), np.mean(file["bytes"], (1, 2, 3)), rtol=0.05)
    layer.top[0] = "floats"
    with pytest.raises(DataError, match="an image of 1 float32 channels cannot be resized"):
        open_data(layer, proto.TRAIN)


@pytest.mark.parametrize("step", ["fix_crop: true", "multi_scale: true", "rand_augment_param { }", "erase_ratio: 1"])
def test_steps_that_are_not_made_for_masks(pictures, step):
    field = step.split()[0].rstrip(":")
    layer = layer_of(pictures, tops=("bytes", "mask"))
    text_format.Parse(f"crop_size: 8 {step}", layer.transform_param)
    with pytest.raises(ConfigError, match=rf"transform_param.{field} does not go with masks: take it out"):
        open_data(layer, proto.TRAIN)
    layer = layer_of(pictures, tops=("bytes", "vector"))
    layer.transform_param.CopyFrom(text_format.Parse("crop_size: 8 fix_crop: true", proto.TransformationParameter()))
    assert open_data(layer, proto.TRAIN).shapes == ((1, 8, 8), (5,))


@pytest.mark.parametrize("step", ["fix_crop: {}", "multi_scale: {}", "erase_ratio: {}", "rand_augment_param {{ }}"])
def test_steps_that_are_switched_off_go_with_masks(pictures, step):
    """A step may be switched off by its value or by the phase."""
    layer = layer_of(pictures, tops=("bytes", "mask"))
    text_format.Parse(f"crop_size: 8 {step.format(1)}", layer.transform_param)
    assert open_data(layer, proto.TEST).shapes == ((1, 8, 8), (1, 8, 8))
    if "{}" in step:
        text_format.Merge(step.format(0), layer.transform_param)
        assert open_data(layer, proto.TRAIN).shapes == ((1, 8, 8), (1, 8, 8))


def test_transforms_that_cannot_be(pictures):
    layer = layer_of(pictures, tops=("floats",))
    layer.transform_param.crop_size = 17
    with pytest.raises(DataError, match=r"image of 1 x 12 x 16 is smaller than the crop of 17 x 17"):
        open_data(layer, proto.TEST)
    layer.transform_param.force_gray = True
    with pytest.raises(ConfigError, match=r"transform_param.force_gray: rows of HDF5Data have the channels of the"):
        open_data(layer, proto.TEST)
    layer = layer_of(pictures, tops=("vector", "mask"))
    layer.transform_param.mirror = True
    with pytest.raises(ConfigError, match=r"transform_param: expected rows of pictures, c x h x w, .*; got 5"):
        open_data(layer, proto.TRAIN)
    with h5py.File(pictures.with_name("x.h5"), "r+") as file:
        file["mask"][2, 0, 3, 3] = 256
    layer = layer_of(pictures, tops=("bytes", "mask"))
    layer.transform_param.mirror = True
    with open_data(layer, proto.TRAIN).batches(6) as batches:
        with pytest.raises(DataError, match=r"cannot read row 2 of .*x.h5: expected a mask of whole numbers from 0 to"):
            next(batches)
