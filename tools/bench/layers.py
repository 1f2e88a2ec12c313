#!/usr/bin/env python3
"""Compares single layers of engine with PyTorch's ops, forward and backward, in turn within one session: on a shared
machine only ratios are meaningful.

    python tools/bench/layers.py --rounds 3 --torch_python /path/to/a/venv/with/torch/bin/python --json layers.json
    python tools/bench/layers.py --layers 'Pooling*,LRN*' --torch_python ...   # some of them
    python tools/bench/layers.py --rounds 0 --json layers.json                 # prints the table again

Both compute on the same numbers; it is an error if their tops differ. Each is timed in two layouts, of which the faster
counts: engine's layer behind inputs, which are row-major, and behind convolutions by the identity, in their layout;
PyTorch's op on contiguous tensors and on channels last. --precision bf16 times only layers that can stand behind
convolutions, which give them bf16, and counts conversions; PyTorch's op has bf16 tensors and autocast. The gradient of
the top is given; those of bottoms and parameters are computed. Every round runs each contender in a process of its own.
A time is the least of many; a ratio is PyTorch's time divided by engine's, as the median of the rounds' ratios. PyTorch
has tcmalloc if it is installed (Debian: libgoogle-perftools4). What a net gains by fusion is not measured here: see
train.py. Runs are added to those in --json FILE, which must be of the same precision.
"""

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from layer_cases import CASES, Case, text_of
from train import tcmalloc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENGINE, TORCH = CONTENDERS = ("engine", "PyTorch")
PASSES = ("forward", "backward")
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}  # how far tops may differ, as a fraction of the largest value

Step = Callable[[], tuple[float, float]]  # seconds of forward and backward


def parameter(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Returns the values of a layer's parameter, the same for both contenders. number: its index."""
    return np.float32(0.1) * np.random.default_rng(2 + number).standard_normal(shape, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="*", help="patterns of names, separated by commas (default: all)")
    parser.add_argument("--precision", choices=TOLERANCE, default="fp32")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: one for each core)")
    parser.add_argument("--rounds", type=int, default=3, help="0: print what --json FILE holds (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement (default: 0.3)")
    parser.add_argument("--torch_python", default=sys.executable, help="an interpreter that has torch (default: this)")
    parser.add_argument("--json", metavar="FILE", help="raw figures: read if there, and added to")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "LAYER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure, options=options)
        return
    file = Path(options.json) if options.json else None
    runs = json.loads(file.read_text()) if file and file.exists() else []
    wanted = options.layers.split(",")
    names = [
        name
        for name, case in CASES.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in wanted)
        and (options.precision == "fp32" or case.follows_convolution)
    ]
    if options.rounds and options.precision == "bf16":
        from engine.host._core import bf16_gain  # PyTorch's interpreter, which runs this file, too, has no engine

        if not bf16_gain():
            raise SystemExit("this processor does not compute bf16 natively: nets of precision BF16 run in fp32 here")
    before = 1 + max((run["round"] for run in runs), default=-1)
    for number in range(before, before + options.rounds):
        for name in names:
            runs += one_round(name, number, options)
        if file:
            file.write_text(json.dumps(runs, indent=1))
    if not runs:
        raise SystemExit("nothing was measured")
    print_table(runs)


def one_round(name: str, number: int, options) -> list[dict]:
    """Times a layer in both contenders. Raises SystemExit if one fails, or their tops differ."""
    runs, case = [], CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        for contender, python in zip(CONTENDERS, (sys.executable, options.torch_python), strict=True):
            command = [python, __file__, "--measure", contender, name, folder]
            command += ["--seconds", options.seconds, "--threads", options.threads, "--precision", options.precision]
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(options.threads)}
            environ |= {"LD_PRELOAD": tcmalloc()} if contender == TORCH else {}
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environ)
            if done.returncode:
                raise SystemExit(f"{name}, {contender}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            times = json.loads(done.stdout.splitlines()[-1])
            said = " + ".join(f"{times[each]:.3f}" for each in PASSES)
            print(f"round {number + 1}, {name}, {contender}: {said} ms", file=sys.stderr, flush=True)
            runs.append({"layer": name, "round": number, "contender": contender, **times})
        mine, other = (np.load(Path(folder) / f"{each}.npy") for each in CONTENDERS)
    if not case.random and not (
        mine.shape == other.shape and np.abs(mine - other).max() <= TOLERANCE[options.precision] * np.abs(other).max()
    ):
        raise SystemExit(f"{name}: the tops differ, {mine.shape} {mine.flat[:4]} and {other.shape} {other.flat[:4]}")
    return runs


# What is measured


def measure(contender: str, name: str, folder: str, options) -> None:
    """Prints the least times as JSON, and writes the top to the folder. engine has to be measured before PyTorch: it
    writes the shapes of the parameters."""
    ways = {ENGINE: by_engine, TORCH: by_torch}[contender](CASES[name], Path(folder) / "shapes.json", options)
    cost = [min(sum(step()) for _ in range(3)) for _, step in ways]
    top, step = ways[cost.index(min(cost))]
    np.save(Path(folder) / f"{contender}.npy", top)
    times, begin = [step()], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < options.seconds:
        times.append(step())
    print(json.dumps({each: 1e3 * min(values) for each, values in zip(PASSES, zip(*times, strict=True), strict=True)}))


def by_engine(case: Case, shapes: Path, options) -> list[tuple[np.ndarray, Step]]:
    """Returns (top, function that does a step) for each layout. OMP_NUM_THREADS sets the threads."""
    from engine import proto
    from engine.config import parse_net
    from engine.net import PASSES as REWRITES
    from engine.net import Counters, Net, NetOptions

    alone = NetOptions(precision=options.precision, passes=REWRITES - {"fuse"})

    def prepared(behind_convolutions: bool) -> tuple[np.ndarray, Step]:
        net = Net(parse_net(text_of(case, behind_convolutions)), proto.TRAIN, alone)
        for blob, values in zip(net.inputs, case.bottoms(), strict=True):
            net.feed(blob, values)
        for name, tensors in net.params.items():
            for number, tensor in enumerate(tensors):
                shape = tuple(tensor.shape)
                identity = np.eye(shape[0], dtype=np.float32).reshape(shape) if name != "layer" else None
                tensor.set(parameter(shape, number) if identity is None else identity)
        shapes.write_text(json.dumps([tuple(tensor.shape) for tensor in net.params.get("layer", [])]))
        count = len(net.program)
        own = ("layer", "c0_layer_fp32", "c1_layer_fp32")  # with the casts before a layer that computes in fp32 alone
        forwards = [op for op, layer in enumerate(net.builder.layer_of_op) if layer.name in own]
        backwards = [2 * count - 1 - op for op in forwards if net.program.needs_backward(op)]

        def step() -> tuple[float, float]:
            net.run_forward(Counters(1))
            net.program.zero_gradients()
            net.program.backward()
            taken = [end - begin for begin, end in net.program.spans()]
            return sum(taken[i] for i in forwards) / 1e9, sum(taken[i] for i in backwards) / 1e9

        step()
        return net.outputs()["top"], step

    inputs = [prepared(False)] if options.precision == "fp32" else []
    return inputs + ([prepared(True)] if case.follows_convolution else [])


def by_torch(case: Case, shapes: Path, options) -> list[tuple[np.ndarray, Step]]:
    """Returns (top, function that does a step) for each layout."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(options.threads)
    bf16 = options.precision == "bf16"
    op = compile(case.op, "op", "eval")
    given = [(values, learns) for values, learns in zip(case.bottoms(), case.learns, strict=True)]
    weights = [parameter(tuple(shape), number) for number, shape in enumerate(json.loads(shapes.read_text()))]

    def prepared(layout: torch.memory_format) -> tuple[np.ndarray, Step]:
        def leaf(values: np.ndarray, learns: bool) -> torch.Tensor:
            tensor = torch.from_numpy(values)
            if bf16 and learns and len(values.shape) == 4:
                tensor = tensor.bfloat16()
            return (tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor).requires_grad_(learns)

        bottoms = [leaf(values, learns) for values, learns in given]
        parameters = [leaf(values, True) for values in weights]
        names = {"torch": torch, "F": functional, "p": parameters, **dict(zip("xyz", bottoms, strict=False))}
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            top = eval(op, names)
        gradient = torch.ones_like(top).contiguous(memory_format=layout if top.ndim == 4 else torch.contiguous_format)

        def step() -> tuple[float, float]:
            for each in (*bottoms, *parameters):
                each.grad = None
            begin = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                top = eval(op, names)
            middle = time.perf_counter()
            if case.gradient:
                top.backward(gradient)
            return middle - begin, time.perf_counter() - middle

        return top.detach().float().contiguous().numpy(), step

    return [prepared(layout) for layout in (torch.contiguous_format, torch.channels_last)]


# The table


def print_table(runs: list[dict]) -> None:
    by: dict[tuple[str, str], dict[int, dict]] = {}
    for run in runs:
        by.setdefault((run["layer"], run["contender"]), {})[run["round"]] = run
    print("| layer | bottoms | forward, ms: engine | PyTorch | ratio | backward, ms: engine | PyTorch | ratio |")
    print(f"|{'---|' * 8}")
    for name, case in CASES.items():
        mine, other = by.get((name, ENGINE), {}), by.get((name, TORCH), {})
        if not mine.keys() & other.keys():
            continue
        cells = [name, ", ".join(" x ".join(map(str, shape)) for shape in case.shapes)]
        for each in PASSES if case.gradient else PASSES[:1]:
            for times in (mine, other):
                cells.append(f"{statistics.median(run[each] for run in times.values()):.3f}")
            ratios = [other[i][each] / mine[i][each] for i in mine.keys() & other.keys() if mine[i][each] > 0.001]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
