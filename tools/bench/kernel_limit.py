#!/usr/bin/env python3
"""Measures the kernel limit of a net: the sum of the least times of the oneDNN primitives that training it takes, each
run alone.

    python tools/bench/kernel_limit.py --model nets/resnet50.prototxt --batch_size 32 --precision bf16

It counts forward, data gradient and weight gradient of Convolution and InnerProduct, and forward and backward of
BatchNorm (with its Scale, and with the ReLU that follows it), Pooling and LRN. It does not count every other ReLU,
Eltwise, Concat, Dropout, losses, sums of gradients, reorders and the update, as if they were free. In phase TEST only
forward counts, and norms do not, because they can be folded into weights. Only the shapes come from engine's graph; its
executor takes no part. kernel_limit.cpp is compiled with the oneDNN of engine itself (tools/build_csrc.py).
Convolutions in groups can be faster than here, because oneDNN's first choice is not always its fastest. OMP_NUM_THREADS
sets the threads.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from build_csrc import build as build_csrc  # noqa: E402

from engine import proto  # noqa: E402
from engine.config import read_net  # noqa: E402
from engine.data.source_shapes import SourceShapes  # noqa: E402
from engine.graph.build import build  # noqa: E402
from engine.graph.passes.gradients import mark_gradients  # noqa: E402
from engine.graph.passes.split import insert_splits  # noqa: E402

# Layers whose tops have the layout of the first bottom.
KEEP_LAYOUT = (
    "Scale",
    "ReLU",
    "ReLU6",
    "Split",
    "Dropout",
    "Concat",
    "Eltwise",
)


def kernels(model: str, batch: int, phase: int = proto.TRAIN):
    """Returns (layer name, kind, line for kernel_limit.cpp) of every layer that counts, in the net's order."""
    config = read_net(model, [f"layer[data].data_param.batch_size={batch}"])
    graph = build(config, phase, shapes_of=SourceShapes(config.message, phase, lambda note: None))
    insert_splits(graph)
    mark_gradients(graph, graph.trains)
    readers: dict = {}
    for layer in graph.layers:
        for blob in layer.bottoms:
            readers.setdefault(blob, []).append(layer)
    source_of: dict = {}  # blob -> number of the line whose top has the same layout
    lines: list[tuple[str, str, str]] = []
    for layer in graph.layers:
        source = source_of.get(layer.bottoms[0], -1) if layer.bottoms else -1
        describe = KINDS.get(layer.type)
        if describe:
            kind, numbers = describe(layer, readers)
            lines.append((layer.name, kind, f"{kind} {source} {' '.join(map(str, numbers))}"))
            source_of.update(dict.fromkeys(layer.tops, len(lines) - 1))
        elif layer.type in KEEP_LAYOUT:
            source_of.update(dict.fromkeys(layer.tops, source))
    return lines


def plane(shape) -> list[int]:
    """Returns n, c, h, w of a blob. Raises SystemExit if it has not 2 or 4 axes."""
    if len(shape) not in (2, 4):
        raise SystemExit(f"a blob of 2 or 4 axes expected, got {tuple(shape)}")
    return [*shape, 1, 1][:4]


# Each of these functions returns (kind, numbers) of a layer for its line. readers: blob -> the layers that read it.


def convolution(layer, _):
    window = layer.window
    numbers = [
        *plane(layer.shapes[0]),
        *plane(layer.tops[0].shape),
        *window["kernel"],
        *window["stride"],
        *window["pad"],
    ]
    numbers += [*window["dilation"], layer.param.group, int(layer.bottoms[0].needs_gradient)]
    return "convolution", numbers


def inner_product(layer, _):
    return "inner_product", [*plane(layer.shapes[0]), layer.tops[0].shape[1], int(layer.bottoms[0].needs_gradient)]


def batch_norm(layer, readers):
    after = layer
    for kinds in (["Scale"], ["ReLU", "ReLU6"]):
        following = readers.get(after.tops[0], [])
        if len(following) == 1 and following[0].type in kinds:
            after = following[0]
    return "batch_norm", [*plane(layer.shapes[0]), int(after.type in ("ReLU", "ReLU6"))]


def pooling(layer, _):
    window = layer.window
    numbers = [
        *plane(layer.shapes[0]),
        *plane(layer.tops[0].shape),
        *window["kernel"],
        *window["stride"],
        *window["pad"],
    ]
    return "pooling", [*numbers, int(layer.param.pool == layer.param.MAX)]


def lrn(layer, _):
    param = layer.param
    return "lrn", [*plane(layer.shapes[0]), param.local_size, param.alpha, param.beta, param.k]


KINDS = {
    "Convolution": convolution,
    "InnerProduct": inner_product,
    "BatchNorm": batch_norm,
    "Pooling": pooling,
    "LRN": lrn,
}


def measure(
    model: str, batch: int, precision: str, repeats: int = 3, threads: int | None = None, phase: str = "TRAIN"
) -> dict:
    """Runs the kernels of a net's step.

    Args:
        batch: images in a batch.
        repeats: runs of each kernel, of which the best counts.
        threads: OMP_NUM_THREADS by default.

    Returns:
        seconds, of the whole step; by_kind, the same for each kind; core_seconds, those of convolutions and norms
        alone; images_per_second; kernels, rows of (layer, kind, seconds of forward, data gradient and weight gradient,
        implementation).

    Raises:
        SystemExit: If the program fails.
    """
    lines = kernels(model, batch, proto.TRAIN if phase == "TRAIN" else proto.TEST)
    environ = dict(os.environ) | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    text = "".join(f"{line}\n" for _, _, line in lines)
    command = [str(build_csrc("kernel_limit") / "kernel_limit"), precision, str(repeats)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise SystemExit(f"{model}, {precision}: {done.stderr.strip() or 'the kernel program failed'}")
    rows = []
    for (name, kind, _), answer in zip(lines, done.stdout.splitlines(), strict=True):
        forward, data, weights, implementation = answer.split(" ", 3)
        if phase == "TEST":
            data = weights = 0
            forward = 0 if kind == "batch_norm" else forward
        rows.append((name, kind, float(forward), float(data), float(weights), implementation))
    by_kind = {kind: sum(sum(row[2:5]) for row in rows if row[1] == kind) for kind in dict.fromkeys(r[1] for r in rows)}
    seconds = sum(by_kind.values())
    core = sum(by_kind.get(kind, 0.0) for kind in ("convolution", "batch_norm"))
    return {
        "images_per_second": batch / seconds,
        "seconds": seconds,
        "core_seconds": core,
        "by_kind": by_kind,
        "kernels": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FILE")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--phase", choices=["TRAIN", "TEST"], default="TRAIN")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of a kernel; the best counts")
    parser.add_argument("--json", metavar="FILE", help="also write every kernel's times as JSON")
    options = parser.parse_args()
    result = measure(options.model, options.batch_size, options.precision, options.repeats, phase=options.phase)
    for name, _, forward, data, weights, implementation in result["kernels"]:
        times = "".join(f"{1e3 * seconds:10.3f}" for seconds in (forward, data, weights))
        print(f"{name:40s}{times} ms  {implementation}")
    kinds = ", ".join(f"{kind} {1e3 * seconds:.0f}" for kind, seconds in result["by_kind"].items())
    print(f"{kinds}; sum {1e3 * result['seconds']:.0f} ms, {result['images_per_second']:.1f} images/s")
    core = result["core_seconds"]
    print(f"convolutions and norms alone: {1e3 * core:.0f} ms, {options.batch_size / core:.1f} images/s")
    if options.json:
        Path(options.json).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
