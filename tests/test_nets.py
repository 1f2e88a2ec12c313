"""The nets, solvers and data that come with the repository."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import config, proto
from engine.cli import main
from engine.config.phases import kept
from engine.examine.check import check_file
from tests.shared import SHARED, needs_shared
from tests.solver.harness import make_solver

ROOT = Path(__file__).resolve().parent.parent
SOLVERS = sorted(ROOT.glob("solvers/*.prototxt"))
# Learnable parameters, with auxiliary classifiers. They are those of Caffe's AlexNet, VGG-16 and GoogLeNet, of Intel's
# Inception-v2, of torchvision's and timm's ResNets, Inception-v3, Inception-ResNet-v2 and DenseNet-121, and of the
# ResNets for CIFAR-10 whose shortcuts have none (He et al., 2015, table 6: 0.27 and 0.85 million).
PARAMETERS = {
    "alexnet": 60_965_224,
    "vgg16": 138_357_544,
    "googlenet": 13_378_280,
    "inception_v2": 16_075_832,
    "inception_v3": 27_161_264,
    "inception_resnet_v2": 55_843_464,
    "densenet121": 7_978_856,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "wide_resnet50": 68_883_240,
    "resnet20": 269_722,
    "resnet56": 853_018,
}
# Published multiply-adds of a forward pass, in 10^9 per image.
MULTIPLY_ADDS = {
    "alexnet": 0.72,
    "vgg16": 15.5,
    "googlenet": 1.59,
    "inception_v2": 2.03,
    "inception_v3": 5.72,
    "inception_resnet_v2": 13.2,
    "densenet121": 2.83,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "wide_resnet50": 11.40,
    "resnet20": 0.0408,
    "resnet56": 0.1255,
}
GLOBAL_BATCHES = {
    **dict.fromkeys(["alexnet", "vgg16", "densenet121"], 256),
    "googlenet": 32,
    **dict.fromkeys(["inception_v3", "inception_resnet_v2"], 2048),
    **dict.fromkeys(["resnet50_448nodes", "resnet50_448nodes_collapse"], 14336),
}
CIFAR = {"resnet20": 20, "resnet56": 56}  # depths of nets that one generator makes
TWINS = {
    "alexnet": "bvlc/models/bvlc_alexnet/train_val.prototxt",
    "googlenet": "bvlc/models/bvlc_googlenet/train_val.prototxt",
    "vgg16": "intel/models/default_vgg_16/train_val.prototxt",
    "inception_v2": "intel/models/default_googlenet_v2/train_val.prototxt",
}


def layers(solver, phase):
    """Yields the layers of a solver's net that a phase keeps, as far as `phase`, `stage` and `not_stage` decide."""
    stages = set(solver.message.train_state.stage) if phase == proto.TRAIN else set()
    for layer in config.net_of_solver(solver, phase).message.layer:
        rules = [rule for rule in layer.include if not rule.HasField("phase") or rule.phase == phase]
        if not layer.include or any(stages >= set(r.stage) and not stages & set(r.not_stage) for r in rules):
            yield layer


@pytest.mark.parametrize("path", SOLVERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST], ids=["train", "test"])
def test_each_phase_reads_one_source_and_tests_measure_top_1_and_5(path, phase):
    kept = list(layers(config.read_solver(path), phase))
    assert Counter(layer.type for layer in kept)["Data"] == 1
    assert kept[0].data_param.shuffle == (phase == proto.TRAIN)
    top_k = [layer.accuracy_param.top_k for layer in kept if layer.type == "Accuracy"]
    assert top_k == ([1, 5] if phase == proto.TEST else [])


def test_solvers_for_one_global_batch_name_it():
    """The solvers of CIFAR-10 and the digits train on any number of ranks, and name none."""
    told = {path.stem: config.read_solver(path).message for path in SOLVERS}
    assert {name: each.global_batch for name, each in told.items() if each.HasField("global_batch")} == GLOBAL_BATCHES


def test_collapse_trains_without_scale_and_aspect_augmentation():
    kinds = {}
    for name in ("resnet50_448nodes", "resnet50_448nodes_collapse"):
        transform = next(layers(config.read_solver(ROOT / f"solvers/{name}.prototxt"), proto.TRAIN)).transform_param
        kinds[name] = transform.HasField("random_aspect_ratio_param")
    assert kinds == {"resnet50_448nodes": True, "resnet50_448nodes_collapse": False}


# Height over width of the narrowest and the widest crop. The recipes of SURFsara and Intel take 0.75 for each side.
CROPS = {
    **dict.fromkeys(["resnet50", "resnet101", "resnet152", "wide_resnet50", "inception_v3"], (9 / 16, 16 / 9)),
    **dict.fromkeys(["inception_v2", "inception_resnet_v2", "densenet121"], (3 / 4, 4 / 3)),
    # As Caffe's own nets are trained.
    **dict.fromkeys(["alexnet", "vgg16", "googlenet", "resnet20", "resnet56"], (1, 1)),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_crops_are_as_narrow_and_as_wide_as_the_source_says(name):
    """One side is that of a square times the factor, the other that of a square divided by it."""
    transform = config.read_net(ROOT / f"nets/{name}.prototxt").message.layer[0].transform_param
    change = transform.random_aspect_ratio_param.aspect_ratio_change
    assert (change**2, change**-2) == pytest.approx(CROPS[name], rel=1e-3)


def generate(name, *options):
    """Returns what a generator of nets/ prints."""
    generator = ["resnet_cifar.py", "--depth", str(CIFAR[name])] if name in CIFAR else [f"{name}.py"]
    command = [sys.executable, ROOT / "nets" / generator[0], *generator[1:], *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", PARAMETERS)
def test_nets_are_what_their_generators_write(name):
    assert generate(name) == (ROOT / f"nets/{name}.prototxt").read_text()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_work_are_the_published_ones(name):
    (train, test) = check_file(str(ROOT / f"nets/{name}.prototxt")).nets
    for net in (train, test):
        assert sum(layer.parameters for layer in net.layers if layer.type != "BatchNorm") == PARAMETERS[name]
        work = sum(layer.flops for layer in net.layers if layer.type in ("Convolution", "InnerProduct"))
        assert work / 2e9 / net.batch == pytest.approx(MULTIPLY_ADDS[name], rel=0.02)


@needs_shared("zoo")
@pytest.mark.parametrize("name", TWINS)
def test_a_public_net_has_as_many_parameters_and_as_much_work(name):
    """The work may differ by that of biases."""
    (theirs, *_), (ours, *_) = (
        check_file(str(path)).nets for path in (SHARED / "zoo" / TWINS[name], ROOT / f"nets/{name}.prototxt")
    )
    assert (ours.parameters, ours.flops / ours.batch) == (theirs.parameters, pytest.approx(theirs.flops / theirs.batch))


LARGE = {"vgg16", "wide_resnet50", "inception_resnet_v2"}  # the other nets have each kind of layer that these have


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name
        for name in sorted(PARAMETERS.keys() - {"resnet101", "resnet152", "resnet56"})
    ],
)
def test_nets_train(name):
    """The step is on noise. With weights that are hardly trained, each loss is about that of guessing. The nets that
    are left out have more of the same blocks as others."""
    solver = make_solver("max_iter: 1 random_seed: 1", generate(name, "--batch_size", "2", "--data", "synthetic"))
    try:
        before = solver.optimizer.weights.copy()
        assert solver.solve()
        solver.optimizer.wait()
        losses = [float(tensor.get().ravel()[0]) for tensor, _ in solver.net.loss_tensors()]
        assert losses and np.isfinite(losses).all() and min(losses) > 1
        assert np.isfinite(solver.optimizer.weights).all() and (before != solver.optimizer.weights).any()
    finally:
        solver.close()


@pytest.mark.parametrize("depth", [8, 14, 110])
def test_resnets_for_cifar_have_6n_and_2_layers_with_weights(depth):
    command = [sys.executable, ROOT / "nets/resnet_cifar.py", "--depth", str(depth), "--data", "synthetic"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    net = text_format.Parse(text, proto.NetParameter())
    count = Counter(layer.type for layer in net.layer)
    assert count["Convolution"] + count["InnerProduct"] == depth
    assert count["Eltwise"] == (depth - 2) // 2


def test_a_depth_that_is_no_6n_plus_2_is_refused():
    command = [sys.executable, ROOT / "nets/resnet_cifar.py", "--depth", "18"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 2 and "expected 6n + 2 layers, got 18" in found.stderr


@pytest.mark.parametrize("stage", ["", "collapse"])
def test_resnets_for_cifar_pad_and_crop_but_in_a_collapse(stage):
    """The layers are selected as the graph does it; there must be one data layer for each phase and stage."""
    net = config.read_net(ROOT / "nets/resnet20.prototxt").message
    state = proto.NetState(phase=proto.TRAIN, stage=[stage] if stage else [])
    (train,) = [each for each in net.layer if each.type == "Data" and kept(each, state, "")]
    transform = train.transform_param
    assert (transform.pad, transform.crop_size, transform.mirror) == (0 if stage else 4, 32, True)


def test_resnet50_is_he_s_topology():
    net = config.read_net(ROOT / "nets/resnet50.prototxt").message
    count = Counter(layer.type for layer in net.layer)
    assert (count["Convolution"], count["BatchNorm"], count["Scale"], count["Eltwise"]) == (53, 53, 53, 16)
    scales = [layer for layer in net.layer if layer.type == "Scale"]
    last = [layer for layer in scales if layer.name.endswith("branch2c")]
    assert [layer for layer in scales if layer.scale_param.HasField("filler")] == last
    assert all(layer.scale_param.filler.value == 0 for layer in last)
    assert all(param.decay_mult == 0 for layer in scales for param in layer.param)
    strided = {layer.name for layer in net.layer if list(layer.convolution_param.stride) == [2]}
    assert strided == {"conv1"} | {f"res{group}a_branch{part}" for group in (3, 4, 5) for part in ("1", "2b")}


def test_digits_are_small_and_whole():
    files = [file for file in ROOT.glob("examples/digits/digits_*_lmdb/*") if file.name != "lock.mdb"]
    assert [file.name for file in files] == ["data.mdb", "data.mdb"]
    assert sum(file.stat().st_size for file in files) < 1_000_000


@pytest.mark.parametrize("name, last", [("vgg16", "fc8"), ("resnet50", "fc1000"), ("densenet121", "fc")])
def test_nets_for_several_labels_take_all_weights_but_the_last(name, last, tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    (tmp_path / "loss_param.prototxt").write_text("loss_param { positive_weight: [0.5, 0.25, 2] }\n")
    words = [sys.executable, ROOT / "nets/multi_label.py", name, "--data", tmp_path, "--weighted"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def trained(net):
        return [layer for layer in net.layer if layer.type in ("Convolution", "InnerProduct", "BatchNorm", "Scale")]

    mine = text_format.Parse(text, proto.NetParameter())
    theirs = text_format.Parse((ROOT / f"nets/{name}.prototxt").read_text(), proto.NetParameter())
    assert trained(mine)[:-1] == trained(theirs)[:-1]
    assert trained(theirs)[-1].name == last and trained(mine)[-1].name == "scores"
    assert trained(mine)[-1].inner_product_param.num_output == 3 and trained(mine)[-1].param[0].lr_mult == 10
    loss = mine.layer[-1]
    assert loss.type == "SigmoidCrossEntropyLoss" and list(loss.loss_param.positive_weight) == [0.5, 0.25, 2]
    assert [layer.data_param.source.split("/")[-1] for layer in mine.layer[:2]] == ["train_lmdb", "val_lmdb"]


@pytest.mark.parametrize("name, inputs", [("vgg16", 4096), ("resnet50", 2048), ("densenet121", 1024)])
def test_nets_for_14_labels_are_the_published_ones_but_for_the_last_layer(name, inputs, tmp_path):
    (tmp_path / "labels.txt").write_text("".join(f"finding {number}\n" for number in range(14)))
    words = [sys.executable, ROOT / "nets/multi_label.py", name, "--data", tmp_path]
    (tmp_path / "net.prototxt").write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    Image.new("RGB", (32, 32)).save(tmp_path / "x.png")
    (tmp_path / "list.txt").write_text(f"x.png {' '.join('01' * 7)}\n" * 16)
    for part in ("train", "val"):
        names = [str(tmp_path), str(tmp_path / "list.txt"), str(tmp_path / f"{part}_lmdb")]
        assert main(["convert_imageset", "--resize_width", "256", "--resize_height", "256", *names]) == 0
    found = check_file(str(tmp_path / "net.prototxt"))
    assert not found.errors and {phase for net in found.nets for phase in net.phases} == {"TRAIN", "TEST"}
    for net in found.nets:
        scores, loss = net.layers[-2:]
        assert scores.tops == [("scores", (16, 14))] and loss.type == "SigmoidCrossEntropyLoss" and net.has_loss
        parameters = sum(layer.parameters for layer in net.layers if layer.type != "BatchNorm")
        assert parameters == PARAMETERS[name] - (1000 - 14) * (inputs + 1)


def test_nets_for_several_labels_name_the_file_that_is_missing(tmp_path):
    words = [sys.executable, ROOT / "nets/multi_label.py", "vgg16", "--data", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and f"{tmp_path}/labels.txt is not there" in done.stderr
