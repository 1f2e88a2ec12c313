"""`engine time --data`: what it counts, not how fast it is."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from PIL import Image

from engine.cli import main
from engine.comm.world import World
from engine.config import read_solver
from engine.data.feeder import Feeder
from engine.errors import ConfigError
from engine.examine import data_times as module
from engine.examine.data_times import DataLayerTimes, DataTimes, data_times, to_json, to_text
from engine.net.kernel_table import Kernels
from engine.solver.solver import Solver
from tests.data.conftest import make_lmdb  # noqa: F401
from tests.data.pictures import encoded_datum, random_pixels, raw_datum
from tests.verbs.test_cli import engine

NET = """layer {{ name: "d" type: "Data" top: "x" top: "y" data_param {{ source: "{source}" batch_size: 4 }}
  transform_param {{ {transform} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "s" inner_product_param {{ num_output: 3 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "y" top: "l" }}"""

RULES = 'not_stage: "big"', 'stage: "big" min_level: 2'


@pytest.fixture
def solver(tmp_path, make_lmdb):  # noqa: F811
    def made(kind: str, transform: str = ""):
        def item(n):
            pixels = random_pixels(n, 90, 120)
            return raw_datum(pixels, n % 3) if kind == "raw" else encoded_datum(pixels, kind, n % 3)

        source = make_lmdb({f"{n}": item(n) for n in range(5)}, kind)
        (tmp_path / "net.prototxt").write_text(NET.format(source=source, transform=transform))
        path = tmp_path / "solver.prototxt"
        path.write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
        return path

    return made


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    monkeypatch.setattr(module, "_ELAPSED", 0.05)


@pytest.mark.parametrize(
    "kind, transform, takes, not_at_all",
    [
        ("JPEG", "resize_param { height: 20 width: 20 }", ("read", "decode", "resize"), ()),
        ("PNG", "resize_param { height: 20 width: 20 }", ("read", "decode", "resize"), ()),
        ("raw", "", ("read",), ("decode", "resize")),
        ("JPEG", "mix_param { mixup_alpha: 1 num_classes: 3 }", ("read", "decode"), ()),
    ],
)
def test_stages(solver, kind, transform, takes, not_at_all):
    """No case requires that transform takes time: its share is what the other stages leave, which may be nothing."""
    found = data_times(read_solver(str(solver(kind, transform))), World(), "fp32", 1)
    (layer,) = found.layers
    assert list(layer.stages) == ["read", "decode", "resize", "transform"]
    assert all(layer.stages[stage] > 0 for stage in takes) and not any(layer.stages[stage] for stage in not_at_all)
    assert layer.images == 20 and layer.batch == 4 and layer.elapsed > 0 and found.step_ms > 0
    assert to_json(found)["threads_needed"] == found.threads_needed >= 1
    assert f"Layer 'd', 20 images of {layer.source}" in to_text(found)


def test_the_source_of_every_layer_is_named(solver, tmp_path):
    """This includes layers that read rows of HDF5 and windows of pictures."""
    path = solver("raw")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((9, 3), np.float32), np.zeros(9, np.float32)
    (tmp_path / "h5").write_text(f"{tmp_path}/a.h5\n")
    Image.fromarray(random_pixels(1, 20, 20)).save(tmp_path / "a.png")
    (tmp_path / "windows").write_text(f"# 0\n{tmp_path}/a.png\n3\n20\n20\n1\n1 0.9 2 2 15 15\n")
    rows = f'type: "HDF5Data" hdf5_data_param {{ source: "{tmp_path}/h5" batch_size: 4 }}'
    windows = f"""type: "WindowData" transform_param {{ crop_size: 8 }}
      window_data_param {{ source: "{tmp_path}/windows" batch_size: 4 fg_fraction: 1 }}"""
    for source, data in (("h5", rows), ("windows", windows)):
        _, _, rest = (tmp_path / "net.prototxt").read_text().partition('layer { name: "ip"')
        (tmp_path / "net.prototxt").write_text(
            f'layer {{ name: "d" top: "x" top: "y" {data} }} layer {{ name: "ip"{rest}'
        )
        found = data_times(read_solver(str(path)), World(), "fp32", 1)
        assert f" images of {tmp_path}/{source}, on one core" in to_text(found)


def test_the_step_is_that_of_training(solver, monkeypatch):
    """It has the kernels and the memory that the solver or the user gives."""
    given = []

    def benchmark(net, phase, iterations, world, precision, memory_budget, kernels):
        given.append((memory_budget, kernels))
        return SimpleNamespace(step_ms=1.0)

    monkeypatch.setattr(module, "benchmark", benchmark)
    kernels = Kernels("default")
    data_times(read_solver(str(solver("raw")), ["memory_budget_mb=1.5"]), World(), "fp32", 1, kernels)
    assert given == [(1_500_000, kernels)]


@pytest.mark.parametrize(
    ("given", "seed"), [("", 1), ("random_seed: -3", 1), ("random_seed: 0", 0), ("random_seed: 7", 7)]
)
def test_the_order_of_data_is_that_of_training(given, seed, solver, monkeypatch):
    path, seeds = solver("raw"), []
    path.write_text(f"{path.read_text()} {given}")

    class Seen(Feeder):
        def __init__(self, config, phase, seed, world):
            seeds.append(seed)
            super().__init__(config, phase, seed, world)

    monkeypatch.setattr(module, "Feeder", Seen)
    config = read_solver(str(path))
    data_times(config, World(), "fp32", 1)
    trained = Solver(config, World())
    trained.close()
    assert seeds == [seed] == [trained.seed]


def test_the_state_is_that_of_training(solver):
    """Layers are those that train_state keeps, with their own batch."""
    path = solver("raw")
    net = path.parent / "net.prototxt"
    data = net.read_text().splitlines(keepends=True)[:2]
    small, big = ("".join(data).replace('name: "d"', f'name: "d" include {{ {rule} }}') for rule in RULES)
    net.write_text(net.read_text().replace("".join(data), small + big.replace("batch_size: 4", "batch_size: 6")))
    found = data_times(read_solver(str(path), ['train_state.stage="big"', "train_state.level=2"]), World(), "fp32", 1)
    assert [layer.batch for layer in found.layers] == [6]


def test_the_phase_is_train(solver, capsys):
    assert main(["time", "--data", str(solver("raw")), "--phase", "TEST"]) == 1
    assert "--data measures the train net: leave --phase out" in capsys.readouterr().err


def test_how_many_threads_keep_a_net_fed():
    stages = {"read": 0.5, "decode": 2.0, "resize": 1.0, "transform": 0.5}
    layer = DataLayerTimes("d", "x", 100, 32, stages, 0.0, threads=2, elapsed=400.0)
    fast, slow = DataTimes("n", "bf16", 50.0, [layer]), DataTimes("n", "bf16", 1000.0, [layer])
    assert fast.core_ms == 128 and fast.threads_needed == 3 and slow.threads_needed == 1
    assert "keep it fed: 3, more than there are: set ENGINE_DATA_THREADS=3" in to_text(fast)
    assert "its data take 128.0 ms of one core, 12.8% of it" in to_text(slow) and "fed: 1, as there are" in to_text(
        slow
    )


def test_what_cannot_be_measured(solver, tmp_path):
    data = 'type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } }'
    (tmp_path / "net.prototxt").write_text(f'layer {{ name: "d" {data} }}')
    path = tmp_path / "solver.prototxt"
    path.write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    with pytest.raises(ConfigError, match="the train net has no data layer, so there is nothing to read"):
        data_times(read_solver(str(path)), World(), "fp32", 1)

    class Two(World):
        size = 2

    with pytest.raises(ConfigError, match="--data measures one rank's pipeline: start it without mpiexec"):
        data_times(read_solver(str(path)), Two(), "fp32", 1)


def test_the_verb(solver, tmp_path):
    done = engine("time", "--data", solver("JPEG"), "--iterations", 1, "--json", tmp_path / "x.json")
    assert done.returncode == 0 and "Decoding threads that keep it fed: " in done.stdout
    assert (tmp_path / "x.json").exists()
    bad = engine("time", "--data", solver("JPEG"), "--set", "net=nowhere.prototxt")
    assert bad.returncode == 1 and bad.stderr.count("\n") == 1 and "nowhere.prototxt" in bad.stderr
