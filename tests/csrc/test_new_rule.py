"""The worked example of CONTRIBUTING.md: one file is all that a new update rule needs."""

import re
import shutil
import subprocess

import pytest

from tests.mpi import REPO

FLAGS = "-std=c++17 -O1 -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror".split()
USE = r"""
#include <cstdio>
#include "update.h"

int main() {
    using namespace engine;
    for (const auto& [name, rule] : update_rules())
        std::printf("%s %s %s\n", name.c_str(), rule.histories[0].c_str(), rule.constants[0].field.c_str());
    float weights[] = {1, 2, 3}, gradients[] = {-4, 0, 4}, history[] = {0, 0, 0};
    Updater updater("Signum", weights, gradients, {history}, 3, {{{0, 3, 2, 1, 0}}}, {{"momentum", 0.75f}}, {}, {});
    updater.set_step(0.125, 1, 0);
    updater.apply(0);
    std::printf("%g %g %g, %g %g %g\n", weights[0], weights[1], weights[2], history[0], history[1], history[2]);
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_rule_is_one_file(tmp_path):
    (example,) = re.findall(r"```cpp\n(.*?)```", (REPO / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "signum.cpp").write_text(example)
    (tmp_path / "use.cpp").write_text(USE)
    sources = [*tmp_path.glob("*.cpp"), *(REPO / "csrc" / name for name in ("update.cpp", "wire.cpp"))]
    program = tmp_path / "use"
    subprocess.run(["c++", *FLAGS, "-I", REPO / "csrc", *sources, "-o", program], check=True)
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == ["Signum Signum's mean of gradients momentum", "1.25 2 2.75, -1 0 1"]
