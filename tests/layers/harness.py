"""Used by the tests of all layers: nets from text, the gradient checker, and comparison with cases that BVLC Caffe
computed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.host import _core
from engine.net import PASSES, BlobView, Net, NetOptions
from tests.mpi import REPO
from tests.shared import SHARED, needs_shared

GOLDEN = SHARED / "golden/layers"
needs_bf16 = pytest.mark.skipif(not _core.bf16_gain(), reason="this processor does not compute bf16 natively")
needs_avx512 = pytest.mark.skipif("AVX-512" not in _core.onednn_isa(), reason="this processor has no AVX-512")
PRECISIONS = ["fp32", pytest.param("bf16", marks=needs_bf16)]
BLOCK = 16 if "AVX-512" in _core.onednn_isa() else 8  # channels, in the layouts of oneDNN's convolutions


def passes_on(isa: str, file: str, tests: str) -> bool:
    """Returns whether some tests of a file pass with the kernels that oneDNN and engine have for another kind of
    processor. Prints what pytest prints.

    Args:
        isa: the kind of processor, as ONEDNN_MAX_CPU_ISA names it.
        tests: an expression of pytest's -k, which selects the tests.
    """
    arguments = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, "-k", tests]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    done = subprocess.run([sys.executable, *arguments], cwd=REPO, env=environment, capture_output=True, text=True)
    print(done.stdout)
    return done.returncode == 0


def digests_by_threads(module: str, counts: str) -> set[bytes]:
    """Returns what digest() of a test module gives with each number of threads. `counts`: the numbers, a digit each."""
    code = f"from {module} import digest; print(digest())"
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            cwd=REPO,
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        ).stdout
        for threads in counts
    }


def net_text(layer: str, **shapes: tuple[int, ...]) -> str:
    """Returns the text of a net: an Input layer for each of `shapes`, by name, and the text of a layer."""
    text = "force_backward: true\n"
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {dim}" for dim in shape)
        text += f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'
    return text + layer


def make_net(text: str, phase: int = proto.TRAIN, share: Net | None = None, **options) -> Net:
    """Returns a net whose blobs can all be read. `options` are those of NetOptions."""
    return Net(parse_net(text, "test.prototxt"), phase, NetOptions(**{"keep_all": True, **options}), share=share)


def inputs(net: Net) -> dict[str, BlobView]:
    """Returns the blobs of the Input layers by name. In `net.blobs`, a layer that works in place may have replaced
    them."""
    return {blob.name: BlobView(net, blob) for blob in net.inputs}


def set_top_diff(net: Net, name: str, values: np.ndarray) -> None:
    """Sets the gradient of an output that is not a loss, in a net with `force_backward`."""
    net.blobs[name].tensor.diff.set(np.ascontiguousarray(values, np.float32))


def run(text: str, phase: int = proto.TRAIN, **bottoms: np.ndarray) -> Net:
    """Returns the net of `net_text(text, ...)` after a forward pass. `bottoms` are the values of the Input layers, by
    name."""
    net = make_net(net_text(text, **{name: values.shape for name, values in bottoms.items()}), phase)
    for name, values in bottoms.items():
        inputs(net)[name].set(values)
    net.forward()
    return net


def error_of(text: str, phase: int = proto.TRAIN, **shapes: tuple[int, ...]) -> str:
    """Returns the message of the error that a net raises when it is built. Fails if it raises none."""
    from engine.errors import EngineError

    with pytest.raises(EngineError) as error:
        make_net(net_text(text, **shapes), phase)
    return str(error.value)


class _Objective:
    """A scalar function of a net's outputs, in float64: the sum of losses by their weights and of random projections of
    the other outputs."""

    def __init__(self, net: Net, ignore: Iterable[str], generator: np.random.Generator):
        self.net = net
        self.losses = {name: weight for _, name, weight in net.losses()}
        self.projections = {}
        for name, values in net.forward().items():
            if name not in self.losses and net.blobs[name].diff is not None:
                keep = 0.0 if name in ignore else 1.0
                self.projections[name] = keep * generator.uniform(-1, 1, values.shape).astype(np.float32)

    def terms(self) -> np.ndarray:
        tops = self.net.forward()
        terms = [np.float64([weight * tops[name]]).ravel() for name, weight in self.losses.items()]
        terms += [(p.astype(np.float64) * tops[name]).ravel() for name, p in self.projections.items()]
        return np.concatenate(terms)

    def value(self) -> float:
        return float(self.terms().sum())

    def differentiate(self, times: int = 1) -> None:
        """Runs backward so many times. A net that accumulates adds up the gradients of parameters."""
        self.net.program.zero_gradients()
        for _ in range(times):
            self.net.forward()
            for name, projection in self.projections.items():
                set_top_diff(self.net, name, projection)
            self.net.program.backward()


def check_gradients(
    text: str,
    bottoms: dict[str, np.ndarray],
    *,
    params: dict[str, list[np.ndarray]] | None = None,
    phase: int = proto.TRAIN,
    ignore: Iterable[str] = (),
    step: float = 1e-2,
    tolerance: float = 2e-3,
    samples: int = 40,
    **options,
) -> None:
    """Compares each gradient that backward computes with central differences of forward.

    The function that is differentiated is the sum of the losses by their weights and of a random projection of each
    other output. Two passes that accumulate must give twice the gradient of each parameter. Besides `tolerance`,
    float32 outputs leave an error of about 1e-7 / step, and the third derivative one of step^2 / 6. Values must be
    further from kinks than `step`.

    Args:
        text: a whole net.
        bottoms: the values of its Input layers.
        params: the values of its parameters; by default those of their fillers.
        ignore: outputs that are left out of the function.
        tolerance: largest error, relative to the largest element of the gradient.
        samples: so many elements of each blob are tried at most.
    """
    net = make_net(text, phase, **options)
    values = {name: np.array(value, np.float32) for name, value in bottoms.items()}
    _set(net, values, params or {})
    generator = np.random.default_rng(12)
    objective = _Objective(net, ignore, generator)
    objective.differentiate()
    # All gradients come first, since perturbing runs forward again.
    checks = [(name, values[name], blob.set, blob.diff) for name, blob in inputs(net).items()]
    for layer, tensors in net.params.items():
        for i, tensor in enumerate(tensors):
            diff = tensor.diff.get() if tensor.diff is not None else None
            checks.append((f"{layer}[{i}]", tensor.get(), tensor.set, diff))
    given = [check for check in checks if check[3] is not None]
    assert given, "no blob of this net has a gradient"
    for check in given:
        _compare(objective, *check, step, tolerance, samples, generator)
    summing = make_net(text, phase, **{**options, "accumulate": True})
    _set(summing, values, params or {})
    _Objective(summing, ignore, np.random.default_rng(12)).differentiate(times=2)
    once = {name: diff for name, _, _, diff in given}
    for layer, tensors in summing.params.items():
        for i, tensor in enumerate(tensors):
            if (name := f"{layer}[{i}]") in once:
                twice = 2 * once[name]
                atol = 1e-5 * float(np.abs(twice).max(initial=0))
                np.testing.assert_allclose(tensor.diff.get(), twice, 1e-4, atol, err_msg=f"{name} after two passes")


def _set(net: Net, values: Mapping[str, np.ndarray], params: Mapping[str, list[np.ndarray]]) -> None:
    """Sets inputs and parameters to these values."""
    for name, value in values.items():
        inputs(net)[name].set(value)
    for layer, arrays in params.items():
        for tensor, array in zip(net.params[layer], arrays, strict=True):
            tensor.set(np.ascontiguousarray(array, np.float32))


def _compare(
    objective: _Objective,
    name: str,
    values: np.ndarray,
    set_values: Callable[[np.ndarray], None],
    gradient: np.ndarray,
    step: float,
    tolerance: float,
    samples: int,
    generator: np.random.Generator,
) -> None:
    largest = float(np.abs(gradient).max(initial=0))
    noise = 1e-7 * float(np.abs(objective.terms()).sum()) / step
    allowed = min(tolerance * max(1.0, largest), tolerance * largest + noise)
    chosen = generator.permutation(values.size)[:samples]
    for flat in chosen:
        index = np.unravel_index(flat, values.shape)
        results = []
        for sign in (1, -1):
            moved = values.copy()
            moved[index] += sign * step
            set_values(moved)
            results.append((objective.value(), float(moved[index])))
        set_values(values)
        numeric = (results[0][0] - results[1][0]) / (results[0][1] - results[1][1])
        assert abs(numeric - gradient[index]) <= allowed, (
            f"{name}{[int(i) for i in index]}: backward says {gradient[index]:.6g}, differences say {numeric:.6g}"
        )


def golden(*names: str):
    """Decorates a test to run once for each of these cases of SHARED/golden/layers, with the argument `case`."""

    def decorate(test):
        return needs_shared("golden/layers")(pytest.mark.parametrize("case", names)(test))

    return decorate


def check_golden(case: str, relative: float = 1e-4, absolute: float = 1e-5) -> None:
    """Compares tops, gradients and parameters of a pass with those that BVLC Caffe computed (float32, OpenBLAS).

    The results must agree both with the rewriting passes and without. `absolute` holds for arrays whose largest element
    is about 1; it grows with larger ones, since sums of many terms cancel.
    """
    for passes in (PASSES, frozenset()):
        _check_golden(dict(np.load(GOLDEN / f"{case}.npz")), passes, relative, absolute)


def _check_golden(arrays: dict[str, np.ndarray], passes: frozenset[str], relative: float, absolute: float) -> None:
    net = make_net(str(arrays["prototxt"]), getattr(proto, str(arrays["phase"])), passes=passes)
    params = net.params.get("layer", [])

    def named(prefix: str) -> dict[str, np.ndarray]:
        return {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}

    def same(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        assert ours.shape == theirs.shape, what
        atol = absolute * max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(
            ours, theirs, rtol=relative, atol=atol, err_msg=f"{what} with passes {sorted(passes)}"
        )

    bottom_diffs = named("bottom_diff_")
    for name, value in named("bottom_").items():
        if not name.startswith("diff_"):
            net.blobs[name].set(value)
    for i, tensor in enumerate(params):
        tensor.set(arrays[f"param_{i}"])
    net.forward()
    for name, value in named("top_").items():
        if not name.startswith("diff_"):
            same(f"top {name}", net.blobs[name].data, value)
    for i, tensor in enumerate(params):
        same(f"param {i} after", tensor.get(), arrays[f"param_after_{i}"])
    if not bottom_diffs:
        return
    for name, value in named("top_diff_").items():
        set_top_diff(net, name, value)
    net.backward()
    for name, value in bottom_diffs.items():
        same(f"gradient of {name}", net.blobs[name].diff, value)
    for i, tensor in enumerate(params):
        if tensor.diff is not None:
            same(f"gradient of param {i}", tensor.diff.get(), arrays[f"param_diff_{i}"])
