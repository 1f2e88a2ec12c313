"""Chooses the kernels of a net's convolutions and inner products by measurement, the same on all ranks.

The measurements are kept in the user's cache folder, a file for each kind of process: processor, threads, instruction
set, versions. A table counts only for processes of the kind that it names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import engine
from engine.errors import EngineError
from engine.files import atomic_write, cache_folder, read_text
from engine.host.machine import processor
from engine.host.ranks import Ranks, failing_alike, gather_everywhere
from engine.layers.kernels import OWN, PASSES, Asked, Choice, Choices
from engine.net.measure import Measured, measure

if TYPE_CHECKING:
    from engine.net.net import Net

FORMAT = 1
KEEP_SECONDS = 5.0  # at least so often measurements are written, for a run that is ended while it measures
KERNELS = ("direct", "fp32", "winograd", *OWN)
SCHEMA = f"expected the JSON that --kernels measure keeps: a table of format {FORMAT}"

Machine = Mapping[str, object]
Say = Callable[[str], None]


def this_machine() -> dict[str, object]:
    """Returns what decides how long a kernel takes, beside the op itself: the kind of this process."""
    from engine.host import _core, _ext

    return {
        "processor": processor(),
        "instructions": _core.onednn_isa(),
        "threads": _core.threads(),
        "onednn": _core.onednn_version(),
        "engine": f"{engine.__version__}, extension {_digest(_ext.__file__)}",
    }


@functools.cache
def _digest(path: str) -> str:
    """Returns a digest of the extension: kernels may change while the version stays."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:8]


def _same_but_for_engine(one: Machine, other: Machine) -> bool:
    return {**one, "engine": ""} == {**other, "engine": ""}


@dataclass
class Table:
    """The measurements of one kind of process, by the key of the op."""

    machine: Machine
    ops: dict[str, Measured] = field(default_factory=dict)

    def choices(self, keys: Iterable[str] | None = None) -> dict[str, Choice]:
        """Returns the chosen kernels of the ops with these keys; None: of all ops."""
        wanted = self.ops if keys is None else keys
        return {key: self.ops[key].kernels for key in wanted if key in self.ops and self.ops[key].kernels}

    def to_text(self) -> str:
        ops = {key: asdict(each) for key, each in sorted(self.ops.items())}
        return json.dumps({"format": FORMAT, "machine": dict(self.machine), "ops": ops}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, where: str) -> Table:
        """Reads what to_text() wrote. where: the file, for errors. Raises EngineError that names what is wrong."""

        def fail(found: object) -> EngineError:
            return EngineError(f"{SCHEMA}; {found}", where)

        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise fail(f"this is no JSON: {error}") from None
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise fail("got something else" if not isinstance(read, dict) else f"got format {read.get('format')!r}")
        machine, ops = read.get("machine"), read.get("ops")
        if not isinstance(machine, dict) or not isinstance(ops, dict):
            raise fail("machine or ops is missing")
        table = cls(machine)
        for key, entry in ops.items():
            kernels = entry.get("kernels") if isinstance(entry, dict) else None
            ms = entry.get("ms", {}) if isinstance(entry, dict) else None
            if not isinstance(kernels, dict) or not isinstance(ms, dict):
                raise fail(f"'{key}' has no kernels")
            for name, kernel in kernels.items():
                if name not in PASSES or kernel not in KERNELS:
                    known = f"passes {', '.join(PASSES)} and kernels {', '.join(KERNELS)}"
                    raise fail(f"'{key}' has {name} by {kernel!r}; known: {known}")
            if not all(isinstance(times, dict) and _are_numbers(times.values()) for times in ms.values()):
                raise fail(f"'{key}' has times that are no numbers")
            table.ops[key] = Measured(kernels, ms)
        return table


def _are_numbers(values: Iterable[object]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


class Kernels:
    """Chooses the kernels of a run's nets: by rules of thumb, by measurement, or from a file.

    Args:
        mode: "default" (rules of thumb), "measure" or the path of a table.
        snapshot: the table of the run that this one continues, as JSON. Its kernels override measurements, so that
            results stay the same to the bit.
        say: takes lines for the log.
        beat: called after each op that was measured, as a sign of progress.
    """

    def __init__(
        self,
        mode: str = "default",
        snapshot: str | None = None,
        say: Say = lambda line: None,
        beat: Callable[[], None] = lambda: None,
    ):
        self.mode, self._snapshot, self._say, self._beat = mode, snapshot, say, beat
        self.table: Table | None = None  # None: rules of thumb alone
        self._opened = False
        self._used: set[str] = set()  # keys of the ops of all nets
        self._handed_on: str | None = None  # a snapshot's table that this run does not use: see hand_on()

    @property
    def measures(self) -> bool:
        return self.mode == "measure"

    def build(self, make: Callable[[Choices], Net], ranks: Ranks) -> Net:
        """Collective. Returns a net with the chosen kernels. In mode "measure" it first measures the ops that are not
        in the table.

        make: builds the net with these kernels; called twice if something was measured. Raises EngineError if a table
        cannot be read.
        """
        if not self._opened:
            self._open(ranks)
        if self.table is None:
            return make({})
        net = make(self.table.choices())
        if self.measures:
            missing = {each.key: each for each in net.builder.asked if each.key not in self.table.ops}
            if any(gather_everywhere(ranks, bool(missing))):
                found = self._measure(missing) if self._leads else {}
                self.table.ops.update(gather_everywhere(ranks, found)[self._leader])
                del missing, net
                net = make(self.table.choices())
        self._used.update(each.key for each in net.builder.asked)
        return net

    def hand_on(self, snapshot: str | None) -> None:
        """Keeps a snapshot's table for the next snapshot, when a program goes on from it: the program's nets are built
        and have other kernels, but later runs may have the snapshot's again."""
        self._handed_on = snapshot
        if snapshot:
            self._say("Kernels: this program does not compute by those of the snapshot: results may differ by rounding")

    def saved(self) -> str | None:
        """Returns the table of the kernels that the nets use, without times, as JSON for a snapshot; None for rules of
        thumb."""
        used = self.table.choices(sorted(self._used)) if self.table is not None else {}
        if self.table is None or not used:
            return self._handed_on
        table = Table(self.table.machine, {key: Measured(dict(kernels)) for key, kernels in used.items()})
        return json.dumps(json.loads(table.to_text()), separators=(",", ":"))

    def _open(self, ranks: Ranks) -> None:
        """Collective, once. Reads the table: the first rank of each kind of process reads it for all of its kind."""
        self._opened = True
        if self.mode == "default" and self._snapshot is None:
            return
        machine = this_machine()
        kinds = gather_everywhere(ranks, machine)
        self._leader = kinds.index(machine)
        self._leads = self._leader == ranks.rank
        with failing_alike(ranks):
            table = self._read(machine) if self._leads else None
        self.table = gather_everywhere(ranks, table)[self._leader]

    def _read(self, machine: Machine) -> Table | None:
        """Returns the table that the mode and the snapshot ask for; None for rules of thumb."""
        if not self.measures and self.mode != "default":
            return self._read_file(machine)
        before = self._read_snapshot(machine)
        if not self.measures:
            return before
        path = cache_path(machine)
        table = _cached(path, machine, self._say) if path is not None else Table(machine)
        if before is not None:
            table.ops.update(before.ops)
        return table

    def _read_file(self, machine: Machine) -> Table:
        table = Table.from_text(read_text(self.mode), self.mode)
        if table.machine != machine:
            self._say(f"Kernels: {self.mode} was measured elsewhere ({_difference(table.machine, machine)})")
        return table

    def _read_snapshot(self, machine: Machine) -> Table | None:
        if self._snapshot is None:
            return None
        table = Table.from_text(self._snapshot, "the snapshot's kernels")
        if not _same_but_for_engine(table.machine, machine):  # another build's kernels give the same results
            why = _difference(table.machine, machine)
            self._say(f"Kernels: those of the snapshot are of another machine ({why}): results may differ by rounding")
            return None
        self._say(f"Kernels: {len(table.ops)} as in the snapshot")
        return table

    def _measure(self, asked: Mapping[str, Asked]) -> dict[str, Measured]:
        """Measures ops, and writes the measurements to the cache for other runs, also now and then in between. Returns
        them by key."""
        if not asked:
            return {}
        self._say(f"Kernels: measuring {len(asked)} ops, once for this processor, number of threads and batch size")
        begin = last_kept = time.perf_counter()
        path, found = cache_path(this_machine()), {}
        for key, each in asked.items():
            found[key] = measure(each)
            self._beat()
            if path is not None and time.perf_counter() - last_kept >= KEEP_SECONDS:
                _keep(path, found)
                last_kept = time.perf_counter()
        seconds = time.perf_counter() - begin
        kept = path is not None and _keep(path, found)
        where = f"kept in {path}" if kept else f"not kept: {path or 'a cache'} cannot be written (ENGINE_CACHE)"
        self._say(f"Kernels: measured in {seconds:.1f} s, {where}")
        return found


def _keep(path: Path, found: dict[str, Measured]) -> bool:
    """Adds measurements to a file of the cache. Returns whether it could be written.

    Where another run has written an op meanwhile, its measurement replaces the one in `found`: both runs then use the
    same kernels."""
    machine = this_machine()
    table = _cached(path, machine)
    found.update({key: table.ops[key] for key in found if key in table.ops})
    table.ops.update(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(table.to_text().encode())
    except (OSError, EngineError):
        return False
    return True


def _cached(path: Path, machine: Machine, say: Say = lambda line: None) -> Table:
    """Returns the table of a file; an empty one if there is no file, or if it is damaged or another machine's."""
    if not os.path.exists(path):
        return Table(machine)
    try:
        table = Table.from_text(read_text(path), str(path))
    except EngineError as error:
        say(f"Kernels: measured anew: {error}")
        return Table(machine)
    if table.machine != machine:
        say(f"Kernels: measured anew: {path} is of another machine ({_difference(table.machine, machine)})")
        return Table(machine)
    return table


def cache_path(machine: Machine) -> Path | None:
    """Returns the path of the table of a kind of process; None if the user has no cache folder."""
    folder = cache_folder()
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"kernels.{digest}.json" if folder is not None else None


def _difference(theirs: Machine, ours: Machine) -> str:
    """Returns the first fact in which two kinds of processes differ, for messages."""
    what = next((name for name in ours if theirs.get(name) != ours[name]), "format")
    return f"{what}: {theirs.get(what)}; here: {ours.get(what)}"
