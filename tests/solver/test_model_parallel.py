"""Layers that ranks hold in parts train as whole ones do, and snapshots hold the whole."""

import functools
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import pytest
from google.protobuf import text_format

from engine import proto
from engine.comm.buckets import make_buckets
from engine.config import parse_net, read_net
from engine.errors import ConfigError
from engine.graph.model_parallel import model_parts
from engine.layers.base import Parameter
from engine.layers.fillers import fill_parameter
from tests.data.pictures import random_pixels, raw_datum
from tests.mpi import REPO, run_ranks
from tests.solver.harness import different, digits_net, distance, in_files

CLASSES = 12


def divided(first: str, last: str, parts: int = 0, nodes: int = 0) -> str:
    """Returns the field of a net that divides layers among ranks."""
    return (
        f'multinode {{ model_parallel {{ layer_from: "{first}" layer_to: "{last}" '
        f"model_parts: {parts} num_nodes: {nodes} }} }}"
    )


# Which layers


def parts_of(text: str, ranks: int = 4) -> dict[str, int]:
    """Returns the number of parts of each layer of the digits net that is divided."""
    return model_parts(parse_net(digits_net() + text, "net.prototxt"), ranks)


def test_which_layers_are_divided():
    assert parts_of("") == {}
    assert parts_of(divided("conv", "ip1")) == {"conv": 4, "ip1": 4}
    assert parts_of(divided("conv", "ip2", 2, 4)) == {"conv": 2, "ip1": 2, "ip2": 2}
    assert parts_of('multinode { model_parallel { layer_from: "ip1" model_parts: 2 } }') == {"ip1": 2}
    assert parts_of(divided("conv", "ip2", 2), ranks=1) == {}


def test_the_field_of_a_layer_overrides_that_of_the_net():
    own = digits_net().replace('name: "ip1"', 'name: "ip1" multinode { model_parts: 2 }')
    own = own.replace('name: "ip2"', 'name: "ip2" multinode { }')
    assert model_parts(parse_net(own + divided("conv", "ip2"), "net"), 4) == {"conv": 4, "ip1": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (divided("conv", "ip3"), "model_parallel: no layer 'ip3'; did you mean 'ip[12]'"),
        (divided("ip2", "conv"), "layer_to 'conv' is before layer_from"),
        (divided("conv", "ip1", 3), "layer 'conv': model_parts 3 does not divide the 4 ranks"),
        (divided("conv", "ip1", 2, 8), "multinode num_nodes 8, but there are 4 ranks"),
        (
            'layer { name: "x" type: "Silence" bottom: "ip2" multinode { model_parts: 2 } }',
            "only InnerProduct and Conv",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parts_of(text)


def test_parts_share_buckets_with_their_like_only():
    parameters = [("a", 0, 10), ("b", 16, 10), ("c", 32, 10), ("d", 48, 10)]
    buckets = make_buckets(parameters, 1 << 20, {"b": 2, "c": 2})
    assert [(bucket.begin, bucket.end, bucket.parts) for bucket in buckets] == [(0, 10, 1), (16, 42, 2), (48, 58, 1)]


def test_parts_are_filled_as_the_whole():
    """The halves together have the values of the whole, as if one rank had filled it."""
    filler = proto.FillerParameter(type="xavier")
    whole = fill_parameter(Parameter((6, 5), filler, layer="x"), 1)
    halves = [fill_parameter(Parameter((3, 5), filler, layer="x", part=part, parts=2), 1) for part in (0, 1)]
    assert np.array_equal(np.concatenate(halves), whole)


# Training

VERIFY = """
import os
from engine.examine import verify
from engine.comm.world import world
from engine.config import parse_solver
world = world()
made = []
solver = verify._solver
def keep(*arguments):
    made.append(solver(*arguments))
    return made[-1]
verify._solver = keep
for name, (text, servers) in {cases!r}.items():
    if world.rank == 0:
        print("case", name)
    os.environ["MLSL_NUM_SERVERS"] = str(servers)
    made.clear()
    verify.verify(lambda: parse_solver(text, "solver.prototxt"), world, 3)
    many = made[0]
    shapes = {{p.name: p.parameter.shape for p in many.model_parallel.divided}}
    if world.rank == 0:
        print(shapes, flush=True)
world.close()
"""
COMMON = 'base_lr: 0.02 lr_policy: "fixed" max_iter: 9 momentum: 0.9 weight_decay: 0.001 random_seed: 3'
SMALL = "comm_param { bucket_mb: 0.003 }"
DIGITS_PARTS = "'conv[0]': (4, 1, 3, 3)", "'ip1[0]': (16, 128)", "'ip2[1]': (5,)"


def small(name: str, crop: int, batch: int, source) -> str:
    """Returns a net of nets/ with an eighth of the channels, on small pictures of 12 classes."""
    message = read_net(str(REPO / f"nets/{name}.prototxt")).message
    for layer in message.layer:
        if layer.type == "Convolution":
            layer.convolution_param.num_output //= 8
        if layer.type == "InnerProduct":
            layer.inner_product_param.num_output = CLASSES if layer.name == "fc8" else 64
            layer.inner_product_param.weight_filler.std *= 4
        if layer.type == "Data":
            layer.data_param.source, layer.data_param.batch_size = str(source), batch
            layer.transform_param.crop_size = crop
            layer.transform_param.scale = 0.02
            layer.transform_param.ClearField("random_resize_param")
            layer.transform_param.ClearField("resize_param")
    return text_format.MessageToString(message)


def pictures(folder: Path) -> Path:
    with lmdb.open(str(folder / "lmdb"), map_size=1 << 26, lock=False) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(3 * CLASSES):
                datum = raw_datum(random_pixels(number, 72, 72), number % CLASSES)
                transaction.put(b"%03d" % number, datum)
    return folder / "lmdb"


@dataclass
class Case:
    """A net to verify. net: makes its text of a data source and the number of ranks. told: shapes of what this rank
    holds."""

    net: Callable[[Path, int], str]
    told: tuple[str, ...]
    text: str = ""
    servers: int = 2


def digits(parts: int):
    return lambda _, ranks: digits_net(16 // ranks) + divided("conv", "ip2", parts)


def alexnet(parts: int):
    return lambda source, ranks: small("alexnet", 67, 8 // ranks, source) + divided("fc6", "fc8", parts)


def vgg16(parts: int):
    return lambda source, ranks: small("vgg16", 32, 8 // ranks, source) + divided("conv5_1", "fc8", parts)


# The cases of each number of ranks. One start of the ranks verifies them all, because starting takes longer.
CASES = {
    2: {
        "small buckets": Case(digits(0), DIGITS_PARTS, SMALL),
        "two micro-batches": Case(digits(0), DIGITS_PARTS, "iter_size: 2", servers=0),
        "alexnet": Case(alexnet(0), ("'fc6[0]': (32, 32)",)),
        "vgg16": Case(vgg16(0), ("'conv5_1[0]': (32, 64, 3, 3)",)),
    },
    4: {
        "priority": Case(digits(2), DIGITS_PARTS, SMALL.replace("}", "priority: true }")),
        "adam": Case(digits(2), DIGITS_PARTS, 'type: "Adam"', servers=0),
        "alexnet": Case(alexnet(0), ("'fc6[0]': (16, 32)",)),
        "alexnet in two parts": Case(alexnet(2), ("'fc6[0]': (32, 32)",)),
        "vgg16": Case(vgg16(0), ("'conv5_1[0]': (16, 64, 3, 3)",)),
        "vgg16 in two parts": Case(vgg16(2), ("'conv5_1[0]': (32, 64, 3, 3)",)),
    },
}


@functools.cache
def verified(ranks: int) -> subprocess.CompletedProcess:
    """Verifies all cases of a number of ranks, one after the other; returns the finished process."""
    with tempfile.TemporaryDirectory() as folder:
        source = pictures(Path(folder))
        cases = {
            name: (f"{COMMON} {case.text} net_param {{ {case.net(source, ranks)} }}", case.servers)
            for name, case in CASES[ranks].items()
        }
        return run_ranks(ranks, VERIFY.format(cases=cases), timeout=250)


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, cases in CASES.items() for name in cases])
def test_the_same_as_one_rank(ranks, name):
    done = verified(ranks)
    _, begun, rest = done.stdout.partition(f"case {name}\n")
    told = rest.partition("\ncase ")[0]
    assert begun and f"{ranks} ranks train as 1 does" in told, done.stdout + done.stderr
    assert all(shape in told for shape in CASES[ranks][name].told), told


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", CASES)
def test_the_ranks_end_well(ranks):
    assert verified(ranks).returncode == 0, verified(ranks).stderr


# Snapshots, tests, what is refused

SOLVE = """
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
world = world()
set_up(world.rank)
solve({text!r}, {net!r}, {folder!r}, restore={restore!r}, world=world)
world.close()
"""
TEXT = "max_iter: 8 snapshot: 4 momentum: 0.9 random_seed: 3 test_iter: 3 test_interval: 4"


def solved(folder, ranks: int, net: str, text: str = TEXT, restore: str = "") -> list[str]:
    """Trains; returns the lines of the log that give the tests' outputs."""
    folder.mkdir(exist_ok=True)
    done = run_ranks(ranks, SOLVE.format(text=text, net=net, folder=str(folder), restore=restore), timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split("] ")[1] for line in done.stderr.splitlines() if "Test net output" in line]


@pytest.mark.mpi
def test_snapshots_are_whole_and_training_goes_on_from_them(tmp_path):
    net, in_parts = digits_net(8), digits_net(8) + divided("conv", "ip2")
    plain, parted = solved(tmp_path / "plain", 2, net), solved(tmp_path / "parts", 2, in_parts)
    assert len(parted) == len(plain) == 6
    figures = [[float(line.split(" = ")[1].split()[0]) for line in lines] for lines in (plain, parted)]
    np.testing.assert_allclose(figures[1], figures[0], rtol=1e-4)
    for iteration in (4, 8):
        assert distance(in_files(tmp_path / "plain", iteration), in_files(tmp_path / "parts", iteration)) < 1e-5
    state = str(tmp_path / "parts/net_iter_4.solverstate")
    solved(tmp_path / "again", 2, in_parts, restore=state)
    assert different(in_files(tmp_path / "parts", 8), in_files(tmp_path / "again", 8)) == []
    solved(tmp_path / "whole", 1, digits_net(16), restore=state)
    assert distance(in_files(tmp_path / "parts", 8), in_files(tmp_path / "whole", 8)) < 1e-5


REFUSED = """
from engine.comm.world import world
from engine.errors import EngineError
from tests.solver.harness import *
world = world()
for text, net in {cases!r}:
    try:
        make_solver(text, net, world=world)
    except EngineError as error:
        if world.rank == 0:
            print(error)
world.close()
"""


APART = {
    "comm_param { mode: ASYNC }": "comm_param.mode: ASYNC does not go together with model_parallel, for which ranks",
    "comm_param { mode: LOCAL }": "comm_param.mode: LOCAL does not go together with model_parallel, for which ranks",
    "comm_param { elastic { } }": "comm_param.elastic does not go together with model_parallel, of which each rank",
}


@pytest.mark.mpi
def test_what_does_not_go_together_is_refused():
    net = digits_net(8)
    cases = [
        ("clip_gradients: 1", net + divided("ip1", "ip1")),
        *[(text, net + divided("ip1", "ip1")) for text in APART],
        ("", net.replace("num_output: 8", "num_output: 7") + divided("conv", "conv")),
        ("", net.replace("num_output: 32", "num_output: 32 transpose: true") + divided("ip1", "ip1")),
        ("", net.replace("param { lr_mult: 1 }", "param { lr_mult: 0 }") + divided("conv", "conv")),
    ]
    done = run_ranks(2, REFUSED.format(cases=cases))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stdout
    assert "clip_gradients does not go together with model_parallel" in lines[0]
    for line, words in zip(lines[1:4], APART.values(), strict=True):
        assert words in line and "net.prototxt:1:" in line
    assert "expected a num_output that 2 parts divide, got 7" in lines[4]
    assert "needs transpose False, got True" in lines[5]
    assert "an lr_mult of 0" in lines[6]


DRIFT = """
from engine.comm.world import world
from engine.errors import CommError
from tests.solver.harness import *
world = world()
solver = make_solver("", {net!r}, world=world)
solver.replica.share()
solver.replica.check(solver.iteration)
if world.rank == 3:
    placed = solver.model_parallel.divided[0]
    solver.optimizer.weights[placed.offset] += 1
try:
    solver.replica.check(solver.iteration)
except CommError as error:
    print(error, flush=True)
solver.close()
world.close()
"""


@pytest.mark.mpi
def test_copies_of_a_part_are_compared():
    done = run_ranks(4, DRIFT.format(net=digits_net(4) + divided("ip1", "ip1", 2)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("iteration 0: ranks 1 and 3 differ in the weights of ip1[1]") == 4, done.stdout
