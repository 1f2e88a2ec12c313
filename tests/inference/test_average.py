"""Averages of weights are NumPy's, and statistics of BatchNorm are those of the data, on any number of ranks."""

import shutil
from pathlib import Path

import lmdb
import numpy as np
import pytest

from engine import proto
from engine.cli import main
from engine.comm.world import World
from engine.config import parse_net
from engine.errors import DataError
from engine.inference.average import Averaged
from engine.inference.extract_features import extract_features
from engine.net import Net, NetOptions
from engine.weights import read_caffemodel, write_caffemodel
from tests.mpi import REPO, run_ranks

BATCH, BATCHES = 100, 5
TEXT = """
    layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.0625 } data_param {
            source: "examples/digits/digits_train_lmdb" backend: LMDB batch_size: 100 } }
    layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
            convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "msra" } } }
    layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
    layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
    layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
    layer { name: "frozen" type: "BatchNorm" bottom: "bn" top: "frozen" batch_norm_param { use_global_stats: true } }
    layer { name: "bn2" type: "BN" bottom: "frozen" top: "bn2" }
    layer { name: "ip" type: "InnerProduct" bottom: "bn2" top: "ip"
            inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(autouse=True)
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


@pytest.fixture
def members(tmp_path) -> list[str]:
    """Writes net.prototxt, and three files of random weights and statistics beside it; returns their paths."""
    (tmp_path / "net.prototxt").write_text(TEXT)
    paths = []
    for seed in (1, 2, 3):
        net = parse_net(TEXT, "net")
        options = NetOptions(seed=seed, shapes_of=lambda *_: [(2, 1, 8, 8), (2,)])
        blobs = Net(net, proto.TRAIN, options).weights_by_layer()
        random = np.random.default_rng(seed)
        for layer in ("bn", "frozen"):
            blobs[layer] = [random.uniform(1, 2, blob.shape).astype(np.float32) for blob in blobs[layer]]
        paths.append(str(tmp_path / f"m{seed}.caffemodel"))
        write_caffemodel(paths[-1], net.message, blobs)
    return paths


def mean(paths: list[str]) -> dict[str, list[np.ndarray]]:
    """Returns the mean of files of weights by NumPy."""
    files = [read_caffemodel(path) for path in paths]
    return {
        layer: [np.mean(np.asarray(blobs, np.float64), 0) for blobs in zip(*(file[layer] for file in files))]
        for layer in files[0]
    }


def assert_alike(found, expected, layers, rtol=1e-6):
    for layer in layers:
        for one, other in zip(found[layer], expected[layer], strict=True):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-7, err_msg=layer)


def test_every_blob_is_the_mean(members, tmp_path, capsys):
    out = str(tmp_path / "out.caffemodel")
    assert main(["average", *members, out]) == 0
    found = read_caffemodel(out)
    assert_alike(found, mean(members), found)
    said = capsys.readouterr().err
    assert "BatchNorm's statistics are averaged like weights" in said and f"average of 3 files to {out}" in said


@pytest.mark.parametrize("field", ["", "batch_norm_param { scale_bias: true }"])
def test_it_warns_of_statistics_that_are_averaged(field, tmp_path, capsys):
    layers = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }'
    net = parse_net(f'{layers} layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "y" {field} }}', "net")
    paths = [str(tmp_path / name) for name in ("a.caffemodel", "b.caffemodel", "average.caffemodel")]
    for path in paths[:2]:
        write_caffemodel(path, net.message, Net(net, proto.TRAIN).weights_by_layer())
    assert main(["average", *paths]) == 0
    assert "BatchNorm's statistics are averaged like weights" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["model", "solver"])
def test_statistics_are_those_of_the_data(given, members, tmp_path):
    out = str(tmp_path / "out.caffemodel")
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" random_seed: 7')
    source = str(tmp_path / {"model": "net.prototxt", "solver": "solver.prototxt"}[given])
    assert main(["average", *members, out, f"--{given}", source, "--iterations", str(BATCHES)]) == 0
    found, expected = read_caffemodel(out), mean(members)
    assert_alike(found, expected, ["conv", "scale", "frozen", "ip"])
    conv = feature(out, "conv", tmp_path)  # of each batch
    count = conv[0].size / 4
    means = np.mean([batch.mean((0, 2, 3)) for batch in conv], 0)
    variances = np.mean([batch.var((0, 2, 3)) * count / (count - 1) for batch in conv], 0)
    assert_alike(found, {"bn": [means, variances, [1.0]]}, ["bn"], 1e-5)
    # Layers above see what they see in training: values that are normalised by the batch.
    factor = expected["frozen"][2]
    scale, shift = (blob[:, np.newaxis, np.newaxis] for blob in expected["scale"])
    frozen = [blob[:, np.newaxis, np.newaxis] / factor for blob in expected["frozen"][:2]]
    above = []
    for batch in conv:
        centred = batch - batch.mean((0, 2, 3), keepdims=True)
        normal = centred / np.sqrt(batch.var((0, 2, 3), keepdims=True) + 1e-5)
        above.append((np.maximum(scale * normal + shift, 0) - frozen[0]) / np.sqrt(frozen[1] + 1e-5))
    np.testing.assert_allclose(found["bn2"][2].ravel(), np.mean([a.mean((0, 2, 3)) for a in above], 0), atol=1e-5)


def feature(weights: str, blob: str, folder: Path) -> np.ndarray:
    """Returns the values of a blob in the first batches, (batches, n, c, h, w)."""
    extract_features(parse_net(TEXT, "net"), [weights], [blob], [str(folder / "f.npz")], BATCHES)
    with np.load(folder / "f.npz") as found:
        values = found[blob].astype(np.float64)
        return values.reshape(BATCHES, BATCH, *values.shape[1:])


def test_a_label_that_no_class_has_is_named_with_its_batch(tmp_path):
    config = parse_net(TEXT.replace("num_output: 10", "num_output: 9"), "net")
    blobs = Net(config, proto.TRAIN, NetOptions(shapes_of=lambda *_: [(2, 1, 8, 8), (2,)])).weights_by_layer()
    averaged = Averaged(config, blobs, "x.caffemodel", World(), NetOptions())
    with pytest.raises(DataError, match=r"^batch \d+: .*'loss': label 9 .* Its key is '"):
        averaged.recompute(None)


@pytest.mark.mpi
def test_ranks_share_the_batches(members, tmp_path):
    outs = [str(tmp_path / f"out{ranks}.caffemodel") for ranks in (1, 2)]
    arguments = ["--model", str(tmp_path / "net.prototxt"), "--iterations", str(BATCHES)]
    assert main(["average", *members, outs[0], *arguments]) == 0
    done = run_ranks(2, ["-m", "engine", "average", *members, outs[1], *arguments], timeout=100)
    assert done.returncode == 0, done.stderr
    one, two = (read_caffemodel(out) for out in outs)
    assert_alike(two, one, one)


@pytest.mark.mpi
def test_ranks_with_data_of_their_own_read_all_of_it(members, tmp_path):
    """Rank 1 has a fifth of the samples of rank 0. All samples are alike, so each batch has the same statistics."""
    path = "examples/digits/digits_train_lmdb"
    shutil.copytree(path, tmp_path / "all")  # another test may have it open
    with lmdb.open(str(tmp_path / "all"), readonly=True, lock=False) as source, source.begin() as transaction:
        first = next(transaction.cursor().iternext())[1]
    for name, count in (("part0", 5 * BATCH), ("part1", BATCH)):
        with lmdb.open(str(tmp_path / name), map_size=1 << 24) as made, made.begin(write=True) as transaction:
            for number in range(count):
                transaction.put(f"{number:05d}".encode(), first)
    (tmp_path / "own.prototxt").write_text(TEXT.replace(path, f"{tmp_path}/part%#"))
    outs = [str(tmp_path / f"out{ranks}.caffemodel") for ranks in (1, 2)]
    arguments = ["--model", str(tmp_path / "own.prototxt")]
    assert main(["average", *members, outs[0], *arguments]) == 0
    done = run_ranks(2, ["-m", "engine", "average", *members, outs[1], *arguments], timeout=100)
    assert done.returncode == 0 and "statistics on 6 batches" in done.stderr, done.stderr
    one, two = (read_caffemodel(out) for out in outs)
    assert_alike(two, one, one)


@pytest.mark.mpi
def test_an_epoch_is_that_of_the_first_data_layer(members, tmp_path):
    """A later layer may have sources of single ranks."""
    for rank in range(2):
        (tmp_path / f"part{rank}").symlink_to(REPO / "examples/digits/digits_train_lmdb")
    more = """
    layer { name: "more" type: "Data" top: "more" data_param { source: "%s/part%%#" backend: LMDB batch_size: 100 } }
    layer { name: "silence" type: "Silence" bottom: "more" }
    """
    (tmp_path / "two.prototxt").write_text(TEXT + more % tmp_path)
    arguments = [*members, str(tmp_path / "out.caffemodel"), "--model", str(tmp_path / "two.prototxt")]
    done = run_ranks(2, ["-m", "engine", "average", *arguments], timeout=100)
    assert done.returncode == 0 and "statistics on 15 batches" in done.stderr, done.stderr


def test_an_epoch_is_the_default(members, tmp_path, capsys):
    out = str(tmp_path / "out.caffemodel")
    assert main(["average", *members, out, "--model", str(tmp_path / "net.prototxt")]) == 0
    # Of 1437 images in batches of 100.
    assert "Computed BatchNorm's statistics on 15 batches." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda blobs: {**blobs, "ip": [blob[:7] for blob in blobs["ip"]]},
            "layer 'ip': {0} has 10 x 144 and 10",
        ),
        (lambda blobs: {"ip": blobs["ip"]}, "has layers that {1} lacks: bn, bn2, conv, frozen, scale; only files of"),
        (lambda blobs: {**blobs, "relu": blobs["ip"]}, "has layers that {0} lacks: relu; only files of one net"),
    ],
    ids=["shape", "fewer", "more"],
)
def test_files_of_different_nets_are_one_line(change, expected, members, tmp_path, capsys):
    other = str(tmp_path / "other.caffemodel")
    write_caffemodel(other, parse_net(TEXT, "net").message, change(read_caffemodel(members[1])))
    assert main(["average", members[0], other, str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected.format(members[0], other) in line
    assert not (tmp_path / "out").exists()


def test_names_that_do_not_fit_are_one_line(members, tmp_path, capsys):
    other_net = tmp_path / "other.prototxt"
    other_net.write_text(TEXT.replace('"ip"', '"fc"'))
    out = str(tmp_path / "out")
    for arguments, expected in [
        ([members[0], out], "expected two files or more to average, then OUT; got 2 names"),
        (members, f"{members[2]}: OUT exists already; remove it, or choose another name"),
        ([members[0], "none", out], "none: cannot be read: No such file or directory"),
        ([*members, out, "--model", str(other_net)], f"lacks layers of the net, fc; {other_net} has them"),
        ([*members, out, "--model", "none"], "none: cannot be read: No such file or directory"),
    ]:
        assert main(["average", *arguments]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
        assert not Path(out).exists()
