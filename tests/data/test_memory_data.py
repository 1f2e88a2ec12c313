"""MemoryData: feeds arrays that the program gives."""

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data.feeder import Feeder
from engine.errors import ConfigError, DataError
from engine.net import Net, NetOptions

LAYER = """layer {{ name: "memory" type: "MemoryData" top: "data" top: "label"
  memory_data_param {{ batch_size: 2 channels: 3 height: {height} width: 5 }} }}"""


@pytest.fixture
def fed():
    config = parse_net(LAYER.format(height=4))
    feeder = Feeder(config, proto.TEST, 1, World())
    net = Net(config, proto.TEST, NetOptions(shapes_of=feeder.shapes_of))
    yield net, feeder
    feeder.close()


def test_batches_go_round(fed):
    net, feeder = fed
    data = np.random.RandomState(0).rand(3, 3, 4, 5).astype(np.float32)
    feeder.set_arrays("memory", data, np.array([7, 8, 9]))
    feeder.start()
    for expected in ([0, 1], [2, 0], [1, 2]):
        feeder.next(net)
        outputs = net.forward()
        np.testing.assert_array_equal(outputs["data"], data[expected])
        assert outputs["label"].tolist() == [7 + i for i in expected]
    feeder.set_arrays("memory", data[:1], np.array([[1]]))
    feeder.start()
    feeder.next(net)
    assert net.forward()["label"].tolist() == [1, 1]


def test_each_rank_may_have_others(fed):
    _, feeder = fed
    feeder.set_arrays("memory", np.zeros((2, 3, 4, 5)), np.zeros(2))
    assert feeder.identities() == {"the test data of layer 'memory'": ""}


def test_arrays_that_do_not_fit(fed):
    _, feeder = fed
    with pytest.raises(DataError, match="layer 'memory' has no data yet"):
        feeder.start()
    with pytest.raises(DataError, match="expected data of n x 3 x 4 x 5, got 2 x 3 x 5 x 4"):
        feeder.set_arrays("memory", np.zeros((2, 3, 5, 4)), np.zeros(2))
    with pytest.raises(DataError, match="a label for each of 2 items, above 0, got 3"):
        feeder.set_arrays("memory", np.zeros((2, 3, 4, 5)), np.zeros(3))
    with pytest.raises(DataError, match="no MemoryData layer 'other'"):
        feeder.set_arrays("other", np.zeros((2, 3, 4, 5)), np.zeros(2))
    config = parse_net(LAYER.format(height=0))
    with pytest.raises(ConfigError, match="channels, height and width above 0"):
        Net(config, proto.TEST, NetOptions(shapes_of=Feeder(config, proto.TEST, 1, World()).shapes_of))
