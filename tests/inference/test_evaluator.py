"""Tests of a net are exact over the whole set, and the same on any number of ranks."""

import json
import sys
import weakref
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.cli import main
from engine.comm.world import World
from engine.config import parse_net, read_net
from engine.errors import ConfigError
from engine.inference.ensemble import Ensemble
from engine.inference.evaluator import Evaluator
from engine.inference.trained import load
from engine.net import Net
from engine.weights import write_caffemodel
from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, all_fine

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_repo(monkeypatch):
    monkeypatch.chdir(REPO)


def evaluator(batch_size: int) -> Evaluator:
    config = read_net("nets/digits.prototxt", [f"layer[data@TEST].data_param.batch_size={batch_size}"])
    return Evaluator(config, world=World())


def test_the_whole_set_once_whatever_the_batch_size():
    # 60 divides the 360 samples. 47 and 400 do not, so their last batch runs through a smaller net.
    results = [evaluator(batch_size).run() for batch_size in (60, 47, 400)]
    for result in results[1:]:
        for name, value in result.items():
            np.testing.assert_allclose(value, results[0][name], rtol=1e-6)
    assert set(results[0]) == {"loss", "accuracy", "accuracy_top5"}


def test_batches_are_told_and_averaged():
    seen = []
    test = evaluator(100)
    result = test.run(3, lambda k, outputs: seen.append((k, outputs["accuracy"][0])))
    assert [k for k, _ in seen] == [0, 1, 2]
    assert result["accuracy"][0] == pytest.approx(np.mean([value for _, value in seen]))
    assert test.samples == 300
    assert test.loss_weights == {"loss": 1.0}


def test_each_test_goes_on_where_the_last_ended():
    """As in Caffe, tests of 3 and 4 batches of 50 go over the end of the 360 samples. A test of the whole set between
    them does not move the place."""
    whole, parts, seen = evaluator(50), evaluator(50), []
    whole.run(11, lambda k, outputs: seen.append(outputs["loss"][0]))
    at = 0
    for count in (3, 4, 1, 3):
        if count == 1:
            parts.run()
        assert parts.run(count)["loss"][0] == pytest.approx(np.mean(seen[at : at + count]), rel=1e-6)
        at += count
    assert len(set(np.round(seen[:7], 6))) == 7 and parts.samples == 550


def test_a_net_without_an_end_needs_iterations():
    config = parse_net(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 } } }', "x.prototxt"
    )
    test = Evaluator(config, world=World())
    with pytest.raises(ConfigError, match=r"x\.prototxt: the net has no data source whose end .* \(--iterations, or"):
        test.run()
    assert test.run(2)["x"].tolist() == [0.0] * 8


def test_a_net_that_asks_for_gradients_is_tested_without_them():
    """force_backward is meant for programs that look into a net. A test must fold BatchNorm all the same, and take no
    more memory."""
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 16 dim: 16 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "s" convolution_param { num_output: 8 kernel_size: 3 } }
        layer { name: "bn" type: "BatchNorm" bottom: "s" top: "b" }
        layer { name: "d" type: "Convolution" bottom: "b" top: "e" convolution_param { num_output: 8 kernel_size: 3 } }
    """
    plain, asked = (Evaluator(parse_net(f"{first}{text}", "x"), World()).net for first in ("", "force_backward: true "))
    assert not asked.has_backward and not any(blob.needs_gradient for blob in asked.tensors)
    assert len(asked.program) == len(plain.program) == 2
    assert asked.program.activation_bytes == plain.program.activation_bytes


def test_outputs_by_sample_are_averaged():
    text = (
        REPO / "nets/digits.prototxt"
    ).read_text() + 'layer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" }'
    config = parse_net(text, "digits", ["layer[data@TEST].data_param.batch_size=200"])
    prob = Evaluator(config, world=World()).run()["prob"]
    assert prob.shape == (10,) and prob.sum() == pytest.approx(1, abs=1e-5)


def test_counts_that_go_on_go_on_through_the_last_batch():
    """The last batch is smaller, and runs through a net of its own, which must share the counts: in the second test,
    all pixels since the first count."""
    more = """layer { name: "seg" type: "SegAccuracy" bottom: "ip2" bottom: "label" top: "seg"
        seg_accuracy_param { reset: false } }"""
    text = (REPO / "nets/digits.prototxt").read_text() + more
    right, seen, sizes, found = 0.0, 0, [200, 160], []
    with closing(Evaluator(parse_net(text, "digits", ["layer[data@TEST].data_param.batch_size=200"]), World())) as test:
        for _ in range(2):
            test.run(None, lambda k, outputs: found.append((k, outputs["accuracy"][0], outputs["seg"].reshape(-1)[0])))
    for k, accuracy, of_all in found:
        right, seen = right + accuracy * sizes[k], seen + sizes[k]
        assert of_all == pytest.approx(right / seen, rel=1e-5)
    assert seen == 720


@pytest.mark.parametrize("as_ensemble", [False, True])
def test_an_output_that_only_happens_to_be_as_long_as_the_batch(as_ensemble, tmp_path):
    """These are the two means of a triplet loss, with a last batch of 2 samples, and with batches of 2."""
    more = """
        layer { name: "far" type: "InnerDistance" bottom: "ip2" top: "far" inner_distance_param { num_output: 10 } }
        layer { name: "triplet" type: "GeneralTripletLoss" bottom: "far" bottom: "label"
                top: "triplet" top: "means" }"""
    text = (REPO / "nets/digits.prototxt").read_text() + more
    centers = np.random.default_rng(5).normal(size=(10, 10)).astype(np.float32)
    weights = str(tmp_path / "far.caffemodel")
    write_caffemodel(weights, parse_net(text, "digits").message, {"far": [centers]})
    test_with = partial(Ensemble, members=[[weights]]) if as_ensemble else Evaluator
    found = []
    for batch_size in (60, 179, 2):
        config = parse_net(text, "digits", [f"layer[data@TEST].data_param.batch_size={batch_size}"])
        with closing(test_with(config, world=World())) as test:
            load(test.net, [weights])
            found.append(test.run()["means"])
        assert found[-1].shape == (2,)
        np.testing.assert_allclose(found[-1], found[0], rtol=1e-5)


def test_layers_of_python_are_made_once(tmp_path, monkeypatch):
    """A user's code must not run again just to find out which outputs grow with the batch."""
    (tmp_path / "made.py").write_text(
        "import engine.caffe as caffe\n"
        "MADE = []\n"
        "class Copy(caffe.Layer):\n"
        "    def setup(self, bottom, top): MADE.append(self)\n"
        "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top): top[0].data[...] = bottom[0].data\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("engine.layers.python._consent", [True])
    more = """layer { name: "copy" type: "Python" bottom: "ip2" top: "copy"
        python_param { module: "made" layer: "Copy" } }"""
    text = (REPO / "nets/digits.prototxt").read_text() + more
    config = parse_net(text, "digits", ["layer[data@TEST].data_param.batch_size=60"])
    with closing(Evaluator(config, world=World())) as test:
        assert test.run()["copy"].shape == (10,)
    assert len(sys.modules.pop("made").MADE) == 1


def test_an_output_without_an_average_is_left_out_and_told(caplog):
    more = """layer { name: "rows" type: "Reshape" bottom: "ip2" top: "rows"
        reshape_param { shape { dim: -1 dim: 5 } } }"""
    text = (REPO / "nets/digits.prototxt").read_text() + more
    config = parse_net(text, "digits", ["layer[data@TEST].data_param.batch_size=47"])
    with closing(Evaluator(config, world=World())) as test:
        assert set(test.run()) == {"loss", "accuracy", "accuracy_top5"}
        assert "Output rows (94 x 5) is left out: it grows with the batch" in caplog.text
        assert test.run(2)["rows"].shape == (470,)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_the_figures_of_one(ranks):
    expected = evaluator(47).run()
    program = """
import json
import sys
from engine.comm.world import world
from engine.config import read_net
from engine.inference.evaluator import Evaluator
config = read_net("nets/digits.prototxt", ["layer[data@TEST].data_param.batch_size=47"])
seen = []
test = Evaluator(config, world=world())
values = test.run(None, lambda k, outputs: seen.append(k))
assert test.run(5)["loss"] != test.run(5)["loss"]  # which goes on
assert seen == (list(range(8)) if world().rank == 0 else []), seen
results = world().gather({name: value.tolist() for name, value in values.items()})
if results:
    print(json.dumps(results), flush=True)
world().close()
"""
    done = run_ranks(ranks, program, timeout=60)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[0])
    assert len(results) == ranks and all(result == results[0] for result in results)
    for name, value in results[0].items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)


CONT = 'layer { name: "cont" type: "DummyData" top: "cont" dummy_data_param { shape { dim: 3 dim: 2 } } }'
GOING_ON = {
    "SegAccuracy": 'bottom: "x" bottom: "y" top: "t" seg_accuracy_param { reset: false }',
    "LSTM": 'bottom: "x" bottom: "cont" top: "t" recurrent_param { num_output: 2 }',
    "Lstm": 'bottom: "x" bottom: "cont" top: "t" lstm_param { num_output: 2 }',
}
NOT_GOING_ON = {
    "SegAccuracy": 'bottom: "x" bottom: "y" top: "t"',
    "Lstm": 'bottom: "x" top: "t" lstm_param { num_output: 2 batch_size: 2 }',
    "BatchNorm": 'bottom: "x" top: "t" batch_norm_param { use_global_stats: false }',
}


@pytest.mark.mpi
def test_ranks_warn_of_layers_that_go_on_from_batch_to_batch():
    """Each rank sees its own batches only, so what such layers compute depends on the number of ranks."""
    data = """layer { name: "x" type: "DummyData" top: "x" top: "y" dummy_data_param {
        shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 4 } } }"""
    nets = [
        f'{data} {CONT} layer {{ name: "{number}" type: "{kind}" {rest} }}'
        for number, (kind, rest) in enumerate([*GOING_ON.items(), *NOT_GOING_ON.items()])
    ]
    program = f"""
from engine.comm.world import World, world
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
for net in {nets}:
    Evaluator(parse_net(net), world()).close()
    Evaluator(parse_net(net), World()).close()
world().close()
print("fine")
"""
    told = all_fine(2, program)
    for number in range(3):
        assert told.count(f"Layers that go on from batch to batch ({number}) see only") in (1, 2), told
    assert told.count("Layers that go on") in (3, 6)


SCALED = {  # layers that scale the rows of their weights in each forward
    "InnerProduct": "inner_product_param { num_output: 10 normalize: true",
    "InnerDistance": 'inner_distance_param { num_output: 10 normalize: true distance_type: "product"',
    "MarginInnerProduct": "margin_inner_product_param { num_output: 10",
}


def scaled_net(kind: str) -> str:
    labels = 'bottom: "label"' if kind == "MarginInnerProduct" else ""
    return f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "{DIGITS}/digits_train_lmdb" backend: LMDB batch_size: 8 }} }}
layer {{ name: "ip" type: "{kind}" bottom: "data" {labels} top: "ip"
  {SCALED[kind]} weight_filler {{ type: "gaussian" std: 2 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""


@pytest.mark.parametrize("kind", SCALED)
def test_weights_that_are_scaled_are_after_a_test_what_they_were(kind):
    config = parse_net(scaled_net(kind))
    with closing(Evaluator(config, World())) as first:
        train = Net(config, options=first._options.replace(shapes_of=first.feeder.shapes_of))
    before = train.params["ip"][0].get()
    with closing(Evaluator(config, World(), share=train)) as tested:
        losses = []
        for _ in range(3):
            tested.samples = 0
            losses.append(tested.run(2)["loss"][0])
    assert len(set(losses)) == 1
    assert train.params["ip"][0].get().tobytes() == before.tobytes()


@pytest.mark.mpi
def test_ranks_keep_the_same_weights_whoever_tests_them():
    """With an odd number of batches, one rank tests once more than the other."""
    program = """
from engine.comm.world import world
from tests.solver.harness import solve
text = "max_iter: 4 test_interval: 2 test_iter: 3 comm_param { drift_check: 1 } ema: 0.9"
for net in NETS:
    solve(text, net, world=world())
world().close()
print("fine")
"""
    all_fine(2, program, names={"NETS": [scaled_net(kind) for kind in SCALED]})


@pytest.mark.mpi
def test_tests_of_an_odd_number_of_batches_read_each_ranks_own_source_whole(tmp_path):
    """No item is read twice before all have been read."""
    for rank in range(2):
        for number in range(12):
            Image.new("L", (2, 2), number).save(tmp_path / f"{rank}_{number:02d}.png")
        (tmp_path / f"list{rank}").write_text("".join(f"{rank}_{number:02d}.png {number}\n" for number in range(12)))
    net = f"""layer {{ name: "data" type: "ImageData" top: "data" top: "label" image_data_param {{
        source: "{tmp_path}/list%#" root_folder: "{tmp_path}/" batch_size: 2 is_color: false }} }}"""
    program = f"""
import numpy as np
from engine.comm.world import world
from engine.config import parse_net
from engine.inference.evaluator import Evaluator
test, read = Evaluator(parse_net({net!r}), world()), []
test.on_forward = lambda net, size, keys: read.extend(keys)
labels = [test.run(3)["label"].tolist() for _ in range(4)]
assert read == [f"{{world().rank}}_{{number:02d}}.png" for number in range(12)], read
# The first test has two batches of rank 0, of labels 0 1 and 2 3, and one of rank 1; the second begins with rank 1's.
np.testing.assert_allclose(labels[:2], [[(0.5 + 0.5 + 2.5) / 3], [(2.5 + 4.5 + 4.5) / 3]])
test.close()
world().close()
print("fine")
"""
    all_fine(2, program)


def test_one_rank_forgets_the_batches_that_it_has_added_up():
    alive, most = weakref.WeakSet(), 0

    class Watched(np.ndarray):
        """An array that equals only itself, as a plain array does not."""

        __hash__ = object.__hash__

        def __eq__(self, other):
            return self is other

    test = evaluator(30)
    forward = test._forward

    def watched(batch, k):
        nonlocal most
        outputs = {name: value.view(Watched) for name, value in forward(batch, k).items()}
        alive.update(outputs.values())
        most = max(most, len(alive))
        return outputs

    test._forward = watched
    assert test.run(12)["accuracy"] == evaluator(30).run(12)["accuracy"]
    assert most <= 2 * 3, "of two batches, three outputs each"


def test_the_loss_is_told_of_outputs_alone(tmp_path, capsys):
    """Older nets, such as C3D's, give their loss no top."""
    net = """
    layer { name: "x" type: "DummyData" top: "x" top: "label" dummy_data_param { shape { dim: [2, 3] }
      shape { dim: 2 } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" %s }"""
    for top, line in (('top: "loss"', "Loss: 1.09861"), ("", "Loss: not told, as not every loss is")):
        (tmp_path / "net.prototxt").write_text(net % top)
        write_caffemodel(tmp_path / "net.caffemodel", parse_net(net % top).message, {})
        files = ["--model", f"{tmp_path}/net.prototxt", "--weights", f"{tmp_path}/net.caffemodel"]
        assert main(["test", *files, "--iterations", "1", "--stage", "x"]) == 0
        output = capsys.readouterr()
        assert line in output.out + output.err
        assert "net.prototxt: no rule of the net names stage 'x'" in output.err
