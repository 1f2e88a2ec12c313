"""Feeder: reads a net's data layers and feeds the net."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from engine import proto
from engine.comm.world import World
from engine.config import parse_net, read_net
from engine.data import open_data
from engine.data.feeder import Feeder
from engine.data.side_by_side import same_samples
from engine.errors import ConfigError, DataError, EngineError
from engine.net import Counters, Net, NetOptions
from tests.data.test_sources import make_tar

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


def rank(number: int, ranks: int) -> World:
    world = World()
    world.rank, world.size = number, ranks
    return world


def digits(world: World, phase: int = proto.TRAIN, batch_size: int = 32):
    config = read_net("nets/digits.prototxt", [f"layer[data].data_param.batch_size={batch_size}"])
    feeder = Feeder(config, phase, 1, world)
    return Net(config, phase, NetOptions(shapes_of=feeder.shapes_of)), feeder


def test_a_net_is_fed_in_place():
    net, feeder = digits(World())
    assert (feeder.batch_size, feeder.size) == (32, 1437)
    feeder.start()
    assert feeder.next(net) == 0
    assert feeder.next(net) == 32
    data = net.blobs["data"].data
    feeder.start(32)
    fed = feeder.take()
    np.testing.assert_array_equal(fed.arrays["data"][0], data)
    assert len(fed.keys) == 32 and fed.first_sample == 32
    feeder.close()


def test_ranks_share_what_one_rank_would_read():
    _, alone = digits(World(), batch_size=8)
    alone.start(16)
    whole = alone.take().keys + alone.take().keys
    alone.close()
    parts = []
    for number in range(2):
        _, feeder = digits(rank(number, 2), batch_size=8)
        feeder.start(16)
        fed = feeder.take()
        assert fed.first_sample == 16 + 8 * number
        parts += fed.keys
        feeder.close()
    assert parts == whole


def test_an_epoch_is_every_item_once():
    keys, sizes = [], []
    for number in range(2):
        _, feeder = digits(rank(number, 2), proto.TEST, batch_size=100)
        feeder.start_epoch()
        while (fed := feeder.take()) is not None:
            keys += fed.keys
            sizes.append(fed.size)
        feeder.close()
    assert sorted(sizes) == [60, 100, 100, 100]
    assert len(keys) == len(set(keys)) == 360


def test_shapes_for_another_batch_size():
    _, feeder = digits(World(), proto.TEST)
    message = SimpleNamespace(name="data", type="Data")
    assert feeder.shapes_for(5)(message, "") == [(5, 1, 8, 8), (5,)]


def test_messages_name_the_keys():
    net, feeder = digits(World())
    assert feeder.describe_batch() == ""
    feeder.start()
    feeder.next(net)
    assert feeder.describe_batch().startswith("The batch holds keys '0") and "29 more" in feeder.describe_batch()
    feeder.close()


def test_a_label_out_of_range_names_its_key():
    """The label also passes a Split, since two layers read it."""
    config = read_net("nets/digits.prototxt", ["layer[ip2].inner_product_param.num_output=7"])
    feeder = Feeder(config, proto.TEST, 1, World())
    net = Net(config, proto.TEST, NetOptions(shapes_of=feeder.shapes_of))
    feeder.start()
    feeder.next(net)
    with pytest.raises(DataError, match=r"label (7|8|9) at position \d+ is outside") as raised:
        net.forward()
    labels = net.blobs["label"].data
    first = int(np.argmax(labels >= 7))
    assert first > 0 and raised.value.item == ("data", first)
    assert str(raised.value).startswith("nets/digits.prototxt:118:1: layer 'loss': label ")
    source = feeder.sources[0].removeprefix("layer 'data' (").removesuffix(")")
    assert feeder.describe_batch(raised.value.item) == f"Its key is '{feeder.keys[first]}' in {source}. "
    feeder.close()


def test_a_net_without_data_layers_counts_its_samples():
    config = parse_net('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 } } }')
    feeder = Feeder(config, proto.TRAIN, 1, rank(1, 2))
    net = Net(config, proto.TRAIN, NetOptions(shapes_of=feeder.shapes_of))
    feeder.start(10)
    assert [feeder.next(net), feeder.next(net)] == [4 * 11, 4 * 13]  # batches of 4 rows
    assert (feeder.batch_size, feeder.size) == (0, 0)


def noise(world: World, batch_size: int, batches: int = 2) -> np.ndarray:
    """Returns what a rank computes of a net whose only input is noise, from its 5th batch on."""
    config = parse_net(
        f"""layer {{ name: "z" type: "DummyData" top: "z" dummy_data_param {{ shape {{ dim: {batch_size} dim: 3 }}
        data_filler {{ type: "gaussian" }} per_sample: true }} }}"""
    )
    feeder = Feeder(config, proto.TRAIN, 1, world)
    net = Net(config, proto.TRAIN, NetOptions(shapes_of=feeder.shapes_of))
    feeder.start(4 * world.size)
    return np.stack([net.forward(Counters(k, feeder.next(net)))["z"] for k in range(batches)])


def test_no_two_batches_nor_ranks_share_noise():
    alone = noise(World(), 8)  # (batches, samples, 3)
    assert len(np.unique(alone)) == 2 * 8 * 3
    np.testing.assert_array_equal(np.concatenate([noise(rank(number, 4), 2) for number in range(4)], axis=1), alone)


@pytest.mark.parametrize("kind", ["SegData", "ImageData", "DenseImageData"])
def test_layers_that_read_the_same_are_told(tmp_path, kind):
    """Batches of the two layers may differ in size, and the size of SegData's is not in the layer at all."""
    param = {"SegData": "seg_data_param", "ImageData": "image_data_param", "DenseImageData": "dense_image_data_param"}
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "x.png")
    (tmp_path / "list").write_text(f"{tmp_path}/x.png {tmp_path}/x.png\n")
    layers = ""
    for number, name in enumerate("ab", 1):
        size = "" if kind == "SegData" else f"batch_size: {number}"
        layers += f"""layer {{ name: "{name}" type: "{kind}" top: "{name}" top: "mask {name}"
            {param[kind]} {{ source: "{tmp_path}/list" {size} }} }}"""
    config = parse_net(layers)
    feeder = Feeder(config, proto.TRAIN, 1, World())
    net = Net(config, proto.TRAIN, NetOptions(shapes_of=feeder.shapes_of))
    assert list(same_samples(feeder.opened)) == [("a", "b", f"{tmp_path}/list")]
    feeder.start()
    assert feeder.next(net) == 0 and net.blobs["b"].data.shape == (1 if kind == "SegData" else 2, 3, 4, 4)
    feeder.close()


@pytest.mark.parametrize(
    "layer, reason",
    [
        ('type: "HDF5Data" hdf5_data_param { source: "x" batch_size: 1 }', "x: cannot be read: No such file"),
        ('type: "Data" data_param { source: "x" }', "batch_size above 0, got 0"),
    ],
)
def test_data_layers_that_cannot_be_opened(layer, reason):
    config = parse_net(f'layer {{ name: "data" top: "data" {layer} }}')
    with pytest.raises(EngineError, match=reason):
        Net(config, proto.TRAIN, NetOptions(shapes_of=Feeder(config, proto.TRAIN, 1, World()).shapes_of))


@pytest.mark.parametrize("masks, refused", [("b", True), ("a", False), ("c", False)])
def test_pairs_of_two_layers_are_not_torn_apart_by_skipping(tmp_path, masks, refused):
    for name, lines in (("a", 2), ("b", 2), ("c", 3)):
        (tmp_path / name).write_text("".join(f"{tmp_path}/x.png {label}\n" for label in range(lines)))
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "x.png")
    layers = [
        f'layer {{ name: "{top}" type: "ImageData" top: "{top}" image_data_param {{ source: "{tmp_path}/{source}" '
        "batch_size: 1 } }"
        for top, source in (("data", "a"), ("mask", masks))
    ]
    config = parse_net("".join(layers))
    for skip in (True, False):
        feeder = Feeder(config, proto.TRAIN, 1, World(), skip_bad_images=skip)
        if skip and refused:
            with pytest.raises(ConfigError, match=r"'data' and 'mask' have 2 items each, .*: put both into one source"):
                Net(config, proto.TRAIN, NetOptions(shapes_of=feeder.shapes_of))
        else:
            Net(config, proto.TRAIN, NetOptions(shapes_of=feeder.shapes_of))


@pytest.mark.parametrize("source, bad", [("x-%#.tar", 4), ("x-0.tar", 2), ("x-{0,1}.tar", 4)])
def test_skipped_items_are_counted_once_each(image_folder, tmp_path, source, bad):
    """Items of one name in two shards are two items, and so are items of one number in the sources of two ranks."""
    for name in ("ant/0.png", "ant/1.png"):
        (image_folder / name).write_bytes(b"no picture")
    for number in range(2):
        make_tar(image_folder, tmp_path / f"x-{number}.tar")
    config = parse_net(f"""layer {{ name: "data" type: "Data" top: "data" top: "label"
        data_param {{ source: "{tmp_path}/{source}" batch_size: 24 }} }}""")
    skipped = {}
    for number in range(2):
        feeder = Feeder(config, proto.TEST, 1, rank(number, 2), skip_bad_images=True)
        feeder.shapes_of(config.message.layer[0], "here")
        feeder.start()
        assert len(feeder.take().keys) == 24
        skipped.update(feeder.skipped)
        feeder.close()
    assert sorted(key for key, _ in skipped.values()) == ["ant/0.png"] * (bad // 2) + ["ant/1.png"] * (bad // 2)


def test_the_first_batch_is_the_sources():
    config = read_net("nets/digits.prototxt")
    source = open_data(config.message.layer[0], proto.TRAIN, 1)
    with source.batches(32) as batches:
        expected = next(batches).keys
    _, feeder = digits(World())
    feeder.start()
    assert feeder.take().keys == expected
    feeder.close()
