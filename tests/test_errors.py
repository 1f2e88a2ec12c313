"""Messages are one line, with nothing in it that a terminal would obey."""

import pytest

from engine.errors import (
    LONGEST,
    ConfigError,
    ConfigErrors,
    DataError,
    EngineError,
    NumericalError,
    WeightsError,
    printable,
    ranges_text,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layer 'ä 中 x'", "layer 'ä 中 x'"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b2J \u2028 \u202e", "\\x9b2J \\u2028 \\u202e"),
        ("name\udcff", "name\\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown
    assert str(EngineError(text, "x.prototxt:1:1")) == f"x.prototxt:1:1: {shown}"


def test_long_messages_are_cut_in_the_middle():
    text = str(EngineError("a" * 5000 + "; did you mean 'b'?", "file:1:1"))
    assert len(text) <= LONGEST and text.startswith("file:1:1: aaa") and text.endswith("did you mean 'b'?")


def test_details_keep_their_lines():
    error = EngineError("setup of a.B failed", "net.prototxt:1:1", details="Traceback:\n  x\x1b\nValueError")
    assert str(error).splitlines() == ["net.prototxt:1:1: setup of a.B failed", "Traceback:", "  x\\x1b", "ValueError"]


def test_several_errors_have_a_line_each():
    errors = ConfigErrors([ConfigError("a\nb", "x:1:1"), ConfigError("c", "x:2:1")])
    assert str(errors) == "x:1:1: a\\nb\nx:2:1: c"


def test_errors_are_those_of_caffe_s_interface():
    """Scripts written for Caffe catch RuntimeError."""
    for each in (ConfigErrors, DataError, WeightsError, NumericalError):
        assert issubclass(each, RuntimeError)


def test_ranges_of_numbers():
    assert ranges_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and ranges_text([3]) == "3"
