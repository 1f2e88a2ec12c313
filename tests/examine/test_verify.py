"""`engine verify`: all options of solvers pass, and faults that a test plants are found and named."""

import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.mpi import run_ranks
from tests.solver import test_adversarial as adversarial
from tests.solver.harness import DIGITS, digits_net, with_defaults
from tests.solver.test_sync_batch_norm import NET as BATCH_NORM

pytestmark = pytest.mark.mpi

DEFAULTS = 'base_lr: 0.02 lr_policy: "fixed" max_iter: 20 weight_decay: 0.001 random_seed: 3'
# Runs the verb as a user does, after planting a fault.
PROGRAM = """
import sys
from engine.cli import main
{plant}
sys.exit(main({arguments!r}))
"""


def verify(folder, text: str = "", net: str = "", ranks: int = 2, plant: str = "", options=(), hosts: int = 1):
    """Runs the verb; returns (exit status, stdout, stderr). net: a text with BATCH in place of the batch size."""
    return verify_file(write(folder, text, net, ranks), ranks, plant, options, hosts)


def write(folder, text: str = "", net: str = "", ranks: int = 2):
    """Writes a solver, of the digits net if no other is given; returns its path."""
    path = folder / "solver.prototxt"
    net = net.replace("BATCH", str(16 // ranks)) if net else digits_net(16 // ranks)
    path.write_text(f"{with_defaults(text, DEFAULTS)} comm_param {{ bucket_mb: 0.006 }} net_param {{ {net} }}")
    return path


def verify_file(path, ranks: int = 2, plant: str = "", options=(), hosts: int = 1):
    """Runs the verb on a file of a solver; returns (exit status, stdout, stderr)."""
    arguments = ["verify", "--solver", str(path), *options]
    environ = {"MPIR_CVAR_NUM_CLIQUES": str(hosts)}
    done = run_ranks(ranks, PROGRAM.format(plant=plant, arguments=arguments), timeout=120, environ=environ)
    return done.returncode, done.stdout, done.stderr


OPTIONS = {
    "sgd": 'momentum: 0.9 lr_policy: "poly" power: 2',
    "warm up": 'momentum: 0.9 warmup_iter: 4 warmup_start_lr: 0.002 lr_policy: "step" gamma: 0.5 stepsize: 2',
    "clipping": "momentum: 0.9 clip_gradients: 0.3 iter_size: 2",
    "correction": 'momentum: 0.9 momentum_correction: true lr_policy: "multistep" gamma: 0.5 stepvalue: 2',
    "nesterov": 'type: "Nesterov" momentum: 0.9 lr_policy: "exp" gamma: 0.9',
    "l1": 'regularization_type: "L1" weight_decay: 0.0001 lr_policy: "inv" gamma: 0.1 power: 0.75',
    "adagrad": 'type: "AdaGrad" lr_policy: "sigmoid" gamma: 0.5 stepsize: 2',
    "rmsprop": 'type: "RMSProp" base_lr: 0.001 rms_decay: 0.9',
    "adadelta": 'type: "AdaDelta" base_lr: 1 momentum: 0.95 delta: 1e-6',
    "adam": 'type: "Adam" base_lr: 0.001 momentum: 0.9 clip_gradients: 0.5',
    "adamw": 'type: "Adam" decoupled_weight_decay: true base_lr: 0.001 momentum: 0.9 iter_size: 2',
    "lars": "local_lr_auto: true momentum: 0.9",
    "larc": 'local_lr_auto: true larc_policy: "clip" momentum: 0.9 lr_policy: "poly_cyc" power: 2 lr_iter: 40',
    "stages": 'momentum: 0.9 lr_policy: "multifixed" stagelr: 0.02 stageiter: 1 stagelr: 0.01 stageiter: 20',
    "plateau": 'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 1 plateau_winsize: 1 average_loss: 2',
}

# The rest is only tried on request, since the solver's tests try it, too.
USUAL = ("sgd", "adam", "larc", "stages", "plateau")


@pytest.mark.slow
@pytest.mark.parametrize("option", [option for option in OPTIONS if option not in USUAL])
def test_every_other_option_passes(tmp_path, option):
    status, out, err = verify(tmp_path, OPTIONS[option])
    assert status == 0, out + err
    assert "2 ranks train as 1 does: all gradients and weights of 5 iterations are within 0.0001." in out


def test_four_ranks_that_it_starts_itself(tmp_path):
    from tests.verbs.test_cli import engine

    (tmp_path / "solver.prototxt").write_text(f"{DEFAULTS} net_param {{ {digits_net(4)} }}")
    done = engine("verify", "--solver", tmp_path / "solver.prototxt", "--ranks", "4", "--iterations", "2")
    assert done.returncode == 0 and "4 ranks train as 1 does" in done.stdout, done.stderr


# Rank 1 doubles its gradients of small buckets, of which the last layer's is one.
DOUBLED = """
from engine.comm.mpi_channel import MpiChannel
plain = MpiChannel.allreduce
def allreduce(self, values, residual=None):
    if self._comm.rank == 1 and values.size < 1000:
        values *= 2
    plain(self, values, residual)
MpiChannel.allreduce = allreduce
"""
# A rank leaves out a sample and reads its first one twice.
FORGOTTEN = """
from engine.data.feeder import Feeder
feed = Feeder.feed
def twice(self, net, fed):
    if self._ranks > 1 and self._rank == 1:
        for values in fed.arrays["data"]:
            values[1] = values[0]
    return feed(self, net, fed)
Feeder.feed = twice
"""
# If there are several ranks, the update decays weights twice as much.
DECAYED = """
from engine.host import _core
from engine.host.launch import detect
class Updater:
    count = 0
    def __new__(cls, *arguments, weight_decay, **fields):
        Updater.count += 1
        if Updater.count == 2 - detect().rank:
            weight_decay *= 100
        return updater(*arguments, weight_decay=weight_decay, **fields)
updater, _core.Updater = _core.Updater, Updater
"""


def failure(*arguments, **options) -> str:
    """Runs the verb, which has to fail with one line; returns the line."""
    return only_error(*verify(*arguments, **options))


def only_error(status: int, out: str, err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("engine: ")]
    assert status == 1 and len(lines) == 1, out + err
    return lines[0]


def test_a_planted_fault_in_the_reduction_is_named(tmp_path):
    message = failure(tmp_path, plant=DOUBLED)
    assert "iteration 0: the gradient of ip2[1] is the first" in message and "between 1 and 2 ranks" in message


def test_a_sample_that_a_rank_forgets_shows_in_the_loss(tmp_path):
    message = failure(tmp_path, plant=FORGOTTEN)
    assert "iteration 0: the gradient of ip2[" in message and "look at forward" in message


def test_an_update_that_differs_is_told_from_gradients(tmp_path):
    assert "iteration 0: the weights of ip2[0]" in failure(tmp_path, plant=DECAYED)


def test_samples_must_be_the_same(tmp_path):
    plant = """
from engine.data.feeder import Feeder
start = Feeder.start
Feeder.start = lambda self, first=0: start(self, first + 16 * (self._ranks > 1))
"""
    assert "iteration 0: the 2 ranks have read other samples than 1 rank" in failure(tmp_path, plant=plant)


PLAIN = adversarial.DISCRIMINATOR
NORMALISED = PLAIN.replace(
    'layer { name: "d_relu"',
    'layer { name: "d_norm" type: "BatchNorm" bottom: "d1" top: "d1" }\nlayer { name: "d_relu"',
)
SYNCHRONISED = NORMALISED.replace('type: "BatchNorm"', 'type: "BatchNorm" batch_norm_param { sync: true }').replace(
    "num_output: 8", "num_output: 8 bias_term: false"
)
# BatchNorm over eight rows for each sample. In TURNED there are as many rows for any batch.
ROWS = """layer { name: "d_rows" type: "Reshape" bottom: "d1" top: "d_rows"
  reshape_param { shape { dim: -1 dim: 16 } } }
layer { name: "d_norm" type: "BatchNorm" bottom: "d_rows" top: "d_rows" }
layer { name: "d_back" type: "Reshape" bottom: "d_rows" top: "d_back" reshape_param { shape { dim: -1 dim: 128 } } }
layer { name: "d2" type: "InnerProduct" bottom: "d_back"
"""
IN_ROWS = PLAIN.replace('layer { name: "d2" type: "InnerProduct" bottom: "d1"', ROWS.rstrip())
TURNED = IN_ROWS.replace("dim: -1 dim: 16 }", "dim: 128 dim: -1 }")
SEVERAL = 'discriminator_steps: 3 discriminator_solver { type: "SGD" base_lr: 0.02 momentum: 0.9 }'
# Some weights have no gradient but rounding: those of a bias before BatchNorm.
BOUNDED = """discriminator_steps: 5 loss: WASSERSTEIN
  discriminator_solver { type: "RMSProp" base_lr: 0.001 clamp_weights_lower: -0.1 clamp_weights_upper: 0.1 }"""


def test_batch_norm_of_no_samples_is_refused(tmp_path):
    message = only_error(*verify_file(adversarial.write(tmp_path, batch=8, discriminator=TURNED)))
    assert "layer 'd_norm' (BatchNorm): the first of the axes 128 x 16 does not grow with the batch" in message


def test_a_planted_fault_of_two_nets_is_named_where_it_is_first(tmp_path):
    message = only_error(*verify_file(adversarial.write(tmp_path, batch=8), plant=DOUBLED))
    assert "iteration 0: the gradient of d2[1] is the first" in message


def test_local_training_is_not_compared(tmp_path):
    status, _, errors = verify(tmp_path, options=["--set", "comm_param.mode=LOCAL"])
    assert status == 1 and "comm_param.mode: LOCAL trains otherwise than one rank does" in errors


STREAMS = """
layer { name: "data" type: "HDF5Data" top: "x" top: "cont" top: "label"
  hdf5_data_param { source: "FOLDER/streams.txt" batch_size: BATCH } }
layer { name: "x_steps" type: "Permute" bottom: "x" top: "x_steps" permute_param { order: 1 order: 0 order: 2 } }
layer { name: "cont_steps" type: "Permute" bottom: "cont" top: "cont_steps" permute_param { order: 1 order: 0 } }
layer { name: "lstm" type: "LSTM" bottom: "x_steps" bottom: "cont_steps" top: "h"
  recurrent_param { num_output: 4 weight_filler { type: "uniform" min: -1 max: 1 } } }
layer { name: "back" type: "Permute" bottom: "h" top: "back" permute_param { order: 1 order: 0 order: 2 } }
layer { name: "drop" type: "Dropout" bottom: "back" top: "back" }
layer { name: "ip" type: "InnerProduct" bottom: "back" top: "ip"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
TURN = "permute_param { order: 1 order: 0"


def streams(folder) -> str:
    """Returns a net of recurrent layers, with data in which no sequence begins."""
    h5py, generator = pytest.importorskip("h5py"), np.random.default_rng(1)
    with h5py.File(folder / "streams.h5", "w") as file:
        file["x"] = generator.normal(size=(160, 5, 1)).astype(np.float32)
        file["cont"], file["label"] = np.ones((160, 5), np.float32), np.ones((160, 1), np.float32)
    (folder / "streams.txt").write_text(f"{folder}/streams.h5\n")
    return STREAMS.replace("FOLDER", str(folder))


def drop_steps(net: str) -> str:
    """Gives Dropout a blob whose first axis is time steps, not sequences."""
    return net.replace('bottom: "back" top: "back" }', 'bottom: "h" top: "h" }')


def test_dropout_of_steps_is_refused(tmp_path):
    net = drop_steps(streams(tmp_path))
    assert "layer 'drop' (Dropout): the first of the axes 5 x 16 x 4 does not grow" in failure(tmp_path, net=net)


INDICATED = """layer { name: "first" type: "ContinuationIndicator" top: "first"
  continuation_indicator_param { time_step: 5 batch_size: BATCH } }
layer { name: "lstm" type: "LSTM" bottom: "x_steps" bottom: "first" """


def indicated(net: str) -> str:
    """Takes the indicators of sequences from a ContinuationIndicator."""
    net = net.replace('layer { name: "lstm" type: "LSTM" bottom: "x_steps" bottom: "cont_steps" ', INDICATED)
    return net + 'layer { name: "silence" type: "Silence" bottom: "cont_steps" }'


def test_a_loss_that_sums_over_a_batch_is_refused(tmp_path):
    ctc = 'layer { name: "ctc" type: "CtcLoss" bottom: "h" bottom: "label" }'
    message = failure(tmp_path, net=indicated(streams(tmp_path)) + ctc)
    assert "layer 'ctc' (CtcLoss): its gradient is the sum over a batch" in message


def test_batches_of_steps_are_refused(tmp_path):
    """Ranks would share the time steps, not the sequences."""
    net = streams(tmp_path).replace(TURN, "permute_param { order: 0 order: 1")
    assert "layer 'lstm' (LSTM): 16 x 5 x 1: the number of sequences does not grow" in failure(tmp_path, net=net)


def test_a_net_that_fixes_its_batch_is_not_called_wrong(tmp_path):
    """The batch of each rank fits the net. That of all ranks, which one rank takes with recurrent layers, does not."""
    net = streams(tmp_path).replace('top: "x_steps" permute', 'top: "x_permuted" permute')
    net += """layer { name: "fixed" type: "Reshape" bottom: "x_permuted" top: "x_steps"
      reshape_param { shape { dim: 5 dim: 8 dim: 1 } } }"""
    first, lstm = net.split('layer { name: "lstm"')
    lstm, fixed = lstm.split('layer { name: "fixed"')
    net = f'{first}layer {{ name: "fixed"{fixed}layer {{ name: "lstm"{lstm}'
    told = failure(tmp_path, net=net)
    assert "layer 'fixed' (Reshape)" in told
    assert "That is with the batch of all 2 ranks at once" in told and "verify has nothing to compare" in told


def test_without_data_there_is_nothing_to_share(tmp_path):
    net = digits_net(8).replace(
        'type: "Data"', 'type: "DummyData" dummy_data_param { shape { dim: 8 dim: 1 dim: 6 dim: 6 } shape { dim: 8 } }'
    )
    assert "no data layer" in failure(tmp_path, net=net)


def test_sources_of_single_ranks_are_refused(tmp_path):
    for rank in range(2):
        (tmp_path / f"part{rank}").symlink_to(DIGITS / "digits_train_lmdb")
    message = failure(tmp_path, net=digits_net(8).replace(f"{DIGITS}/digits_train_lmdb", f"{tmp_path}/part%#"))
    assert "layer 'data' (Data): each rank or host has a source of its own" in message


# Cases that pass. Ranks verify one after the other, as the verb does, because starting the ranks takes longer.
ALL = """
from engine.examine.verify import verify
from engine.verbs.command_line import parse
from engine.verbs.runtime import asked_solver, start
world = start()
for name, arguments in {cases!r}.items():
    if world.rank == 0:
        print("case", name)
    options = parse(["verify", "--solver", *arguments])
    verify(lambda: asked_solver(options), world, options.iterations, options.tolerance)
    if world.rank == 0:
        print(flush=True)
world.close()
"""


def staged(folder) -> str:
    """Returns the digits net with data that are copied, a part to each rank."""
    whole = f'source: "{DIGITS}/digits_train_lmdb"'
    return digits_net(8).replace(whole, f'{whole} stage: "{folder}/stage" stage_part: true')


def two_nets(fields: str, discriminator: str):
    return lambda folder: [adversarial.write(folder, fields, batch=8, discriminator=discriminator)]


def option(text: str):
    return lambda folder: [write(folder, text)]


def normalised(field: str):
    return lambda folder: [write(folder, net=BATCH_NORM), "--set", field]


def in_parts(parts: int):
    """verify has to give parts and the whole layer the same weights in each iteration, and the same algorithm. If the
    weights differed by rounding, a gradient would differ by 1% in the second iteration; with another algorithm, by 10%
    in the first."""
    return lambda _: ["solvers/digits.prototxt", "--set", f"layer[conv2].multinode.model_parts={parts}"]


def sequences(iter_size: int):
    """Each sequence has states of its own, on one rank, too."""
    return lambda folder: [write(folder, f"base_lr: 0.2 iter_size: {iter_size}", streams(folder))]


def rounded(shards: str):
    fields = "compression=BF16", "error_feedback=true", f"shard_updates={shards}"
    sets = [word for field in fields for word in ("--set", f"comm_param.{field}")]
    return lambda folder: [write(folder, "momentum: 0.9"), *sets]


CASES = {
    **{name: option(OPTIONS[name]) for name in USUAL},
    "batch norm of all beside that of each rank": normalised("layer[bn].batch_norm_param.sync=true"),
    "batch norm of each rank": normalised("bn_sync=false"),
    "batch norm of all": normalised("bn_sync=true"),
    # BatchNorm's statistics are those of each rank, so the one rank, which takes all batches at once, has to do as they
    # do.
    "two nets, normalised": two_nets("", NORMALISED),
    "two nets, synchronised": two_nets("", SYNCHRONISED),
    "two nets, in rows": two_nets("", IN_ROWS),
    "two nets, discriminator steps": two_nets(SEVERAL, PLAIN),
    "two nets, generator steps": two_nets("generator_steps: 2", PLAIN),
    "two nets, clamped weights": two_nets(BOUNDED, NORMALISED),
    "no gradient but rounding": in_parts(1),
    "no gradient but rounding, in parts": in_parts(2),
    "sequences": sequences(1),
    "sequences, two micro-batches": sequences(2),
    "no dropout of steps": lambda folder: [
        *(write(folder, net=drop_steps(streams(folder))), "--set", "layer[drop].dropout_param.dropout_ratio=0"),
    ],
    # There are as many indicators as sequences in a batch.
    "indicators": lambda folder: [write(folder, net=indicated(streams(folder)))],
    # All ranks are on the host that has the staged data.
    "a part that all ranks share": lambda folder: [write(folder, net=staged(folder))],
    "bf16 with error feedback": rounded("false"),
    "bf16 with error feedback, sharded": rounded("true"),
    "bf16": lambda folder: [write(folder), "--precision", "bf16", "--set", "comm_param.compression=BF16"],
}
# Two hosts of two ranks, if MPI can simulate them.
REDUCED = {
    comm: lambda folder, comm=comm: [write(folder, "momentum: 0.9", ranks=4), "--set", f"comm_param.{comm}"]
    for comm in ("servers=0", "priority=true", "algorithm=HIERARCHICAL", "shard_updates=true")
}


@functools.cache
def verified(ranks: int) -> subprocess.CompletedProcess:
    """Verifies the cases of a number of ranks, one after the other; returns the finished process."""
    with tempfile.TemporaryDirectory() as name:
        cases = {}
        for case, arguments in (CASES if ranks == 2 else REDUCED).items():
            folder = Path(name, str(len(cases)))
            folder.mkdir()
            cases[case] = list(map(str, arguments(folder)))
        hosts = {"MPIR_CVAR_NUM_CLIQUES": "1" if ranks == 2 else "2"}
        return run_ranks(ranks, ALL.format(cases=cases), timeout=250, environ=hosts)


def told(ranks: int, case: str) -> str:
    """Returns what was printed of a case."""
    done = verified(ranks)
    _, begun, rest = done.stdout.partition(f"case {case}\n")
    assert begun, done.stdout + done.stderr
    text = rest.partition("\ncase ")[0]
    assert f"{ranks} ranks train as 1 does" in text, text + done.stderr
    return text


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one_does(case):
    text = told(2, case)
    tolerance = "0.2" if case.startswith("bf16") else "0.0001"
    assert f"2 ranks train as 1 does: all gradients and weights of 5 iterations are within {tolerance}." in text


@pytest.mark.parametrize("comm", REDUCED)
def test_every_way_to_reduce_passes(comm):
    told(4, comm)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_end_well(ranks):
    assert verified(ranks).returncode == 0, verified(ranks).stderr
