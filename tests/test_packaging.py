"""What the build leaves: oneDNN is found and loaded, and what is missing is named."""

import importlib
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import engine
from engine import proto
from engine.errors import EngineError
from engine.host import _dnnl
from tests.mpi import REPO


def test_preload_loads_dnnl():
    _dnnl.preload()
    from engine.host import _core  # noqa: F401

    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libdnnl" in line}
    assert len(loaded) == 1, "exactly one oneDNN in the process"
    if folder := _dnnl.build_info().dnnl_folder:
        assert loaded.pop().startswith(folder)


def with_build_info(monkeypatch, folder):
    monkeypatch.setattr(_dnnl, "build_info", lambda: _dnnl.BuildInfo("3.7", folder))


def test_missing_wheel_says_what_to_install(monkeypatch):
    with_build_info(monkeypatch, None)
    monkeypatch.setattr(_dnnl, "WHEEL", "no-such-wheel")
    with pytest.raises(EngineError, match=r"libdnnl.so.3 not found: `pip install no-such-wheel==2023.2.0`"):
        _dnnl.preload()


def test_damaged_library_is_named(monkeypatch, tmp_path):
    with_build_info(monkeypatch, None)
    damaged = tmp_path / "libdnnl.so.3"
    damaged.write_bytes(b"not a library")
    monkeypatch.setattr(_dnnl, "wheel_libraries", lambda: [str(damaged)])
    with pytest.raises(EngineError, match=str(damaged)):
        _dnnl.preload()


def test_own_dnnl_is_left_to_the_linker(monkeypatch):
    with_build_info(monkeypatch, "/opt/onednn/lib")
    monkeypatch.setattr(_dnnl, "wheel_libraries", lambda: pytest.fail("the wheel must not be loaded"))
    _dnnl.preload()


def test_package_built_for_another_python_says_how_to_build(monkeypatch):
    monkeypatch.setattr(_dnnl.machinery, "EXTENSION_SUFFIXES", [".cpython-39-x86_64-linux-gnu.so"])
    with pytest.raises(EngineError, match="not built for this Python"):
        _dnnl.preload()


def test_library_older_than_the_headers_is_refused(monkeypatch):
    with_build_info(monkeypatch, "/opt/onednn/lib")
    _dnnl.check_version("3.10.2")
    with pytest.raises(EngineError, match=r"oneDNN 3.7 or newer expected, .*, found libdnnl.so.3 of 3.2.0"):
        _dnnl.check_version("3.2.0")


def test_schema_that_was_compiled_from_another_text_is_refused(monkeypatch, tmp_path):
    text = tmp_path / "caffe.proto"
    monkeypatch.setattr(proto, "_TEXT", text)
    shutil.copy(REPO / "proto/caffe.proto", text)
    proto._read_schema()
    with text.open("a") as file:
        file.write("// changed\n")
    with pytest.raises(EngineError, match=r"caffe.desc was not compiled from .* as it is: run `pip install -e .`"):
        proto._read_schema()


@pytest.mark.slow
def test_files_that_the_container_copies_make_a_whole_sdist_and_wheel(tmp_path):
    """Everything but the extension is checked, which would have to be compiled."""
    pytest.importorskip("setuptools")
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools (make build)")
    source, unpacked = tmp_path / "source", tmp_path / "unpacked"
    files = re.search(r"^%files\n((?: .+\n)+)", (REPO / "packaging/engine.def").read_text(), re.MULTILINE)[1]
    for path, folder in map(str.split, files.splitlines()):
        target = tmp_path / folder.strip("/") / Path(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (REPO / path).is_dir() else shutil.copy)(REPO / path, target)
    run_setup = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    run_setup([sys.executable, "setup.py", "sdist", "--formats=zip", "--dist-dir", tmp_path], cwd=source)
    shutil.unpack_archive(next(tmp_path.glob("*.zip")), unpacked)
    (sdist,) = unpacked.iterdir()
    run_setup([sys.executable, "setup.py", "build_py", "--build-lib", tmp_path / "wheel"], cwd=sdist)
    tracked = subprocess.check_output(["git", "ls-files", "csrc", "engine", "proto"], cwd=REPO, text=True).split()
    compiled = re.findall(r"(?:tests|tools)/\S+\.cpp", (REPO / "CMakeLists.txt").read_text())
    assert compiled and not [path for path in (*tracked, *compiled) if not (sdist / path).exists()]
    installed = ["engine/proto/caffe.desc", *(path for path in tracked if path.startswith("engine/"))]
    assert not [path for path in installed if not (tmp_path / "wheel" / path).exists()]
    assert not [*sdist.rglob("*.so"), *sdist.rglob("_ext.*.json"), *(tmp_path / "wheel").rglob("*.so")]


@pytest.fixture
def build_csrc(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "tools")
    return importlib.import_module("build_csrc")


@pytest.mark.parametrize("variable", ["DNNL_ROOT", "CMAKE_PREFIX_PATH"])
def test_own_dnnl_that_is_upgraded_in_place_is_another(build_csrc, monkeypatch, tmp_path, variable):
    monkeypatch.delenv("DNNL_ROOT", raising=False)
    monkeypatch.setenv(variable, f"{tmp_path}" if variable == "DNNL_ROOT" else f"/nowhere:{tmp_path}")
    header = tmp_path / "include/oneapi/dnnl/dnnl_version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define DNNL_VERSION_MINOR 6\n")
    before = build_csrc.own_dnnl()
    header.write_text("#define DNNL_VERSION_MINOR 7\n")
    assert before != build_csrc.own_dnnl() == ["#define DNNL_VERSION_MINOR 7\n"]


@pytest.mark.parametrize("path", ['/opt/"my" onednn', "/opt/\udcff"])
def test_path_of_dnnl_that_cannot_be_written_down_is_refused(build_csrc, monkeypatch, path):
    monkeypatch.setenv("DNNL_ROOT", path)
    with pytest.raises(SystemExit, match="a path in UTF-8 without quotes"):
        build_csrc.check_platform()


def test_other_systems_are_refused(build_csrc, monkeypatch):
    monkeypatch.setattr(build_csrc.sys, "platform", "darwin")
    with pytest.raises(SystemExit, match="engine runs on Linux, and this is darwin"):
        build_csrc.check_platform()


def test_builds_without_isolation_have_the_same_tools():
    text = (REPO / "pyproject.toml").read_text()
    lists = (re.search(rf"^{name} = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1] for name in ("requires", "build"))
    requires, build = (re.findall(r'"(.+)"', found) for found in lists)
    assert requires == build


def test_the_conda_recipe_is_read_and_has_the_same_requirements():
    """The reader is rattler-build's own. In conda-forge, lmdb is called python-lmdb, and oneDNN is a package of its
    own."""
    rattler_build, tomllib = pytest.importorskip("rattler_build"), pytest.importorskip("tomllib")
    (variant,) = rattler_build.Stage0Recipe.from_file(str(REPO / "packaging/conda/recipe.yaml")).render()
    assert variant.recipe.to_dict()["package"] == {"name": "prototxt-engine", "version": engine.__version__}
    wanted = tomllib.loads((REPO / "pyproject.toml").read_text())
    run = set(variant.recipe.to_dict()["requirements"]["run"])
    project = {each.replace(">=", " >=").replace("lmdb ", "python-lmdb ") for each in wanted["project"]["dependencies"]}
    assert run - {"python >=3.10", "mpich"} == {each for each in project if "onednn" not in each}
    host = set(variant.recipe.to_dict()["requirements"]["host"])
    build = {each.replace(">=", " >=") for each in wanted["build-system"]["requires"] if "onednn" not in each}
    assert build <= host | set(variant.recipe.to_dict()["requirements"]["build"])
