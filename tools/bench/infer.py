#!/usr/bin/env python3
"""Compares inference of engine and of ONNX Runtime in float32 on the same weights, in turn within one session: on a
shared machine only ratios are meaningful.

    pip install prototxt-engine[onnx] onnxruntime
    python tools/bench/infer.py --nets resnet50,mobilenet --batches 1,32 --rounds 5 --json infer.json
    python tools/bench/infer.py --rounds 0 --json infer.json      # prints the table again

Every round runs, for each net and batch, engine alone (what `engine time --phase TEST` measures), Caffe's Python
interface (the input is written into the net's blob, forward runs, the output is read), and ONNX Runtime on what `engine
export --onnx` has written. Each is a process of its own, which also reports its results: it is an error if they differ
from engine's. The table has medians and ranges of the milliseconds of a batch; a ratio is the median of the rounds'
ratios. Runs are added to those in --json FILE.
"""

import argparse
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
import public_nets

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETS = "resnet50,googlenet,mobilenet,squeezenet"
ENGINE, CAFFE, ONNX = "engine", "Caffe's interface", "ONNX Runtime"
SIDE = 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=NETS, help=f"of nets/ and public_nets.py (default: {NETS})")
    parser.add_argument("--batches", default="1,32", help="(default: 1,32)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: one for each core)")
    parser.add_argument("--rounds", type=int, default=3, help="0: print what --json FILE holds (default: 3)")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement (default: 2)")
    parser.add_argument("--json", metavar="FILE", help="raw figures: read if there, and added to")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "FOLDER", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        contender, folder, batch = options.measure
        print(json.dumps(measure(contender, Path(folder), int(batch), options.seconds, options.threads)))
        return
    file = Path(options.json) if options.json else None
    runs = json.loads(file.read_text()) if file and file.exists() else []
    cases = [(net, int(batch)) for net in options.nets.split(",") for batch in options.batches.split(",")]
    before = 1 + max((run["round"] for run in runs), default=-1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(before, before + options.rounds):
            for net, batch in cases:
                runs += one_round(net, batch, Path(folder), number, options)
                if file:
                    file.write_text(json.dumps(runs, indent=1))
    if not runs:
        raise SystemExit("nothing was measured")
    print_table(runs)


def one_round(net: str, batch: int, folder: Path, number: int, options) -> list[dict]:
    """Measures all contenders on a net and batch. Raises SystemExit if one fails, or computes something else."""
    files = folder / net
    if not files.exists():
        prepare(net, files)
    runs = []
    for contender in (ENGINE, CAFFE, ONNX):
        command = [sys.executable, __file__, "--measure", contender, files, batch]
        command += ["--seconds", options.seconds, "--threads", options.threads]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(options.threads)}
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environ)
        if done.returncode:
            raise SystemExit(f"{net}, {contender}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        result = json.loads(done.stdout.splitlines()[-1])
        print(f"round {number + 1}, {net}, batch {batch}, {contender}: {result['ms']:.2f} ms", file=sys.stderr)
        runs.append({"net": net, "batch": batch, "round": number, "contender": contender, **result})
        if not np.allclose(result["sample"], runs[0]["sample"], rtol=1e-3, atol=1e-4):
            raise SystemExit(f"{net}, batch {batch}: {contender} computes something else than {ENGINE}")
    return runs


# What is measured


def prepare(name: str, folder: Path) -> None:
    """Writes net.prototxt, for deployment with batches of 1, net.caffemodel, and net.onnx, whose batch is dynamic."""
    from google.protobuf import text_format

    import engine.caffe as caffe
    from engine.config import read_net
    from engine.exchange.onnx_export import export_onnx
    from engine.inference.deploy import deploy

    folder.mkdir()
    text, weights = folder / "net.prototxt", folder / "net.caffemodel"
    trained = read_net(public_nets.model_of(name, folder))
    text.write_text(text_format.MessageToString(deploy(trained, (1, 3, SIDE, SIDE)).message))
    net = caffe.Net(text, caffe.TEST)
    for layer, blobs in net.params.items():
        if net.layer_dict[layer].type == "BatchNorm":  # the running variance is 0 before any training
            blobs[1].data[...] = blobs[2].data[...] = 1
    net.save(weights)
    export_onnx(read_net(text), str(weights), str(folder / "net.onnx"))


def measure(contender: str, folder: Path, batch: int, seconds: float, threads: int) -> dict:
    """Returns the median milliseconds of a forward, and a sample of its results."""
    images = np.random.default_rng(1).normal(size=(batch, 3, SIDE, SIDE)).astype(np.float32)
    forward = {ENGINE: by_engine, CAFFE: by_caffe, ONNX: by_onnx}[contender](folder, images, threads)
    for _ in range(2):
        results = forward()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        forward()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(times), "sample": np.ravel(results)[:: max(1, results.size // 100)].tolist()}


def by_engine(folder: Path, images: np.ndarray, threads: int):
    from engine import proto
    from engine.config import read_net
    from engine.inference.trained import load
    from engine.net import Net

    shape = ",".join(map(str, images.shape))
    net = Net(read_net(folder / "net.prototxt", [f"layer[data].input_param.shape[0].dim={shape}"]), proto.TEST)
    load(net, [str(folder / "net.caffemodel")])
    net.feed(net.inputs[0], images)
    output = net.graph.outputs[0].name

    def forward() -> np.ndarray:
        net.run_forward()
        return net.outputs()[output]

    return forward


def by_caffe(folder: Path, images: np.ndarray, threads: int):
    import engine.caffe as caffe

    net = caffe.Net(folder / "net.prototxt", caffe.TEST, weights=folder / "net.caffemodel")
    net.blobs["data"].reshape(*images.shape)

    def forward() -> np.ndarray:
        net.blobs["data"].data[...] = images
        return net.forward()[net.outputs[0]]

    return forward


def by_onnx(folder: Path, images: np.ndarray, threads: int):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "net.onnx", options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: images})[0]


# The table


def print_table(runs: list[dict]) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    count = 1 + max(run["round"] for run in runs)
    print(f"{date.today()}, commit {commit.strip()}, {processor}, {os.cpu_count()} cores; ms of {count} rounds.\n")
    header = ["net", "batch", ENGINE, CAFFE, f"{CAFFE} / {ENGINE}", ONNX, f"{ONNX} / {ENGINE}", f"{ONNX} / {CAFFE}"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for net, batch in dict.fromkeys((run["net"], run["batch"]) for run in runs):
        own = [run for run in runs if (run["net"], run["batch"]) == (net, batch)]
        ms = {name: {r["round"]: r["ms"] for r in own if r["contender"] == name} for name in (ENGINE, CAFFE, ONNX)}

        def ratio(above: str, below: str, ms=ms) -> str:
            ratios = [ms[above][i] / ms[below][i] for i in ms[above].keys() & ms[below].keys()]
            return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

        def spread(name: str, ms=ms) -> str:
            values = ms[name].values()
            return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

        cells = [spread(ENGINE), spread(CAFFE), ratio(CAFFE, ENGINE), spread(ONNX), ratio(ONNX, ENGINE)]
        print(f"| {' | '.join([net, str(batch), *cells, ratio(ONNX, CAFFE)])} |")


if __name__ == "__main__":
    main()
