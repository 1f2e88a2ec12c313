"""Keeps the newest snapshots of a run (`snapshot_keep`) and the file of its best weights (`snapshot_best`).

It removes only files that this run has written, or the run from which it goes on, and none with which a later stage
begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files import reason, unfinished
from engine.report.log import log, warn
from engine.weights import SolverState

if TYPE_CHECKING:
    from engine.comm.world import World

SUFFIXES = ("", ".h5")  # files may have either, as a run may go on in the other format


class KeptSnapshots:
    """Knows which snapshots there are: the same on all ranks, while rank 0 alone touches files."""

    def __init__(self, prefix: str, keep: int, needed: Iterable[str], world: World):
        """keep: how many snapshots are kept; 0: all. needed: files with which later stages begin."""
        self.prefix, self._keep, self._world = prefix, keep, world
        self._needed = {os.path.abspath(path) for path in needed}
        self.iterations: list[int] = []  # those of which there are snapshots, ascending
        self._bests: set[int] = set()  # iterations of the files of best weights
        self._saved_best: int | None = None  # the iteration of the best weights by the last snapshot's state

    def restore(self, path: str, state: SolverState) -> None:
        """Takes over what a snapshot's state knows, unless its path has another prefix: then it is another run's."""
        own = {os.path.abspath(f"{self.prefix}_iter_{state.iteration}.solverstate{suffix}") for suffix in SUFFIXES}
        if os.path.abspath(path) not in own:
            return
        self.iterations = sorted({*(at for at in state.kept_snapshots if at < state.iteration), state.iteration})
        self._saved_best = state.best_iteration
        if state.best_iteration is not None:
            self._bests.add(state.best_iteration)

    def add(self, iteration: int, best: int | None) -> list[str]:
        """Notes a snapshot that is whole and removes old ones. best: the iteration of the best weights by its state.
        Returns the files of weights that have been removed."""
        self.iterations = sorted({*self.iterations, iteration})
        self._saved_best = best
        removed = []
        for each in self._old():
            if each == iteration:  # in a run that has gone back, the snapshot just written may be among the oldest
                continue
            # The state first: if the removal stops halfway, no state is left without its weights.
            states = [f"{self.prefix}_iter_{each}.solverstate{suffix}" for suffix in SUFFIXES]
            self._remove([*states, *self._models(each)])
            self.iterations.remove(each)
            removed += self._models(each)
        return removed + self._prune_bests(best)

    def others(self, iteration: int) -> list[int]:
        """Returns the iterations of the snapshots that are kept beside that of `iteration`, which is to be written."""
        old = self._old()
        return [each for each in self.iterations if each != iteration and each not in old]

    def _old(self) -> list[int]:
        """Returns the iterations of the snapshots that are to be removed."""
        old = self.iterations[: -self._keep] if self._keep else []
        return [each for each in old if not self._needed & set(map(os.path.abspath, self._models(each)))]

    def _models(self, iteration: int) -> list[str]:
        stem = f"{self.prefix}_iter_{iteration}"
        return [f"{stem}{kind}.caffemodel{suffix}" for kind in ("", "_ema") for suffix in SUFFIXES]

    def add_best(self, path: Path, iteration: int) -> list[str]:
        """Notes a file of best weights that is whole, and removes older ones. Returns the files removed."""
        self._bests.add(iteration)
        if self._world.rank == 0:
            self.link_best(path)
        return self._prune_bests(iteration)

    def _prune_bests(self, best: int | None) -> list[str]:
        """Removes all files of best weights but those of `best` and those that the last snapshot names: a run that goes
        on from it needs them. Returns the files removed."""
        removed = []
        for each in sorted(self._bests - {best, self._saved_best}):
            files = [f"{self.prefix}_iter_{each}_best.caffemodel{suffix}" for suffix in SUFFIXES]
            if not self._needed & set(map(os.path.abspath, files)):
                self._remove(files)
                removed += files
            self._bests.discard(each)
        return removed

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths if self._world.rank == 0 else ():
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                warn(f"{path} is an old snapshot and cannot be removed: {reason(error)}")

    def link_best(self, path: Path) -> None:
        """Points `<prefix>_best.caffemodel` to the best weights."""
        link = Path(f"{self.prefix}_best.caffemodel{path.suffix if path.suffix == '.h5' else ''}")
        if link.exists() and not link.is_symlink():
            warn(f"{link} is a file and not a link, so it stays; the best weights are in {path}")
            return
        temporary = unfinished(link, "tmp")
        try:
            temporary.symlink_to(path.name)
            os.replace(temporary, link)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            warn(f"{link} cannot be made, a link to {path.name}: {reason(error)}")
            return
        log(f"Best weights in {link}")
