"""Trains every arm of arms.py with several seeds, and writes down what comes of it.

Each run of an arm is `engine train`, stage by stage, and `engine test`. A run that is killed is continued by the same
command: what is finished stands in results.json, what is not goes on from its last snapshot. See README.md.

    python experiments/cifar10/run.py --archive cifar10.zip --work /scratch/cifar10
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import report
from arms import ARMS, BATCH, COMPARISONS, QUICK_ARMS, Arm, Stage

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from driver import Failure, alone, last_line, write_json  # noqa: E402

GENERATOR = HERE.parent.parent / "nets" / "resnet_cifar.py"
SOLVER = HERE / "solver.prototxt"
NOT_FINITE = re.compile(r"the loss is|infinite or NaN")  # engine's words for a run that diverged
STALENESS = re.compile(r"Staleness of gradients, in updates: ((?:\d+: [\d.]+%, )*\d+: [\d.]+%); mean ([\d.]+),")


@dataclass(frozen=True)
class Plan:
    """What all runs have in common; results of another plan are not mixed with them."""

    depth: int
    epochs: float

    def describe(self) -> dict[str, object]:
        return {"net": f"ResNet-{self.depth}", "epochs": self.epochs}


@dataclass(frozen=True)
class Job:
    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.replace(' ', '_')}-{self.seed}"


class Results:
    """results.json: what is finished, whole at any time. Used by several threads."""

    def __init__(self, path: Path, plan: Plan):
        self.path, self._lock = path, threading.Lock()
        self._content: dict = {**plan.describe(), "runs": []}
        if path.exists():
            try:
                found = json.loads(path.read_text())
                runs = found["runs"]
            except (ValueError, KeyError, TypeError) as error:
                raise Failure(f"{path}: is no results.json: {error!r}; move it away") from None
            for name, wanted in plan.describe().items():
                if found.get(name) != wanted:
                    raise Failure(
                        f"{path}: has results of {name} {found.get(name)}, asked for {wanted}; give --results"
                    )
            self._content["runs"] = runs

    @property
    def runs(self) -> list[dict]:
        return self._content["runs"]

    def done(self) -> set[Job]:
        return {Job(run["arm"], run["seed"]) for run in self.runs}

    def add(self, run: dict) -> None:
        with self._lock:
            self.runs.append(run)
            write_json(self.path, self._content)


class Runner:
    """Trains and tests one job after the other, in a folder of its own each.

    work: holds these folders, and the pictures in `data`. engine: the command, as words.
    """

    def __init__(self, plan: Plan, work: Path, arms: Mapping[str, Arm], engine: Sequence[str]):
        self._plan, self._work, self._arms, self._engine = plan, work, arms, list(engine)
        self._children: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def stop(self) -> None:
        """Ends what is under way, as a kill would."""
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()

    def run(self, job: Job) -> dict:
        """Trains and tests; returns what results.json holds of it. Raises Failure."""
        arm, folder = self._arms[job.arm], self._work / job.name
        folder.mkdir(parents=True, exist_ok=True)
        end_left_over(folder)
        data = str(self._work / "data")
        net = [sys.executable, str(GENERATOR), "--depth", str(self._plan.depth), "--data", data]
        net += ["--batch_size", str(BATCH // arm.ranks)]
        (folder / "net.prototxt").write_text(subprocess.run(net, capture_output=True, text=True, check=True).stdout)
        shutil.copy(SOLVER, folder / "solver.prototxt")
        run: dict = {"arm": job.arm, "seed": job.seed, "host": platform.node(), "commands": []}
        spent = _Spent(folder / "spent.json")
        try:
            members = self._train(job, arm, folder, run["commands"], spent)
        except FloatingPointError as error:
            run["diverged"] = str(error)
        else:
            run |= self._test(folder, members, run["commands"], spent)
        run |= staleness((folder / "log.txt").read_text(errors="replace"))
        shutil.copy(folder / "log.txt", self._work / f"{job.name}.log")
        run |= {"processor_seconds": round(spent.processor, 1), "wall_seconds": round(spent.wall, 1)}
        run["finished"] = time.strftime("%Y-%m-%dT%H:%M:%S")
        return run

    def discard(self, job: Job) -> None:
        """Removes a job's folder, whose results are written."""
        shutil.rmtree(self._work / job.name, ignore_errors=True)

    def _train(self, job: Job, arm: Arm, folder: Path, commands: list[str], spent: _Spent) -> list[Path]:
        """The weights that are to be tested: the collapsed ones, if there are any, else the last ones."""
        before: Path | None = None
        members, after = [], Path()
        for index, stage in enumerate(arm.stages):
            prefix = folder / f"stage{index}"
            words = ["train", "--solver", "solver.prototxt", "--resume", "auto", "--watchdog", "0"]
            words += ["--set", f"snapshot_prefix={prefix.name}", *self._settings(job, arm, stage, index)]
            words += ["--weights", before.name] if before else []
            words += ["--ranks", str(arm.ranks)] if arm.ranks > 1 else []
            words += ["--stage", "collapse"] if stage.collapse else []
            self._engine_runs(words, folder, commands, spent)
            after = max(folder.glob(f"stage{index}_iter_*.caffemodel"), key=_iteration)
            if stage.collapse:
                members.append(after)
            else:
                before = after
        return members or [after]

    def _settings(self, job: Job, arm: Arm, stage: Stage, index: int) -> Iterator[str]:
        """Each stage has another seed, for else it would see the pictures in the order of the stage before."""
        epochs = arm.budget * self._plan.epochs
        yield from ("--set", f"random_seed={1000 * job.seed + index}")
        yield from ("--set", f"max_epoch={stage.length * epochs:.6g}")
        for name, share in stage.shares.items():
            values = share if isinstance(share, tuple) else (share,)
            yield from ("--set", f"{name}={','.join(f'{value * epochs:.6g}' for value in values)}")
        for name, value in stage.settings.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value).lower() if value is True else str(value)
            yield from ("--set", f"{name}={text}")

    def _test(self, folder: Path, members: list[Path], commands: list[str], spent: _Spent) -> dict:
        """Accuracies in percent: of one net, or of an ensemble and its members."""
        words = ["test", "--model", "net.prototxt", "--weights", ",".join(path.name for path in members)]
        words += ["--json", "test.json"] + (["--ensemble"] if len(members) > 1 else [])
        self._engine_runs(words, folder, commands, spent)
        found = json.loads((folder / "test.json").read_text())
        if len(members) == 1:
            return _accuracies(found)
        return {**_accuracies(found["average"]), "members": [_accuracies(each)["top1"] for each in found["members"]]}

    def _engine_runs(self, words: list[str], folder: Path, commands: list[str], spent: _Spent) -> None:
        """Raises FloatingPointError where training diverges, Failure for any other error."""
        commands.append(shlex.join(["engine", *words]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ENGINE_DATA_THREADS": "1"}
        begin = time.monotonic()
        with open(folder / "log.txt", "ab") as log:
            with self._lock:
                if self._stopped:
                    raise Failure("stopped")
                child = subprocess.Popen(
                    [*self._engine, *words],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt of the driver is the driver's
                )
                self._children.add(child)
                (folder / "pid").write_text(str(child.pid))
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            with self._lock:
                self._children.discard(child)
        spent.add(usage, time.monotonic() - begin)
        if child.returncode == 0:
            return
        last = last_line(folder / "log.txt")
        if words[0] == "train" and NOT_FINITE.search(last):
            raise FloatingPointError(last)
        raise Failure(f"{folder}: `{commands[-1]}` ended with status {child.returncode}: {last}")


class _Spent:
    """Processor and wall time of a job, kept in a file beside it for a driver that is killed."""

    def __init__(self, path: Path):
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {"processor": 0.0, "wall": 0.0}
        self.processor, self.wall = found["processor"], found["wall"]

    def add(self, usage: resource.struct_rusage, wall: float) -> None:
        self.processor += usage.ru_utime + usage.ru_stime
        self.wall += wall
        write_json(self._path, {"processor": self.processor, "wall": self.wall})


def end_left_over(folder: Path) -> None:
    """Ends what a driver that was killed has started in this folder and left running: it would train beside its own
    continuation."""
    try:
        process = int((folder / "pid").read_text())
        mine = os.readlink(f"/proc/{process}/cwd") == str(folder)
    except (OSError, ValueError):
        return
    while mine:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
        mine = os.path.exists(f"/proc/{process}/cwd") and _runs(process)


def _runs(process: int) -> bool:
    """Whether a process is there, and no zombie whose parent has not asked for it yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _iteration(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def staleness(log: str) -> dict:
    """The last histogram of a log of asynchronous training, in percent of the gradients, and its mean; empty without.

    Each histogram is of the gradients since the snapshot before.
    """
    found = STALENESS.findall(log)
    if not found:
        return {}
    shares, mean = found[-1]
    pairs = (each.split(": ") for each in shares.split(", "))
    return {"staleness": {stale: float(share.rstrip("%")) for stale, share in pairs}, "mean_staleness": float(mean)}


def _accuracies(found: dict) -> dict:
    def one(name: str) -> float:
        value = found[name]
        return float(value[0] if isinstance(value, list) else value)

    return {"top1": 100 * one("accuracy_top1"), "top5": 100 * one("accuracy_top5"), "loss": one("loss")}


def jobs(arms: Sequence[str], seeds: int) -> list[Job]:
    """In such an order that whole comparisons are finished first."""
    ordered = list(dict.fromkeys(arm for comparison in COMPARISONS for arm in comparison.arms if arm in arms))
    return [Job(arm, seed) for arm in ordered for seed in range(1, seeds + 1)]


def work_through(pending: list[Job], runner: Runner, results: Results, processes: int) -> None:
    """Raises Failure, after the others' jobs under way have been ended."""
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in pending:
        todo.put(job)
    failures: list[BaseException] = []

    def work() -> None:
        while not failures:
            try:
                job = todo.get_nowait()
            except queue.Empty:
                return
            try:
                run = runner.run(job)
                results.add(run)
                runner.discard(job)
                print(f"{job.name}: {report.outcome(run)} ({len(results.runs)} done)", flush=True)
            except BaseException as error:
                failures.append(error)
                runner.stop()

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        failures.append(Failure("interrupted; the same command goes on"))
        runner.stop()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def prepare(archive: str | Path | None, data: Path, engine: Sequence[str]) -> None:
    """Converts the pictures once. Raises Failure."""
    for part in ("train", "test"):
        target = data / f"cifar10_{part}_lmdb"
        if target.exists():
            continue
        if not archive:
            raise Failure(f"{target} is not there; give --archive (or CIFAR10_ZIP), see {HERE / 'README.md'}")
        data.mkdir(parents=True, exist_ok=True)
        shuffle = ["--shuffle"] if part == "train" else []
        words = [*engine, "convert_imageset", f"{archive}/cifar10/{part}", str(target), *shuffle]
        if subprocess.run(words).returncode:
            raise Failure(f"{archive} cannot be converted: see above")


def quick_pictures(folder: Path) -> Path:
    """Made pictures, of which the colour tells the class: the driver can be tried without CIFAR-10."""
    import numpy as np
    from PIL import Image

    random = np.random.RandomState(1)
    for part, count in (("train", 26), ("test", 10)):
        for label in range(10):
            target = folder / "cifar10" / part / str(label)
            target.mkdir(parents=True, exist_ok=True)
            colour = 255 * ((label + 1) >> np.arange(3) & 1) * (0.6 if label > 6 else 1)
            for index in range(count):
                pixels = np.clip(colour + random.normal(0, 60, (32, 32, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{index}.png")
    return folder


def run(options: argparse.Namespace, arms: Mapping[str, Arm], plan: Plan, seeds: int) -> int:
    work: Path = options.work.resolve()
    path: Path = (options.results or work / "results.json").resolve()
    with alone(path):
        results = Results(path, plan)
        engine = shlex.split(options.engine)
        data, archive = work / "data", options.archive
        if options.quick and not (data / "cifar10_test_lmdb").exists():  # the last that prepare() makes
            archive = quick_pictures(work / "pictures")
        prepare(archive, data, engine)
        pending = [job for job in jobs(list(arms), seeds) if job not in results.done()]
        print(f"{len(results.runs)} runs are done, {len(pending)} are to do; results in {path}", flush=True)
        work_through(pending, Runner(plan, work, arms, engine), results, options.processes)
        report.write(path)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", default=os.environ.get("CIFAR10_ZIP"), help="cifar10.zip (default: CIFAR10_ZIP)")
    parser.add_argument("--work", type=Path, default=Path("cifar10"), help="a folder for data, snapshots and logs")
    parser.add_argument("--results", type=Path, help="the results (default: results.json in the folder of --work)")
    parser.add_argument("--depth", type=int, default=20, help="layers of the ResNet (default: 20)")
    parser.add_argument("--epochs", type=float, default=20.0, help="of the pictures in a run (default: 20)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm (default: 5)")
    parser.add_argument("--arms", default="", help="of arms.py, separated by commas (default: all)")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each (default: 2)")
    parser.add_argument("--engine", default="engine", help="the command (default: engine)")
    parser.add_argument("--quick", action="store_true", help="a small net, made pictures, some arms: tries the driver")
    options = parser.parse_args()
    known = QUICK_ARMS if options.quick else ARMS
    names = [name for name in options.arms.split(",") if name] or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--arms: '{unknown[0]}' is unknown; known: {', '.join(known)}")
    arms = {name: known[name] for name in names}
    plan = Plan(8, 1.0) if options.quick else Plan(options.depth, options.epochs)
    seeds = min(2, options.seeds) if options.quick else options.seeds
    try:
        return run(options, arms, plan, seeds)
    except Failure as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
