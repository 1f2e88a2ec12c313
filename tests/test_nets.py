"""The nets, solvers and data that the repository ships."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from engine import config, proto

ROOT = Path(__file__).resolve().parent.parent
SOLVERS = sorted(ROOT.glob("solvers/*.prototxt"))


def layers(solver, phase):
    """The layers of a solver's net that a phase keeps, as far as `phase`, `stage` and `not_stage` decide."""
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


def test_collapse_trains_without_scale_and_aspect_augmentation():
    kinds = {}
    for name in ("resnet50_448nodes", "resnet50_448nodes_collapse"):
        transform = next(layers(config.read_solver(ROOT / f"solvers/{name}.prototxt"), proto.TRAIN)).transform_param
        kinds[name] = transform.HasField("random_aspect_ratio_param")
    assert kinds == {"resnet50_448nodes": True, "resnet50_448nodes_collapse": False}


def test_resnet50_is_what_its_generator_writes():
    written = subprocess.run([sys.executable, ROOT / "nets/resnet.py"], capture_output=True, text=True, check=True)
    assert written.stdout == (ROOT / "nets/resnet50.prototxt").read_text()


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
