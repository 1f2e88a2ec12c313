#!/usr/bin/env python3
"""Compares how fast engine and other programs turn JPEGs into a net's input, in turn within one session: on a shared
machine only ratios are meaningful.

    python tools/bench/data.py --images imagenet-sample.zip --rounds 5 --baseline /a/checkout/of/an/older/engine \\
        --python torchvision=/path/to/a/venv/bin/python --json data.json
    python tools/bench/data.py --images imagenet-sample.zip --sources --rounds 5
    python tools/bench/data.py --images folder/of/jpegs --nets resnet50,alexnet --precisions fp32,bf16 --iterations 20

The work is that of nets/resnet50.prototxt: a random patch of 8% to 100% of the area is resized to 224 x 224 by a cubic
or a linear filter, mirrored half of the time, and becomes floats (3, 224, 224), less the mean and scaled. engine reads
an LMDB of the files through its Data layer, on one thread; the others get the bytes of the files. OpenCV's filters
alias where pictures shrink, all others do not. Every contender is a process of its own, which is asked for one pass
over the pictures at a time, and whose processor time counts. Contenders that cannot be imported are left out. The last
row is engine on two threads, of which elapsed time counts.

With --sources, engine reads the same pictures from each type of source, through the same transform. The filter "bytes"
reads them as they are stored, which shows what a source itself costs.

With --nets, nets are trained instead, from an LMDB of the JPEGs and on synthetic input. The table has the step of both,
how much of the first one was waiting for data, and the processor time of its decoding.
"""

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import date
from pathlib import Path

from data_contenders import BASELINE, ENGINE, SOURCES, TWO, pictures

ROOT = Path(__file__).resolve().parent.parent.parent
RIVALS = ("Pillow", "OpenCV", "simplejpeg + OpenCV", "simplejpeg with DCT scaling + OpenCV", "torchvision", "DALI")
FILTERS = ("CUBIC", "LINEAR")


class Contender:
    """A process of data_contenders.py."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path, kind: str):
        """Starts the process. Raises RuntimeError, with its last line on stderr, if it does not get ready."""
        root = options.baseline if name == BASELINE else ROOT
        python = dict(entry.split("=", 1) for entry in options.python).get(name, sys.executable)
        command = [python, ROOT / "tools/bench/data_contenders.py", options.images, name, folder, kind]
        environ = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        words, pipe = [str(part) for part in command], subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._questions, self._answers = self._process.stdin, self._process.stdout
        if self._answers.readline() != "ready\n":
            raise RuntimeError((self._process.stderr.read().strip().splitlines() or ["it ended"])[-1])

    def measure(self) -> tuple[float, float]:
        """Has the process do a pass. Returns (processor, elapsed) seconds of it."""
        self._questions.write("go\n")
        self._questions.flush()
        processor, elapsed = self._answers.readline().split()
        return float(processor), float(elapsed)

    def close(self) -> None:
        self._questions.close()
        self._process.wait()


def write_lmdb(images: Path, folder: Path) -> int:
    """Writes the pictures to folder/lmdb. Returns their number."""
    import lmdb

    from engine import proto

    count = 0
    with lmdb.open(str(folder / "lmdb"), map_size=1 << 40) as db, db.begin(write=True) as out:
        for count, data in enumerate(pictures(images), 1):
            datum = proto.Datum(data=data, encoded=True, label=count % 1000)
            out.put(f"{count:08d}".encode(), datum.SerializeToString())
    return count


def write_sources(images: Path, folder: Path) -> None:
    """Writes the pictures of folder/lmdb as all other types of SOURCES, with other writers than engine's if there are
    any."""
    import plyvel

    from engine.data import example

    files = {f"{n % 10}/{n:05d}.jpg": data for n, data in enumerate(pictures(images), 1)}
    for name, data in files.items():
        (folder / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "folder" / name).write_bytes(data)
    with zipfile.ZipFile(folder / "x.zip", "w") as archive, tarfile.open(folder / "x.tar", "w") as tar:
        for name in files:
            archive.write(folder / "folder" / name, name)
            tar.add(folder / "folder" / name, name)
    for shard in range(4):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as tar:
            for name in list(files)[shard::4]:
                tar.add(folder / "folder" / name, name)
    magic = struct.pack("<I", 0xCED7230A)
    with (folder / "x.rec").open("wb") as records, (folder / "x.tfrecord").open("wb") as out:
        for n, (name, data) in enumerate(files.items()):
            label = int(name.split("/")[0])
            content = struct.pack("<IfQQ", 0, label, n, 0) + data
            assert magic not in content  # the record would have to be cut into pieces
            records.write(magic + struct.pack("<I", len(content)) + content + bytes(-len(content) % 4))
            out.write(example.record(example.serialise({"image/encoded": data, "image/class/label": [label]})))
    with plyvel.DB(str(folder / "leveldb"), create_if_missing=True) as db:
        from engine import proto

        for n, data in enumerate(files.values()):
            db.put(f"{n:08d}".encode(), proto.Datum(data=data, encoded=True, label=n % 1000).SerializeToString())


def spread(values: list[float], digits: int = 0) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    return middle + (f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else "")


def compare(options: argparse.Namespace, folder: Path, count: int) -> list[dict]:
    """Measures all contenders, round by round. Returns a dict for each run: filter, round, contender, and images per
    second and per second of a core."""
    names = [ENGINE, *([BASELINE] if options.baseline else []), *options.rivals.split(","), TWO]
    kinds = options.filters.split(",")
    if options.sources:
        write_sources(options.images, folder)
        names, kinds = list(SOURCES), ["CUBIC", "bytes"]
    runs: list[dict] = []
    for kind in kinds:
        running: dict[str, Contender] = {}
        for name in names:
            try:
                running[name] = Contender(name, options, folder, kind)
            except RuntimeError as error:
                say(f"{name} is left out: {error}")
        for number in range(options.rounds):
            for name, process in running.items():
                processor, elapsed = process.measure()
                passes = 20 if kind == "bytes" else 1
                rate, wall = passes * count / processor, passes * count / elapsed
                say(f"{kind}, round {number + 1}, {name}: {rate:.0f} images per core-second, {wall:.0f} images/s")
                entry = {"filter": kind, "round": number, "contender": name}
                runs.append({**entry, "per_core_second": rate, "per_second": wall})
        for process in running.values():
            process.close()
    return runs


def print_table(runs: list[dict]) -> None:
    """Prints the runs as a table in Markdown."""
    print(
        f"{date.today()}, {processor_name()}, images per core-second: median (range); ratio: of the rounds' medians.\n"
    )
    first = next(iter(dict.fromkeys(run["contender"] for run in runs)))
    print(f"| filter | contender | images per core-second | {first} / this | images/s elapsed | two threads / one |")
    print("|---|---|---|---|---|---|")
    for kind in dict.fromkeys(run["filter"] for run in runs):
        by: dict[str, list[dict]] = {}
        for run in runs:
            if run["filter"] == kind:
                by.setdefault(run["contender"], []).append(run)
        for name, own in by.items():
            pairs = [(a, b) for a, b in zip(by[first], own, strict=True)]
            ratio = statistics.median(a["per_core_second"] / b["per_core_second"] for a, b in pairs)
            faster = (
                f"{statistics.median(b['per_second'] / a['per_second'] for a, b in pairs):.2f}" if name == TWO else ""
            )
            rates = [[run[field] for run in own] for field in ("per_core_second", "per_second")]
            print(f"| {kind} | {name} | {spread(rates[0])} | {ratio:.2f} | {spread(rates[1])} | {faster} |")


# Nets


def train(net: str, precision: str, source: Path, options: argparse.Namespace, folder: Path) -> dict:
    """Runs `engine train` on the LMDB. Returns step_ms, the milliseconds of a step, and data, the percentage of them
    that was waiting for data. The first half of the steps does not count; the second one ends with its only display,
    because a display reads all weights."""
    solver = folder / "solver.prototxt"
    solver.write_text(
        f'net: "{ROOT}/nets/{net}.prototxt"\nbase_lr: 1e-6\nlr_policy: "fixed"\nmomentum: 0.9\n'
        f"display: {options.iterations}\nmax_iter: {2 * options.iterations + 1}\n"
        f'snapshot: 0\nsnapshot_after_train: false\nsnapshot_prefix: "{folder}/x"\n'
    )
    command = [sys.executable, "-m", "engine", "train", "--solver", solver, "--precision", precision]
    command += ["--set", f"layer[data].data_param.source={source}"]
    done = engine_run([*command, "--set", f"layer[data].data_param.batch_size={options.batch}"])
    waits = re.findall(r"([\d.]+) ms per iteration: compute [\d.]+, data ([\d.]+)", done.stderr)
    speeds = re.findall(r"Iteration \d+ \(([\d.]+) iter/s", done.stderr)
    whole, wait = waits[-1]
    return {"step_ms": 1e3 / float(speeds[-1]), "data": 100 * float(wait) / float(whole)}


def synthetic(net: str, precision: str, options: argparse.Namespace, folder: Path) -> float:
    """Returns the median step of `engine time`, in milliseconds."""
    report = folder / "time.json"
    command = [sys.executable, "-m", "engine", "time", "--model", ROOT / f"nets/{net}.prototxt", "--json", report]
    command += ["--iterations", options.iterations, "--precision", precision]
    engine_run([*command, "--set", f"layer[data].data_param.batch_size={options.batch}"])
    return json.loads(report.read_text())["step_ms"]


def engine_run(command: list) -> subprocess.CompletedProcess[str]:
    """Runs a command of engine. Raises SystemExit with its last line on stderr if it fails."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environ, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip().splitlines()[-1]}")
    return done


def compare_nets(options: argparse.Namespace, folder: Path, count: int) -> None:
    process = Contender(ENGINE, options, folder, "CUBIC")
    print(
        "| net | precision | synthetic step, ms | step from JPEGs, ms | longer by | decoding, core-ms a step | data |"
    )
    print("|---|---|---|---|---|---|---|")
    for net in options.nets.split(","):
        for precision in options.precisions.split(","):
            steps: dict[str, list[float]] = {"synthetic": [], "JPEGs": [], "decoding": [], "data": []}
            for _ in range(options.rounds):
                steps["synthetic"].append(synthetic(net, precision, options, folder))
                trained = train(net, precision, folder / "lmdb", options, folder)
                steps["JPEGs"].append(trained["step_ms"])
                steps["data"].append(trained["data"])
                steps["decoding"].append(1e3 * process.measure()[0] / count * options.batch)
            longer = statistics.median(b - a for a, b in zip(steps["synthetic"], steps["JPEGs"], strict=True))
            cells = [spread(steps["synthetic"]), spread(steps["JPEGs"]), f"{longer:.0f} ms", spread(steps["decoding"])]
            print(f"| {net} | {precision} | {' | '.join(cells)} | {spread(steps['data'], 1)}% |", flush=True)
    process.close()


def processor_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="JPEGs: a folder or a zip")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--filters", default=",".join(FILTERS), help=f"(default: {','.join(FILTERS)})")
    parser.add_argument("--rivals", default=",".join(RIVALS), help=f"(default: {','.join(RIVALS)})")
    parser.add_argument("--baseline", type=Path, help="a checkout of engine, built, to compare with")
    parser.add_argument("--python", metavar="NAME=FILE", action="append", default=[], help="a contender's interpreter")
    parser.add_argument("--sources", action="store_true", help="compare the types of sources instead")
    parser.add_argument("--nets", help="of nets/, separated by commas: train these instead")
    parser.add_argument("--precisions", default="fp32,bf16", help="(default: fp32,bf16)")
    parser.add_argument("--batch", type=int, default=32, help="images a step of a net (default: 32)")
    parser.add_argument("--iterations", type=int, default=10, help="steps of a net that count (default: 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the raw figures there")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as name:
        count = write_lmdb(options.images, Path(name))
        if not count:
            raise SystemExit(f"{options.images} has no JPEGs")
        if options.nets:
            compare_nets(options, Path(name), count)
            return
        runs = compare(options, Path(name), count)
    print_table(runs)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
