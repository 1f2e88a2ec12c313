"""Snapshots: BVLC's caffemodel and solverstate, written by rank 0, whole or not at all, and read back."""

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
    """Reads and writes the weights and the history that an optimizer works on, and the average of the weights. With
    further optimizers, whose nets' weights the first one's net has, too: all in one file of weights and one state."""

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
        """The files of an iteration: `<prefix>_iter_N.caffemodel` and `.solverstate`, with `.h5` where HDF5 is asked
        for, or where a protobuf message cannot hold them.
        """
        stem, asked = f"{self.prefix()}_iter_{iteration}", self._hdf5_is_asked_for()
        model, state = (".h5" if asked or not fits else "" for fits in self._fit_protobuf())
        return Path(f"{stem}.caffemodel{model}"), Path(f"{stem}.solverstate{state}")

    def _hdf5_is_asked_for(self) -> bool:
        return self._param.snapshot_format == proto.SolverParameter.HDF5

    def _fit_protobuf(self) -> tuple[bool, bool]:
        """Whether messages can hold the weights, and the state."""
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
        """Before training: says what will be HDF5 because of its size."""
        if self._hdf5_is_asked_for() or not saves(self._param):
            return
        kinds = [kind for kind, fits in zip(("caffemodel", "solverstate"), self._fit_protobuf()) if not fits]
        if not kinds:
            return
        reason = f"snapshots: a {' and a '.join(kinds)} of this net is more than a protobuf message can hold (2 GB)"
        log(f"{reason}: saved as HDF5 instead")

    def write(self, state: SolverState) -> list[str]:
        """Collective. Rank 0 writes both files, and the average's; `state` needs neither history nor the names of
        files. Then removes what snapshot_keep leaves out, and returns the weights among it. Raises EngineError that
        names file and reason (a full disk, another run on this snapshot_prefix); older files stay whole.
        """
        state.kept_snapshots = self.kept.others(state.iteration)
        model, path = self.names(state.iteration)
        divided, history = self._model_parallel, self._optimizer.history
        self._world.board.enter(board.SNAPSHOT)  # after all waiting for updates, which enters another place
        if sharding := self._optimizer.sharding:
            whole, histories = sharding.whole_weights(), history.wholes()
        else:
            whole, histories = divided.weights(), divided.histories(history)
        averages = self._write_average(state, model) if self._average and self._average.begun else []
        with failing_alike(self._world):  # nobody runs ahead of a snapshot that fails
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
        """The file of the best weights, which are those of an iteration."""
        model = self.names(iteration)[0]
        return model.with_name(model.name.replace(".caffemodel", "_best.caffemodel"))

    def write_best(self, iteration: int) -> list[str]:
        """Collective. Writes what a test has just scored, the weights or their average, and returns the files that it
        takes the place of, which have been removed. Raises EngineError."""
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
        """Collective. Whether the best weights of a run that goes on are there: then they are the best again."""
        paths = [Path(f"{self.prefix()}_iter_{iteration}_best.caffemodel{suffix}") for suffix in SUFFIXES]
        found = [path for path in paths if is_regular(path)] if self._world.rank == 0 else []
        if found:
            self.kept.link_best(found[0])
        return self._world.broadcast_object(bool(found))

    def _write_average(self, state: SolverState, model: Path) -> list[np.ndarray]:
        """Collective. Writes the weights' average to a file of its own beside the model; returns it as a set of
        history."""
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
        """Collective. Rank 0 reads, all ranks get the values when the run starts. Raises WeightsError where shapes
        differ, and for a file that has none of the net's layers."""
        fresh: list[list[str]] = []  # layers that a file lacks
        with failing_alike(self._world):
            for path in paths:
                log(f"Finetuning from {path}")
                if self._world.rank == 0 or self._model_parallel:
                    fresh.append(load_file(self._optimizer.net, path))
        for layer in fresh[0] if fresh else []:
            if all(layer in each for each in fresh):
                log(f"Layer {layer} is not in {', '.join(paths)}: it keeps its initial values")
        self._optimizer.weights_are_read()

    def read(self, path: str, refuse: Callable[[SolverState], None]) -> SolverState:
        """Collective. Takes over weights and history of a solverstate, written by this engine or by Caffe, on rank 0;
        returns the state on all ranks. refuse: raises WeightsError for a state of another run. Raises WeightsError,
        too, where a file is not what was written, or not of this net and solver. Nothing is taken over then."""
        with failing_alike(self._world):
            found = read_whole(path) if self._world.rank == 0 else None
        history = found.state.history if found else []  # array by array: it may be too large for one message
        mine = (replace(found.state, history=[]), found.model) if found else (SolverState(), "")
        state, model = self._world.broadcast_object(mine)
        log(f"Restoring previous solver status from {path}")
        refuse(state)
        if self._model_parallel:  # the others get theirs from rank 0 when the run starts
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
                self._optimizer.net.load_weights(blobs, model)  # nothing, where something does not fit
        if reads:
            for each, sets in fitted:
                each.take(sets)
            if self._average:
                self._average.take(average)
        elif self._optimizer.sharding:
            self._optimizer.history.take(None)
        if self._average:
            self._average.start_over(state.iteration)  # rank 0's values are sent to all
        self._optimizer.weights_are_read()
        self.kept.restore(path, state)
        return state

    def _broadcast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Collective. Rank 0's, on all ranks."""
        shapes = self._world.broadcast_object([array.shape for array in arrays])
        found = [np.ascontiguousarray(array, np.float32) for array in arrays]
        found = found or [np.empty(shape, np.float32) for shape in shapes]
        for array in found:
            self._world.broadcast(array)
        return found

    def _fit_history(self, state: SolverState, path: str) -> tuple[list[tuple[History, list[Values]]], Values | None]:
        """The sets of each history, of the optimizer and the others, and the weights' average, if there is one: it is
        the last set of the optimizer. Raises WeightsError."""
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
        """After the rank that wrote has died: rank 0 of those that are left has the snapshot_prefix, at the latest when
        it writes: the system takes it from the dead, from those of another host perhaps after a while."""
        self.kept.prefix = self.prefix()  # in which %# or %* may stand
        if self._world.rank == 0 and saves(self._param):
            try:
                self.lock(RESTART_SECONDS)
            except EngineError as error:
                warn(str(error))

    def lock(self, patience: float = 0) -> None:
        """Of the rank that writes: see lock_prefix()."""
        lock_prefix(self.prefix(), patience)
        _holders.add(self)

    def close(self) -> None:
        """Lets other runs have the snapshot_prefix, unless another solver of this process still has it."""
        if self._world.rank != 0:
            return
        _holders.discard(self)
        mine = os.path.abspath(self.prefix())
        if not any(os.path.abspath(each.prefix()) == mine for each in _holders):
            unlock_prefix(mine)


_holders: weakref.WeakSet[Snapshots] = weakref.WeakSet()  # whose snapshot_prefix is locked for them


def _kind(path: Path) -> str:
    return "HDF5" if path.suffix == ".h5" else "binary proto"
