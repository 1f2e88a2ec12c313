#!/usr/bin/env python3
"""Compares the training of recurrent models of text by engine and by PyTorch, in turn within one session: on a shared
machine only ratios are meaningful.

    python tools/bench/sequences.py --rounds 5 --torch_python /path/to/a/venv/with/torch/bin/python --json bench.json
    python tools/bench/sequences.py --rounds 0 --json bench.json      # prints the table again

The model embeds bytes as vectors of as many numbers as there are units; one layer of LSTM or GRU follows, scores of the
next byte, and cross-entropy. PyTorch uses nn.LSTM and nn.GRU, for bf16 within torch.autocast. A step is forward,
backward and SGD with momentum and weight decay; states go on from batch to batch. Every round runs each contender in a
process of its own, on the same weights and bytes; it is an error if their first losses differ. The table has medians
and ranges of the milliseconds of a step; a ratio is the median of the rounds' ratios. Runs are added to those in --json
FILE.

--processor_time is for machines with other work: it counts the processor time of the cheapest step, and is most exact
on one thread.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENGINE, TORCH = "engine", "PyTorch"
PRECISIONS = ("fp32", "bf16")
BYTES = 256
GATES = {"LSTM": 4, "GRU": 3}
# How far the losses of the first step, which are about ln 256, may differ.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="LSTM,GRU", help="(default: LSTM,GRU)")
    parser.add_argument("--precisions", default="fp32,bf16", help="(default: fp32,bf16)")
    shapes = "64x32x256,64x64x512"
    parser.add_argument("--shapes", default=shapes, help=f"steps x sequences x units (default: {shapes})")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: one for each core)")
    parser.add_argument("--rounds", type=int, default=3, help="0: print what --json FILE holds (default: 3)")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement (default: 3)")
    parser.add_argument("--processor_time", action="store_true", help="instead of wall time")
    parser.add_argument("--torch_python", default=sys.executable, help="an interpreter that has torch (default: this)")
    parser.add_argument("--json", metavar="FILE", help="raw figures: read if there, and added to")
    names = ("CONTENDER", "KIND", "PRECISION", "WEIGHTS")
    parser.add_argument("--measure", nargs=4, metavar=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure, options=options)))
        return
    file = Path(options.json) if options.json else None
    runs = json.loads(file.read_text()) if file and file.exists() else []
    cases = [(kind, shape) for kind in options.kinds.split(",") for shape in options.shapes.split(",")]
    before = 1 + max((run["round"] for run in runs), default=-1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(before, before + options.rounds):
            for kind, shape in cases:
                runs += one_round(kind, shape, Path(folder), number, options)
                if file:
                    file.write_text(json.dumps(runs, indent=1))
    if not runs:
        raise SystemExit("nothing was measured")
    print_table(runs)


def one_round(kind: str, shape: str, folder: Path, number: int, options) -> list[dict]:
    """Measures all contenders on a model. Raises SystemExit if one fails, or their losses differ."""
    weights = folder / f"{kind}_{shape}.npz"
    if not weights.exists():
        np.savez(weights, **model(kind, *map(int, shape.split("x"))))
    runs = []
    for precision in options.precisions.split(","):
        for contender, python in ((ENGINE, sys.executable), (TORCH, options.torch_python)):
            command = [python, __file__, "--measure", contender, kind, precision, weights]
            command += ["--seconds", options.seconds, "--threads", options.threads]
            command += ["--processor_time"] if options.processor_time else []
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(options.threads)}
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environ)
            what = f"{kind}, {shape}, {precision}, {contender}"
            if done.returncode:
                raise SystemExit(f"{what}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            result = json.loads(done.stdout.splitlines()[-1])
            print(f"round {number + 1}, {what}: {result['ms']:.2f} ms", file=sys.stderr, flush=True)
            entry = {"kind": kind, "shape": shape, "precision": precision, "round": number, "contender": contender}
            runs.append({**entry, **result})
            if abs(result["loss"] - runs[0]["loss"]) > TOLERANCE[precision]:
                raise SystemExit(f"{what}: has a loss of {result['loss']}, not {runs[0]['loss']}")
    return runs


def model(kind: str, steps: int, batch: int, units: int) -> dict:
    """Returns the arrays of bytes and weights, by name. The gates' rows are in engine's order."""
    draw = np.random.default_rng(1)
    rows = GATES[kind] * units

    def weights(*shape: int) -> np.ndarray:
        return draw.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(units))

    return {
        "text": draw.integers(0, BYTES, (steps, batch)),
        "next": draw.integers(0, BYTES, (steps, batch)),
        "embedding": weights(BYTES, units),
        "of_x": weights(rows, units),
        "of_h": weights(rows, units),
        "bias": weights(rows),
        "scores": weights(BYTES, units),
    }


# What is measured


def measure(contender: str, kind: str, precision: str, weights: str, options) -> dict:
    """Returns ms, the median milliseconds of a step or the least of processor time, and loss, the first step's."""
    with np.load(weights) as file:
        given = dict(file)
    now = time.process_time if options.processor_time else time.perf_counter
    times: list[float] = []
    with {ENGINE: by_engine, TORCH: by_torch}[contender](kind, precision, given, options.threads) as step:
        loss = step()
        step()
        begin = now()
        while len(times) < 3 or now() - begin < options.seconds:
            start = now()
            step()
            times.append(1e3 * (now() - start))
    return {"ms": min(times) if options.processor_time else statistics.median(times), "loss": loss}


@contextlib.contextmanager
def by_engine(kind: str, precision: str, given: dict[str, np.ndarray], threads: int):
    """Returns a context whose value is a function that does a step and returns its loss. threads: not used, as
    OMP_NUM_THREADS sets them."""
    from engine import proto
    from engine.comm.world import World
    from engine.config import parse_net
    from engine.examine.benchmark import Training
    from engine.examine.benchmark import step as run_step
    from engine.net import Net, NetOptions

    (steps, batch), units = given["text"].shape, given["of_h"].shape[1]
    net = Net(parse_net(text_of(kind, steps, batch, units)), proto.TRAIN, NetOptions(precision=precision))
    values = {"text": given["text"], "next": given["next"], "cont": np.ones((steps, batch))}
    for blob in net.inputs:
        net.feed(blob, values[blob.name].astype(np.float32))
    of_h = [given["of_h"]] if kind == "LSTM" else [*np.split(given["of_h"], 3), np.zeros(units, np.float32)]
    recurrent = [given["of_x"], given["bias"], *of_h]
    for name, arrays in (("embed", [given["embedding"]]), ("recurrent", recurrent), ("scores", [given["scores"]])):
        for tensor, array in zip(net.params[name], arrays, strict=True):
            tensor.set(array)
    training = Training(net, World())

    def step() -> float:
        run_step(net, training, 0)
        return float(net.outputs()["loss"])

    yield step
    training.optimizer.wait()
    training.optimizer.close()


def text_of(kind: str, steps: int, batch: int, units: int) -> str:
    """Returns the model's text for engine."""
    shape = f"input_param {{ shape {{ dim: {steps} dim: {batch} }} }}"
    inputs = "".join(f'layer {{ name: "{x}" type: "Input" top: "{x}" {shape} }}\n' for x in ("text", "cont", "next"))
    linear = "linear_before_reset: true" if kind == "GRU" else ""  # PyTorch's formula
    return f"""{inputs}
layer {{ name: "embed" type: "Embed" bottom: "text" top: "embed"
    embed_param {{ input_dim: {BYTES} num_output: {units} bias_term: false }} }}
layer {{ name: "recurrent" type: "{kind}" bottom: "embed" bottom: "cont" top: "hidden"
    recurrent_param {{ num_output: {units} {linear} }} }}
layer {{ name: "scores" type: "InnerProduct" bottom: "hidden" top: "scores"
    inner_product_param {{ num_output: {BYTES} axis: 2 bias_term: false }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "next" top: "loss" softmax_param {{ axis: 2 }} }}
"""


@contextlib.contextmanager
def by_torch(kind: str, precision: str, given: dict[str, np.ndarray], threads: int):
    """Returns a context as by_engine() does, for PyTorch."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    units = given["of_h"].shape[1]
    embed, scores = nn.Embedding(BYTES, units), nn.Linear(units, BYTES, bias=False)
    recurrent = {"LSTM": nn.LSTM, "GRU": nn.GRU}[kind](units, units)
    # From engine's order of gates to PyTorch's: i, f, o, g to i, f, g, o; z, r, h to r, z, h.
    order = [0, 1, 3, 2] if kind == "LSTM" else [1, 0, 2]

    def ordered(rows: np.ndarray):
        gates = np.split(rows, GATES[kind])
        return torch.from_numpy(np.concatenate([gates[i] for i in order]))

    with torch.no_grad():
        embed.weight.copy_(torch.from_numpy(given["embedding"]))
        scores.weight.copy_(torch.from_numpy(given["scores"]))
        recurrent.weight_ih_l0.copy_(ordered(given["of_x"]))
        recurrent.weight_hh_l0.copy_(ordered(given["of_h"]))
        recurrent.bias_ih_l0.copy_(ordered(given["bias"]))
        recurrent.bias_hh_l0.zero_()
    parameters = [*embed.parameters(), *recurrent.parameters(), *scores.parameters()]
    update = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, weight_decay=1e-4, foreach=True)
    text, following = torch.from_numpy(given["text"]), torch.from_numpy(given["next"]).flatten()
    state = None

    def step() -> float:
        nonlocal state
        update.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            hidden, state = recurrent(embed(text), state)
            loss = nn.functional.cross_entropy(scores(hidden).flatten(0, 1), following)
        loss.backward()
        update.step()
        state = tuple(each.detach() for each in state) if kind == "LSTM" else state.detach()
        return float(loss.detach())

    yield step


# The table


def spread(values: list[float]) -> str:
    middle = f"{statistics.median(values):.1f}"
    return middle + (f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else "")


def row(runs: list[dict]) -> list[str]:
    """Returns the cells of one kind and shape. Ratios are PyTorch's time divided by engine's, and engine's time in fp32
    divided by that in bf16."""
    by: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        by.setdefault((run["contender"], run["precision"]), {})[run["round"]] = run["ms"]

    def ratio(over: tuple[str, str], under: tuple[str, str]) -> str:
        both = by.get(over, {}).keys() & by.get(under, {}).keys()
        return f"{statistics.median(by[over][i] / by[under][i] for i in both):.2f}" if both else "-"

    def times(which: tuple[str, str]) -> str:
        return spread([*by[which].values()]) if which in by else "-"

    cells = []
    for precision in PRECISIONS:
        mine, other = (ENGINE, precision), (TORCH, precision)
        cells += [times(mine), times(other), ratio(other, mine)]
    return [*cells, ratio((ENGINE, "fp32"), (ENGINE, "bf16"))]


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def print_table(runs: list[dict]) -> None:
    count = 1 + max(run["round"] for run in runs)
    print(f"{date.today()}, {processor()}, {os.cpu_count()} cores; ms of a step, {count} rounds.\n")
    header = ["layer", "steps x sequences x units"]
    for precision in PRECISIONS:
        header += [f"engine, {precision}", f"PyTorch, {precision}", "ratio"]
    header += ["engine, fp32 / bf16"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    cases: dict[tuple, list[dict]] = {}
    for run in runs:
        cases.setdefault((run["kind"], run["shape"]), []).append(run)
    for (kind, shape), own in cases.items():
        print(f"| {' | '.join([kind, shape.replace('x', ' x '), *row(own)])} |")


if __name__ == "__main__":
    main()
