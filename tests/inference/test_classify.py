"""`engine classify`: what is done to a picture before the net sees it, and how scores are told."""

import numpy as np
import pytest
from PIL import Image

from engine.cli import main
from engine.config import parse_net, read_net
from engine.data.convert_imageset import convert_imageset
from engine.data.mean import write_mean
from engine.errors import ConfigError, DataError
from engine.inference.classify import Classifier, Preprocessing, found_labels, read_labels
from engine.inference.deploy import deploy
from engine.weights import write_caffemodel
from tests.data.pictures import random_pixels
from tests.mpi import REPO

DEPLOY = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 10 dim: 3 dim: 4 dim: 6 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 7 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
# The net as it is trained.
TRAIN = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { crop_h: 4 crop_w: 6 scale: 0.02 mean_value: 100 mirror: true
    resize_param { height: 8 width: 9 } } data_param { source: "not there" batch_size: 5 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 7 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
"""


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(random_pixels(3, 8, 9)).save(path)
    return path


@pytest.fixture
def weights(tmp_path):
    """Writes random weights of DEPLOY; returns their path and the blobs."""
    random = np.random.default_rng(2)
    blobs = [random.normal(0, 0.1, (7, 72)).astype(np.float32), random.normal(0, 1, 7).astype(np.float32)]
    write_caffemodel(tmp_path / "x.caffemodel", parse_net(DEPLOY).message, {"ip": blobs})
    return tmp_path / "x.caffemodel", blobs


def expected(picture, blobs, mean=0.0, scale=1.0):
    """Returns the probabilities for a picture of 8 x 9 pixels by NumPy, from its central crop of 4 x 6 in the order B,
    G, R."""
    pixels = np.asarray(Image.open(picture).convert("RGB"), np.float64)[:, :, ::-1].transpose(2, 0, 1)
    crop = ((pixels - mean) * scale)[:, 2:6, 1:7]
    scores = blobs[0].astype(np.float64) @ crop.ravel() + blobs[1]
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def test_a_deployed_net(picture, weights, tmp_path):
    path, blobs = weights
    config = parse_net(DEPLOY)
    scores = Classifier(config, [path], Preprocessing((8, 9), input_scale=0.02)).scores(str(picture))
    np.testing.assert_allclose(scores, expected(picture, blobs, scale=0.02), rtol=1e-4, atol=1e-6)
    mean = np.random.default_rng(1).uniform(90, 130, (3, 8, 9)).astype(np.float32)
    write_mean(str(tmp_path / "mean"), mean)
    asked = Preprocessing((8, 9), mean_file=str(tmp_path / "mean"), input_scale=0.02)
    scores = Classifier(config, [path], asked).scores(str(picture))
    np.testing.assert_allclose(scores, expected(picture, blobs, mean, 0.02), rtol=1e-4, atol=1e-6)
    # A mean image of another size is reduced to one value for each channel.
    write_mean(str(tmp_path / "mean"), mean[:, :5])
    scores = Classifier(config, [path], asked).scores(str(picture))
    by_channel = mean[:, :5].mean(axis=(1, 2)).reshape(3, 1, 1)
    np.testing.assert_allclose(scores, expected(picture, blobs, by_channel, 0.02), rtol=1e-4, atol=1e-6)


def test_the_net_that_trains_treats_pictures_as_its_data(picture, weights):
    path, blobs = weights
    scores = Classifier(parse_net(TRAIN), [path], Preprocessing()).scores(str(picture))
    np.testing.assert_allclose(scores, expected(picture, blobs, 100, 0.02), rtol=1e-4, atol=1e-6)
    scores = Classifier(parse_net(TRAIN), [path], Preprocessing(mean_value=[1, 2, 3])).scores(str(picture))
    mean = np.array([1, 2, 3]).reshape(3, 1, 1)
    np.testing.assert_allclose(scores, expected(picture, blobs, mean, 0.02), rtol=1e-4, atol=1e-6)


def test_pictures_are_scaled_as_window_data_does(picture, tmp_path):
    """The whole picture is the window, and window_data_param.scale counts."""
    random = np.random.default_rng(2)
    blobs = [random.normal(0, 0.1, (7, 48)).astype(np.float32), random.normal(0, 1, 7).astype(np.float32)]
    write_caffemodel(tmp_path / "x.caffemodel", parse_net(DEPLOY).message, {"ip": blobs})
    text = """layer { name: "data" type: "WindowData" top: "data" top: "label"
      transform_param { crop_size: 4 mean_value: 100 } window_data_param { source: "not there" batch_size: 5 %s } }"""
    rest = TRAIN[TRAIN.index('layer { name: "ip"') :]

    def scores(scale, **asked):
        classifier = Classifier(parse_net(text % scale + rest), [tmp_path / "x.caffemodel"], Preprocessing(**asked))
        return classifier.scores(str(picture))

    wanted = scores("", input_scale=0.02)
    np.testing.assert_allclose(scores("scale: 0.02"), wanted, rtol=1e-6)
    np.testing.assert_allclose(scores("scale: 0.1", input_scale=0.02), wanted, rtol=1e-6)
    assert abs(scores("") - wanted).max() > 1e-3


@pytest.mark.parametrize("mode", ["WARP", "FIT_LARGE_SIZE_AND_PAD"])
def test_a_mean_image_of_the_size_that_resize_param_gives_stays_one(mode, picture, weights, tmp_path):
    path, blobs = weights
    mean = np.random.default_rng(1).uniform(90, 130, (3, 8, 9)).astype(np.float32)
    write_mean(str(tmp_path / "mean"), mean)
    text = TRAIN.replace("width: 9", f"width: 9 resize_mode: {mode}")
    own = text.replace("mean_value: 100", f'mean_file: "{tmp_path}/mean"')
    for config, asked in ((own, Preprocessing()), (text, Preprocessing(mean_file=str(tmp_path / "mean")))):
        scores = Classifier(parse_net(config), [path], asked).scores(str(picture))
        np.testing.assert_allclose(scores, expected(picture, blobs, mean, 0.02), rtol=1e-4, atol=1e-6)
    by_chance = own.replace("width: 9", "width: 9 prob: 0.5").replace(f"resize_mode: {mode}", "")
    scores = Classifier(parse_net(by_chance), [path], Preprocessing()).scores(str(picture))
    by_channel = mean.mean(axis=(1, 2)).reshape(3, 1, 1)
    np.testing.assert_allclose(scores, expected(picture, blobs, by_channel, 0.02), rtol=1e-4, atol=1e-6)


def test_pictures_are_resized_as_image_data_does(weights, tmp_path):
    """They are resized to new_height x new_width and then cropped, not resized to the crop."""
    path, blobs = weights
    Image.fromarray(random_pixels(3, 8, 9)).save(tmp_path / "x.png")
    Image.fromarray(np.kron(random_pixels(3, 8, 9), np.ones((2, 2, 1), np.uint8))).save(tmp_path / "large.png")
    text = TRAIN.replace('type: "Data"', 'type: "ImageData"').replace("resize_param { height: 8 width: 9 }", "")
    text = text.replace('data_param { source: "not there"', 'image_data_param { source: "not there"')
    text = text.replace("batch_size: 5", "batch_size: 5 new_height: 8 new_width: 9")
    wanted = expected(tmp_path / "x.png", blobs, 100, 0.02)
    scores = Classifier(parse_net(text), [path], Preprocessing()).scores(str(tmp_path / "large.png"))
    np.testing.assert_allclose(scores, wanted, rtol=0.2, atol=0.02)  # resizing to a half mixes neighbours
    exact = Classifier(parse_net(text), [path], Preprocessing()).scores(str(tmp_path / "x.png"))
    np.testing.assert_allclose(exact, wanted, rtol=1e-4, atol=1e-6)
    mean = np.random.default_rng(1).uniform(90, 130, (3, 8, 9)).astype(np.float32)
    write_mean(str(tmp_path / "mean"), mean)
    config = parse_net(text.replace("mean_value: 100", f'mean_file: "{tmp_path}/mean"'))
    scores = Classifier(config, [path], Preprocessing()).scores(str(tmp_path / "x.png"))
    np.testing.assert_allclose(scores, expected(tmp_path / "x.png", blobs, mean, 0.02), rtol=1e-4, atol=1e-6)
    asked = Classifier(parse_net(text), [path], Preprocessing((4, 6))).scores(str(tmp_path / "x.png"))
    assert abs(asked - wanted).max() > 1e-3


def test_pictures_are_resized_as_nvidia_s_fields_say(picture, weights, tmp_path):
    """They count in phase TEST, too, unless --images_dim is given."""
    path, blobs = weights
    Image.fromarray(np.kron(random_pixels(3, 8, 9), np.ones((2, 2, 1), np.uint8))).save(tmp_path / "large.png")
    fields = "img_rand_resize_lower: 8 img_rand_resize_upper: 8 interpolation_algo_down: INTER_NEAREST"
    config = parse_net(TRAIN.replace("resize_param { height: 8 width: 9 }", fields))
    scores = Classifier(config, [path], Preprocessing()).scores(str(tmp_path / "large.png"))
    np.testing.assert_allclose(scores, expected(picture, blobs, 100, 0.02), rtol=1e-4, atol=1e-6)
    asked = Preprocessing((8, 9))
    config = parse_net(TRAIN.replace("resize_param { height: 8 width: 9 }", fields.replace("8", "6")))
    scores = Classifier(config, [path], asked).scores(str(picture))
    np.testing.assert_allclose(scores, expected(picture, blobs, 100, 0.02), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "inception_v3", "digits"])
def test_deployed_nets_have_one_output(name):
    net = deploy(read_net(REPO / f"nets/{name}.prototxt"), (1, 3, 224, 224)).message
    read = {bottom for layer in net.layer for bottom in layer.bottom}
    outputs = {top for layer in net.layer for top in layer.top} - read
    assert outputs == {"prob"} and net.layer[0].type == "Input" and net.layer[-1].type == "Softmax"
    assert not any(layer.type == "Accuracy" or layer.type.endswith("Loss") for layer in net.layer)


def test_the_verb(picture, weights, tmp_path, capsys):
    (tmp_path / "net.prototxt").write_text(DEPLOY)
    (tmp_path / "labels").write_text("".join(f"n{i:08d} thing {i}\n" for i in range(7)))
    arguments = ["--model", str(tmp_path / "net.prototxt"), "--weights", str(weights[0]), "--images_dim", "8,9"]
    assert main(["classify", *arguments, "--labels", str(tmp_path / "labels"), "--top", "3", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = expected(picture, weights[1])
    assert lines[0] == f"---------- Prediction for {picture} ----------"
    assert lines[1:] == [f'{scores[i]:.4f} - "n{i:08d} thing {i}"' for i in np.argsort(-scores)[:3]]


@pytest.mark.parametrize("net, dims", [(DEPLOY, "4,5"), (DEPLOY, "3,9"), (TRAIN, "3,6")])
def test_images_dim_below_the_input(net, dims, picture, weights, tmp_path, capsys):
    (tmp_path / "net.prototxt").write_text(net)
    arguments = ["--model", str(tmp_path / "net.prototxt"), "--weights", str(weights[0]), "--images_dim", dims]
    assert main(["classify", *arguments, str(picture)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"engine: --images_dim {dims} is smaller than the net's input, which is cropped from the picture: "
        "expected at least 4,6"
    )


def test_labels_are_found_with_the_data_and_beside_the_net(picture, weights, tmp_path, capsys):
    def names(text):
        (tmp_path / "net.prototxt").write_text(text)
        arguments = ["--model", str(tmp_path / "net.prototxt"), "--weights", str(weights[0]), "--images_dim", "8,9"]
        assert main(["classify", *arguments, "--top", "1", str(picture)]) == 0
        return capsys.readouterr().out.split('"')[1]

    (tmp_path / "x.labels.txt").write_text("".join(f"data {i}\n" for i in range(7)))
    (tmp_path / "labels.txt").write_text("".join(f"net {i}\n" for i in range(7)))
    best_one = int(expected(picture, weights[1]).argmax())
    assert names(DEPLOY) == f"net {best_one}"
    assert names(TRAIN.replace("not there", f"{tmp_path}/x.tar")).startswith("data ")
    for number in range(7):
        (tmp_path / f"pictures/folder {number}").mkdir(parents=True)
        Image.fromarray(random_pixels(number)).save(tmp_path / f"pictures/folder {number}/x.png")
    folders = TRAIN.replace("not there", f"{tmp_path}/pictures")
    assert names(folders) == f"net {best_one}"
    (tmp_path / "labels.txt").write_text("only\none")
    assert names(folders) == f"folder {best_one}"
    listed = TRAIN.replace('type: "Data"', 'type: "ImageData"').replace(" data_param", " image_data_param")
    assert names(listed.replace("not there", f"{tmp_path}/pictures")) == f"folder {best_one}"
    assert names(DEPLOY) == str(best_one)


@pytest.mark.parametrize(
    "written, shards, sources",
    [
        ("x.tar", 2, ["x-{000000..000001}.tar", "x-*.tar", "x-000001.tar"]),
        ("x.tfrecord", 2, ["x-00000[01].tfrecord", "x-000001.tfrecord"]),
        ("x-000001.tar", 0, ["x-000001.tar"]),
        ("x.tar", 0, ["x.tar"]),
        ("x_lmdb", 0, ["x_lmdb", "x_lmdb/", "x_lmdb/data.mdb"]),
    ],
)
def test_labels_that_convert_imageset_wrote_are_found(written, shards, sources, tmp_path):
    for number in range(7):
        (tmp_path / f"pictures/folder {number}").mkdir(parents=True)
        Image.fromarray(random_pixels(number)).save(tmp_path / f"pictures/folder {number}/x.png")
    convert_imageset(str(tmp_path / "pictures"), None, str(tmp_path / written), shards=shards)
    for source in sources:
        net = parse_net(TRAIN.replace("not there", f"{tmp_path}/{source}"))
        assert found_labels(net, 7) == [f"folder {number}" for number in range(7)], source
    for other in ("no-*.tar", "x-202406.tar"):
        assert found_labels(parse_net(TRAIN.replace("not there", f"{tmp_path}/{other}")), 7) == [], other


def test_labels_that_do_not_exclude_each_other_and_scores(picture, weights, tmp_path, capsys):
    """A SigmoidCrossEntropyLoss is replaced by a Sigmoid. A net that ends in neither of these nor a Softmax gives
    scores."""

    def told(text):
        (tmp_path / "net.prototxt").write_text(text)
        arguments = ["--model", str(tmp_path / "net.prototxt"), "--weights", str(weights[0]), "--images_dim", "8,9"]
        assert main(["classify", *arguments, "--top", "7", str(picture)]) == 0
        out, log = capsys.readouterr()
        return [float(line.split()[0]) for line in out.splitlines()[1:]], log

    pixels = np.asarray(Image.open(picture).convert("RGB"), np.float64)[:, :, ::-1].transpose(2, 0, 1)[:, 2:6, 1:7]
    raw = np.sort(weights[1][0].astype(np.float64) @ pixels.ravel() + weights[1][1])[::-1]
    found, log = told(DEPLOY[: DEPLOY.index('layer { name: "prob"')])
    np.testing.assert_allclose(found, raw, atol=1e-3)
    assert "The numbers are scores, no probabilities" in log
    several = TRAIN.replace("SoftmaxWithLoss", "SigmoidCrossEntropyLoss").replace("scale: 0.02 mean_value: 100", "")
    found, log = told(several[: several.index('layer { name: "accuracy"')])
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-raw)), atol=1e-3)
    assert "The numbers are a probability for each label; several labels may be right" in log
    assert "The numbers" not in told(DEPLOY)[1]


def test_the_net_s_own_mean_file_is_not_read_where_another_mean_is_given(picture, weights):
    config = parse_net(
        TRAIN.replace("mean_value: 100", 'mean_file: "not there"').replace("resize_param { height: 8 width: 9 }", "")
    )
    Classifier(config, [weights[0]], Preprocessing(mean_value=[100])).scores(str(picture))
    with pytest.raises(DataError, match="not there"):
        Classifier(config, [weights[0]], Preprocessing())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("text", [DEPLOY, TRAIN], ids=["deployed", "training"])
def test_a_parameter_layer_is_no_source_of_data(text, first, picture, weights, tmp_path):
    path, (weight, bias) = weights
    k = np.random.default_rng(3).normal(0, 30, (1, 3, 4, 6)).astype(np.float32)
    parameter = """layer { name: "k" type: "Parameter" top: "k"
      parameter_param { shape { dim: 1 dim: 3 dim: 4 dim: 6 } } }"""
    added = """layer { name: "added" type: "Eltwise" bottom: "data" bottom: "k" top: "added" }
    layer { name: "ip" """
    text = text.replace('layer { name: "ip" ', (added if first else parameter + added), 1)
    text = (parameter if first else "") + text.replace('bottom: "data" top: "ip"', 'bottom: "added" top: "ip"')
    config = parse_net(text, "net")
    write_caffemodel(path, config.message, {"ip": [weight, bias], "k": [k]})
    scores = Classifier(config, [path], Preprocessing((8, 9), input_scale=0.02, mean_value=[100])).scores(str(picture))
    shifted = weight, bias + weight @ k.ravel()
    np.testing.assert_allclose(scores, expected(picture, shifted, 100, 0.02), rtol=1e-4)


def test_the_input_is_the_one_of_phase_test(weights):
    others = DEPLOY.replace('top: "data"', 'top: "data" include { phase: TRAIN }', 1).replace("dim: 4", "dim: 9", 1)
    text = others.split("layer", 2)
    config = parse_net("layer" + text[1] + DEPLOY, "net")
    assert [layer.type for layer in config.message.layer[:2]] == ["Input", "Input"]
    Classifier(config, [weights[0]], Preprocessing())


def test_a_net_of_two_inputs():
    text = """
        layer { name: "in" type: "Input" top: "data" top: "side"
          input_param { shape { dim: 1 dim: 3 dim: 4 dim: 6 } shape { dim: 1 dim: 3 dim: 4 dim: 6 } } }
        layer { name: "cat" type: "Concat" bottom: "data" bottom: "side" top: "cat" }
        layer { name: "prob" type: "Softmax" bottom: "cat" top: "prob" }"""
    with pytest.raises(ConfigError, match="x: layer 'cat' reads 'side', which classify cannot give"):
        deploy(parse_net(text, "x"), (1, 3, 4, 6))


# Each type of layer that compares scores with labels: its name, the fields that it needs, and the type of layer that
# makes probabilities of its scores.
JUDGES = [
    *((type, "", "Softmax") for type in ("Accuracy", "SoftmaxWithLoss", "SoftmaxWithLossOHEM")),
    *((type, "", "Softmax") for type in ("FocalLoss", "SoftmaxFocalLoss", "SoftmaxWithFocalLoss")),
    ("InfogainLoss", 'infogain_loss_param { source: "H" }', "Softmax"),
    *((type, "", "Sigmoid") for type in ("SigmoidCrossEntropyLoss", "MultiLabelLoss", "MultiLabelAccuracy")),
]


@pytest.mark.parametrize(("type", "more", "probabilities"), JUDGES)
def test_scores_become_the_probabilities_that_their_loss_compares(type, more, probabilities):
    text = TRAIN[: TRAIN.index('layer { name: "loss"')]
    text += f'layer {{ name: "loss" type: "{type}" bottom: "ip" bottom: "label" top: "loss" {more} }}'
    net = deploy(parse_net(text, "x"), (1, 3, 4, 6)).message
    assert [layer.type for layer in net.layer] == ["Input", "InnerProduct", probabilities]


@pytest.mark.parametrize(
    ("type", "more"),
    [
        ("SoftmaxWithLoss", "softmax_param { axis: 2 }"),
        ("InfogainLoss", 'infogain_loss_param { axis: 2 source: "H" }'),
        ("Accuracy", "accuracy_param { axis: 2 }"),
    ],
)
def test_probabilities_are_along_the_axis_of_the_loss(type, more):
    text = TRAIN[: TRAIN.index('layer { name: "loss"')]
    text += f'layer {{ name: "loss" type: "{type}" bottom: "ip" bottom: "label" top: "loss" {more} }}'
    assert deploy(parse_net(text, "x"), (1, 3, 4, 6)).message.layer[-1].softmax_param.axis == 2


def test_a_loss_that_gives_no_probabilities_reads_labels_all_the_same():
    text = TRAIN[: TRAIN.index('layer { name: "loss"')]
    text += 'layer { name: "loss" type: "SmoothL1LossOHEM" bottom: "ip" bottom: "label" top: "loss" }'
    net = deploy(parse_net(text, "x"), (1, 3, 4, 6)).message
    assert [layer.type for layer in net.layer] == ["Input", "InnerProduct"]


def test_what_cannot_be_done(weights, tmp_path):
    (tmp_path / "labels").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match="labels: 3 labels for a net of 7 classes"):
        read_labels(str(tmp_path / "labels"), 7)
    classifier = Classifier(parse_net(DEPLOY), [weights[0]], Preprocessing())
    with pytest.raises(DataError, match=r"missing.png: cannot be read: No such file"):
        classifier.scores(str(tmp_path / "missing.png"))
    (tmp_path / "text.png").write_text("text")
    with pytest.raises(DataError, match=r"text.png: cannot decode 4 bytes as an image"):
        classifier.scores(str(tmp_path / "text.png"))
    two = DEPLOY + 'layer { name: "more" type: "ReLU" bottom: "ip" top: "more" }'
    with pytest.raises(ConfigError, match="expected one output, the scores of the classes; got"):
        Classifier(parse_net(two, "x"), [weights[0]], Preprocessing())
