"""Averages, and the lines that are printed of them."""

import re

import numpy as np
import pytest

from engine.errors import shape_text
from engine.report.metrics import Averages, output_lines
from engine.report.table import human, table

# The pattern by which parse_log.py finds the outputs of a net.
OUTPUT = re.compile(r"(Train|Test) net output #(\d+): (\S+) = ([\.\deE+-]+)")


def test_averages_are_weighted_by_samples():
    averages = Averages()
    averages.add({"accuracy": np.float32(0.5), "loss": np.array(2.0)}, 60)
    averages.add({"accuracy": np.float32(1.0), "loss": np.array(4.0)}, 20)
    result = averages.result()
    assert result["accuracy"].tolist() == [0.625] and result["loss"].tolist() == [2.5]
    assert averages.samples == 80
    with pytest.raises(ValueError, match="output 'loss': expected 1 values as before, got 2"):
        averages.add({"loss": np.array([1.0, 2.0])}, 20)


def test_output_lines_are_caffes():
    lines = list(output_lines("Test", {"accuracy": np.array([0.71]), "loss": np.array([0.8])}, {"loss": 1.0}))
    assert lines == ["    Test net output #0: accuracy = 0.71", "    Test net output #1: loss = 0.8 (* 1 = 0.8 loss)"]
    assert [OUTPUT.search(line).groups()[2:] for line in lines] == [("accuracy", "0.71"), ("loss", "0.8")]


def test_outputs_of_many_values_are_numbered_through():
    lines = list(output_lines("Train", {"by_class": np.array([1e-7, 0.5]), "loss": np.array(3.0)}, {"loss": 0.3}))
    assert [OUTPUT.search(line).groups()[1:] for line in lines] == [
        ("0", "by_class", "1e-07"),
        ("1", "by_class", "0.5"),
        ("2", "loss", "3"),
    ]
    assert lines[2].endswith("(* 0.3 = 0.9 loss)")


def test_table():
    text = table(("layer", "count"), [("conv1", 1), ("a long name", 20)], total=("total", 21))
    assert text.splitlines() == [
        "layer        count",
        "-----------  -----",
        "conv1            1",
        "a long name     20",
        "-----------  -----",
        "total           21",
    ]


def test_cells_stay_as_they_are():
    text = table(("what", "found"), [("1e5", None), ("1.50", True)], "><")
    assert text.splitlines()[2:] == [" 1e5  None", "1.50  True"]


def test_columns_are_those_of_a_terminal():
    """An ideograph fills two columns, and an accent that follows its letter none. What a terminal would obey is
    escaped."""
    text = table(("名", "n"), [("e\u0301", 10), ("a\tb", 2)])
    assert text.splitlines() == ["名     n", "----  --", "e\u0301     10", "a\\tb   2"]


def test_words_for_numbers():
    assert human(25557032) == "25.56 M" and human(4096, "B") == "4.10 kB" and human(12) == "12"
    assert shape_text((16, 3, 8)) == "16 x 3 x 8" and shape_text(()) == "scalar"
