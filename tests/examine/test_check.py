"""`engine check`: reports and errors, without data."""

import json
import math
import re
from pathlib import Path

import pytest

from engine.cli import main
from engine.config import parse_net
from engine.config.idle_fields import params_of_other_types
from engine.data.registry import find_reader
from engine.errors import ConfigError
from engine.examine.check import check_file, files_below
from engine.examine.check_run import check_and_run
from engine.examine.check_text import all_errors, draw_schedules, to_json, to_text
from engine.graph.build import build
from engine.graph.costs import layer_costs, memory
from engine.layers.data import Data
from engine.layers.registry import layer_types
from engine.net import prepare
from tests.shared import SHARED, needs_shared

REPO = Path(__file__).resolve().parents[2]

# The net has two branches, one of which works in place, and a data source that does not exist.
NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { crop_size: 4 mean_value: 1 mean_value: 2 mean_value: 3 }
  data_param { source: "/nowhere/lmdb" backend: LMDB batch_size: 2 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 pad: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 7 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" include { phase: TEST } }
"""


@pytest.fixture
def net_file(tmp_path):
    path = tmp_path / "small.prototxt"
    path.write_text(NET)
    return path


@pytest.mark.parametrize("text", ["", 'name: "x"', "# nothing yet"])
@pytest.mark.parametrize("verb", [["check"], ["summarize"], ["draw_net"], ["time", "--model"]])
def test_a_net_without_layers_is_an_error(verb, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.prototxt").write_text(text)
    assert main([*verb, "x.prototxt", *(["x.dot"] if verb == ["draw_net"] else [])]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "engine: x.prototxt: the net has no layers"
    assert not Path("x.dot").exists()


def test_costs(net_file):
    report = check_file(str(net_file))
    assert report.errors == [] and report.kind == "net"
    train, test = report.nets
    assert (train.phases, test.phases) == (["TRAIN"], ["TEST"])
    by_name = {layer.name: layer for layer in train.layers}
    assert list(by_name) == ["data", "conv", "relu", "ip", "loss"]
    assert by_name["data"].tops == [("data", (2, 3, 4, 4)), ("label", (2,))]
    assert by_name["conv"].parameters == 5 * 3 * 9 + 5
    assert by_name["conv"].flops == 2 * 5 * 16 * (2 * 27 + 1)
    assert by_name["relu"].bytes == 0  # it works in place
    assert train.parameters == 5 * 27 + 5 + 80 * 7 + 7
    assert any("/nowhere/lmdb" in note and "3 x 4 x 4" in note for note in report.absent_files)
    text = to_text(report)
    assert re.search(r"^conv +Convolution +2 x 5 x 4 x 4 +140 ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("ranks", "comm", "sets", "told"),
    [
        (1, "shard_updates: true", 3, "kB the optimizer's state,"),
        (4, "", 3, "kB the optimizer's state,"),
        (4, "shard_updates: true", 1.5, "the optimizer's state, 1/4 of it (shard_updates),"),
        (4, "shard_updates: true compression: BF16", 1.75, "1/4 of it (shard_updates),"),
    ],
)
def test_memory_of_a_rank(tmp_path, net_file, ranks, comm, sets, told):
    """Adam has two moments. If updates are sharded, a rank has a share of them, and of the float32 weights if those
    travel in another type. The average of weights is whole."""
    solver = tmp_path / "solver.prototxt"
    rest = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 5 type: "Adam" momentum: 0.9 ema: 0.9'
    solver.write_text(f'net: "{net_file}" {rest} comm_param {{ {comm} }}')
    report = check_file(str(solver), ranks=ranks)
    assert report.errors == [] and report.optimizer_bytes == int(sets * report.nets[0].memory.gradients)
    assert told in to_text(report) and to_json(report)["optimizer_bytes"] == report.optimizer_bytes


def test_memory_estimate(net_file):
    graph = build(parse_net(NET), 0, shapes_of=lambda message, where: [(2, 3, 4, 4), (2,)])
    assert len(layer_costs(graph)) == 5
    used = memory(prepare(graph, frozenset()))
    parameters = 5 * 27 + 5 + 80 * 7 + 7
    values = 2 * 48 + 2 + 160 + 14 + 1  # data, label, conv together with its relu, ip, loss
    gradients = 160 + 14
    assert used.parameters == used.gradients == 4 * parameters
    data = 2 * 48 + 2
    assert used.activations == 4 * (values - data + gradients)
    assert 4 * (values - data - 1) <= used.planned <= used.activations + 64 * 8
    assert used.ring == 5 * 4 * data  # four batches ahead of the one in use


def test_json_is_plain(net_file):
    found = json.loads(json.dumps(to_json(check_file(str(net_file)))))
    assert found["kind"] == "net" and found["errors"] == []
    layers = found["nets"][0]["layers"]
    assert layers[1]["tops"] == [{"name": "conv", "shape": [2, 5, 4, 4]}]
    assert found["nets"][0]["flops"] == sum(layer["flops"] for layer in layers)


def test_a_phase_that_nothing_feeds_is_left_out(tmp_path):
    path = tmp_path / "val.prototxt"
    path.write_text(NET.replace('type: "Data"', 'type: "Data" include { phase: TEST }'))
    report = check_file(str(path))
    assert report.errors == [] and [net.phases for net in report.nets] == [["TEST"]]
    assert any("TRAIN" in note for note in report.notes)


def test_the_same_net_in_both_phases_is_shown_once(tmp_path):
    path = tmp_path / "deploy.prototxt"
    path.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 }'
        " param { lr_mult: 0 } param { lr_mult: 0 } }"
    )
    report = check_file(str(path))
    assert report.errors == [] and [net.phases for net in report.nets] == [["TRAIN", "TEST"]]


def test_all_errors_are_found(tmp_path):
    net = tmp_path / "net.prototxt"
    net.write_text(
        NET.replace('"ReLU"', '"RelU"').replace('bottom: "ip" bottom: "label"', 'bottom: "ipp" bottom: "label"')
    )
    errors = check_file(str(net)).errors
    assert any("did you mean 'ReLU'" in error and "net.prototxt:8:1" in error for error in errors)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net}" lr_policy: "stepp" momentum: 1.5 max_iter: 10 base_lr: 1 snapshot_prefix: "x"')
    report = check_file(str(solver))
    assert any("stepp" in error and "did you mean 'step'" in error for error in report.errors)
    assert any("momentum: expected" in error for error in report.errors)
    assert set(errors) <= set(report.errors)
    assert len(list(all_errors([report, report]))) == len(report.errors)


def test_files_that_cannot_be_read(tmp_path):
    assert check_file(str(tmp_path / "none.prototxt")).errors
    broken = tmp_path / "broken.prototxt"
    broken.write_text("layer { name: ")
    assert check_file(str(broken)).errors


def test_a_source_that_is_damaged_is_an_error(tmp_path):
    lmdb = tmp_path / "lmdb"
    lmdb.mkdir()
    (lmdb / "data.mdb").write_bytes(b"nonsense" * 1000)
    path = tmp_path / "net.prototxt"
    path.write_text(NET.replace("/nowhere/lmdb", str(lmdb)))
    errors = check_file(str(path)).errors
    assert len(errors) == 1 and str(lmdb) in errors[0] and "net.prototxt:3:1" in errors[0]


@pytest.mark.parametrize("solver", sorted((REPO / "solvers").glob("*.prototxt")), ids=lambda path: path.stem)
def test_our_own_solvers(solver, monkeypatch):
    monkeypatch.chdir(REPO)
    report = check_file(str(solver))
    assert report.errors == []
    assert report.schedule[0][0] == 0 and all(math.isfinite(rate) for _, rate in report.schedule)


@needs_shared("zoo")
@pytest.mark.parametrize("name", ["solver", "solver_collapse", "train_val", "train_val_noaug"])
def test_the_papers_own_files(name):
    report = check_file(str(SHARED / "zoo/surfsara/models/multinode/resnet50_448nodes" / f"{name}.prototxt"))
    assert report.errors == []
    learnable = report.nets[0].memory.gradients // 4
    assert learnable == 25_557_032 + 64  # those of ResNet-50, and a bias in conv1
    assert report.nets[0].flops / report.nets[0].batch == pytest.approx(8.2e9, rel=0.05)


def test_deploy_nets_need_not_build_for_training(tmp_path):
    path = tmp_path / "deploy.prototxt"
    path.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
        'layer { name: "flat" type: "Flatten" bottom: "x" top: "y" include { phase: TEST } }\n'
        'layer { name: "prob" type: "Softmax" bottom: "y" top: "prob" }'
    )
    report = check_file(str(path))
    assert report.errors == [] and [net.phases for net in report.nets] == [["TEST"]]
    assert any("the net is for TEST only" in note and "bottom 'y'" in note for note in report.notes)
    path.write_text(path.read_text().replace("phase: TEST", "phase: TRAIN"))
    assert check_file(str(path)).errors


def test_solvers_may_leave_max_iter_to_the_program_that_trains(net_file, tmp_path):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}" base_lr: 1 lr_policy: "fixed"')
    report = check_file(str(solver))
    assert report.errors == [] and any("max_iter is missing" in note for note in report.notes)


def test_folders(net_file, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/net.prototxt").write_text(NET)
    assert files_below([str(tmp_path), "x"]) == [str(tmp_path / "a/net.prototxt"), str(net_file), "x"]
    assert files_below([f"{net_file}, {net_file}", "x,y"]) == [str(net_file), str(net_file), "x,y"]
    with pytest.raises(ConfigError, match=r"no .prototxt file"):
        files_below([str(tmp_path / "a"), str(Path(tmp_path / "b").mkdir() or tmp_path / "b")])


EPOCHS = """
base_lr: 0.1 lr_policy: "poly" power: 1 max_epoch: 90 warmup_epoch: 5 lr_scaling { cap: 6.4 }
snapshot_after_train: false
"""


def test_the_run_on_so_many_ranks(net_file, tmp_path):
    """The data are absent, so the size of an epoch has to be given."""
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}" {EPOCHS}')
    report = check_file(str(solver), ranks=896)
    assert report.errors == [] and report.outline is None and report.batch == "1792 = 896 ranks x 2 x iter_size 1"
    assert any("2:41: max_epoch: the size of the data set is not known here" in note for note in report.notes)
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw_schedules([report], str(tmp_path / "x.svg"))
    report = check_file(str(solver), ["epoch_size=1281167"], ranks=896)
    text = to_text(report)
    assert "64344 iterations (90 epochs), warm-up of 3574 iterations (4.999 epochs) from 0.1, peak rate" in text
    assert "base_lr 0.1 x 1792 / 256 = 0.7" in text
    outline = to_json(report)["outline"]
    assert (outline["global_batch"], outline["iterations"], outline["warmup_iterations"]) == (1792, 64344, 3574)
    assert outline["peak_rate"] == pytest.approx(0.7, rel=1e-3)
    json.dumps(to_json(report))


def test_paths_that_name_the_ranks(tmp_path):
    text = (REPO / "nets/digits.prototxt").read_text().replace("examples/digits/digits_train", f"{tmp_path}/%*_train")
    (tmp_path / "net_4.prototxt").write_text(text)
    (tmp_path / "4_train_lmdb").symlink_to(REPO / "examples/digits/digits_train_lmdb")
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net_%*.prototxt" base_lr: 1 lr_policy: "fixed" max_epoch: 4')
    assert "net_1.prototxt" in check_file(str(solver)).absent_files[0]
    report = check_file(str(solver), ranks=4)
    assert (report.errors, report.absent_files, report.outline.calendar.size) == ([], [], 1437)


@pytest.mark.parametrize(
    ("ranks", "more", "told"),
    [
        (4, "layer[ip].multinode.model_parts=3", "model_parts 3 does not divide the 4 ranks"),
        (3, "layer[ip].multinode.model_parts=3", ""),
        (1, "layer[ip].multinode.model_parts=3", ""),
        (4, "comm_param.elastic.min_ranks=5", "solver.prototxt: comm_param.elastic.min_ranks: expected as many ranks"),
        (5, "comm_param.elastic.min_ranks=5", ""),
        (1, "comm_param.elastic.min_ranks=5", ""),
    ],
)
def test_what_so_many_ranks_break(net_file, tmp_path, ranks, more, told):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}" base_lr: 1 lr_policy: "fixed" max_iter: 4')
    report = check_file(str(solver), [more], ranks=ranks)
    assert len(report.errors) == bool(told) and told in "".join(report.errors), report.errors
    assert len(report.nets) == 1  # whatever else is wrong would be found, too


def test_test_nets_of_a_solver_take_no_gradients(net_file, tmp_path):
    """force_backward is meant for programs that look into a net, so it does not count in a test net."""
    net_file.write_text("force_backward: true" + NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'net: "{net_file}" base_lr: 1 lr_policy: "fixed" max_iter: 4 test_iter: 1 test_interval: 2 momentum: 0.9'
    )
    train, test = check_file(str(solver)).nets
    assert train.memory.gradients == train.memory.parameters and test.phases == ["TEST"]
    assert test.memory.parameters == train.memory.parameters and test.memory.gradients == 0
    assert all(net.memory.gradients for net in check_file(str(net_file)).nets)


def test_the_size_of_data_that_is_here(tmp_path):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{REPO}/nets/digits.prototxt" {EPOCHS}')
    report = check_file(str(solver), ["max_epoch=3", "warmup_epoch=1"])
    assert report.outline.calendar.size == 1437 and report.outline.param.max_iter == 3 * 1437 // 32


def test_what_contradicts_is_told(net_file, tmp_path):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}" {EPOCHS.replace("warmup_epoch: 5", "")}')
    report = check_file(str(solver), ["epoch_size=1281167"], ranks=896)
    assert any("without a warm-up" in note for note in report.notes) and report.errors == []
    report = check_file(str(solver), ["epoch_size=1281167", "lr_policy=exp", "gamma=1e30"], ranks=896)
    assert (
        len(report.errors) == 1 and "solver.prototxt:2:14: lr_policy 'exp' gives no learning rate" in report.errors[0]
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "iter_size 1; --set 'layer[data@TRAIN].data_param.batch_size=4' or --set iter_size=2 or 8 ranks"),
        (["layer[data].data_param.batch_size=4"], ""),
        (["iter_size=2"], ""),
        (["global_batch=24"], "=6' or --set iter_size=3 or 12 ranks would make it so"),
        (["global_batch=17"], "global_batch of 17, and this run's is 8 = 4 ranks x 2 x iter_size 1"),
        (["iter_size=3"], "is 24 = 4 ranks x 2 x iter_size 3; --set iter_size=2 would make it so"),
        (["iter_size=4"], "batch_size=1' or --set iter_size=2 or 2 ranks would make it so"),
        (["global_batch=0"], "2:1: global_batch: expected 1 or more, got 0"),
    ],
)
def test_another_global_batch_than_is_meant_is_told(net_file, tmp_path, more, told):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}"\nglobal_batch: 16 base_lr: 1 lr_policy: "fixed" max_iter: 9')
    report = check_file(str(solver), more, ranks=4)
    found = [each for each in (*report.errors, *report.notes) if "global_batch" in each]
    assert len(found) == bool(told) and told in "".join(found), found
    assert all(each.startswith(f"{solver}:2:1: ") for each in found)


@pytest.mark.parametrize("more", [["max_iter=9"], ["max_iter=9", "iter_size=2"], ["max_epoch=3", "iter_size=2"]])
def test_states_that_micro_batches_share_are_told(tmp_path, more):
    solver = tmp_path / "solver.prototxt"
    solver.write_text("""base_lr: 1 lr_policy: "fixed" net_param {
        layer { name: "x" type: "Input" top: "x" top: "cont"
          input_param { shape { dim: 3 dim: 2 dim: 5 } shape { dim: 3 dim: 2 } } }
        layer { name: "on" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param { num_output: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "y" top: "ip" inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 } }""")
    report = check_file(str(solver), more)
    told = f"{solver}: Layers on carry their states from each micro-batch of an iteration to the next (iter_size). "
    assert [note.startswith(told) for note in report.notes if "carry" in note] == [True] * (len(more) - 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_python_layers_whose_data_ranks_do_not_share_are_told(tmp_path, ranks):
    """They are told of even if their code is not run."""
    reader = """layer { name: "%s" type: "Python" top: "x" python_param { module: "none" layer: "R" }
        include { phase: %s } }"""
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f"""base_lr: 1 lr_policy: "fixed" max_iter: 9 net_param {{
        {reader % ("data", "TRAIN")} {reader % ("test", "TEST")}
        layer {{ name: "on" type: "Python" bottom: "x" top: "y" python_param {{ module: "none" layer: "C" }} }} }}""")
    report = check_file(str(solver), ranks=ranks)
    told = f"{solver}: Layer 'data' (Python) reads data by itself, on each of 2 ranks: unless its code gives each rank "
    assert [note.startswith(told) for note in report.notes if "by itself" in note] == [True] * (ranks - 1)


def test_a_batch_that_only_code_knows_is_not_made_up(tmp_path):
    """Neither the batch nor the iterations of epochs are told: with a batch of one there would be too many of them."""
    solver = tmp_path / "solver.prototxt"
    solver.write_text("""base_lr: 1 lr_policy: "step" gamma: 0.5 stepsize: 4 max_iter: 8 net_param {
        layer { name: "data" type: "Python" top: "x" python_param { module: "none" layer: "R" } } }""")
    report = check_file(str(solver))
    assert report.errors == [] and report.batch == "" and report.outline is None
    assert dict(report.schedule)[0] == 1 and dict(report.schedule)[7] == 0.5
    report = check_file(str(solver), ["max_iter=", "max_epoch=2", "epoch_size=64"])
    assert report.errors == [] and report.batch == "" and report.outline is None and report.schedule == []
    assert any("max_epoch: the samples of a batch are not known here" in note for note in report.notes)


def test_the_curves_of_two_solvers(net_file, tmp_path):
    pytest.importorskip("matplotlib")
    reports = []
    for name in "ab":
        solver = tmp_path / f"{name}.prototxt"
        solver.write_text(f'net: "{net_file}" {EPOCHS} weight_decay: 0.1')
        reports.append(check_file(str(solver), ["epoch_size=1281167"]))
    draw_schedules(reports, str(tmp_path / "curve.svg"))
    drawn = (tmp_path / "curve.svg").read_text()
    assert all(
        f">{word}</text>" in drawn or f"{word}<" in drawn for word in ("learning rate", "a.prototxt", "momentum")
    )


def test_a_test_without_an_end_is_found_as_in_training(tmp_path):
    """The test net reads no set of data, so a test without test_iter would have no end."""
    from engine.comm.world import World
    from engine.config import read_solver
    from engine.solver.solver import Solver

    text = """net_param { layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
        layer { name: "z" type: "Reduction" bottom: "x" top: "z" loss_weight: 1 } }
        base_lr: 1 lr_policy: "fixed" max_iter: 1
        test_interval: 2 snapshot_after_train: false"""
    path = tmp_path / "solver.prototxt"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        Solver(read_solver(path), World())
    expected = f"{path}:4:9: test_interval without test_iter tests the whole set, once; a test net reads no set"
    assert check_file(str(path)).errors == [str(error.value)] and str(error.value).startswith(expected)


def test_a_net_without_a_loss_is_found_as_in_training(tmp_path):
    from engine.comm.world import World
    from engine.config import read_solver
    from engine.solver.solver import Solver

    path = tmp_path / "solver.prototxt"
    path.write_text("""base_lr: 1 lr_policy: "fixed" max_iter: 1 snapshot_after_train: false
        net_param { name: "lossless"
        layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
        layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } } }""")
    with pytest.raises(ConfigError, match="net 'lossless' has no loss in phase TRAIN") as error:
        Solver(read_solver(path), World())
    assert check_file(str(path)).errors == [str(error.value)]


def test_a_missing_folder_for_snapshots_is_an_absent_file(tmp_path, net_file):
    path = tmp_path / "solver.prototxt"
    path.write_text(f'net: "{net_file}" base_lr: 1 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "{tmp_path}/no/x"')
    assert any("there is no folder" in line for line in check_file(str(path)).absent_files)


def test_names_of_classes_lie_beside_nets(tmp_path):
    path = tmp_path / "labelmap.prototxt"
    path.write_text('item { name: "none" label: 0 display_name: "background" }\nitem { name: "a" label: 1 }')
    report = check_file(str(path))
    assert (report.kind, report.errors, report.nets) == ("label map", [], [])
    assert to_text(report) == f"{path}: label map"
    path.write_text('item { name: "none" label: "0" }')
    assert "labelmap.prototxt:1:21: 'label' expects a 32-bit integer without quotes" in check_file(str(path)).errors[0]
    path.write_text('item { name: "none" }\nlayer { }')
    assert "unknown field 'item' in NetParameter" in check_file(str(path)).errors[0]


STAGED = """
state { level: 2 stage: "own" }
layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } include { min_level: 2 } }
layer { name: "own" type: "InnerProduct" bottom: "x" top: "x1" inner_product_param { num_output: 4 }
  include { stage: "own" } }
layer { name: "asked" type: "InnerProduct" bottom: "x" top: "x2" inner_product_param { num_output: 5 }
  include { stage: "asked" } }
layer { name: "loss" type: "Reduction" bottom: "x1" top: "loss" loss_weight: 1 }
"""


def test_a_net_is_looked_at_in_its_own_state_and_what_is_asked_for(tmp_path, capsys):
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(STAGED)
    solver.write_text(f'net: "{net}" base_lr: 0.1 lr_policy: "fixed" max_iter: 3')
    for path in (net, solver):
        assert [layer.name for layer in check_file(str(path)).nets[0].layers] == ["data", "own", "loss"]
        asked = check_file(str(path), stages=["asked"])
        assert [layer.name for layer in asked.nets[0].layers] == ["data", "own", "asked", "loss"]
        assert check_file(str(path), level=1).errors
    for arguments, names in (
        (["summarize", str(net)], ("own",)),
        (["summarize", str(net), "--stage", "asked"], ("own", "asked")),
    ):
        assert main(arguments) == 0
        told = capsys.readouterr().out
        assert [name for name in ("own", "asked") if f"\n{name} " in told] == list(names)
    drawing = tmp_path / "net.dot"
    assert main(["draw_net", str(net), str(drawing)]) == 0
    assert "own" in drawing.read_text() and "asked" not in drawing.read_text()


def test_a_step_of_a_solver_takes_the_stages_that_are_asked_for(tmp_path):
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(STAGED.replace('bottom: "x1" top: "loss"', 'bottom: "x2" top: "loss"'))
    solver.write_text(f'net: "{net}" base_lr: 0.1 lr_policy: "fixed" max_iter: 3')
    (row,) = check_and_run([str(solver)], (), None, ["asked"])
    assert row.stage == "runs", row


def test_a_stage_that_no_rule_names_is_told(tmp_path):
    net = tmp_path / "net.prototxt"
    net.write_text(STAGED)
    assert "names stage" not in str(check_file(str(net), stages=["asked"]).notes)
    unknown = f"{net}: no rule of the net names stage 'askt'; did you mean 'asked'?"
    assert unknown in check_file(str(net), stages=["askt"]).notes


def test_parameters_of_other_types_are_told(tmp_path):
    net = tmp_path / "net.prototxt"
    net.write_text(
        NET.replace("data_param", "image_data_param")
        .replace("backend: LMDB ", "")
        .replace('name: "relu" type: "ReLU"', 'name: "relu" type: "ReLU" convolution_param { num_output: 3 }')
    )
    report = check_file(str(net))
    assert report.notes[:2] == [
        f"{net}:5:3: layer 'data': image_data_param has no effect on Data",
        f"{net}:8:35: layer 'relu': convolution_param has no effect on ReLU",
    ]
    other = tmp_path / "other.prototxt"
    # Whose parameters nobody knows.
    other.write_text(net.read_text().replace('type: "ReLU"', 'type: "ConvolutionReLU"'))
    assert "no effect on ConvolutionReLU" not in str(check_file(str(other)).notes)
    assert report.errors == [
        f"{net}:3:1: layer 'data': expected a data_param.batch_size above 0, got 0; Data does not read image_data_param"
    ]


@pytest.mark.parametrize(
    ("type_", "param"),
    [
        ("VideoData", "video_data_param"),
        ("DeformableConvolution", "deformable_convolution_param"),
        ("GradientScaler", "gradient_scaler_param"),
        ("YoloDetectionOutput", "yolo_detection_output_param"),
        ("Yolov3DetectionOutput", "yolov3_detection_output_param"),
        ("Yolov3", "yolov3_param"),
        ("PSROIAlign", "psroi_align_param"),
        ("Reduction", "reduction_param"),
        ("BatchReduction", "batch_reduction_param"),
        ("ImResize", "imresize_param"),
        ("Nms", "nms_param"),
        ("MultiStageMeanfield", "multi_stage_meanfield_param"),
        ("Noise", "noise_param"),
        ("LiftedStructSimilaritySoftmaxLoss", "lifted_struct_sim_softmax_loss_param"),
        ("DeformablePSROIPooling", "deformable_psroi_pooling_param"),
    ],
)
def test_parameters_of_forks_are_idle_on_other_layers(type_, param):
    needed = "spatial_scale: 1 output_dim: 1 group_size: 1" if "psroi" in param else ""
    for each, idle in ((type_, []), ("ReLU", [param])):
        layer = parse_net(f'layer {{ type: "{each}" {param} {{ {needed} }} }}').message.layer[0]
        assert params_of_other_types(layer) == idle


def test_each_type_that_reads_data_reads_its_own_parameter():
    for name, cls in layer_types().items():
        if not issubclass(cls, Data):
            continue
        layer = parse_net(f'layer {{ type: "{name}" {find_reader(name).field} {{ }} }}').message.layer[0]
        assert params_of_other_types(layer) == []


def test_a_top_that_nobody_reads_is_told(tmp_path):
    net = tmp_path / "net.prototxt"
    forgotten = 'layer { name: "b" type: "InnerProduct" bottom: "conv" top: "b" inner_product_param { num_output: 7 } }'
    accuracy = 'layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }'
    shown = 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }'
    net.write_text(f"{NET}{forgotten}\n{accuracy}\n{shown}")
    assert check_file(str(net)).notes == [f"{net}:12:1: layer 'b': in phase TRAIN nobody reads its top 'b'"]
    net.write_text(f'{NET}{forgotten}\nlayer {{ name: "silence" type: "Silence" bottom: "b" }}')
    assert check_file(str(net)).notes == []


@pytest.mark.parametrize(("bottom", "told"), [("x", False), ("soft", True)])
def test_an_entropy_of_probabilities_is_told(tmp_path, bottom, told):
    """The EntropyLoss of some forks takes probabilities, engine's takes scores."""
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [4, 3] } } }\n'
        'layer { name: "soft" type: "Softmax" bottom: "x" top: "soft" }\n'
        f'layer {{ name: "certain" type: "EntropyLoss" bottom: "{bottom}" top: "certain" }}'
    )
    again = (
        f"{net}:3:1: layer 'certain' (EntropyLoss): its bottom 'soft' is a Softmax's top, of which it takes a softmax "
        "again; for a fork whose EntropyLoss takes probabilities, give it that Softmax's bottom"
    )
    assert check_file(str(net)).notes == ([again] if told else [])


def test_a_field_of_a_solver_given_twice_is_told(tmp_path, net_file):
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net_file}"\nbase_lr: 0.02\nbase_lr: 0.03\nlr_policy: "fixed" max_iter: 3')
    note = f"{solver}:3:1: 'base_lr' is given twice; first in line 2; the last one counts"
    assert check_file(str(solver)).notes[0] == note


def test_units_and_shared_memory(tmp_path, net_file):
    assert re.search(r"forward, per sample: [\d.]+ kFLOPs\n", to_text(check_file(str(net_file))))
    small = tmp_path / "net.prototxt"
    small.write_text("""layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }""")
    text = to_text(check_file(str(small)))
    assert "forward, per sample: 15 FLOPs\n" in text and "when they share memory" not in text  # because it takes more


LABELS = """
layer {{ name: "in" type: "DummyData" top: "x" top: "labels" dummy_data_param {{ shape {{ dim: [4, 3] }}
  shape {{ dim: [4, {}] }} }} {} }}
layer {{ name: "soft" type: "Softmax" bottom: "labels" top: "softened" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "{}" top: "loss" }}
layer {{ name: "right" type: "Accuracy" bottom: "x" bottom: "{}" top: "right" }}
"""


@pytest.mark.parametrize(
    ("classes", "more", "labels", "told"),
    [
        (3, "", "labels", ["loss' (SoftmaxWithLoss)", "right' (Accuracy)"]),
        (1, "", "labels", []),
        (3, "", "softened", []),  # probabilities, as those of a teacher
        (3, "transform_param { mix_param { } }", "labels", []),
    ],
)
def test_labels_that_are_taken_for_distributions(tmp_path, classes, more, labels, told):
    """Numbers of a regression may be taken for them if there are as many as scores. BVLC's Accuracy would refuse
    them."""
    net = tmp_path / "net.prototxt"
    net.write_text(LABELS.format(classes, more, labels, labels))
    wanted = "as many numbers as the scores 'x' (4 x 3): they are taken for distributions over the classes"
    places = (5, 6) if told else ()
    assert check_file(str(net)).notes == [
        f"{net}:{line}:1: layer '{what}: its labels '{labels}' are {wanted}"
        for line, what in zip(places, told, strict=True)
    ]
