"""A target is a function that takes an input as engine takes a file that nobody vouches for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import proto
from engine.data.reader import Request, Sample
from engine.data.registry import find_reader
from tests.fuzz.mutate import Mutate, mutate_bytes

CORPUS = Path(__file__).parent / "corpus"
Run = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A format to fuzz.

    Args:
        prepare: takes a folder of its own, and returns the function, which may raise only the errors of
            engine/errors.py.
        inputs: number of inputs that CI tries.
        seeds: returns good inputs, besides those of corpus/.
        guided: whether the coverage of Python is of use. It is not if all is read in C.
    """

    name: str
    prepare: Callable[[Path], Run]
    inputs: int
    mutate: Mutate
    seeds: Callable[[], list[bytes]]
    guided: bool

    def corpus(self) -> list[bytes]:
        """Returns what was found once, then good inputs, always in the same order."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))] + self.seeds()


TARGETS: dict[str, Target] = {}


def target(
    inputs: int,
    mutate: Mutate = mutate_bytes,
    seeds: Callable[[], list[bytes]] = list,
    guided: bool = True,
) -> Callable[[Callable[[Path], Run]], Callable[[Path], Run]]:
    """Decorates prepare() of a target, which gets the function's name."""

    def add(prepare: Callable[[Path], Run]) -> Callable[[Path], Run]:
        TARGETS[prepare.__name__] = Target(prepare.__name__, prepare, inputs, mutate, seeds, guided)
        return prepare

    return add


def of_file(path: Path, read: Callable[[str], object]) -> Run:
    """Returns a function that writes an input to a file and reads it. The file's name may tell how it is read."""

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read(str(path))

    return run


def read_data(message: proto.LayerParameter, phase: int = proto.TRAIN, epochs: Sequence[int] = (0,)) -> None:
    """Reads up to eight items as a data layer does, from the beginning and from the end."""
    reader = find_reader(message.type)(message, Request(phase))
    batch = reader.batch_size(message, None)
    reader.top_shapes(reader.shapes, batch)
    out = [np.zeros(shape, np.float32) for shape in reader.shapes]
    for epoch in epochs:
        for index in {*range(min(reader.size, 4)), *range(max(reader.size - 4, 0), reader.size)}:
            reader.load(Sample(epoch, index, index % batch), out)
