"""Builds a wheel for each Python that is named, installs it and trains with it: `make wheels`, or

    python tools/wheels.py dist python3.11 python3.12

auditwheel tags each wheel with the oldest glibc that it runs on, which is that of the system it is built on: build in
PyPA's image manylinux_2_28 for clusters with older systems. No library is copied into a wheel. libdnnl comes from the
package onednn-cpu-gomp, which the wheel requires. libgomp is the system's: libdnnl uses that one, too, and two OpenMP
runtimes in one process would start two teams of threads. libmpi is the one that mpi4py finds when a run starts.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("libdnnl.so.3", "libgomp.so.1")
# The command that each wheel is tried with.
TRIAL = (
    "engine train --solver solvers/digits.prototxt --ranks 2 --set max_iter=20 --set snapshot_prefix={folder}/digits"
)


def build(python: str, target: Path, folder: Path) -> Path:
    """Builds the wheel for a Python, and returns its path in `target`. folder: for temporary files."""
    subprocess.run([python, "-m", "venv", folder / "build"], check=True)
    subprocess.run([folder / "build/bin/pip", "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    (plain,) = folder.glob("*.whl")
    excluded = [f"--exclude={library}" for library in LEFT_OUT]
    repaired = folder / "repaired"
    subprocess.run([sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", repaired, plain], check=True)
    (wheel,) = repaired.glob("*.whl")
    return Path(shutil.move(wheel, target / wheel.name))


def try_out(wheel: Path, python: str, folder: Path) -> None:
    """Installs the wheel in an empty environment and trains with it."""
    subprocess.run([python, "-m", "venv", folder / "trial"], check=True)
    subprocess.run([folder / "trial/bin/pip", "install", f"{wheel}[mpich]"], check=True)
    command = f". {folder}/trial/bin/activate && cd {ROOT} && {TRIAL.format(folder=folder)}"
    subprocess.run(["sh", "-c", command], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds manylinux wheels.")
    parser.add_argument("target", type=Path, help="the folder for the wheels")
    parser.add_argument("python", nargs="+", help="an interpreter, such as python3.12")
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    for python in options.python:
        with tempfile.TemporaryDirectory() as name:
            wheel = build(python, options.target.resolve(), Path(name))
            try_out(wheel, python, Path(name))
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, trained with {python}", flush=True)


if __name__ == "__main__":
    main()
