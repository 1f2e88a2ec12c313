"""Several labels at once: does a net that knows single pictures learn mosaics of them better than one from nothing?

A mosaic is 2 x 2 pictures of CIFAR-10; its labels are the set of their classes. A ResNet is trained on single pictures
once; then, for each seed, one net starts from its weights and one from nothing, on the same mosaics with the same
solver. Both are scored by the area under the ROC curve (AUROC) of each label, on mosaics of the test pictures. A run
that is killed is continued by the same command; what is finished stands in results.json. See README.md.

    python experiments/mosaics/run.py --archive cifar10.zip --work /scratch/mosaics
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "nets")]

import resnet_cifar  # noqa: E402
from driver import Failure, alone, last_line, write_json  # noqa: E402
from writer import layer  # noqa: E402

ARMS = ("fine-tuned", "from scratch")
SIDE, PER_SIDE = 32, 2
TEST_BATCH = 50
WANTED = 0.85  # AUROC of each label that fine-tuning has to come to


@dataclass(frozen=True)
class Plan:
    """What all runs have in common; results of another plan are not mixed with them.

    single: pictures of each class for pre-training, 0: all. mosaics, test_mosaics: how many are made.
    """

    depth: int
    single: int
    single_epochs: float
    mosaics: int
    test_mosaics: int
    epochs: float


class Pictures:
    """The image files of cifar10/PART/CLASS in an archive or a folder, by class in alphabetical order."""

    def __init__(self, archive: str):
        try:
            self._zip = zipfile.ZipFile(archive) if os.path.isfile(archive) else None
        except zipfile.BadZipFile:
            raise Failure(f"{archive} is no zip file") from None
        self._root = Path(archive)
        if self._zip:
            names = sorted(self._zip.namelist())
        else:
            names = sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*.*"))
        self.classes: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
        for name in names:
            top, _, rest = name.partition("/")
            part, _, rest = rest.partition("/")
            if top == "cifar10" and part in self.classes and rest.count("/") == 1 and not rest.endswith("/"):
                self.classes[part].setdefault(rest.partition("/")[0], []).append(name)
        if not all(len(found) > 1 for found in self.classes.values()):
            raise Failure(f"{archive} has no cifar10/train/CLASS/*.jpg and cifar10/test/CLASS/*.jpg")

    def read(self, name: str) -> bytes:
        return self._zip.read(name) if self._zip else (self._root / name).read_bytes()


def make_mosaics(pictures: Pictures, part: str, count: int, folder: Path, seed: int) -> list[str]:
    """Writes pictures of 64 x 64 to a folder; returns the lines of their list, a 0 or 1 for each class."""
    draw = np.random.RandomState(seed)
    everything = [(number, name) for number, names in enumerate(pictures.classes[part].values()) for name in names]
    lines = []
    folder.mkdir(parents=True)
    for index in range(count):
        mosaic = Image.new("RGB", (PER_SIDE * SIDE, PER_SIDE * SIDE))
        there = np.zeros(len(pictures.classes[part]), int)
        for place, chosen in enumerate(draw.choice(len(everything), PER_SIDE**2, replace=False)):
            number, name = everything[chosen]
            with Image.open(io.BytesIO(pictures.read(name))) as picture:
                mosaic.paste(picture.convert("RGB"), (SIDE * (place % PER_SIDE), SIDE * (place // PER_SIDE)))
            there[number] = 1
        mosaic.save(folder / f"{index:05d}.png")
        lines.append(f"{index:05d}.png {' '.join(map(str, there))}\n")
    return lines


def net_text(plan: Plan, data: Path, labels: int) -> str:
    """The net for mosaics: the body of the net for single pictures, and a sigmoid for each label."""
    parameters = f'inner_product_param {{\n    num_output: {labels}\n    weight_filler {{ type: "xavier" }}\n}}'
    crop = f"crop_size: {PER_SIDE * SIDE}"
    shuffled = "\n    shuffle: true"
    train, test = (str(data / f"mosaics_{part}_lmdb") for part in ("train", "test"))
    return "".join(
        [
            resnet_cifar.data("phase: TRAIN", train, 32, f"{crop}\n    pad: 4\n    mirror: true", shuffled),
            resnet_cifar.data("phase: TEST", test, TEST_BATCH, crop),
            *resnet_cifar.body((plan.depth - 2) // 6),
            layer("scores", "InnerProduct", "pool", "scores", parameters),
            layer("loss", "SigmoidCrossEntropyLoss", "scores label", "loss"),
        ]
    )


class Experiment:
    """work: holds everything. engine, mpiexec: the commands, as words."""

    def __init__(self, plan: Plan, work: Path, engine: list[str], mpiexec: list[str]):
        self._plan, self._work, self._engine, self._mpiexec = plan, work, engine, mpiexec
        self._data, self.path = work / "data", work / "results.json"
        self.results: dict = {"plan": asdict(plan), "runs": []}
        if self.path.exists():
            try:
                self.results = json.loads(self.path.read_text())
                found, _ = self.results["plan"], self.results["runs"]
            except (ValueError, KeyError, TypeError):
                raise Failure(f"{self.path} is no results.json of this experiment; move it away") from None
            if found != asdict(plan):
                raise Failure(f"{self.path} has results of {found}, asked for {asdict(plan)}; give another --work")

    def prepare(self, archive: str) -> None:
        """Makes the LMDBs, each once."""
        if all((self._data / name).exists() for name in ("single_lmdb", "mosaics_train_lmdb", "mosaics_test_lmdb")):
            return
        if not archive:
            raise Failure(f"{self._data} has no LMDBs; give --archive (or CIFAR10_ZIP), see {HERE / 'README.md'}")
        pictures = Pictures(archive)
        self._data.mkdir(parents=True, exist_ok=True)
        (self._data / "labels.txt").write_text("".join(f"{name}\n" for name in pictures.classes["train"]))
        if not (self._data / "single_lmdb").exists():
            lines = []
            for number, names in enumerate(pictures.classes["train"].values()):
                lines += [f"{name.partition('/')[2]} {number}\n" for name in names[: self._plan.single or None]]
            (self._data / "single.txt").write_text("".join(lines))
            root = f"{os.path.abspath(archive)}/cifar10"
            self._run("convert_imageset", root, "single.txt", "single_lmdb", folder=self._data)
        for part, count, seed in (("train", self._plan.mosaics, 1), ("test", self._plan.test_mosaics, 2)):
            if not (self._data / f"mosaics_{part}_lmdb").exists():
                folder = self._data / f"mosaics_{part}"
                shutil.rmtree(folder, ignore_errors=True)
                (self._data / f"{part}.txt").write_text("".join(make_mosaics(pictures, part, count, folder, seed)))
                self._run("convert_imageset", folder.name, f"{part}.txt", f"{folder.name}_lmdb", folder=self._data)

    def pretrain(self) -> Path:
        """Trains on single pictures; returns the weights."""
        folder = self._work / "single"
        weights = folder / "weights.caffemodel"
        if not weights.exists():
            folder.mkdir(parents=True, exist_ok=True)
            blocks = (self._plan.depth - 2) // 6
            crops = "crop_size: 32\n    pad: 4\n    mirror: true"
            source = resnet_cifar.data("phase: TRAIN", "../data/single_lmdb", 128, crops, "\n    shuffle: true")
            head = [each for each in resnet_cifar.head() if "Accuracy" not in each]
            (folder / "net.prototxt").write_text("".join([source, *resnet_cifar.body(blocks), *head]))
            self._train(folder, 0.1, self._plan.single_epochs, 1, [])
            os.replace(newest(folder), weights)
        return weights

    def run(self, arm: str, seed: int, pretrained: Path) -> None:
        """Trains and tests one net, and writes down what its labels have come to."""
        folder = self._work / f"{arm.replace(' ', '_')}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        labels = (self._data / "labels.txt").read_text().split()
        (folder / "net.prototxt").write_text(net_text(self._plan, Path("../data"), len(labels)))
        shutil.copy(self._data / "labels.txt", folder)
        begin = time.monotonic()
        start = ["--weights", os.path.relpath(pretrained, folder)] if arm == ARMS[0] else []
        self._train(folder, 0.02, self._plan.epochs, seed, start)
        seconds = time.monotonic() - begin
        weights = newest(folder).name
        test = ["test", "--model", "net.prototxt", "--weights", weights]
        self._run(*test, "--report", "report", folder=folder)
        found = json.loads((folder / "report/report.json").read_text())["labels"]["scores"]
        run = {"arm": arm, "seed": seed, "labels": labels, "auroc": found["auroc"], "seconds": round(seconds, 1)}
        if seed == 1:
            run["agrees"] = self._compared(folder, test, labels, found["auroc"])
        self.results["runs"].append(run)
        write_json(self.path, self.results)

    def _compared(self, folder: Path, test: list[str], labels: list[str], areas: list[float]) -> dict[str, float]:
        """The largest differences of the areas: from those on four ranks, and from scikit-learn's of the scores in
        either report."""
        differences, reports = {}, {"1 rank": "report"}
        if self._mpiexec:
            reports["4 ranks"] = "report4"
            self._run(*test, "--report", "report4", folder=folder, before=[*self._mpiexec, "-n", "4"])
            four = json.loads((folder / "report4/report.json").read_text())["labels"]["scores"]["auroc"]
            differences["1 and 4 ranks"] = float(np.max(np.abs(np.subtract(areas, four))))
        try:
            from sklearn.metrics import roc_auc_score
        except ImportError:
            return differences
        for ranks, report in reports.items():
            with open(folder / report / "scores.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            theirs = [
                roc_auc_score([int(row[name]) for row in rows], [float(row[f"{name} score"]) for row in rows])
                for name in labels
            ]
            found = json.loads((folder / report / "report.json").read_text())["labels"]["scores"]["auroc"]
            differences[f"scikit-learn, {ranks}"] = float(np.max(np.abs(np.subtract(found, theirs))))
        return differences

    def _train(self, folder: Path, rate: float, epochs: float, seed: int, more: list[str]) -> None:
        shutil.copy(HERE / "solver.prototxt", folder)
        fields = {"base_lr": rate, "max_epoch": epochs, "random_seed": seed}
        changes = [word for name, value in fields.items() for word in ("--set", f"{name}={value:g}")]
        words = ["train", "--solver", "solver.prototxt", "--resume", "auto", "--watchdog", "0", *changes]
        self._run(*words, *more, folder=folder)

    def _run(self, *words: str, folder: Path, before: list[str] | None = None) -> None:
        """A command of engine, whose output goes to log.txt in the folder. Raises Failure."""
        command = [*(before or []), *self._engine, *words]
        with open(folder / "log.txt", "ab") as log:
            status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
        if status:
            said = last_line(folder / "log.txt")
            raise Failure(f"{folder}: `{shlex.join(['engine', *words])}` ended with status {status}: {said}")


def newest(folder: Path) -> Path:
    """The weights of the last iteration."""
    return max(folder.glob("*_iter_*.caffemodel"), key=lambda path: int(path.stem.rpartition("_")[2]))


def table(results: dict) -> str:
    """AUROC by label in Markdown: the mean over the seeds of each arm, and the smallest margin of a seed."""
    by_arm = {arm: {run["seed"]: run for run in results["runs"] if run["arm"] == arm} for arm in ARMS}
    seeds = sorted(set(by_arm[ARMS[0]]) & set(by_arm[ARMS[1]]))
    if not seeds:
        return "No seed has both nets yet."
    labels = by_arm[ARMS[0]][seeds[0]]["labels"]
    tuned, scratch = (np.array([by_arm[arm][seed]["auroc"] for seed in seeds]) for arm in ARMS)  # (seeds, labels)
    rows = [(name, tuned[:, i], scratch[:, i]) for i, name in enumerate(labels)]
    rows.append(("mean", tuned.mean(1), scratch.mean(1)))
    lines = [f"| label | {ARMS[0]} | {ARMS[1]} | margin | smallest margin of {len(seeds)} |", "|---|---|---|---|---|"]
    for name, a, b in rows:
        lines.append(f"| {name} | {a.mean():.4f} | {b.mean():.4f} | {(a - b).mean():+.4f} | {(a - b).min():+.4f} |")
    lines.append("")
    lowest = tuned.mean(0)
    lines.append(f"Lowest label, {ARMS[0]}: {labels[lowest.argmin()]}, {lowest.min():.4f} (wanted: above {WANTED}).")
    for run in results["runs"]:
        for what, difference in run.get("agrees", {}).items():
            lines.append(f"AUROC, {run['arm']}, {what}: largest difference {difference:.1g}.")
    return "\n".join(lines)


def quick_pictures(folder: Path) -> Path:
    """Made pictures, of which the colour tells the class: the driver can be tried without CIFAR-10."""
    random = np.random.RandomState(1)
    for part, count in (("train", 26), ("test", 10)):
        for label in range(3):
            target = folder / "cifar10" / part / f"class{label}"
            target.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = np.clip(200 * np.eye(3)[label] + random.normal(0, 60, (SIDE, SIDE, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{index}.png")
    return folder


def run(options: argparse.Namespace, experiment: Experiment, work: Path) -> None:
    experiment.prepare(str(quick_pictures(work / "pictures")) if options.quick else options.archive)
    pretrained = experiment.pretrain()
    done = {(run["arm"], run["seed"]) for run in experiment.results["runs"]}
    for seed in range(1, options.seeds + 1):
        for arm in ARMS:
            if (arm, seed) not in done:
                experiment.run(arm, seed, pretrained)
                mean = np.mean(experiment.results["runs"][-1]["auroc"])
                print(f"{arm}, seed {seed}: mean AUROC {mean:.4f}", flush=True)
    print(table(experiment.results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", default=os.environ.get("CIFAR10_ZIP", ""), help="cifar10.zip, or such a folder")
    parser.add_argument("--work", type=Path, default=Path("mosaics"), help="a folder for data, nets and results")
    parser.add_argument("--depth", type=int, default=20, metavar="6n+2", help="layers of the ResNet (default: 20)")
    parser.add_argument("--single", type=int, default=0, help="pictures of each class to pre-train with (default: all)")
    parser.add_argument("--single_epochs", type=float, default=10.0, help="of pre-training (default: 10)")
    parser.add_argument("--mosaics", type=int, default=16000, help="to train with (default: 16000)")
    parser.add_argument("--test_mosaics", type=int, default=2000, help="to test with (default: 2000)")
    parser.add_argument("--epochs", type=float, default=5.0, help="of mosaics (default: 5)")
    parser.add_argument("--seeds", type=int, default=3, help="nets of each kind (default: 3)")
    parser.add_argument("--engine", default="engine", help="the command (default: engine)")
    parser.add_argument("--mpiexec", default="mpiexec", help="to score on four ranks, too; '': not (default: mpiexec)")
    parser.add_argument("--quick", action="store_true", help="made pictures, few of them: tries the driver")
    options = parser.parse_args()
    if (options.depth - 2) % 6 or options.depth < 8:
        parser.error(f"--depth: expected 6n + 2 layers, got {options.depth}")
    if options.test_mosaics % TEST_BATCH or options.test_mosaics < 1:
        parser.error(f"--test_mosaics: expected a multiple of {TEST_BATCH}, got {options.test_mosaics}")
    plan = Plan(
        *(options.depth, options.single, options.single_epochs, options.mosaics, options.test_mosaics, options.epochs)
    )
    work: Path = options.work.resolve()
    if options.quick:
        plan = Plan(8, 0, 1, 64, TEST_BATCH, 1)
    try:
        with alone(work / "results.json"):
            run(options, Experiment(plan, work, shlex.split(options.engine), shlex.split(options.mpiexec)), work)
    except (Failure, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
