"""Holds what `engine check` has found in a file, and in each of its nets."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.data.source_shapes import SUPPOSITIONS, Supposition
from engine.errors import CODE, FILE, EngineError
from engine.graph.costs import LayerCost, Memory
from engine.layers.python import ModuleRefused
from engine.solver.outline import Outline


@dataclass
class NetReport:
    """One net in the phases in which it looks like this."""

    name: str
    file: str
    phases: list[str]
    layers: list[LayerCost]
    memory: Memory
    batch: int  # samples in the first top
    has_loss: bool
    recurrent: list[str]  # layers that go on from batch to batch
    supposition: Supposition = SUPPOSITIONS[0]  # of data that are not here

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """The FLOPs of a forward pass over the batch."""
        return sum(layer.flops for layer in self.layers)


@dataclass
class FileReport:
    """What was found in one file."""

    file: str
    kind: str = ""
    nets: list[NetReport] = field(default_factory=list)
    schedule: list[tuple[int, float]] = field(default_factory=list)  # of a solver: (iteration, learning rate)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # Python layers that may not be imported, nor be checked therefore
    absent_code: list[str] = field(default_factory=list)  # Python layers whose code is not here
    absent_files: list[str] = field(default_factory=list)
    ranks: int = 1
    batch: str = ""  # the global batch, and what it is the product of
    optimizer_bytes: int = 0  # of the optimizer's state on each rank
    sharded: bool = False  # whether a rank has only its share of that state
    discriminator: NetReport | None = None  # of adversarial training; nets[0] is the generator with it behind
    outline: Outline | None = None  # of a solver: its run on `ranks` ranks

    def fail(self, error: EngineError) -> None:
        """Adds an error: to `errors`, or where it belongs if only code or a file is absent."""
        for each in error.errors:
            kinds = {FILE: self.absent_files, CODE: self.absent_code}
            lines = self.refused if isinstance(each, ModuleRefused) else kinds.get(each.absent, self.errors)
            if str(each) not in lines:
                lines.append(str(each))

    @property
    def lacks(self) -> list[str]:
        """What could not be checked, though nothing is known to be wrong with it."""
        return [*self.absent_code, *self.refused, *self.absent_files]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def absent(self, text: str) -> None:
        """Adds a line about a file that is not here."""
        if text not in self.absent_files:
            self.absent_files.append(text)
