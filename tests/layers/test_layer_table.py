"""docs/layers.md agrees with the registry and the sources."""

import importlib.util

import pytest

from engine.layers import fillers
from engine.layers.base import Layer
from engine.layers.registry import layer_types
from tests.mpi import REPO

COMMAND = "python tools/layer_table.py"


@pytest.fixture(scope="module")
def text():
    spec = importlib.util.spec_from_file_location("layer_table", REPO / "tools/layer_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.text()


def rows(text: str) -> dict[str, list[str]]:
    """Returns the other cells of each layer, by type."""
    found = {}
    for line in text.partition("## Parameters")[0].splitlines():
        if line.startswith("| `"):
            types, *cells = (cell.strip() for cell in line.replace("\\|", "").strip("|").split(" |"))
            found |= {name.strip(" `"): cells for name in types.split(",")}
    return found


def test_the_table_is_up_to_date(text):
    written = REPO / "docs/layers.md"
    assert written.is_file() and written.read_text() == text, f"docs/layers.md is out of date: run `{COMMAND}`"


def test_what_it_says_of_some_layers(text):
    table = rows(text)
    assert set(table) == set(layer_types())
    expected = {"Convolution": ("yes", "oneDNN"), "Accuracy": ("no", "own"), "SPP": ("yes", "own + oneDNN")}
    assert {name: (table[name][-3], table[name][-1]) for name in expected} == expected
    assert table["Convolution"][-2] == "yes" and table["Embed"][-2] == ""
    assert table["InnerProduct"][1:3] == ["1, 1", "`inner_product_param`"]
    assert table["MemoryData"][2] == "`memory_data_param`" and table["HDF5Data"][2].endswith(", `transform_param`")
    assert table["DeformableConvolution"][2] == "`deformable_convolution_param`"
    assert table["Data"][1:] == ["0, 1 or more", "`data_param`, `transform_param`", "", "", "", ""]


def test_it_has_every_filler_and_the_blobs_of_every_layer(text):
    told = text.partition("## Parameters and fillers")[2].partition("| `type` |")[2]
    assert {line.split("`")[1] for line in told.splitlines() if line.startswith("| `")} == set(fillers._fillers)
    made = {name for name, cls in layer_types().items() if cls.make_params is not Layer.make_params}
    table = rows(text)
    assert {name for name in made if not table[name][3]} == {"Im2col", "Python"}, "say in the docstring: params: ..."
