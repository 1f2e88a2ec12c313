"""Snapshots: rank 0 writes Caffe's caffemodel and solverstate, whole or not at all, and reads them back."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine import proto, weights
from engine.config import SolverConfig
from engine.errors import EngineError, WeightsError
from engine.files import is_regular
from engine.host.ranks import failing_alike
from engine.inference.trained import load_file
from engine.report.log import log, warn
from engine.solver.kept import SUFFIXES, KeptSnapshots
from engine.solver.lock import RESTART_SECONDS, lock_prefix, unlock_prefix
from engine.solver.snapshot_files import add_history, read_whole, snapshot_prefix
from engine.solver.validate import saves
from engine.watchdog import board
from engine.weights import SolverState
from engine.weights.protobuf import fits_protobuf

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.layers.base import Parameter
    from engine.solver.ema import WeightAverage
    from engine.solver.history import History
    from engine.solver.model_parallel import ModelParallel
    from engine.solver.optimizer import Optimizer

    Values = dict[Parameter, np.ndarray]


class Snapshots:
    """Reads and writes the weights and the history of an optimizer, and the average of the weights.

    There may be further optimizers (adversarial): the first one's net has the weights of their nets, too, and one file
    of weights and one state hold everything."""

    def __init__(
        self,
        config: SolverConfig,
        world: World,
        optimizer: Optimizer,
        model_parallel: ModelParallel,
        average: WeightAverage | None,
        needed: Iterable[str],
        others: Sequence[Optimizer],
    ):
        """others: further optimizers. needed: files that later stages begin with, which are not removed."""
        self._config, self._param, self._world = config, config.message, world
        self._optimizer, self._model_parallel, self._average = optimizer, model_parallel, average
        self._others = others
        self.kept = KeptSnapshots(self.prefix(), self._param.snapshot_keep, needed, world)

    def prefix(self) -> str:
        """See snapshot_prefix()."""
        return snapshot_prefix(self._config, self._world)

    def names(self, iteration: int) -> tuple[Path, Path]:
        """Returns the paths of an iteration's snapshot: `<prefix>_iter_N.caffemodel` and `.solverstate`, with `.h5`
        behind if HDF5 is asked for, or if a protobuf message cannot hold the content."""
        stem, asked = f"{self.prefix()}_iter_{iteration}", self._hdf5_is_asked_for()
        model, state = (".h5" if asked or not fits else "" for fits in self._fit_protobuf())
        return Path(f"{stem}.caffemodel{model}"), Path(f"{stem}.solverstate{state}")

    def _hdf5_is_asked_for(self) -> bool:
        return self._param.snapshot_format == proto.SolverParameter.HDF5

    def _fit_protobuf(self) -> tuple[bool, bool]:
        """Tells whether protobuf messages can hold the weights, and the state."""
        net, weights_of = self._optimizer.net, self._optimizer.net.all_params()
        history_of: list[Parameter] = []
        for optimizer in (self._optimizer, *self._others):
            history_of += len(optimizer.history.arrays) * optimizer.net.own_params()
        if self._average:
            history_of += net.own_params()
        return (
            fits_protobuf(sum(prod(p.whole_shape) for p in weights_of), len(weights_of), net.message.ByteSize()),
            fits_protobuf(sum(prod(p.whole_shape) for p in history_of), len(history_of)),
        )

    def check_size(self) -> None:
        """Logs, before training, which files will be HDF5 because of their size."""
        if self._hdf5_is_asked_for() or not saves(self._param):
            return
        kinds = [kind for kind, fits in zip(("caffemodel", "solverstate"), self._fit_protobuf()) if not fits]
        if not kinds:
            return
        reason = f"snapshots: a {' and a '.join(kinds)} of this net is more than a protobuf message can hold (2 GB)"
        log(f"{reason}: saved as HDF5 instead")

    def write(self, state: SolverState) -> list[str]:
        """Collective. Writes both files on rank 0, and that of the average, then removes what snapshot_keep leaves out.

        state: is completed here: history, names of files, digest. Returns the files of weights that were removed.
        Raises EngineError that names file and reason (a full disk, another run on this snapshot_prefix); older files
        stay whole.
        """
        state.kept_snapshots = self.kept.others(state.iteration)
        model, path = self.names(state.iteration)
        divided, history = self._model_parallel, self._optimizer.history
        self._world.board.enter(board.SNAPSHOT)  # after all waits for updates, which enter another place
        if sharding := self._optimizer.sharding:
            whole, histories = sharding.whole_weights(), history.wholes()
        else:
            whole, histories = divided.weights(), divided.histories(history)
        averages = self._write_average(state, model) if self._average and self._average.begun else []
        with failing_alike(self._world):  # no rank goes on if the snapshot fails
            if self._world.rank == 0:
                net, content = self._optimizer.net, hashlib.sha256()
                self.lock()
                log(f"Snapshotting to {_kind(model)} file {model}")
                weights.write_caffemodel(model, net.message, net.weights_by_layer(whole), content)
                log(f"Snapshotting solver state to {_kind(path)} file {path}")
                state.learned_net, state.history = str(model), history.to_blobs(histories) + averages
                for other in self._others:
                    state.history += other.history.to_blobs()
                state.digest = add_history(content, state.history)
                weights.write_solverstate(path, state)
        self._world.saved(str(path))
        return self.kept.add(state.iteration, state.best_iteration)

    def best_name(self, iteration: int) -> Path:
        """Returns the path of the best weights, if they are those of `iteration`."""
        model = self.names(iteration)[0]
        return model.with_name(model.name.replace(".caffemodel", "_best.caffemodel"))

    def write_best(self, iteration: int) -> list[str]:
        """Collective. Writes what a test has just scored: the average of the weights if there is one, else the weights.
        Removes the files of best weights that this replaces, and returns them. Raises EngineError."""
        average = self._average if self._average and self._average.begun else None
        net, path = self._optimizer.net, self.best_name(iteration)
        self._world.board.enter(board.SNAPSHOT)
        if average:
            (whole,) = self._model_parallel.histories(average.history)
        else:
            sharding = self._optimizer.sharding
            whole = sharding.whole_weights() if sharding else self._model_parallel.weights()
        with failing_alike(self._world):
            if self._world.rank == 0:
                self.lock()
                with average.in_use() if average else nullcontext():
                    weights.write_caffemodel(path, net.message, net.weights_by_layer(whole))
        return self.kept.add_best(path, iteration)

    def find_best(self, iteration: int) -> bool:
        """Collective. Tells whether the file of the best weights, those of `iteration`, is there, and makes
        `<prefix>_best.caffemodel` point to it, in a run that goes on."""
        paths = [Path(f"{self.prefix()}_iter_{iteration}_best.caffemodel{suffix}") for suffix in SUFFIXES]
        found = [path for path in paths if is_regular(path)] if self._world.rank == 0 else []
        if found:
            self.kept.link_best(found[0])
        return self._world.broadcast_object(bool(found))

    def _write_average(self, state: SolverState, model: Path) -> list[np.ndarray]:
        """Collective. Writes the average of the weights to a file beside the model. Returns it as a set of history."""
        average, net = self._average, self._optimizer.net
        assert average
        (whole,) = self._model_parallel.histories(average.history)
        blobs = average.to_blobs(whole)
        state.ema = average.decay
        with failing_alike(self._world):
            if self._world.rank == 0:
                self.lock()
                path = model.with_name(model.name.replace(".caffemodel", "_ema.caffemodel"))
                log(f"Snapshotting the average of the weights to {_kind(path)} file {path}")
                with average.in_use():
                    weights.write_caffemodel(path, net.message, net.weights_by_layer(whole))
        return blobs

    def load_weights(self, paths: list[str]) -> None:
        """Collective. Reads files of weights, for fine-tuning, on rank 0; the other ranks get the values when the run
        starts. Raises WeightsError if shapes differ, or if a file has none of the net's layers."""
        fresh: list[list[str]] = []  # for each file, the layers that it lacks
        with failing_alike(self._world):
            for path in paths:
                log(f"Finetuning from {path}")
                if self._world.rank == 0 or self._model_parallel:
                    fresh.append(load_file(self._optimizer.net, path))
        for layer in fresh[0] if fresh else []:
            if all(layer in each for each in fresh):
                log(f"Layer {layer} is not in {', '.join(paths)}: it keeps its initial values")
        self._optimizer.begin_with_weights()

    def read(self, path: str, refuse: Callable[[SolverState], None]) -> SolverState:
        """Collective. Takes over the weights and history of a solverstate, written by this engine or by Caffe, on rank
        0; the other ranks get the values when the run starts. Returns the state on all ranks, without history.

        refuse: raises WeightsError for a state with which this run cannot go on. Raises WeightsError, too, if a file is
        not what was written, or does not fit the net and the solver. Nothing is taken over then."""
        with failing_alike(self._world):
            found = read_whole(path) if self._world.rank == 0 else None
        history = found.state.history if found else []  # not broadcast with the state: too large for one message
        mine = (replace(found.state, history=[]), found.model) if found else (SolverState(), "")
        state, model = self._world.broadcast_object(mine)
        log(f"Restoring previous solver status from {path}")
        refuse(state)
        if self._model_parallel:  # then each rank reads, to take its own parts
            history = self._broadcast(history)
        reads, fitted, average = found or self._model_parallel, [], None
        with failing_alike(self._world):
            if reads:
                blobs = found.blobs if found else weights.read_caffemodel(model)
                if lacking := self._optimizer.net.lacking(blobs, model):
                    raise WeightsError(
                        f"it lacks the layers {', '.join(lacking)} of the net, and a snapshot has all (to start from "
                        "these weights: --weights)",
                        model,
                    )
                fitted, average = self._fit_history(replace(state, history=history), path)
                self._optimizer.net.load_weights(blobs, model)  # takes over nothing if something does not fit
        if reads:
            for each, sets in fitted:
                each.take(sets)
            if self._average:
                self._average.take(average)
        elif self._optimizer.sharding:
            self._optimizer.history.take(None)
        if self._average:
            self._average.start_over(state.iteration)
        self._optimizer.begin_with_weights()
        self.kept.restore(path, state)
        return state

    def _broadcast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Collective. Returns rank 0's arrays on all ranks."""
        shapes = self._world.broadcast_object([array.shape for array in arrays])
        found = [np.ascontiguousarray(array, np.float32) for array in arrays]
        found = found or [np.empty(shape, np.float32) for shape in shapes]
        for array in found:
            self._world.broadcast(array)
        return found

    def _fit_history(self, state: SolverState, path: str) -> tuple[list[tuple[History, list[Values]]], Values | None]:
        """Divides a state's history among the optimizers: (history, its sets) for each, and the average of the weights
        if state and run have one. In the state, the average follows the optimizer's sets, and the other optimizers'
        sets come last. Raises WeightsError if something does not fit."""
        history, average = state.history, None
        fitted: list[tuple[History, list[Values]]] = []
        for other in reversed(self._others):
            count = len(other.history.arrays) * len(other.net.own_params())
            history, sets = (history[:-count], history[-count:]) if count else (history, [])
            fitted.append((other.history, other.history.fit(sets, path)))
        if state.ema is not None:
            count = len(self._optimizer.net.graph.params)
            history, averages = history[:-count], history[-count:]
            if self._average:
                (average,) = self._average.history.fit(averages, path)
            else:
                log(f"The average of the weights in {path} is left out: the solver has no ema")
        elif self._average and state.iteration > 0:
            log(f"No average of the weights in {path}: it begins with the weights")
        fitted.append((self._optimizer.history, self._optimizer.history.fit(history, path)))
        return fitted, average

    def take_over(self) -> None:
        """Locks the snapshot_prefix for this rank if it is rank 0 now, after a death. If that fails, write() tries it
        again: the system may release the lock of a process that died on another host only after a while."""
        self.kept.prefix = self.prefix()  # %# and %* may expand to other numbers now
        if self._world.rank == 0 and saves(self._param):
            try:
                self.lock(RESTART_SECONDS)
            except EngineError as error:
                warn(str(error))

    def lock(self, patience: float = 0) -> None:
        """Locks the snapshot_prefix, for the rank that writes: see lock_prefix()."""
        lock_prefix(self.prefix(), patience)
        _holders.add(self)

    def close(self) -> None:
        """Releases the snapshot_prefix, unless another solver of this process still uses it."""
        if self._world.rank != 0:
            return
        _holders.discard(self)
        mine = os.path.abspath(self.prefix())
        if not any(os.path.abspath(each.prefix()) == mine for each in _holders):
            unlock_prefix(mine)


_holders: weakref.WeakSet[Snapshots] = weakref.WeakSet()  # all that have locked their snapshot_prefix


def _kind(path: Path) -> str:
    return "HDF5" if path.suffix == ".h5" else "binary proto"
