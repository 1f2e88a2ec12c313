"""Who may import whom: cli -> verbs -> {examine, predict, solver, caffe} -> {net, data, comm, watchdog, report} ->
graph -> layers -> {config, weights, host} -> proto; and the same in C++."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from tests.mpi import REPO

# The rooms that each room may import. A room is a folder of engine/, or a module that lies beside the folders. All may
# import errors.
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "proto": set(),
    "host": set(),
    "config": {"proto", "files", "weights"},  # files, weights: `engine upgrade_net_proto_binary` writes a caffemodel
    "weights": {"proto", "files", "host"},  # host: faults of files
    "layers": {"config", "files", "weights", "host", "proto"},  # files: a filler reads numbers
    "graph": {"config", "layers", "host", "proto"},
    "net": {"config", "files", "graph", "layers", "host", "proto", "weights"},  # files: measurements are kept in files
    "watchdog": {"host"},
    "report": {"files", "config", "graph", "host", "layers"},
    "comm": {"config", "host", "report", "watchdog"},
    "data": {"config", "files", "host", "layers", "proto", "watchdog", "weights"},
    "exchange": {"config", "data", "files", "graph", "layers", "proto", "weights"},
    "inference": {"comm", "config", "data", "files", "graph", "layers", "net", "proto", "report", "weights"},
    "solver": {
        *("comm", "config", "data", "files", "graph", "host", "inference", "layers", "net", "proto", "report"),
        *("watchdog", "weights"),
    },
}
# Users of everything below. They may not import each other, except as given here.
USERS = {
    "caffe": set(),
    "examine": {"caffe"},  # a trial runs nets with Python layers, which `import caffe`
    "predict": {"examine"},  # predictions begin with measurements
    "verbs": {"caffe", "examine", "predict"},
    "cli": {"verbs"},
    "__init__": {"caffe"},
    "__main__": {"cli", "examine"},  # examine: a trial is started as a program of its own
}
# What a room may import for annotations, besides. It is not imported at run time.
ANNOTATIONS = {
    "comm": {"proto"},  # comm_param
    "data": {"comm", "net"},
    "net": {"watchdog"},
    "report": {"comm", "net", "inference", "proto"},
}


@functools.cache
def modules() -> list[Path]:
    return sorted((REPO / "engine").rglob("*.py"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module, parents first, of the kinds that imports() looks at."""
    kinds = ast.If | ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom | ast.Constant
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


@functools.cache
def imports(path: Path, annotations: bool = True, inside: bool = True) -> set[str]:
    """Returns the full names of what a module imports: `from a import b` is a.b. Strings that name a module of engine
    count, too.

    Args:
        annotations: whether imports under `if TYPE_CHECKING` count.
        inside: whether imports in functions count, and strings.
    """
    found: set[str] = set()
    skipped: set[ast.AST] = set()
    for node in nodes(path):
        if not annotations and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(ast.walk(node))
        if not inside and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            skipped.update(ast.walk(node))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif inside and isinstance(node, ast.Constant) and names_a_module(node.value):
            found.add(node.value)
    return found


def names_a_module(value: object) -> bool:
    """Returns whether a string is the name of a module or package of engine."""
    if not (isinstance(value, str) and re.fullmatch(r"engine(\.\w+)+", value)):
        return False
    path = REPO / value.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def room_of(module: str) -> str | None:
    """Returns the room that a full name belongs to; None if it is not the engine's."""
    parts = module.split(".")
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else None


def rooms_imported(path: Path, annotations: bool = True) -> set[str]:
    """Returns the other rooms that a module imports from."""
    return {r for module in imports(path, annotations) if (r := room_of(module))} - {room(path), "errors"}


def room(path: Path) -> str:
    """Returns the room that a module lies in."""
    return path.relative_to(REPO / "engine").parts[0].removesuffix(".py")


def allowed(name: str) -> set[str]:
    """Returns the rooms that a room may import."""
    assert name in MAY_IMPORT or name in USERS, f"say in this test what engine/{name} may import"
    return MAY_IMPORT[name] if name in MAY_IMPORT else set(MAY_IMPORT) | USERS[name]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(REPO)))
def test_imports_follow_the_directions(path):
    name = room(path)
    assert rooms_imported(path, annotations=False) <= allowed(name)
    assert rooms_imported(path) <= allowed(name) | ANNOTATIONS.get(name, set())


def test_the_package_itself_loads_nothing():
    """It keeps `engine --help` fast."""
    assert imports(REPO / "engine/__init__.py", inside=False) == set()


def test_only_the_front_doors_lie_beside_the_rooms():
    loose = {path.name for path in (REPO / "engine").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "cli.py", "errors.py", "files.py"}


def in_a_circle(edges: dict[str, set[str]]) -> set[str]:
    """Returns those names that import each other, directly or not, and those that import such."""
    done: set[str] = set()
    known = set(edges)
    while ready := {name for name, needs in edges.items() if name not in done and needs & known <= done}:
        done |= ready
    return set(edges) - done


def test_no_rooms_import_each_other():
    edges: dict[str, set[str]] = {}
    for path in modules():
        edges.setdefault(room(path), set()).update(rooms_imported(path, annotations=False))
    del edges["__init__"]  # it gives out engine.caffe on first use only
    assert in_a_circle(edges) == set()


def test_no_modules_import_each_other():
    """This is about loading. Within a room, a function may import a module that imports its own."""
    names = {
        ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): path for path in modules()
    }
    edges = {}
    for name, path in names.items():
        found = imports(path, annotations=False, inside=False)
        edges[name] = {m if m in names else m.rpartition(".")[0] for m in found} - {name}
    assert in_a_circle(edges) == set()


# What only some may import: modules, and the paths below engine/ that may.
SPEAKERS = {
    "mpi4py": ["comm/mpi_world.py"],
    "lmdb": ["data/sources/lmdb.py", "data/lmdb_writer.py"],
    "plyvel": ["data/sources/leveldb.py"],
    "crc32c": ["data/example.py"],
    "PIL": ["data/", "examine/preview.py", "examine/generate.py"],
    "h5py": ["weights/h5_file.py"],
    "onnx": ["exchange/onnx_file.py"],
    "pycocotools": ["data/coco_masks.py"],
    "av": ["data/video_file.py"],
    "matplotlib": ["report/plot.py", "report/scorecard.py", "examine/rates.py"],
    "pygraphviz": ["report/draw_net.py"],
    "tensorboardX": ["report/tensorboard.py"],
    "psutil": ["host/machine.py"],
    "tabulate": ["report/table.py"],
    "tqdm": ["report/progress.py"],
    "google": [
        *("proto/", "config/", "weights/"),
        *("data/decode.py", "data/readers/annotated.py"),  # Datums
        *("data/example.py", "data/sources/tfrecord.py"),  # Examples
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
        "__main__.py",
        "caffe/ranks.py",  # sees how the user's script ends
        "comm/world.py",  # abort() ends a lone rank by SystemExit
        "comm/mpi_world.py",  # and many by MPI_Abort, after which no code of Python may run
    }
    pattern = re.compile(r"\b(sys\.exit|os\._exit|os\.abort|raise SystemExit)\b")
    exits = {str(path.relative_to(REPO / "engine")) for path in modules() if pattern.search(path.read_text())}
    assert exits == allowed


# C++

INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)


def sources() -> dict[str, str]:
    """Returns the text of each file of csrc/, without comments, by path."""
    folder = REPO / "csrc"
    files = [*folder.rglob("*.h"), *folder.rglob("*.cpp")]
    return {str(path.relative_to(folder)): re.sub(r"//.*", "", path.read_text()) for path in files}


def includes() -> dict[str, set[str]]:
    """Returns what each file of csrc/ includes, by path."""
    return {path: set(INCLUDE.findall(text)) for path, text in sources().items()}


def own_includes() -> dict[str, set[str]]:
    """Returns what each file of csrc/ includes of csrc/, by path."""
    return {path: {f for f in found if (REPO / "csrc" / f).exists()} for path, found in includes().items()}


def test_only_bind_speaks_pybind11():
    speakers = ("pybind11", "Python.h", "bind.h")
    users = [path for path, found in includes().items() if any(f.startswith(speakers) for f in found)]
    assert "bind.h" in users
    assert [path for path in users if not re.fullmatch(r"bind\.h|bind(_\w+)?\.cpp", path)] == []


def test_only_ops_and_tensors_speak_onednn():
    """A tensor has one of oneDNN's layouts, and an op is made of its primitives. The program gives ops their stream,
    and bindings name types and instruction sets."""
    speakers = {path for path, text in sources().items() if re.search("dnnl", text, re.IGNORECASE)}
    others = {path for path in speakers if not path.startswith("ops/")}
    ends = {"program.h", "program.cpp", "bind.cpp", "bind_tensor.cpp", "bind_program.cpp"}
    assert others - ends == {"tensor.h", "tensor.cpp", "op.h", "op.cpp"}
    assert {path for path, found in includes().items() if "oneapi/dnnl/dnnl.hpp" in found} == {"tensor.h"}
    assert not [path for path, found in includes().items() if any(f.startswith("mpi") for f in found)]


def test_kernels_know_floats():
    """A kernel includes only kernels, and knows no op, tensor or layout of oneDNN."""
    for path, found in own_includes().items():
        if path.startswith("kernels/"):
            assert all(f.startswith("kernels/") for f in found), path


def test_ops_know_neither_executor_nor_queue():
    own = own_includes()
    for path, found in own.items():
        if path.startswith("ops/"):
            assert {f for f in found if "/" not in f} <= {"op.h", "tensor.h", "threads.h"}, path
            assert all(f.startswith(("ops/common/", "kernels/")) for f in found if "/" in f), path
    assert {f for f in own["op.h"] | own["op.cpp"] if "/" in f} == {"kernels/packed_weights.h"}  # reorders need them
    # These files stand alone, and can be compiled and tested without the rest.
    vectorised = "kernels/vectorised.h"
    assert own["ready_queue.h"] | own["ready_queue.cpp"] == {"ready_queue.h"}
    assert own["arena.h"] | own["arena.cpp"] == {"arena.h"}
    assert own["wire.h"] | own["wire.cpp"] == {"wire.h", vectorised}
    assert own["update.h"] | own["update.cpp"] == {"update.h", "update_rule.h", "wire.h", vectorised}
    assert own["update_rule.h"] == {vectorised}
    rules = {path: found for path, found in own.items() if path.startswith("update_rules/")}
    assert rules and all(found == {"update_rule.h"} for found in rules.values())


def test_an_op_has_a_file_of_its_name():
    """BoxAnnotatorOHEM is in box_annotator_ohem.cpp, in an anonymous namespace."""
    for path, text in sources().items():
        ops = re.findall(r'RegisterOp<\w[^;]*?"(\w+)"', text)
        if re.fullmatch(r"ops/\w+\.cpp", path):
            assert [op.lower() for op in ops] == [Path(path).stem.replace("_", "")], path
            assert "namespace engine {\nnamespace {\n" in text, path
        else:
            assert not ops, path
