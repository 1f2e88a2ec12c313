"""Runs tests with csrc/ compiled for sanitizers of the compiler, as `make sanitize` does:

    python tests/sanitize/run.py memory [PYTEST ARGUMENTS]      addresses and undefined behaviour
    python tests/sanitize/run.py threads [PYTEST ARGUMENTS]     races, also between the members of OpenMP's teams

Without arguments it runs the tests that the sanitizer is meant for. What is found stands in build/sanitize/ and is
printed at the end; the exit status is then 1. The files *.supp list what is not ours to mend: oneDNN, libgomp, Python,
MPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from build_csrc import build  # noqa: E402

REPORTS = ROOT / "build/sanitize"
REFUSED = "WARNING: AddressSanitizer failed to allocate"
# By name: the compiler's name of the sanitizer, the library that must be loaded first, and the tests.
KINDS = {
    "memory": (
        "address,undefined,float-cast-overflow",
        "libasan.so",
        ["tests/csrc", "tests/layers", "tests/config", "tests/data", "tests/weights", "tests/test_bad_input.py"],
    ),
    "threads": ("thread", "libtsan.so", ["tests/csrc", "tests/layers", "tests/data", "tests/comm"]),
}


def main() -> int:
    kind, *arguments = sys.argv[1:]
    sanitize, _, tests = KINDS[kind]
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    prefix, environment = sanitized(kind)
    failed = []
    if kind == "threads":
        failed += run([build("servers", sanitize) / "servers"], environment)
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=3000", "-m", "not slow"]
    failed += run([*prefix, *pytest, *(arguments or tests)], environment)
    found = {report: report.read_text(errors="replace") for report in sorted(REPORTS.iterdir())}
    # HDF5 asks for as much memory as a damaged file says, and goes on when it gets none.
    found = {report: text for report, text in found.items() if any(REFUSED not in line for line in text.splitlines())}
    for report, text in found.items():
        print(f"--- {report.relative_to(ROOT)}", text, sep="\n")
    print(f"{kind}: {len(found)} reports of the sanitizers; failed: {', '.join(failed) or 'nothing'}")
    return 1 if found or failed else 0


def sanitized(kind: str) -> tuple[list[str], dict[str, str]]:
    """Compiles csrc/. Returns the beginning of a command that runs Python with it, and the environment."""
    sanitize, library, _ = KINDS[kind]
    folder = build(sanitize=sanitize)
    # The C++ library must be loaded before the sanitizer looks for the function that throws.
    preloaded = [from_compiler(name) for name in (library, "libstdc++.so")]
    if kind == "threads":
        preloaded.append(str(build("teams", sanitize) / "libteams.so"))
    environment = {
        **os.environ,
        **options(kind),
        "ENGINE_SANITIZED": str(next(folder.glob("_ext.*.so"))),
        "PYTHONPATH": str(HERE / "site"),
        "PYTHONMALLOC": "malloc",
    }
    return ["env", "LD_PRELOAD=" + " ".join(preloaded)], environment


def options(kind: str) -> dict[str, str]:
    """Returns what the sanitizers read from the environment."""

    def joined(name: str, **options) -> str:
        options |= {"log_path": REPORTS / name, "suppressions": HERE / f"{name}.supp"}
        return ":".join(f"{key}={value}" for key, value in options.items())

    # MPICH's UCX reads the memory of other processes by address, which the sanitizers take for this process's, and
    # hooks the same functions as they do.
    common = {"UCX_TLS": "^cma", "UCX_MEM_EVENTS": "n"}
    if kind == "threads":
        # Three threads, by teams.cpp: an odd number makes shares of several sizes.
        return {**common, "TSAN_OPTIONS": joined("threads", exitcode=0, history_size=7), "OMP_NUM_THREADS": "3"}
    return {
        **common,
        # Python frees little when it ends. A test counts what nets leave behind.
        "ASAN_OPTIONS": joined("addresses", detect_leaks=0, quarantine_size_mb=16, allocator_may_return_null=1),
        "UBSAN_OPTIONS": joined("undefined", print_stacktrace=1),
    }


def from_compiler(library: str) -> str:
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={library}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(command: list, environment: dict[str, str]) -> list[str]:
    """Runs a command. Returns it in a list if it fails, else an empty list."""
    # GCC's thread sanitizer cannot map its memory if addresses are randomised.
    status = subprocess.call(["setarch", os.uname().machine, "-R", *command], cwd=ROOT, env=environment)
    return [str(command[0])] if status else []


if __name__ == "__main__":
    sys.exit(main())
