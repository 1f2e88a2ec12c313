"""Adversarial training of a generator and a discriminator: gradients through both, updates, snapshots, refusals."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engine.comm.world import World
from engine.config import parse_net, read_solver
from engine.errors import ConfigError, EngineError
from engine.examine.check import check_file
from engine.examine.check_text import to_text
from engine.net import Counters, Net
from engine.report.table import human
from engine.solver.adversarial import AdversarialSolver, solver_of
from engine.solver.global_batch import hold_global_batch
from engine.solver.resume import Snapshot, newest
from engine.solver.solver import Solver
from engine.solver.wiring import LOSS
from engine.weights import read_caffemodel, read_solverstate
from tests.mpi import REPO, run_ranks
from tests.solver.harness import DIGITS

GENERATOR = """
layer { name: "digits" type: "Data" top: "digit" transform_param { scale: 0.125 mean_value: 8 }
  data_param { source: "%(digits)s/digits_train_lmdb" backend: LMDB batch_size: %(batch)d shuffle: true } }
layer { name: "noise" type: "DummyData" top: "noise"
  dummy_data_param { shape { dim: 1 dim: 16 } data_filler { type: "gaussian" } per_sample: true } }
layer { name: "g1" type: "InnerProduct" bottom: "noise" top: "g1"
  inner_product_param { num_output: 32 weight_filler { type: "msra" } } }
layer { name: "g_relu" type: "ReLU" bottom: "g1" top: "g1" }
layer { name: "g_shape" type: "Reshape" bottom: "g1" top: "g_map"
  reshape_param { shape { dim: 0 dim: 2 dim: 4 dim: 4 } } }
layer { name: "g2" type: "Deconvolution" bottom: "g_map" top: "g2"
  convolution_param { num_output: 1 kernel_size: 4 stride: 2 pad: 1 weight_filler { type: "msra" } } }
layer { name: "g_tanh" type: "TanH" bottom: "g2" top: "made" }
"""
DISCRIMINATOR = """
layer { name: "input" type: "Input" top: "picture" input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }
layer { name: "d1" type: "Convolution" bottom: "picture" top: "d1"
  convolution_param { num_output: 8 kernel_size: 4 stride: 2 pad: 1 weight_filler { type: "msra" } } }
layer { name: "d_relu" type: "ReLU" bottom: "d1" top: "d1" relu_param { negative_slope: 0.2 } }
layer { name: "d2" type: "InnerProduct" bottom: "d1" top: "score"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
"""
SOLVER = """
net: "generator.prototxt" type: "Adam" base_lr: 0.001 momentum: 0.5 lr_policy: "fixed" max_iter: 20 random_seed: 3
adversarial { discriminator: "discriminator.prototxt" score: "score"
  meet { input: "picture" real: "digit" made: "made" } %s }
"""


def write(
    folder: Path,
    fields: str = "",
    batch: int = 16,
    generator: str = GENERATOR,
    discriminator: str = DISCRIMINATOR,
    solver: str = SOLVER,
) -> Path:
    """Writes both nets and the solver; returns the solver's path. fields: of adversarial_param, in the solver."""
    (folder / "generator.prototxt").write_text(generator % {"digits": DIGITS, "batch": batch})
    (folder / "discriminator.prototxt").write_text(discriminator)
    (folder / "solver.prototxt").write_text(solver % fields)
    return folder / "solver.prototxt"


def make(folder: Path, fields: str = "", *, overrides=(), world=None, **files) -> AdversarialSolver:
    """Writes the files, and makes their solver with these overrides."""
    solver = solver_of(read_solver(write(folder, fields, **files), overrides), world or World())
    assert isinstance(solver, AdversarialSolver)
    return solver


def ready(solver: AdversarialSolver) -> AdversarialSolver:
    """Prepares a solver for step() without a run; returns it."""
    solver.replica.share()
    solver.feeder.start()
    return solver


def everything(solver: AdversarialSolver) -> dict[str, np.ndarray]:
    """Returns copies of the weights, histories and statistics of both nets."""
    values = {}
    for name, optimizer in zip(("generator", "discriminator"), solver.optimizers, strict=True):
        optimizer.wait()
        arrays = {"weights": optimizer.weights, **optimizer.history.named}
        values |= {f"{name} {what}": array.copy() for what, array in arrays.items()}
        values[f"{name} statistics"] = np.asarray(optimizer.net.fixed, np.float32).copy()
    return values


LOSSES = {
    "NON_SATURATING": "",
    "LEAST_SQUARES": "loss: LEAST_SQUARES loss_weight: 0.5",
    "WASSERSTEIN": "loss: WASSERSTEIN discriminator_solver { clamp_weights_lower: -0.05 clamp_weights_upper: 0.05 }",
}


@pytest.mark.parametrize("fields", LOSSES.values(), ids=LOSSES)
def test_the_gradient_through_both_nets_is_a_finite_difference(tmp_path, fields):
    solver = make(tmp_path, fields)
    net, weight = solver.net, solver.param.adversarial.loss_weight
    solver.feeder.start()
    solver.feeder.next(net)

    def loss() -> float:
        net.run_forward(Counters(0, 0))
        return weight * float(net.blobs[LOSS].tensor.get())

    loss()
    net.program.mark_ready(False)
    net.backward()
    assert {placed.parameter.layer for placed in net.parameters} == {"g1", "g2"}
    for placed in net.parameters:
        values, gradient = placed.tensor.get(), placed.tensor.diff.get()
        direction = gradient / np.linalg.norm(gradient)
        step = 1e-2
        losses = []
        for sign in (1, -1):
            placed.tensor.set(values + np.float32(sign * step) * direction)
            losses.append(loss())
        placed.tensor.set(values)
        difference = (losses[0] - losses[1]) / (2 * step)
        assert difference == pytest.approx(float(np.linalg.norm(gradient)), rel=0.02, abs=1e-5)
    solver.close()


def test_each_update_changes_its_own_net_and_none_other(tmp_path):
    solver = ready(make(tmp_path, "generator_steps: 2"))
    before = everything(solver)
    teach, judged = solver._teach, []

    def taught(counters):
        mine = everything(solver)
        teach(counters)
        after = everything(solver)
        judged.append([name for name in after if not np.array_equal(after[name], mine[name])])

    solver._teach = taught
    solver.step()
    first = everything(solver)
    solver.step()  # updates the generator only
    second = everything(solver)
    assert [{name.split()[0] for name in names} for names in judged] == [{"discriminator"}]
    assert not np.array_equal(first["generator weights"], before["generator weights"])
    assert not np.array_equal(second["generator weights"], first["generator weights"])
    assert np.array_equal(second["discriminator weights"], first["discriminator weights"])
    solver.feeder.close()
    solver.close()


def test_the_discriminator_learns_from_the_mean_of_real_and_made(tmp_path):
    """The discriminator's gradient is that of a net which sees real and made samples in one batch."""
    solver = ready(make(tmp_path, batch=8))
    solver.opponent.keep_gradients()
    weights = {name: [blob.get() for blob in blobs] for name, blobs in solver.discriminator.params.items()}
    seen = []
    judge = solver._judge

    def judging(real, counters):
        judge(real, counters)
        seen.append(solver.discriminator.fed[solver.discriminator.inputs[0]].copy())

    solver._judge = judging
    solver.step()
    solver.opponent.wait()
    got = {name: [blob.diff.get() / 2 for blob in blobs] for name, blobs in solver.discriminator.params.items()}
    assert not np.array_equal(seen[0], seen[1]) and len(seen) == 2
    text = DISCRIMINATOR.replace("dim: 1 dim: 1 dim: 8", "dim: 16 dim: 1 dim: 8") + (
        'layer { name: "target" type: "Input" top: "target" input_param { shape { dim: 16 dim: 1 } } }'
        'layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "score" bottom: "target" top: "loss" }'
    )
    both = Net(parse_net(text))
    both.load_weights(weights, "the discriminator")
    inputs = {blob.name: blob for blob in both.inputs}
    both.feed(inputs["picture"], np.concatenate(seen))
    both.feed(inputs["target"], np.repeat(np.array([1, 0], np.float32), 8)[:, None])
    both.forward()
    both.backward()
    for name, blobs in both.params.items():
        for blob, value in zip(blobs, got[name], strict=True):
            wanted = blob.diff.get()
            np.testing.assert_allclose(value, wanted, atol=1e-5 * np.abs(wanted).max())
    solver.feeder.close()
    solver.close()


RULES = (
    'discriminator_steps: 3 discriminator_solver { type: "SGD" base_lr: 0.02 momentum: 0.9 lr_policy: "poly" power: 1 }'
)
SETTINGS = {"": "", "three to one": RULES, "one to three": "generator_steps: 3", "bounded": LOSSES["WASSERSTEIN"]}


def same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a.keys() | b.keys())


@pytest.mark.parametrize("fields", SETTINGS.values(), ids=SETTINGS)
def test_a_run_that_stops_and_goes_on_has_the_same_bits(tmp_path, fields):
    def run(restore: str = "") -> dict[str, np.ndarray]:
        solver = make(tmp_path, fields, overrides=["snapshot=7"])
        if restore:
            solver.restore(str(tmp_path / restore))
        assert solver.solve()
        learned = everything(solver)
        solver.close()
        return learned

    whole = run()
    files = (tmp_path / "solver_iter_20.caffemodel").read_bytes()
    assert same_bits(run("solver_iter_7.solverstate"), whole)
    assert (tmp_path / "solver_iter_20.caffemodel").read_bytes() == files


@pytest.mark.parametrize(("fields", "updates"), [("", 20), ("discriminator_steps: 3", 60), ("generator_steps: 3", 7)])
def test_the_discriminators_schedule_ends_with_the_run(tmp_path, fields, updates):
    solver = make(tmp_path, fields, overrides=["lr_policy=poly", "power=1", "snapshot_after_train=false"])
    assert solver.solve()
    assert solver.opponent_state.iteration == updates
    assert solver.opponent_state.last_rate == pytest.approx(0.001 / updates)
    solver.close()


@pytest.mark.parametrize("overrides", [(), ["adversarial.discriminator_solver.clip_gradients=1e-3"]])
def test_gradients_of_the_discriminator_are_clipped_as_the_mean_of_two_passes(tmp_path, overrides):
    """With plain SGD at a rate of 1, weights move by exactly the norm of their gradient."""
    plain = ["type=SGD", "momentum=0", "base_lr=1", "clip_gradients=1e-3", *overrides]
    solver = ready(make(tmp_path, overrides=plain))
    before = everything(solver)
    solver.step()
    after = everything(solver)
    for name in ("generator weights", "discriminator weights"):
        assert np.linalg.norm(after[name] - before[name]) == pytest.approx(1e-3, rel=1e-3)
    solver.feeder.close()
    solver.close()


@pytest.mark.parametrize("steps", ["generator_steps: 2", "generator_steps: 3", "discriminator_steps: 3", ""])
def test_no_noise_is_drawn_twice(tmp_path, steps):
    """The noise is that of whole batches. The discriminator's turns and the generator's draw different noise, and a run
    that goes on from a snapshot draws what it would have drawn."""
    generator = GENERATOR.replace(" per_sample: true", "").replace("dim: 1 dim: 16", "dim: 16 dim: 16")

    def drawn(restore: str = "") -> list[float]:
        solver = make(tmp_path, steps, generator=generator, overrides=["max_iter=7", "snapshot=4"])
        run_forward, noise, seen = solver.net.run_forward, solver.net.blobs["noise"].tensor, []

        def watched(counters, *layers):
            run_forward(counters, *layers)
            if layers != (solver._judging,):
                seen.append(float(noise.get().ravel()[0]))

        solver.net.run_forward = watched
        if restore:
            solver.restore(str(tmp_path / restore))
        assert solver.solve()
        solver.close()
        return seen

    seen = drawn()
    each = 3 if "discriminator" in steps else 1
    assert len(seen) == len(set(seen)) == 7 * each
    assert drawn("solver_iter_4.solverstate") == seen[4 * each :]


@pytest.mark.parametrize(
    "fields, momentum, policy",
    [
        ('type: "SGD" base_lr: 0.02', 0.5, "poly"),
        ('type: "Adam"', 0.5, "poly"),
        ('type: "SGD" momentum: 0.25', 0.25, "poly"),
        ('type: "RMSProp"', 0, "fixed"),
    ],
)
def test_the_discriminator_has_the_solvers_momentum_if_its_type_has_any(tmp_path, fields, momentum, policy):
    overrides = ["momentum_policy=poly", "max_momentum=0.5"]
    solver = make(tmp_path, f"discriminator_solver {{ {fields} }}", overrides=overrides)
    assert solver.opponent.param.momentum == momentum and solver.opponent.param.momentum_policy == policy
    assert solver.opponent.momentum(0, 0.01) == momentum and solver.optimizer.momentum(0, 0.01) == 0.5
    solver.close()


def test_the_discriminators_iterations_take_the_place_of_the_solvers_epochs(tmp_path):
    text = SOLVER.replace("max_iter: 20", "max_epoch: 0.1 warmup_epoch: 0.05")
    solver = make(tmp_path, "discriminator_solver { max_iter: 500 warmup_iter: 3 }", solver=text)
    assert (solver.opponent.param.max_iter, solver.opponent.param.warmup_iter) == (500, 3)
    assert solver.param.max_iter < 20 and solver.param.warmup_iter > 3
    solver.close()


def test_fewer_ranks_cannot_hold_the_batch(tmp_path):
    config = read_solver(write(tmp_path))
    with pytest.raises(ConfigError, match=r"1 rank of batch_size 16 cannot hold .* of 48, .* ranks that can: 3, 4, "):
        hold_global_batch(config, World(), Snapshot("", 1, ranks=3, global_batch=48))
    assert config.message.iter_size == 1


def test_one_snapshot_holds_both_nets_and_both_states(tmp_path):
    solver = make(tmp_path, RULES, overrides=["max_iter=3"])
    assert solver.solve()
    solver.close()
    model = read_caffemodel(tmp_path / "solver_iter_3.caffemodel")
    assert {name for name, blobs in model.items() if blobs} == {"g1", "g2", "d1", "d2"}
    state = read_solverstate(tmp_path / "solver_iter_3.solverstate")
    # Adam has two histories for each of the generator's 4 blobs, SGD one for each of the discriminator's.
    assert len(state.history) == 2 * 4 + 4
    (tmp_path / "solver_iter_3.caffemodel").write_bytes(
        (tmp_path / "solver_iter_3.caffemodel").read_bytes()[:-9] + b"broken!!!"
    )
    with pytest.raises(EngineError, match=r"solver_iter_3\.(caffemodel|solverstate)"):
        make(tmp_path, RULES).restore(str(tmp_path / "solver_iter_3.solverstate"))


def test_a_kill_leaves_a_whole_pair(tmp_path):
    """The run is killed at any moment of writing snapshots. The newest whole snapshot goes on with the bits of a run
    that was not killed."""
    overrides = ["snapshot=1", "max_iter=100000"]
    command = [sys.executable, "-m", "engine", "train", "--solver", str(write(tmp_path, RULES))]
    command += [word for override in overrides for word in ("--set", override)]
    with subprocess.Popen(command, cwd=REPO, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "solver_iter_4.solverstate").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    found = newest(str(tmp_path / "solver"))
    assert found is not None and found.iteration >= 4
    whole, again = (make(tmp_path, RULES, overrides=["max_iter=100000"]) for _ in range(2))
    ready(whole)
    again.restore(found.path)
    again.replica.share()
    again.feeder.start(again.state.samples_seen)
    for solver in (whole, again):
        assert solver.run(found.iteration + 2)
        solver.feeder.close()
    assert same_bits(everything(whole), everything(again))
    whole.close()
    again.close()


def test_weights_stay_within_the_bounds_of_wasserstein(tmp_path):
    solver = make(tmp_path, LOSSES["WASSERSTEIN"])
    assert solver.solve()
    weights = everything(solver)
    assert np.abs(weights["discriminator weights"]).max() == np.float32(0.05)
    assert np.abs(weights["generator weights"]).max() > 0.05
    solver.close()


PROGRAM = """
from pathlib import Path
import numpy as np
from engine.comm.world import world
from tests.solver.test_adversarial import BUCKETS, RULES, everything, make
world = world()
folder = Path({folder!r}) / str(world.rank)
folder.mkdir()
solver = make(folder, RULES, overrides=BUCKETS, world=world, batch=16 // world.size)
assert all(len(optimizer.buckets) > 1 for optimizer in solver.optimizers)
assert solver.solve()  # checks that ranks have the same bits
np.savez({folder!r} + f"/{{world.rank}}.npz", **everything(solver))
solver.close()
world.close()
"""
BUCKETS = ("comm_param.bucket_mb=0.0003", "comm_param.drift_check=5", "snapshot_after_train=false", "delta=1e-4")


@pytest.mark.mpi
def test_two_ranks_learn_what_one_learns_from_the_double_batch(tmp_path):
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        done = run_ranks(ranks, PROGRAM.format(folder=str(tmp_path / str(ranks))), timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    one, first, second = (dict(np.load(tmp_path / name)) for name in ("1/0.npz", "2/0.npz", "2/1.npz"))
    assert same_bits(first, second)
    for name, wanted in one.items():
        if wanted.size:
            assert np.abs(first[name] - wanted).max() <= 2e-3 * np.abs(wanted).max(), name
    start = make(tmp_path, RULES)
    weights = everything(start)["generator weights"]
    start.close()
    # The weights have moved since the start.
    assert np.abs(one["generator weights"] - weights).max() > 0.02 * np.abs(weights).max()


NORMALISED = [
    GENERATOR.replace(
        'layer { name: "g_relu"',
        'layer { name: "g_norm" type: "BatchNorm" bottom: "g1" top: "g1" }\nlayer { name: "g_relu"',
    ),
    DISCRIMINATOR.replace(
        'layer { name: "d_relu"',
        'layer { name: "d_norm" type: "BatchNorm" bottom: "d1" top: "d1" }\nlayer { name: "d_relu"',
    ),
]


@pytest.mark.parametrize("field, of_layer", [("bn_sync: true", "sync"), ("bn_stats_batch_size: 4", "stats_batch_size")])
@pytest.mark.parametrize("which", [0, 1])
def test_statistics_are_those_that_each_file_says(tmp_path, which, field, of_layer):
    """This also holds in the joint net, which has the layers of both files."""
    texts = list(NORMALISED)
    texts[which] += field
    solver = make(tmp_path, generator=texts[0], discriminator=texts[1])
    for net, names in ((solver.net, ["g_norm", "d_norm"]), (solver.discriminator, ["d_norm"])):
        layers = {layer.name: layer for layer in net.graph.layers}
        for name in names:
            assert bool(getattr(layers[name], of_layer)) == (name == ("g_norm", "d_norm")[which]), name
    assert solver.net.synchronised == (of_layer == "sync")
    solver.close()


def wrong(message: str, fields: str = "", **files: str):
    return pytest.param(message, fields, files, id=message[:40])


NET_OF_SOLVER, MEET = 'discriminator: "discriminator.prototxt"', 'meet { input: "picture" real: "digit" made: "made" }'
PLATEAU = '"plateau" gamma: 0.1'
NO_PATH = DISCRIMINATOR.replace('bottom: "picture" top: "d1"', 'bottom: "picture" propagate_down: false top: "d1"')
FIXED = GENERATOR.replace("convolution_param", "param { lr_mult: 0 } param { lr_mult: 0 } convolution_param").replace(
    "inner_product_param", "param { lr_mult: 0 } param { lr_mult: 0 } inner_product_param"
)
STILL = DISCRIMINATOR.replace(
    "convolution_param", "param { lr_mult: 0 } param { lr_mult: 0 } convolution_param"
).replace("inner_product_param", "param { lr_mult: 0 } param { lr_mult: 0 } inner_product_param")


@pytest.mark.parametrize(
    "message, fields, files",
    [
        wrong("the gradient penalty needs second derivatives", "gradient_penalty: 10"),
        wrong("loss WASSERSTEIN needs a discriminator with bounded weights", "loss: WASSERSTEIN"),
        wrong("discriminator_solver has max_epoch; expected fields of its", "discriminator_solver { max_epoch: 3 }"),
        wrong("2 discriminator_steps and 3 generator_steps; one", "discriminator_steps: 2 generator_steps: 3"),
        wrong("discriminator_steps: expected 1 or more, got 0", "discriminator_steps: 0"),
        wrong("adversarial.loss_weight: expected more than 0, got -1", "loss_weight: -1"),
        wrong("adversarial.meet has no made; it needs", 'meet { input: "other" real: "digit" }'),
        wrong(
            "no Input layer of discriminator.prototxt makes", 'meet { input: "pictures" real: "digit" made: "made" }'
        ),
        wrong("no layer of generator.prototxt makes made 'mad'", 'meet { input: "picture" real: "digit" made: "mad" }'),
        wrong("reaches 'made'", discriminator=NO_PATH),
        wrong("'made' depends on no parameter that learns", generator=FIXED),
        wrong("the discriminator would learn nothing: its score 'score'", discriminator=STILL),
        wrong("unknown solver type 'Adams'", 'discriminator_solver { type: "Adams" }'),
        wrong("adversarial.score: no layer of", discriminator=DISCRIMINATOR.replace('"score"', '"scores"')),
        wrong(
            "input 'picture' of the discriminator is 16 x 1 x 9 x 8",
            discriminator=DISCRIMINATOR.replace("dim: 8 dim: 8", "dim: 9 dim: 8"),
        ),
        wrong("layer 'g1' is in the generator, too", discriminator=DISCRIMINATOR.replace('"d1" type', '"g1" type')),
        wrong(
            "blob 'g2' is in the generator, too",
            discriminator=DISCRIMINATOR.replace('"d1"', '"g2"').replace('name: "g2"', 'name: "d1"'),
        ),
        wrong(
            "multinode: model parallelism does not go with",
            generator=GENERATOR.replace('"g1" type', '"g1" multinode { model_parts: 2 } type'),
        ),
        wrong(
            "generator.prototxt:1:1: multinode: model",
            generator='multinode { model_parallel { layer_from: "g1" } }' + GENERATOR,
        ),
        wrong(
            "discriminator.prototxt:1:1: multinode: model",
            discriminator='multinode { model_parallel { layer_from: "d2" } }' + DISCRIMINATOR,
        ),
        wrong(
            "takes the sigmoid itself; name the Sigmoid's bottom, 'd'",
            discriminator=DISCRIMINATOR.replace('top: "score"', 'top: "d"')
            + 'layer { name: "s" type: "Sigmoid" bottom: "d" top: "score" }',
        ),
        wrong("adversarial.discriminator is missing; give the file", solver=SOLVER.replace(NET_OF_SOLVER, "")),
        wrong("adversarial.score is missing; give the blob", solver=SOLVER.replace('score: "score"', "")),
        wrong("adversarial has no meet; give meet { input", solver=SOLVER.replace(MEET, "")),
        wrong("real and made are the same blob", solver=SOLVER.replace('made: "made"', 'made: "digit"')),
        wrong(
            "lr_scaling is for the base_lr of both nets",
            "discriminator_solver { base_lr: 0.01 }",
            solver=SOLVER + "lr_scaling { base_batch: 16 }",
        ),
        wrong("lr_policy plateau follows one loss", solver=SOLVER.replace('"fixed"', PLATEAU) + "plateau_winsize: 3"),
        wrong("lr_policy plateau follows one loss", f"discriminator_solver {{ lr_policy: {PLATEAU} }}"),
        wrong(
            "max_epoch: with more than one of discriminator_steps",
            "discriminator_steps: 2",
            solver=SOLVER.replace("max_iter: 20", "max_epoch: 2"),
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path, monkeypatch, message, fields, files):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, fields, **files)
    with pytest.raises(ConfigError) as error:
        solver_of(read_solver("solver.prototxt"), World())
    assert message in str(error.value) and "\n" not in str(error.value)
    report = check_file("solver.prototxt")
    assert any(message in line for line in report.errors), report.errors


@pytest.mark.parametrize(
    "override, message",
    [
        ("iter_size=2", "expected iter_size 1, got 2"),
        ("ema=0.9", "ema does not go with adversarial"),
        ("comm_param.mode=ASYNC", "comm_param.mode: ASYNC does not go with adversarial"),
        ("comm_param.mode=LOCAL", "comm_param.mode: LOCAL does not go with adversarial"),
        ("comm_param.autotune=true", "comm_param.autotune does not go together with adversarial, which has two nets"),
        ("comm_param.elastic.keep_every=5", "comm_param.elastic does not go together with adversarial, which has two"),
        ("batch_growth.stepvalue=4", "batch_growth does not go with adversarial"),
        ("memory_budget_mb=100", "memory_budget_mb does not go with adversarial"),
        ("comm_param.shard_updates=true", "shard_updates does not go with adversarial"),
        ("adversarial.discriminator=nowhere.prototxt", "adversarial.discriminator 'nowhere.prototxt' is not in"),
    ],
)
def test_fields_that_do_not_go_with_it(tmp_path, override, message):
    with pytest.raises(EngineError, match=message):
        make(tmp_path, overrides=[override])


def test_other_users_of_solvers_refuse_it(tmp_path):
    """Whatever makes a Solver by itself would train one net only."""
    with pytest.raises(ConfigError, match=r"solver\.prototxt:\d+:\d+: adversarial: two nets"):
        Solver(read_solver(write(tmp_path)), World())


def test_check_describes_both_nets(tmp_path):
    report = check_file(str(write(tmp_path, RULES)))
    assert not report.errors
    generator, discriminator = report.nets[:2]
    made, judged = (16 + 1) * 32 + 2 * 16 + 1, 16 * 8 + 8 + 8 * 4 * 4 + 1
    assert [generator.parameters, discriminator.parameters] == [made + judged, judged]
    assert [generator.memory.gradients, discriminator.memory.gradients] == [4 * made, 4 * judged]
    assert report.optimizer_bytes == 4 * (2 * made + judged)  # Adam for the generator, SGD for the discriminator
    assert "3 updates of the discriminator (SGD, base_lr 0.02), then 1 of the generator (Adam" in "".join(report.notes)
    assert "input 'picture' is 'digit' where it is real, 'made' where it is made" in "".join(report.notes)
    text = to_text(report)
    assert f"{human(report.nets[0].memory.gradients + report.nets[1].memory.gradients, 'B')} their gradients" in text


def test_the_log_shows_both_losses(tmp_path, caplog):
    caplog.set_level("INFO", "engine")
    solver = ready(make(tmp_path, overrides=["display=5"]))
    assert solver.run(6)
    solver.feeder.close()
    solver.close()
    for line in ("#0: adversarial_loss", "#1: discriminator_loss_real", "#2: discriminator_loss_made"):
        assert len([text for text in caplog.messages if line in text]) == 2


def test_a_run_that_goes_on_shows_no_losses_before_the_discriminators_turn(tmp_path):
    text = ["max_iter=7", "snapshot=4"]
    whole = make(tmp_path, "generator_steps: 3", overrides=text)
    assert whole.solve()
    whole.close()
    solver = make(tmp_path, "generator_steps: 3", overrides=text)
    for _ in range(2):  # the second time, it goes back to its own past
        solver.restore(str(tmp_path / "solver_iter_4.solverstate"))
        solver.replica.share()
        solver.feeder.start(solver.state.samples_seen)
        shown = []
        for _ in range(3):
            solver.step()
            shown.append({name for name in solver._figures().outputs if name.startswith("discriminator")})
        assert shown == [set(), set(), {"discriminator_loss_real", "discriminator_loss_made"}]
        assert solver.judged == whole.judged
        solver.feeder.stop()
    solver.feeder.close()
    solver.close()


def test_fields_of_either_net_can_be_set(tmp_path):
    overrides = ["layer[g1].inner_product_param.num_output=64", "layer[g_shape].reshape_param.shape.dim=0,4,4,4"]
    solver = make(tmp_path, overrides=[*overrides, "layer[d1].convolution_param.num_output=24"])
    assert {name: blobs[0].shape for name, blobs in solver.net.params.items() if name in ("g1", "d1")} == {
        "g1": (64, 16),
        "d1": (24, 1, 4, 4),
    }
    solver.close()
