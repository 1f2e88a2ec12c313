"""The worked examples of CONTRIBUTING.md: each file is put into place, in a temporary folder, and used."""

import importlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.mpi import REPO

BLOCK = re.compile(r"^```(?:python|cpp)\n(?:#|//) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(BLOCK.findall((REPO / "CONTRIBUTING.md").read_text()))


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Yields a function that makes an example a module of its package, for the time of a test."""
    added = []

    def put(path: str):
        package_name, _, name = path.removesuffix(".py").replace("/", ".").rpartition(".")
        package = importlib.import_module(package_name)
        (tmp_path / f"{name}.py").write_text(EXAMPLES[path])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        added.append((package, name, f"{package_name}.{name}"))
        return importlib.import_module(f"{package_name}.{name}")

    yield put
    for package, name, module in added:
        sys.modules.pop(module, None)
        vars(package).pop(name, None)


def test_a_layer(put, monkeypatch):
    from engine.layers import registry
    from tests.layers.harness import check_gradients, net_text, run

    monkeypatch.setattr(registry, "_types", dict(registry.layer_types()))
    put("engine/layers/cube.py")
    cube = 'layer { name: "y" type: "Cube" bottom: "x" top: "y" }'
    x = np.random.default_rng(1).uniform(0.5, 2, (3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(cube, x=x).blobs["y"].data, x**3, rtol=1e-5)
    check_gradients(net_text(cube, x=x.shape), {"x": x})


def test_a_learning_rate_policy(monkeypatch):
    from engine import proto
    from engine.solver.policies import POLICIES, policy
    from engine.solver.schedules import LearningRate

    monkeypatch.setitem(POLICIES, "halving", POLICIES["fixed"])  # makes monkeypatch take the policy away after the test
    exec(EXAMPLES["engine/solver/policies.py"], {"policy": policy})
    param = proto.SolverParameter(lr_policy="halving", base_lr=0.5, stepsize=10, warmup_iter=4, warmup_start_lr=0.1)
    rate = LearningRate(param)
    assert [rate(iteration) for iteration in (0, 2, 4, 10, 25)] == pytest.approx([0.1, 0.3, 0.5, 0.25, 0.125])


def test_a_verb(put, capsys, monkeypatch):
    from engine.cli import main

    put("engine/verbs/count_layers.py")
    assert main(["count_layers", str(REPO / "nets/digits.prototxt")]) == 0
    assert capsys.readouterr().out == "11 layers\n"
    assert main(["--help"]) == 0
    assert "count the layers of a net" in capsys.readouterr().out


def test_what_watches_a_run(put, caplog):
    from tests.solver.harness import digits_net, make_solver

    slowest = put("engine/report/slowest.py").Slowest()
    solver = make_solver("max_iter: 3", digits_net(), observers=[slowest])
    with caplog.at_level("INFO", logger="engine"):
        solver.solve()
    solver.close()
    assert 0 <= slowest.iteration < 3
    assert f"Iteration {slowest.iteration} was the slowest: " in caplog.text


COMPILE = ["c++", *"-std=c++17 -O0 -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra".split()]
USE_RULE = r"""
#include <cstdio>
#include "update.h"

int main() {
    using namespace engine;
    for (const auto& [name, rule] : update_rules())
        std::printf("%s %s %s\n", name.c_str(), rule.histories[0].c_str(), rule.constants[0].field.c_str());
    float weights[] = {1, 2, 3}, gradients[] = {-4, 0, 4}, history[] = {0, 0, 0};
    Updater updater("Signum", {weights, 3}, {gradients, 3}, {{history, 3}}, {{{0, 3, 2, 1, 0}}},
                    {{"momentum", 0.75f}}, {}, {});
    updater.set_step(0.125, 1, 0);
    updater.apply(0);
    std::printf("%g %g %g, %g %g %g\n", weights[0], weights[1], weights[2], history[0], history[1], history[2]);
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_an_update_rule(tmp_path):
    (tmp_path / "signum.cpp").write_text(EXAMPLES["csrc/update_rules/signum.cpp"])
    (tmp_path / "use.cpp").write_text(USE_RULE)
    sources = [*tmp_path.glob("*.cpp"), *(REPO / "csrc" / name for name in ("update.cpp", "wire.cpp"))]
    program = tmp_path / "use"
    subprocess.run([*COMPILE, "-Werror", "-I", REPO / "csrc", *sources, "-o", program], check=True)
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == ["Signum Signum's mean of gradients momentum", "1.25 2 2.75, -1 0 1"]
