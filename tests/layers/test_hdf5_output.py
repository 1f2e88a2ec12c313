import os
import shutil

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data.feeder import Feeder
from engine.errors import ConfigError, DataError
from engine.net import Net, NetOptions
from tests.layers.harness import error_of

h5py = pytest.importorskip("h5py")

NET = """
layer {{ name: "data" type: "MemoryData" top: "data" top: "label"
  memory_data_param {{ batch_size: 2 channels: 3 height: 2 width: 2 }} }}
layer {{ name: "scale" type: "Scale" bottom: "data" top: "scaled" scale_param {{ filler {{ value: 3 }} }} }}
layer {{ name: "out" type: "HDF5Output" bottom: "scaled" bottom: "label" hdf5_output_param {{ file_name: "{out}" }} }}
"""
VALUES = np.random.RandomState(0).rand(4, 3, 2, 2).astype(np.float32)


def make(out, ranks: int = 1):
    config, world = parse_net(NET.format(out=out)), World()
    world.size = ranks
    feeder = Feeder(config, proto.TEST, 1, world)
    net = Net(config, proto.TEST, NetOptions(shapes_of=feeder.shapes_of))
    feeder.connect(net)
    feeder.set_arrays("data", VALUES, np.arange(4))
    feeder.start()
    return net, feeder


def test_every_forward_adds_a_batch(tmp_path):
    net, feeder = make(tmp_path / "out.h5")
    for _ in range(2):
        feeder.next(net)
        assert net.forward() == {}
    feeder.close()
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["label"][:].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(file["data"][:], 3 * VALUES)


def test_what_comes_after_the_end_of_a_run_is_added(tmp_path):
    """The file is complete when a run ends, but the net may run again, as in a script. A file that somebody else has
    put in its place meanwhile stays."""
    net, feeder = make(tmp_path / "out.h5")
    for runs in (1, 2):
        feeder.start()
        feeder.next(net)
        net.forward()
        feeder.close()
        with h5py.File(tmp_path / "out.h5") as file:
            assert file["label"][:].tolist() == [0, 1] * runs
    (tmp_path / "out.h5").write_bytes(b"mine")
    with pytest.raises(DataError, match="is there already"):
        net.forward()
    (tmp_path / "out.h5").unlink()
    net.forward()
    feeder.close()
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["label"][:].tolist() == [0, 1]


def test_each_rank_has_its_file(tmp_path):
    with pytest.raises(ConfigError, match="layer 'out': 2 ranks would write one file; put %# "):
        make(tmp_path / "out.h5", ranks=2)
    net, feeder = make(tmp_path / "out%#.h5", ranks=2)
    feeder.next(net)
    net.forward()
    feeder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out0.h5"]


def run(out):
    net, feeder = make(out)
    feeder.next(net)
    net.forward()
    return feeder


def test_the_next_run_replaces_the_file_whatever_ended_this_one(tmp_path):
    feeder = run(tmp_path / "out.h5")
    shutil.copyfile(tmp_path / "out.h5", tmp_path / "killed.h5")  # the file as it is in the middle of the run
    feeder.close()
    for name in ("out.h5", "killed.h5"):
        run(tmp_path / name).close()
        with h5py.File(tmp_path / name) as file:
            assert file["label"][:].tolist() == [0, 1]


def test_a_net_replaces_no_file_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("mine")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["data"] = file["label"] = np.arange(3)
    run(tmp_path / "out.h5").close()
    os.symlink("out.h5", tmp_path / "link")
    os.symlink("nothing", tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name, said in [
        ("keys", "is there already, and .*: it is not replaced; move it away, or name another file"),
        ("weights.h5", "is there already, and no HDF5Output layer has written it: it is not replaced"),
        ("link", "is no regular file: it is not replaced"),
        ("dangling", "is no regular file: it is not replaced"),
        ("pipe", "is no regular file: it is not replaced"),
        (".ssh/authorized_keys", r"is a hidden name; expected one that ends in \.h5 or \.hdf5"),
    ]:
        with pytest.raises(DataError, match=rf"layer 'out': hdf5_output_param.file_name: {name} {said}"):
            make(name)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_a_link_that_is_made_during_the_run_is_not_followed(tmp_path):
    net, feeder = make(tmp_path / "out.h5")
    os.symlink(tmp_path / "elsewhere", tmp_path / "out.h5")
    feeder.next(net)
    with pytest.raises(DataError, match=r"out\.h5 is no regular file: it is not replaced"):
        net.forward()
    assert not (tmp_path / "elsewhere").exists()


def test_bottoms_that_do_not_fit():
    layer = 'layer { name: "layer" type: "HDF5Output" bottom: "a" bottom: "b" hdf5_output_param { file_name: "x" } }'
    assert "expected bottoms of as many rows each" in error_of(layer, a=(2, 3), b=(3,))
    assert "hdf5_output_param.file_name is missing" in error_of(layer.replace('"x"', '""'), a=(2, 3), b=(2,))
