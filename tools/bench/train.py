#!/usr/bin/env python3
"""Compares the throughput of engine, in training and inference, with PyTorch's, TensorFlow's and the kernel limit, in
turn within one session: on a shared machine only ratios are meaningful.

    python tools/bench/train.py --nets resnet50,alexnet,vgg16,googlenet --precisions fp32,bf16 --rounds 5 \\
        --torch_python /path/to/a/venv/with/torch/bin/python \\
        --tensorflow_python /path/to/another/bin/python --json bench.json
    python tools/bench/train.py --rounds 0 --json bench.json      # prints the table again

Every round runs, for each net, precision and topology (ranks x threads x batch per rank), `engine time`, PyTorch as
installed, PyTorch with tcmalloc, TensorFlow as installed, and the sum of oneDNN's kernels (kernel_limit.py). A step is
forward, backward and update; in phase TEST (inference) it is forward alone. PyTorch trains the same layers from the
same weights (torch_net.py), in the faster of its two memory layouts, and on several ranks with DDP over gloo; it is an
error if its first loss differs. TensorFlow trains the nets of keras.applications that tensorflow_train.py knows.
TensorFlow and the kernel limit are for one rank only.

The table has medians and ranges. A ratio is the median of the rounds' ratios; memory is the peak of rank 0; "first
iteration" is the time from the start of the process to the end of its first iteration. Runs are added to those in
--json FILE. --beside N starts N processes that compute meanwhile, as on a machine that others use.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import public_nets

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETS = "resnet50,alexnet,vgg16,googlenet,inception_v2,inception_v3,inception_resnet_v2,densenet121"
TENSORFLOW_NETS = ("resnet50", "vgg16", "inception_v3", "inception_resnet_v2", "densenet121")  # of tensorflow_train.py
ENGINE, TORCH, TCMALLOC, TENSORFLOW, LIMIT = "engine", "PyTorch", "PyTorch, tcmalloc", "TensorFlow", "kernel limit"
CONTENDERS = (ENGINE, TORCH, TCMALLOC, TENSORFLOW, LIMIT)


class Failed(Exception):
    """Raised if a contender cannot run. The message is one line that says why."""


def run(command: list[str], **environ: str) -> str:
    """Runs a command and returns its standard output. Raises Failed with its last line on stderr. environ: variables to
    set."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environ, cwd=ROOT)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed(lines[-1])
    return done.stdout


def launcher() -> str:
    """Returns the path of mpiexec: the one beside Python, else the first on PATH. Raises Failed if there is none."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        raise Failed("no mpiexec for several ranks")
    return found


def run_engine(case: dict, model: Path, options) -> dict:
    ranks, threads, batch = case["topology"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "time.json"
        command = [launcher(), "-n", ranks] if ranks > 1 else []
        command += [sys.executable, "-m", "engine", "time", "--model", model]
        command += ["--iterations", options.iterations, "--precision", case["precision"], "--json", report]
        command += ["--phase", case["phase"], "--set", f"layer[data].data_param.batch_size={batch}"]
        run(command, OMP_NUM_THREADS=str(threads))
        times = json.loads(report.read_text())
    return {
        "images_per_second": ranks * batch / times["step_ms"] * 1e3,
        "peak_memory_bytes": times["peak_memory_bytes"],
        "to_first_iteration_s": times["to_first_iteration_s"] + times["first_iteration_ms"] / 1e3,
        "version": f"oneDNN {times['onednn']}",
        "waited_share": times["waited_share"],
    }


def run_torch(case: dict, net: Path, options, layout: str, iterations: int, preload: str = "") -> dict:
    """Runs torch_train.py and returns what it prints.

    net: the folder that describe_net.py has written. layout: contiguous, channels_last or best. preload: a library for
    LD_PRELOAD."""
    ranks, threads, _ = case["topology"]
    command = [options.torch_python]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    command += [HERE / "torch_train.py", "--net", net, "--threads", threads]
    command += ["--precision", case["precision"], "--phase", case["phase"]]
    command += ["--iterations", iterations, "--layout", layout]
    environ = {"OMP_NUM_THREADS": str(threads)} | ({"LD_PRELOAD": preload} if preload else {})
    return json.loads(run(command, **environ).splitlines()[-1])


def run_tensorflow(case: dict, options) -> dict:
    _, threads, batch = case["topology"]
    command = [options.tensorflow_python, HERE / "tensorflow_train.py", "--net", case["net"], "--batch_size", batch]
    command += ["--threads", threads, "--precision", case["precision"], "--phase", case["phase"]]
    command += ["--iterations", options.iterations]
    return json.loads(run(command).splitlines()[-1])


def run_limit(case: dict, model: Path) -> dict:
    _, threads, batch = case["topology"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "limit.json"
        command = [sys.executable, HERE / "kernel_limit.py", "--model", model, "--json", report]
        command += ["--batch_size", batch, "--precision", case["precision"], "--phase", case["phase"]]
        run(command, OMP_NUM_THREADS=str(threads))
        result = json.loads(report.read_text())
    return {"images_per_second": result["images_per_second"], "core_images_per_second": batch / result["core_seconds"]}


def tcmalloc() -> str:
    """Returns the path of tcmalloc's library, "" if it is not installed."""
    names = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    return next((f"{folder}/{name}" for name in names for folder in folders if Path(folder, name).exists()), "")


class Bench:
    """Runs the rounds and keeps their figures. folder: for prototxt of public_nets.py and what describe_net.py
    writes."""

    def __init__(self, options, folder: Path):
        self.options, self.folder = options, folder
        self.runs: list[dict] = []
        if options.json and Path(options.json).exists():
            self.runs = json.loads(Path(options.json).read_text())
        self.before = 1 + max((entry["round"] for entry in self.runs), default=-1)
        self.layouts: dict[tuple, str] = {}
        self.nets: dict[tuple, Path] = {}
        self.preload = tcmalloc()
        self.has_torch = bool(options.rounds) and self._look_for_torch()

    def _look_for_torch(self) -> bool:
        try:
            run([self.options.torch_python, "-c", "import torch"])
        except Failed as failure:
            say(
                f"PyTorch is left out: {self.options.torch_python}: {failure}; --torch_python names another interpreter"
            )
            return False
        if not self.preload:
            say("PyTorch with tcmalloc is left out: no libtcmalloc.so.4 (Debian: libgoogle-perftools4)")
        return True

    def contenders(self, case: dict):
        """Yields (name, function that measures it) of each contender that can run a case."""
        model = public_nets.model_of(case["net"], self.folder)
        yield ENGINE, lambda: run_engine(case, model, self.options)
        if self.has_torch:
            for name, preload in ((TORCH, ""), (TCMALLOC, self.preload)):
                if name == TORCH or preload:
                    yield name, lambda preload=preload: self._torch(case, model, preload)
        if self.options.tensorflow_python and case["net"] in TENSORFLOW_NETS and case["topology"][0] == 1:
            yield TENSORFLOW, lambda: run_tensorflow(case, self.options)
        if case["topology"][0] == 1:
            yield LIMIT, lambda: run_limit(case, model)

    def _torch(self, case: dict, model: Path, preload: str) -> dict:
        batch, phase = case["topology"][2], case["phase"]
        net = self.nets.setdefault((model, phase, batch), self.folder / str(len(self.nets)))
        if not (net / "net.json").exists():
            net.mkdir(exist_ok=True)
            run([sys.executable, *map(str, (HERE / "describe_net.py", model, batch, phase, net))])
        key = (model, case["precision"], phase, batch)
        if key not in self.layouts:
            alone = {**case, "topology": [1, *case["topology"][1:]]}
            self.layouts[key] = run_torch(alone, net, self.options, "best", 1, self.preload)["layout"]
        return run_torch(case, net, self.options, self.layouts[key], self.options.iterations, preload)

    def rounds(self, cases: list[dict]) -> None:
        for number in range(self.options.rounds):
            for case in cases:
                for name, measure in self.contenders(case):
                    self._measure(self.before + number, case, name, measure)

    def _measure(self, number: int, case: dict, name: str, measure) -> None:
        what = ", ".join([case["net"], case["phase"], case["precision"], shape(case["topology"]), name])
        what = f"round {number + 1}, {what}"
        try:
            result = measure()
        except Failed as failure:
            say(f"{what}: failed: {failure}")
            return
        say(f"{what}: {result['images_per_second']:.2f} images/s")
        self.runs.append({**case, "round": number, "contender": name, **result})
        if self.options.json:
            Path(self.options.json).write_text(json.dumps(self.runs, indent=1))


@contextlib.contextmanager
def others(count: int):
    """Returns a context in which so many processes compute without end."""
    found = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in found:
            each.kill()
            each.wait()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def shape(topology: list[int]) -> str:
    return " x ".join(map(str, topology))


def spread(values: list[float], unit: float = 1, digits: int = 2) -> str:
    low, middle, high = (value / unit for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.{digits}f}" + (f" ({low:.{digits}f}-{high:.{digits}f})" if len(values) > 1 else "")


def row(runs: list[dict]) -> list[str]:
    """Returns the cells of one net, phase, precision and topology."""
    by = {name: {r["round"]: r for r in runs if r["contender"] == name} for name in CONTENDERS}

    def values(name: str, field: str = "images_per_second", unit: float = 1, digits: int = 2) -> str:
        return spread([r[field] for r in by[name].values()], unit, digits) if by[name] else "-"

    def ratio(name: str, field: str = "images_per_second") -> str:
        both = by[ENGINE].keys() & by[name].keys()
        pairs = [by[ENGINE][i]["images_per_second"] / by[name][i][field] for i in both]
        return f"{statistics.median(pairs):.2f}" if pairs else "-"

    def middles(field: str, unit: float) -> str:
        columns = [[r[field] / unit for r in by[name].values()] for name in (ENGINE, TORCH, TCMALLOC)]
        return " / ".join(f"{statistics.median(column):.2f}" if column else "-" for column in columns)

    speeds = [cell for name in (LIMIT, TCMALLOC, TORCH, TENSORFLOW) for cell in (values(name), ratio(name))]
    memory, first = middles("peak_memory_bytes", 1e9), middles("to_first_iteration_s", 1)
    speeds.insert(2, ratio(LIMIT, "core_images_per_second"))
    return [values(ENGINE), *speeds, memory, first]


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def print_table(runs: list[dict]) -> None:
    header = [
        "net",
        "phase",
        "precision",
        "ranks x threads x batch",
        "engine",
        "limit",
        "ratio",
        "ratio to convolutions + norms",
    ]
    header += [
        "PyTorch, tcmalloc",
        "ratio",
        "PyTorch",
        "ratio",
        "TensorFlow",
        "ratio",
        "memory, GB: engine / PyTorch / with tcmalloc",
    ]
    header += ["first iteration, s: the same"]
    count = 1 + max(entry["round"] for entry in runs)
    versions = ", ".join(dict.fromkeys(r["version"] for r in runs if r["contender"] == ENGINE))
    rivals = (f", {r['contender']} {r['version']}" for r in runs if r["contender"] in (TORCH, TENSORFLOW))
    rivals = "".join(dict.fromkeys(rivals))
    waited = max(r.get("waited_share", 0) for r in runs)
    print(f"{date.today()}, {processor()}, {os.cpu_count()} cores, {versions}{rivals}; images/s of {count} rounds.")
    print(f"engine's threads waited for cores that others had {100 * waited:.0f}% of their time at most.\n")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    cases: dict[tuple, list[dict]] = {}
    for each in runs:
        beside = f", beside {each['beside']}" if each.get("beside") else ""
        key = each["net"], each["phase"], each["precision"], shape(each["topology"]) + beside
        cases.setdefault(key, []).append(each)
    for key, own in cases.items():
        print(f"| {' | '.join([*key, *row(own)])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    more = ", ".join(public_nets.NETS)
    parser.add_argument(
        "--nets", default=NETS, help=f"of nets/; {more}; or files, separated by commas (default: {NETS})"
    )
    parser.add_argument("--precisions", default="fp32,bf16", help="(default: fp32,bf16)")
    parser.add_argument("--phases", default="TRAIN", help="TRAIN,TEST for inference, too (default: TRAIN)")
    topologies = "1x2x32,2x1x16"
    parser.add_argument("--topologies", default=topologies, help=f"ranks x threads x batch (default: {topologies})")
    parser.add_argument("--rounds", type=int, default=3, help="0: print what --json FILE holds (default: 3)")
    parser.add_argument("--iterations", type=int, default=5, help="steps per round that count (default: 5)")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="processes that compute, too (default: 0)")
    parser.add_argument("--torch_python", default=sys.executable, help="an interpreter that has torch (default: this)")
    parser.add_argument("--tensorflow_python", help="an interpreter that has tensorflow (default: none)")
    parser.add_argument("--json", metavar="FILE", help="raw figures: read if there, and added to")
    options = parser.parse_args()
    shapes = [[int(number) for number in text.split("x")] for text in options.topologies.split(",")]
    cases = [
        {"net": net, "phase": phase, "precision": precision, "topology": topology, "beside": options.beside}
        for net in options.nets.split(",")
        for phase in options.phases.split(",")
        for precision in options.precisions.split(",")
        for topology in shapes
        if phase == "TRAIN" or topology[0] == 1
    ]
    with tempfile.TemporaryDirectory() as folder, others(options.beside):
        bench = Bench(options, Path(folder))
        bench.rounds(cases)
    if not bench.runs:
        raise SystemExit("nothing was measured")
    print_table(bench.runs)


if __name__ == "__main__":
    main()
