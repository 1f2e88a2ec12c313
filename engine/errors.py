"""The exceptions a user can meet. Each carries one clear line; only cli.py turns them into an exit status."""

from collections.abc import Sequence


class EngineError(Exception):
    """Base of everything that engine raises on purpose. str() is one line, the place ("file:line:column") first."""

    def __init__(self, message: str, where: str | None = None):
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class ConfigError(EngineError):
    """A net or solver text that cannot be used: unknown names, wrong values, shapes that do not fit."""


class ConfigErrors(ConfigError):
    """Several ConfigErrors of one file, found in one go. str() holds one line for each."""

    def __init__(self, errors: list[ConfigError]):
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors


class DataError(EngineError):
    """A data source that cannot be opened, or an item in it that cannot be read; names the source and the key."""


class WeightsError(EngineError):
    """A model or state file that is damaged or does not fit the net; names the layer, blob index and both shapes."""


class NumericalError(EngineError):
    """A loss or blob that is no longer finite; names the iteration and the layer."""


class CommError(EngineError):
    """MPI is missing, or ranks disagree."""


def shape_text(shape: Sequence[int]) -> str:
    """As messages show it: (64, 3, 7, 7) -> "64 x 3 x 7 x 7", () -> "scalar"."""
    return " x ".join(map(str, shape)) or "scalar"
