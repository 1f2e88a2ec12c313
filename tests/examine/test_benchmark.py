"""`engine time` on small nets: what it counts, not how fast it is."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net, read_net
from engine.config.phases import PHASE_NAMES
from engine.errors import ConfigError
from engine.examine.benchmark import benchmark
from engine.examine.synthetic import feed_synthetic
from engine.examine.times import to_json, to_text
from engine.net import Net
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import run_ranks

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


@pytest.fixture(scope="module")
def times():
    """Returns the times of three steps of the digits net on synthetic data."""
    config = read_net(REPO / "nets/digits.prototxt", [f"layer[data].data_param.source={REPO}/nowhere"])
    for layer in config.message.layer[:2]:
        layer.transform_param.crop_size = 8
        layer.transform_param.force_gray = True
    return benchmark(config, proto.TRAIN, 3, World())


def test_every_layer_is_timed(times):
    layers = {layer.name: layer for layer in times.layers}
    assert {"conv1", "conv2", "pool2", "ip1", "ip2", "loss"} <= set(layers)
    assert all(layer.forward_ms > 0 for layer in times.layers)
    assert layers["conv2"].backward_ms > 0
    assert layers["conv2"].implementations and layers["conv2"].layouts


def test_steps(times):
    assert (times.batch, times.iterations, times.ranks, times.phase) == (32, 3, 1, "TRAIN")
    assert times.images_per_second == pytest.approx(32e3 / times.step_ms)
    assert times.to_first_iteration_s > 0 and times.first_iteration_ms > 0
    assert times.forward_ms + times.backward_ms > 0 and times.peak_memory_bytes > times.activation_bytes > 0


def test_a_run_beside_others_says_so(times):
    """This run has about a third of a core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        command = [sys.executable, "-m", "engine", "time", "--model", "nets/digits.prototxt", "--iterations", "100"]
        done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True)
    finally:
        os.sched_setaffinity(0, cores)
        for loop in loops:
            loop.kill()
            loop.wait()
    assert json.loads(done.stdout)["waited_share"] > 0.4, done.stdout + done.stderr
    assert "waited for a core" not in to_text(replace(times, waited_share=0.01))
    assert "waited for a core 67% of their time" in to_text(replace(times, waited_share=0.67))


def test_the_batch_of_a_python_layer_counts(tmp_path, monkeypatch):
    """Synthetic data fill inputs only, and the tops of a Python layer are none."""
    (tmp_path / "batch_of_six.py").write_text("""
import engine.caffe as caffe

class Source(caffe.Layer):
    def setup(self, bottom, top):
        top[0].reshape(6, 4)
    def reshape(self, bottom, top):
        pass
    def forward(self, bottom, top):
        top[0].data[...] = 1
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("engine.layers.python._consent", [True])
    text = """layer { name: "in" type: "Python" top: "x" python_param { module: "batch_of_six" layer: "Source" } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }"""
    times = benchmark(parse_net(text, "test.prototxt"), proto.TRAIN, 2, World())
    assert times.batch == 6 and times.images_per_second == pytest.approx(6e3 / times.step_ms)


def test_reorders_are_listed_with_their_cost():
    """With many channels, a kernel for AVX-512 or AVX2 does not take row-major weights. In phase TEST their reorder is
    done once and kept."""
    shape = "input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } }"
    text = f"""layer {{ name: "in" type: "Input" top: "x" {shape} }}
    layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y"
      convolution_param {{ num_output: 16 kernel_size: 3 }} }}
    layer {{ name: "flat" type: "Flatten" bottom: "y" top: "z" }}"""
    times = benchmark(parse_net(text, "test.prototxt"), proto.TEST, 2, World())
    found = {layer.name: layer.reorders for layer in times.layers}
    layouts = {layer.name: layer.layouts for layer in times.layers}
    assert (layouts["conv"] != ["abcd"]) == bool(found["flat"])
    for each in found["flat"]:
        assert each.change.endswith("-> abcd fp32") and each.megabytes == 2 * 16 * 36 * 4 / 1e6 and each.ms > 0
    assert ("Reorders: none" in to_text(times)) == (not any(found.values()))


def test_what_is_told(times):
    text = to_text(times)
    assert "Average time per layer" in text and "images_per_second:" in text and "conv2" in text
    assert to_json(times)["layers"][0]["name"] == times.layers[0].name


def test_layers_that_others_compute_are_named(times):
    layers = {layer.name: layer for layer in times.layers}
    assert to_json(times)["layers"][list(layers).index("conv2")]["fused"] == [{"name": "relu2", "type": "ReLU"}]
    assert not layers["pool2"].fused and "relu2" not in layers
    text = to_text(times)
    row = next(line for line in text.splitlines() if line.startswith("conv2 "))
    assert row.split()[1] == "Convolution+ReLU"
    assert (
        "Fused, without a row and a time of their own: 3 layers; conv1 also computes relu1; conv2 also computes relu2; "
        "ip1 also computes relu3\n"
    ) in text


def test_a_chain_of_fused_layers_keeps_its_order_and_a_long_list_is_cut():
    """In phase TEST a convolution takes over normalisation, scale, sum and activation. The engine itself has inserted
    the Split."""
    block = """layer { name: "conv#" type: "Convolution" bottom: "x#" top: "c#"
      convolution_param { num_output: 16 kernel_size: 1 bias_term: false } }
    layer { name: "bn#" type: "BatchNorm" bottom: "c#" top: "b#" }
    layer { name: "scale#" type: "Scale" bottom: "b#" top: "s#" scale_param { bias_term: true } }
    layer { name: "sum#" type: "Eltwise" bottom: "s#" bottom: "x#" top: "e#" }
    layer { name: "relu#" type: "ReLU" bottom: "e#" top: "x%" }"""
    text = 'layer { name: "x" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } } }'
    text += "".join(block.replace("#", str(i)).replace("%", str(i + 1)) for i in range(4))
    times = benchmark(parse_net(text, "test.prototxt"), proto.TEST, 1, World())
    fused = {layer.name: [each.name for each in layer.fused] for layer in times.layers}
    assert fused["conv2"] == ["bn2", "scale2", "sum2", "relu2"]
    report = to_text(times)
    assert "Convolution+BatchNorm+Scale+Eltwise+ReLU" in report
    assert ": 16 layers; conv0 also computes bn0, scale0, sum0, relu0; conv1" in report
    assert "conv2 also computes bn2, scale2, sum2, relu2; and so on, in 4 rows with a + (--json names all)" in report


def test_phase_test_runs_forward_only():
    times = benchmark(read_net("nets/digits.prototxt"), proto.TEST, 1, World())
    assert times.backward_ms == 0 and times.phase == "TEST" and times.batch == 60


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_a_net_of_which_nothing_runs_is_refused(phase):
    text = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 } } }'
    said = f"net.prototxt: nothing to compute in phase {PHASE_NAMES[phase]}"
    with pytest.raises(ConfigError, match=said):
        benchmark(parse_net(text, "net.prototxt"), phase, 1, World())


def test_synthetic_labels_fit_the_losses():
    config = parse_net("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 50 dim: 4 } } }
        layer { name: "y" type: "Input" top: "y" input_param { shape { dim: 50 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
        layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "y" top: "accuracy" }
    """)
    net = Net(config, proto.TEST)
    feed_synthetic(net)
    assert set(np.unique(net.blobs["y"].data)) == {0, 1, 2}
    assert len(np.unique(net.blobs["x"].data)) > 100
    assert np.isfinite(net.forward()["loss"])


@pytest.mark.mpi
def test_the_shape_of_a_source_is_that_of_so_many_ranks(tmp_path, monkeypatch):
    """%* in a source stands for the number of ranks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures_2/a").mkdir(parents=True)
    (tmp_path / "pictures_2/a/0.png").write_bytes(image_bytes(random_pixels(1, 12, 16)))
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "data" type: "Data" top: "data" data_param { source: "pictures_%*" batch_size: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
    """)
    done = run_ranks(2, ["-m", "engine", "time", "--model", "net.prototxt", "--phase", "TEST", "--json", "times.json"])
    assert done.returncode == 0 and "is not here" not in done.stderr, done.stderr
    (ip,) = json.loads((tmp_path / "times.json").read_text())["layers"]
    assert ip["flops"] == 2 * 4 * (2 * 3 * 12 * 16 + 1)
