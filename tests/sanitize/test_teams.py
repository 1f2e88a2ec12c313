"""teams.cpp, the OpenMP in whose teams the thread sanitizer sees races."""

import os
import subprocess

import pytest

from tests.mpi import REPO
from tests.sanitize.run import from_compiler

pytestmark = pytest.mark.skipif("ENGINE_SANITIZED" in os.environ, reason="not within a sanitizer")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns the folder of teams.cpp and races.cpp, compiled for the sanitizer."""
    folder = tmp_path_factory.mktemp("built")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g", "-fsanitize=thread"]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "teams.cpp"]  # symbols are hidden as in CMakeLists.txt
    for name, options in (("libteams.so", shared), ("races", ["-fopenmp", "races.cpp"])):
        try:
            subprocess.run([*compiler, *options, "-o", folder / name], cwd=REPO / "tests/sanitize", check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no compiler with a thread sanitizer")
    return folder


@pytest.mark.parametrize("race", ["none", "neighbours", "turns", "no barrier"])
def test_races_are_seen_and_nothing_else(built, race):
    loaded = f"{from_compiler('libtsan.so')} {built / 'libteams.so'}"
    environ = {**os.environ, "OMP_NUM_THREADS": "3", "LD_PRELOAD": loaded, "TSAN_OPTIONS": "exitcode=0"}
    command = ["setarch", os.uname().machine, "-R", built / "races", race]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "3 threads, fine\n"), done.stderr
    assert ("data race" in done.stderr) == (race != "none"), done.stderr
