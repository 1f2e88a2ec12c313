"""Values of blobs become integers in csrc/kernels/whole.h only, since a cast of a value that no integer holds is
undefined. The compiler finds conversions without a cast (-Wfloat-conversion)."""

import re

import pytest

from tests.mpi import REPO

WHOLE = REPO / "csrc/kernels/whole.h"
FILES = [path for room in ("kernels", "ops") for path in sorted((REPO / "csrc" / room).rglob("*.[ch]*"))]
INTEGER = r"(?:std::)?(?:u?int(?:8|16|32|64)?_t|int|unsigned|long|short|char|size_t|ptrdiff_t)"
CAST = re.compile(rf"(?<![\w:])(?:{INTEGER}|static_cast<{INTEGER}>)\(")
C_CAST = re.compile(rf"(?<!\w)\({INTEGER}\)\s*[\w(*]")
# Matches `float a`, `const float* const a` and `double& a`, and what follows, which may hold more names.
DECLARATION = re.compile(r"\b(?:float|double)(?:\s*\*)?(?:\s+const)?\s*[*&]?\s*\b(\w+)\b(?!\s*\()([^;(){]*)")
FLOAT_RESULT = re.compile(r"\b(?:floor|ceil|round|trunc|sqrt|exp|log|pow|float|double|data)\(|\d\.")


def code(text: str) -> str:
    """Returns the text without comments and strings."""
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\])*"', "", text)


def floats(text: str) -> set[str]:
    """Returns the names that are declared as floats, or as pointers to floats."""
    found = DECLARATION.findall(text)
    return {name for name, _ in found}.union(*(re.findall(r",\s*[*&]?(\w+)\s*[,;=]", f"{more};") for _, more in found))


def operand(text: str, begin: int) -> str:
    """Returns the text from behind a bracket to the closing one, without the arguments of whole() and sizeof()."""
    depth, end = 1, begin
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return re.sub(r"\b(?:whole|sizeof)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", text[begin : end - 1])


def casts_of_floats(text: str, members: set[str]) -> list[str]:
    """Returns casts to an integer whose operand appears to be a float. `members` are the names of fields that are
    floats."""
    text = code(text)
    members = members | {name for name in floats(text) if name.endswith("_")}
    found = [match[0] for match in C_CAST.finditer(text)]  # their operand cannot be told: write int64_t(x)
    for match in CAST.finditer(text):
        inside = operand(text, match.end())
        names = set(re.findall(r"\b[A-Za-z_]\w*\b(?!\s*(?:\(|\.|->|::))", inside))
        if FLOAT_RESULT.search(inside) or names & (members | floats(text[: match.start()])):
            found.append(match[0] + inside + ")")
    return found


@pytest.fixture(scope="module")
def members() -> set[str]:
    return set().union(*(floats(code(path.read_text())) for path in FILES if path.name in ("boxes.h", "rois.h")))


def test_no_cast_elsewhere(members):
    found = {str(path.relative_to(REPO)): casts_of_floats(path.read_text(), members) for path in FILES if path != WHOLE}
    assert {path: casts for path, casts in found.items() if casts} == {}, "use whole() of csrc/kernels/whole.h"


@pytest.mark.parametrize(
    "text",
    [
        "const float* const values = data; rows[0] = int64_t(values[0]);",
        "float a = 1, b = 2; int(b)",
        "void f(double at) { return std::min(int64_t(at), last); }",
        "float scale_; int32_t(n * scale_)",
        "size_t(std::floor(x))",
        "static_cast<int>(input(0)->data()[i])",
        "int64_t(box.x1)",
        "return (int)x;",
        "uint32_t(ratio * 2.5)",
    ],
)
def test_what_is_found(text, members):
    assert casts_of_floats(text, members)


@pytest.mark.parametrize(
    "text",
    [
        "float a; int64_t(rows.size())",
        "int32_t(which); float which;",
        "float at; int32_t(whole(at * 2))",
        "int64_t(sizeof(float)) * count",
        "float value; uint32_t(value.bits)",
        "// int(1.5)",
    ],
)
def test_what_is_not(text, members):
    assert not casts_of_floats(text, members)


def test_the_compiler_is_asked():
    assert "-Wfloat-conversion" in (REPO / "CMakeLists.txt").read_text()
