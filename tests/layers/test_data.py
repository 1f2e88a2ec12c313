import numpy as np

from engine.config import parse_net
from engine.net import Net, NetOptions
from tests.layers.harness import error_of

LAYER = 'layer { name: "layer" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 2 } }'


def test_shapes_come_from_whoever_opens_the_source():
    asked = []

    def shapes_of(message, where):
        asked.append((message.name, where))
        return [(2, 3, 4, 4), (2,)]

    net = Net(parse_net(LAYER, "a.prototxt"), options=NetOptions(shapes_of=shapes_of))
    assert asked == [("layer", "a.prototxt:1:1")]
    assert net.blobs["data"].shape == (2, 3, 4, 4) and net.blobs["label"].shape == (2,)
    net.blobs["label"].set(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(net.forward()["label"], [1, 2])


def test_a_source_that_is_not_open():
    assert "layer 'layer' (Data): its data source is not open" in error_of(LAYER)
