"""The exceptions that a user can meet, and helpers for their messages. Only cli.py turns them into an exit status."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

LONGEST = 600  # characters of a message, which may quote any text of a file
MOST_ERRORS = 100  # that are printed for one file
ErrorT = TypeVar("ErrorT", bound="EngineError")
Complaint = tuple[str, str]  # a field of a solver, and what is wrong with it
FILE, CODE = "file", "code"  # values of EngineError.absent


def printable(text: str, lines: bool = False) -> str:
    """Returns the text with everything escaped that a terminal would obey or not show: control characters, line
    separators, directions of writing, lone surrogates. lines: whether to keep newlines."""
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    if text.isprintable():  # most are, and this is quick
        return text
    return "".join(each if _is_shown(each) else each.encode("unicode_escape").decode() for each in text)


def _is_shown(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def shortened(text: str, most: int = LONGEST) -> str:
    """Returns the text, cut in the middle if it is longer than `most` characters."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


class EngineError(RuntimeError):
    """The base of all errors that engine raises on purpose; a RuntimeError, as those of Caffe's Python interface are.

    str() is one line, printable() and shortened(), that begins with the place; then the details, if there are any."""

    def __init__(self, message: str, where: str | None = None, details: str = "", absent: str = ""):
        """Makes the error.

        Args:
            where: the place, such as "file:line:column".
            details: further lines, such as the traceback of a user's code.
            absent: FILE or CODE if only a file, or a user's code, is not on this machine; else "".
        """
        line = shortened(printable(f"{where}: {message}" if where else message))
        super().__init__("\n".join([line, *printable(details, lines=True).splitlines()]))
        self.where, self.absent = where, absent

    @property
    def errors(self: ErrorT) -> Sequence[ErrorT]:
        """The errors that it stands for: itself, or several if it is a ConfigErrors."""
        return [self]


class ConfigError(EngineError):
    """A net or solver text that cannot be used: unknown names, wrong values, shapes that do not fit."""


class ConfigErrors(ConfigError):
    """Several ConfigErrors of one file, found in one go. str() holds one line for each of the first MOST_ERRORS."""

    def __init__(self, errors: list[ConfigError]):
        more = ["... and more errors"] if len(errors) > MOST_ERRORS else []
        Exception.__init__(self, "\n".join([*map(str, errors[:MOST_ERRORS]), *more]))
        self.where, self.absent, self._errors = None, "", errors

    @property
    def errors(self) -> Sequence[ConfigError]:
        return self._errors


def together(errors: list[ConfigError]) -> ConfigError:
    """Returns one error to raise for errors that were found in one go, of which there must be one at least."""
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


class DataError(EngineError):
    """A data source that cannot be opened, or an item in it that cannot be read; names the source and the key."""

    # If a net has found the fault in its input: the data layer, and the place of the item in its batch.
    item: tuple[str, int] | None = None


class DamagedItem(DataError):
    """One item of a source whose bytes are damaged, while others can be read. key: of the item."""

    def __init__(self, message: str, key: str, where: str | None = None):
        super().__init__(message, where)
        self.key = key


class WeightsError(EngineError):
    """A model or state file that is damaged or does not fit the net; names the layer, blob index and both shapes."""


class NumericalError(EngineError):
    """A loss or blob that is no longer finite; names the iteration and the layer."""


class CommError(EngineError):
    """MPI is missing, or ranks disagree."""


def shape_text(shape: Sequence[int]) -> str:
    """Returns a shape for messages: "64 x 3 x 7 x 7" for (64, 3, 7, 7), "scalar" for ()."""
    return " x ".join(map(str, shape)) or "scalar"


def numbers_text(numbers: Iterable[float]) -> str:
    """Returns numbers as a list, such as "[1.08, 2]", without the digits that float32 adds."""
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"


def ranges_text(numbers: Iterable[int]) -> str:
    """Returns increasing numbers for messages: "0-2,5" for [0, 1, 2, 5]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
