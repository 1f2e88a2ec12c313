"""The documents agree with the code: fields with types and defaults, policies, rules, variables, paths, links."""

import importlib.util
import re

import pytest
from google.protobuf.descriptor import FieldDescriptor

from engine import proto
from engine.comm.settings import VARIABLES
from engine.config.dialects import rows
from engine.errors import ConfigError
from engine.host.cores import OTHERS_VARIABLES
from engine.solver.validate import notes, validate
from tests.mpi import REPO

DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
# Beginnings of the paths in documents that are checked.
ROOMS = ("csrc", "docs", "engine", "examples", "experiments", "nets", "packaging", "proto", "solvers", "tests", "tools")
# Messages whose every field a document has to list.
LISTED = {
    "SolverParameter": "solver.md",
    "CommParameter": "cluster.md",
    "LrScalingParameter": "solver.md",
    "BatchGrowthParameter": "solver.md",
    "EarlyStoppingParameter": "solver.md",
    "ElasticParameter": "cluster.md",
    "LossParameter": "layers.md",
    **dict.fromkeys(["AdversarialParameter", "MeetParameter"], "adversarial.md"),
    **dict.fromkeys(
        [
            *("TransformationParameter", "ResizeParameter", "RandomResizeParameter", "RandomAspectRatioParameter"),
            *("DistortionParameter", "ExpansionParameter", "BatchSampler", "Sampler", "EmitConstraint"),
            *("DataParameter", "AnnotatedDataParameter", "ImageDataParameter", "WindowDataParameter"),
            *("HDF5DataParameter", "HDF5OutputParameter", "MemoryDataParameter"),
            *("DummyDataParameter", "InputParameter", "MixParameter"),
        ],
        "data.md",
    ),
}
_SOURCES = [path.read_text() for path in (REPO / "engine").rglob("*.py")]
_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def tables(text):
    """Returns the cells of a document's tables: first cell of the header -> first cell of a row -> its other cells.
    Tables with the same header are joined."""
    found = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = (_cells(line) for line in table.splitlines())
        found.setdefault(head[0].strip("`"), {}).update({row[0].strip("`"): row[1:] for row in rows})
    return found


def _cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def schema(message):
    """Returns [type, default] of each field in proto's words; "" if the schema has no default."""
    return {field.name: [_type(field), _default(field)] for field in message.DESCRIPTOR.fields}


def _type(field):
    named = field.message_type or field.enum_type
    return ("" if field.has_presence else "repeated ") + (named.name if named else _SCALARS[field.type])


def _default(field):
    if not field.has_default_value:
        return ""
    if field.enum_type:
        return field.enum_type.values_by_number[field.default_value].name
    value = field.default_value
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(("name", "document"), LISTED.items())
def test_every_field_stands_with_its_type_and_default(name, document):
    told = tables((REPO / "docs" / document).read_text())[name]
    fields = schema(getattr(proto, name))
    of_forks = {field for field in fields if (name, field) in rows()} - set(told)  # docs/dialects.md has them
    assert {field: cells[:2] for field, cells in told.items()} == {k: v for k, v in fields.items() if k not in of_forks}
    assert all(cells[2].endswith(".") for cells in told.values()), "a meaning is a sentence"


def test_every_policy_stands_with_what_it_needs_and_has_a_curve():
    told = tables((REPO / "docs/solver.md").read_text())["policy"]
    assert set(told) == known("lr_policy")
    curves = _policy_curves()
    assert set(curves.EXAMPLES) == set(told)
    drawn = (REPO / "docs/policies.svg").read_text()
    for policy, cells in told.items():
        param = curves.solver(policy, curves.EXAMPLES[policy])
        assert complaint(param) == ""
        for field in re.findall(r"`(\w+)`", cells[1]):
            less = type(param).FromString(param.SerializeToString())
            less.ClearField(field)
            assert f"lr_policy '{policy}' needs {field}" in complaint(less)
        for field in re.findall(r"`(\w+)`", cells[2]):
            less = type(param).FromString(param.SerializeToString())
            less.ClearField(field)
            assert complaint(less) == ""
            assert any(f"lr_policy '{policy}' without {field}" in note for note in notes(less))
        assert len(curves.curve(policy, curves.EXAMPLES[policy])) == curves.ITERATIONS
        assert f">{policy}</text>" in drawn, "run `python tools/policy_curves.py`"


def known(field):
    """Returns the names that the error for an unknown value of a field lists."""
    found = re.search(r"'\?'.*; known: (.*)", complaint(proto.SolverParameter(**{field: "?"})))
    return set(found[1].split(", "))


def complaint(param):
    """Returns what the checks of a solver say of it, "" if nothing."""
    try:
        validate(param)
    except ConfigError as error:
        return str(error)
    return ""


def _policy_curves():
    spec = importlib.util.spec_from_file_location("policy_curves", REPO / "tools/policy_curves.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_update_rule_stands_in_the_solvers_page():
    told = tables((REPO / "docs/solver.md").read_text())["type"]
    assert {name for name in told if "`" not in name} == known("type")


def test_every_variable_of_the_environment_stands_in_the_clusters_page():
    told = {name for cell in tables((REPO / "docs/cluster.md").read_text())["variable"] for name in cell.split("`, `")}
    sources = [REPO / "setup.py", *(REPO / "engine").rglob("*.py")]
    own = {name for path in sources for name in re.findall(r'"(ENGINE_[A-Z_]+)"', path.read_text())}
    assert told >= {*own, *VARIABLES, *OTHERS_VARIABLES}


def test_messages_of_the_troubleshooting_page_are_said():
    said = "".join(path.read_text() for path in (REPO / "engine").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # joins strings that go over several lines
    told = tables((REPO / "docs/troubleshooting.md").read_text())["message"]
    parts = [part.strip() for message in told for part in message.partition("`")[0].split("...")]
    assert len(told) > 15 and [part for part in parts if part not in said] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target, heading in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name}: {target}"
        assert not heading or heading in _anchors(path.read_text()), f"{document.name}: {target}#{heading}"


def _anchors(text):
    """Returns the names that GitHub gives headings."""
    return {
        re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    missing = [path for path in paths(text) if not (REPO / path).exists()]
    assert not missing


def paths(text):
    """Returns the paths that stand in backticks, alone or in a command."""
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    return [word for word in words if word.split("/")[0] in ROOMS and "/" in word]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_methods_exist(document):
    """Checks each `Class.method` whose class is one of the engine's."""
    missing = []
    for name, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", document.read_text()):
        of_class = [text for text in _SOURCES if re.search(rf"^class {name}\b", text, re.MULTILINE)]
        if of_class and not any(f" def {method}(" in text for text in of_class):
            missing.append(f"{name}.{method}")
    assert not missing


def test_the_readme_is_short_and_answers_with_three_files_at_most():
    text = (REPO / "README.md").read_text()
    assert len(text.splitlines()) < 120
    answers = tables(text)["question"]
    assert len(answers) >= 10
    assert all(1 <= len(paths(cells[0])) <= 3 for cells in answers.values())
