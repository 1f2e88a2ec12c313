"""Who may import whom: cli -> solver -> {graph, data, comm, report}, graph -> layers -> proto; and the same in C++."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.mpi import REPO

# Room -> the rooms that it may import. A room is a folder of engine/ or a module in it; errors are everyone's.
MAY_IMPORT = {
    "errors": set(),
    "names": set(),  # nearest known names, for messages
    "files": set(),  # files written whole or not at all
    "_dnnl": set(),  # where libdnnl is
    "_core": {"_dnnl"},
    "cores": {"comm", "_core"},  # comm: type of the world that it divides cores for
    "proto": set(),
    "prototext": {"proto", "names"},
    "overrides": {"proto", "names", "prototext"},
    "upgrade": {"proto", "names", "prototext"},
    "stand_ins": set(),
    "config": {"proto", "names", "prototext", "overrides", "upgrade", "stand_ins"},
    "weights": {"proto", "files", "weights_hdf5"},
    "weights_hdf5": {"proto", "files", "weights"},
    "fillers": {"proto", "names", "layers"},  # type of the parameters that it fills
    # graph: the Builder that lower() is given, for types only; weights: InfogainLoss reads a blob from a file
    "layers": {"names", "python_layer", "proto", "fillers", "graph", "weights"},
    "graph": {"proto", "config", "names", "layers", "_core"},
    # comm: type of the board
    "net": {"config", "graph", "layers", "fillers", "weights", "_core", "comm"},
    "python_layer": set(),  # what layers written in Python derive from
    # Caffe's Python interface: a user of everything else, like the command line.
    "caffe": {
        *("proto", "config", "names", "cores", "feeding", "net", "graph", "layers", "python_layer", "weights"),
        *("weights_hdf5", "solver", "comm", "report", "data", "tools", "_core"),
    },
    # weights: a mean file holds a blob as a caffemodel does; cores: where decoding threads sit
    "data": {"proto", "files", "names", "weights", "cores", "_core"},
    "comm": {"_core", "cores", "names"},
    "report": {"files", "comm", "net"},  # types of what it reports on
    "precision": {"report", "comm", "_core"},
    "preflight": {"config", "report", "comm", "cores", "_core"},
    # What the solver and the verbs of the command line share: a net that is fed, and one that is tested.
    "feeding": {"config", "data", "net", "layers", "comm"},
    "evaluate": {"config", "feeding", "graph", "layers", "net", "report", "comm"},
    "solver": {
        *(
            "proto",
            "config",
            "names",
            "feeding",
            "evaluate",
            "net",
            "graph",
            "layers",
            "weights",
            "report",
            "comm",
            "_core",
        ),
        *("precision", "cores", "data"),
    },
}
# The verbs and what belongs to one of them only: these may import everything but each other's insides and cli.
VERBS = {
    *("cli", "arguments", "options", "runtime", "supervise"),
    *("examine", "tools"),
}

# Imports that are no dependency: the extension is built from csrc/ and imports nothing back.
GENERATED = {"_ext", "_build_info"}


def modules() -> list[Path]:
    return [path for path in sorted((REPO / "engine").rglob("*.py")) if path.stem not in GENERATED]


def imports(path: Path, annotations: bool = True) -> set[str]:
    """Full names of what a module imports anywhere in it, `from a import b` as a.b; without annotations not what
    stands under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    found = set()
    skipped = set()
    for node in ast.walk(tree):
        if not annotations and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(ast.walk(node))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else None


def rooms_imported(path: Path, annotations: bool = True) -> set[str]:
    own = room(path)
    return {r for module in imports(path, annotations) if (r := room_of(module))} - {own, "errors"} - GENERATED


def room(path: Path) -> str:
    return path.relative_to(REPO / "engine").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(REPO)))
def test_imports_follow_the_directions(path):
    name = room(path)
    if name == "__init__":
        assert imports(path) <= {"importlib"}, "engine --help must start at once"
    elif name in VERBS:
        assert "cli" not in rooms_imported(path)
    else:
        assert name in MAY_IMPORT, f"say in this test what {name} may import"
        assert rooms_imported(path) <= MAY_IMPORT[name]


def test_nothing_runs_in_a_circle():
    """Rooms import each other one way; what is imported for annotations only does not count."""
    edges: dict[str, set[str]] = {}
    for path in modules():
        edges.setdefault(room(path), set()).update(rooms_imported(path, annotations=False))
    edges["weights_hdf5"].discard("weights")  # one format in two files, the second read when HDF5 is met
    done: set[str] = set()
    while ready := {name for name, needs in edges.items() if name not in done and needs <= done | {"errors"}}:
        done |= ready
    assert set(edges) == done


# What only some may import: module -> paths below engine/.
SPEAKERS = {
    "mpi4py": ["comm/mpi_world.py"],
    "lmdb": ["data/sources/lmdb.py", "data/lmdb_writer.py"],
    "PIL": ["data/"],
    "h5py": ["weights_hdf5.py", "data/h5.py"],
    "matplotlib": ["report/plot.py"],
    "google": [
        "proto/",
        *("prototext.py", "overrides.py", "upgrade.py", "config.py", "weights.py", "weights_hdf5.py"),
        *("data/decode.py", "data/mean.py", "data/readers/annotated.py"),  # Datums and mean files
        "tools/upgrade_proto.py",
    ],
}


@pytest.mark.parametrize("package", SPEAKERS)
def test_each_library_is_known_in_one_place(package):
    users = [
        str(path.relative_to(REPO / "engine"))
        for path in modules()
        if package in {module.split(".")[0] for module in imports(path)}
    ]
    assert users, f"nobody imports {package}"
    assert [user for user in users if not user.startswith(tuple(SPEAKERS[package]))] == []


def test_no_other_libraries():
    known = {*sys.stdlib_module_names, "engine", "numpy", *SPEAKERS}
    assert {m for path in modules() for m in imports(path) if m.split(".")[0] not in known} == set()


def test_only_the_command_line_exits():
    allowed = {
        "cli.py",
        "comm/world.py",  # abort(): of one rank by SystemExit,
        "comm/mpi_world.py",  # of many by MPI_Abort, after which nothing of Python's may run
    }
    pattern = re.compile(r"\b(sys\.exit|os\._exit|os\.abort|raise SystemExit)\b")
    exits = {str(path.relative_to(REPO / "engine")) for path in modules() if pattern.search(path.read_text())}
    assert exits == allowed


# C++

INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
SPEAK_ONEDNN = {"tensor.h", "op.h"}  # and ops/: layouts are oneDNN's from end to end


def sources() -> dict[str, list[str]]:
    """Path below csrc/ -> what it includes."""
    folder = REPO / "csrc"
    files = [*folder.rglob("*.h"), *folder.rglob("*.cpp")]
    return {str(path.relative_to(folder)): INCLUDE.findall(path.read_text()) for path in files}


def test_only_bind_speaks_pybind11():
    speakers = ("pybind11", "Python.h", "bind.h")
    users = [path for path, found in sources().items() if any(f.startswith(speakers) for f in found)]
    assert "bind.h" in users
    assert [path for path in users if not re.fullmatch(r"bind\.h|bind(_\w+)?\.cpp", path)] == []


def test_only_ops_and_tensors_speak_onednn():
    users = {path for path, found in sources().items() if any("dnnl" in f and "/" in f for f in found)}
    assert users - {path for path in users if path.startswith("ops/")} <= SPEAK_ONEDNN
    assert not [path for path, found in sources().items() if any(f.startswith("mpi") for f in found)]


def test_ops_know_neither_executor_nor_queue():
    own = {path: {f for f in found if (REPO / "csrc" / f).exists()} for path, found in sources().items()}
    for path, found in own.items():
        if path.startswith("ops/"):
            assert found <= {"op.h", "tensor.h", "threads.h"}, path
    # These stand alone: they can be compiled and tested without the rest.
    for alone in ("ready_queue", "wire", "image", "arena"):
        assert own[f"{alone}.h"] | own[f"{alone}.cpp"] == {f"{alone}.h"}
    assert own["update.h"] | own["update.cpp"] == {"update.h", "wire.h"}
