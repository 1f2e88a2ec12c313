"""Random nets computed in several ways: with passes on and off, in bf16, by Caffe's interface, on two ranks.

If rounding moves a value across the kink of a ReLU or to another maximum, the gradient changes by more than rounding.
That is rare, and other inputs do not repeat it, so a net counts as wrong only if it is wrong with two inputs."""

import functools
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from engine import caffe, proto
from engine.config import parse_net
from engine.net import PASSES, Net, NetOptions
from tests.layers.harness import needs_bf16
from tests.mpi import run_ranks
from tests.net.random_nets import Draft, random_net

NETS, QUICK = 1000, 400
TOGETHER = 200  # nets in one test
PARTS = pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first >= QUICK else ()) for first in range(0, NETS, TOGETHER)],
)

Results = dict[str, np.ndarray]  # losses and gradients by name


def computed(draft: Draft, seed: int = 0, **options) -> Results:
    """Returns the losses and gradients of one step."""
    net = Net(parse_net(draft.text(), "random.prototxt"), proto.TRAIN, NetOptions(**options))
    values = draft.values(seed)
    for blob in net.inputs:
        net.feed(blob, values[blob.name])
    net.run_forward()
    found = {layer.name: net.blobs[top].data for layer, top, _ in net.losses()}
    net.backward()
    return found | {placed.name: placed.tensor.diff.get() for placed in net.parameters}


@functools.cache
def drawn(number: int) -> Draft:
    return random_net(number)


@functools.cache
def expected(draft: Draft, seed: int) -> Results:
    return computed(draft, seed)


def by_script(draft: Draft, seed: int, folder: Path) -> Results:
    """Returns the same, computed by a script that uses Caffe's interface."""
    path = folder / "random.prototxt"
    path.write_text(draft.text())
    net = caffe.Net(str(path), caffe.TRAIN)
    for name, values in draft.values(seed).items():
        net.blobs[name].data[...] = values
    net.forward()
    net.backward()
    found = {name: blob.data for name, blob in net.blobs.items()}
    found |= {f"{layer}[{i}]": blob.diff for layer, blobs in net.params.items() for i, blob in enumerate(blobs)}
    return {name: found[name] for name in expected(draft, seed)}


def distance(found: Results, right: Results) -> float:
    """Returns the norm of all differences, divided by the norm of what is right."""
    assert found and found.keys() == right.keys()
    differences = sum(float(np.linalg.norm(values - right[name])) ** 2 for name, values in found.items())
    size = sum(float(np.linalg.norm(values)) ** 2 for values in right.values())
    assert np.isfinite(differences)
    return (differences / size) ** 0.5 if size else differences**0.5


def wrong(first: int, tolerance: float, one: Callable[[Draft, int], Results]) -> dict[int, str]:
    """Returns the text of each net, by number, that gives something else when it is computed in this way. Tries the
    TOGETHER nets from `first` on."""
    return {
        number: drawn(number).text()
        for number in range(first, first + TOGETHER)
        if all(distance(one(drawn(number), seed), expected(drawn(number), seed)) > tolerance for seed in (0, 1))
    }


@PARTS
def test_fusing_changes_nothing_beyond_rounding(first):
    assert wrong(first, 1e-5, functools.partial(computed, passes=frozenset(), keep_all=True)) == {}


@PARTS
def test_sharing_memory_changes_no_bit(first):
    for number in range(first, first + TOGETHER):
        shared, apart = expected(drawn(number), 0), computed(drawn(number), passes=PASSES - {"memory_plan"})
        different = [name for name in apart if shared[name].tobytes() != apart[name].tobytes()]
        assert different == [], drawn(number).text()


@needs_bf16
@PARTS
def test_bf16_is_fp32_within_its_rounding(first):
    assert wrong(first, 0.05, functools.partial(computed, precision="bf16")) == {}


@PARTS
def test_a_script_computes_the_same(first, tmp_path):
    assert wrong(first, 1e-5, functools.partial(by_script, folder=tmp_path)) == {}


# Layers that sum over samples or compare samples differ on halves of a batch.
SAMPLE_BY_SAMPLE = ("BatchNorm", "Reduction", "Power")
TRAINED = 60
PROGRAM = """
import numpy as np
from engine.comm.world import world
from tests.net.random_nets import random_net
from tests.solver.harness import learned, solve
world = world()
for number in {numbers}:
    net = random_net(number).trained_text(f"{folder}/{{number}}.txt", {samples} // world.size)
    solver = solve("max_iter: 2 base_lr: 0.1 momentum: 0.9 comm_param {{ bucket_mb: 0.002 }}", net, world=world)
    if world.rank == 0:
        np.savez(f"{folder}/{{number}} on {{world.size}}.npz", **learned(solver))
world.close()
"""


@pytest.mark.mpi
def test_two_ranks_learn_what_one_learns(tmp_path):
    numbers, samples = [], 4
    for number in range(NETS):
        draft = drawn(number)
        if not set(SAMPLE_BY_SAMPLE) & set(draft.types) and any("num_output" in layer for layer in draft.layers):
            numbers.append(number)
            with h5py.File(tmp_path / f"{number}.h5", "w") as file:
                for name, first in draft.values(0).items():
                    file[name] = np.concatenate([first, draft.values(1)[name]])
            (tmp_path / f"{number}.txt").write_text(f"{tmp_path}/{number}.h5\n")
        if len(numbers) == TRAINED:
            break
    for ranks in (1, 2):
        program = PROGRAM.format(numbers=numbers, folder=tmp_path, samples=samples)
        done = run_ranks(ranks, program, timeout=250)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    one, two = ({n: dict(np.load(tmp_path / f"{n} on {ranks}.npz")) for n in numbers} for ranks in (1, 2))
    apart = {n: drawn(n).text() for n in numbers if distance(two[n], one[n]) > 1e-5}
    assert apart == {}
