import numpy as np
import pytest

from engine.comm.world import World
from engine.config import parse_net
from engine.data.feeder import Feeder
from engine.errors import ConfigError
from engine.graph.build import TEST
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
    feeder = Feeder(config, TEST, 1, world)
    net = Net(config, TEST, NetOptions(shapes_of=feeder.shapes_of))
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


def test_each_rank_has_its_file(tmp_path):
    with pytest.raises(ConfigError, match="layer 'out': 2 ranks would write one file; put %# "):
        make(tmp_path / "out.h5", ranks=2)
    net, feeder = make(tmp_path / "out%#.h5", ranks=2)
    feeder.next(net)
    net.forward()
    feeder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out0.h5"]


def test_bottoms_that_do_not_fit():
    layer = 'layer { name: "layer" type: "HDF5Output" bottom: "a" bottom: "b" hdf5_output_param { file_name: "x" } }'
    assert "expected bottoms of as many rows each" in error_of(layer, a=(2, 3), b=(3,))
    assert "hdf5_output_param.file_name is missing" in error_of(layer.replace('"x"', '""'), a=(2, 3), b=(2,))
