"""Snapshots: BVLC's caffemodel and solverstate, written by rank 0, whole or not at all, and read back."""

from __future__ import annotations

import importlib.util
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine import proto, weights
from engine.errors import ConfigError, WeightsError
from engine.report.log import log
from engine.solver.resume import digest, find_model, snapshot_prefix
from engine.solver.schedules import Plateau
from engine.weights import SolverState
from engine.weights.protobuf import fits_protobuf

if TYPE_CHECKING:
    from engine.solver.solver import Solver


class SnapshotFiles:
    """Reads and writes a solver's weights and state. `samples_before` samples had been seen at `first_iteration`."""

    def __init__(self, solver: Solver):
        self.solver = solver
        self.first_iteration = 0
        self.samples_before = 0

    def prefix(self) -> str:
        """See snapshot_prefix()."""
        return snapshot_prefix(self.solver.config, self.solver.world)

    def names(self) -> tuple[Path, Path]:
        """The files of this iteration: `<prefix>_iter_N.caffemodel` and `.solverstate`, with `.h5` where HDF5 is
        asked for, or where a protobuf message cannot hold them.
        """
        stem, asked = f"{self.prefix()}_iter_{self.solver.iteration}", self._hdf5_is_asked_for()
        model, state = (".h5" if asked or not fits else "" for fits in self._fit_protobuf())
        return Path(f"{stem}.caffemodel{model}"), Path(f"{stem}.solverstate{state}")

    def _hdf5_is_asked_for(self) -> bool:
        return self.solver.param.snapshot_format == proto.SolverParameter.HDF5

    def _fit_protobuf(self) -> tuple[bool, bool]:
        """Whether messages can hold the weights, and the state."""
        net, sets = self.solver.net, len(self.solver.history.arrays)
        weights_of, history_of = net.all_params(), net.graph.params
        return (
            fits_protobuf(sum(prod(p.whole_shape) for p in weights_of), len(weights_of), net.message.ByteSize()),
            fits_protobuf(sets * sum(prod(p.whole_shape) for p in history_of), sets * len(history_of)),
        )

    def check_size(self) -> None:
        """Before training: says what will be HDF5 because of its size. Raises ConfigError if h5py is not there."""
        if self._hdf5_is_asked_for() or not (self.solver.param.snapshot or self.solver.param.snapshot_after_train):
            return
        kinds = [kind for kind, fits in zip(("caffemodel", "solverstate"), self._fit_protobuf()) if not fits]
        if not kinds:
            return
        reason = f"snapshots: a {' and a '.join(kinds)} of this net is more than a protobuf message can hold (2 GB)"
        if importlib.util.find_spec("h5py") is None:
            raise ConfigError(f"{reason}, and HDF5 needs h5py: pip install engine[hdf5]", self.solver.config.path)
        log(f"{reason}: saved as HDF5 instead")

    def write(self) -> None:
        """Rank 0 writes both files. Raises EngineError that names file and reason (a full disk); older ones stay
        whole.
        """
        solver = self.solver
        model, state = self.names()
        recent_loss = np.array(solver.recent_loss.recent)
        solver.world.allreduce(recent_loss)
        recent_loss /= solver.world.size
        whole, histories = solver.model_parallel.weights(), solver.model_parallel.histories(solver.history)
        if solver.world.rank == 0:
            log(f"Snapshotting to {_kind(model)} file {model}")
            weights.write_caffemodel(model, solver.net.message, solver.net.weights_by_layer(whole))
            log(f"Snapshotting solver state to {_kind(state)} file {state}")
            weights.write_solverstate(state, self._state(model, recent_loss.tolist(), histories))
            solver.world.saved(str(state))
        solver.world.barrier()  # nobody runs ahead of a snapshot that fails

    def _state(self, model: Path, recent_loss: list[float], histories: list[dict]) -> SolverState:
        solver = self.solver
        history = solver.history.to_blobs(histories)
        state = SolverState(
            iteration=solver.iteration,
            learned_net=str(model),
            history=history,
            random_seed=solver.seed,
            ranks=solver.world.size,
            samples_seen=solver.samples_seen(),
            recent_loss=recent_loss,
            last_rate=solver.last_rate,
            global_batch=solver.samples_per_iteration,
            digest=digest(model, history),
        )
        if isinstance(solver.rate, Plateau):
            state.current_step = solver.rate.current_step
            state.minimum_loss, state.iter_last_event = solver.rate.minimum_loss, solver.rate.last_event
        return state

    def load_weights(self, paths: list[str]) -> None:
        """Rank 0 reads, all ranks get the values when the run starts. Raises WeightsError where shapes differ."""
        net = self.solver.net
        for path in paths:
            log(f"Finetuning from {path}")
            if self.solver.world.rank == 0 or self.solver.model_parallel:
                fresh = net.load_weights(weights.read_caffemodel(path), path)
                for layer in fresh:
                    log(f"Layer {layer} is not in {path}: it keeps its initial values")

    def restore(self, path: str) -> None:
        """Weights, history and position of a solverstate, written by this engine or by Caffe. The order of samples
        goes on where it stopped, also with another number of ranks."""
        solver = self.solver
        state = solver.world.broadcast_object(weights.read_solverstate(path) if solver.world.rank == 0 else None)
        model = find_model(state.learned_net, path)
        log(f"Restoring previous solver status from {path}")
        if solver.world.rank == 0 or solver.model_parallel:
            solver.net.load_weights(weights.read_caffemodel(model), model)
            solver.history.from_blobs(state.history, path)
        solver.iteration = self.first_iteration = state.iteration
        known = state.samples_seen is not None
        self.samples_before = state.samples_seen if known else state.iteration * solver.samples_per_iteration
        for loss in state.recent_loss:
            solver.recent_loss.add(loss)
        solver.last_rate = state.last_rate
        if state.random_seed is not None and solver.param.random_seed < 0:
            self._same_seed(state.random_seed, path)
        if isinstance(solver.rate, Plateau):
            solver.rate.current_step = state.current_step
            solver.rate.minimum_loss, solver.rate.last_event = state.minimum_loss, state.iter_last_event

    def _same_seed(self, seed: int, path: str) -> None:
        if seed != self.solver.seed:
            raise WeightsError(
                f"{path}: was trained with random_seed {seed}; set it to go on with the same order of samples"
            )


def _kind(path: Path) -> str:
    return "HDF5" if path.suffix == ".h5" else "binary proto"
