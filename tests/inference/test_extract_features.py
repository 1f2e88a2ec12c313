"""Features in LMDBs and .npz are what the net computes for each sample, in the order of the data."""

import shutil

import lmdb
import numpy as np
import pytest

from engine import proto
from engine.cli import main
from engine.config import parse_net
from engine.errors import ConfigError, DataError, EngineError
from engine.inference.extract_features import extract_features
from engine.net import Net
from tests.solver.harness import digits_net, in_files, solve


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a net; returns the folder of net_iter_3.caffemodel and net.prototxt."""
    folder = tmp_path_factory.mktemp("trained")
    solve("max_iter: 3 momentum: 0.9", digits_net(), folder)
    (folder / "net.prototxt").write_text(digits_net())
    return folder


def test_an_npz_holds_what_the_weights_say(trained, tmp_path):
    config = parse_net(digits_net())
    weights = str(trained / "net_iter_3.caffemodel")
    shapes = extract_features(config, [weights], ["ip1", "ip2", "label"], [str(tmp_path / "x.npz")], 2)
    assert shapes == {"ip1": (94, 32), "ip2": (94, 10), "label": (94,)}
    found = np.load(tmp_path / "x.npz")
    assert {name: found[name].shape for name in found} == shapes
    learned = in_files(trained, 3)
    expected = found["ip1"] @ learned["ip2[0]"].T + learned["ip2[1]"]
    np.testing.assert_allclose(found["ip2"], expected, rtol=1e-4, atol=1e-5)
    shutil.copytree("examples/digits/digits_test_lmdb", tmp_path / "copy")  # another test may have it open
    with lmdb.open(str(tmp_path / "copy"), readonly=True, lock=False) as db, db.begin() as transaction:
        labels = [proto.Datum.FromString(value).label for _, value in transaction.cursor()]
    assert found["label"].tolist() == labels[:94]


def test_a_label_that_no_class_has_is_named_with_its_batch(tmp_path):
    config = parse_net(digits_net().replace("num_output: 10", "num_output: 9"))
    with pytest.raises(DataError, match=r"^batch 0: .*'loss': label 9 .* Its key is '00000007'"):
        extract_features(config, [], ["ip2"], [str(tmp_path / "x.npz")], 2)


def test_blobs_of_any_name_go_into_an_npz(trained, tmp_path):
    """np.savez() has parameters with some names, such as "file"."""
    text = digits_net()
    for top, name in (("ip1", "file"), ("ip2", "allow_pickle")):
        text = text.replace(f'top: "{top}"', f'top: "{name}"').replace(f'bottom: "{top}"', f'bottom: "{name}"')
    weights = str(trained / "net_iter_3.caffemodel")
    names = ["file", "allow_pickle"]
    shapes = extract_features(parse_net(text), [weights], names, [str(tmp_path / "x.npz")], 1)
    extract_features(parse_net(digits_net()), [weights], ["ip1", "ip2"], [str(tmp_path / "y.npz")], 1)
    with np.load(tmp_path / "x.npz") as found, np.load(tmp_path / "y.npz") as expected:
        assert found.files == names and {name: found[name].shape for name in names} == shapes
        for name, usual in zip(names, expected.files, strict=True):
            np.testing.assert_array_equal(found[name], expected[usual])


def test_lmdbs_as_caffe_writes_them(trained, tmp_path):
    weights = str(trained / "net_iter_3.caffemodel")
    arguments = ["extract_features", weights, str(trained / "net.prototxt"), "conv,ip2"]
    assert main([*arguments, f"{tmp_path}/conv_lmdb,{tmp_path}/ip2_lmdb", "1", "lmdb", "GPU", "0"]) == 0
    assert main([*arguments, f"{tmp_path}/x.npz", "1"]) == 0
    expected = np.load(tmp_path / "x.npz")
    for blob in ("conv", "ip2"):
        with lmdb.open(f"{tmp_path}/{blob}_lmdb", readonly=True, lock=False) as db, db.begin() as transaction:
            entries = list(transaction.cursor())
        assert [key for key, _ in entries] == [b"%010d" % i for i in range(47)]
        for (_, value), values in zip(entries, expected[blob], strict=True):
            datum = proto.Datum.FromString(value)
            assert (datum.channels, datum.height, datum.width) == (*values.shape, 1, 1)[:3]
            np.testing.assert_array_equal(np.array(datum.float_data, np.float32), values.ravel())


def test_a_net_that_asks_for_gradients_has_no_room_for_them(trained, tmp_path, monkeypatch):
    made = []

    class Seen(Net):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("engine.inference.extract_features.Net", Seen)
    config = parse_net(f"force_backward: true {digits_net()}", "x.prototxt")
    extract_features(config, [str(trained / "net_iter_3.caffemodel")], ["ip1"], [str(tmp_path / "x.npz")], 1)
    assert [net.has_backward for net in made] == [False]


@pytest.mark.parametrize("name", ["x.h5", "x.CSV", "x.npz"])
def test_an_lmdb_is_not_named_like_another_file(trained, tmp_path, name):
    weights, outputs = [str(trained / "net_iter_3.caffemodel")], [f"{tmp_path}/{name}", f"{tmp_path}/y"]
    with pytest.raises(ConfigError, match=rf"{name}: expected the name of an LMDB for each blob, or a single .npz"):
        extract_features(parse_net(digits_net()), weights, ["ip1", "ip2"], outputs, 1)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_done(trained, tmp_path):
    config, weights = parse_net(digits_net(), "x.prototxt"), [str(trained / "net_iter_3.caffemodel")]
    with pytest.raises(ConfigError, match=r"2 blobs for 1 LMDBs; name one for each, or a single .npz"):
        extract_features(config, weights, ["ip1", "ip2"], [str(tmp_path / "a")], 1)
    with pytest.raises(ConfigError, match="one of them twice"):
        extract_features(config, weights, ["ip1", "ip2"], [str(tmp_path / "a"), str(tmp_path / "b/../a")], 1)
    with pytest.raises(ConfigError, match=r"x.prototxt: no blob 'ip3'; known: data, label, conv, ip1"):
        extract_features(config, weights, ["ip3"], [str(tmp_path / "a")], 1)
    assert list(tmp_path.iterdir()) == []
    # This comes before the net is read, which would have to be there.
    with pytest.raises(EngineError, match=r"x\.npz: cannot be written: there is no folder"):
        extract_features(config, ["not there"], ["ip1"], [str(tmp_path / "gone" / "x.npz")], 1)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a exists already"):
        extract_features(config, weights, ["ip1"], [str(tmp_path / "a")], 1)
