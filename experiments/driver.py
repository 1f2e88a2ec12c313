"""What the experiments' drivers share: they work alone, keep their results whole, and end with one line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path


class Failure(Exception):
    """What ends an experiment, in one line."""


@contextlib.contextmanager
def alone(results: Path) -> Iterator[None]:
    """Raises Failure where another driver writes to the same results."""
    path = results.with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(f"{path} is locked: another run.py works on these results") from None
        yield


def write_json(path: Path, content: object) -> None:
    """The file is whole at any time, also after a power cut."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def last_line(log: Path) -> str:
    """What a command that failed has said at its end."""
    return (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
