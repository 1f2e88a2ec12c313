"""Ensembles: members and their average against NumPy, on any number of ranks."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine import proto
from engine.cli import main
from engine.comm.world import World
from engine.config import parse_net, read_net, read_solver
from engine.errors import ConfigError, DataError, WeightsError
from engine.graph.build import build
from engine.inference.average import Averaged, average_files
from engine.inference.classify import Classifier, Preprocessing
from engine.inference.ensemble import Ensemble, _load_member, log_mean
from engine.inference.evaluator import Evaluator
from engine.inference.extract_features import extract_features
from engine.inference.scoring import cut
from engine.inference.trained import load
from engine.inference.views import Views
from engine.net import Net, NetOptions
from engine.solver.solver import Solver
from engine.weights import read_caffemodel, write_caffemodel
from tests.mpi import run_ranks

REPO = Path(__file__).resolve().parents[2]
MEMBERS = 3
SOFTMAX = '\nlayer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" include { phase: TEST } }'


@pytest.fixture(autouse=True)
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Trains three digits nets from different seeds; returns the paths of their weights."""
    folder = tmp_path_factory.mktemp("members")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPO)
        for seed in range(MEMBERS):
            fields = {"random_seed": seed + 1, "max_iter": 150, "test_interval": 1000, "display": 0}
            fields["snapshot_prefix"] = folder / f"m{seed}"
            solver = Solver(
                read_solver("solvers/digits.prototxt", [f"{name}={value}" for name, value in fields.items()]), World()
            )
            solver.solve()
            solver.close()
    return [str(folder / f"m{seed}_iter_150.caffemodel") for seed in range(MEMBERS)]


def digits(batch_size: int = 47, more: str = "", *overrides: str):
    text = (REPO / "nets/digits.prototxt").read_text() + more
    return parse_net(text, "digits", [f"layer[data@TEST].data_param.batch_size={batch_size}", *overrides])


def features(path: str, blobs: list[str], folder: Path, config=None) -> list[np.ndarray]:
    """Returns the values of blobs for all 360 samples."""
    config = config or digits(40, SOFTMAX)
    extract_features(config, [path], blobs, [str(folder / "f.npz")], 9)
    with np.load(folder / "f.npz") as found:
        return [found[blob].astype(np.float64) for blob in blobs]


def figures(probabilities: np.ndarray, labels: np.ndarray, top: int = 1) -> tuple[float, float, float]:
    """Returns loss, accuracy and top-5 accuracy."""
    labels = labels.ravel().astype(int)
    own = probabilities[np.arange(len(labels)), labels]
    better = (probabilities >= own[:, np.newaxis]).sum(1) - 1
    return -np.log(own).mean(), (better < 1).mean(), (better < 5).mean()


NAMES = ("loss", "accuracy", "accuracy_top5")


def scored(config, members, views=None):
    """Returns the figures of an ensemble, and closes its data, so that others may open them."""
    with closing(Ensemble(config, members, World(), views=views)) as test:
        return test.run()


def test_members_and_average_are_numpys(members, tmp_path):
    found = scored(digits(), [[path] for path in members])
    probabilities = []
    for row, path in enumerate(members):
        prob, labels = features(path, ["prob", "label"], tmp_path)
        probabilities.append(prob)
        for name, expected in zip(NAMES, figures(prob, labels)):
            assert found[name][row, 0] == pytest.approx(expected, abs=1e-6), (name, row)
    for name, expected in zip(NAMES, figures(np.mean(probabilities, 0), labels)):
        assert found[name][MEMBERS, 0] == pytest.approx(expected, abs=1e-6), name
    assert found["loss"][MEMBERS] < found["loss"][:MEMBERS].mean()  # the logarithm is concave


def test_the_average_itself_is_numpys(members, tmp_path):
    """The net ends in a Softmax, and batches of one give the average of each sample."""
    net = digits(40, SOFTMAX, "layer[data@TEST].data_param.batch_size=1")
    seen = []
    with closing(Ensemble(net, [[path] for path in members], World())) as test:
        test.run(360, lambda k, outputs: seen.append(outputs["prob"].reshape(MEMBERS + 1, 10)))
    expected = [features(path, ["prob"], tmp_path)[0] for path in members]
    expected.append(np.mean(expected, 0))
    np.testing.assert_allclose(np.stack(seen, 1), expected, atol=1e-6)


def test_members_are_what_each_is_alone(members):
    found = scored(digits(), [[path] for path in members])
    for row, path in enumerate(members):
        with closing(Evaluator(digits(), World())) as alone:
            load(alone.net, [path])
            for name, value in alone.run().items():
                assert found[name][row] == pytest.approx(value, abs=1e-6)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [4])
def test_ranks_give_the_bits_of_one(ranks, members, tmp_path):
    arguments = ["test", "--model", "nets/digits.prototxt", "--weights", ",".join(members), "--ensemble", "--flip"]
    arguments += ["--set", "layer[data@TEST].data_param.batch_size=47"]
    assert main([*arguments, "--json", str(tmp_path / "one.json")]) == 0
    done = run_ranks(ranks, ["-m", "engine", *arguments, "--json", str(tmp_path / "ranks.json")], timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ranks.json").read_bytes() == (tmp_path / "one.json").read_bytes()


# What a net can end in


def test_every_head_is_averaged_and_other_losses_are_of_members_only(members, tmp_path):
    more = SOFTMAX + (
        'layer { name: "aux" type: "InnerProduct" bottom: "ip1" top: "ip1b" inner_product_param { num_output: 10 '
        'weight_filler { type: "xavier" } } }'
        'layer { name: "prob_aux" type: "Softmax" bottom: "ip1b" top: "ip1b" }'  # it works in place
        'layer { name: "by_prob" type: "MultinomialLogisticLoss" bottom: "ip1b" bottom: "label" top: "by_prob" }'
        'layer { name: "by_class" type: "Accuracy" bottom: "ip1b" bottom: "label" top: "acc_aux" top: "by_class" }'
        'layer { name: "hinge" type: "HingeLoss" bottom: "ip2" bottom: "label" top: "hinge" loss_weight: 0.5 }'
    )
    files = with_blobs(members, tmp_path, digits(40, more))
    with closing(Ensemble(digits(47, more), [[path] for path in files], World())) as test:
        found = test.run()
    assert test.loss_weights == {"loss": 1, "by_prob": 1, "hinge": 0.5}
    assert found["hinge"].shape == (MEMBERS, 1) and found["by_class"].shape == (MEMBERS + 1, 10)
    probabilities = []
    for row, path in enumerate(files):
        prob, labels, hinge = features(path, ["ip1b", "label", "hinge"], tmp_path, digits(40, more))
        assert found["hinge"][row, 0] == pytest.approx(hinge.mean(), rel=1e-5)
        probabilities.append(prob)
    loss, accuracy, _ = figures(np.mean(probabilities, 0), labels)
    assert found["by_prob"][MEMBERS, 0] == pytest.approx(loss, abs=1e-6)
    assert found["acc_aux"][MEMBERS, 0] == pytest.approx(accuracy, abs=1e-6)


def with_blobs(members, folder, config) -> list[str]:
    """Copies the files of weights and adds weights for the layer `aux`; returns the copies' paths."""
    paths = []
    for row, path in enumerate(members):
        blobs = dict(read_caffemodel(path))
        random = np.random.default_rng(row)
        blobs["aux"] = [random.normal(0, 0.1, (10, 128)).astype(np.float32), np.zeros(10, np.float32)]
        paths.append(str(folder / f"aux{row}.caffemodel"))
        write_caffemodel(paths[-1], config.message, blobs)
    return paths


def test_a_softmax_within_the_net_is_left_to_it():
    text = """
        layer { name: "x" type: "Input" top: "x" top: "label" input_param { shape { dim: 2 dim: 4 } shape { dim: 2 } } }
        layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 } }
        layer { name: "attention" type: "Softmax" bottom: "a" top: "attention" }
        layer { name: "y" type: "Eltwise" bottom: "a" bottom: "attention" top: "y" eltwise_param { operation: PROD } }
        layer { name: "fc" type: "InnerProduct" bottom: "y" top: "fc" inner_product_param { num_output: 3 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
    """
    config = parse_net(text, "x.prototxt")
    found = cut(config, build(config, proto.TEST))
    assert [layer.name for layer in found.head] == ["loss"]
    assert found.scores == {"fc": 1} and found.read == ["fc", "label"]


@pytest.mark.parametrize("kind", ["FocalLoss", "SoftmaxFocalLoss", "SoftmaxWithFocalLoss", "SoftmaxWithLossOHEM"])
def test_probabilities_of_other_losses_are_averaged(kind, members, tmp_path):
    more = f'layer {{ name: "more" type: "{kind}" bottom: "ip2" bottom: "label" top: "more" }}'
    config = digits(60, more)
    found = scored(config, [[path] for path in members])["more"]
    assert found.shape == (len(members) + 1, 1)  # one more than members, for their average
    prob, labels = [], []
    for path in members:
        each, labels = features(path, ["prob", "label"], tmp_path)
        prob.append(each.reshape(len(labels), -1))
    right = np.mean(prob, 0)[np.arange(len(labels)), labels.ravel().astype(int)].astype(np.float64)
    alpha, gamma = {"FocalLoss": (1, 2), "SoftmaxWithLossOHEM": (1, 0)}.get(kind, (0.25, 2))
    assert found[-1, 0] == pytest.approx((-alpha * (1 - right) ** gamma * np.log(right)).mean(), rel=1e-4)


@pytest.mark.parametrize(
    "layer",
    [
        'type: "InfogainLoss" bottom: "y" infogain_loss_param { axis: -2 source: "no file" }',
        'type: "Softmax" softmax_param { axis: -2 }',
        'type: "Accuracy" bottom: "y" accuracy_param { axis: -2 }',
    ],
)
def test_the_axis_of_the_classes_is_asked_alone(layer):
    """The matrix of an InfogainLoss is read once, by the net, not again to learn the axis."""
    shapes = "shape { dim: [2, 5, 3, 4] } shape { dim: [2, 5, 4] }"
    inputs = f'layer {{ name: "in" type: "Input" top: "x" top: "y" input_param {{ {shapes} }} }}'
    config = parse_net(f'{inputs} layer {{ name: "head" bottom: "x" top: "t" {layer} }}', "net")
    assert cut(config, build(config, proto.TEST)).scores == {"x": 2}


def test_the_head_is_in_the_state_of_the_net():
    text = """
        state { level: 2 stage: "scored" }
        layer { name: "x" type: "Input" top: "x" top: "label" input_param { shape { dim: 2 dim: 4 } shape { dim: 2 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss"
          include { min_level: 1 stage: "scored" } }
    """
    config = parse_net(text, "x.prototxt")
    head = cut(config, build(config, proto.TEST)).head_net({"x": (2, 4), "label": (2,)})
    assert [layer.name for layer in build(head, proto.TEST).layers][-1] == "loss"


@pytest.mark.parametrize("files", [1, 2])
def test_a_label_that_no_class_has_is_named_with_its_batch(files, tmp_path):
    """With several files, the layer that fails is in the members' head, which knows no keys."""
    for number in range(4):
        Image.fromarray(np.full((4, 4), 9 * number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text("".join(f"{number}.png {7 if number == 2 else 0}\n" for number in range(4)))
    config = parse_net(
        f"""layer {{ name: "data" type: "ImageData" top: "data" top: "label" image_data_param {{
          source: "{tmp_path}/list.txt" root_folder: "{tmp_path}/" batch_size: 2 is_color: false }} }}
        layer {{ name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param {{ num_output: 3 }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }}""",
        "x.prototxt",
    )
    weights = str(tmp_path / "x.caffemodel")
    write_caffemodel(weights, config.message, {"fc": [np.zeros((3, 16), np.float32), np.zeros(3, np.float32)]})
    with closing(Evaluator(config, World()) if files == 1 else Ensemble(config, [[weights]] * 2, World())) as test:
        with pytest.raises(DataError, match=r"^test batch 1: .*'loss': label 7 .*'2\.png'"):
            test.run(2)


@pytest.mark.parametrize("members", [1, 2])
def test_an_error_of_who_is_told_of_batches_is_passed_on(members, tmp_path):
    """The error names a line of an annotation file, and must not get the place of a layer."""
    config = parse_net(
        """layer { name: "data" type: "Data" top: "data" top: "label" data_param {
             source: "examples/digits/digits_test_lmdb" backend: LMDB batch_size: 60 } }
           layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 10 } }
           layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }""",
        "x.prototxt",
    )
    weights = str(tmp_path / "x.caffemodel")
    write_caffemodel(weights, config.message, {"fc": [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]})

    def refuse(*_: object) -> None:
        raise DataError("no such picture", "boxes.json:7")

    with closing(Evaluator(config, World()) if members == 1 else Ensemble(config, [[weights]] * 2, World())) as test:
        test.on_forward = refuse
        with pytest.raises(DataError, match=r"^boxes\.json:7: no such picture$"):
            test.run(1)


DISTANCES = """
    layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.0625 }
            data_param { source: "examples/digits/digits_test_lmdb" backend: LMDB batch_size: 60 } }
    layer { name: "far" type: "InnerDistance" bottom: "data" top: "far" inner_distance_param { num_output: 10 } }
    layer { name: "accuracy" type: "Accuracy" bottom: "far" bottom: "label" top: "accuracy"
            accuracy_param { min_is_better: true } }
"""


def test_distances_of_which_the_smallest_is_the_best(tmp_path):
    config = parse_net(DISTANCES, "distances")
    data = parse_net(DISTANCES.partition('layer { name: "far"')[0])
    extract_features(data, [], ["data", "label"], [str(tmp_path / "f.npz")], 6)
    with np.load(tmp_path / "f.npz") as stored:
        pixels, labels = stored["data"].reshape(360, -1).astype(np.float64), stored["label"].ravel().astype(int)
    files, far = [], []  # far is (samples, digits) for each member
    for half in (slice(0, 180), slice(180, 360)):  # each member has the means of half of the samples
        means = np.stack([pixels[half][labels[half] == digit].mean(0) for digit in range(10)])
        files.append(str(tmp_path / f"{half.start}.caffemodel"))
        write_caffemodel(files[-1], config.message, {"far": [means.astype(np.float32)]})
        far.append(((pixels[:, np.newaxis] - means) ** 2).sum(-1))
    found = scored(config, [[path] for path in files])["accuracy"]
    for row, distances in enumerate(far):
        assert found[row, 0] == pytest.approx((distances.argmin(1) == labels).mean())
    average = np.mean([np.exp(-each) / np.exp(-each).sum(1, keepdims=True) for each in far], 0)
    assert found[2, 0] == pytest.approx((average.argmax(1) == labels).mean())
    classifier = Classifier(config, [files[0]], Preprocessing())
    right = 0
    for row, label in enumerate(labels):
        picture = np.rint(pixels[row].reshape(8, 8) * 16).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / "digit.png")
        right += classifier.scores(str(tmp_path / "digit.png")).argmax() == label
    assert right / 360 == pytest.approx(found[0, 0])


def test_a_largest_and_a_smallest_score_as_the_best():
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "far" bottom: "label" top: "loss" }'
    with pytest.raises(ConfigError, match=r"'loss' .*: takes the largest score of 'far' .* 'accuracy' the smallest;"):
        scored(parse_net(DISTANCES + loss, "distances"), [[]])


def test_the_average_of_tiny_probabilities():
    scores = np.array([[0, -200, -300.0]], np.float32), np.array([[0, -210, -290.0]], np.float32)
    expected = [np.log(np.mean(np.exp(np.array(scores, np.longdouble)), 0))]
    np.testing.assert_allclose(log_mean(scores, 1)[np.newaxis], expected, rtol=1e-6)


# Views


ANY_SIZE = """
    layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
            convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "msra" } } }
    layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
    layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
    layer { name: "ip2" type: "InnerProduct" bottom: "pool" top: "ip2"
            inner_product_param { num_output: 10 weight_filler { type: "msra" } } }
"""
SCORES = """
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
    layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" }
"""


def any_size(transform: str):
    """Returns a net that takes digits of any size."""
    data = (
        f'layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ scale: 0.0625 {transform} }}'
        'data_param { source: "examples/digits/digits_test_lmdb" backend: LMDB batch_size: 100 } }'
    )
    return parse_net(data + ANY_SIZE + SCORES, "any_size")


@pytest.fixture
def random_members(tmp_path):
    """Writes two nets of random weights. Returns their paths, and for each a function from pictures to
    probabilities."""
    paths, nets = [], []
    for seed in (1, 2):
        net = Net(any_size_on(6), proto.TEST, NetOptions(seed=seed))
        paths.append(str(tmp_path / f"random{seed}.caffemodel"))
        write_caffemodel(paths[-1], net.message, net.weights_by_layer())
        nets.append(net)

    def probabilities(net: Net, pictures: np.ndarray) -> np.ndarray:
        if net.inputs[0].shape != pictures.shape:
            net = Net(any_size_on(pictures.shape[2]), proto.TEST, share=net)
        net.feed(net.inputs[0], pictures)
        return net.forward()["prob"].astype(np.float64)

    return paths, [partial(probabilities, net) for net in nets]


def any_size_on(size: int):
    """Returns the net for an input of all 360 digits at one size."""
    shape = f"shape {{ dim: 360 dim: 1 dim: {size} dim: {size} }}"
    data = f'layer {{ name: "data" type: "Input" top: "data" input_param {{ {shape} }} }}'
    return parse_net(data + ANY_SIZE + 'layer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" }', "any_size")


CORNERS = [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("crops", "flip", "places", "mirrored"),
    [(1, True, [(1, 1)], True), (5, False, CORNERS, False), (10, False, CORNERS, True), (5, True, CORNERS, True)],
)
def test_flip_and_crops_are_numpys(crops, flip, places, mirrored, random_members, tmp_path):
    paths, nets = random_members
    pictures, labels = features(paths[0], ["data", "label"], tmp_path, any_size("").with_message(whole_batches()))
    views = [pictures[:, :, top : top + 6, left : left + 6] for top, left in places]
    views += [view[..., ::-1] for view in views] * mirrored
    expected = [np.mean([net(view) for view in views], 0) for net in nets]
    config = any_size("crop_size: 6")
    found = scored(config, [[path] for path in paths], Views(config, crops, flip))
    for row, probabilities in enumerate([*expected, np.mean(expected, 0)]):
        loss, accuracy, _ = figures(probabilities, labels)
        assert found["loss"][row, 0] == pytest.approx(loss, abs=1e-6)
        assert found["accuracy"][row, 0] == pytest.approx(accuracy, abs=1e-6)
    alone = scored(config, [paths[:1]], Views(config, crops, flip))
    assert alone["loss"].tolist() == found["loss"][0].tolist()


def whole_batches():
    """Returns the net with batches of 40, which divide the 360 samples."""
    message = any_size("").message
    message.layer[0].data_param.batch_size = 40
    return message


def test_a_larger_size_for_a_net_that_takes_any(random_members, tmp_path, capsys):
    paths, nets = random_members
    pictures, labels = features(paths[0], ["data", "label"], tmp_path, any_size("").with_message(whole_batches()))
    model = tmp_path / "net.prototxt"
    model.write_text(str(any_size("crop_size: 6").message))
    arguments = ["test", "--model", str(model), "--weights", ",".join(paths), "--ensemble", "--json", "-"]
    assert main([*arguments, "--set", "layer[data].transform_param.crop_size=8"]) == 0
    loss, accuracy, _ = figures(np.mean([net(pictures) for net in nets], 0), labels)
    found = json.loads(capsys.readouterr().out)["average"]
    assert found == {"loss": [pytest.approx(loss, abs=1e-6)], "accuracy": [pytest.approx(accuracy, abs=1e-6)]}


# What a user meets


def test_the_table_and_caffes_lines(members, capsys):
    arguments = ["test", "--model", "nets/digits.prototxt", "--ensemble", "--weights", ",".join(members)]
    assert main(arguments) == 0
    lines = [line.partition("] ")[2].split() for line in capsys.readouterr().err.splitlines()]
    assert ["weights", *sorted(NAMES)] in lines
    rows = {words[0]: words[1:] for words in lines if words and words[0] in members}
    assert len(rows) == MEMBERS and all(len(row) == 3 for row in rows.values())
    (average,) = (words for words in lines if words[:3] == ["average", "of", str(MEMBERS)])
    assert ["accuracy", "=", average[3]] in lines
    assert not any(words[:1] == ["Batch"] for words in lines)


def test_files_that_take_each_others_place_are_named(members, tmp_path, caplog):
    halves = [str(tmp_path / f"half{i}.caffemodel") for i in range(2)]
    blobs, message = read_caffemodel(members[0]), read_net("nets/digits.prototxt").message
    for path, layers in zip(halves, (["conv1", "conv2"], ["ip1", "ip2"])):
        write_caffemodel(path, message, {layer: blobs[layer] for layer in layers})
    results = []
    for paths in (members[:1], halves):  # the halves complement each other
        with closing(Evaluator(digits(), World())) as test:
            load(test.net, paths)
            results.append(test.run())
    assert results[0] == results[1] and not caplog.records
    load(test.net, [members[0], members[1], halves[0]])
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{members[1]} takes the place of {members[0]} in 4 layers: conv1, conv2, ip1, ip2",
        f"{halves[0]} takes the place of {members[1]} in 2 layers: conv1, conv2",
    ]
    caplog.clear()
    with closing(Evaluator(digits(), World())) as test:
        load(test.net, [halves[1]])
    assert [record.getMessage() for record in caplog.records] == [
        f"Not in {halves[1]}, so with initial values: conv1, conv2"
    ]


def test_layers_without_parameters_of_their_own_are_in_no_file(tmp_path, caplog):
    """Two layers share parameters, as in MNIST's siamese net. In HDF5, Caffe writes those of the first only."""
    pytest.importorskip("h5py")
    shared = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 2 }'
    config = parse_net(
        f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" {shared} }}
        layer {{ name: "ip_p" type: "InnerProduct" bottom: "x" top: "ip_p" {shared} }}""",
        "net",
    )
    paths = [str(tmp_path / name) for name in ("one.h5", "two.h5", "other.h5")]
    blobs = [np.ones((2, 3), np.float32), np.zeros(2, np.float32)]
    for path in paths[:2]:
        write_caffemodel(path, config.message, {"ip": blobs})
    write_caffemodel(paths[2], config.message, {})
    net = Net(config, proto.TEST)
    load(net, paths[:1])
    _load_member(net, paths[:1], alone=False)
    assert not caplog.records
    load(net, paths[:2])
    (record,) = caplog.records
    assert record.getMessage() == f"{paths[1]} takes the place of {paths[0]} in 1 layers: ip"
    with pytest.raises(WeightsError, match="none of its layers is one of the net's, which has ip:"):
        load(net, paths[2:])
    Averaged(config, average_files(paths[:2]), "the average", World(), NetOptions())


def test_weights_of_another_net_are_no_result(members, tmp_path):
    path, blobs = str(tmp_path / "other.caffemodel"), read_caffemodel(members[0])
    net = read_net("nets/digits.prototxt").message
    next(layer for layer in net.layer if layer.name == "conv1").name = "other"
    write_caffemodel(path, net, {"other": blobs["conv1"]})
    with closing(Evaluator(digits(), World())) as test, pytest.raises(WeightsError) as error:
        load(test.net, [path])
    assert "other.caffemodel: none of its layers is one of the net's, which has conv1, conv2, ip1, ip2" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda files, folder: files[:1], "--ensemble: expected two files or more in --weights, got 1"),
        (lambda files, folder: [files[0], str(folder / "none")], "none: cannot be read: No such file or directory"),
        (lambda files, folder: [files[0], other_width(files[1], folder)], "layer 'ip2', blob 0: the file has 7 x 128"),
        (lambda files, folder: [files[0], without(files[1], folder)], "lacks layers of the net, conv2; every member"),
    ],
    ids=["one", "missing", "shapes", "layers"],
)
def test_bad_members_are_one_line(change, expected, members, tmp_path, capsys):
    weights = ",".join(change(members, tmp_path))
    assert main(["test", "--model", "nets/digits.prototxt", "--ensemble", "--weights", weights]) == 1
    (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("I"))
    assert expected in line


def other_width(path: str, folder: Path) -> str:
    """Copies weights with fewer outputs in ip2; returns the copy's path."""
    return changed(path, folder, lambda blobs: {**blobs, "ip2": [blob[:7] for blob in blobs["ip2"]]})


def without(path: str, folder: Path) -> str:
    """Copies weights without those of conv2; returns the copy's path."""
    return changed(path, folder, lambda blobs: {name: blobs[name] for name in blobs if name != "conv2"})


def changed(path, folder, change) -> str:
    target = str(folder / "changed.caffemodel")
    write_caffemodel(target, read_net("nets/digits.prototxt").message, change(read_caffemodel(path)))
    return target


def test_nets_that_cannot_be_averaged(random_members):
    paths, _ = random_members
    regression = parse_net(
        'layer { name: "x" type: "Input" top: "x" top: "y" input_param { shape { dim: 4 dim: 2 } } }'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "y" top: "loss" }',
        "x.prototxt",
    )
    with pytest.raises(ConfigError, match="the net has no probabilities to average"):
        Ensemble(regression, [[], []], World())
    with pytest.raises(ConfigError, match="no data layer gives pictures"):
        Views(regression, flip=True)
    with pytest.raises(ConfigError, match="any_size: layer 'data': expected a crop_size, of which to take 10"):
        Views(any_size(""), 10)
    large = any_size("crop_size: 9")
    with pytest.raises(ConfigError, match="pictures of 1 x 8 x 8 are smaller than the crop of 9 x 9"):
        Ensemble(large, [[path] for path in paths], World(), views=Views(large, 5))


def test_views_of_a_net_with_an_answer_for_each_pixel():
    """If a view moves a picture, its answers are for other pixels, so they cannot be averaged."""
    text = (
        str(any_size("crop_size: 6").message).partition('layer {\n  name: "loss"')[0]
        + """
        layer { name: "mask" type: "DummyData" top: "mask"
          dummy_data_param { shape { dim: 100 dim: 1 dim: 4 dim: 4 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "conv" bottom: "mask" top: "loss" }"""
    )
    config = parse_net(text, "pixels")
    with pytest.raises(ConfigError, match="average one answer for each picture; 'conv' has one for each pixel"):
        Ensemble(config, [[]], World(), views=Views(config, flip=True))
